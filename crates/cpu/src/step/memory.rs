//! The arena, as the operations see it: one operation at a time, what it reads and what it writes.
//!
//! `arrange` has put buffers that are live together in different places, and `check_arrangement` has proved it. All the same
//! every view that is handed out is entered in a ledger, and a view that would overlap one that is written is a panic: so
//! nothing in here depends on a proof elsewhere. An operation has a handful of views; the ledger costs some nanoseconds.

use std::cell::RefCell;
use std::ops::Range;

use glim_plan::{BufferId, BufferKind, Cols, GgmlType, LiveStep, Rows};

use crate::backend::Prepared;
use crate::shared::Parts;

/// Inputs and arena of one run.
pub(super) struct Memory<'a> {
    prepared: &'a Prepared,
    live: &'a LiveStep,
    arena: Parts<'a, u32>,
    /// Views of the current operation: where, and whether it is written.
    ledger: RefCell<Vec<(Range<usize>, bool)>>,
}

impl<'a> Memory<'a> {
    pub(super) fn new(prepared: &'a Prepared, live: &'a LiveStep, arena: &'a mut [u32]) -> Self {
        Self {
            prepared,
            live,
            arena: Parts::new(arena),
            ledger: RefCell::default(),
        }
    }

    /// Begins an operation: the borrow proves that no view of the last one is alive.
    pub(super) fn begin(&mut self) {
        self.ledger.get_mut().clear();
    }

    /// Enters a view of an arena buffer; gives its place in words.
    fn enter(&self, id: BufferId, written: bool) -> Range<usize> {
        let buffer = self.prepared.plan.buffer(id);
        let start = self.prepared.starts[id.index()];
        let start = start.unwrap_or_else(|| panic!("{} lies in no arena", buffer.name));
        let span = start..start + buffer.elements();
        let mut ledger = self.ledger.borrow_mut();
        let clash = ledger.iter().any(|(other, other_written)| {
            (written || *other_written) && other.start < span.end && span.start < other.end
        });
        assert!(!clash, "{} overlaps what is being written", buffer.name);
        ledger.push((span.clone(), written));
        span
    }

    /// An input or a buffer of the arena, to read.
    pub(super) fn words(&self, id: BufferId) -> &[u32] {
        if let BufferKind::Input(kind) = self.prepared.plan.buffer(id).kind {
            return self.prepared.inputs.get(kind);
        }
        let span = self.enter(id, false);
        // SAFETY: the view lives no longer than `self` is borrowed, so until the next `begin` at most; until then the ledger keeps
        // every written view away from it.
        unsafe { self.arena.shared(span.start, span.len()) }
    }

    pub(super) fn f32s(&self, id: BufferId) -> &[f32] {
        bytemuck::cast_slice(self.words(id))
    }

    pub(super) fn i32s(&self, id: BufferId) -> &[i32] {
        bytemuck::cast_slice(self.words(id))
    }

    /// The live rows of an activation.
    pub(super) fn live(&self, id: BufferId) -> &[f32] {
        &self.f32s(id)[..self.live_rows(id) * self.row(id)]
    }

    /// A buffer of the arena, to write.
    #[expect(
        clippy::mut_from_ref,
        reason = "the ledger sees to it that no two views overlap"
    )]
    pub(super) fn out<T: bytemuck::Pod>(&self, id: BufferId) -> &mut [T] {
        let span = self.enter(id, true);
        // SAFETY: as in `words`, and the ledger keeps every view away from this one.
        bytemuck::cast_slice_mut(unsafe { self.arena.part(span.start, span.len()) })
    }

    pub(super) fn live_rows(&self, id: BufferId) -> usize {
        let b = self.prepared.plan.buffer(id);
        match b.rows {
            Rows::Tokens => self.live.tokens,
            Rows::Outputs => self.live.outputs,
            Rows::Whole => b.shape.first().copied().unwrap_or(1),
        }
    }

    /// Elements of one entry of axis 0.
    pub(super) fn row(&self, id: BufferId) -> usize {
        self.prepared.plan.buffer(id).row_elements()
    }

    pub(super) fn axis(&self, id: BufferId, i: usize) -> usize {
        let shape = &self.prepared.plan.buffer(id).shape;
        shape.get(i).copied().unwrap_or(1)
    }

    pub(super) fn last(&self, id: BufferId) -> usize {
        let shape = &self.prepared.plan.buffer(id).shape;
        shape.last().copied().unwrap_or(1)
    }

    /// The innermost rows of which columns are wanted: `(live values, width of a row)`.
    pub(super) fn columns(&self, x: &Cols) -> (&[f32], usize) {
        (self.live(x.buffer), self.last(x.buffer))
    }

    pub(super) fn is_f32(&self, id: BufferId) -> bool {
        self.prepared.plan.buffer(id).dtype == GgmlType::F32
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;

    use glim_plan::{
        CacheGeometry, Plan, PlanBuilder, ResultLayout, StepInputs, StepKind, arrange,
    };

    use super::*;

    /// Two buffers `a` and `b` of four words, `b` from word `start` on.
    fn check(start: usize, uses: impl Fn(&Memory<'_>, [BufferId; 2])) -> bool {
        let geometry = CacheGeometry {
            block_size: 1,
            max_blocks: 1,
        };
        let mut b = PlanBuilder::new("p", StepKind::Decode { rows: 1 }, geometry);
        let ids = ["a", "b"].map(|name| b.temp(name, GgmlType::F32, &[1, 4], Rows::Tokens));
        let plan: Plan = b.finish();
        let prepared = Prepared {
            arrangement: arrange(&plan),
            inputs: StepInputs::new(&plan),
            results: Arc::new(ResultLayout::of(&plan)),
            bound: Vec::new(),
            starts: vec![Some(0), Some(start)],
            selects: Vec::new(),
            plan,
        };
        let (live, mut arena) = (LiveStep::default(), vec![0u32; 64]);
        let memory = Memory::new(&prepared, &live, &mut arena);
        catch_unwind(AssertUnwindSafe(|| uses(&memory, ids))).is_ok()
    }

    #[test]
    fn what_is_written_is_nobody_else_s() {
        let read = |m: &Memory<'_>, id| assert_eq!(m.words(id).len(), 4);
        let write = |m: &Memory<'_>, id| assert_eq!(m.out::<f32>(id).len(), 4);
        assert!(check(4, |m, [a, b]| (write(m, a), read(m, b), read(m, b)).0));
        assert!(check(2, |m, [a, b]| (read(m, a), read(m, b)).0));
        assert!(!check(2, |m, [a, b]| (write(m, a), read(m, b)).0));
        assert!(!check(2, |m, [a, b]| (read(m, a), write(m, b)).0));
        assert!(!check(4, |m, [a, _]| (write(m, a), write(m, a)).0));
    }
}
