//! Blocks of each integer type in vector registers: 32 signed bytes at a time, and their scale.
//!
//! Layouts: ggml-quants, as described in the quant crate; `unpack` has the same in portable code.

use std::arch::x86_64::*;

use glim_quant::tables::IQ4_LEVELS;

/// A weight type whose blocks are sub-blocks of 32 integers.
pub(super) trait Blocks {
    /// Bytes of a block.
    const BYTES: usize;
    /// Sub-blocks of a block.
    const SUBS: usize;
    /// Whether no integer is negative.
    const UNSIGNED: bool = false;
    /// Whether values have an offset.
    const OFFSETS: bool = false;

    /// Shows each sub-block, in order. Returns the sub-blocks' offsets, if the type has them: lane `j` is of sub-block `j`; all lanes
    /// are alike where a block is one sub-block.
    ///
    /// # Safety
    /// - AVX2, FMA and F16C.
    /// - `BYTES` bytes can be read at `block`.
    /// - The visitor can take the `SUBS` sub-blocks from its current place on.
    unsafe fn each(block: *const u8, visitor: &mut impl Visitor) -> __m256;
}

/// What is done with sub-blocks. A trait and not a closure, because methods can be made to be inlined: a closure that is not
/// inlined is compiled without the instructions.
pub(super) trait Visitor {
    /// Takes sub-block `j` of a block: 32 integers and their scale, whose lower four lanes are of elements 0..16, the upper four of
    /// 16..32. Must be `#[inline(always)]`.
    ///
    /// # Safety
    /// - AVX2, FMA and F16C.
    /// - The visitor can take sub-block `j` of its current block.
    unsafe fn take(&mut self, j: usize, q: __m256i, scale: __m256);
}

/// An f16 in all lanes.
///
/// # Safety
/// - AVX and F16C, and two bytes at `at`.
#[inline(always)]
unsafe fn half(at: *const u8) -> __m256 {
    // SAFETY: by contract.
    unsafe { _mm256_cvtph_ps(_mm_set1_epi16(at.cast::<i16>().read_unaligned())) }
}

/// 16 bytes to 32 nibbles: low ones first.
///
/// # Safety
/// - AVX2, and 16 bytes at `at`.
#[inline(always)]
unsafe fn nibbles(at: *const u8) -> __m256i {
    // SAFETY: by contract.
    unsafe {
        let bytes = _mm_loadu_si128(at.cast());
        let both = _mm256_set_m128i(_mm_srli_epi16(bytes, 4), bytes);
        _mm256_and_si256(both, _mm256_set1_epi8(15))
    }
}

/// The levels of IQ4 by nibble.
///
/// # Safety
/// - AVX2.
#[inline(always)]
unsafe fn levels(nibbles: __m256i) -> __m256i {
    // SAFETY: AVX2 by contract; the table has 16 bytes.
    unsafe {
        let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(IQ4_LEVELS.as_ptr().cast()));
        _mm256_shuffle_epi8(table, nibbles)
    }
}

pub(super) struct Q8_0;

impl Blocks for Q8_0 {
    const BYTES: usize = 34;
    const SUBS: usize = 1;

    #[inline(always)]
    unsafe fn each(block: *const u8, visitor: &mut impl Visitor) -> __m256 {
        // SAFETY: by contract: 2 + 32 bytes.
        unsafe {
            visitor.take(0, _mm256_loadu_si256(block.add(2).cast()), half(block));
            _mm256_setzero_ps()
        }
    }
}

pub(super) struct Q4_0;

impl Blocks for Q4_0 {
    const BYTES: usize = 18;
    const SUBS: usize = 1;

    #[inline(always)]
    unsafe fn each(block: *const u8, visitor: &mut impl Visitor) -> __m256 {
        // SAFETY: by contract: 2 + 16 bytes.
        unsafe {
            let q = _mm256_sub_epi8(nibbles(block.add(2)), _mm256_set1_epi8(8));
            visitor.take(0, q, half(block));
            _mm256_setzero_ps()
        }
    }
}

pub(super) struct Q4_1;

impl Blocks for Q4_1 {
    const BYTES: usize = 20;
    const SUBS: usize = 1;
    const UNSIGNED: bool = true;
    const OFFSETS: bool = true;

    #[inline(always)]
    unsafe fn each(block: *const u8, visitor: &mut impl Visitor) -> __m256 {
        // SAFETY: by contract: 2 + 2 + 16 bytes.
        unsafe {
            visitor.take(0, nibbles(block.add(4)), half(block));
            half(block.add(2))
        }
    }
}

/// All bits of byte `i` where bit `i` of the 32 at `at` is not set.
///
/// # Safety
/// - AVX2, and four bytes at `at`.
#[inline(always)]
unsafe fn clear_bits(at: *const u8) -> __m256i {
    // SAFETY: by contract.
    unsafe {
        // Byte `i` gets the eight bits that its own is among, then all but its own are masked.
        let bits = _mm256_set1_epi32(at.cast::<i32>().read_unaligned());
        let spread = _mm256_setr_epi8(
            0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, //
            2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3,
        );
        let mask = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
        let own = _mm256_and_si256(_mm256_shuffle_epi8(bits, spread), mask);
        _mm256_cmpeq_epi8(own, _mm256_setzero_si256())
    }
}

pub(super) struct Q5_0;

impl Blocks for Q5_0 {
    const BYTES: usize = 22;
    const SUBS: usize = 1;

    #[inline(always)]
    unsafe fn each(block: *const u8, visitor: &mut impl Visitor) -> __m256 {
        // SAFETY: by contract: 2 + 4 + 16 bytes.
        unsafe {
            // A value of five bits less 16 is the nibble if the fifth is set, otherwise the nibble less 16.
            let low = _mm256_and_si256(clear_bits(block.add(2)), _mm256_set1_epi8(-16));
            let q = _mm256_or_si256(nibbles(block.add(6)), low);
            visitor.take(0, q, half(block));
            _mm256_setzero_ps()
        }
    }
}

pub(super) struct Q5_1;

impl Blocks for Q5_1 {
    const BYTES: usize = 24;
    const SUBS: usize = 1;
    const UNSIGNED: bool = true;
    const OFFSETS: bool = true;

    #[inline(always)]
    unsafe fn each(block: *const u8, visitor: &mut impl Visitor) -> __m256 {
        // SAFETY: by contract: 2 + 2 + 4 + 16 bytes.
        unsafe {
            let fifth = _mm256_andnot_si256(clear_bits(block.add(4)), _mm256_set1_epi8(16));
            let q = _mm256_or_si256(nibbles(block.add(8)), fifth);
            visitor.take(0, q, half(block));
            half(block.add(2))
        }
    }
}

pub(super) struct Iq4Nl;

impl Blocks for Iq4Nl {
    const BYTES: usize = 18;
    const SUBS: usize = 1;

    #[inline(always)]
    unsafe fn each(block: *const u8, visitor: &mut impl Visitor) -> __m256 {
        // SAFETY: by contract: 2 + 16 bytes.
        unsafe {
            visitor.take(0, levels(nibbles(block.add(2))), half(block));
            _mm256_setzero_ps()
        }
    }
}

pub(super) struct Iq4Xs;

impl Blocks for Iq4Xs {
    const BYTES: usize = 136;
    const SUBS: usize = 8;

    #[inline(always)]
    unsafe fn each(block: *const u8, visitor: &mut impl Visitor) -> __m256 {
        // SAFETY: by contract: 2 + 2 + 4 + 128 bytes.
        unsafe {
            let high = i32::from(block.add(2).cast::<u16>().read_unaligned());
            let low = block.add(4).cast::<i32>().read_unaligned();
            // Lane `i` of the scales: nibble `i` of `low`, bits `2i` of `high` above it.
            let low = _mm256_srlv_epi32(
                _mm256_set1_epi32(low),
                _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28),
            );
            let high = _mm256_srlv_epi32(
                _mm256_set1_epi32(high),
                _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14),
            );
            let low = _mm256_and_si256(low, _mm256_set1_epi32(15));
            let high = _mm256_and_si256(high, _mm256_set1_epi32(3));
            let s = _mm256_or_si256(low, _mm256_slli_epi32(high, 4));
            let s = _mm256_sub_epi32(s, _mm256_set1_epi32(32));
            let scales = _mm256_mul_ps(half(block), _mm256_cvtepi32_ps(s));
            for j in 0..8 {
                let q = levels(nibbles(block.add(8 + 16 * j)));
                visitor.take(j, q, lane(scales, j));
            }
            _mm256_setzero_ps()
        }
    }
}

/// Lane `j` in all lanes.
///
/// # Safety
/// - AVX2.
#[inline(always)]
unsafe fn lane(v: __m256, j: usize) -> __m256 {
    // SAFETY: AVX2 by contract.
    unsafe { _mm256_permutevar8x32_ps(v, _mm256_set1_epi32(j as i32)) }
}

/// Eight bytes as floats.
///
/// # Safety
/// - AVX2.
#[inline(always)]
unsafe fn floats((low, high): (u32, u32)) -> __m256 {
    let bytes = u64::from(low) | u64::from(high) << 32;
    // SAFETY: AVX2 by contract.
    unsafe { _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bytes as i64))) }
}

/// Scales and offsets of the eight sub-blocks of Q4_K and Q5_K (ggml's `get_scale_min_k4`, four bytes at a time).
///
/// # Safety
/// - AVX2, FMA and F16C, and 16 bytes at `block`.
#[inline(always)]
unsafe fn k_scales(block: *const u8) -> (__m256, __m256) {
    const SIX: u32 = 0x3f3f_3f3f;
    const FOUR: u32 = 0x0f0f_0f0f;
    const TWO: u32 = 0x0303_0303;
    // SAFETY: by contract.
    unsafe {
        let word = |i: usize| block.add(4 + 4 * i).cast::<u32>().read_unaligned();
        let (a, b, c) = (word(0), word(1), word(2));
        let scales = (a & SIX, c & FOUR | (a >> 6 & TWO) << 4);
        let minima = (b & SIX, c >> 4 & FOUR | (b >> 6 & TWO) << 4);
        let minus = _mm256_xor_ps(half(block.add(2)), _mm256_set1_ps(-0.0));
        (
            _mm256_mul_ps(half(block), floats(scales)),
            _mm256_mul_ps(minus, floats(minima)),
        )
    }
}

pub(super) struct Q4K;

impl Blocks for Q4K {
    const BYTES: usize = 144;
    const SUBS: usize = 8;
    const UNSIGNED: bool = true;
    const OFFSETS: bool = true;

    #[inline(always)]
    unsafe fn each(block: *const u8, visitor: &mut impl Visitor) -> __m256 {
        // SAFETY: by contract: 4 + 12 + 128 bytes.
        unsafe {
            let (scales, offsets) = k_scales(block);
            let mask = _mm256_set1_epi8(15);
            for g in 0..4 {
                let bytes = _mm256_loadu_si256(block.add(16 + 32 * g).cast());
                let high = _mm256_srli_epi16(bytes, 4);
                visitor.take(2 * g, _mm256_and_si256(bytes, mask), lane(scales, 2 * g));
                visitor.take(
                    2 * g + 1,
                    _mm256_and_si256(high, mask),
                    lane(scales, 2 * g + 1),
                );
            }
            offsets
        }
    }
}

pub(super) struct Q5K;

impl Blocks for Q5K {
    const BYTES: usize = 176;
    const SUBS: usize = 8;
    const UNSIGNED: bool = true;
    const OFFSETS: bool = true;

    #[inline(always)]
    unsafe fn each(block: *const u8, visitor: &mut impl Visitor) -> __m256 {
        // SAFETY: by contract: 4 + 12 + 32 + 128 bytes.
        unsafe {
            let (scales, offsets) = k_scales(block);
            let (mask, one) = (_mm256_set1_epi8(15), _mm256_set1_epi8(1));
            let fifth = _mm256_loadu_si256(block.add(16).cast());
            for g in 0..4 {
                let bytes = _mm256_loadu_si256(block.add(48 + 32 * g).cast());
                for half in 0..2 {
                    let j = 2 * g + half;
                    let shift = _mm_cvtsi32_si128(4 * half as i32);
                    let low = _mm256_and_si256(_mm256_srl_epi16(bytes, shift), mask);
                    let bit = _mm256_srl_epi16(fifth, _mm_cvtsi32_si128(j as i32));
                    let bit = _mm256_slli_epi16(_mm256_and_si256(bit, one), 4);
                    visitor.take(j, _mm256_or_si256(low, bit), lane(scales, j));
                }
            }
            offsets
        }
    }
}

pub(super) struct Q6K;

impl Blocks for Q6K {
    const BYTES: usize = 210;
    const SUBS: usize = 8;

    #[inline(always)]
    unsafe fn each(block: *const u8, visitor: &mut impl Visitor) -> __m256 {
        // SAFETY: by contract: 128 + 64 + 16 + 2 bytes.
        unsafe {
            let d = half(block.add(208));
            let mask = _mm256_set1_epi8(15);
            let top = _mm256_set1_epi8(0x30);
            for n in 0..2 {
                let bytes = _mm_loadl_epi64(block.add(192 + 8 * n).cast());
                let scales = _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)));
                let a = _mm256_loadu_si256(block.add(64 * n).cast());
                let b = _mm256_loadu_si256(block.add(64 * n + 32).cast());
                let h = _mm256_loadu_si256(block.add(128 + 32 * n).cast());
                // The two upper bits of each, at bits 4 and 5.
                let parts = [
                    (a, _mm256_slli_epi16(h, 4)),
                    (b, _mm256_slli_epi16(h, 2)),
                    (_mm256_srli_epi16(a, 4), h),
                    (_mm256_srli_epi16(b, 4), _mm256_srli_epi16(h, 2)),
                ];
                for (i, (low, high)) in parts.into_iter().enumerate() {
                    let low = _mm256_and_si256(low, mask);
                    let q = _mm256_or_si256(low, _mm256_and_si256(high, top));
                    let q = _mm256_sub_epi8(q, _mm256_set1_epi8(32));
                    let (x, y) = (2 * i as i32, 2 * i as i32 + 1);
                    let halves = _mm256_setr_epi32(x, x, x, x, y, y, y, y);
                    visitor.take(4 * n + i, q, _mm256_permutevar8x32_ps(scales, halves));
                }
            }
            _mm256_setzero_ps()
        }
    }
}
