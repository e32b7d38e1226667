//! How far fast arithmetic may be from the reference, and why. Exact arithmetic has one bound: no bit differs.
//!
//! The measure is the normalised mean squared error: the mean square of the differences over the mean square of the expected
//! values. Errors of independent roundings add in it, so the bound of an operation is the sum over its roundings.

/// One product with 8-bit activations. A value is rounded to a step of `max / 127`, `max` that of its block of 32: an error of
/// step² / 12 in the mean. A block's largest square is at most 32 times its mean, so the error is at most
/// 32 / (12 · 127²) = 1.65e-4 of the block's mean square, and passes through the product unchanged. (Values that are spread
/// evenly reach a tenth of it.)
pub(super) const EIGHT_BIT: f64 = 32.0 / (12.0 * 127.0 * 127.0);

/// An expert: gate, up and down are products with 8-bit activations; the gate's error passes through silu, whose slope is at
/// most 1.1, and so adds 1.1² of itself.
pub(super) const EXPERT: f64 = (1.1 * 1.1 + 2.0) * EIGHT_BIT;

/// A sum of up to 2^12 products in f32 in another order: each addition rounds by up to 2^-25 of the running sum in the mean,
/// and these errors add like a random walk: 2^12 · 2^-50.
pub(super) const SUM: f64 = 4096.0 / (1u64 << 50) as f64;

/// A softmax or a sigmoid of such sums, then a sum of them. Scores of size up to 8 carry their error into the exponential
/// undivided: 8² times that of a sum, once more for the sum, and the exponential's own few roundings.
pub(super) const SOFTMAX: f64 = 80.0 * SUM;

/// Copies, choices, single additions and multiplications: no freedom.
pub(super) const NONE: f64 = 0.0;

/// A single element may be off by this many times the root of the allowed mean square: six standard deviations.
pub(super) const ELEMENT: f64 = 6.0;
