//! Rope, caches, the indexer and latent attention.

use glim_plan::fuse::{NORMS, ROPES};
use glim_plan::{BufferId, Cols, GgmlType, InputKind, Op, RopeSpec, RopeStyle};

use super::super::bounds::{EIGHT_BIT, NONE, SOFTMAX, SUM};
use super::super::case::{Case, Feed, all};
use super::super::layout::{Extras, GEOMETRY, Layout};
use super::rows::as_one;
use super::{F32, I32, SCORES, layouts};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for layout in layouts() {
        cases.push(rope(&layout, RopeStyle::Interleaved));
        cases.push(rope(&layout, RopeStyle::HalfSplit));
        cases.push(ropes(&layout));
        cases.push(norms(&layout, 37, 17));
        cases.push(norms(&layout, 64, 32));
        cases.push(append(&layout, None));
        cases.push(append(&layout, Some(3)));
        cases.push(index_score(&layout, 13));
        cases.push(index_score(&layout, 128));
        cases.push(scored(&layout));
        cases.push(index_select(&layout, 6, false));
        cases.push(index_select(&layout, GEOMETRY.max_positions(), false));
        cases.push(index_select(&layout, 6, true));
        for chosen in [Chosen::All, Chosen::Some, Chosen::One] {
            cases.push(attend(&layout, 21, 6, chosen));
        }
        cases.push(attend(&layout, 64, 32, Chosen::Some));
    }
    cases
}

/// The rotated elements lie within a head, and the result is the whole of it.
fn rope(layout: &Layout, style: RopeStyle) -> Case {
    let mut feed = Feed::new(format!("Rope {style:?}, {}", layout.name), layout);
    let x = feed.activation("x", &[3, 17]);
    let positions = feed.b.input(InputKind::Positions);
    let spec = RopeSpec {
        start: 5,
        n: 10,
        theta: 1000.0,
        style,
    };
    feed.b.op("rope", Op::Rope { x, positions, spec });
    show(&mut feed, "out", x, &[3, 17]);
    feed.finish(SUM)
}

/// An update in place has no result of its own: a sum with zeros (bit for bit, but for the sign of a zero) shows it.
fn show(feed: &mut Feed, name: &str, x: BufferId, axes: &[usize]) {
    let width: usize = axes.iter().product();
    let zero = vec![0.0; feed.layout.rows().len() * width];
    let zero = feed.activation_of(&format!("{name}.zero"), axes, zero);
    let out = feed.result(name, F32, axes);
    let op = Op::Add { a: x, b: zero, out };
    feed.b.op(&format!("{name}.show"), op);
}

/// Rotations of two buffers as one, and a product of the columns that one of them leaves alone.
fn ropes(layout: &Layout) -> Case {
    let mut feed = Feed::new(format!("Ropes, {}", layout.name), layout);
    let (q, k) = (
        feed.activation("q", &[2, 40]),
        feed.activation("k", &[3, 17]),
    );
    let weight = feed.weight("w", GgmlType::Q8_0, &[2, 24, 32]);
    let positions = feed.b.input(InputKind::Positions);
    for (name, x, start, style) in [
        ("q_rope", q, 32, RopeStyle::Interleaved),
        ("k_rope", k, 5, RopeStyle::HalfSplit),
    ] {
        let spec = RopeSpec {
            start,
            n: 8,
            theta: 1000.0,
            style,
        };
        feed.b.op(name, Op::Rope { x, positions, spec });
    }
    let x = Cols {
        buffer: q,
        start: 0,
        len: 32,
    };
    let out = feed.result("product", F32, &[2, 24]);
    feed.b.op("product", Op::HeadProject { x, weight, out });
    show(&mut feed, "q.out", q, &[2, 40]);
    show(&mut feed, "k.out", k, &[3, 17]);
    as_one(feed.finish(EIGHT_BIT), ROPES)
}

/// The latents of a layer as one: the query's, normed; the cached row, of a normed part and a rotated one; the index key, rotated
/// after its norm.
fn norms(layout: &Layout, rank: usize, dim: usize) -> Case {
    let mut feed = Feed::new(format!("Norms {rank} {dim}, {}", layout.name), layout);
    let (q, kv) = (
        feed.activation("q", &[64]),
        feed.activation("kv", &[rank + 8]),
    );
    let key = feed.activation("key", &[dim]);
    let positions = feed.b.input(InputKind::Positions);
    let mut rms_norm = |name: &str, x: Cols| {
        let weight = feed.weight(&format!("{name}.weight"), F32, &[x.len]);
        let out = feed.result(name, F32, &[x.len]);
        let op = Op::RmsNorm {
            x,
            weight,
            eps: 1e-5,
            out,
        };
        feed.b.op(&format!("{name}.norm"), op);
        out
    };
    rms_norm("q.out", all(q, 64));
    let c = rms_norm("c", all(kv, rank));
    let rope = |start, style| RopeSpec {
        start,
        n: 8,
        theta: 1000.0,
        style,
    };
    let spec = rope(rank, RopeStyle::Interleaved);
    let op = Op::Rope {
        x: kv,
        positions,
        spec,
    };
    feed.b.op("kv.rope", op);
    let rotated = Cols {
        buffer: kv,
        start: rank,
        len: 8,
    };
    feed.append(vec![all(c, rank), rotated], "latent");
    let (weight, bias) = (
        feed.weight("k.weight", F32, &[dim]),
        feed.weight("k.bias", F32, &[dim]),
    );
    let k = feed.temp("k", &[dim]);
    let op = Op::LayerNorm {
        x: all(key, dim),
        weight,
        bias,
        eps: 1e-6,
        out: k,
    };
    feed.b.op("k.norm", op);
    let spec = rope(3, RopeStyle::HalfSplit);
    let op = Op::Rope {
        x: k,
        positions,
        spec,
    };
    feed.b.op("k.rope", op);
    feed.append(vec![all(k, dim)], "keys");
    show(&mut feed, "kv.out", kv, &[rank + 8]);
    show(&mut feed, "k.out", k, &[dim]);
    let case = as_one(feed.finish(SUM), NORMS);
    assert!(
        case.plan.ops.iter().any(|node| node.op.parts().len() == 7),
        "{}: a part is left out",
        case.name
    );
    case
}

/// The state itself is compared.
fn append(layout: &Layout, drop_every: Option<i32>) -> Case {
    let dropped = drop_every.map_or(String::new(), |n| format!(", every {n}rd not kept"));
    let mut feed = Feed::new(format!("CacheAppend, {}{dropped}", layout.name), layout);
    feed.extras = Extras {
        drop_every,
        ..Extras::default()
    };
    let (a, b) = (feed.activation("a", &[9]), feed.activation("b", &[12]));
    let parts = vec![
        all(a, 9),
        Cols {
            buffer: b,
            start: 5,
            len: 4,
        },
    ];
    feed.append(parts, "state");
    feed.finish(NONE)
}

fn index_score(layout: &Layout, dim: usize) -> Case {
    const HEADS: usize = 5;
    let mut feed = Feed::new(format!("IndexScore dim {dim}, {}", layout.name), layout);
    let key = feed.activation("key", &[dim]);
    let keys = feed.append(vec![all(key, dim)], "keys");
    let q = feed.activation("q", &[HEADS, dim]);
    let weights = feed.activation("head_weights", &[HEADS]);
    let out = feed.result(SCORES, F32, &[GEOMETRY.max_positions()]);
    let op = Op::IndexScore {
        q,
        weights,
        keys,
        paging: feed.paging(),
        scale: 0.25,
        out,
    };
    feed.b.op("index_score", op);
    feed.finish(SUM)
}

/// Scores that nobody but the choice reads: a backend may leave out those of rows that see no more than is kept.
fn scored(layout: &Layout) -> Case {
    const TOPK: usize = 6;
    let mut feed = Feed::new(format!("IndexSelect of scores, {}", layout.name), layout);
    let key = feed.activation("key", &[16]);
    let keys = feed.append(vec![all(key, 16)], "keys");
    let q = feed.activation("q", &[3, 16]);
    let weights = feed.activation("head_weights", &[3]);
    let scores = feed.temp("scores.temp", &[GEOMETRY.max_positions()]);
    let paging = feed.paging();
    let score = Op::IndexScore {
        q,
        weights,
        keys,
        paging,
        scale: 0.25,
        out: scores,
    };
    feed.b.op("index_score", score);
    let out = feed.result("topk", I32, &[TOPK]);
    let select = Op::IndexSelect {
        scores,
        positions: paging.positions,
        topk: TOPK,
        forced: None,
        out,
    };
    feed.b.op("index_select", select);
    let case = feed.finish(NONE);
    Case {
        specials: false,
        ..case
    }
}

/// Scores with ties at every place; forced rows, all but every third.
fn index_select(layout: &Layout, topk: usize, force: bool) -> Case {
    let kind = if force { "forced" } else { "by score" };
    let name = format!("IndexSelect {topk} {kind}, {}", layout.name);
    let mut feed = Feed::new(name, layout);
    feed.extents(topk + 2, 0);
    let (rows, width) = (layout.rows().len(), GEOMETRY.max_positions());
    let values: Vec<f32> = (0..rows * width)
        .map(|_| feed.random.below(9) as f32 - 4.0)
        .collect();
    let scores = feed.activation_of("scores.in", &[width], values);
    let forced = force.then(|| Cols {
        buffer: feed.b.input(InputKind::ForcedTopk),
        start: 2,
        len: topk,
    });
    if force {
        let row = |t: usize| {
            let first = if t.is_multiple_of(3) { -1 } else { t as i32 };
            [7, 8, first]
                .into_iter()
                .chain((1..topk).map(|i| (i + t) as i32))
                .collect::<Vec<i32>>()
        };
        feed.extras.forced = (0..rows).map(row).collect();
    }
    let out = feed.result("topk", I32, &[topk]);
    let op = Op::IndexSelect {
        scores,
        positions: feed.b.input(InputKind::Positions),
        topk,
        forced,
        out,
    };
    feed.b.op("index_select", op);
    let case = feed.finish(NONE);
    Case {
        specials: false,
        ..case
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Chosen {
    /// No choice: all visible positions.
    All,
    /// A few, by token.
    Some,
    /// The first only.
    One,
}

fn attend(layout: &Layout, rank: usize, rope: usize, chosen: Chosen) -> Case {
    const HEADS: usize = 3;
    const TOPK: usize = 7;
    let what = match chosen {
        Chosen::All => "every position",
        Chosen::Some => "chosen positions",
        Chosen::One => "one position",
    };
    let name = format!("MlaAttend rank {rank} + {rope} {what}, {}", layout.name);
    let mut feed = Feed::new(name, layout);
    feed.extents(TOPK, 0);
    let row = feed.activation("row", &[rank + rope]);
    let latent = feed.append(vec![all(row, rank + rope)], "latent");
    let q_latent = feed.activation("q_latent", &[HEADS, rank]);
    let q_rope = feed.activation("q", &[HEADS, rope + 4]);
    let q_rope = Cols {
        buffer: q_rope,
        start: 4,
        len: rope,
    };
    let topk = (chosen != Chosen::All).then(|| feed.b.input(InputKind::ForcedTopk));
    let positions = layout.rows().into_iter().map(|r| r.position);
    // The special tokens stand in for the last row or the first: position 0 is seen from everywhere.
    let forced = positions.chain([0, 0]).map(|position| {
        let n = match chosen {
            Chosen::One => 1,
            _ => TOPK.min(position + 1),
        };
        let stride = (position / TOPK).max(1);
        let mut row: Vec<i32> = (0..n).map(|i| (i * stride).min(position) as i32).collect();
        row.dedup();
        row.resize(TOPK, -1);
        row
    });
    feed.extras.forced = forced.collect();
    let out = feed.result("out", F32, &[HEADS, rank]);
    let op = Op::MlaAttend {
        q_latent,
        q_rope,
        latent,
        topk,
        paging: feed.paging(),
        scale: 1.0 / ((rank + rope) as f32).sqrt(),
        out,
    };
    feed.b.op("attend", op);
    feed.finish(SOFTMAX)
}
