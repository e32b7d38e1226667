//! Poison: outputs are filled before their operation, and looked through afterwards, in the order in which the reference does.

use glim_plan::{BackendError, BufferKind, Op};

use super::places::Places;
use super::{Running, faults};
use crate::error::CudaError;
use crate::program::{poison_check, poison_word};

impl Running<'_> {
    /// Fills what an operation writes.
    pub(super) fn fill_outputs(&self, parts: &[Op]) -> Result<(), CudaError> {
        for id in parts.iter().flat_map(|part| part.access().writes) {
            let buffer = self.prepared.plan.buffer(id);
            if let Some(offset) = self.prepared.arrangement.offsets[id.index()] {
                let (words, word) = (buffer.elements(), poison_word(buffer));
                let arena = &self.memory.arena;
                arena.fill_words(offset, words, word, self.stream)?;
            }
        }
        Ok(())
    }

    /// Looks for poison in what an operation has written.
    pub(super) fn check_outputs(&self, index: usize, parts: &[Op]) -> Result<(), BackendError> {
        let Self {
            backend,
            prepared,
            memory,
            ..
        } = *self;
        let (plan, label) = (&prepared.plan, &prepared.plan.ops[index].label);
        for part in parts {
            let access = part.access();
            for id in access.writes.iter().chain(&access.updates) {
                let buffer = plan.buffer(*id);
                if buffer.kind == BufferKind::Carry {
                    continue;
                }
                let places = Places { prepared, memory };
                let checked = poison_check(plan, part, *id)
                    .map_err(|reason| CudaError::Kernel {
                        kernel: "poison_check".into(),
                        reason,
                    })
                    .and_then(|l| {
                        let r = places.ready(backend.code(), &l.kernel, &l, index)?;
                        r.put(true, self.stream)?;
                        self.stream.synchronise()?;
                        self.take_fault()
                    });
                match checked.map_err(|e| backend.failed(e))? {
                    None => {}
                    Some(found) if found.code == faults::POISON => {
                        return Err(BackendError::Poison {
                            plan: plan.name.clone(),
                            op: label.clone(),
                            buffer: buffer.name.clone(),
                            row: found.value as usize,
                            element: found.bound as usize,
                        });
                    }
                    Some(other) => return Err(backend.fault(plan, other)),
                }
            }
        }
        Ok(())
    }
}
