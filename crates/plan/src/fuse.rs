//! Peepholes: neighbouring operations that a backend has one kernel for become one [`Op::Fused`].
//!
//! A pattern is registered by a backend ([`crate::Caps::patterns`]). A rewrite changes neither meaning nor buffers: the parts stay
//! inside, so check, cost, reference and a backend without the kernel go by them.

use crate::op::{Op, OpNode};
use crate::plan::Plan;

/// A sequence of operations that can be run as one.
#[derive(Debug, Clone, Copy)]
pub struct FusePattern {
    /// Name of the fused operation.
    pub name: &'static str,
    /// How many neighbouring operations, starting at the first of the slice, form the pattern (`None`: they do not).
    pub matches: fn(&[OpNode]) -> Option<usize>,
}

/// `out = RmsNorm(sum)`, `sum = a + b`: the residual add and the norm that reads it.
pub const ADD_RMS_NORM: FusePattern = FusePattern {
    name: "AddRmsNorm",
    matches: add_rms_norm,
};

fn add_rms_norm(ops: &[OpNode]) -> Option<usize> {
    match (&ops.first()?.op, &ops.get(1)?.op) {
        (Op::Add { out, .. }, Op::RmsNorm { x, .. }) if x.buffer == *out => Some(2),
        _ => None,
    }
}

/// Rewrites a plan by the patterns; at each place the first that matches wins.
pub fn fuse(plan: &mut Plan, patterns: &[FusePattern]) {
    let ops = std::mem::take(&mut plan.ops);
    let mut rest = ops.as_slice();
    while let Some((first, tail)) = rest.split_first() {
        let hit = patterns
            .iter()
            .find_map(|p| (p.matches)(rest).map(|n| (p.name, n)));
        match hit {
            Some((name, n)) if n > 1 && n <= rest.len() => {
                let label = rest[..n]
                    .iter()
                    .map(|node| node.label.as_str())
                    .collect::<Vec<_>>()
                    .join(" + ");
                let parts = rest[..n].iter().map(|node| node.op.clone()).collect();
                plan.ops.push(OpNode {
                    label,
                    op: Op::Fused { name, parts },
                });
                rest = &rest[n..];
            }
            _ => {
                plan.ops.push(first.clone());
                rest = tail;
            }
        }
    }
}
