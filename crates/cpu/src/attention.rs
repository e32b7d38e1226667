//! Index scores and latent attention, cut into pieces that threads take.
//!
//! A piece is one row's block of positions (scores) or one row's head (attention), so what it computes depends on the row
//! alone.

use std::ops::Range;

use glim_plan::reference::attention::{Cached, relu};
use glim_plan::reference::math::softmax;

use crate::matmul::Kernels;

/// Positions that one piece scores.
const SCORE_PIECE: usize = 256;

/// Pieces of scores of rows at these positions: `(row, positions)`.
pub(crate) fn score_pieces(positions: &[usize]) -> Vec<(usize, Range<usize>)> {
    let pieces = |(t, position): (usize, &usize)| {
        let end = position + 1;
        (0..end)
            .step_by(SCORE_PIECE)
            .map(move |start| (t, start..(start + SCORE_PIECE).min(end)))
    };
    positions.iter().enumerate().flat_map(pieces).collect()
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
    for (s, o) in positions.zip(out) {
        let key = keys.row(s);
        let heads = q.chunks_exact(keys.width).zip(weights);
        *o = heads
            .map(|(q, w)| w * scale * relu(kernels.dot(q, key)))
            .sum();
    }
}

/// One head of absorbed attention over the given positions; `p` is room for their probabilities.
#[expect(clippy::too_many_arguments, reason = "a leaf on slices")]
pub(crate) fn attend(
    kernels: Kernels,
    q_latent: &[f32],
    q_rope: &[f32],
    latent: &Cached<'_>,
    positions: &[i32],
    scale: f32,
    p: &mut Vec<f32>,
    out: &mut [f32],
) {
    let rank = q_latent.len();
    p.clear();
    p.extend(positions.iter().map(|s| {
        let row = latent.row(*s as usize);
        scale * (kernels.dot(q_latent, &row[..rank]) + kernels.dot(q_rope, &row[rank..]))
    }));
    softmax(p);
    out.fill(0.0);
    for (s, p) in positions.iter().zip(p) {
        kernels.axpy(out, *p, &latent.row(*s as usize)[..rank]);
    }
}
