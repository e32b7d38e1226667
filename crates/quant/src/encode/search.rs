//! Searches for the scale (and minimum) that serve a run of elements best.
//!
//! For given codes the best scale is a least-squares fit; which codes are best depends on the scale
//! again. So a few candidate scales are tried, around the one that the extremes suggest: each fixes
//! the codes, the codes give the fitted scale, and the candidate with the smallest weighted error
//! wins. [`symmetric`] does this for types without minimum, [`affine`] for those with one. Where
//! that is too coarse (three bits), [`descend`] changes one code at a time for as long as the fit
//! gains.
//!
//! Source: `make_qx_quants`, `make_qkx2_quants`, `make_qkx3_quants`, `make_q3_quants` and
//! `make_qp_quants` of ggml (`ggml-quants.c`, MIT). Each candidate's sums are taken element by
//! element, in ggml's order of float operations, so the results are the same to the bit. Here
//! sixteen candidates go side by side, which vectorises without a change of that order.

use std::array;

/// Runs whose largest magnitude is below are zeros.
pub(super) const MIN_MAGNITUDE: f32 = 1e-15;

/// Candidates that are tried side by side. Lanes to spare repeat the last candidate, which changes
/// nothing: to be taken, a candidate has to be better than those before.
const LANES: usize = 16;

/// Rounds of [`descend`] and [`positive`] at most.
const MAX_ROUNDS: usize = 5;

/// The integer in `low ..= high` (integers themselves) that is nearest to `x`; halves go to the
/// even one, NaN becomes `low`.
///
/// Beside 1.5 * 2^23 an f32 has no bits for a fraction: the addition rounds. This takes no call and
/// no SSE4.1, unlike `round_ties_even`.
#[inline(always)]
pub(super) fn nearest(x: f32, low: f32, high: f32) -> f32 {
    const NO_FRACTION: f32 = 12_582_912.0;
    let x = if x > low { x } else { low };
    let x = if x < high { x } else { high };
    (x + NO_FRACTION) - NO_FRACTION
}

/// The element of largest magnitude, sign and all; the first of several.
pub(super) fn extreme(x: &[f32]) -> f32 {
    x.iter().fold(
        0.0,
        |max: f32, &x| if x.abs() > max.abs() { x } else { max },
    )
}

/// Sum of the squares, in order.
pub(super) fn sum_of_squares(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |sum, x| sum + x * x)
}

/// Of the inverse scales `candidate(0 .. tries)`, the one whose codes allow the smallest error, and
/// the scale that is fitted to these codes: `(scale, inverse)`.
///
/// `terms(inverse, x, w)` is what an element adds to `Σ w q x` and `Σ w q²`, where `q` is the level
/// that it takes with this inverse scale. The fitted scale is their quotient, and the larger `(Σ w
/// q x)² / Σ w q²`, the smaller the error.
#[inline(always)]
pub(super) fn best_scale<const N: usize>(
    x: &[f32; N],
    w: &[f32; N],
    tries: usize,
    candidate: impl Fn(usize) -> f32,
    terms: impl Fn(f32, f32, f32) -> (f32, f32),
) -> (f32, f32) {
    let mut found = (0.0, candidate(0));
    let mut best = -1.0; // the first candidate is better than none
    for first in (0..tries).step_by(LANES) {
        let inverse: [f32; LANES] = array::from_fn(|t| candidate((first + t).min(tries - 1)));
        let (mut qx, mut q2) = ([0f32; LANES], [0f32; LANES]);
        for (x, w) in x.iter().zip(w) {
            for t in 0..LANES {
                let (term_qx, term_q2) = terms(inverse[t], *x, *w);
                qx[t] += term_qx;
                q2[t] += term_q2;
            }
        }
        for t in 0..LANES {
            if q2[t] > 0.0 && qx[t] * qx[t] > best * q2[t] {
                let scale = qx[t] / q2[t];
                best = scale * qx[t];
                found = (scale, inverse[t]);
            }
        }
    }
    found
}

/// A scale and the codes it was fitted to.
#[derive(Clone, Copy)]
pub(super) struct Scaled<const N: usize> {
    pub(super) scale: f32,
    /// 0 to `2 * half - 1`, for the levels `-half` to `half - 1`.
    pub(super) codes: [u8; N],
}

impl<const N: usize> Scaled<N> {
    const ZERO: Self = Self {
        scale: 0.0,
        codes: [0; N],
    };
}

/// Fits `x ≈ scale * (code - half)`, each element weighted by `w`.
///
/// The candidates place the extreme at the level `-half` and up to 0.9 steps before or beyond, in
/// tenths.
pub(super) fn symmetric<const N: usize>(x: &[f32; N], w: &[f32; N], half: f32) -> Scaled<N> {
    let extreme = extreme(x);
    if extreme.abs() < MIN_MAGNITUDE {
        return Scaled::ZERO;
    }
    // 0, -9 ..= -1, 1 ..= 9
    let tenths = |t: usize| match t {
        0 => 0.0,
        1..=9 => t as f32 - 10.0,
        _ => t as f32 - 9.0,
    };
    let (scale, inverse) = best_scale(
        x,
        w,
        19,
        |t| -(half + 0.1 * tenths(t)) / extreme,
        |inverse, x, w| {
            let q = nearest(inverse * x, -half, half - 1.0);
            (w * x * q, w * q * q)
        },
    );
    let codes = x.map(|x| (nearest(inverse * x, -half, half - 1.0) + half) as u8);
    Scaled { scale, codes }
}

/// Fits `x ≈ scale * (code - half)`, each element weighted by its square, starting with the extreme
/// at the level `-half`.
pub(super) fn descend<const N: usize>(x: &[f32; N], half: f32) -> Scaled<N> {
    let extreme = extreme(x);
    if extreme.abs() < MIN_MAGNITUDE {
        return Scaled::ZERO;
    }
    let inverse = -half / extreme;
    let mut levels = x.map(|x| nearest(inverse * x, -half, half - 1.0));
    let (mut qx, mut q2) = (0.0, 0.0);
    for (x, q) in x.iter().zip(&levels) {
        let w = x * x;
        qx += w * x * q;
        q2 += w * q * q;
    }
    for _ in 0..MAX_ROUNDS {
        let mut changed = false;
        for (x, level) in x.iter().zip(&mut levels) {
            let w = x * x;
            // What the others want, and where that puts this one.
            let mut new_qx = qx - w * x * *level;
            if new_qx <= 0.0 {
                continue;
            }
            let mut new_q2 = q2 - w * *level * *level;
            let new = nearest(x * new_q2 / new_qx, -half, half - 1.0);
            if new == *level {
                continue;
            }
            new_qx += w * x * new;
            new_q2 += w * new * new;
            if new_q2 > 0.0 && new_qx * new_qx * q2 > qx * qx * new_q2 {
                (*level, qx, q2) = (new, new_qx, new_q2);
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    Scaled {
        scale: if q2 > 0.0 { qx / q2 } else { 0.0 },
        codes: levels.map(|q| (q + half) as u8),
    }
}

/// Fits numbers that are not negative: `x ≈ scale * code`, codes 0 to `top`, each weighted by `w`.
pub(super) fn positive<const N: usize>(x: &[f32; N], w: &[f32; N], top: f32) -> Scaled<N> {
    let max = x.iter().fold(0.0, |max: f32, &x| max.max(x));
    if max < MIN_MAGNITUDE {
        return Scaled::ZERO;
    }
    // The scale itself is a candidate here, not yet the fit.
    let error = |inverse: f32| {
        let scale = 1.0 / inverse;
        x.iter().zip(w).fold(0.0, |sum, (x, w)| {
            let diff = x - scale * nearest(inverse * x, 0.0, top);
            sum + w * diff * diff
        })
    };
    let mut inverse = top / max;
    let mut best = error(inverse);
    for tenths in (-4i8..=4).filter(|&tenths| tenths != 0) {
        let candidate = (0.1 * f32::from(tenths) + top) / max;
        let error = error(candidate);
        if error < best {
            (best, inverse) = (error, candidate);
        }
    }
    let mut codes = x.map(|x| nearest(inverse * x, 0.0, top));
    let (mut qx, mut q2) = (0.0, 0.0);
    for ((x, w), q) in x.iter().zip(w).zip(&codes) {
        qx += w * x * q;
        q2 += w * q * q;
    }
    for _ in 0..MAX_ROUNDS {
        let mut changed = false;
        for ((x, w), code) in x.iter().zip(w).zip(&mut codes) {
            let mut new_qx = qx - w * x * *code;
            let mut new_q2 = q2 - w * *code * *code;
            if !(new_qx > 0.0 && new_q2 > 0.0) {
                continue;
            }
            let new = nearest(x * new_q2 / new_qx, 0.0, top);
            if new == *code {
                continue;
            }
            new_qx += w * x * new;
            new_q2 += w * new * new;
            if new_qx * new_qx * q2 > qx * qx * new_q2 {
                (*code, qx, q2) = (new, new_qx, new_q2);
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    Scaled {
        scale: if q2 > 0.0 { qx / q2 } else { 0.0 },
        codes: codes.map(|code| code as u8),
    }
}

/// Which candidates [`affine`] tries: those that divide the range into `top + first + step * t`
/// steps, `t` from 0 to `count - 1`.
#[derive(Clone, Copy)]
pub(super) struct Tries {
    pub(super) first: f32,
    pub(super) step: f32,
    pub(super) count: usize,
}

/// A scale, a minimum, and the codes they were fitted to.
#[derive(Clone, Copy)]
pub(super) struct Affine<const N: usize> {
    pub(super) scale: f32,
    /// What is *subtracted*: at least 0.
    pub(super) min: f32,
    /// 0 to `top`.
    pub(super) codes: [u8; N],
}

/// Fits `x ≈ scale * code - min`, each element's `deviation(difference)` weighted by `w`; `min` is
/// not negative, so elements that are all positive are fitted from zero.
#[inline(always)]
pub(super) fn affine<const N: usize>(
    x: &[f32; N],
    w: &[f32; N],
    top: f32,
    tries: Tries,
    deviation: impl Fn(f32) -> f32,
) -> Affine<N> {
    let (mut lowest, mut highest) = (x[0], x[0]);
    let (mut sum_w, mut sum_x) = (w[0], w[0] * x[0]);
    for (&x, &w) in x.iter().zip(w).skip(1) {
        lowest = if x < lowest { x } else { lowest };
        highest = if x > highest { x } else { highest };
        sum_w += w;
        sum_x += w * x;
    }
    let mut min = if lowest > 0.0 { 0.0 } else { lowest };
    if highest <= min {
        return Affine {
            scale: 0.0,
            min: -min,
            codes: [0; N],
        };
    }

    // The extremes as they are, without a fit.
    let inverse = top / (highest - min);
    let mut scale = 1.0 / inverse;
    let mut codes = x.map(|x| nearest(inverse * (x - min), 0.0, top));
    let mut best = 0.0;
    for ((&x, &w), q) in x.iter().zip(w).zip(&codes) {
        best += w * deviation(scale * q + min - x);
    }
    // A better fit moves the minimum from which the candidates after it are measured, so those are
    // tried anew then.
    let mut first = 0;
    while first < tries.count {
        let inverse: [f32; LANES] = array::from_fn(|t| {
            let t = (first + t).min(tries.count - 1) as f32;
            (tries.first + tries.step * t + top) / (highest - min)
        });
        let (mut sum_q, mut sum_q2, mut sum_qx) = ([0f32; LANES], [0f32; LANES], [0f32; LANES]);
        for (&x, &w) in x.iter().zip(w) {
            for t in 0..LANES {
                let q = nearest(inverse[t] * (x - min), 0.0, top);
                sum_q[t] += w * q;
                sum_q2[t] += w * q * q;
                sum_qx[t] += w * q * x;
            }
        }
        // The normal equations. The determinant is 0 where all codes are the same.
        let (mut determinants, mut scales, mut mins) =
            ([0f32; LANES], [0f32; LANES], [0f32; LANES]);
        for t in 0..LANES {
            let determinant = sum_w * sum_q2[t] - sum_q[t] * sum_q[t];
            let scale = (sum_w * sum_qx[t] - sum_x * sum_q[t]) / determinant;
            let min = (sum_q2[t] * sum_x - sum_q[t] * sum_qx[t]) / determinant;
            let positive = min > 0.0;
            determinants[t] = determinant;
            scales[t] = if positive {
                sum_qx[t] / sum_q2[t]
            } else {
                scale
            };
            mins[t] = if positive { 0.0 } else { min };
        }
        let mut errors = [0f32; LANES];
        for (&x, &w) in x.iter().zip(w) {
            for t in 0..LANES {
                let q = nearest(inverse[t] * (x - min), 0.0, top);
                errors[t] += w * deviation(scales[t] * q + mins[t] - x);
            }
        }
        match (0..LANES).find(|&t| determinants[t] > 0.0 && errors[t] < best) {
            Some(t) => {
                best = errors[t];
                codes = x.map(|x| nearest(inverse[t] * (x - min), 0.0, top));
                (scale, min) = (scales[t], mins[t]);
                first += t + 1;
            }
            None => first += LANES,
        }
    }
    Affine {
        scale,
        min: -min,
        codes: codes.map(|q| q as u8),
    }
}
