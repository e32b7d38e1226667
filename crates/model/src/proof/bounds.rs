//! How far a stored block may be from the numbers that it was made of.
//!
//! **Element by element.** A block's scales say which numbers each of its elements can decode to: equally spaced ones in most types
//! (the *step* is what one code more adds), sixteen levels in IQ4 and FP4. Encoders choose scales, each by a search of its own, and
//! then take for every element the nearest number there is. So whoever made the block, with or without an importance matrix:
//!
//! ```text
//! |x - y| ≤ distance from x to the nearest number that x could decode to + slack
//! ```
//!
//! A flipped bit of a code moves an element by a step or more, and so does nearly every flipped bit of a scale for some element of the
//! block. The slack is for rounding: `2^-11` of the number itself, since Q8_0 and its kin choose codes by the
//! scale before it becomes an f16 and files are often made by way of F16; and a hundredth of a step for ties. For Q4_0 to Q5_1 it is three
//! steps: with an importance matrix their codes are those of the search, and the scale is fitted afterwards to the columns that count.
//!
//! **Block by block.** Bad scales leave every element the nearest number of a bad choice, so the error of the whole block must also be
//! comparable with what our encoder reaches on the same numbers: no more than [`TIMES_OURS`] its root mean square. Without an encoder
//! (IQ1 to IQ3, whose codes name rows of a grid and have no step), a block must be closer to the numbers than unrelated ones
//! are, whose errors add up: those of the same size are √2 of it away.
//!
//! **Two quantised files.** Nobody has the numbers. The two decoded blocks may be apart by the sum of what each may be off: half a step
//! of each element, times [`TIMES_HALF_STEPS`] for clipped extremes.
//!
//! How far importance matrices go was measured with ggml's own quantisers on the built-in model's experts and importances spread over
//! six decades, which is more than real ones have: 2.7 times our error (Q4_K), 2.7 steps (Q4_0), 1.02 of the numbers' size (IQ2_XXS).
//! Without one, ggml's blocks are ours, byte for byte.

use std::ops::Range;

use glim_quant::{GgmlType, dequantize, tables};

/// By how much another encoder's block, or one with an importance matrix, may be worse than ours, as root mean square.
pub(super) const TIMES_OURS: f64 = 4.0;
/// The same where there is no error of ours, in the worst error of rounding: that is √3 times its root mean square already.
const TIMES_HALF_STEPS: f64 = 2.0;
/// For ties between two codes, in steps.
const TIE: f64 = 0.01;
/// For codes that were chosen before the scale was fitted, in steps.
const FITTED: f64 = 3.0;
/// Rounding of a scale, or of the numbers, to f16: half a place of 11 bits.
const F16_ROUNDING: f64 = 1.0 / 2048.0;
/// The smallest f16: a scale below half of it is 0.
const F16_SMALLEST: f64 = 1.0 / (1u64 << 24) as f64;
/// What a grid type (IQ1 to IQ3) may be off, in root mean squares of the block: between 1, which zeros reach, and the √2 of unrelated numbers.
const GRID_ERROR: f64 = 1.25;

/// How far a block is off, and where.
pub(super) struct Verdict {
    /// The error in bounds, the largest of the block: above 1 it is out of bounds.
    pub(super) ratio: f64,
    /// The first element that is out of its bound; if none is, the one that is closest to it, or has the largest error of a block that is out
    /// of the block's bound.
    pub(super) element: usize,
    is_named: bool,
}

/// What the elements of one block can decode to.
struct Lattice {
    low: Vec<f32>,
    high: Vec<f32>,
    kind: Kind,
    /// The largest level, and the widest gap between two neighbours.
    top: f64,
    gap: f64,
    slack: f64,
}

#[derive(Clone, Copy)]
enum Kind {
    /// This many numbers at equal distances.
    Even(f64),
    /// `high` times these, divided by the last.
    Levels(&'static [i8]),
}

/// Where the codes of a type lie in a block, the bytes that make them all smallest and all largest, and how they are spaced.
type Codes = (Range<usize>, u8, u8, Kind, f64);

fn codes(ty: GgmlType) -> Option<Codes> {
    Some(match ty {
        GgmlType::Q8_0 => (2..34, 0x80, 0x7f, Kind::Even(256.0), TIE),
        GgmlType::Q4_0 => (2..18, 0x00, 0xff, Kind::Even(16.0), FITTED),
        GgmlType::Q4_1 => (4..20, 0x00, 0xff, Kind::Even(16.0), FITTED),
        GgmlType::Q5_0 => (2..22, 0x00, 0xff, Kind::Even(32.0), FITTED),
        GgmlType::Q5_1 => (4..24, 0x00, 0xff, Kind::Even(32.0), FITTED),
        GgmlType::Q2_K => (16..80, 0x00, 0xff, Kind::Even(4.0), TIE),
        GgmlType::Q3_K => (0..96, 0x00, 0xff, Kind::Even(8.0), TIE),
        GgmlType::Q4_K => (16..144, 0x00, 0xff, Kind::Even(16.0), TIE),
        GgmlType::Q5_K => (16..176, 0x00, 0xff, Kind::Even(32.0), TIE),
        GgmlType::Q6_K => (0..192, 0x00, 0xff, Kind::Even(64.0), TIE),
        GgmlType::TQ1_0 => (0..52, 0x00, 0xff, Kind::Even(3.0), TIE),
        GgmlType::TQ2_0 => (0..64, 0x00, 0xff, Kind::Even(4.0), TIE),
        GgmlType::IQ4_NL => (2..18, 0x00, 0xff, Kind::Levels(&tables::IQ4_LEVELS), TIE),
        GgmlType::IQ4_XS => (8..136, 0x00, 0xff, Kind::Levels(&tables::IQ4_LEVELS), TIE),
        // Code 7 is the largest; the negative ones mirror it.
        GgmlType::MXFP4 => (1..17, 0xff, 0x77, Kind::Levels(&tables::FP4_LEVELS), TIE),
        GgmlType::NVFP4 => (4..36, 0xff, 0x77, Kind::Levels(&tables::FP4_LEVELS), TIE),
        _ => return None,
    })
}

impl Lattice {
    fn of(ty: GgmlType, block: &[u8]) -> Option<Self> {
        let (place, smallest, largest, kind, slack) = codes(ty)?;
        let decode = |fill: u8| {
            let mut block = block.to_vec();
            block.get_mut(place.clone())?.fill(fill);
            let mut values = vec![0f32; ty.block_elems()];
            dequantize(ty, &block, &mut values).ok()?;
            Some(values)
        };
        let (top, gap) = match kind {
            Kind::Even(count) => (count - 1.0, 1.0),
            Kind::Levels(levels) => {
                let mut sorted: Vec<f64> = levels.iter().map(|&level| f64::from(level)).collect();
                sorted.sort_unstable_by(f64::total_cmp);
                let gaps = sorted.windows(2).map(|pair| pair[1] - pair[0]);
                (sorted.last().copied()?, gaps.fold(0.0, f64::max))
            }
        };
        Some(Lattice {
            low: decode(smallest)?,
            high: decode(largest)?,
            kind,
            top,
            gap,
            slack,
        })
    }

    /// What one code more adds, at most.
    fn step(&self, i: usize) -> f64 {
        let (low, high) = (f64::from(self.low[i]), f64::from(self.high[i]));
        match self.kind {
            Kind::Even(_) => (high - low).abs() / self.top,
            Kind::Levels(_) => high.abs() / self.top * self.gap,
        }
    }

    /// How far `x` is from the nearest number that element `i` can decode to.
    fn distance(&self, i: usize, x: f64) -> f64 {
        let (low, high) = (f64::from(self.low[i]), f64::from(self.high[i]));
        match self.kind {
            Kind::Even(count) => {
                let step = (high - low) / (count - 1.0);
                if step == 0.0 {
                    return (x - low).abs();
                }
                let code = ((x - low) / step).round().clamp(0.0, count - 1.0);
                (x - (low + code * step)).abs()
            }
            Kind::Levels(levels) => {
                let scale = high / self.top;
                let distances = levels
                    .iter()
                    .map(|&level| (x - scale * f64::from(level)).abs());
                distances.fold(f64::INFINITY, f64::min)
            }
        }
    }
}

fn sum_of_squares(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|x| x * x).sum()
}

/// Judges one block of type `ty` that decodes to `y` and was made of `x`; `ours` is what our encoder's block for `x` decodes to.
pub(super) fn against_original(
    ty: GgmlType,
    block: &[u8],
    x: &[f32],
    y: &[f32],
    ours: Option<&[f32]>,
) -> Verdict {
    let mut worst = Verdict {
        ratio: 0.0,
        element: 0,
        is_named: false,
    };
    let error = |i: usize| (f64::from(x[i]) - f64::from(y[i])).abs();
    if let Some(lattice) = Lattice::of(ty, block) {
        for i in 0..x.len().min(y.len()) {
            let (number, decoded) = (f64::from(x[i]), f64::from(y[i]));
            let allowed = lattice.distance(i, number)
                + lattice.slack * lattice.step(i)
                + F16_ROUNDING * number.abs().max(decoded.abs())
                + F16_SMALLEST;
            worst.take(error(i) / allowed, i);
        }
    }
    let numbers = || x.iter().map(|&x| f64::from(x));
    let rounding = sum_of_squares(numbers().map(|x| F16_ROUNDING * x.abs() + F16_SMALLEST)).sqrt();
    let reached = sum_of_squares((0..x.len().min(y.len())).map(error)).sqrt();
    let allowed = match ours {
        Some(ours) => {
            let errors = numbers().zip(ours).map(|(x, &y)| x - f64::from(y));
            TIMES_OURS * sum_of_squares(errors).sqrt() + rounding
        }
        None if codes(ty).is_some() => return worst,
        None => GRID_ERROR * sum_of_squares(numbers()).sqrt() + rounding,
    };
    worst.take_block(reached / allowed, error, x.len());
    worst
}

/// Judges the difference of what two blocks of the same numbers, of which at least one is quantised, decode to.
pub(super) fn against_other(a: (GgmlType, &[u8], &[f32]), b: (GgmlType, &[u8], &[f32])) -> Verdict {
    let error = |i: usize| (f64::from(a.2[i]) - f64::from(b.2[i])).abs();
    let len = a.2.len().min(b.2.len());
    let allowed: f64 = [a, b]
        .map(|(ty, blocks, values)| own_error(ty, blocks, values))
        .iter()
        .sum();
    let reached = sum_of_squares((0..len).map(error)).sqrt();
    let mut worst = Verdict {
        ratio: 0.0,
        element: 0,
        is_named: false,
    };
    worst.take_block(reached / allowed, error, len);
    worst
}

/// By how much some blocks may be off the numbers that they were made of: a root of a sum of squares.
fn own_error(ty: GgmlType, blocks: &[u8], values: &[f32]) -> f64 {
    let size = || sum_of_squares(values.iter().map(|&x| f64::from(x)));
    // BF16 has 8 bits; the others have more.
    let rounding = sum_of_squares(values.iter().map(|&x| f64::from(x) / 256.0 + F16_SMALLEST));
    if codes(ty).is_none() {
        let grid = if ty.block_elems() > 1 {
            GRID_ERROR
        } else {
            0.0
        };
        return grid * size().sqrt() + rounding.sqrt();
    }
    let mut steps = 0.0;
    for block in blocks.chunks_exact(ty.block_bytes()) {
        if let Some(lattice) = Lattice::of(ty, block) {
            steps += sum_of_squares((0..ty.block_elems()).map(|i| lattice.step(i) / 2.0));
        }
    }
    TIMES_HALF_STEPS * steps.sqrt() + rounding.sqrt()
}

impl Verdict {
    /// Takes note of an element's error in bounds, in the order of elements; NaN is out of any.
    fn take(&mut self, ratio: f64, element: usize) {
        let ratio = if ratio.is_nan() { f64::INFINITY } else { ratio };
        if ratio > self.ratio {
            self.ratio = ratio;
            if !self.is_named {
                self.element = element;
            }
        }
        self.is_named |= ratio > 1.0;
    }

    fn take_block(&mut self, ratio: f64, error: impl Fn(usize) -> f64, len: usize) {
        let largest = (0..len).reduce(|a, b| if error(b) > error(a) { b } else { a });
        self.take(ratio, largest.unwrap_or(0));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use glim_quant::quantize;

    use super::*;

    /// Numbers in -1 .. 1, the same for the same seed.
    fn numbers(seed: u64, count: usize) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state
                .wrapping_mul(0x5851_f42d_4c95_7f2d)
                .wrapping_add(0x1405_7b7e_f767_814f);
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        };
        (0..count).map(|_| next()).collect()
    }

    fn decode(ty: GgmlType, block: &[u8]) -> Vec<f32> {
        let mut values = vec![0.0; block.len() / ty.block_bytes() * ty.block_elems()];
        dequantize(ty, block, &mut values).unwrap();
        values
    }

    /// The lattice is what the decoder says: every number that any code of an element decodes to is at distance 0.
    #[test]
    fn whatever_a_block_decodes_to_is_on_its_lattice() {
        for &ty in GgmlType::ALL {
            let Some((place, ..)) = codes(ty) else {
                continue;
            };
            for seed in 0..20 {
                let mut block = vec![0; ty.block_bytes()];
                if quantize(ty, &numbers(seed, ty.block_elems()), &mut block).is_err() {
                    continue;
                }
                // Other codes under the same scales.
                for (i, at) in place.clone().enumerate() {
                    block[at] = (i as u8).wrapping_mul(37).wrapping_add(seed as u8);
                }
                let lattice = Lattice::of(ty, &block).unwrap();
                for (i, y) in decode(ty, &block).into_iter().enumerate() {
                    // f32 rounds the subtraction of a minimum.
                    let distance = lattice.distance(i, f64::from(y));
                    assert!(
                        distance <= 1e-5 * lattice.step(i),
                        "{ty} {i}: {y} is {distance} off"
                    );
                }
            }
        }
    }

    /// Types without encoder: a block that is near its numbers passes, one of other numbers does not.
    #[test]
    fn a_grid_block_passes_for_its_own_numbers_only() {
        for ty in [
            GgmlType::IQ1_S,
            GgmlType::IQ2_XXS,
            GgmlType::IQ2_S,
            GgmlType::IQ3_XXS,
            GgmlType::IQ3_S,
        ] {
            let mut block: Vec<u8> = (0..ty.block_bytes()).map(|i| (i * 89 + 7) as u8).collect();
            block[..2].copy_from_slice(&[0x00, 0x2c]);
            let y = decode(ty, &block);
            let size = (y.iter().map(|y| y * y).sum::<f32>() / 256.0).sqrt();
            let noise = numbers(5, 256);
            let own: Vec<f32> = y
                .iter()
                .zip(&noise)
                .map(|(y, n)| y + 0.5 * size * n)
                .collect();
            assert!(
                against_original(ty, &block, &own, &y, None).ratio < 1.0,
                "{ty}"
            );
            let others: Vec<f32> = noise.iter().map(|n| 1.7 * size * n).collect();
            assert!(
                against_original(ty, &block, &others, &y, None).ratio > 1.0,
                "{ty}"
            );
        }
    }

    #[test]
    fn nan_is_out_of_any_bound() {
        let ty = GgmlType::Q8_0;
        let mut block = vec![0; 34];
        quantize(ty, &numbers(1, 32), &mut block).unwrap();
        block[1] = 0x7e;
        let y = decode(ty, &block);
        assert!(against_original(ty, &block, &numbers(1, 32), &y, None).ratio > 1.0);
    }
}
