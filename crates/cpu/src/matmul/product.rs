//! Products of weight rows with activation rows.
//!
//! With up to [`DIRECT`] rows of activations, weights are multiplied as they stream from memory, [`TILE`] rows at a time: after the first
//! tile a weight row lies in the nearest cache, still packed. With more, a few weight rows are unpacked into the thread's own buffer, which stays in its cache, and tiles of activations go over them: each weight is read from
//! memory once, each activation once for every few weight rows.
//!
//! No closure stands between a task's `run` and its inner loops: one that is not inlined is compiled without the instructions,
//! and then calls each of them as a function.

use std::ops::Range;

use glim_quant::GgmlType;

use super::Weight;
use super::dispatch::{Task, XRows};
use super::dots::{Dots, TILE};
use super::q8::Q8;
use super::unpack::Row;

/// Rows of activations up to which unpacking a weight again for each tile costs less than storing it unpacked once.
const DIRECT: usize = 2 * TILE;
/// Elements of the weight rows that are unpacked at a time: with their scales, a part of a core's second-level cache.
const ROOM: usize = 64 * 1024;
/// Weight rows that are unpacked at a time, at most.
const ROWS: usize = 16;

/// Weight rows of `k` elements to unpack at a time.
fn room(k: usize) -> usize {
    (ROOM / k.max(1)).clamp(1, ROWS)
}

/// Hands out the products of one weight row with a tile of activation rows.
#[inline(always)]
fn give<const N: usize>(
    out: &impl Fn(usize, usize, f32),
    first: usize,
    j: usize,
    values: [f32; N],
) {
    for (n, value) in values.into_iter().enumerate() {
        out(first + n, j, value);
    }
}

/// With 8-bit activations.
pub(super) struct Quantised<'a, R, O> {
    pub(super) w: &'a Weight,
    pub(super) w_rows: Range<usize>,
    pub(super) q8: &'a Q8,
    pub(super) x_rows: XRows<R>,
    pub(super) room: &'a mut Vec<Row>,
    pub(super) out: O,
}

impl<R: Fn(usize) -> usize, O: Fn(usize, usize, f32)> Task for Quantised<'_, R, O> {
    type Out = ();

    #[inline(always)]
    fn run<D: Dots>(self, dots: D) {
        let Self {
            w,
            w_rows,
            q8,
            x_rows,
            room: rows,
            out,
        } = self;
        let size = room(w.k);
        if rows.len() < size {
            rows.resize_with(size, Row::default);
        }
        rows[..size]
            .iter_mut()
            .for_each(|row| row.resize(w.ty, w.k));
        let x = |i: usize| q8.row((x_rows.at)(i));
        if x_rows.count <= DIRECT {
            for j in w_rows {
                let (blocks, row) = (w.row(j), &mut rows[0]);
                for i in (0..x_rows.count).step_by(TILE) {
                    match x_rows.count - i {
                        1 => give(&out, i, j, dots.q8_blocks(w.ty, blocks, [x(i)], row)),
                        2 => {
                            let x = [x(i), x(i + 1)];
                            give(&out, i, j, dots.q8_blocks(w.ty, blocks, x, row));
                        }
                        3 => {
                            let x = [x(i), x(i + 1), x(i + 2)];
                            give(&out, i, j, dots.q8_blocks(w.ty, blocks, x, row));
                        }
                        _ => {
                            let x = [x(i), x(i + 1), x(i + 2), x(i + 3)];
                            give(&out, i, j, dots.q8_blocks(w.ty, blocks, x, row));
                        }
                    }
                }
            }
            return;
        }
        for first in w_rows.clone().step_by(size) {
            let chunk = first..(first + size).min(w_rows.end);
            for (j, row) in chunk.clone().zip(rows.iter_mut()) {
                dots.unpack(w.ty, w.row(j), row);
            }
            for i in (0..x_rows.count).step_by(TILE) {
                for (j, row) in chunk.clone().zip(rows.iter()) {
                    match x_rows.count - i {
                        1 => give(&out, i, j, dots.q8(row, [x(i)])),
                        2 => give(&out, i, j, dots.q8(row, [x(i), x(i + 1)])),
                        3 => give(&out, i, j, dots.q8(row, [x(i), x(i + 1), x(i + 2)])),
                        _ => give(
                            &out,
                            i,
                            j,
                            dots.q8(row, [x(i), x(i + 1), x(i + 2), x(i + 3)]),
                        ),
                    }
                }
            }
        }
    }
}

/// With f32 activations.
pub(super) struct Floats<'a, R, O> {
    pub(super) w: &'a Weight,
    pub(super) w_rows: Range<usize>,
    pub(super) x: &'a [f32],
    pub(super) x_rows: XRows<R>,
    pub(super) decoded: &'a mut Vec<f32>,
    pub(super) out: O,
}

impl<R: Fn(usize) -> usize, O: Fn(usize, usize, f32)> Task for Floats<'_, R, O> {
    type Out = ();

    #[inline(always)]
    fn run<D: Dots>(self, dots: D) {
        let Self {
            w,
            w_rows,
            x,
            x_rows,
            decoded,
            out,
        } = self;
        let k = w.k;
        let plain = D::PLAIN && matches!(w.ty, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16);
        let size = if x_rows.count == 1 { 1 } else { room(k) };
        if !plain {
            decoded.resize(decoded.len().max(size * k), 0.0);
        }
        let x = |i: usize| &x[(x_rows.at)(i) * k..][..k];
        for first in w_rows.clone().step_by(size) {
            let chunk = first..(first + size).min(w_rows.end);
            if !plain {
                for (j, row) in chunk.clone().zip(decoded.chunks_exact_mut(k)) {
                    w.decode(j, row);
                }
            }
            for i in (0..x_rows.count).step_by(TILE) {
                for (slot, j) in chunk.clone().enumerate() {
                    macro_rules! dots {
                        ($x:expr) => {
                            match plain {
                                true => give(&out, i, j, dots.plain(w.ty, w.row(j), $x)),
                                false => give(&out, i, j, dots.f32(&decoded[slot * k..][..k], $x)),
                            }
                        };
                    }
                    match x_rows.count - i {
                        1 => dots!([x(i)]),
                        2 => dots!([x(i), x(i + 1)]),
                        3 => dots!([x(i), x(i + 1), x(i + 2)]),
                        _ => dots!([x(i), x(i + 1), x(i + 2), x(i + 3)]),
                    }
                }
            }
        }
    }
}
