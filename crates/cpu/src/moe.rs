//! Experts: rows are gathered by expert, so that an expert's weights are read once for all the rows that chose it.

use std::ops::Range;

use glim_plan::reference::math::swiglu;

use crate::matmul::q8::Q8;
use crate::matmul::{Kernels, Operand, Scratch, Weight};
use crate::pool::Pool;
use crate::shared::Parts;

/// Room for one step's experts; bounded by rows × chosen experts.
#[derive(Debug, Default)]
pub(crate) struct ExpertBuffers {
    gate: Vec<f32>,
    up: Vec<f32>,
    q8: Q8,
    down: Vec<f32>,
}

/// The three matrices of all experts: `gate`, `up` `[E, I, D]`, `down` `[E, D, I]`.
#[derive(Clone, Copy)]
pub(crate) struct ExpertWeights<'a> {
    pub(crate) gate: &'a Weight,
    pub(crate) up: &'a Weight,
    pub(crate) down: &'a Weight,
}

/// The router's choice: `k` experts and their weights for each row.
#[derive(Clone, Copy)]
pub(crate) struct Choice<'a> {
    pub(crate) ids: &'a [i32],
    pub(crate) weights: &'a [f32],
    pub(crate) k: usize,
}

/// What the threads work with.
pub(crate) struct Workers<'a> {
    pub(crate) kernels: Kernels,
    pub(crate) pool: &'a mut Pool,
    pub(crate) scratch: &'a mut [Scratch],
}

/// Least weight rows that one piece multiplies.
const GRAIN: usize = 16;

/// Rows by expert: `(expert, entries)`, where entry `t · k + i` is the `i`-th choice of row `t`.
fn by_expert(ids: &[i32]) -> Vec<(usize, Vec<usize>)> {
    let mut entries: Vec<usize> = (0..ids.len()).collect();
    entries.sort_by_key(|e| ids[*e]);
    let chunks = entries.chunk_by(|a, b| ids[*a] == ids[*b]);
    chunks
        .map(|chunk| (ids[chunk[0]] as usize, chunk.to_vec()))
        .collect()
}

/// Cuts `rows` weight rows of each group into pieces: `(group, weight rows)`.
fn pieces(groups: usize, rows: usize, threads: usize) -> Vec<(usize, Range<usize>)> {
    let step = GRAIN.max(rows.div_ceil(threads * 4));
    let cut = |g| {
        (0..rows)
            .step_by(step)
            .map(move |start| (g, start..(start + step).min(rows)))
    };
    (0..groups).flat_map(cut).collect()
}

/// `out[t] = Σ_i weights[t, i] · down(silu(gate x) ⊙ up x)` of expert `ids[t, i]`. `x` has `q8` rows if a weight wants them.
pub(crate) fn experts(
    workers: &mut Workers<'_>,
    buffers: &mut ExpertBuffers,
    w: ExpertWeights<'_>,
    x: Operand<'_>,
    choice: Choice<'_>,
    out: &mut [f32],
) {
    let Choice { ids, weights, k } = choice;
    let (inner, d) = (w.gate.shape[1], w.down.shape[1]);
    let groups = by_expert(ids);
    buffers.gate.resize(ids.len() * inner, 0.0);
    buffers.up.resize(ids.len() * inner, 0.0);
    buffers.down.resize(ids.len() * d, 0.0);
    let threads = workers.pool.threads();
    let kernels = workers.kernels;

    let scratch = Parts::new(workers.scratch);
    let (gate, up) = (Parts::new(&mut buffers.gate), Parts::new(&mut buffers.up));
    let cut = pieces(groups.len(), inner, threads);
    workers.pool.ranges(cut.len(), 1, |thread, range| {
        // SAFETY: each thread has its own scratch.
        let scratch = unsafe { &mut scratch.part(thread, 1)[0] };
        for (group, rows) in &cut[range] {
            let (expert, entries) = &groups[*group];
            // Rows of x by entry; products come back by row, so a row that is in twice would be a fault of the router.
            let x_rows: Vec<usize> = entries.iter().map(|e| e / k).collect();
            let entry_of = |t: usize| entries[x_rows.partition_point(|row| *row < t)];
            let first = expert * inner;
            for (weight, out) in [(w.gate, gate), (w.up, up)] {
                let w_rows = first + rows.start..first + rows.end;
                kernels.product(weight, w_rows, x, &x_rows, scratch, |t, j, value| {
                    // SAFETY: one piece owns (entry, row of the weight).
                    unsafe { out.set(entry_of(t) * inner + j - first, value) };
                });
            }
        }
    });

    // SwiGLU, and its rounding if the next product wants that.
    let up = &buffers.up;
    let quantise = w.down.wants_q8();
    if quantise {
        buffers.q8.resize(ids.len(), inner);
    }
    let (gate, q8) = (Parts::new(&mut buffers.gate), buffers.q8.parts());
    workers.pool.ranges(ids.len(), 4, |_, range| {
        for e in range {
            // SAFETY: one range owns entry `e`.
            let gate = unsafe { gate.part(e * inner, inner) };
            for (g, u) in gate.iter_mut().zip(&up[e * inner..]) {
                *g = swiglu(*g, *u);
            }
            if quantise {
                // SAFETY: as above.
                unsafe { q8.fill(e, gate) };
            }
        }
    });

    let hidden = Operand {
        f32s: &buffers.gate,
        q8: quantise.then_some(&buffers.q8),
    };
    let down = Parts::new(&mut buffers.down);
    let cut = pieces(groups.len(), d, threads);
    workers.pool.ranges(cut.len(), 1, |thread, range| {
        // SAFETY: each thread has its own scratch.
        let scratch = unsafe { &mut scratch.part(thread, 1)[0] };
        for (group, rows) in &cut[range] {
            let (expert, entries) = &groups[*group];
            let first = expert * d;
            let w_rows = first + rows.start..first + rows.end;
            kernels.product(w.down, w_rows, hidden, entries, scratch, |e, j, value| {
                // SAFETY: one piece owns (entry, row of the weight).
                unsafe { down.set(e * d + j - first, value) };
            });
        }
    });

    // In the order of the choices, whatever order the experts ran in.
    let (down, out) = (&buffers.down, Parts::new(out));
    workers.pool.ranges(ids.len() / k, 16, |_, range| {
        for t in range {
            // SAFETY: one range owns row `t`.
            let out = unsafe { out.part(t * d, d) };
            out.fill(0.0);
            for e in t * k..(t + 1) * k {
                kernels.axpy(out, weights[e], &down[e * d..][..d]);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_gathered_by_expert_in_order() {
        let groups = by_expert(&[3, 1, 1, 2, 3, 0]);
        let expected = [(0, vec![5]), (1, vec![1, 2]), (2, vec![3]), (3, vec![0, 4])];
        assert_eq!(groups, expected);
    }

    #[test]
    fn pieces_tile_every_group() {
        let cut = pieces(2, 100, 2);
        for g in 0..2 {
            let rows: Vec<usize> = cut
                .iter()
                .filter(|p| p.0 == g)
                .flat_map(|p| p.1.clone())
                .collect();
            assert_eq!(rows, (0..100).collect::<Vec<_>>());
        }
    }
}
