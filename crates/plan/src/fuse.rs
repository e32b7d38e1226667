//! Peepholes: operations that a backend has one kernel for become one [`Op::Fused`].
//!
//! A pattern is registered by a backend ([`crate::Caps::patterns`]). It says of operations, one after the other, whether they
//! belong to what has been found so far. Those between that do not are no hindrance where order does not matter: an operation
//! moves up to the pattern's first if nothing that it passes writes what it touches, or touches what it writes, and if it is no
//! collective, whose order the ranks share. A rewrite changes neither meaning nor buffers: the parts stay inside, in their
//! order, so check, cost, reference and a backend without the kernel go by them.

use crate::buffer::BufferId;
use crate::op::{Access, Op, OpNode};
use crate::plan::Plan;

/// Operations that can be run as one.
#[derive(Debug, Clone, Copy)]
pub struct FusePattern {
    /// Name of the fused operation.
    pub name: &'static str,
    /// Whether an operation belongs behind the parts that were found so far; with no parts, whether it can be the first.
    pub takes: fn(&[&Op], &Op) -> bool,
}

/// `out = RmsNorm(sum)`, `sum = a + b`: the residual add and the norm that reads it.
pub const ADD_RMS_NORM: FusePattern = FusePattern {
    name: "AddRmsNorm",
    takes: |parts, next| match (parts, next) {
        ([], Op::Add { .. }) => true,
        ([Op::Add { out, .. }], Op::RmsNorm { x, .. }) => x.buffer == *out,
        _ => false,
    },
};

/// Norms of the same rows, none of which needs another's result; each with the rotation of its result, or of what it read, and
/// the append of both to a cache: how latents and keys become what attention and indexer look at.
pub const NORMS: FusePattern = FusePattern {
    name: "Norms",
    takes: |parts, next| match next {
        Op::RmsNorm { .. } | Op::LayerNorm { .. } => true,
        Op::Rope { x, .. } => parts.iter().any(|part| match part {
            Op::RmsNorm { x: from, out, .. } | Op::LayerNorm { x: from, out, .. } => {
                from.buffer == *x || out == x
            }
            _ => false,
        }),
        Op::CacheAppend { parts: columns, .. } => columns.iter().all(|columns| {
            let made = |part: &&Op| match part {
                Op::RmsNorm { out, .. } | Op::LayerNorm { out, .. } => *out == columns.buffer,
                Op::Rope { x, .. } => *x == columns.buffer,
                _ => false,
            };
            parts.iter().any(made)
        }),
        _ => false,
    },
};

/// Rotations of different buffers.
pub const ROPES: FusePattern = FusePattern {
    name: "Ropes",
    takes: |parts, next| {
        let Op::Rope { x, .. } = next else {
            return false;
        };
        let other = |part: &&Op| matches!(part, Op::Rope { x: own, .. } if own != x);
        parts.iter().all(other)
    },
};

/// `silu(gate) ⊙ up` and the product that takes it.
pub const SWIGLU_LINEAR: FusePattern = FusePattern {
    name: "SwiGluLinear",
    takes: |parts, next| match (parts, next) {
        ([], Op::SwiGlu { .. }) => true,
        ([Op::SwiGlu { out, .. }], Op::Linear { x, .. }) => x == out,
        _ => false,
    },
};

/// The routed experts and the sum of what they give with something else.
pub const EXPERTS_ADD: FusePattern = FusePattern {
    name: "ExpertsAdd",
    takes: |parts, next| match (parts, next) {
        ([], Op::ExpertFfn { .. }) => true,
        ([Op::ExpertFfn { out, .. }], Op::Add { a, b, .. }) => (a == out) != (b == out),
        _ => false,
    },
};

/// How far behind a pattern's first operation others are looked for: about as many as a layer's attention has.
const REACH: usize = 16;

/// Rewrites a plan by the patterns; at each place the first that matches wins.
pub fn fuse(plan: &mut Plan, patterns: &[FusePattern]) {
    let ops = std::mem::take(&mut plan.ops);
    let access: Vec<Access> = ops.iter().map(|node| node.op.access()).collect();
    let mut taken = vec![false; ops.len()];
    for first in 0..ops.len() {
        if taken[first] {
            continue;
        }
        let mut groups = patterns
            .iter()
            .map(|pattern| (pattern.name, group(pattern, &ops, &access, &taken, first)));
        let Some((name, group)) = groups.find(|(_, group)| group.len() > 1) else {
            plan.ops.push(ops[first].clone());
            continue;
        };
        let labels: Vec<&str> = group.iter().map(|i| ops[*i].label.as_str()).collect();
        let parts = group.iter().map(|i| ops[*i].op.clone()).collect();
        plan.ops.push(OpNode {
            label: labels.join(" + "),
            op: Op::Fused { name, parts },
        });
        for i in group {
            taken[i] = true;
        }
    }
}

/// The operations that make up a pattern from `first` on; fewer than two if none do.
fn group(
    pattern: &FusePattern,
    ops: &[OpNode],
    access: &[Access],
    taken: &[bool],
    first: usize,
) -> Vec<usize> {
    let mut group = Vec::new();
    let mut parts: Vec<&Op> = Vec::new();
    let mut passed: Vec<&Access> = Vec::new();
    let end = ops.len().min(first + REACH);
    for i in (first..end).filter(|i| !taken[*i]) {
        let op = &ops[i].op;
        let moves = || {
            let in_order = passed.is_empty() || op.collective().is_none();
            in_order && passed.iter().all(|other| commute(other, &access[i]))
        };
        if (pattern.takes)(&parts, op) && moves() {
            group.push(i);
            parts.push(op);
        } else if group.is_empty() {
            break;
        } else {
            passed.push(&access[i]);
        }
    }
    group
}

/// Whether two operations give the same in either order.
fn commute(a: &Access, b: &Access) -> bool {
    fn changed(access: &Access) -> impl Iterator<Item = &BufferId> {
        let written = access.writes.iter().chain(&access.updates);
        written.chain(&access.appends)
    }
    let leaves = |a: &Access, b: &Access| {
        changed(a).all(|id| !b.reads.contains(id) && changed(b).all(|other| other != id))
    };
    leaves(a, b) && leaves(b, a)
}
