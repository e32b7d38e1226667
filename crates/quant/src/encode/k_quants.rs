//! The 256-element super-blocks: Q2_K, Q3_K, Q4_K, Q5_K, Q6_K.
//!
//! Each sub-block gets a scale (and a minimum) by a search of its own; those of the super-block then
//! become small integers with one f16 scale, and with what is left of them after that the codes are
//! chosen anew. Q2_K, Q4_K and Q5_K have minima, Q3_K and Q6_K have signed scales.
//!
//! What an error counts for depends on the element: without importance weights larger elements
//! count more, by a rule that each type has; with them it is the column's weight times `sqrt(σ² +
//! x²)`, where `σ²` is of the order of the super-block's variance (in Q6_K the weight alone).
//!
//! Source: `quantize_row_q2_K_ref` and its kin of ggml (`ggml-quants.c`, MIT), and `…_impl` with
//! weights; the order of the float operations is the same, so the bytes are. Layouts: see the
//! decoders.

use half::f16;

use super::{
    Encoded, TooLarge, Weights, check_magnitude, each_weighted_block, f16_bytes, pack_pairs,
    search::{
        Affine, MIN_MAGNITUDE, Scaled, Tries, affine, descend, extreme, nearest, positive,
        sum_of_squares, symmetric,
    },
};

/// Elements of a super-block.
const ELEMS: usize = 256;

/// With importance weights all types with minima try the same.
const WEIGHTED_TRIES: Tries = Tries {
    first: -0.9,
    step: 0.05,
    count: 37,
};

/// How a type with minima is encoded; sub-blocks have `N` elements.
struct WithMinima<const N: usize> {
    /// Largest code.
    top: f32,
    /// Largest code of a scale or a minimum.
    scale_top: f32,
    /// Without importance weights: candidates, weights of elements, and what a difference counts.
    tries: Tries,
    plain_weights: fn(&[f32; N]) -> [f32; N],
    deviation: Deviation,
    /// With importance weights: `σ²` in variances.
    variances: f32,
}

#[derive(Clone, Copy)]
enum Deviation {
    Absolute,
    Squared,
}

const Q2_K: WithMinima<16> = WithMinima {
    top: 3.0,
    scale_top: 15.0,
    tries: Tries {
        first: -0.5,
        step: 0.1,
        count: 16,
    },
    plain_weights: |x| x.map(f32::abs),
    deviation: Deviation::Absolute,
    variances: 1.0,
};

const Q4_K: WithMinima<32> = WithMinima {
    top: 15.0,
    scale_top: 63.0,
    tries: Tries {
        first: -1.0,
        step: 0.1,
        count: 21,
    },
    plain_weights: magnitude_and_average,
    deviation: Deviation::Squared,
    variances: 2.0,
};

const Q5_K: WithMinima<32> = WithMinima {
    top: 31.0,
    tries: Q2_K.tries,
    ..Q4_K
};

/// `|x|` and the root of the mean square.
fn magnitude_and_average(x: &[f32; 32]) -> [f32; 32] {
    let average = (sum_of_squares(x) / 32.0).sqrt();
    x.map(|x| average + x.abs())
}

/// `w sqrt(σ² + x²)` of each sub-block's elements, where `σ²` is so many variances of them all.
fn importance<const SUBS: usize, const N: usize>(
    x: &[f32; ELEMS],
    weights: &[f32; ELEMS],
    variances: f32,
) -> [[f32; N]; SUBS] {
    let sigma2 = variances * sum_of_squares(x) / ELEMS as f32;
    let at = |e: usize| weights[e] * (sigma2 + x[e] * x[e]).sqrt();
    std::array::from_fn(|j| std::array::from_fn(|l| at(N * j + l)))
}

fn sum<const N: usize>(w: [f32; N]) -> f32 {
    w.iter().fold(0.0, |sum, w| sum + w)
}

/// A super-block whose scales and minima are integers times one f16 each.
struct Integers<const SUBS: usize> {
    d: [u8; 2],
    dmin: [u8; 2],
    scales: [u8; SUBS],
    mins: [u8; SUBS],
    codes: [u8; ELEMS],
}

/// A number as an f16 has it, and its bytes.
fn rounded(x: f32) -> Result<(f32, [u8; 2]), TooLarge> {
    let bytes = f16_bytes(x)?;
    Ok((f16::from_le_bytes(bytes).to_f32(), bytes))
}

/// Integers for numbers that are not negative, the largest of which becomes `top`.
fn largest_is_top<const SUBS: usize>(x: &[f32; SUBS], top: f32) -> Scaled<SUBS> {
    let max = x.iter().fold(0.0, |max: f32, &x| max.max(x));
    let inverse = if max > 0.0 { top / max } else { 0.0 };
    Scaled {
        scale: max / top,
        codes: x.map(|x| nearest(inverse * x, 0.0, top) as u8),
    }
}

/// Encodes a super-block of a type with minima, of `SUBS` sub-blocks of `N` elements.
fn with_minima<const SUBS: usize, const N: usize>(
    kind: &WithMinima<N>,
    x: &[f32; ELEMS],
    weights: Option<&[f32; ELEMS]>,
) -> Result<Integers<SUBS>, TooLarge> {
    const { assert!(SUBS * N == ELEMS) };
    check_magnitude(x)?;
    let (runs, _) = x.as_chunks::<N>();
    let counts: [[f32; N]; SUBS] = match weights {
        Some(weights) => importance(x, weights, kind.variances),
        None => std::array::from_fn(|j| (kind.plain_weights)(&runs[j])),
    };
    let fits: [Affine<N>; SUBS] = std::array::from_fn(|j| {
        let (x, w, top) = (&runs[j], &counts[j], kind.top);
        match (weights, kind.deviation) {
            (Some(_), _) => affine(x, w, top, WEIGHTED_TRIES, |d| d * d),
            (None, Deviation::Squared) => affine(x, w, top, kind.tries, |d| d * d),
            (None, Deviation::Absolute) => affine(x, w, top, kind.tries, f32::abs),
        }
    });

    let to_integers = |x: &[f32; SUBS]| match weights {
        Some(_) => positive(x, &counts.map(sum), kind.scale_top),
        None => largest_is_top(x, kind.scale_top),
    };
    let scales = to_integers(&fits.each_ref().map(|fit| fit.scale));
    let mins = to_integers(&fits.each_ref().map(|fit| fit.min));
    let (d, d_bytes) = rounded(scales.scale)?;
    let (dmin, dmin_bytes) = rounded(mins.scale)?;

    let mut codes = [0; ELEMS];
    let (code_runs, _) = codes.as_chunks_mut::<N>();
    for j in 0..SUBS {
        let scale = d * f32::from(scales.codes[j]);
        let min = dmin * f32::from(mins.codes[j]);
        code_runs[j] = if scale == 0.0 {
            fits[j].codes
        } else {
            runs[j].map(|x| nearest((x + min) / scale, 0.0, kind.top) as u8)
        };
    }
    Ok(Integers {
        d: d_bytes,
        dmin: dmin_bytes,
        scales: scales.codes,
        mins: mins.codes,
        codes,
    })
}

/// Q2_K: sixteen sub-blocks with 4-bit scales and minima; the sum of absolute differences counts,
/// each weighted by its element's magnitude.
pub(crate) fn q2_k(src: &[f32], weights: Weights<'_>, dst: &mut [u8]) -> Encoded {
    each_weighted_block(src, weights, dst, |x, w, block: &mut [u8; 84]| {
        let found = with_minima::<16, 16>(&Q2_K, x, w)?;
        let integers = found.scales.iter().zip(&found.mins);
        for (byte, (scale, min)) in block.iter_mut().zip(integers) {
            *byte = scale | min << 4;
        }
        pack_pairs(&found.codes, &mut block[16..80]);
        block[80..82].copy_from_slice(&found.d);
        block[82..84].copy_from_slice(&found.dmin);
        Ok(())
    })
}

/// The twelve bytes of 6-bit scales and minima that Q4_K and Q5_K share; the decoders say how.
fn pack_scales_and_mins(scales: &[u8; 8], mins: &[u8; 8]) -> [u8; 12] {
    std::array::from_fn(|i| match i {
        0..4 => scales[i] | scales[i + 4] >> 4 << 6,
        4..8 => mins[i - 4] | mins[i] >> 4 << 6,
        _ => scales[i - 4] & 0x0f | (mins[i - 4] & 0x0f) << 4,
    })
}

/// The low nibbles of codes: of each 64 the first 32 low, the others high.
fn pack_nibbles(codes: &[u8; ELEMS], qs: &mut [u8]) {
    for (i, q) in qs.iter_mut().enumerate() {
        let e = i / 32 * 64 + i % 32;
        *q = codes[e] & 0x0f | codes[e + 32] << 4;
    }
}

/// Q4_K: eight sub-blocks, codes 0 to 15.
pub(crate) fn q4_k(src: &[f32], weights: Weights<'_>, dst: &mut [u8]) -> Encoded {
    each_weighted_block(src, weights, dst, |x, w, block: &mut [u8; 144]| {
        let found = with_minima(&Q4_K, x, w)?;
        block[..2].copy_from_slice(&found.d);
        block[2..4].copy_from_slice(&found.dmin);
        block[4..16].copy_from_slice(&pack_scales_and_mins(&found.scales, &found.mins));
        pack_nibbles(&found.codes, &mut block[16..]);
        Ok(())
    })
}

/// Q5_K: eight sub-blocks, codes 0 to 31.
pub(crate) fn q5_k(src: &[f32], weights: Weights<'_>, dst: &mut [u8]) -> Encoded {
    each_weighted_block(src, weights, dst, |x, w, block: &mut [u8; 176]| {
        let found = with_minima(&Q5_K, x, w)?;
        block[..2].copy_from_slice(&found.d);
        block[2..4].copy_from_slice(&found.dmin);
        block[4..16].copy_from_slice(&pack_scales_and_mins(&found.scales, &found.mins));
        for l in 0..32 {
            block[16 + l] = (0..8).fold(0, |qh, j| qh | found.codes[32 * j + l] >> 4 << j);
        }
        pack_nibbles(&found.codes, &mut block[48..]);
        Ok(())
    })
}

/// Codes of sixteen elements for the scale that is left of theirs.
fn codes_for(x: &[f32; 16], fit: &Scaled<16>, scale: f32, half: f32) -> [u8; 16] {
    if scale == 0.0 {
        return fit.codes;
    }
    x.map(|x| (nearest(x / scale, -half, half - 1.0) + half) as u8)
}

/// Q3_K: sixteen sub-blocks with signed 6-bit scales, codes -4 to 3.
///
/// An element's square is its weight; a descent finds the codes. With importance weights there are
/// candidates instead, for the elements and once more for the scales.
pub(crate) fn q3_k(src: &[f32], weights: Weights<'_>, dst: &mut [u8]) -> Encoded {
    each_weighted_block(src, weights, dst, q3_k_block)
}

fn q3_k_block(
    x: &[f32; ELEMS],
    weights: Option<&[f32; ELEMS]>,
    block: &mut [u8; 110],
) -> Result<(), TooLarge> {
    check_magnitude(x)?;
    let (runs, _) = x.as_chunks::<16>();
    let counts = weights.map(|weights| importance::<16, 16>(x, weights, 2.0));
    let fits: [Scaled<16>; 16] = std::array::from_fn(|j| match &counts {
        Some(counts) => symmetric(&runs[j], &counts[j], 4.0),
        None => descend(&runs[j], 4.0),
    });
    let scales = fits.each_ref().map(|fit| fit.scale);
    let integers = match counts {
        Some(counts) => symmetric(&scales, &counts.map(sum), 32.0),
        None => extreme_is_lowest(&scales, 32.0),
    };
    let (d, d_bytes) = rounded(integers.scale)?;

    let mut codes = [0; ELEMS];
    let (code_runs, _) = codes.as_chunks_mut::<16>();
    for j in 0..16 {
        let scale = d * (f32::from(integers.codes[j]) - 32.0);
        code_runs[j] = codes_for(&runs[j], &fits[j], scale, 4.0);
    }
    for (l, mask) in block[..32].iter_mut().enumerate() {
        *mask = (0..8).fold(0, |mask, j| mask | codes[32 * j + l] >> 2 << j);
    }
    pack_pairs(&codes.map(|code| code & 0x03), &mut block[32..96]);
    block[96..108].copy_from_slice(&pack_q3_k_scales(&integers.codes));
    block[108..].copy_from_slice(&d_bytes);
    Ok(())
}

/// The twelve bytes of sixteen 6-bit scales; the decoder says how.
fn pack_q3_k_scales(scales: &[u8; 16]) -> [u8; 12] {
    std::array::from_fn(|i| match i {
        0..8 => scales[i] & 0x0f | (scales[i + 8] & 0x0f) << 4,
        _ => (0..4).fold(0, |byte, k| byte | scales[4 * k + i - 8] >> 4 << (2 * k)),
    })
}

/// Integers for signed numbers, the extreme of which becomes `-half`; stored as 0 to `2 * half - 1`.
fn extreme_is_lowest(x: &[f32; 16], half: f32) -> Scaled<16> {
    let extreme = extreme(x);
    if extreme == 0.0 {
        return Scaled {
            scale: 0.0,
            codes: [0; 16],
        };
    }
    let inverse = -half / extreme;
    Scaled {
        scale: 1.0 / inverse,
        codes: x.map(|x| (nearest(inverse * x, -half, half - 1.0) + half) as u8),
    }
}

/// Q6_K: sixteen sub-blocks with signed 8-bit scales, codes -32 to 31. An element's square is its
/// weight; a weight for importance takes its place.
pub(crate) fn q6_k(src: &[f32], weights: Weights<'_>, dst: &mut [u8]) -> Encoded {
    each_weighted_block(src, weights, dst, q6_k_block)
}

fn q6_k_block(
    x: &[f32; ELEMS],
    weights: Option<&[f32; ELEMS]>,
    block: &mut [u8; 210],
) -> Result<(), TooLarge> {
    check_magnitude(x)?;
    let (runs, _) = x.as_chunks::<16>();
    let squares = x.map(|x| x * x);
    let (counts, _) = weights.unwrap_or(&squares).as_chunks::<16>();
    let fits: [Scaled<16>; 16] = std::array::from_fn(|j| symmetric(&runs[j], &counts[j], 32.0));
    let scales = fits.each_ref().map(|fit| fit.scale);
    if extreme(&scales).abs() < MIN_MAGNITUDE {
        block.fill(0);
        return Ok(());
    }
    let integers = extreme_is_lowest(&scales, 128.0);
    let (d, d_bytes) = rounded(integers.scale)?;

    let mut codes = [0; ELEMS];
    let (code_runs, _) = codes.as_chunks_mut::<16>();
    for j in 0..16 {
        let scale = integers.codes[j].wrapping_sub(128) as i8;
        block[192 + j] = scale as u8;
        code_runs[j] = codes_for(&runs[j], &fits[j], d * f32::from(scale), 32.0);
    }
    for (i, ql) in block[..128].iter_mut().enumerate() {
        // Byte 64 n + 32 k + l: runs k and k + 2 of half n.
        let e = i / 64 * 128 + i % 64;
        *ql = codes[e] & 0x0f | codes[e + 64] << 4;
    }
    pack_pairs(&codes.map(|code| code >> 4), &mut block[128..192]);
    block[208..].copy_from_slice(&d_bytes);
    Ok(())
}
