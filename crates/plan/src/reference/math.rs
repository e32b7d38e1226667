//! Leaf arithmetic on slices, in f32.

/// Lanes of a sum: wide enough for any compiler to use vector registers, and the same for every caller, so that a product
/// does not depend on the batch it is in.
const LANES: usize = 16;

/// `Σ a[i] · b[i]`: sixteen running sums, added up pairwise at the end.
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
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
pub(crate) fn axpy(acc: &mut [f32], w: f32, x: &[f32]) {
    for (a, x) in acc.iter_mut().zip(x) {
        *a += w * x;
    }
}

/// `out[t][m] = x[t] · w[m]` for rows `x` of `k` and rows `w` of `k`.
pub(crate) fn matmul(x: &[f32], w: &[f32], k: usize, out: &mut [f32]) {
    let m = w.len() / k;
    for (j, w_row) in w.chunks_exact(k).enumerate() {
        for (t, x_row) in x.chunks_exact(k).enumerate() {
            out[t * m + j] = dot(x_row, w_row);
        }
    }
}

/// `x · rsqrt(mean(x²) + eps) ⊙ w`.
pub(crate) fn rms_norm(x: &[f32], w: &[f32], eps: f32, out: &mut [f32]) {
    let scale = 1.0 / (dot(x, x) / x.len() as f32 + eps).sqrt();
    for ((o, x), w) in out.iter_mut().zip(x).zip(w) {
        *o = x * scale * w;
    }
}

/// `(x − mean) / sqrt(var + eps) ⊙ w + b`, with the variance of the population.
pub(crate) fn layer_norm(x: &[f32], w: &[f32], b: &[f32], eps: f32, out: &mut [f32]) {
    let n = x.len() as f32;
    let mean = x.iter().sum::<f32>() / n;
    let var = x.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / n;
    let scale = 1.0 / (var + eps).sqrt();
    for (((o, x), w), b) in out.iter_mut().zip(x).zip(w).zip(b) {
        *o = (x - mean) * scale * w + b;
    }
}

pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// `silu(gate) · up`, `silu(z) = z · sigmoid(z)`.
pub(crate) fn swiglu(gate: f32, up: f32) -> f32 {
    gate * sigmoid(gate) * up
}

/// Softmax in place; the maximum is subtracted first.
pub(crate) fn softmax(x: &mut [f32]) {
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

/// Rotates pairs of `x` by `position · theta^(−2i/n)`; `half_split` pairs `(i, i + n/2)`, otherwise `(2i, 2i + 1)`.
pub(crate) fn rope(x: &mut [f32], position: i32, theta: f32, half_split: bool) {
    let n = x.len();
    for i in 0..n / 2 {
        // Frequency and angle are rounded to f32, as every implementation that these models were trained and checked with
        // does: at position 1500 that already moves an angle by 1e-4, which is enough to swap near-equal index choices.
        let frequency = 1.0 / (f64::from(theta).powf(f64::from(2.0 * i as f32 / n as f32)) as f32);
        let angle = f64::from(position as f32 * frequency);
        let (sin, cos) = (angle.sin() as f32, angle.cos() as f32);
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
