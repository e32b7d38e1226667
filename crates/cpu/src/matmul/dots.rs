//! The innermost loops, as a trait with one implementation for each set of instructions; and the portable one.
//!
//! Every row of activations has accumulators of its own, filled in an order that depends on the weight row alone. So a
//! result does not depend on which other rows are in the call, nor on which of the entry points served it: a product
//! straight from the blocks, and one with unpacked weights, give the same bits.

use glim_quant::GgmlType;

use super::q8::{BLOCK, Q8Row};
use super::unpack::Row;

/// Rows of activations that one pass over a weight row serves.
pub(crate) const TILE: usize = 4;

/// A set of inner loops. A value of the type is the proof that its instructions are there.
pub(crate) trait Dots: Copy {
    /// Whether [`Dots::plain`] is to be used; otherwise rows are decoded first.
    const PLAIN: bool;

    /// `Σ w[i] · x[n][i]` straight from a row of blocks of an integer type; `room` may be used to unpack it.
    fn q8_blocks<const N: usize>(
        self,
        ty: GgmlType,
        blocks: &[u8],
        x: [Q8Row<'_>; N],
        room: &mut Row,
    ) -> [f32; N];

    /// Unpacks a row of blocks of an integer type.
    fn unpack(self, ty: GgmlType, blocks: &[u8], row: &mut Row);

    /// `Σ w[i] · x[n][i]` for quantised activations.
    fn q8<const N: usize>(self, w: &Row, x: [Q8Row<'_>; N]) -> [f32; N];

    /// `Σ w[i] · x[n][i]`.
    fn f32<const N: usize>(self, w: &[f32], x: [&[f32]; N]) -> [f32; N];

    /// The same with a row of F32, F16 or BF16 as it lies in memory.
    fn plain<const N: usize>(self, ty: GgmlType, w: &[u8], x: [&[f32]; N]) -> [f32; N];

    /// `acc[n] += a[n] · x`.
    fn axpy<const N: usize>(self, acc: [&mut [f32]; N], a: [f32; N], x: &[f32]);
}

/// Portable loops, in the reference's order of summation where numbers are f32.
#[derive(Clone, Copy)]
pub(crate) struct Scalar;

impl Dots for Scalar {
    const PLAIN: bool = false;

    #[inline(always)]
    fn q8_blocks<const N: usize>(
        self,
        ty: GgmlType,
        blocks: &[u8],
        x: [Q8Row<'_>; N],
        room: &mut Row,
    ) -> [f32; N] {
        self.unpack(ty, blocks, room);
        self.q8(room, x)
    }

    #[inline(always)]
    fn unpack(self, ty: GgmlType, blocks: &[u8], row: &mut Row) {
        row.unpack(ty, blocks);
    }

    #[inline(always)]
    fn q8<const N: usize>(self, w: &Row, x: [Q8Row<'_>; N]) -> [f32; N] {
        let (w_blocks, _) = w.q.as_chunks::<BLOCK>();
        x.map(|x| {
            let (x_blocks, _) = x.q.as_chunks::<BLOCK>();
            let mut sum = 0.0;
            for (b, (w_block, x_block)) in w_blocks.iter().zip(x_blocks).enumerate() {
                for half in 0..2 {
                    let pairs = w_block[16 * half..][..16].iter().zip(&x_block[16 * half..]);
                    let dot: i32 = pairs.map(|(w, x)| i32::from(*w) * i32::from(*x)).sum();
                    sum += w.scale[8 * b + 4 * half] * x.d[b] * dot as f32;
                }
            }
            let offsets = w.offset.iter().zip(x.ds);
            sum + offsets.map(|(o, ds)| o * ds).sum::<f32>()
        })
    }

    #[inline(always)]
    fn f32<const N: usize>(self, w: &[f32], x: [&[f32]; N]) -> [f32; N] {
        x.map(|x| glim_plan::reference::math::dot(x, w))
    }

    fn plain<const N: usize>(self, ty: GgmlType, _: &[u8], _: [&[f32]; N]) -> [f32; N] {
        unreachable!("portable loops decode {ty} first")
    }

    #[inline(always)]
    fn axpy<const N: usize>(self, acc: [&mut [f32]; N], a: [f32; N], x: &[f32]) {
        for (acc, a) in acc.into_iter().zip(a) {
            glim_plan::reference::math::axpy(acc, a, x);
        }
    }
}
