//! Index scores and latent attention, cut into pieces that threads take.
//!
//! A piece is one row's block of positions (scores) or a few of one row's heads (attention), so what it computes depends on
//! the row alone. Heads that are computed together share what is read of the cache, and nothing else.

use std::ops::Range;

use glim_plan::reference::attention::{Cached, relu};
use glim_plan::reference::math::softmax;

use crate::matmul::{Dots, Kernels, TILE, Task};

/// Positions that one piece scores.
const SCORE_PIECE: usize = 256;

/// Pieces of scores of rows at these positions: `(row, positions)`. Rows that see at most `unread` positions have none.
pub(crate) fn score_pieces(positions: &[usize], unread: usize) -> Vec<(usize, Range<usize>)> {
    let rows = positions.iter().enumerate();
    let pieces = |(t, position): (usize, &usize)| {
        let end = position + 1;
        (0..end)
            .step_by(SCORE_PIECE)
            .map(move |start| (t, start..(start + SCORE_PIECE).min(end)))
    };
    rows.filter(|(_, position)| **position >= unread)
        .flat_map(pieces)
        .collect()
}

/// `out[i] = Σ_h weights[h] · scale · relu(q[h] · key[positions.start + i])`.
pub(crate) fn scores(
    kernels: Kernels,
    q: &[f32],
    weights: &[f32],
    keys: &Cached<'_>,
    scale: f32,
    positions: Range<usize>,
    out: &mut [f32],
) {
    kernels.dispatch(Scores {
        q,
        weights,
        keys,
        scale,
        positions,
        out,
    });
}

struct Scores<'a> {
    q: &'a [f32],
    weights: &'a [f32],
    keys: &'a Cached<'a>,
    scale: f32,
    positions: Range<usize>,
    out: &'a mut [f32],
}

impl Task for Scores<'_> {
    type Out = ();

    #[inline(always)]
    fn run<D: Dots>(self, dots: D) {
        let dim = self.keys.width;
        let heads = self.q.chunks(TILE * dim).zip(self.weights.chunks(TILE));
        for (s, o) in self.positions.zip(self.out) {
            let key = self.keys.row(s);
            // Where `Iterator::sum` begins, which the reference uses.
            let mut sum = -0.0;
            let mut add = |products: &[f32], weights: &[f32]| {
                for (product, w) in products.iter().zip(weights) {
                    sum += w * self.scale * relu(*product);
                }
            };
            for (q, weights) in heads.clone() {
                let q = |h: usize| &q[h * dim..][..dim];
                match weights.len() {
                    1 => add(&dots.f32(key, [0].map(q)), weights),
                    2 => add(&dots.f32(key, [0, 1].map(q)), weights),
                    3 => add(&dots.f32(key, [0, 1, 2].map(q)), weights),
                    _ => add(&dots.f32(key, [0, 1, 2, 3].map(q)), weights),
                }
            }
            *o = sum;
        }
    }
}

/// The positions that a row attends to.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Chosen<'a> {
    /// All up to this one.
    UpTo(usize),
    /// These.
    These(&'a [i32]),
}

impl Chosen<'_> {
    fn len(self) -> usize {
        match self {
            Self::UpTo(last) => last + 1,
            Self::These(positions) => positions.len(),
        }
    }

    #[inline(always)]
    fn at(self, i: usize) -> usize {
        match self {
            Self::UpTo(_) => i,
            Self::These(positions) => positions[i] as usize,
        }
    }
}

/// One head of one row.
pub(crate) struct HeadRow<'a> {
    pub(crate) q_latent: &'a [f32],
    pub(crate) q_rope: &'a [f32],
    pub(crate) out: &'a mut [f32],
}

/// A few heads of absorbed attention over the given positions; `p` is room for their probabilities.
pub(crate) fn attend<const N: usize>(
    kernels: Kernels,
    heads: [HeadRow<'_>; N],
    latent: &Cached<'_>,
    chosen: Chosen<'_>,
    scale: f32,
    p: &mut Vec<f32>,
) {
    kernels.dispatch(Attend {
        heads,
        latent,
        chosen,
        scale,
        p,
    });
}

struct Attend<'a, const N: usize> {
    heads: [HeadRow<'a>; N],
    latent: &'a Cached<'a>,
    chosen: Chosen<'a>,
    scale: f32,
    p: &'a mut Vec<f32>,
}

impl<const N: usize> Task for Attend<'_, N> {
    type Out = ();

    #[inline(always)]
    fn run<D: Dots>(self, dots: D) {
        let Self {
            mut heads,
            latent,
            chosen,
            scale,
            p,
        } = self;
        let n = chosen.len();
        p.clear();
        p.resize(N * n, 0.0);
        let q_latent = heads.each_ref().map(|h| h.q_latent);
        let q_rope = heads.each_ref().map(|h| h.q_rope);
        let rank = q_latent[0].len();
        for i in 0..n {
            let (c, k_pe) = latent.row(chosen.at(i)).split_at(rank);
            let (c, k_pe) = (dots.f32(c, q_latent), dots.f32(k_pe, q_rope));
            for h in 0..N {
                p[h * n + i] = scale * (c[h] + k_pe[h]);
            }
        }
        p.chunks_exact_mut(n.max(1)).for_each(softmax);
        heads.iter_mut().for_each(|h| h.out.fill(0.0));
        let mut out = heads.map(|h| h.out);
        for i in 0..n {
            let c = &latent.row(chosen.at(i))[..rank];
            let mut weights = [0.0; N];
            for h in 0..N {
                weights[h] = p[h * n + i];
            }
            dots.axpy(out.each_mut().map(|o| &mut **o), weights, c);
        }
    }
}
