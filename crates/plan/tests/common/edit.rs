//! Finds parts of a plan, in order to break them.

use glim_plan::{BufferId, Op, Plan};

pub(crate) fn id(plan: &Plan, name: &str) -> BufferId {
    plan.find(name).unwrap()
}

/// Index of an operation.
pub(crate) fn at(plan: &Plan, label: &str) -> usize {
    plan.ops
        .iter()
        .position(|node| node.label == label)
        .unwrap()
}

pub(crate) fn op<'a>(plan: &'a mut Plan, label: &str) -> &'a mut Op {
    let at = at(plan, label);
    &mut plan.ops[at].op
}
