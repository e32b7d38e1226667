//! Random blocks of every type that can be decoded, made directly: no encoder runs, so that a file grows as fast as the
//! disk takes it.
//!
//! A block gets random codes, then scales that bring its elements to mean 0 and the wanted deviation. Where a format has
//! minima they are set to half the range of its codes; where codes are not symmetric around 0, the sign of a scale is
//! random. The deviation of codes under a scale of 1 is measured once for each type, on blocks of a fixed stream. Layouts:
//! `glim-quant`, whose decoders say where everything lies.

use half::f16;

use glim_quant::{GgmlType, QuantError, dequantize};

use super::random::{Stream, Words};

/// Words of a stream that belong to one block: more than any block has.
const WORDS_PER_BLOCK: u64 = 64;
/// Blocks on which the deviation of a type is measured.
const MEASURED_BLOCKS: usize = 64;

/// Makes blocks of one type and deviation.
#[derive(Debug, Clone, Copy)]
pub struct Blocks {
    ty: GgmlType,
    /// Standard deviation of floats; scale of blocks.
    scale: f32,
}

impl Blocks {
    /// Blocks whose elements have mean 0 and standard deviation `sigma`: within a few percent, except that NVFP4 has no
    /// scale below 2^-9.
    ///
    /// # Errors
    /// [`QuantError::Unsupported`] for a type that cannot be decoded.
    pub fn new(ty: GgmlType, sigma: f32) -> Result<Self, QuantError> {
        Ok(Self {
            ty,
            scale: sigma / unit_deviation(ty)?,
        })
    }

    /// Scale of blocks; the standard deviation of floats.
    pub fn scale(&self) -> f32 {
        self.scale
    }

    /// Fills `out` with whole blocks, those from number `first` on of the tensor that `stream` stands for.
    pub fn fill(&self, stream: Stream, first: u64, out: &mut [u8]) {
        for (n, block) in (first..).zip(out.chunks_exact_mut(self.ty.block_bytes())) {
            if is_float(self.ty) {
                float(self.ty, self.scale, stream.words(n).normal(), block);
                continue;
            }
            let mut words = stream.words(n.wrapping_mul(WORDS_PER_BLOCK));
            for bytes in block.chunks_mut(8) {
                let word = words.next().to_le_bytes();
                bytes.copy_from_slice(&word[..bytes.len()]);
            }
            set_scales(self.ty, block, self.scale, &mut words);
        }
    }
}

fn is_float(ty: GgmlType) -> bool {
    matches!(ty, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16)
}

/// One element of a type without blocks.
fn float(ty: GgmlType, sigma: f32, normal: f32, out: &mut [u8]) {
    let value = sigma * normal;
    match ty {
        GgmlType::F16 => out.copy_from_slice(&f16::from_f32(value).to_le_bytes()),
        GgmlType::BF16 => out.copy_from_slice(&half::bf16::from_f32(value).to_le_bytes()),
        _ => out.copy_from_slice(&value.to_le_bytes()),
    }
}

/// The deviation of elements whose blocks have scale 1.
fn unit_deviation(ty: GgmlType) -> Result<f32, QuantError> {
    if is_float(ty) {
        return Ok(1.0);
    }
    let mut bytes = vec![0; MEASURED_BLOCKS * ty.block_bytes()];
    let mut values = vec![0.0; MEASURED_BLOCKS * ty.block_elems()];
    if !ty.can_decode() {
        return Err(QuantError::Unsupported { ty });
    }
    Blocks { ty, scale: 1.0 }.fill(Stream::new(0, ty.name()), 0, &mut bytes);
    dequantize(ty, &bytes, &mut values)?;
    let square: f64 = values.iter().map(|x| f64::from(*x).powi(2)).sum();
    Ok((square / values.len() as f64).sqrt() as f32)
}

/// Sets the scales of a block of random bytes, and mends codes that encoders never write.
fn set_scales(ty: GgmlType, block: &mut [u8], scale: f32, words: &mut Words) {
    use GgmlType as T;
    let d = f16::from_f32(scale);
    let put = |block: &mut [u8], at: usize, x: f16| {
        block[at..at + 2].copy_from_slice(&x.to_le_bytes());
    };
    // Half the range of the codes, so that their mean becomes 0.
    let times = |half_range: f32| f16::from_f32(d.to_f32() * half_range);
    match ty {
        T::Q4_0 | T::Q5_0 | T::IQ4_NL => put(block, 0, either_sign(d, words)),
        T::Q4_1 => {
            put(block, 0, d);
            put(block, 2, -times(7.5));
        }
        T::Q5_1 => {
            put(block, 0, d);
            put(block, 2, -times(15.5));
        }
        T::Q8_0 => {
            put(block, 0, d);
            symmetric(&mut block[2..]);
        }
        T::Q8_1 => {
            put(block, 0, d);
            symmetric(&mut block[4..]);
            let sum: i32 = block[4..].iter().map(|&q| i32::from(q as i8)).sum();
            put(block, 2, f16::from_f32(d.to_f32() * sum as f32));
        }
        T::Q8_K => {
            block[..4].copy_from_slice(&scale.to_le_bytes());
            symmetric(&mut block[4..260]);
            for run in 0..16 {
                let codes = &block[4 + 16 * run..][..16];
                let sum: i16 = codes.iter().map(|&q| i16::from(q as i8)).sum();
                block[260 + 2 * run..][..2].copy_from_slice(&sum.to_le_bytes());
            }
        }
        T::Q2_K => {
            // Scale and minimum of a sub-block are one number, 8 to 15.
            block[..16]
                .iter_mut()
                .for_each(|b| *b = (8 | *b & 7) * 0x11);
            put(block, 80, d);
            put(block, 82, times(1.5));
        }
        T::Q3_K => put(block, 108, either_sign(d, words)),
        T::Q4_K | T::Q5_K => {
            equal_scales_and_minima(&mut block[4..16]);
            put(block, 0, d);
            put(block, 2, times(if ty == T::Q4_K { 7.5 } else { 15.5 }));
        }
        T::Q6_K => {
            for b in &mut block[192..208] {
                let size = 32 + (*b & 31) as i8;
                *b = if *b & 0x80 == 0 { size } else { -size } as u8;
            }
            put(block, 208, d);
        }
        T::IQ1_M => {
            // The f16's nibbles are the top ones of four words, the lowest first.
            let bits = either_sign(d, words).to_bits();
            for n in 0..4 {
                let top = &mut block[49 + 2 * n];
                *top = *top & 0x0f | ((bits >> (4 * n) & 15) << 4) as u8;
            }
        }
        T::MXFP4 => block[0] = e8m0(scale, words),
        T::NVFP4 => block[..4].iter_mut().for_each(|b| *b = ue4m3(scale, words)),
        T::TQ1_0 => put(block, 52, d),
        T::TQ2_0 => {
            // Code 3 is none: it becomes 1, which stands for 0.
            for b in &mut block[..64] {
                *b &= !((*b & *b >> 1 & 0x55) << 1);
            }
            put(block, 64, d);
        }
        // IQ1_S, the IQ2 and IQ3 families, IQ4_XS: a scale in front.
        _ => put(block, 0, either_sign(d, words)),
    }
}

fn either_sign(d: f16, words: &mut Words) -> f16 {
    if words.next() >> 63 == 0 { d } else { -d }
}

/// -128 has no counterpart, and encoders do not write it.
fn symmetric(codes: &mut [u8]) {
    codes.iter_mut().for_each(|q| *q |= u8::from(*q == 0x80));
}

/// The 6-bit scales and minima of Q4_K and Q5_K: 32 to 63, the minimum of a sub-block as large as its scale.
fn equal_scales_and_minima(packed: &mut [u8]) {
    for j in 0..4 {
        let (low, high) = (32 | packed[j] & 31, 32 | packed[8 + j] & 31);
        packed[j] = low | high >> 4 << 6;
        packed[4 + j] = packed[j];
        packed[8 + j] = (high & 0x0f) * 0x11;
    }
}

/// A power of two as E8M0. Of the two around `scale`, each as often as makes the mean square right.
fn e8m0(scale: f32, words: &mut Words) -> u8 {
    // The exponent of a normal f32, which is E8M0's own; a mean of squares is linear in the larger one's share.
    let exponent = (scale.to_bits() >> 23) as u8;
    let below = f32::from_bits(u32::from(exponent) << 23);
    let excess = if below > 0.0 { scale / below } else { 1.0 };
    let share = (excess * excess - 1.0) / 3.0;
    exponent + u8::from(words.uniform() < share)
}

/// A number as unsigned E4M3: of the two around `scale`, each as often as makes the mean square right.
fn ue4m3(scale: f32, words: &mut Words) -> u8 {
    /// The code of 2^-6, the smallest normal number; it lies this far below the same bits of an f32.
    const SMALLEST_NORMAL: f32 = 1.0 / 64.0;
    const BIAS: u32 = (127 - 7) << 3;
    /// 448; the code above is its NaN.
    const LARGEST: u8 = 0x7e;
    let value = |code: u8| match code {
        0..8 => f32::from(code) / 512.0,
        _ => f32::from_bits((u32::from(code) + BIAS) << 20),
    };
    let below = if scale < SMALLEST_NORMAL {
        (scale * 512.0) as u8
    } else {
        ((scale.to_bits() >> 20) - BIAS).min(u32::from(LARGEST) - 1) as u8
    };
    let (low, high) = (value(below), value(below + 1));
    let share = (scale * scale - low * low) / (high * high - low * low);
    below + u8::from(words.uniform() < share)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn types() -> impl Iterator<Item = GgmlType> {
        GgmlType::ALL.iter().copied().filter(|ty| ty.can_decode())
    }

    fn values(ty: GgmlType, sigma: f32, blocks: usize) -> Vec<f32> {
        let mut bytes = vec![0; blocks * ty.block_bytes()];
        let mut values = vec![0.0; blocks * ty.block_elems()];
        let maker = Blocks::new(ty, sigma).unwrap();
        maker.fill(Stream::new(5, "blk.0.attn_q_a.weight"), 0, &mut bytes);
        dequantize(ty, &bytes, &mut values).unwrap();
        values
    }

    /// The sizes of real fan-ins: 1 (an embedding), 192 to 16384.
    #[test]
    fn every_type_gets_finite_numbers_of_mean_0_and_the_wanted_deviation() {
        for ty in types() {
            let blocks = (1 << 17) / ty.block_elems();
            for inputs in [1.0f32, 192.0, 2048.0, 16_384.0] {
                let sigma = 1.0 / inputs.sqrt();
                let values = values(ty, sigma, blocks);
                assert!(values.iter().all(|x| x.is_finite()), "{ty}");
                let n = values.len() as f64;
                let mean = values.iter().map(|x| f64::from(*x)).sum::<f64>() / n;
                let square = values.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / n;
                let deviation = square.sqrt() / f64::from(sigma);
                // Five standard errors of the mean of 512 independent blocks, of which a whole one may lean to one side:
                // codes of one sign (Q4_0: a tenth of the deviation) under a random sign.
                let lean = 0.1 * 5.0 / 512f64.sqrt() + 5.0 / n.sqrt();
                assert!(
                    mean.abs() / f64::from(sigma) < lean,
                    "{ty}, {sigma}: {mean}"
                );
                // The deviation of a type is measured on 64 blocks of 32 elements or more, whose squares vary by at most
                // as much as they are large: 5/√2048, halved by the root; f16 below 2^-14 has steps of 2^-24: a scale
                // of 2^-18 is off by 1/128 at most.
                assert!(
                    (deviation - 1.0).abs() < 0.06 + 0.01,
                    "{ty}, {sigma}: {deviation}"
                );
            }
        }
    }

    #[test]
    fn blocks_do_not_depend_on_where_one_begins() {
        let stream = Stream::new(3, "t");
        for ty in types() {
            let maker = Blocks::new(ty, 0.02).unwrap();
            let mut whole = vec![0; 10 * ty.block_bytes()];
            maker.fill(stream, 0, &mut whole);
            let (head, tail) = whole.split_at(7 * ty.block_bytes());
            let mut part = vec![0; tail.len()];
            maker.fill(stream, 7, &mut part);
            assert_eq!(part, tail, "{ty}");
            assert_ne!(&head[..tail.len()], tail, "{ty}");
        }
    }

    #[test]
    fn codes_that_no_encoder_writes_are_mended() {
        let mut blocks = vec![0; 200 * 66];
        let maker = Blocks::new(GgmlType::TQ2_0, 1.0).unwrap();
        maker.fill(Stream::new(1, "t"), 0, &mut blocks);
        for byte in blocks.chunks_exact(66).flat_map(|block| &block[..64]) {
            assert!((0..4).all(|k| byte >> (2 * k) & 3 != 3));
        }
        let mut blocks = vec![0; 200 * 34];
        let maker = Blocks::new(GgmlType::Q8_0, 1.0).unwrap();
        maker.fill(Stream::new(1, "t"), 0, &mut blocks);
        for block in blocks.chunks_exact(34) {
            assert!(!block[2..].contains(&0x80));
        }
    }
}
