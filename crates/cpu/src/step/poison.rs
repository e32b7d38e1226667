//! Poison: outputs hold NaN before their operation, and must not afterwards.

use glim_plan::{BackendError, BufferId, BufferKind, Op};

use super::Run;

/// What every i32 of a poisoned buffer holds.
const POISON_I32: u32 = i32::MIN as u32;

impl Run<'_> {
    pub(super) fn poisoned(&mut self, label: &str, op: &Op) -> Result<(), BackendError> {
        let access = op.access();
        for id in &access.writes {
            self.memory.begin();
            let word = match self.memory.is_f32(*id) {
                true => f32::NAN.to_bits(),
                false => POISON_I32,
            };
            self.memory.out::<u32>(*id).fill(word);
        }
        self.op(label, op)?;
        for id in access.writes.iter().chain(&access.updates) {
            self.memory.begin();
            self.check_poison(label, op, *id)?;
        }
        Ok(())
    }

    fn check_poison(&self, label: &str, op: &Op, id: BufferId) -> Result<(), BackendError> {
        let plan = &self.prepared.plan;
        let buffer = plan.buffer(id);
        if buffer.kind == BufferKind::Carry {
            return Ok(());
        }
        let f32s = self.memory.is_f32(id);
        let poisoned = |w: &u32| match f32s {
            true => f32::from_bits(*w).is_nan(),
            false => *w == POISON_I32,
        };
        let (all, width) = (self.memory.words(id), self.memory.row(id));
        for row in 0..self.memory.live_rows(id) {
            // A row of scores is written up to the row's own position.
            let written = match op {
                Op::IndexScore { .. } => (self.live.positions[row] + 1).min(width),
                _ => width,
            };
            let words = &all[row * width..][..written];
            if let Some(element) = words.iter().position(poisoned) {
                return Err(BackendError::Poison {
                    plan: plan.name.clone(),
                    op: label.into(),
                    buffer: buffer.name.clone(),
                    row,
                    element,
                });
            }
        }
        Ok(())
    }
}
