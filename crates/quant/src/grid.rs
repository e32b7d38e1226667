//! The types whose codes name rows of a grid: IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S.
//!
//! A super-block of 256 elements is eight groups `i` of 32, each of them four runs `l` of eight
//! elements, and a run is one row of eight (IQ1, IQ2) or two rows of four (IQ3). The IQ2 and IQ3
//! grids hold magnitudes: eight sign bits come from elsewhere, one for each element of the run, set
//! for minus. The IQ1 grid holds -1, 0 and 1, and all elements of a run are shifted by an eighth.
//!
//! All products are exact: at most 11 significant bits of `d`, 5 of the scale and 6 of the grid.
//! Layouts: `block_iq1_s` and its kin in ggml's `ggml-common.h`; order of the float operations:
//! `gguf/quants.py` of gguf-py 0.19.0.

use half::f16;

use crate::{
    blocks::{each_block, f16_at, u16_at, u32_at},
    tables::{
        IQ1_GRID, IQ2_S_GRID, IQ2_XS_GRID, IQ2_XXS_GRID, IQ3_S_GRID, IQ3_XXS_GRID, even_signs,
    },
};

/// By how much the elements of an IQ1 run are shifted, up or down, in units of the grid.
const IQ1_DELTA: f32 = 0.125;

/// Groups and runs of a super-block in order.
fn runs() -> impl Iterator<Item = (usize, usize)> {
    (0..8).flat_map(|i| (0..4).map(move |l| (i, l)))
}

/// Where run `l` of group `i` lies.
#[inline]
fn run_mut(out: &mut [f32; 256], i: usize, l: usize) -> &mut [f32] {
    &mut out[32 * i + 8 * l..][..8]
}

/// `scale * row`, negative where a bit of `signs` is set.
#[inline]
fn signed(out: &mut [f32], scale: f32, row: &[i8], signs: u8) {
    for (k, (x, &magnitude)) in out.iter_mut().zip(row).enumerate() {
        let sign = if signs >> k & 1 == 0 { 1.0 } else { -1.0 };
        *x = scale * f32::from(magnitude) * sign;
    }
}

/// A run of two rows of four.
#[inline]
fn signed_pair(out: &mut [f32], scale: f32, rows: [&[i8; 4]; 2], signs: u8) {
    let (first, second) = out.split_at_mut(4);
    signed(first, scale, rows[0], signs);
    signed(second, scale, rows[1], signs >> 4);
}

/// `scale * (row + delta)`.
#[inline]
fn shifted(out: &mut [f32], scale: f32, row: &[i8; 8], delta: f32) {
    for (x, &value) in out.iter_mut().zip(row) {
        *x = scale * (f32::from(value) + delta);
    }
}

/// The scale that the IQ2 types make of `d` and a 4-bit code.
#[inline]
fn iq2_scale(d: f32, code: u8) -> f32 {
    d * (0.5 + f32::from(code)) * 0.25
}

/// The scale of runs `2 * (l / 2)` and its neighbour in group `i`, of IQ2_XS and IQ2_S: a nibble
/// for two runs.
#[inline]
fn iq2_nibble_scale(d: f32, scales: &[u8], i: usize, l: usize) -> f32 {
    iq2_scale(d, scales[i] >> (4 * (l / 2)) & 0x0f)
}

/// IQ2_XXS, 66 bytes: `d`, for each group two u32 `rows` and `rest`. Byte `l` of `rows` is the row
/// of run `l`; `rest` holds seven bits of signs for each run and the scale in its top four.
pub(crate) fn iq2_xxs(src: &[u8], dst: &mut [f32]) {
    each_block(src, dst, |block: &[u8; 66], out: &mut [f32; 256]| {
        let d = f16_at(block, 0);
        for (i, l) in runs() {
            let (rows, rest) = (u32_at(block, 2 + 8 * i), u32_at(block, 6 + 8 * i));
            let row = &IQ2_XXS_GRID[usize::from((rows >> (8 * l)) as u8)];
            let scale = iq2_scale(d, (rest >> 28) as u8);
            let signs = even_signs((rest >> (7 * l)) as u8);
            signed(run_mut(out, i, l), scale, row, signs);
        }
    });
}

/// IQ2_XS, 74 bytes: `d`, u16 `qs[32]`, `scales[8]`. A u16 for each run: nine bits of row, seven of
/// signs.
pub(crate) fn iq2_xs(src: &[u8], dst: &mut [f32]) {
    each_block(src, dst, |block: &[u8; 74], out: &mut [f32; 256]| {
        let (d, scales) = (f16_at(block, 0), &block[66..74]);
        for (i, l) in runs() {
            let q = u16_at(block, 2 + 2 * (4 * i + l));
            let row = &IQ2_XS_GRID[usize::from(q & 0x1ff)];
            let scale = iq2_nibble_scale(d, scales, i, l);
            signed(run_mut(out, i, l), scale, row, even_signs((q >> 9) as u8));
        }
    });
}

/// IQ2_S, 82 bytes: `d`, `qs[32]`, `signs[32]`, `qh[8]`, `scales[8]`. The row of a run is its byte
/// of `qs` and two bits of its group's `qh`; its signs are a byte of their own.
pub(crate) fn iq2_s(src: &[u8], dst: &mut [f32]) {
    each_block(src, dst, |block: &[u8; 82], out: &mut [f32; 256]| {
        let (d, qs, signs) = (f16_at(block, 0), &block[2..34], &block[34..66]);
        let (qh, scales) = (&block[66..74], &block[74..82]);
        for (i, l) in runs() {
            let high = usize::from(qh[i] >> (2 * l) & 0x03);
            let row = &IQ2_S_GRID[usize::from(qs[4 * i + l]) | high << 8];
            let scale = iq2_nibble_scale(d, scales, i, l);
            signed(run_mut(out, i, l), scale, row, signs[4 * i + l]);
        }
    });
}

/// IQ3_XXS, 98 bytes: `d`, `qs[64]`, for each group a u32 of signs and scale as in IQ2_XXS. Bytes
/// `2 * l` and `2 * l + 1` of a group's eight in `qs` are the rows of run `l`.
pub(crate) fn iq3_xxs(src: &[u8], dst: &mut [f32]) {
    each_block(src, dst, |block: &[u8; 98], out: &mut [f32; 256]| {
        let (d, qs) = (f16_at(block, 0), &block[2..66]);
        for (i, l) in runs() {
            let rest = u32_at(block, 66 + 4 * i);
            let rows = [0, 1].map(|half| &IQ3_XXS_GRID[usize::from(qs[8 * i + 2 * l + half])]);
            let scale = d * (0.5 + f32::from((rest >> 28) as u8)) * 0.5;
            let signs = even_signs((rest >> (7 * l)) as u8);
            signed_pair(run_mut(out, i, l), scale, rows, signs);
        }
    });
}

/// IQ3_S, 110 bytes: `d`, `qs[64]`, `qh[8]`, `signs[32]`, `scales[4]`. As IQ3_XXS, but bit `n` of a
/// group's `qh` is the ninth bit of its row `n`, signs are a byte for each run, and scale a nibble
/// for each group.
pub(crate) fn iq3_s(src: &[u8], dst: &mut [f32]) {
    each_block(src, dst, |block: &[u8; 110], out: &mut [f32; 256]| {
        let (d, qs, qh) = (f16_at(block, 0), &block[2..66], &block[66..74]);
        let (signs, scales) = (&block[74..106], &block[106..110]);
        for (i, l) in runs() {
            let rows = [2 * l, 2 * l + 1].map(|n| {
                let high = usize::from(qh[i] >> n & 1);
                &IQ3_S_GRID[usize::from(qs[8 * i + n]) | high << 8]
            });
            let code = scales[i / 2] >> (4 * (i % 2)) & 0x0f;
            let scale = d * f32::from(1 + 2 * code);
            signed_pair(run_mut(out, i, l), scale, rows, signs[4 * i + l]);
        }
    });
}

/// IQ1_S, 50 bytes: `d`, `qs[32]`, u16 `qh[8]`. The row of a run is its byte of `qs` and three bits
/// of its group's `qh`; above these twelve bits `qh` has three of scale and one that shifts down.
pub(crate) fn iq1_s(src: &[u8], dst: &mut [f32]) {
    each_block(src, dst, |block: &[u8; 50], out: &mut [f32; 256]| {
        let (d, qs) = (f16_at(block, 0), &block[2..34]);
        for (i, l) in runs() {
            let qh = u16_at(block, 34 + 2 * i);
            let row = usize::from(qs[4 * i + l]) | usize::from(qh >> (3 * l) & 0x07) << 8;
            let scale = d * f32::from(2 * (qh >> 12 & 0x07) + 1);
            let delta = if qh & 0x8000 == 0 {
                IQ1_DELTA
            } else {
                -IQ1_DELTA
            };
            shifted(run_mut(out, i, l), scale, &IQ1_GRID[row], delta);
        }
    });
}

/// IQ1_M, 56 bytes: `qs[32]`, `qh[16]`, u16 `scales[4]`. `d` is an f16 whose nibbles are the top
/// ones of `scales`, the lowest first. A nibble of `qh` for each run: three bits of row, one that
/// shifts down. Below its top nibble a u16 of `scales` has three bits of scale for each of four
/// pairs of runs.
pub(crate) fn iq1_m(src: &[u8], dst: &mut [f32]) {
    each_block(src, dst, |block: &[u8; 56], out: &mut [f32; 256]| {
        let (qs, qh) = (&block[..32], &block[32..48]);
        let scales = [0, 1, 2, 3].map(|n| u16_at(block, 48 + 2 * n));
        let d = (0..4).fold(0, |bits, n| bits | (scales[n] >> 12) << (4 * n));
        let d = f16::from_bits(d).to_f32();
        for (i, l) in runs() {
            let high = qh[2 * i + l / 2] >> (4 * (l % 2));
            let row = usize::from(qs[4 * i + l]) | usize::from(high & 0x07) << 8;
            let code = scales[i / 2] >> (6 * (i % 2) + 3 * (l / 2)) & 0x07;
            let delta = if high & 0x08 == 0 {
                IQ1_DELTA
            } else {
                -IQ1_DELTA
            };
            shifted(
                run_mut(out, i, l),
                d * f32::from(2 * code + 1),
                &IQ1_GRID[row],
                delta,
            );
        }
    });
}
