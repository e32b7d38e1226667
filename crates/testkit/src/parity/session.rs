//! One backend with one case's plan on it.

use glim_plan::{Backend, BufferKind, GgmlType, ReadTarget, Rows, StepId, weight_groups};

use super::case::Case;
use super::compare::{Buffer, live};
use super::layout::{GEOMETRY, Row, fill, output_rows};

/// A prepared case. Errors are texts: they end in a report.
pub(super) struct Session<'a> {
    backend: Box<dyn Backend>,
    case: &'a Case,
    step: StepId,
}

impl<'a> Session<'a> {
    pub(super) fn new(mut backend: Box<dyn Backend>, case: &'a Case) -> Result<Self, String> {
        let plan = &case.plan;
        let groups = weight_groups(std::slice::from_ref(plan)).map_err(|e| e.to_string())?;
        let layout = &case.layout;
        let prepare = || -> Result<StepId, glim_plan::BackendError> {
            backend.load(&groups, &case.weights)?;
            backend.alloc_state(
                &plan.states(),
                GEOMETRY.block_size,
                layout.blocks(),
                layout.slots(),
            )?;
            backend.prepare(plan)
        };
        let step = { prepare }().map_err(|e| e.to_string())?;
        Ok(Self {
            backend,
            case,
            step,
        })
    }

    /// Runs the rows before those that are measured, if there is a state to keep them in.
    pub(super) fn history(&mut self) -> Result<(), String> {
        if self.case.plan.states().is_empty() {
            return Ok(());
        }
        for rows in self.case.layout.history() {
            self.run(&rows)?;
        }
        Ok(())
    }

    pub(super) fn run(&mut self, rows: &[Row]) -> Result<Vec<Buffer>, String> {
        let Case {
            plan,
            layout,
            extras,
            ..
        } = self.case;
        let inputs = fill(plan, layout, extras, rows);
        let results = self.backend.run(self.step, &inputs);
        let results = results.map_err(|e| e.to_string())?;
        let outputs = output_rows(rows.len(), usize::MAX).len();
        Ok(live(plan, &results, rows, outputs))
    }

    /// What a run of row `i` of `n` alone should give, taken from the results of all; `None` for results of output rows if it
    /// is none.
    pub(super) fn row_of(&self, all: &[Buffer], i: usize, n: usize) -> Vec<Option<Buffer>> {
        let plan = &self.case.plan;
        let results = plan.buffers_where(|kind| *kind == BufferKind::Result);
        let take = |(buffer, (_, decl)): (&Buffer, (_, &glim_plan::BufferDecl))| {
            let row = match decl.rows {
                Rows::Outputs => output_rows(n, usize::MAX).iter().position(|r| *r == i),
                _ => Some(i),
            };
            row.map(|r| Buffer {
                rows: vec![buffer.rows[r].clone()],
                ..buffer.clone()
            })
        };
        all.iter().zip(results).map(take).collect()
    }

    /// All rows of all states.
    pub(super) fn states(&self) -> Result<Vec<Buffer>, String> {
        let read = |decl: glim_plan::StateDecl| {
            let bytes = self.backend.read(ReadTarget::State(&decl.name));
            let bytes = bytes.map_err(|e| e.to_string())?;
            let words = bytes.chunks_exact(4);
            let words: Vec<u32> = words
                .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect();
            Ok(Buffer {
                name: decl.name,
                ty: GgmlType::F32,
                rows: vec![words],
            })
        };
        self.case.plan.states().into_iter().map(read).collect()
    }

    /// Whether the plan carries tokens.
    pub(super) fn carries(&self) -> bool {
        let mut carries = self
            .case
            .plan
            .buffers_where(|kind| *kind == BufferKind::Carry);
        carries.next().is_some()
    }
}
