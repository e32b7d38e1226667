//! MXFP4 and NVFP4: the scale follows from the largest magnitude, then each element goes to the
//! nearest 4-bit float.
//!
//! Source: `quantize_row_mxfp4_ref` and `quantize_row_nvfp4_ref` of ggml (`ggml-quants.c`, MIT). The
//! bytes are the same but for two corners. ggml takes MXFP4's exponent from `log2f`, which rounds
//! the last numbers below a power of two up to it; we take it from the bits. And ggml makes 448 of
//! all NVFP4 scales from 248 on; we round those as well, and refuse what goes beyond 448.

use super::{Encoded, TooLarge, each_block, pack_nibbles};
use crate::fp4::{half_e8m0, half_ue4m3};

/// Half-way points between the magnitudes of `FP4_LEVELS`, which are doubled: code `n` is right up
/// to the `n`-th.
const MIDPOINTS: [f32; 7] = [0.5, 1.5, 2.5, 3.5, 5.0, 7.0, 10.0];

/// The code of the level that is nearest to `x` in scales of `scale`; of two equally near ones the
/// smaller, and for zero never the negative one.
///
/// The products with the mid-points are exact: a scale has at most four significant bits.
fn nearest_code(x: f32, scale: f32) -> u8 {
    let magnitude = MIDPOINTS
        .iter()
        .map(|midpoint| u8::from(x.abs() > midpoint * scale))
        .sum::<u8>();
    if x < 0.0 && magnitude > 0 {
        magnitude | 0x08
    } else {
        magnitude
    }
}

fn largest_magnitude(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |amax: f32, x| amax.max(x.abs()))
}

/// The E8M0 exponent whose block holds `amax` with little to spare: E2M1 ends at 6 = 1.5 * 2^2, so
/// it is two below that of `amax`. What lies between 6 and 8 scales becomes 6.
fn exponent(amax: f32) -> u8 {
    let biased = (amax.to_bits() >> 23) as u8; // 0 for subnormals; no sign
    biased.saturating_sub(2)
}

/// MXFP4: a power of two for 32 elements. Whatever is finite fits.
pub(crate) fn mxfp4(src: &[f32], dst: &mut [u8]) -> Encoded {
    each_block(src, dst, |x: &[f32; 32], block: &mut [u8; 17]| {
        let e = exponent(largest_magnitude(x));
        let codes = x.map(|x| nearest_code(x, half_e8m0(e)));
        block[0] = e;
        pack_nibbles(&codes, &mut block[1..]);
        Ok(())
    })
}

/// The unsigned E4M3 (bias 7) nearest to `x`, which is not negative; halves go up.
fn ue4m3(x: f32) -> Result<u8, TooLarge> {
    let bits = x.to_bits();
    let exponent = (bits >> 23) as i32 - 127 + 7;
    if exponent <= 0 {
        // Subnormal, in 512ths. (Eight would be the smallest normal number; ggml stays at seven.)
        return Ok((x * 512.0 + 0.5).min(7.0) as u8);
    }
    // Three bits of mantissa stay; a carry goes into the exponent, as it should.
    let rounded = (exponent << 3 | (bits >> 20 & 0x07) as i32) + (bits >> 19 & 1) as i32;
    match u8::try_from(rounded) {
        Ok(code @ ..=0x7e) => Ok(code),
        _ => Err(TooLarge),
    }
}

/// NVFP4: four sub-blocks of 16 elements, each with an E4M3 scale that takes its largest magnitude to
/// 6.
///
/// Those scales are 2^-9 to 448. A tensor of small numbers is divided by a factor of its own before
/// (kept beside it, see the decoder); that is the caller's part.
pub(crate) fn nvfp4(src: &[f32], dst: &mut [u8]) -> Encoded {
    each_block(src, dst, |x: &[f32; 64], block: &mut [u8; 36]| {
        let (scales, qs) = block.split_at_mut(4);
        let (runs, _) = x.as_chunks::<16>();
        for ((x, byte), qs) in runs.iter().zip(scales).zip(qs.chunks_exact_mut(8)) {
            *byte = ue4m3(largest_magnitude(x) / 6.0)?;
            let scale = half_ue4m3(*byte);
            for (k, q) in qs.iter_mut().enumerate() {
                *q = match scale {
                    0.0 => 0,
                    _ => nearest_code(x[k], scale) | nearest_code(x[k + 8], scale) << 4,
                };
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::FP4_LEVELS;

    #[test]
    fn nearest_code_is_the_nearest_and_ties_go_to_zero() {
        for i in -300i16..=300 {
            let x = f32::from(i) / 20.0;
            let code = nearest_code(x, 1.0);
            let level = |code: u8| f32::from(FP4_LEVELS[usize::from(code)]);
            let distance = |code: u8| (level(code) - x).abs();
            for other in 0..16 {
                assert!(distance(code) <= distance(other), "{x}: {code}");
                assert!(
                    distance(code) < distance(other) || level(code).abs() <= level(other).abs(),
                    "{x}: {code}"
                );
            }
            assert_ne!(code, 8, "{x}");
        }
    }

    /// Of `below_8` `log2f` makes 3, and ggml an exponent that is one too large.
    #[test]
    fn exponents_are_two_below_that_of_the_largest_number() {
        let below_8 = f32::from_bits(8f32.to_bits() - 1);
        let exponents = [(4.0, 127), (below_8, 127), (8.0, 128), (6e-39, 0), (0.0, 0)];
        for (amax, e) in exponents {
            assert_eq!(exponent(amax), e, "{amax}");
        }
        assert_eq!(exponent(f32::MAX), 252);
    }

    #[test]
    fn ue4m3_is_the_nearest_up_to_the_largest() {
        for code in 1..0x7e {
            // The decoder halves. The smallest normal number (8) is not made from below.
            let (x, next) = (2.0 * half_ue4m3(code), 2.0 * half_ue4m3(code + 1));
            let middle = (x + next) / 2.0;
            let below = f32::from_bits(middle.to_bits() - 1);
            let up = if code == 7 { 7 } else { code + 1 };
            assert!(matches!(ue4m3(x), Ok(found) if found == code), "{x}");
            assert!(
                matches!(ue4m3(below), Ok(found) if found == code),
                "{below}"
            );
            assert!(
                matches!(ue4m3(middle), Ok(found) if found == up),
                "{middle}"
            );
        }
        assert!(matches!(ue4m3(0.0), Ok(0)));
        assert!(matches!(ue4m3(463.9), Ok(0x7e)));
        assert!(ue4m3(464.0).is_err());
        assert!(ue4m3(f32::MAX).is_err());
    }
}
