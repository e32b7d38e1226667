//! What a step's operations read and wrote, as it was seen from outside.

use std::collections::HashMap;
use std::rc::Rc;

use glim_plan::reference::recompute::{Matrix, Operands};
use glim_plan::{
    BackendError, BufferId, BufferKind, GgmlType, InputKind, Plan, StepInputs, StepResults,
    WeightSource,
};

use super::stage::{Ran, Stage};
use crate::error::EngineError;
use crate::steps::Prepared;

/// One run: its results, inputs, states after and carries before; weights come from the file.
#[derive(Clone)]
pub(super) struct Seen<'a> {
    pub(super) plan: &'a Plan,
    source: &'a dyn WeightSource,
    rank: usize,
    /// Of each rank: collectives bring them together.
    results: Rc<Vec<StepResults>>,
    inputs: StepInputs,
    states: HashMap<BufferId, Vec<f32>>,
    carry_before: Vec<i32>,
    carry_after: Vec<i32>,
    /// A buffer as it should have been, in place of what it was.
    pub(super) supposed: Option<(BufferId, Vec<f32>)>,
    /// A run that went on, for what this one did not come to.
    pub(super) after: Option<&'a Seen<'a>>,
    /// Buffers that are to be looked up there, though this run has them: as they were before they were changed.
    pub(super) made: Vec<BufferId>,
}

/// A row of one rank.
#[derive(Debug, Clone, Copy)]
pub(super) enum RankRow<'a> {
    /// Numbers.
    F32(&'a [f32]),
    /// Ids.
    I32(&'a [i32]),
}

impl<'a> Seen<'a> {
    /// Runs a step and looks at it; states are read if one of `ops` touches them.
    pub(super) fn run(
        stage: &mut Stage<'_>,
        prepared: &'a mut Prepared,
        source: &'a dyn WeightSource,
        ops: std::ops::Range<usize>,
    ) -> Result<Self, EngineError> {
        let Ran {
            results,
            carry_before,
        } = stage.run(prepared)?;
        let rank = stage.rank();
        let plan = prepared.plan_of(rank);
        let mut states = HashMap::new();
        for node in &plan.ops[ops] {
            let access = node.op.access();
            for id in access.reads.iter().chain(&access.appends) {
                let buffer = plan.buffer(*id);
                if matches!(buffer.kind, BufferKind::State(_)) && !states.contains_key(id) {
                    states.insert(*id, stage.state(&buffer.name)?);
                }
            }
        }
        Ok(Self {
            plan,
            source,
            rank,
            results: Rc::new(results),
            inputs: prepared.inputs().clone(),
            states,
            carry_before,
            carry_after: stage.carry()?,
            supposed: None,
            after: None,
            made: Vec::new(),
        })
    }

    /// Row `row` of a buffer, from its first element on: as the run left it.
    pub(super) fn row_f32(
        &self,
        id: BufferId,
        row: usize,
        len: usize,
    ) -> Result<&[f32], BackendError> {
        let b = self.plan.buffer(id);
        let (values, width) = match b.kind {
            BufferKind::State(_) => (self.f32s(id)?, b.elements()),
            _ => (self.result(id)?, b.row_elements()),
        };
        let found = values.get(row * width..).and_then(|rest| rest.get(..len));
        found.ok_or_else(|| self.missing(id))
    }

    /// The same of i32; a carry as the run left it.
    pub(super) fn row_i32(
        &self,
        id: BufferId,
        row: usize,
        len: usize,
    ) -> Result<&[i32], BackendError> {
        let b = self.plan.buffer(id);
        let values = match b.kind {
            BufferKind::Carry => &self.carry_after,
            _ => self.i32s(id)?,
        };
        let found = values
            .get(row * b.row_elements()..)
            .and_then(|rest| rest.get(..len));
        found.ok_or_else(|| self.missing(id))
    }

    fn own(&self) -> &StepResults {
        &self.results[self.rank]
    }

    /// Row `row` of a temporary as each rank has it, of these many words each.
    pub(super) fn rank_rows(
        &self,
        id: BufferId,
        row: usize,
        lens: &[usize],
    ) -> Result<Vec<RankRow<'_>>, BackendError> {
        let b = self.plan.buffer(id);
        if let (None, Some(after)) = (self.own().words(&b.name), self.after) {
            return after.rank_rows(id, row, lens);
        }
        let mut rows = Vec::with_capacity(lens.len());
        for (results, len) in self.results.iter().zip(lens) {
            let range = row * len..(row + 1) * len;
            let found = match b.dtype {
                GgmlType::F32 => results
                    .f32s(&b.name)
                    .and_then(|values| values.get(range))
                    .map(RankRow::F32),
                _ => results
                    .i32s(&b.name)
                    .and_then(|values| values.get(range))
                    .map(RankRow::I32),
            };
            rows.push(found.ok_or_else(|| self.missing(id))?);
        }
        Ok(rows)
    }

    fn result(&self, id: BufferId) -> Result<&[f32], BackendError> {
        match (self.own().f32s(&self.plan.buffer(id).name), self.after) {
            (Some(values), _) => Ok(values),
            (None, Some(after)) => after.f32s(id),
            (None, None) => Err(self.missing(id)),
        }
    }

    fn input(&self, kind: InputKind) -> &[u32] {
        self.inputs.get(kind)
    }

    fn missing(&self, id: BufferId) -> BackendError {
        BackendError::Missing {
            plan: self.plan.name.clone(),
            what: "result",
            name: self.plan.buffer(id).name.clone(),
            action: "given by the run",
        }
    }
}

impl Operands for Seen<'_> {
    fn f32s(&self, id: BufferId) -> Result<&[f32], BackendError> {
        if let Some((supposed, values)) = &self.supposed
            && *supposed == id
        {
            return Ok(values);
        }
        if let Some(after) = self.after.filter(|_| self.made.contains(&id)) {
            return after.f32s(id);
        }
        match self.plan.buffer(id).kind {
            BufferKind::State(_) => match (self.states.get(&id), self.after) {
                (Some(rows), _) => Ok(rows),
                (None, Some(after)) => after.f32s(id),
                (None, None) => Err(self.missing(id)),
            },
            BufferKind::Input(kind) => Ok(bytemuck::cast_slice(self.input(kind))),
            _ => self.result(id),
        }
    }

    fn i32s(&self, id: BufferId) -> Result<&[i32], BackendError> {
        let b = self.plan.buffer(id);
        if let Some(after) = self.after.filter(|_| self.made.contains(&id)) {
            return after.i32s(id);
        }
        match b.kind {
            BufferKind::Input(kind) => Ok(bytemuck::cast_slice(self.input(kind))),
            BufferKind::Carry => Ok(&self.carry_before),
            _ => match (self.own().i32s(&b.name), self.after) {
                (Some(values), _) => Ok(values),
                (None, Some(after)) => after.i32s(id),
                (None, None) => Err(self.missing(id)),
            },
        }
    }

    fn weight(&self, id: BufferId) -> Result<Matrix<'_>, BackendError> {
        let name = &self.plan.buffer(id).name;
        let data = self.source.weight(name)?;
        let decl = self.plan.buffer(id);
        if data.ty != decl.dtype || data.shape != decl.shape {
            return Err(BackendError::WeightDiffers {
                weight: name.clone(),
                plan: self.plan.name.clone(),
                found: format!("{} {:?}", data.ty, data.shape),
                expected: format!("{} {:?}", decl.dtype, decl.shape),
            });
        }
        Matrix::blocks(name, data)
    }
}
