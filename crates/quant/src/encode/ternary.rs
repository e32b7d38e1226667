//! TQ1_0 and TQ2_0: the scale is the largest magnitude, and each element becomes -1, 0 or 1 of it.
//!
//! This is meant for models that were trained to three levels, whose elements are there already; of
//! others little is left. Source: `quantize_row_tq1_0_ref` and `quantize_row_tq2_0_ref` of ggml
//! (`ggml-quants.c`, MIT), whose bytes these are.

use super::{Encoded, TooLarge, each_block, f16_bytes, inverse, pack_pairs};

/// The scale's bytes, and the codes: 0, 1 and 2 for -1, 0 and 1. Halves go away from zero.
fn three_levels(x: &[f32; 256]) -> Result<([u8; 2], [u8; 256]), TooLarge> {
    let amax = x.iter().fold(0f32, |amax, x| amax.max(x.abs()));
    let id = inverse(amax);
    let codes = x.map(|x| 1 + u8::from(x * id >= 0.5) - u8::from(x * id <= -0.5));
    Ok((f16_bytes(amax)?, codes))
}

/// Five digits to base 3, most significant first, as a fraction below 1 in 256ths: rounded up, so
/// that the decoder, which cuts off, finds each digit.
fn fraction(digits: impl Iterator<Item = u8>) -> u8 {
    let number = digits.fold(0, |number, digit| 3 * number + u16::from(digit));
    (number * 256).div_ceil(243) as u8
}

/// TQ1_0: the elements in the three parts that the decoder describes. The bytes of the last part
/// hold four digits; their fifth is 0.
pub(crate) fn tq1_0(src: &[f32], dst: &mut [u8]) -> Encoded {
    each_block(src, dst, |x: &[f32; 256], block: &mut [u8; 54]| {
        let (d, codes) = three_levels(x)?;
        let (long, rest) = codes.split_at(5 * 32);
        let (middle, last) = rest.split_at(5 * 16);
        for (m, byte) in block[..32].iter_mut().enumerate() {
            *byte = fraction((0..5).map(|n| long[32 * n + m]));
        }
        for (m, byte) in block[32..48].iter_mut().enumerate() {
            *byte = fraction((0..5).map(|n| middle[16 * n + m]));
        }
        for (m, byte) in block[48..52].iter_mut().enumerate() {
            *byte = fraction((0..4).map(|n| last[4 * n + m]).chain([0]));
        }
        block[52..].copy_from_slice(&d);
        Ok(())
    })
}

/// TQ2_0: two bits an element.
pub(crate) fn tq2_0(src: &[f32], dst: &mut [u8]) -> Encoded {
    each_block(src, dst, |x: &[f32; 256], block: &mut [u8; 66]| {
        let (d, codes) = three_levels(x)?;
        pack_pairs(&codes, &mut block[..64]);
        block[64..].copy_from_slice(&d);
        Ok(())
    })
}
