//! The innermost loops: one weight row against a few rows of activations.
//!
//! Every row of activations has its own accumulators, so its result does not depend on which others are in the call. In the
//! integer kernels, eight f32 lanes hold sums of four products each; AVX2 and VNNI fill them alike and give the same bits.

use super::q8::Q8Row;
use super::unpack::Row;

/// Rows of activations that one pass over a weight row serves.
pub(crate) const TILE: usize = 4;

/// A set of inner loops.
pub(crate) trait Dots {
    /// `Σ w[i] · x[n][i]` for quantised activations.
    fn q8<const N: usize>(w: &Row, x: [Q8Row<'_>; N]) -> [f32; N];
    /// `Σ w[i] · x[i]`.
    fn f32(w: &[f32], x: &[f32]) -> f32;
    /// `acc += a · x`.
    fn axpy(acc: &mut [f32], a: f32, x: &[f32]);
}

/// The part of a quantised product that comes from the weights' offsets.
#[inline(always)]
fn offsets(w: &Row, x: &Q8Row<'_>) -> f32 {
    w.offset.iter().zip(x.ds).map(|(o, ds)| o * ds).sum()
}

/// Portable loops.
pub(crate) struct Scalar;

impl Dots for Scalar {
    #[inline(always)]
    fn q8<const N: usize>(w: &Row, x: [Q8Row<'_>; N]) -> [f32; N] {
        x.map(|x| {
            let mut sum = 0.0;
            for (i, (w16, x16)) in w.q.chunks_exact(16).zip(x.q.chunks_exact(16)).enumerate() {
                let dot: i32 = w16
                    .iter()
                    .zip(x16)
                    .map(|(w, x)| i32::from(*w) * i32::from(*x))
                    .sum();
                sum += w.scale[i] * x.d[i / 2] * dot as f32;
            }
            sum + offsets(w, &x)
        })
    }

    #[inline(always)]
    fn f32(w: &[f32], x: &[f32]) -> f32 {
        glim_plan::reference::math::dot(w, x)
    }

    #[inline(always)]
    fn axpy(acc: &mut [f32], a: f32, x: &[f32]) {
        glim_plan::reference::math::axpy(acc, a, x);
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Vnni};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Dots, Q8Row, Row, offsets};

    /// AVX2 and FMA. Only instantiated in functions that enable them (see `matmul::dispatch`).
    pub(crate) struct Avx2;
    /// The same with VNNI.
    pub(crate) struct Vnni;

    /// Sums of four products in each of eight lanes: `|w| · sign(x, w)`, whose first factor is unsigned as the instructions ask.
    /// 127 · 128 · 2 still fits the 16 bits that AVX2's first step has.
    trait FourProducts {
        /// # Safety
        /// - The instructions of the set are available.
        unsafe fn sum(w_abs: __m256i, x_signed: __m256i) -> __m256i;
    }

    impl FourProducts for Avx2 {
        #[inline(always)]
        unsafe fn sum(w_abs: __m256i, x_signed: __m256i) -> __m256i {
            // SAFETY: AVX2 by contract.
            unsafe {
                _mm256_madd_epi16(_mm256_maddubs_epi16(w_abs, x_signed), _mm256_set1_epi16(1))
            }
        }
    }

    impl FourProducts for Vnni {
        #[inline(always)]
        unsafe fn sum(w_abs: __m256i, x_signed: __m256i) -> __m256i {
            // SAFETY: AVX-512 VNNI and VL by contract.
            unsafe { _mm256_dpbusd_epi32(_mm256_setzero_si256(), w_abs, x_signed) }
        }
    }

    #[inline(always)]
    fn horizontal(v: __m256) -> f32 {
        let mut lanes = [0f32; 8];
        // SAFETY: eight floats of room, unaligned store; AVX by the caller's instruction set.
        unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), v) };
        (lanes[0] + lanes[4])
            + (lanes[2] + lanes[6])
            + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]))
    }

    #[inline(always)]
    fn q8<F: FourProducts, const N: usize>(w: &Row, x: [Q8Row<'_>; N]) -> [f32; N] {
        let blocks = w.q.len() / 32;
        for x in &x {
            assert!(
                x.q.len() == w.q.len() && x.d.len() == blocks,
                "rows are of one length"
            );
        }
        assert!(w.scale.len() == 2 * blocks, "two scales a block");
        // SAFETY: AVX2 and FMA (and VNNI) are enabled where this is instantiated. Block `b < blocks` reads bytes
        // `32b..32b+32` of rows whose lengths are asserted above, and scales `2b`, `2b + 1`.
        unsafe {
            let mut acc = [_mm256_setzero_ps(); N];
            for b in 0..blocks {
                let wq = _mm256_loadu_si256(w.q.as_ptr().add(32 * b).cast());
                let w_abs = _mm256_abs_epi8(wq);
                let low = _mm_set1_ps(*w.scale.get_unchecked(2 * b));
                let high = _mm_set1_ps(*w.scale.get_unchecked(2 * b + 1));
                let scale = _mm256_set_m128(high, low);
                for n in 0..N {
                    let xq = _mm256_loadu_si256(x[n].q.as_ptr().add(32 * b).cast());
                    let sums = F::sum(w_abs, _mm256_sign_epi8(xq, wq));
                    let scale = _mm256_mul_ps(scale, _mm256_set1_ps(*x[n].d.get_unchecked(b)));
                    acc[n] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums), scale, acc[n]);
                }
            }
            let mut out = [0f32; N];
            for n in 0..N {
                out[n] = horizontal(acc[n]) + offsets(w, &x[n]);
            }
            out
        }
    }

    #[inline(always)]
    fn dot_f32(w: &[f32], x: &[f32]) -> f32 {
        assert!(w.len() == x.len(), "rows are of one length");
        let main = w.len() / 32 * 32;
        // SAFETY: AVX and FMA are enabled where this is instantiated; indices stay below `main`, within both slices.
        let sum = unsafe {
            let mut acc = [_mm256_setzero_ps(); 4];
            for i in (0..main).step_by(32) {
                for (j, acc) in acc.iter_mut().enumerate() {
                    let a = _mm256_loadu_ps(w.as_ptr().add(i + 8 * j));
                    let b = _mm256_loadu_ps(x.as_ptr().add(i + 8 * j));
                    *acc = _mm256_fmadd_ps(a, b, *acc);
                }
            }
            horizontal(_mm256_add_ps(
                _mm256_add_ps(acc[0], acc[1]),
                _mm256_add_ps(acc[2], acc[3]),
            ))
        };
        sum + w[main..]
            .iter()
            .zip(&x[main..])
            .map(|(a, b)| a * b)
            .sum::<f32>()
    }

    #[inline(always)]
    fn axpy(acc: &mut [f32], a: f32, x: &[f32]) {
        for (acc, x) in acc.iter_mut().zip(x) {
            *acc = a.mul_add(*x, *acc);
        }
    }

    impl Dots for Avx2 {
        #[inline(always)]
        fn q8<const N: usize>(w: &Row, x: [Q8Row<'_>; N]) -> [f32; N] {
            q8::<Self, N>(w, x)
        }

        #[inline(always)]
        fn f32(w: &[f32], x: &[f32]) -> f32 {
            dot_f32(w, x)
        }

        #[inline(always)]
        fn axpy(acc: &mut [f32], a: f32, x: &[f32]) {
            axpy(acc, a, x);
        }
    }

    impl Dots for Vnni {
        #[inline(always)]
        fn q8<const N: usize>(w: &Row, x: [Q8Row<'_>; N]) -> [f32; N] {
            q8::<Self, N>(w, x)
        }

        #[inline(always)]
        fn f32(w: &[f32], x: &[f32]) -> f32 {
            dot_f32(w, x)
        }

        #[inline(always)]
        fn axpy(acc: &mut [f32], a: f32, x: &[f32]) {
            axpy(acc, a, x);
        }
    }
}
