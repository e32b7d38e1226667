//! `f32` into the types that tests store.
//!
//! F32, F16, BF16 and Q8_0 are simple rather than fast, and independent of any encoder that the product has; the others are the
//! product's own, for tests in which only matters that blocks are blocks.

use glim_quant::{GgmlType, dequantize, quantize};

/// Elements of a Q8_0 block.
const Q8_0_ELEMS: usize = 32;

/// The bytes of `values` in type `ty`.
///
/// # Panics
/// If `ty` has no encoder, or if `values` are not whole blocks.
pub fn encode(ty: GgmlType, values: &[f32]) -> Vec<u8> {
    match ty {
        GgmlType::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        GgmlType::F16 => values
            .iter()
            .flat_map(|&x| f16_bits(x).to_le_bytes())
            .collect(),
        GgmlType::BF16 => values
            .iter()
            .flat_map(|&x| bf16_bits(x).to_le_bytes())
            .collect(),
        GgmlType::Q8_0 => {
            assert!(
                values.len().is_multiple_of(Q8_0_ELEMS),
                "{} elements are not whole Q8_0 blocks",
                values.len()
            );
            values.chunks(Q8_0_ELEMS).flat_map(q8_0_block).collect()
        }
        other => {
            let mut bytes = vec![0; other.row_bytes(values.len()).unwrap_or(0)];
            quantize(other, values, &mut bytes).unwrap_or_else(|error| panic!("{error}"));
            bytes
        }
    }
}

/// The values of `bytes` in type `ty`.
///
/// # Panics
/// If `bytes` are not whole blocks, or `ty` has no decoder.
pub fn decode(ty: GgmlType, bytes: &[u8]) -> Vec<f32> {
    let mut values = vec![0.0; bytes.len() / ty.block_bytes() * ty.block_elems()];
    dequantize(ty, bytes, &mut values).unwrap_or_else(|error| panic!("{error}"));
    values
}

/// Scale `amax / 127` as f16, then each value to the nearest step.
fn q8_0_block(values: &[f32]) -> Vec<u8> {
    let amax = values.iter().fold(0f32, |max, x| max.max(x.abs()));
    let scale = amax / 127.0;
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    let mut block = f16_bits(scale).to_le_bytes().to_vec();
    block.extend(values.iter().map(|x| (x * inverse).round() as i8 as u8));
    block
}

/// Rounds to nearest, ties to even.
fn bf16_bits(x: f32) -> u16 {
    let bits = x.to_bits();
    if x.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

/// Rounds to nearest, ties to even; beyond the range to infinity.
fn f16_bits(x: f32) -> u16 {
    let sign = ((x.to_bits() >> 16) & 0x8000) as u16;
    let magnitude = x.abs();
    if magnitude.is_nan() {
        return sign | 0x7e00;
    }
    // 65520 is half-way between the largest f16 and the next power of two.
    if magnitude >= 65520.0 {
        return sign | 0x7c00;
    }
    let (exponent, fraction_bits) = match magnitude.to_bits() >> 23 {
        // Below 2^-14 the steps stay 2^-24 wide.
        e if e < 127 - 14 => (0, -24),
        e => (e as i32 - 127 + 15, e as i32 - 127 - 10),
    };
    let steps = f64::from(magnitude) / 2f64.powi(fraction_bits);
    let steps = steps.round_ties_even() as u16;
    // A normal number has an implied 1024; a carry moves on to the next exponent by itself.
    let bits = if exponent == 0 {
        steps
    } else {
        ((exponent as u16) << 10) + (steps - 1024)
    };
    sign | bits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f16_bits_are_those_of_the_standard() {
        for (x, bits) in [
            (0.0, 0),
            (-0.0, 0x8000),
            (1.0, 0x3c00),
            (-2.0, 0xc000),
            (65504.0, 0x7bff),
            (65519.9, 0x7bff),
            (65520.0, 0x7c00),
            (5.960_464_5e-8, 1),
            (6.097_555e-5, 0x03ff),
            (6.103_515_6e-5, 0x0400),
            (0.333_333_34, 0x3555),
            // Ties: to the even neighbour, and over the edge of an exponent.
            (1.0 + 1.0 / 2048.0, 0x3c00),
            (1.0 + 3.0 / 2048.0, 0x3c02),
            (2.0 - 1.0 / 2048.0, 0x4000),
        ] {
            assert_eq!(f16_bits(x), bits, "{x}");
        }
    }

    #[test]
    fn every_f16_survives_decoding_and_encoding() {
        for bits in (0..0x7c00u16).chain(0x8000..0xfc00) {
            let bytes = bits.to_le_bytes();
            assert_eq!(
                encode(GgmlType::F16, &decode(GgmlType::F16, &bytes)),
                bytes,
                "{bits:#06x}"
            );
        }
    }

    #[test]
    fn bf16_rounds_to_even() {
        for (x, bits) in [
            (1.0, 0x3f80),
            (f32::from_bits(0x3f80_8000), 0x3f80),
            (f32::from_bits(0x3f81_8000), 0x3f82),
        ] {
            assert_eq!(bf16_bits(x), bits, "{x}");
        }
    }

    #[test]
    fn q8_0_is_within_half_a_step() {
        let values: Vec<f32> = (0..64).map(|i| (i as f32 * 0.37).sin()).collect();
        let decoded = decode(GgmlType::Q8_0, &encode(GgmlType::Q8_0, &values));
        for (x, y) in values.iter().zip(&decoded) {
            // Half a step of 1/127, and the scale's own rounding to 11 bits.
            assert!((x - y).abs() <= 0.5 / 127.0 + 1.0 / 2048.0, "{x} {y}");
        }
    }
}
