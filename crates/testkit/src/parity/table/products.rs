//! Linear, LmHead, HeadProject and Embed, with weights of every type.

use glim_plan::{GgmlType, InputKind, Op, Precision, Rows};

use super::super::blocks::types;
use super::super::bounds::{NONE, SUM};
use super::super::case::{Case, Feed};
use super::super::layout::Layout;
use super::{F32, layouts_for, product_bound, widths};
use glim_plan::Cols;

/// Bytes and elements of a weight that is large enough to be cut over several threads, if no more than the latter.
const LARGE: (usize, usize) = (20 * 1024, 64 * 1024);

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for ty in types() {
        let [narrow, wide] = widths(ty);
        for layout in layouts_for(ty) {
            cases.push(linear(ty, wide, &layout, Precision::Fast));
            cases.push(head_project(ty, wide, &layout));
            cases.push(lm_head(ty, wide, &layout));
        }
        let layout = Layout::ragged();
        cases.push(linear(ty, narrow, &layout, Precision::Fast));
        cases.push(linear(ty, wide, &layout, Precision::F32));
        cases.push(head_project(ty, narrow, &layout));
        cases.push(embed(ty, wide, &layout));
    }
    cases
}

/// Three weights that share an input: a large one, one of a single row, and one whose result has more axes.
fn linear(ty: GgmlType, k: usize, layout: &Layout, precision: Precision) -> Case {
    let name = format!("Linear {ty} K {k} {precision:?}, {}", layout.name);
    let mut feed = Feed::new(name, layout);
    let x = feed.activation("x", &[k]);
    let (bytes, elements) = LARGE;
    let large = (bytes / ty.row_bytes(k).unwrap_or(1)).min(elements / k) | 1;
    let shapes: [&[usize]; 3] = [&[large], &[1], &[3, 5]];
    let (mut weights, mut outs) = (Vec::new(), Vec::new());
    for (i, axes) in shapes.into_iter().enumerate() {
        weights.push(feed.weight(&format!("w{i}"), ty, &[axes.iter().product(), k]));
        outs.push(feed.result(&format!("out{i}"), F32, axes));
    }
    feed.b.op(
        "linear",
        Op::Linear {
            x,
            weights,
            outs,
            precision,
        },
    );
    feed.finish(match precision {
        Precision::Fast => product_bound(ty),
        Precision::F32 => SUM,
    })
}

fn head_project(ty: GgmlType, k: usize, layout: &Layout) -> Case {
    let mut feed = Feed::new(format!("HeadProject {ty} K {k}, {}", layout.name), layout);
    // Columns in the middle of a head, at no aligned place.
    let x = feed.wide_activation("x", &[3, k + 5]);
    let weight = feed.weight("w", ty, &[3, 29, k]);
    let out = feed.result("out", F32, &[3, 29]);
    let x = Cols {
        buffer: x,
        start: 3,
        len: k,
    };
    feed.b
        .op("head_project", Op::HeadProject { x, weight, out });
    feed.finish(product_bound(ty))
}

fn lm_head(ty: GgmlType, k: usize, layout: &Layout) -> Case {
    let mut feed = Feed::new(format!("LmHead {ty} K {k}, {}", layout.name), layout);
    let x = feed.activation("x", &[k]);
    let x = feed.select(x, k, "selected");
    let weight = feed.weight("w", ty, &[131, k]);
    let shape = [feed.tokens(), 131];
    let out = feed.b.result("logits", F32, &shape, Rows::Outputs);
    feed.b.op("output", Op::LmHead { x, weight, out });
    feed.finish(product_bound(ty))
}

/// Rows of the table itself, decoded.
fn embed(ty: GgmlType, k: usize, layout: &Layout) -> Case {
    let mut feed = Feed::new(format!("Embed {ty} K {k}, {}", layout.name), layout);
    let table = feed.weight("table", ty, &[layout.rows().len(), k]);
    let tokens = feed.b.input(InputKind::Tokens);
    let out = feed.result("out", F32, &[k]);
    feed.b.op(
        "embed",
        Op::Embed {
            tokens,
            carry: None,
            table,
            out,
        },
    );
    let case = feed.finish(NONE);
    Case {
        specials: false,
        ..case
    }
}
