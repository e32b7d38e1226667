//! Router and experts.

use glim_plan::{GgmlType, InputKind, Op, RouterSpec, Rows, Scoring};

use super::super::blocks::types;
use super::super::bounds::{EXPERT, SOFTMAX, SUM};
use super::super::case::{Case, Feed};
use super::super::layout::{Extras, Layout};
use super::{F32, I32, layouts, layouts_for, product_bound, widths};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for ty in types() {
        for layout in layouts_for(ty) {
            // Three matrices for each expert: one block a row is enough where blocks are large.
            let [inner, wide] = widths(ty);
            let d = if inner == 256 { inner } else { wide };
            cases.push(experts(ty, d, inner, &layout));
        }
        cases.push(route(ty, widths(ty)[1], &Layout::ragged(), false));
    }
    for layout in layouts() {
        cases.push(route(F32, 40, &layout, true));
    }
    cases
}

/// Experts as a router would choose them, and as it never would: one row takes one expert twice, another leaves the order.
fn experts(ty: GgmlType, d: usize, inner: usize, layout: &Layout) -> Case {
    const EXPERTS: usize = 5;
    const K: usize = 3;
    let name = format!("ExpertFfn {ty} D {d} I {inner}, {}", layout.name);
    let mut feed = Feed::new(name, layout);
    feed.extents(K, 0);
    let x = feed.activation("x", &[d]);
    let expert_weights = feed.activation("weights", &[K]);
    let ids = feed.b.input(InputKind::ForcedTopk);
    let forced = (0..layout.rows().len()).map(|t| match t % 4 {
        0 => vec![0, 2, 3],
        1 => vec![1, 2, 4],
        2 => vec![3, 3, 0],
        _ => vec![4, 1, 1],
    });
    feed.extras = Extras {
        // The special tokens too have experts.
        forced: forced.chain([vec![0, 1, 2], vec![2, 3, 4]]).collect(),
        ..Extras::default()
    };
    let gate = feed.weight("gate", ty, &[EXPERTS, inner, d]);
    let up = feed.weight("up", ty, &[EXPERTS, inner, d]);
    let down = feed.weight("down", ty, &[EXPERTS, d, inner]);
    let out = feed.result("out", F32, &[d]);
    feed.b.op(
        "experts",
        Op::ExpertFfn {
            x,
            ids,
            expert_weights,
            gate,
            up,
            down,
            out,
        },
    );
    feed.finish(match product_bound(ty) {
        SUM => 4.0 * SUM,
        _ => EXPERT,
    })
}

/// The router is f32 in any arithmetic; choices are equal where scores are apart, which the seeds see to.
fn route(ty: GgmlType, d: usize, layout: &Layout, grouped: bool) -> Case {
    const EXPERTS: usize = 12;
    let kind = if grouped {
        "grouped softmax"
    } else {
        "sigmoid"
    };
    let mut feed = Feed::new(format!("Route {ty} D {d} {kind}, {}", layout.name), layout);
    let x = feed.activation("x", &[d]);
    let weight = feed.weight("w", ty, &[EXPERTS, d]);
    let bias = feed.random.units(EXPERTS);
    let bias = grouped.then(|| feed.values("bias", &[EXPERTS], &bias));
    let spec = RouterSpec {
        k: 3,
        scoring: match grouped {
            true => Scoring::Softmax,
            false => Scoring::Sigmoid,
        },
        n_group: if grouped { 3 } else { 1 },
        topk_group: if grouped { 2 } else { 1 },
        norm: !grouped,
        scale: 2.5,
    };
    let ids = feed.result("ids", I32, &[spec.k]);
    let expert_weights = feed.b.result(
        "expert_weights",
        F32,
        &[feed.layout.step.tokens(), spec.k],
        Rows::Tokens,
    );
    feed.b.op(
        "route",
        Op::Route {
            x,
            weight,
            bias,
            spec,
            ids,
            expert_weights,
        },
    );
    let case = feed.finish(SOFTMAX);
    Case {
        specials: false,
        ..case
    }
}
