//! Norms and element-wise operations, alone and fused.

use glim_plan::fuse::{ADD_RMS_NORM, FusePattern};
use glim_plan::{CollectiveId, Cols, Gather, GgmlType, InputKind, Op, Precision, fuse};

use super::super::bounds::{EIGHT_BIT, NONE, SUM};
use super::super::case::{Case, Feed, all};
use super::super::layout::Layout;
use super::{F32, I32, layouts};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for layout in layouts() {
        for width in [33, 256] {
            cases.push(rms_norm(&layout, width));
            cases.push(layer_norm(&layout, width));
            cases.push(fused(&layout, width));
        }
        cases.push(rounded(&layout));
        cases.push(swiglu(&layout));
        cases.push(collectives(&layout));
        cases.push(top_k_merge(&layout));
    }
    cases
}

/// Columns of each head of a wider row.
fn rms_norm(layout: &Layout, width: usize) -> Case {
    let mut feed = Feed::new(format!("RmsNorm {width}, {}", layout.name), layout);
    let x = feed.wide_activation("x", &[2, width + 7]);
    let weight = feed.weight("w", F32, &[width]);
    let out = feed.result("out", F32, &[2, width]);
    let op = Op::RmsNorm {
        x: Cols {
            buffer: x,
            start: 3,
            len: width,
        },
        weight,
        eps: 1e-5,
        out,
    };
    feed.b.op("rms_norm", op);
    feed.finish(SUM)
}

fn layer_norm(layout: &Layout, width: usize) -> Case {
    let mut feed = Feed::new(format!("LayerNorm {width}, {}", layout.name), layout);
    let x = feed.activation("x", &[width]);
    let weight = feed.weight("w", F32, &[width]);
    let bias = feed.weight("b", F32, &[width]);
    let out = feed.result("out", F32, &[width]);
    let op = Op::LayerNorm {
        x: all(x, width),
        weight,
        bias,
        eps: 1e-6,
        out,
    };
    feed.b.op("layer_norm", op);
    feed.finish(SUM)
}

/// Residual add and norm as one operation; both results are seen.
fn fused(layout: &Layout, width: usize) -> Case {
    let mut feed = Feed::new(format!("AddRmsNorm {width}, {}", layout.name), layout);
    let (a, b) = (
        feed.activation("a", &[width]),
        feed.activation("b", &[width]),
    );
    let sum = feed.result("sum", F32, &[width]);
    feed.b.op("add", Op::Add { a, b, out: sum });
    let weight = feed.weight("w", F32, &[width]);
    let out = feed.result("out", F32, &[width]);
    let op = Op::RmsNorm {
        x: all(sum, width),
        weight,
        eps: 1e-5,
        out,
    };
    feed.b.op("rms_norm", op);
    as_one(feed.finish(SUM), ADD_RMS_NORM)
}

/// The case with the operations of a pattern as one.
pub(super) fn as_one(mut case: Case, pattern: FusePattern) -> Case {
    let ops = case.plan.ops.len();
    fuse(&mut case.plan, &[pattern]);
    assert!(case.plan.ops.len() < ops, "{}: nothing fits", case.name);
    case
}

/// Rows that products take as 8-bit integers, from each operation that may write them in that form itself. Two products share one of
/// them.
fn rounded(layout: &Layout) -> Case {
    let mut feed = Feed::new(
        format!("Rounded rows of norms and SwiGlu, {}", layout.name),
        layout,
    );
    let (a, b) = (feed.activation("a", &[256]), feed.activation("b", &[256]));
    let sum = feed.temp("sum", &[256]);
    feed.b.op("add", Op::Add { a, b, out: sum });
    let norms = [("first", sum), ("second", a)].map(|(name, x)| {
        let weight = feed.weight(&format!("{name}.norm"), F32, &[256]);
        let out = feed.temp(&format!("{name}.out"), &[256]);
        let op = Op::RmsNorm {
            x: all(x, 256),
            weight,
            eps: 1e-5,
            out,
        };
        feed.b.op(name, op);
        out
    });
    let hidden = feed.temp("hidden", &[256]);
    let op = Op::SwiGlu {
        gate: norms[0],
        up: norms[1],
        out: hidden,
    };
    feed.b.op("swiglu", op);
    for (name, x, ty) in [
        ("a8", norms[0], GgmlType::Q8_0),
        ("a4", norms[0], GgmlType::Q4_K),
        ("b8", norms[1], GgmlType::Q8_0),
        ("c8", hidden, GgmlType::Q8_0),
    ] {
        let weight = feed.weight(&format!("{name}.weight"), ty, &[24, 256]);
        let out = feed.result(name, F32, &[24]);
        let op = Op::Linear {
            x,
            weights: vec![weight],
            outs: vec![out],
            precision: Precision::Fast,
        };
        feed.b.op(name, op);
    }
    as_one(feed.finish(EIGHT_BIT), ADD_RMS_NORM)
}

/// Both operands, and then one buffer in both places.
fn swiglu(layout: &Layout) -> Case {
    let mut feed = Feed::new(format!("SwiGlu and Add, {}", layout.name), layout);
    let (gate, up) = (feed.activation("gate", &[77]), feed.activation("up", &[77]));
    let out = feed.result("out", F32, &[77]);
    feed.b.op("swiglu", Op::SwiGlu { gate, up, out });
    let square = feed.result("own", F32, &[77]);
    let own = Op::SwiGlu {
        gate,
        up: gate,
        out: square,
    };
    feed.b.op("own", own);
    let twice = feed.result("twice", F32, &[77]);
    let add = Op::Add {
        a: up,
        b: up,
        out: twice,
    };
    feed.b.op("twice", add);
    feed.finish(SUM)
}

/// Of one rank: the sum and the whole are its own.
fn collectives(layout: &Layout) -> Case {
    let mut feed = Feed::new(format!("AllReduce and AllGather, {}", layout.name), layout);
    let x = feed.activation("x", &[31]);
    let (sum, whole) = (
        feed.result("sum", F32, &[31]),
        feed.result("whole", F32, &[31]),
    );
    let reduce = Op::AllReduce {
        id: CollectiveId(0),
        wire: F32,
        x,
        out: sum,
    };
    feed.b.op("all_reduce", reduce);
    let gather = Op::AllGather {
        id: CollectiveId(1),
        wire: F32,
        gathers: vec![Gather {
            x,
            out: whole,
            lens: vec![31],
        }],
    };
    feed.b.op("all_gather", gather);
    feed.finish(NONE)
}

/// Candidates with equal values, whose ids decide.
fn top_k_merge(layout: &Layout) -> Case {
    const CANDIDATES: usize = 9;
    let mut feed = Feed::new(format!("TopKMerge, {}", layout.name), layout);
    feed.extents(CANDIDATES, 0);
    let rows = layout.rows().len();
    let values = (0..rows * CANDIDATES)
        .map(|_| feed.random.below(4) as f32)
        .collect();
    let values = feed.activation_of("values", &[CANDIDATES], values);
    let ids = feed.b.input(InputKind::ForcedTopk);
    // 5 is prime to 9: all ids differ.
    let row = |t: usize| (0..CANDIDATES).map(move |i| ((i * 5 + t) % CANDIDATES) as i32);
    feed.extras.forced = (0..rows).map(|t| row(t).collect()).collect();
    let (out_values, out_ids) = (
        feed.result("best", F32, &[4]),
        feed.result("best_ids", I32, &[4]),
    );
    let op = Op::TopKMerge {
        values,
        ids,
        k: 4,
        out_values,
        out_ids,
    };
    feed.b.op("merge", op);
    let case = feed.finish(NONE);
    Case {
        specials: false,
        ..case
    }
}
