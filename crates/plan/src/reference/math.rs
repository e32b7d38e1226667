//! Leaf arithmetic on slices, in f32. Other backends use these where there is nothing to gain, or hold theirs against them.

/// Lanes of a sum: wide enough for any compiler to use vector registers, and the same for every caller, so that a product
/// does not depend on the batch it is in.
const LANES: usize = 16;

/// `Σ a[i] · b[i]`: sixteen running sums, added up pairwise at the end.
#[inline]
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    debug_assert_eq!(a.len(), b.len());
    let mut acc = [0f32; LANES];
    let (a_main, b_main) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let tail: f32 = a_main
        .remainder()
        .iter()
        .zip(b_main.remainder())
        .map(|(x, y)| x * y)
        .sum();
    for (x, y) in a_main.zip(b_main) {
        for i in 0..LANES {
            acc[i] += x[i] * y[i];
        }
    }
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            acc[i] += acc[i + width];
        }
        width /= 2;
    }
    acc[0] + tail
}

/// `acc += w · x`.
#[inline]
pub fn axpy(acc: &mut [f32], w: f32, x: &[f32]) {
    for (a, x) in acc.iter_mut().zip(x) {
        *a += w * x;
    }
}

/// `x · rsqrt(mean(x²) + eps) ⊙ w`.
#[inline]
pub fn rms_norm(x: &[f32], w: &[f32], eps: f32, out: &mut [f32]) {
    let scale = 1.0 / (dot(x, x) / x.len() as f32 + eps).sqrt();
    for ((o, x), w) in out.iter_mut().zip(x).zip(w) {
        *o = x * scale * w;
    }
}

/// `(x − mean) / sqrt(var + eps) ⊙ w + b`, with the variance of the population.
pub fn layer_norm(x: &[f32], w: &[f32], b: &[f32], eps: f32, out: &mut [f32]) {
    let n = x.len() as f32;
    let mean = x.iter().sum::<f32>() / n;
    let var = x.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / n;
    let scale = 1.0 / (var + eps).sqrt();
    for (((o, x), w), b) in out.iter_mut().zip(x).zip(w).zip(b) {
        *o = (x - mean) * scale * w + b;
    }
}

/// `1 / (1 + e^−x)`.
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// `silu(gate) · up`, `silu(z) = z · sigmoid(z)`.
pub fn swiglu(gate: f32, up: f32) -> f32 {
    gate * sigmoid(gate) * up
}

/// Softmax in place; the maximum is subtracted first.
#[inline]
pub fn softmax(x: &mut [f32]) {
    let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for v in x.iter_mut() {
        *v = (*v - max).exp();
        sum += *v;
    }
    for v in x {
        *v /= sum;
    }
}

/// Sines and cosines of one position: pair `i` turns by `position · theta^(−2i/n)`.
pub fn rope_angles(position: usize, theta: f32, n: usize) -> Vec<(f32, f32)> {
    let angle = |i: usize| {
        // Exponent, frequency and angle are rounded to f32, as in the implementations that these models were trained and
        // checked with: at position 1500 that moves an angle by 1e-4, which is enough to swap near-equal index choices.
        let power = f64::from(theta).powf(f64::from(2.0 * i as f32 / n as f32)) as f32;
        f64::from(position as f32 * (1.0 / power))
    };
    (0..n / 2)
        .map(angle)
        .map(|a| (a.sin() as f32, a.cos() as f32))
        .collect()
}

/// Rotates pairs of `x`; `half_split` pairs `(i, i + n/2)`, otherwise `(2i, 2i + 1)`.
pub fn rotate(x: &mut [f32], angles: &[(f32, f32)], half_split: bool) {
    let n = x.len();
    for (i, (sin, cos)) in angles.iter().enumerate() {
        let (a, b) = if half_split {
            (i, i + n / 2)
        } else {
            (2 * i, 2 * i + 1)
        };
        let (x0, x1) = (x[a], x[b]);
        x[a] = x0 * cos - x1 * sin;
        x[b] = x1 * cos + x0 * sin;
    }
}
