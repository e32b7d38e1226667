//! Operations on each row or element by itself.

use std::sync::Arc;

use glim_plan::reference::math::{layer_norm, rms_norm, rope_angles, rotate, swiglu};
use glim_plan::reference::moe::top_k_merge;
use glim_plan::{BackendError, BufferId, CarryRef, Cols, RopeSpec, RopeStyle};

use super::{ELEMENTS, Run};
use crate::shared::Parts;

/// Sines and cosines of the live rows, computed once for all operations of a step that turn by the same frequencies.
#[derive(Debug, Default)]
pub(super) struct Angles {
    known: Vec<(f32, usize, AngleTable)>,
}

/// `[live rows, n / 2]`.
type AngleTable = Arc<Vec<(f32, f32)>>;

/// Rows whose angles are worth a piece of their own.
const ANGLE_ROWS: usize = 8;

impl Run<'_> {
    pub(super) fn embed(
        &mut self,
        label: &str,
        tokens: BufferId,
        carry: Option<&CarryRef>,
        table: BufferId,
        out: BufferId,
    ) -> Result<(), BackendError> {
        let (w, d) = (self.weight(table), self.memory.row(out));
        let vocab = w.shape[0];
        let tokens = self.memory.i32s(tokens);
        let out = self.memory.out::<f32>(out);
        for (t, out) in out.chunks_exact_mut(d).take(self.live.tokens).enumerate() {
            let token = match (tokens[t], carry) {
                (-1, Some(c)) => {
                    let slot = self.live.sequence_slots[self.live.sequences[t]];
                    self.carries[self.prepared.bound[c.carry.index()]][slot] as i32
                }
                (token, _) => token,
            };
            let row = usize::try_from(token).ok().filter(|t| *t < vocab);
            let row = row.ok_or_else(|| self.out_of_range(label, "token", token, vocab))?;
            w.decode(row, out);
        }
        Ok(())
    }

    pub(super) fn rms_norm(&mut self, x: &Cols, weight: BufferId, eps: f32, out: BufferId) {
        let w = &self.weight(weight).vector;
        let (rows, out) = (self.memory.columns(x), self.memory.out(out));
        let cols = x.start..x.start + x.len;
        self.workers
            .map_rows(rows, cols, out, |row, o| rms_norm(row, w, eps, o));
    }

    pub(super) fn layer_norm(
        &mut self,
        x: &Cols,
        weight: BufferId,
        bias: BufferId,
        eps: f32,
        out: BufferId,
    ) {
        let (w, b) = (&self.weight(weight).vector, &self.weight(bias).vector);
        let (rows, out) = (self.memory.columns(x), self.memory.out(out));
        let cols = x.start..x.start + x.len;
        self.workers
            .map_rows(rows, cols, out, |row, o| layer_norm(row, w, b, eps, o));
    }

    pub(super) fn swiglu(&mut self, gate: BufferId, up: BufferId, out: BufferId) {
        let (gate, up) = (self.memory.live(gate), self.memory.live(up));
        let out = self.memory.out(out);
        self.workers.map_pairs(gate, up, out, swiglu);
    }

    pub(super) fn rope(&mut self, x: BufferId, spec: &RopeSpec) {
        let angles = self.angles_of(spec);
        let (row, width) = (self.memory.row(x), self.memory.last(x));
        let half_split = spec.style == RopeStyle::HalfSplit;
        let values = Parts::new(self.memory.out::<f32>(x));
        let grain = ELEMENTS.div_ceil(row.max(1));
        let pairs = spec.n / 2;
        self.workers
            .pool
            .ranges(self.live.tokens, grain, |_, range| {
                for t in range {
                    // SAFETY: one range owns row `t`.
                    let row = unsafe { values.part(t * row, row) };
                    let angles = &angles[t * pairs..][..pairs];
                    for head in row.chunks_exact_mut(width) {
                        rotate(&mut head[spec.start..][..spec.n], angles, half_split);
                    }
                }
            });
    }

    fn angles_of(&mut self, spec: &RopeSpec) -> AngleTable {
        let mut known = self.angles.known.iter();
        if let Some((.., table)) = known.find(|(theta, n, _)| (*theta, *n) == (spec.theta, spec.n))
        {
            return Arc::clone(table);
        }
        let (positions, pairs) = (&self.live.positions, spec.n / 2);
        let mut table = vec![(0.0, 0.0); self.live.tokens * pairs];
        let rows = Parts::new(&mut table);
        self.workers
            .pool
            .ranges(self.live.tokens, ANGLE_ROWS, |_, range| {
                for t in range {
                    // SAFETY: one range owns row `t`.
                    let row = unsafe { rows.part(t * pairs, pairs) };
                    row.copy_from_slice(&rope_angles(positions[t], spec.theta, spec.n));
                }
            });
        let table = Arc::new(table);
        let entry = (spec.theta, spec.n, Arc::clone(&table));
        self.angles.known.push(entry);
        table
    }

    pub(super) fn select_rows(&mut self, x: BufferId, out: BufferId) {
        let d = self.memory.row(out);
        let (x, out) = (self.memory.f32s(x), self.memory.out::<f32>(out));
        for (row, out) in self.live.output_rows.iter().zip(out.chunks_exact_mut(d)) {
            out.copy_from_slice(&x[row * d..][..d]);
        }
    }

    pub(super) fn top_k_merge(
        &mut self,
        [values, ids]: [BufferId; 2],
        k: usize,
        [out_values, out_ids]: [BufferId; 2],
    ) {
        let n = self.memory.row(values);
        let (values, ids) = (self.memory.live(values), self.memory.i32s(ids));
        let best = self.memory.out::<f32>(out_values);
        let best_ids = self.memory.out::<i32>(out_ids);
        let rows = values.chunks_exact(n).zip(ids.chunks_exact(n));
        for (i, (row, row_ids)) in rows.enumerate() {
            for (j, (value, id)) in top_k_merge(row, row_ids, k).into_iter().enumerate() {
                (best[i * k + j], best_ids[i * k + j]) = (value, id);
            }
        }
    }
}
