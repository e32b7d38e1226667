//! Liveness to one arena: byte offsets for temporaries and results.
//!
//! A buffer lives from the operation that writes it to the last that touches it; a result lives to the end. Buffers are
//! placed largest first, each at the lowest offset where it overlaps nobody who lives at the same time. An operation's
//! inputs and outputs live at the same time, so a kernel never reads what it is writing unless the operation declares it.

use thiserror::Error;

use crate::buffer::{BufferId, BufferKind};
use crate::plan::Plan;

/// Alignment of every buffer in the arena, in bytes: enough for vector loads and bulk copies of any backend.
pub const ARENA_ALIGN: usize = 256;

/// Where a plan's temporaries and results lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrangement {
    /// Byte offset in the arena of each buffer; `None` for buffers that are kept elsewhere.
    pub offsets: Vec<Option<usize>>,
    /// Bytes of the arena.
    pub arena_bytes: usize,
}

/// What can be wrong with an arrangement.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ArrangeError {
    /// Two live buffers share bytes.
    #[error("plan {plan}: {a} and {b} are live at the same time and share bytes of the arena")]
    Overlap {
        /// Plan.
        plan: String,
        /// One buffer.
        a: String,
        /// The other.
        b: String,
    },
    /// A live buffer has no place, or one that reaches beyond the arena.
    #[error("plan {plan}: {buffer} has no place within the arena's {arena_bytes} bytes")]
    Unplaced {
        /// Plan.
        plan: String,
        /// Buffer.
        buffer: String,
        /// Bytes of the arena.
        arena_bytes: usize,
    },
}

/// First and last operation (inclusive) at which each arena buffer is live.
fn lives(plan: &Plan) -> Vec<Option<(usize, usize)>> {
    let mut lives: Vec<Option<(usize, usize)>> = vec![None; plan.buffers.len()];
    for (i, node) in plan.ops.iter().enumerate() {
        for part in node.op.parts() {
            let a = part.access();
            for id in a.reads.iter().chain(&a.writes).chain(&a.updates) {
                let life = lives[id.index()].get_or_insert((i, i));
                life.1 = i;
            }
        }
    }
    for (life, buffer) in lives.iter_mut().zip(&plan.buffers) {
        match buffer.kind {
            BufferKind::Temp => {}
            BufferKind::Result => {
                if let Some(life) = life {
                    life.1 = plan.ops.len();
                }
            }
            _ => *life = None,
        }
    }
    lives
}

fn meet(a: (usize, usize), b: (usize, usize)) -> bool {
    a.0 <= b.1 && b.0 <= a.1
}

/// Lays out a plan's arena.
pub fn arrange(plan: &Plan) -> Arrangement {
    let lives = lives(plan);
    let mut order: Vec<BufferId> = (0..plan.buffers.len() as u32)
        .map(BufferId)
        .filter(|id| lives[id.index()].is_some())
        .collect();
    order.sort_by_key(|id| (std::cmp::Reverse(plan.buffer(*id).bytes()), *id));

    let mut offsets: Vec<Option<usize>> = vec![None; plan.buffers.len()];
    let mut arena_bytes = 0;
    let mut placed: Vec<(usize, usize, (usize, usize))> = Vec::new();
    for id in order {
        let Some(life) = lives[id.index()] else {
            continue;
        };
        let bytes = plan.buffer(id).bytes().next_multiple_of(ARENA_ALIGN);
        let mut taken: Vec<(usize, usize)> = placed
            .iter()
            .filter(|(.., other)| meet(life, *other))
            .map(|(start, end, _)| (*start, *end))
            .collect();
        taken.sort_unstable();
        let mut offset = 0;
        for (start, end) in taken {
            if offset + bytes <= start {
                break;
            }
            offset = offset.max(end);
        }
        placed.push((offset, offset + bytes, life));
        offsets[id.index()] = Some(offset);
        arena_bytes = arena_bytes.max(offset + bytes);
    }
    Arrangement {
        offsets,
        arena_bytes,
    }
}

/// Proves that every live buffer lies in the arena, and that no two that are live at the same time share bytes.
///
/// # Errors
/// The first buffer or pair that does not keep to this.
pub fn check_arrangement(plan: &Plan, arrangement: &Arrangement) -> Result<(), ArrangeError> {
    let mut spans = Vec::new();
    for (i, life) in lives(plan).into_iter().enumerate() {
        let Some(life) = life else { continue };
        let buffer = &plan.buffers[i];
        let start = arrangement.offsets.get(i).copied().flatten();
        match start.map(|start| (start, start + buffer.bytes())) {
            Some((start, end)) if end <= arrangement.arena_bytes => {
                spans.push((buffer, start, end, life));
            }
            _ => {
                return Err(ArrangeError::Unplaced {
                    plan: plan.name.clone(),
                    buffer: buffer.name.clone(),
                    arena_bytes: arrangement.arena_bytes,
                });
            }
        }
    }
    for (n, (a, a_start, a_end, a_life)) in spans.iter().enumerate() {
        for (b, b_start, b_end, b_life) in &spans[n + 1..] {
            if meet(*a_life, *b_life) && a_start < b_end && b_start < a_end {
                return Err(ArrangeError::Overlap {
                    plan: plan.name.clone(),
                    a: a.name.clone(),
                    b: b.name.clone(),
                });
            }
        }
    }
    Ok(())
}
