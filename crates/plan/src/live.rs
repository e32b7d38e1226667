//! What a step's inputs say, checked once before anything runs.
//!
//! A device cannot refuse an index in the middle of a step, so every number that points somewhere is held against its bound
//! here, on the host: after [`LiveStep::read`] a backend may follow positions, slots, blocks and rows without looking.

use crate::backend::BackendError;
use crate::buffer::InputKind;
use crate::inputs::StepInputs;
use crate::plan::Plan;

/// The live rows of a step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LiveStep {
    /// Live rows.
    pub tokens: usize,
    /// Live output rows.
    pub outputs: usize,
    /// Position of each live row in its sequence.
    pub positions: Vec<usize>,
    /// Sequence of each live row.
    pub sequences: Vec<usize>,
    /// Paged slot of each live row; `None`: its state is not kept.
    pub slots: Vec<Option<usize>>,
    /// Source row of each live output row.
    pub output_rows: Vec<usize>,
    /// Carry slot of each sequence that has live rows.
    pub sequence_slots: Vec<usize>,
}

/// What inputs may point to, besides the plan's own capacities.
#[derive(Debug, Clone, Copy)]
pub struct LiveBounds {
    /// Blocks of paged state.
    pub blocks: usize,
    /// Slots of carries.
    pub sequence_slots: usize,
}

impl LiveStep {
    /// Reads and checks a step's inputs.
    ///
    /// # Errors
    /// [`BackendError::OutOfRange`] for the first number that points outside.
    pub fn read(
        plan: &Plan,
        inputs: &StepInputs,
        bounds: LiveBounds,
    ) -> Result<Self, BackendError> {
        let check = |what: &str, found: i32, bound: usize| {
            let index = usize::try_from(found).ok().filter(|i| *i < bound);
            index.ok_or_else(|| BackendError::OutOfRange {
                plan: plan.name.clone(),
                op: "inputs".into(),
                what: what.into(),
                found: i64::from(found),
                bound,
            })
        };
        let get = |kind| {
            inputs
                .get(kind)
                .iter()
                .map(|w| *w as i32)
                .collect::<Vec<i32>>()
        };
        let geometry = plan.geometry;
        let capacity = plan.step.tokens();
        let mut live = Self::default();

        let cu_seqlens = get(InputKind::CuSeqlens);
        for (i, pair) in cu_seqlens.windows(2).enumerate() {
            let start = check("cu_seqlens", pair[0], capacity + 1)?;
            let end = check("cu_seqlens", pair[1], capacity + 1)?;
            // They start at 0 and never fall.
            check("cu_seqlens", pair[0], if i == 0 { 1 } else { end + 1 })?;
            live.sequences.extend(std::iter::repeat_n(i, end - start));
        }
        live.tokens = if cu_seqlens.is_empty() {
            capacity
        } else {
            live.sequences.len()
        };

        let max_positions = if geometry.max_positions() == 0 {
            usize::MAX
        } else {
            geometry.max_positions()
        };
        for position in get(InputKind::Positions).iter().take(live.tokens) {
            live.positions
                .push(check("position", *position, max_positions)?);
        }
        for slot in get(InputKind::SlotMapping).iter().take(live.tokens) {
            let slots = bounds.blocks * geometry.block_size;
            live.slots.push(match slot {
                -1 => None,
                slot => Some(check("slot", *slot, slots)?),
            });
        }
        let tables = get(InputKind::BlockTables);
        if !tables.is_empty() {
            let mut last: Option<(usize, usize)> = None;
            for (position, sequence) in live.positions.iter().zip(&live.sequences) {
                let needed = position / geometry.block_size + 1;
                // Rows of a sequence ascend, so most of them need no new look at its table.
                if last.is_some_and(|(s, seen)| s == *sequence && seen >= needed) {
                    continue;
                }
                for block in &tables[sequence * geometry.max_blocks..][..needed] {
                    check("block", *block, bounds.blocks)?;
                }
                last = Some((*sequence, needed));
            }
        }
        for row in get(InputKind::OutputRows)
            .iter()
            .take_while(|row| **row != -1)
        {
            live.output_rows
                .push(check("output row", *row, live.tokens)?);
        }
        live.outputs = live.output_rows.len();
        let used = live.sequences.last().map_or(0, |s| s + 1);
        for slot in get(InputKind::SequenceSlots).iter().take(used) {
            live.sequence_slots
                .push(check("sequence slot", *slot, bounds.sequence_slots)?);
        }
        Ok(live)
    }
}
