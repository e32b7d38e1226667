//! Forms of a step's plan that show what is inside: temporaries made results, a few operations at a time, or the plan cut short.

use std::collections::BTreeSet;
use std::ops::Range;

use glim_plan::{BufferId, BufferKind, Plan, StepKind};

use super::stage::Stage;
use crate::error::EngineError;
use crate::steps::Prepared;

/// Most bytes of temporaries that are copied out of one run (one operation's are, whatever they take).
pub const TAP_BYTES: usize = 256 << 20;

/// Prepares the first operations of a step, with these temporaries as results where they are written at all.
pub(super) fn cut(
    stage: &mut Stage<'_>,
    kind: StepKind,
    ops: usize,
    taps: &[String],
) -> Result<Prepared, EngineError> {
    stage.engine().prepare_edited(kind, |plan| {
        let plan = plan.cut(ops);
        let written: BTreeSet<BufferId> = plan
            .ops
            .iter()
            .flat_map(|node| node.op.access().writes)
            .collect();
        let written = |name: &&String| plan.find(name).is_some_and(|id| written.contains(&id));
        let taps: Vec<String> = taps.iter().filter(written).cloned().collect();
        tapped(plan, &taps)
    })
}

/// Makes these temporaries results.
pub(super) fn tapped(mut plan: Plan, taps: &[String]) -> Result<Plan, EngineError> {
    for name in taps {
        plan.tap(name)?;
    }
    Ok(plan)
}

/// Temporaries that some operations touch.
pub(super) fn temps(plan: &Plan, ops: Range<usize>) -> Vec<String> {
    let mut ids = BTreeSet::new();
    for part in plan.ops[ops].iter().flat_map(|node| node.op.parts()) {
        let access = part.access();
        ids.extend(
            access
                .reads
                .iter()
                .chain(&access.writes)
                .chain(&access.updates)
                .copied(),
        );
    }
    let temp =
        |id: &BufferId| matches!(plan.buffer(*id).kind, BufferKind::Temp | BufferKind::Result);
    ids.into_iter()
        .filter(temp)
        .map(|id| plan.buffer(id).name.clone())
        .collect()
}

/// Consecutive operations whose temporaries together stay below [`TAP_BYTES`].
pub(super) fn windows(plan: &Plan) -> Vec<Range<usize>> {
    let bytes = |ops: Range<usize>| -> usize {
        let names = temps(plan, ops);
        let ids = names.iter().filter_map(|name| plan.find(name));
        ids.map(|id| plan.buffer(id).bytes()).sum()
    };
    let mut windows: Vec<Range<usize>> = Vec::new();
    let mut size = 0;
    for i in 0..plan.ops.len() {
        // An upper bound: what two operations share is counted for both.
        let own = bytes(i..i + 1);
        match windows.last_mut() {
            Some(window) if size + own <= TAP_BYTES => window.end = i + 1,
            _ => {
                windows.push(i..i + 1);
                size = 0;
            }
        }
        size += own;
    }
    windows
}
