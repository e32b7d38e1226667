//! Activations as 8-bit integers: one scale for each 32 elements.

use crate::shared::Parts;

/// Elements that share a scale: the block of every weight type that is multiplied as integers, or a part of it.
pub(crate) const BLOCK: usize = 32;

/// Rows of activations, rounded to `round(x / d)` in −127..=127 with `d = max |x| / 127` for each block.
#[derive(Debug, Default)]
pub(crate) struct Q8 {
    /// `[rows, k]`.
    pub(crate) q: Vec<i8>,
    /// `[rows, k / 32]`: scales.
    pub(crate) d: Vec<f32>,
    /// `[rows, k / 32]`: scale times sum of the block's integers, for weights with an offset.
    pub(crate) ds: Vec<f32>,
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
        self.k = k;
        self.q.resize(rows * k, 0);
        self.d.resize(rows * k / BLOCK, 0.0);
        self.ds.resize(rows * k / BLOCK, 0.0);
    }

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
    /// - No other thread fills row `t`.
    pub(crate) unsafe fn fill(&self, t: usize, x: &[f32]) {
        let n = self.k / BLOCK;
        // SAFETY: row `t` is this thread's alone.
        let (q, d, ds) = unsafe {
            (
                self.q.part(t * self.k, self.k),
                self.d.part(t * n, n),
                self.ds.part(t * n, n),
            )
        };
        for (b, x) in x.chunks_exact(BLOCK).enumerate() {
            let q = &mut q[b * BLOCK..][..BLOCK];
            let max = x
                .iter()
                .fold(0f32, |m, x| if x.abs() > m { x.abs() } else { m });
            let scale = max / 127.0;
            let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
            let mut sum = 0i32;
            let mut nan = false;
            for (q, x) in q.iter_mut().zip(x) {
                nan |= x.is_nan();
                let r = (x * inverse).round_ties_even() as i8;
                *q = r;
                sum += i32::from(r);
            }
            // A NaN must reach the result: a zero in its place would hide a buffer that was never written.
            d[b] = if nan || max.is_infinite() {
                f32::NAN
            } else {
                scale
            };
            ds[b] = d[b] * sum as f32;
        }
    }
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
    }

    #[test]
    fn zeros_stay_zero_and_nan_stays_visible() {
        assert_eq!(q8(&[0.0; 32]).d[0], 0.0);
        let mut x = [1.0; 32];
        x[5] = f32::NAN;
        assert!(q8(&x).d[0].is_nan());
        x[5] = f32::INFINITY;
        assert!(q8(&x).d[0].is_nan());
    }
}
