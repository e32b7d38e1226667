//! Caches, the indexer and latent attention.

use glim_plan::reference::attention::{Cached, index_select};
use glim_plan::{BackendError, BufferId, Cols, LiveStep, Op};

use super::Run;
use super::memory::Memory;
use crate::attention::{Chosen, HeadRow, attend, score_pieces, scores};
use crate::backend::{Prepared, State};
use crate::matmul::TILE;
use crate::shared::Parts;

impl Run<'_> {
    pub(super) fn append(&mut self, parts: &[Cols], state: BufferId) {
        let sources: Vec<(&[f32], usize, &Cols)> = parts
            .iter()
            .map(|p| (self.memory.f32s(p.buffer), self.memory.last(p.buffer), p))
            .collect();
        let state = &mut self.states[self.prepared.bound[state.index()]];
        let width = state.width();
        for (t, slot) in self.live.slots.iter().enumerate() {
            let Some(slot) = slot else { continue };
            let mut row = &mut state.rows[slot * width..][..width];
            for (source, stride, p) in &sources {
                let (head, rest) = row.split_at_mut(p.len);
                head.copy_from_slice(&source[t * stride + p.start..][..p.len]);
                row = rest;
            }
        }
    }

    pub(super) fn index_score(&mut self, op: &Op) {
        let Op::IndexScore {
            q,
            weights,
            keys,
            paging,
            scale,
            out,
        } = op
        else {
            return;
        };
        let memory = &self.memory;
        let (q_row, heads) = (memory.row(*q), memory.row(*weights));
        let (q, w) = (memory.f32s(*q), memory.f32s(*weights));
        let tables = memory.i32s(paging.block_tables);
        // Rows that see no more than is kept whatever the scores are: nobody reads theirs.
        let unread = match self.poison {
            true => 0,
            false => self.prepared.selects[out.index()],
        };
        let width = memory.row(*out);
        let out = Parts::new(memory.out::<f32>(*out));
        let pieces = score_pieces(&self.live.positions, unread);
        let cached = cached(self.states, self.prepared, self.live, *keys, tables);
        let kernels = self.workers.kernels;
        self.workers.pool.ranges(pieces.len(), 1, |_, range| {
            for (t, positions) in &pieces[range] {
                // SAFETY: one piece owns these positions of row `t`.
                let out = unsafe { out.part(t * width + positions.start, positions.len()) };
                let (q, w) = (&q[t * q_row..][..q_row], &w[t * heads..][..heads]);
                scores(kernels, q, w, &cached[*t], *scale, positions.clone(), out);
            }
        });
    }

    pub(super) fn index_select(&mut self, op: &Op) {
        let Op::IndexSelect {
            scores,
            topk,
            forced,
            out,
            ..
        } = op
        else {
            return;
        };
        let memory = &self.memory;
        let width = memory.row(*scores);
        let scores = memory.f32s(*scores);
        let forced = forced.map(|f| (memory.i32s(f.buffer), memory.row(f.buffer), f.start));
        let out = Parts::new(memory.out::<i32>(*out));
        let positions = &self.live.positions;
        self.workers.pool.ranges(self.live.tokens, 1, |_, range| {
            for t in range {
                // SAFETY: one range owns row `t`.
                let row = unsafe { out.part(t * topk, *topk) };
                let forced = forced.map(|(f, n, start)| &f[t * n + start..][..*topk]);
                let visible = positions[t] + 1;
                if let Some(forced) = forced.filter(|f| f.first() != Some(&-1)) {
                    row.copy_from_slice(forced);
                } else if visible <= *topk {
                    // All of them, whatever their scores are.
                    let slots = row.iter_mut().enumerate();
                    slots.for_each(|(s, slot)| *slot = if s < visible { s as i32 } else { -1 });
                } else {
                    let chosen = index_select(&scores[t * width..][..visible], *topk);
                    let slots = row.iter_mut().zip(chosen);
                    slots.for_each(|(slot, s)| *slot = s as i32);
                }
            }
        });
    }

    pub(super) fn attend(&mut self, label: &str, op: &Op) -> Result<(), BackendError> {
        let Op::MlaAttend {
            q_latent,
            q_rope,
            latent,
            topk,
            paging,
            scale,
            out,
        } = op
        else {
            return Ok(());
        };
        let memory = &self.memory;
        let (heads, rank) = (memory.axis(*q_latent, 1), memory.last(*q_latent));
        let (rope, rope_row) = (memory.f32s(q_rope.buffer), memory.last(q_rope.buffer));
        let chosen = attended(memory, &self.live.positions, *topk);
        let chosen = chosen
            .map_err(|(found, bound)| self.out_of_range(label, "chosen position", found, bound))?;
        let q = memory.f32s(*q_latent);
        let tables = memory.i32s(paging.block_tables);
        let out = Parts::new(memory.out::<f32>(*out));
        let cached = cached(self.states, self.prepared, self.live, *latent, tables);
        let kernels = self.workers.kernels;
        let scratch = Parts::new(self.workers.scratch);
        // A piece is a few heads of one row, which read the cached rows together.
        let tiles = heads.div_ceil(TILE);
        let pieces = self.live.tokens * tiles;
        self.workers.pool.ranges(pieces, 1, |thread, range| {
            // SAFETY: each thread has its own scratch.
            let scratch = unsafe { &mut scratch.part(thread, 1)[0] };
            for piece in range {
                let (t, first) = (piece / tiles, piece % tiles * TILE);
                let head = |h: usize| {
                    let i = t * heads + first + h;
                    HeadRow {
                        q_latent: &q[i * rank..][..rank],
                        q_rope: &rope[i * rope_row + q_rope.start..][..q_rope.len],
                        // SAFETY: one piece owns its heads of row `t`, each taken once.
                        out: unsafe { out.part(i * rank, rank) },
                    }
                };
                let (latent, chosen, p) = (&cached[t], chosen[t], &mut scratch.p);
                match TILE.min(heads - first) {
                    1 => attend(kernels, [0].map(head), latent, chosen, *scale, p),
                    2 => attend(kernels, [0, 1].map(head), latent, chosen, *scale, p),
                    3 => attend(kernels, [0, 1, 2].map(head), latent, chosen, *scale, p),
                    _ => attend(kernels, [0, 1, 2, 3].map(head), latent, chosen, *scale, p),
                }
            }
        });
        Ok(())
    }
}

/// The positions that each live row attends to; or the first that lies outside what its row sees, and the bound.
fn attended<'m>(
    memory: &'m Memory<'_>,
    positions: &[usize],
    topk: Option<BufferId>,
) -> Result<Vec<Chosen<'m>>, (i32, usize)> {
    let Some(topk) = topk else {
        return Ok(positions.iter().map(|p| Chosen::UpTo(*p)).collect());
    };
    let (n, chosen) = (memory.row(topk), memory.i32s(topk));
    let row = |(row, position): (&'m [i32], &usize)| {
        let len = row.iter().position(|s| *s == -1).unwrap_or(n);
        let row = &row[..len];
        let outside = |s: &&i32| usize::try_from(**s).map_or(true, |s| s > *position);
        match row.iter().find(outside) {
            Some(s) => Err((*s, position + 1)),
            None => Ok(Chosen::These(row)),
        }
    };
    chosen.chunks_exact(n).zip(positions).map(row).collect()
}

/// Each live row's view of its sequence's cached rows.
fn cached<'s>(
    states: &'s [State],
    prepared: &Prepared,
    live: &LiveStep,
    state: BufferId,
    tables: &'s [i32],
) -> Vec<Cached<'s>> {
    let geometry = prepared.plan.geometry;
    let state = &states[prepared.bound[state.index()]];
    let view = |sequence: &usize| Cached {
        rows: &state.rows,
        width: state.width(),
        block_table: &tables[sequence * geometry.max_blocks..][..geometry.max_blocks],
        block_size: geometry.block_size,
    };
    live.sequences.iter().map(view).collect()
}
