//! AVX2 loops over plain floats: F32, F16 and BF16 weights as they lie in memory, and sums of scaled rows.

use std::arch::x86_64::*;

use half::{bf16, f16};

/// The sum of the lanes, pairwise.
///
/// # Safety
/// - AVX.
#[inline(always)]
pub(super) unsafe fn horizontal(v: __m256) -> f32 {
    let mut lanes = [0f32; 8];
    // SAFETY: eight floats of room, unaligned store; AVX by contract.
    unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), v) };
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

/// A weight row of plain floats.
pub(super) trait Floats {
    const BYTES: usize;
    /// Eight elements.
    ///
    /// # Safety
    /// - AVX2 and F16C, and eight elements lie at `at`.
    unsafe fn eight(at: *const u8) -> __m256;
    fn one(bytes: &[u8]) -> f32;
}

pub(super) struct F32;
pub(super) struct F16;
pub(super) struct Bf16;

impl Floats for F32 {
    const BYTES: usize = 4;

    #[inline(always)]
    unsafe fn eight(at: *const u8) -> __m256 {
        // SAFETY: by contract.
        unsafe { _mm256_loadu_ps(at.cast()) }
    }

    #[inline(always)]
    fn one(b: &[u8]) -> f32 {
        f32::from_le_bytes([b[0], b[1], b[2], b[3]])
    }
}

impl Floats for F16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn eight(at: *const u8) -> __m256 {
        // SAFETY: by contract.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(at.cast())) }
    }

    #[inline(always)]
    fn one(b: &[u8]) -> f32 {
        f16::from_le_bytes([b[0], b[1]]).to_f32()
    }
}

impl Floats for Bf16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn eight(at: *const u8) -> __m256 {
        // SAFETY: by contract.
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(at.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16))
        }
    }

    #[inline(always)]
    fn one(b: &[u8]) -> f32 {
        bf16::from_le_bytes([b[0], b[1]]).to_f32()
    }
}

/// Products of one row of floats with `N` rows: two accumulators of eight lanes for each, the rest one by one.
///
/// # Safety
/// - AVX2, FMA and F16C.
#[inline(always)]
pub(super) unsafe fn floats<W: Floats, const N: usize>(w: &[u8], x: [&[f32]; N]) -> [f32; N] {
    const STEP: usize = 16;
    let k = w.len() / W::BYTES;
    x.iter()
        .for_each(|x| assert!(x.len() == k, "rows are of one length"));
    let main = k / STEP * STEP;
    let mut out = [0f32; N];
    // SAFETY: the instructions by contract; sixteen elements from each `i` are within `main`, and so within all rows.
    unsafe {
        let mut acc = [[_mm256_setzero_ps(); N]; 2];
        for i in (0..main).step_by(STEP) {
            for (half, acc) in acc.iter_mut().enumerate() {
                let i = i + 8 * half;
                let w = W::eight(w.as_ptr().add(i * W::BYTES));
                for n in 0..N {
                    acc[n] = _mm256_fmadd_ps(w, _mm256_loadu_ps(x[n].as_ptr().add(i)), acc[n]);
                }
            }
        }
        for n in 0..N {
            out[n] = horizontal(_mm256_add_ps(acc[0][n], acc[1][n]));
        }
    }
    for (i, w) in w[main * W::BYTES..].chunks_exact(W::BYTES).enumerate() {
        let w = W::one(w);
        for n in 0..N {
            out[n] = w.mul_add(x[n][main + i], out[n]);
        }
    }
    out
}

/// `acc[n] += a[n] · x`, each element with one rounding.
///
/// # Safety
/// - AVX and FMA.
#[inline(always)]
pub(super) unsafe fn axpy<const N: usize>(acc: [&mut [f32]; N], a: [f32; N], x: &[f32]) {
    let acc = acc.map(|acc| acc.as_chunks_mut::<8>());
    let (x, x_rest) = x.as_chunks::<8>();
    acc.iter().for_each(|(acc, rest)| {
        assert!(
            acc.len() == x.len() && rest.len() == x_rest.len(),
            "rows are of one length"
        );
    });
    for (i, x) in x.iter().enumerate() {
        // SAFETY: the instructions by contract; arrays of eight floats, unaligned.
        unsafe {
            let x = _mm256_loadu_ps(x.as_ptr());
            for n in 0..N {
                let at = acc[n].0[i].as_mut_ptr();
                let sum = _mm256_fmadd_ps(_mm256_set1_ps(a[n]), x, _mm256_loadu_ps(at));
                _mm256_storeu_ps(at, sum);
            }
        }
    }
    for ((_, rest), a) in acc.into_iter().zip(a) {
        let pairs = rest.iter_mut().zip(x_rest);
        pairs.for_each(|(acc, x)| *acc = a.mul_add(*x, *acc));
    }
}
