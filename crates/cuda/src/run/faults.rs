//! Indices of a step that pointed outside, as its kernels have noted them (`Fault` in `kernels/include/common.cuh`).
//!
//! Rows of an operation run in any order, so several may note one; what counts is the first in the order of the plan: of the earliest
//! operation, the earliest row, the earliest of its choices. That is the one that the reference comes upon.

use glim_plan::{BackendError, Plan};

use crate::backend::CudaBackend;
use crate::driver::{DeviceMemory, Stream};
use crate::error::CudaError;

/// Codes, as in `common.cuh`.
const TOKEN: i32 = 1;
const POSITION: i32 = 2;
const EXPERT: i32 = 3;
const DEADLINE: i32 = 4;
pub(super) const POISON: i32 = 5;

// The struct `Fault`: a head (the least place, the number of notes) and the notes.
const HEAD: usize = 16;
const NOTES: usize = 32;
const NOTE: usize = 24;
pub(super) const BYTES: usize = HEAD + NOTES * NOTE;

/// Bits of a note's place below those of its operation.
const PLACE_BITS: u32 = 44;

/// A note.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) code: i32,
    /// Index of the operation.
    pub(super) op: usize,
    pub(super) value: i32,
    pub(super) bound: i32,
}

impl Fault {
    /// The first in the order of the plan, if there is any.
    pub(super) fn first(bytes: &[u8]) -> Option<Self> {
        let (head, notes) = bytes.split_at(HEAD);
        let count = word(head, 8) as usize;
        let notes = notes.chunks_exact(NOTE).take(count);
        let place = |note: &&[u8]| u64::from(word(note, 0)) | u64::from(word(note, 4)) << 32;
        let first = notes.min_by_key(place)?;
        Some(Self {
            code: word(first, 8) as i32,
            op: (place(&first) >> PLACE_BITS) as usize,
            value: word(first, 12) as i32,
            bound: word(first, 16) as i32,
        })
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..at + 4).and_then(|b| b.try_into().ok());
    word.map_or(0, u32::from_le_bytes)
}

/// As it is when nothing was raised: no place is less than all, and there are no notes.
pub(super) fn clear(fault: &DeviceMemory, stream: &Stream) -> Result<(), CudaError> {
    fault.fill_words(0, 2, u32::MAX, stream)?;
    fault.fill_words(8, 2, 0, stream)
}

impl CudaBackend {
    /// A step's fault as an error.
    pub(super) fn fault(&self, plan: &Plan, fault: Fault) -> BackendError {
        let Fault {
            code,
            op,
            value,
            bound,
        } = fault;
        let node = plan.ops.get(op);
        let label = node.map_or_else(|| format!("operation {op}"), |node| node.label.clone());
        let in_op = |reason| BackendError::Operation {
            device: self.name(),
            plan: plan.name.clone(),
            op: label.clone(),
            reason,
        };
        let what = match code {
            TOKEN => "token",
            POSITION => "chosen position",
            EXPERT => "expert",
            DEADLINE => {
                if let Some(failure) = self.options.ranks.0.failure() {
                    return failure.in_plan(plan);
                }
                return in_op(format!(
                    "rank {bound} waited for rank {value}, which did not come in time"
                ));
            }
            other => {
                return in_op(format!("fault {other} was raised"));
            }
        };
        BackendError::OutOfRange {
            plan: plan.name.clone(),
            op: label,
            what: what.into(),
            found: i64::from(value),
            bound: usize::try_from(bound).unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(notes: &[(u64, u64, i32)]) -> Vec<u8> {
        let mut bytes = vec![0xff; 8];
        bytes.extend((notes.len() as u64).to_le_bytes());
        for (op, place, value) in notes {
            bytes.extend((op << PLACE_BITS | place).to_le_bytes());
            for field in [TOKEN, *value, 100, 0] {
                bytes.extend(field.to_le_bytes());
            }
        }
        bytes.resize(BYTES, 0xab);
        bytes
    }

    #[test]
    fn the_first_in_the_order_of_the_plan_counts() {
        let found = |notes: &[_]| Fault::first(&noted(notes)).map(|f| (f.op, f.value));
        assert_eq!(found(&[]), None);
        assert_eq!(found(&[(3, 7, 41)]), Some((3, 41)));
        assert_eq!(found(&[(3, 7, 41), (3, 2, 42), (3, 5, 43)]), Some((3, 42)));
        assert_eq!(found(&[(3, 2, 41), (2, 1 << 40, 42)]), Some((2, 42)));
    }

    #[test]
    fn notes_beyond_the_room_are_not_looked_for() {
        let mut bytes = noted(&[(1, 1, 41)]);
        bytes[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(Fault::first(&bytes).is_some());
    }
}
