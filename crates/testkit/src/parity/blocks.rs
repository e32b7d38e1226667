//! Seeded numbers, and weights of every type that can be decoded.
//!
//! Types with an encoder get encoded values. The others get random codes, which every decoder must take, under scales that
//! bring the values to the wanted size: bytes at random would hold NaN scales, and values of all magnitudes.

use glim_quant::{GgmlType, dequantize, quantize};

/// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// A stream that depends on the seed and on the name.
    pub fn named(seed: u64, name: &str) -> Self {
        let mix = |h: u64, c: u8| (h ^ u64::from(c)).wrapping_mul(0x100_0000_01B3);
        Self(name.bytes().fold(seed ^ 0xCBF2_9CE4_8422_2325, mix))
    }

    /// 64 random bits.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.word() % bound as u64) as usize
    }

    /// Uniform in −1..1.
    pub fn unit(&mut self) -> f32 {
        (self.word() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// `n` of them.
    pub fn units(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.unit()).collect()
    }
}

/// All types that can be decoded.
pub fn types() -> impl Iterator<Item = GgmlType> {
    GgmlType::ALL.iter().copied().filter(|ty| ty.can_decode())
}

/// `elements` values of about `size` (root mean square) as blocks of `ty`.
///
/// # Panics
/// If the elements are not whole blocks, or the type cannot be decoded.
pub fn weight(ty: GgmlType, elements: usize, size: f32, random: &mut Random) -> Vec<u8> {
    let bytes = ty.row_bytes(elements);
    let mut blocks =
        vec![0; bytes.unwrap_or_else(|| panic!("{elements} elements are not blocks of {ty}"))];
    if ty.can_encode() {
        // A uniform value in −1..1 has a root mean square of 1/√3.
        let values: Vec<f32> = random
            .units(elements)
            .iter()
            .map(|v| v * size * 3f32.sqrt())
            .collect();
        quantize(ty, &values, &mut blocks).unwrap_or_else(|error| panic!("{error}"));
        return blocks;
    }
    for word in blocks.chunks_mut(8) {
        let random = random.word().to_le_bytes();
        word.copy_from_slice(&random[..word.len()]);
    }
    let n = ty.block_bytes();
    blocks.chunks_mut(n).for_each(|b| set_scales(ty, b, 1.0));
    let mut values = vec![0.0; elements];
    dequantize(ty, &blocks, &mut values).unwrap_or_else(|error| panic!("{error}"));
    let square: f64 = values.iter().map(|v| f64::from(*v).powi(2)).sum();
    let factor = size / (square / elements as f64).sqrt() as f32;
    for block in blocks.chunks_mut(n) {
        // Blocks differ in scale, so that a kernel which takes a neighbour's shows.
        set_scales(ty, block, factor * (1.0 + 0.5 * random.unit()));
    }
    blocks
}

/// Sets the scales of a block (all of them: of values and of minima) to about `scale`.
fn set_scales(ty: GgmlType, block: &mut [u8], scale: f32) {
    use GgmlType as T;
    let half = f16_bits(scale).to_le_bytes();
    let halves: &[usize] = match ty {
        T::Q2_K => &[80, 82],
        T::Q8_1 | T::Q4_K | T::Q5_K => &[0, 2],
        T::Q3_K => &[108],
        T::Q6_K => &[208],
        T::IQ2_XXS | T::IQ2_XS | T::IQ2_S | T::IQ3_XXS | T::IQ3_S | T::IQ1_S | T::IQ4_XS => &[0],
        T::TQ1_0 => &[52],
        T::TQ2_0 => &[64],
        T::Q8_K => {
            block[..4].copy_from_slice(&scale.to_le_bytes());
            return;
        }
        // The f16's nibbles are the top ones of four words, the lowest first.
        T::IQ1_M => {
            let bits = f16_bits(scale);
            for n in 0..4 {
                let top = &mut block[49 + 2 * n];
                *top = *top & 0x0f | ((bits >> (4 * n) & 15) << 4) as u8;
            }
            return;
        }
        // 2^(e − 127).
        T::MXFP4 => {
            block[0] = (127 + scale.log2().round() as i32) as u8;
            return;
        }
        // Exponent of bias 7 above three bits of mantissa, which stay random; no smaller than 2^-6.
        T::NVFP4 => {
            let exponent = (7 + scale.log2().round() as i32).clamp(1, 14) as u8;
            block[..4]
                .iter_mut()
                .for_each(|b| *b = exponent << 3 | *b & 7);
            return;
        }
        other => panic!("where does {other} keep its scales?"),
    };
    for at in halves {
        block[*at..at + 2].copy_from_slice(&half);
    }
}

/// A positive f16 near `x`: the encoder of the type itself.
fn f16_bits(x: f32) -> u16 {
    let mut bytes = [0; 2];
    quantize(GgmlType::F16, &[x], &mut bytes).unwrap_or_else(|error| panic!("{error}"));
    u16::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_gets_finite_values_of_the_wanted_size() {
        for ty in types() {
            let n = 4 * 256;
            let blocks = weight(ty, n, 0.1, &mut Random::named(7, ty.name()));
            let values = crate::encode::decode(ty, &blocks);
            assert!(values.iter().all(|v| v.is_finite()), "{ty}");
            let square: f32 = values.iter().map(|v| v * v).sum();
            let size = (square / n as f32).sqrt();
            assert!((0.05..0.2).contains(&size), "{ty}: {size}");
        }
    }
}
