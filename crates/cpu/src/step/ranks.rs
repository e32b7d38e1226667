//! Collectives: what this rank brings lies in the arena, and so does what comes of it.

use glim_plan::collective::{GatherRows, all_gather, all_reduce};
use glim_plan::{BackendError, BufferId, CollectiveId, Gather, GgmlType};

use super::Run;

impl Run<'_> {
    pub(super) fn all_reduce(
        &mut self,
        id: CollectiveId,
        wire: GgmlType,
        x: BufferId,
        out: BufferId,
    ) -> Result<(), BackendError> {
        let x = self.memory.live(x);
        let out = &mut self.memory.out::<f32>(out)[..x.len()];
        all_reduce(self.ranks, id, wire, x, out)
            .map_err(|failure| failure.in_plan(&self.prepared.plan))
    }

    pub(super) fn all_gather(
        &mut self,
        id: CollectiveId,
        wire: GgmlType,
        gathers: &[Gather],
    ) -> Result<(), BackendError> {
        let memory = &self.memory;
        let live = |id: BufferId| memory.live_rows(id) * memory.row(id);
        let part = |g: &Gather| {
            let inner = memory.row(g.x) / memory.axis(g.x, 1).max(1);
            GatherRows {
                x: &memory.words(g.x)[..live(g.x)],
                out: &mut memory.out::<u32>(g.out)[..live(g.out)],
                widths: g.lens.iter().map(|n| n * inner).collect(),
                is_f32: memory.is_f32(g.x),
            }
        };
        let mut parts: Vec<GatherRows<'_>> = gathers.iter().map(part).collect();
        all_gather(self.ranks, id, wire, &mut parts)
            .map_err(|failure| failure.in_plan(&self.prepared.plan))
    }
}
