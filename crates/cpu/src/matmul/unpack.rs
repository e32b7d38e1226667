//! Weight rows as 8-bit integers: every type that is multiplied as integers becomes `scale · q + offset` in blocks of 32.
//!
//! One product kernel then serves all types, and a row is unpacked once for all the activations it meets. This is the portable
//! code; where there are vector instructions, `blocks_avx2` does the same. Layouts: ggml-quants, as described in
//! the quant crate.

use glim_quant::GgmlType;
use glim_quant::tables::IQ4_LEVELS;
use half::f16;

use super::q8::BLOCK;

/// An unpacked row: `w[i] = scale[8·(i/32) + 4·((i%32)/16)] · q[i] + offset[i/32]`.
#[derive(Debug, Default)]
pub(crate) struct Row {
    /// `[k]`.
    pub(crate) q: Vec<i8>,
    /// `[k / 32, 8]`: four times the scale of the block's first half, four times that of the second, as lanes of a vector.
    pub(crate) scale: Vec<f32>,
    /// `[k / 32]`; empty for types without offsets.
    pub(crate) offset: Vec<f32>,
}

/// Types that are multiplied as integers.
pub(crate) fn is_integer(ty: GgmlType) -> bool {
    use GgmlType as T;
    matches!(
        ty,
        T::Q8_0
            | T::Q4_0
            | T::Q4_1
            | T::Q5_0
            | T::Q5_1
            | T::Q4_K
            | T::Q5_K
            | T::Q6_K
            | T::IQ4_NL
            | T::IQ4_XS
    )
}

fn has_offset(ty: GgmlType) -> bool {
    matches!(
        ty,
        GgmlType::Q4_1 | GgmlType::Q5_1 | GgmlType::Q4_K | GgmlType::Q5_K
    )
}

impl Row {
    /// Room for rows of `k` elements of `ty`.
    pub(crate) fn resize(&mut self, ty: GgmlType, k: usize) {
        self.q.resize(k, 0);
        self.scale.resize(k / BLOCK * 8, 0.0);
        self.offset
            .resize(if has_offset(ty) { k / BLOCK } else { 0 }, 0.0);
    }

    /// Unpacks one row of blocks.
    #[inline(always)]
    pub(crate) fn unpack(&mut self, ty: GgmlType, row: &[u8]) {
        match ty {
            GgmlType::Q8_0 => self.blocks::<34, 32>(row, q8_0),
            GgmlType::Q4_0 => self.blocks::<18, 32>(row, q4_0),
            GgmlType::Q4_1 => self.blocks::<20, 32>(row, q4_1),
            GgmlType::Q5_0 => self.blocks::<22, 32>(row, q5_0),
            GgmlType::Q5_1 => self.blocks::<24, 32>(row, q5_1),
            GgmlType::IQ4_NL => self.blocks::<18, 32>(row, iq4_nl),
            GgmlType::Q4_K => self.blocks::<144, 256>(row, q4_k),
            GgmlType::Q5_K => self.blocks::<176, 256>(row, q5_k),
            GgmlType::Q6_K => self.blocks::<210, 256>(row, q6_k),
            GgmlType::IQ4_XS => self.blocks::<136, 256>(row, iq4_xs),
            other => unreachable!("{other} is not multiplied as integers"),
        }
    }

    #[inline(always)]
    fn blocks<const BYTES: usize, const ELEMS: usize>(
        &mut self,
        row: &[u8],
        unpack: impl Fn(&[u8; BYTES], &mut [i8; ELEMS], &mut [f32], &mut [f32]),
    ) {
        let (blocks, _) = row.as_chunks::<BYTES>();
        let (q, _) = self.q.as_chunks_mut::<ELEMS>();
        let per_block = ELEMS / BLOCK;
        for (i, (block, q)) in blocks.iter().zip(q).enumerate() {
            let scale = &mut self.scale[i * 8 * per_block..][..8 * per_block];
            let offset = match self.offset.is_empty() {
                true => &mut [][..],
                false => &mut self.offset[i * per_block..][..per_block],
            };
            unpack(block, q, scale, offset);
        }
    }
}

#[inline(always)]
fn half(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

#[inline(always)]
fn word(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

#[inline(always)]
fn q8_0(block: &[u8; 34], q: &mut [i8; 32], scale: &mut [f32], _: &mut [f32]) {
    scale.fill(half(block, 0));
    for j in 0..32 {
        q[j] = block[2 + j] as i8;
    }
}

/// 16 bytes to 32 nibbles: low ones first.
#[inline(always)]
fn nibbles(qs: &[u8], q: &mut [i8; 32]) {
    for j in 0..16 {
        q[j] = (qs[j] & 15) as i8;
        q[j + 16] = (qs[j] >> 4) as i8;
    }
}

/// Adds bit `j` of `high` as bit 4 of element `j`.
#[inline(always)]
fn fifth_bits(high: u32, q: &mut [i8; 32]) {
    for (j, q) in q.iter_mut().enumerate() {
        *q |= ((high >> j & 1) << 4) as i8;
    }
}

#[inline(always)]
fn q4_0(block: &[u8; 18], q: &mut [i8; 32], scale: &mut [f32], _: &mut [f32]) {
    scale.fill(half(block, 0));
    nibbles(&block[2..], q);
    q.iter_mut().for_each(|q| *q -= 8);
}

#[inline(always)]
fn q4_1(block: &[u8; 20], q: &mut [i8; 32], scale: &mut [f32], offset: &mut [f32]) {
    scale.fill(half(block, 0));
    offset[0] = half(block, 2);
    nibbles(&block[4..], q);
}

#[inline(always)]
fn q5_0(block: &[u8; 22], q: &mut [i8; 32], scale: &mut [f32], _: &mut [f32]) {
    scale.fill(half(block, 0));
    nibbles(&block[6..], q);
    fifth_bits(word(block, 2), q);
    q.iter_mut().for_each(|q| *q -= 16);
}

#[inline(always)]
fn q5_1(block: &[u8; 24], q: &mut [i8; 32], scale: &mut [f32], offset: &mut [f32]) {
    scale.fill(half(block, 0));
    offset[0] = half(block, 2);
    nibbles(&block[8..], q);
    fifth_bits(word(block, 4), q);
}

#[inline(always)]
fn iq4_nl(block: &[u8; 18], q: &mut [i8; 32], scale: &mut [f32], _: &mut [f32]) {
    scale.fill(half(block, 0));
    nibbles(&block[2..], q);
    q.iter_mut()
        .for_each(|q| *q = IQ4_LEVELS[(*q & 15) as usize]);
}

/// The 6-bit scale and minimum of sub-block `j` (ggml's `get_scale_min_k4`).
#[inline(always)]
fn scale_min(s: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        (s[j] & 63, s[j + 4] & 63)
    } else {
        (
            (s[j + 4] & 15) | (s[j - 4] >> 6 << 4),
            (s[j + 4] >> 4) | (s[j] >> 6 << 4),
        )
    }
}

/// Scales and minima of the eight sub-blocks of Q4_K and Q5_K.
#[inline(always)]
fn k_scales(block: &[u8], scale: &mut [f32], offset: &mut [f32]) {
    let (d, dmin) = (half(block, 0), half(block, 2));
    for j in 0..8 {
        let (s, m) = scale_min(&block[4..16], j);
        scale[8 * j..][..8].fill(d * f32::from(s));
        offset[j] = -dmin * f32::from(m);
    }
}

/// 128 bytes to 256 nibbles: each 32 bytes give 32 low ones, then 32 high ones.
#[inline(always)]
fn k_nibbles(qs: &[u8], q: &mut [i8; 256]) {
    for g in 0..4 {
        for l in 0..32 {
            q[64 * g + l] = (qs[32 * g + l] & 15) as i8;
            q[64 * g + 32 + l] = (qs[32 * g + l] >> 4) as i8;
        }
    }
}

#[inline(always)]
fn q4_k(block: &[u8; 144], q: &mut [i8; 256], scale: &mut [f32], offset: &mut [f32]) {
    k_scales(block, scale, offset);
    k_nibbles(&block[16..], q);
}

#[inline(always)]
fn q5_k(block: &[u8; 176], q: &mut [i8; 256], scale: &mut [f32], offset: &mut [f32]) {
    k_scales(block, scale, offset);
    k_nibbles(&block[48..], q);
    let high = &block[16..48];
    for j in 0..8 {
        for l in 0..32 {
            q[32 * j + l] |= ((high[l] >> j & 1) << 4) as i8;
        }
    }
}

#[inline(always)]
fn q6_k(block: &[u8; 210], q: &mut [i8; 256], scale: &mut [f32], _: &mut [f32]) {
    let (low, high, scales) = (&block[..128], &block[128..192], &block[192..208]);
    let d = half(block, 208);
    for n in 0..2 {
        for l in 0..32 {
            let (a, b, h) = (low[64 * n + l], low[64 * n + 32 + l], high[32 * n + l]);
            let q = &mut q[128 * n..][..128];
            q[l] = ((a & 15) | ((h & 3) << 4)) as i8 - 32;
            q[32 + l] = ((b & 15) | ((h >> 2 & 3) << 4)) as i8 - 32;
            q[64 + l] = ((a >> 4) | ((h >> 4 & 3) << 4)) as i8 - 32;
            q[96 + l] = ((b >> 4) | ((h >> 6) << 4)) as i8 - 32;
        }
    }
    for (s, byte) in scale.chunks_exact_mut(4).zip(scales) {
        s.fill(d * f32::from(*byte as i8));
    }
}

#[inline(always)]
fn iq4_xs(block: &[u8; 136], q: &mut [i8; 256], scale: &mut [f32], _: &mut [f32]) {
    let d = half(block, 0);
    let high = u32::from(u16::from_le_bytes([block[2], block[3]]));
    for i in 0..8 {
        let low = block[4 + i / 2] >> (4 * (i % 2)) & 15;
        let s = i32::from(low) | ((high >> (2 * i) & 3) << 4) as i32;
        scale[8 * i..][..8].fill(d * (s - 32) as f32);
        for j in 0..16 {
            let byte = block[8 + 16 * i + j];
            q[32 * i + j] = IQ4_LEVELS[(byte & 15) as usize];
            q[32 * i + 16 + j] = IQ4_LEVELS[(byte >> 4) as usize];
        }
    }
}
