//! Index scores, their selection, and absorbed latent attention, for one row.

use super::math::{axpy, dot, softmax};
use super::moe::largest;

/// Cached rows of one sequence: position to row, through its block table.
pub struct Cached<'a> {
    /// All rows of the paged state.
    pub rows: &'a [f32],
    /// Elements of a row.
    pub width: usize,
    /// Physical block of each logical block.
    pub block_table: &'a [i32],
    /// Tokens in a block.
    pub block_size: usize,
}

impl Cached<'_> {
    /// The row of a position; the caller has checked that the block table covers it.
    pub fn row(&self, position: usize) -> &[f32] {
        let block = self.block_table[position / self.block_size] as usize;
        let slot = block * self.block_size + position % self.block_size;
        &self.rows[slot * self.width..][..self.width]
    }
}

/// Zero for what is negative. `f32::max` would also make a zero of NaN, and so hide a key that was never written.
pub fn relu(x: f32) -> f32 {
    if x < 0.0 { 0.0 } else { x }
}

/// `out[s] = Σ_h weights[h] · scale · relu(q[h] · key[s])` for the positions of `out`.
pub(crate) fn index_scores(
    q: &[f32],
    weights: &[f32],
    keys: &Cached<'_>,
    scale: f32,
    out: &mut [f32],
) {
    for (s, o) in out.iter_mut().enumerate() {
        let key = keys.row(s);
        *o = q
            .chunks_exact(keys.width)
            .zip(weights)
            .map(|(q, w)| w * scale * relu(dot(q, key)))
            .sum();
    }
}

/// Positions of the `topk` largest visible scores, ascending.
pub fn index_select(visible: &[f32], topk: usize) -> Vec<usize> {
    let mut positions = largest(visible, topk);
    positions.sort_unstable();
    positions
}

/// `out = Σ_s p_s · c_s` over the given positions, for one head: latent rows are `[c ‖ k_pe]`, `c` as wide as `q_latent`.
pub(crate) fn attend(
    q_latent: &[f32],
    q_rope: &[f32],
    latent: &Cached<'_>,
    positions: &[usize],
    scale: f32,
    out: &mut [f32],
) {
    let rank = q_latent.len();
    let mut p: Vec<f32> = positions
        .iter()
        .map(|s| {
            let row = latent.row(*s);
            scale * (dot(q_latent, &row[..rank]) + dot(q_rope, &row[rank..]))
        })
        .collect();
    softmax(&mut p);
    out.fill(0.0);
    for (s, p) in positions.iter().zip(p) {
        axpy(out, p, &latent.row(*s)[..rank]);
    }
}
