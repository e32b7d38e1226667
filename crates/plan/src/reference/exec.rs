//! One run of a prepared step: operation by operation, over the live rows. What an operation computes is in [`super::recompute`];
//! here its operands are found in the executor's memory, and its results put there.

use std::collections::HashMap;
use std::ops::Range;

use glim_quant::GgmlType;

use super::recompute::{Live, Matrix, Operands, Output, Recompute, Rows};
use super::{Prepared, ReferenceBackend, poison_of};
use crate::backend::{BackendError, StepId};
use crate::buffer::{self, BufferId, BufferKind};
use crate::collective::{GatherRows, all_gather, all_reduce};
use crate::op::{CollectiveId, Gather, Op};
use crate::results::StepResults;

pub(super) struct Run<'a> {
    backend: &'a mut ReferenceBackend,
    step: StepId,
    live: Live,
}

impl<'a> Run<'a> {
    /// Counts the live rows.
    pub(super) fn new(
        backend: &'a mut ReferenceBackend,
        step: StepId,
    ) -> Result<Self, BackendError> {
        let memory = Memory {
            backend: &*backend,
            step,
        };
        let live = Live::read(&memory.prepared().plan, &memory)?;
        Ok(Self {
            backend,
            step,
            live,
        })
    }

    fn memory(&self) -> Memory<'_> {
        Memory {
            backend: &*self.backend,
            step: self.step,
        }
    }

    fn prepared(&self) -> &Prepared {
        &self.backend.steps[self.step.0 as usize]
    }

    pub(super) fn steps(mut self) -> Result<StepResults, BackendError> {
        for index in 0..self.prepared().plan.ops.len() {
            let node = self.prepared().plan.ops[index].clone();
            let skipped = self.backend.options.skip.as_ref() == Some(&node.label);
            self.backend.ranks().begin(index);
            for part in node.op.parts() {
                let access = part.access();
                if self.backend.options.poison {
                    access.writes.iter().for_each(|id| self.poison(*id));
                }
                if !skipped {
                    self.op(&node.label, part)?;
                }
                if self.backend.options.poison {
                    for id in access.writes.iter().chain(&access.updates) {
                        self.check_poison(&node.label, part, *id)?;
                    }
                }
            }
        }
        let memory = self.memory();
        let results = memory
            .prepared()
            .plan
            .buffers_where(|k| *k == BufferKind::Result);
        let words: HashMap<_, _> = results
            .map(|(id, b)| (b.name.clone(), memory.words(id).to_vec()))
            .collect();
        Ok(StepResults::new(words))
    }

    /// Computes one operation and stores what it gives.
    fn op(&mut self, label: &str, op: &Op) -> Result<(), BackendError> {
        match op {
            Op::AllReduce { id, wire, x, out } => {
                return self.all_reduce(*id, *wire, *x, *out);
            }
            Op::AllGather { id, wire, gathers } => return self.all_gather(*id, *wire, gathers),
            _ => {}
        }
        let memory = self.memory();
        let recompute = Recompute::new(&memory.prepared().plan, &memory, self.live, 1);
        let rows: Vec<usize> = (0..recompute.live_rows(op)).collect();
        for output in recompute.op(label, op, &rows)? {
            self.store(output);
        }
        Ok(())
    }

    fn all_reduce(
        &mut self,
        id: CollectiveId,
        wire: GgmlType,
        x: BufferId,
        out: BufferId,
    ) -> Result<(), BackendError> {
        let memory = self.memory();
        let x: &[f32] = bytemuck::cast_slice(&memory.words(x)[..self.live_words(x)]);
        let mut values = vec![0.0; x.len()];
        all_reduce(&*self.backend.ranks(), id, wire, x, &mut values)
            .map_err(|failure| failure.in_plan(&self.prepared().plan))?;
        let span = self.memory().span(out);
        self.backend.arena[span][..values.len()].copy_from_slice(bytemuck::cast_slice(&values));
        Ok(())
    }

    fn all_gather(
        &mut self,
        id: CollectiveId,
        wire: GgmlType,
        gathers: &[Gather],
    ) -> Result<(), BackendError> {
        let memory = self.memory();
        let mut outs: Vec<Vec<u32>> = gathers
            .iter()
            .map(|g| vec![0; self.live_words(g.out)])
            .collect();
        let mut parts = Vec::with_capacity(gathers.len());
        for (g, out) in gathers.iter().zip(&mut outs) {
            let x = self.prepared().plan.buffer(g.x);
            let inner: usize = x.shape[2..].iter().product();
            parts.push(GatherRows {
                x: &memory.words(g.x)[..self.live_words(g.x)],
                out,
                widths: g.lens.iter().map(|n| n * inner).collect(),
                is_f32: x.dtype == GgmlType::F32,
            });
        }
        all_gather(&*self.backend.ranks(), id, wire, &mut parts)
            .map_err(|failure| failure.in_plan(&self.prepared().plan))?;
        drop(parts);
        for (g, out) in gathers.iter().zip(outs) {
            let span = self.memory().span(g.out);
            self.backend.arena[span][..out.len()].copy_from_slice(&out);
        }
        Ok(())
    }

    /// Words of the live rows of an activation.
    fn live_words(&self, id: BufferId) -> usize {
        let buffer = self.prepared().plan.buffer(id);
        let rows = match buffer.rows {
            buffer::Rows::Tokens => self.live.tokens,
            buffer::Rows::Outputs => self.live.outputs,
            buffer::Rows::Whole => buffer.shape.first().copied().unwrap_or(1),
        };
        rows * buffer.row_elements()
    }

    fn store(&mut self, Output { buffer, rows }: Output) {
        let Prepared {
            plan, arrangement, ..
        } = &self.backend.steps[self.step.0 as usize];
        let (decl, start) = (plan.buffer(buffer), arrangement.offsets[buffer.index()]);
        let (memory, width): (&mut [u32], usize) = match decl.kind {
            BufferKind::State(_) => match self.backend.states.get_mut(&decl.name) {
                Some(state) => (bytemuck::cast_slice_mut(&mut state.rows), decl.elements()),
                None => return,
            },
            BufferKind::Carry => match self.backend.carries.get_mut(&decl.name) {
                Some(carry) => (carry, decl.row_elements()),
                None => return,
            },
            _ => {
                let start = start.unwrap_or(0) / size_of::<u32>();
                let span = start..start + decl.elements();
                (&mut self.backend.arena[span], decl.row_elements())
            }
        };
        let mut put = |row: usize, words: &[u32]| {
            memory[row * width..][..words.len()].copy_from_slice(words);
        };
        match rows {
            Rows::F32(rows) => rows
                .iter()
                .for_each(|(row, values)| put(*row, bytemuck::cast_slice(values))),
            Rows::I32(rows) => rows
                .iter()
                .for_each(|(row, values)| put(*row, bytemuck::cast_slice(values))),
        }
    }

    fn poison(&mut self, id: BufferId) {
        let word = poison_of(self.prepared().plan.buffer(id).dtype);
        let span = self.memory().span(id);
        self.backend.arena[span].fill(word);
    }

    fn check_poison(&self, label: &str, op: &Op, id: BufferId) -> Result<(), BackendError> {
        let (plan, memory) = (&self.prepared().plan, self.memory());
        let buffer = plan.buffer(id);
        if buffer.kind == BufferKind::Carry {
            return Ok(());
        }
        let ints = poison_of(buffer.dtype);
        let is_poison = |word: u32| {
            word == ints || (ints == super::POISON_F32 && f32::from_bits(word).is_nan())
        };
        let positions = match op {
            Op::IndexScore { paging, .. } => Some(memory.i32s(paging.positions)?),
            _ => None,
        };
        let width = buffer.row_elements();
        let rows = match buffer.rows {
            buffer::Rows::Tokens => self.live.tokens,
            buffer::Rows::Outputs => self.live.outputs,
            buffer::Rows::Whole => buffer.shape.first().copied().unwrap_or(1),
        };
        for row in 0..rows {
            // A row of scores is written up to the row's own position.
            let written = positions.map_or(width, |p| (p[row].max(0) as usize + 1).min(width));
            let words = &memory.words(id)[row * width..][..written];
            if let Some(element) = words.iter().position(|w| is_poison(*w)) {
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

/// The executor's memory, as operands of the step that runs.
struct Memory<'a> {
    backend: &'a ReferenceBackend,
    step: StepId,
}

impl<'a> Memory<'a> {
    fn prepared(&self) -> &'a Prepared {
        &self.backend.steps[self.step.0 as usize]
    }

    fn span(&self, id: BufferId) -> Range<usize> {
        let prepared = self.prepared();
        let start = prepared.arrangement.offsets[id.index()].unwrap_or(0) / size_of::<u32>();
        start..start + prepared.plan.buffer(id).elements()
    }

    /// A buffer of the arena, an input or a carry, as words.
    fn words(&self, id: BufferId) -> &'a [u32] {
        let b = self.prepared().plan.buffer(id);
        match b.kind {
            BufferKind::Input(kind) => self.prepared().inputs.get(kind),
            BufferKind::Carry => self.backend.carries.get(&b.name).map_or(&[], Vec::as_slice),
            _ => &self.backend.arena[self.span(id)],
        }
    }
}

impl Operands for Memory<'_> {
    fn f32s(&self, id: BufferId) -> Result<&[f32], BackendError> {
        let b = self.prepared().plan.buffer(id);
        Ok(match b.kind {
            BufferKind::State(_) => {
                let state = self.backend.states.get(&b.name);
                state.map_or(&[], |s| s.rows.as_slice())
            }
            _ => bytemuck::cast_slice(self.words(id)),
        })
    }

    fn i32s(&self, id: BufferId) -> Result<&[i32], BackendError> {
        Ok(bytemuck::cast_slice(self.words(id)))
    }

    fn weight(&self, id: BufferId) -> Result<Matrix<'_>, BackendError> {
        let plan = &self.prepared().plan;
        let b = plan.buffer(id);
        let weight = self.backend.weights.get(&b.name);
        let k = b.shape.last().copied().unwrap_or(1);
        match weight {
            Some(w) => Ok(Matrix::decoded(&b.name, &w.values, k)),
            None => Err(ReferenceBackend::missing(
                &plan.name, "weight", &b.name, "loaded",
            )),
        }
    }
}
