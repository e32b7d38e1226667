//! Activations as 8-bit integers: one scale for each 32 elements.

use crate::shared::Parts;

/// Elements that share a scale: the block of every weight type that is multiplied as integers, or a part of it.
pub(crate) const BLOCK: usize = 32;

/// Rows of activations, rounded to `round(x / d)` in −127..=127 with `d = max |x| / 127` for each block.
///
/// A block with a NaN or an infinity has a NaN for its scale: what is not a number must reach the result, and a zero in its
/// place would hide a buffer that was never written.
#[derive(Debug, Default)]
pub(crate) struct Q8 {
    /// `[rows, k]`.
    q: Vec<i8>,
    /// `[rows, k / 32]`: scales.
    d: Vec<f32>,
    /// `[rows, k / 32]`: scale times sum of the block's integers, for weights with an offset.
    ds: Vec<f32>,
    k: usize,
}

/// One row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Q8Row<'a> {
    pub(crate) q: &'a [i8],
    pub(crate) d: &'a [f32],
    pub(crate) ds: &'a [f32],
}

impl Q8 {
    /// Makes room for `rows` rows of `k` elements, a multiple of the block.
    pub(crate) fn resize(&mut self, rows: usize, k: usize) {
        assert!(k.is_multiple_of(BLOCK), "rows are whole blocks");
        self.k = k;
        self.q.resize(rows * k, 0);
        self.d.resize(rows * k / BLOCK, 0.0);
        self.ds.resize(rows * k / BLOCK, 0.0);
    }

    #[inline(always)]
    pub(crate) fn row(&self, t: usize) -> Q8Row<'_> {
        let n = self.k / BLOCK;
        Q8Row {
            q: &self.q[t * self.k..][..self.k],
            d: &self.d[t * n..][..n],
            ds: &self.ds[t * n..][..n],
        }
    }

    /// For threads that fill rows.
    pub(crate) fn parts(&mut self) -> Q8Parts<'_> {
        let k = self.k;
        Q8Parts {
            q: Parts::new(&mut self.q),
            d: Parts::new(&mut self.d),
            ds: Parts::new(&mut self.ds),
            k,
        }
    }
}

/// Rows of a [`Q8`] that threads fill.
pub(crate) struct Q8Parts<'a> {
    q: Parts<'a, i8>,
    d: Parts<'a, f32>,
    ds: Parts<'a, f32>,
    k: usize,
}

impl Q8Parts<'_> {
    /// Rounds `x` into row `t`.
    ///
    /// # Safety
    /// - No other thread touches row `t`.
    #[inline(always)]
    pub(super) unsafe fn fill(&self, t: usize, x: &[f32]) {
        assert!(x.len() == self.k, "rows are of one length");
        let n = self.k / BLOCK;
        // SAFETY: row `t` is this thread's alone.
        let (q, d, ds) = unsafe {
            (
                self.q.part(t * self.k, self.k),
                self.d.part(t * n, n),
                self.ds.part(t * n, n),
            )
        };
        let (x, q) = (x.as_chunks::<BLOCK>().0, q.as_chunks_mut::<BLOCK>().0);
        for (((x, q), d), ds) in x.iter().zip(q).zip(d).zip(ds) {
            (*d, *ds) = block(x, q);
        }
    }
}

/// Rounds one block; gives its scale, and the scale times the sum of its integers.
#[inline(always)]
fn block(x: &[f32; BLOCK], q: &mut [i8; BLOCK]) -> (f32, f32) {
    // Bits without the sign order as the magnitudes do, with infinity above all numbers and NaN above infinity.
    let max = x
        .iter()
        .fold(0, |max: u32, x| max.max(x.to_bits() & 0x7fff_ffff));
    let max = f32::from_bits(max);
    let scale = max / 127.0;
    let (scale, inverse) = if !max.is_finite() {
        (f32::NAN, 0.0)
    } else if scale < f32::MIN_POSITIVE {
        // The inverse would be infinite. What is rounded to zero here is below 2^-119.
        (0.0, 0.0)
    } else {
        (scale, 1.0 / scale)
    };
    // Adding 1.5 · 2^23 rounds to an integer, ties to even, and leaves it in the low bits; |x / d| is at most 127.
    const MAGIC: f32 = 12_582_912.0;
    let mut sum = 0i32;
    for (q, x) in q.iter_mut().zip(x) {
        let r = ((x * inverse + MAGIC).to_bits() as i32).wrapping_sub(MAGIC.to_bits() as i32);
        *q = r as i8;
        sum += i32::from(r as i8);
    }
    (scale, scale * sum as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn q8(x: &[f32]) -> Q8 {
        let mut q8 = Q8::default();
        q8.resize(1, x.len());
        // SAFETY: one thread.
        unsafe { q8.parts().fill(0, x) };
        q8
    }

    #[test]
    fn blocks_keep_half_a_step() {
        let x: Vec<f32> = (0..64)
            .map(|i| ((i * 37 % 64) as f32 - 20.0) * 0.3)
            .collect();
        let q8 = q8(&x);
        for (i, x) in x.iter().enumerate() {
            let back = f32::from(q8.q[i]) * q8.d[i / BLOCK];
            assert!(
                (back - x).abs() <= 0.5001 * q8.d[i / BLOCK],
                "{i}: {back} for {x}"
            );
        }
        let sum: i32 = q8.q[..32].iter().map(|q| i32::from(*q)).sum();
        assert_eq!(q8.ds[0], q8.d[0] * sum as f32);
        let extremes = [1.0, -1.0].map(|x| i32::from(self::q8(&[x; 32]).q[0]));
        assert_eq!(extremes, [127, -127]);
    }

    #[test]
    fn rounding_is_to_nearest_even() {
        let mut x = [0.0; 32];
        x[..5].copy_from_slice(&[127.0, 0.5, 1.5, -2.5, 126.4]);
        assert_eq!(q8(&x).q[..5], [127, 0, 2, -2, 126]);
    }

    #[test]
    fn zeros_stay_zero_and_nan_stays_visible() {
        assert_eq!(q8(&[0.0; 32]).d[0], 0.0);
        for special in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for i in 0..32 {
                let mut x = [1.0; 64];
                x[i] = special;
                let q8 = q8(&x);
                assert!(q8.d[0].is_nan() && q8.ds[0].is_nan(), "{special} at {i}");
                assert!(!q8.d[1].is_nan());
            }
        }
    }

    #[test]
    fn the_smallest_and_the_largest_numbers_are_rounded_too() {
        let tiny = q8(&[f32::MIN_POSITIVE; 32]);
        assert_eq!((tiny.q[0], tiny.d[0]), (0, 0.0));
        let small = q8(&[-200.0 * f32::MIN_POSITIVE; 32]);
        assert_eq!(small.q[0], -127);
        let large = q8(&[f32::MAX; 32]);
        assert_eq!(large.q[0], 127);
        let back = f64::from(large.d[0]) * 127.0 / f64::from(f32::MAX);
        assert!((back - 1.0).abs() < 1e-6, "{back}");
    }
}
