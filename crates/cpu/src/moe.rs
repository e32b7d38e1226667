//! Experts: rows are gathered by expert, so that an expert's weights are read once for all the rows that chose it.

use std::ops::Range;

use glim_plan::reference::math::swiglu;

use crate::matmul::q8::Q8;
use crate::matmul::{Operand, Weight, XRows};
use crate::shared::Parts;
use crate::step::Workers;

/// Room for one step's experts; bounded by rows × chosen experts.
#[derive(Debug, Default)]
pub(crate) struct ExpertBuffers {
    groups: Groups,
    /// `[entries, I]`, in the order of the groups, as all that follow.
    gate: Vec<f32>,
    up: Vec<f32>,
    q8: Q8,
    /// `[entries, D]`.
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

/// Choices sorted by expert. An entry is one choice of one row; a row that chose an expert twice has two entries in its group.
#[derive(Debug, Default)]
struct Groups {
    /// Choices (`row · k + i`) by expert, then in order.
    entries: Vec<usize>,
    /// Where each choice is in `entries`.
    places: Vec<usize>,
    /// Experts that were chosen, and their part of `entries`.
    groups: Vec<(usize, Range<usize>)>,
}

impl Groups {
    fn set(&mut self, ids: &[i32]) {
        self.entries.clear();
        self.entries.extend(0..ids.len());
        self.entries.sort_by_key(|choice| ids[*choice]);
        self.places.resize(ids.len(), 0);
        for (place, choice) in self.entries.iter().enumerate() {
            self.places[*choice] = place;
        }
        self.groups.clear();
        let mut start = 0;
        for group in self.entries.chunk_by(|a, b| ids[*a] == ids[*b]) {
            let end = start + group.len();
            self.groups.push((ids[group[0]] as usize, start..end));
            start = end;
        }
    }
}

/// Least weight rows that one piece multiplies.
const GRAIN: usize = 16;
/// Entries whose hidden values are worth a piece.
const HIDDEN: usize = 4;
/// Rows whose sums are worth a piece.
const SUMS: usize = 16;

/// How `rows` weight rows of each group are cut: pieces of a group, and weight rows of a piece.
fn pieces(rows: usize, threads: usize) -> (usize, usize) {
    let step = GRAIN.max(rows.div_ceil(threads * 4));
    (rows.div_ceil(step), step)
}

/// `out[t] = Σ_i weights[t, i] · down(silu(gate x) ⊙ up x)` of expert `ids[t, i]`, for rows `x` of `D`.
pub(crate) fn experts(
    workers: &mut Workers<'_>,
    buffers: &mut ExpertBuffers,
    w: ExpertWeights<'_>,
    x: &[f32],
    choice: Choice<'_>,
    out: &mut [f32],
) {
    let Choice { ids, weights, k } = choice;
    if ids.is_empty() {
        return;
    }
    let (inner, d, m) = (w.gate.shape[1], w.gate.k, w.down.shape[1]);
    let (kernels, threads) = (workers.kernels, workers.pool.threads());
    buffers.groups.set(ids);
    let Groups {
        entries,
        places,
        groups,
    } = &buffers.groups;
    buffers.gate.resize(ids.len() * inner, 0.0);
    buffers.up.resize(ids.len() * inner, 0.0);
    buffers.down.resize(ids.len() * m, 0.0);

    let rounded = workers.quantise(ids.len() / k, d, |t| &x[t * d..][..d], &[w.gate, w.up]);
    let operand = Operand {
        f32s: x,
        q8: rounded.then_some(&*workers.q8),
    };
    let scratch = Parts::new(workers.scratch);
    let (gate, up) = (Parts::new(&mut buffers.gate), Parts::new(&mut buffers.up));
    let (cuts, step) = pieces(inner, threads);
    workers
        .pool
        .ranges(groups.len() * cuts, 1, |thread, range| {
            // SAFETY: each thread has its own scratch.
            let scratch = unsafe { &mut scratch.part(thread, 1)[0] };
            for piece in range {
                let (expert, group) = &groups[piece / cuts];
                let start = piece % cuts * step;
                let first = expert * inner;
                let w_rows = first + start..first + (start + step).min(inner);
                let x_rows = XRows {
                    count: group.len(),
                    at: |i: usize| entries[group.start + i] / k,
                };
                for (weight, out) in [(w.gate, gate), (w.up, up)] {
                    kernels.product(
                        weight,
                        w_rows.clone(),
                        operand,
                        x_rows,
                        scratch,
                        |i, j, value| {
                            // SAFETY: one piece owns (entry, row of the weight).
                            unsafe { out.set((group.start + i) * inner + j - first, value) };
                        },
                    );
                }
            }
        });

    // SwiGLU, and its rounding if the next product wants that.
    let up = &buffers.up;
    let rounded = kernels.wants_q8(w.down);
    if rounded {
        buffers.q8.resize(ids.len(), inner);
    }
    let (gate, q8) = (Parts::new(&mut buffers.gate), buffers.q8.parts());
    workers.pool.ranges(ids.len(), HIDDEN, |_, range| {
        for e in range {
            // SAFETY: one range owns entry `e`.
            let gate = unsafe { gate.part(e * inner, inner) };
            for (g, u) in gate.iter_mut().zip(&up[e * inner..]) {
                *g = swiglu(*g, *u);
            }
            if rounded {
                // SAFETY: as above.
                unsafe { kernels.round(&q8, e, gate) };
            }
        }
    });

    let hidden = Operand {
        f32s: &buffers.gate,
        q8: rounded.then_some(&buffers.q8),
    };
    let down = Parts::new(&mut buffers.down);
    let (cuts, step) = pieces(m, threads);
    workers
        .pool
        .ranges(groups.len() * cuts, 1, |thread, range| {
            // SAFETY: each thread has its own scratch.
            let scratch = unsafe { &mut scratch.part(thread, 1)[0] };
            for piece in range {
                let (expert, group) = &groups[piece / cuts];
                let start = piece % cuts * step;
                let first = expert * m;
                let w_rows = first + start..first + (start + step).min(m);
                let x_rows = XRows {
                    count: group.len(),
                    at: |i: usize| group.start + i,
                };
                kernels.product(w.down, w_rows, hidden, x_rows, scratch, |i, j, value| {
                    // SAFETY: one piece owns (entry, row of the weight).
                    unsafe { down.set((group.start + i) * m + j - first, value) };
                });
            }
        });

    // In the order of the choices, whatever order the experts ran in.
    let (down, out) = (&buffers.down, Parts::new(out));
    workers.pool.ranges(ids.len() / k, SUMS, |_, range| {
        for t in range {
            // SAFETY: one range owns row `t`.
            let out = unsafe { out.part(t * m, m) };
            out.fill(0.0);
            for choice in t * k..(t + 1) * k {
                let down = &down[places[choice] * m..][..m];
                kernels.axpy([&mut *out], [weights[choice]], down);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_gathered_by_expert_in_order() {
        let mut groups = Groups::default();
        groups.set(&[9; 20]);
        groups.set(&[3, 1, 1, 2, 3, 0]);
        assert_eq!(groups.entries, [5, 1, 2, 3, 0, 4]);
        assert_eq!(groups.places, [4, 1, 2, 3, 5, 0]);
        let expected = [(0, 0..1), (1, 1..3), (2, 3..4), (3, 4..6)];
        assert_eq!(groups.groups, expected);
        groups.set(&[]);
        assert!(groups.groups.is_empty());
    }

    #[test]
    fn pieces_tile_every_group() {
        for (rows, threads) in [(1, 1), (16, 2), (17, 2), (100, 2), (2048, 8)] {
            let (cuts, step) = pieces(rows, threads);
            assert!((cuts - 1) * step < rows && cuts * step >= rows);
        }
    }
}
