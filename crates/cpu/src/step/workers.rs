//! The threads of a run, and the ways in which operations are cut over them.

use glim_plan::BufferId;

use super::memory::Memory;
use crate::matmul::q8::Q8;
use crate::matmul::{Kernels, Operand, Scratch, Weight, XRows};
use crate::pool::Pool;
use crate::shared::Parts;

/// Elements of an element-wise operation that are worth a piece of their own.
pub(crate) const ELEMENTS: usize = 16 * 1024;
/// Bytes of weights that are worth a piece of their own.
const WEIGHT_BYTES: usize = 16 * 1024;

/// What operations compute with.
pub(crate) struct Workers<'a> {
    pub(crate) kernels: Kernels,
    pub(crate) pool: &'a mut Pool,
    /// One for each thread.
    pub(crate) scratch: &'a mut [Scratch],
    pub(crate) q8: &'a mut Q8,
}

impl Workers<'_> {
    /// `f(row, out row)` for rows of `x`, of which `cols` gives the columns.
    pub(super) fn map_rows(
        &mut self,
        (x, width): (&[f32], usize),
        cols: std::ops::Range<usize>,
        out: &mut [f32],
        f: impl Fn(&[f32], &mut [f32]) + Sync,
    ) {
        let (out, len) = (Parts::new(out), cols.len());
        let rows = x.len() / width;
        self.pool.ranges(rows, ELEMENTS.div_ceil(len), |_, range| {
            for i in range {
                // SAFETY: one range owns row `i`.
                let out = unsafe { out.part(i * len, len) };
                f(&x[i * width..][cols.clone()], out);
            }
        });
    }

    /// `out[i] = f(a[i], b[i])`.
    pub(super) fn map_pairs(
        &mut self,
        a: &[f32],
        b: &[f32],
        out: &mut [f32],
        f: impl Fn(f32, f32) -> f32 + Sync,
    ) {
        let out = Parts::new(out);
        self.pool.ranges(a.len(), ELEMENTS, |_, range| {
            // SAFETY: ranges are disjoint.
            let out = unsafe { out.part(range.start, range.len()) };
            let pairs = a[range.clone()].iter().zip(&b[range]);
            out.iter_mut()
                .zip(pairs)
                .for_each(|(o, (a, b))| *o = f(*a, *b));
        });
    }

    /// Rounds rows of `k` to 8 bits if one of the weights wants that; says whether.
    pub(crate) fn quantise<'x>(
        &mut self,
        rows: usize,
        k: usize,
        x: impl Fn(usize) -> &'x [f32] + Sync,
        weights: &[&Weight],
    ) -> bool {
        if !weights.iter().any(|w| self.kernels.wants_q8(w)) {
            return false;
        }
        self.q8.resize(rows, k);
        let (parts, kernels) = (self.q8.parts(), self.kernels);
        self.pool
            .ranges(rows, ELEMENTS.div_ceil(4 * k), |_, range| {
                for t in range {
                    // SAFETY: one range owns row `t`.
                    unsafe { kernels.round(&parts, t, x(t)) };
                }
            });
        true
    }

    /// Products of the rows of `x` with several weights, as one section; `round`: activations may be rounded.
    pub(super) fn linear(
        &mut self,
        x: &[f32],
        round: bool,
        weights: &[&Weight],
        outs: &[Parts<'_, f32>],
    ) {
        let k = weights.first().map_or(1, |w| w.k);
        let rows = x.len() / k;
        if rows == 0 {
            return;
        }
        let q8 = round && self.quantise(rows, k, |t| &x[t * k..][..k], weights);
        let operand = Operand {
            f32s: x,
            q8: q8.then_some(&*self.q8),
        };
        let kernels = self.kernels;
        let scratch = Parts::new(self.scratch);
        let bytes: usize = weights.iter().map(|w| w.bytes.len()).sum();
        let total: usize = weights.iter().map(|w| w.shape[0]).sum();
        let x_rows = XRows {
            count: rows,
            at: |t: usize| t,
        };
        self.pool
            .ranges(total, grain(total, bytes, rows), |thread, range| {
                // SAFETY: each thread has its own scratch.
                let scratch = unsafe { &mut scratch.part(thread, 1)[0] };
                let mut first = 0;
                for (w, out) in weights.iter().zip(outs) {
                    let m = w.shape[0];
                    let start = range.start.clamp(first, first + m) - first;
                    let end = range.end.clamp(first, first + m) - first;
                    kernels.product(w, start..end, operand, x_rows, scratch, |t, j, value| {
                        // SAFETY: one range owns row `j` of this weight, and so column `j` of its result.
                        unsafe { out.set(t * m + j, value) };
                    });
                    first += m;
                }
            });
    }

    /// A product for each head: heads of `width` values in `x`, of which `cols` are multiplied.
    pub(super) fn head_project(
        &mut self,
        (x, width): (&[f32], usize),
        cols: std::ops::Range<usize>,
        w: &Weight,
        room: &mut Vec<f32>,
        out: &mut [f32],
    ) {
        let (heads, m) = (w.shape[0], w.shape[1]);
        let rows = x.len() / width;
        let tokens = rows / heads;
        if tokens == 0 {
            return;
        }
        let k = cols.len();
        let columns = |i: usize| &x[i * width..][cols.clone()];
        let quantised = self.quantise(rows, k, columns, &[w]);
        if !quantised {
            room.clear();
            (0..rows).for_each(|i| room.extend_from_slice(columns(i)));
        }
        let operand = Operand {
            f32s: room,
            q8: quantised.then_some(&*self.q8),
        };
        let (out, scratch, kernels) = (Parts::new(out), Parts::new(self.scratch), self.kernels);
        let grain = grain(heads * m, w.bytes.len(), tokens);
        self.pool.ranges(heads * m, grain, |thread, range| {
            // SAFETY: each thread has its own scratch.
            let scratch = unsafe { &mut scratch.part(thread, 1)[0] };
            let mut start = range.start;
            while start < range.end {
                let head = start / m;
                let end = range.end.min((head + 1) * m);
                let x_rows = XRows {
                    count: tokens,
                    at: |t: usize| t * heads + head,
                };
                kernels.product(w, start..end, operand, x_rows, scratch, |t, j, value| {
                    // SAFETY: one range owns row `j` of the weight (of all heads' rows), and so this element of every token.
                    unsafe { out.set(t * heads * m + j, value) };
                });
                start = end;
            }
        });
    }
}

/// Weight rows that are worth a piece: of `total` rows in `bytes`, each multiplied with `rows`.
fn grain(total: usize, bytes: usize, rows: usize) -> usize {
    (WEIGHT_BYTES * total)
        .div_ceil(bytes.max(1))
        .div_ceil(rows.max(1))
}

/// Outputs that parallel sections write element by element.
pub(super) fn parts<'m>(memory: &'m Memory<'_>, ids: &[BufferId]) -> Vec<Parts<'m, f32>> {
    ids.iter().map(|id| Parts::new(memory.out(*id))).collect()
}
