//! Numbers that cannot be weights: NaN, infinity, and magnitudes that no model has.
//!
//! [`first_implausible`] looks at the numbers that all elements of a block depend on and at nothing else: the f16 scales of the
//! integer types, the 8-bit ones of the FP4 types, every element of F32, F16 and BF16. Codes are integers, any of which is valid.
//! So two bytes of a Q8_0 block are read and four of a Q4_K block, and a file is scanned as fast as memory delivers it.
//!
//! A scale is judged by the largest number that its block can decode to with it, which encoders come close to: they choose scales
//! so that the block's extreme uses the last code. [`MAX_WEIGHT`] is the bound for that number.

use half::f16;

use crate::{GgmlType, blocks::u16_at, registry::QuantError};

/// No weight is larger, in magnitude.
///
/// After an RMSNorm of width 6144 a single element can be as large as √6144 ≈ 78, and 78 × 1024 is beyond f16: a matrix with weights
/// above some 840 could not have been run in the 16-bit arithmetic in which these models are published and served. Four times
/// 1024 leaves room for what is not multiplied (router biases are around 7 or 35 in published models) and for blocks
/// whose scale is larger than their extreme needs. One flipped top bit of the exponent of an f16 scale multiplies it by 65536, of a
/// bf16 by 2^128.
pub const MAX_WEIGHT: f32 = 4096.0;

/// The first number of some blocks that cannot be right.
#[derive(Debug, Clone, PartialEq)]
pub struct Implausible {
    /// Index of the element; of a blocked type that of the block's first element which the number concerns.
    pub element: usize,
    /// What it is: `scale NaN`, `element inf`.
    pub found: String,
    /// What was expected.
    pub expected: String,
}

/// The first number of whole blocks that is NaN, infinite, or larger than [`MAX_WEIGHT`] allows.
///
/// # Errors
/// [`QuantError::PartialBlock`]; [`QuantError::UnknownLayout`] for the types whose scales this version does not know (those
/// without decoder: Q1_0, Q2_0, the integers and F64).
pub fn first_implausible(ty: GgmlType, bytes: &[u8]) -> Result<Option<Implausible>, QuantError> {
    if !bytes.len().is_multiple_of(ty.block_bytes()) {
        let bytes = bytes.len();
        return Err(QuantError::PartialBlock { ty, bytes });
    }
    // The comments name what a scale is multiplied with at most.
    let found = match ty {
        GgmlType::F32 => f32s(bytes),
        GgmlType::F16 => words(bytes, f16_limit(1.0), |bits| f16::from_bits(bits).to_f32()),
        GgmlType::BF16 => words(bytes, (MAX_WEIGHT.to_bits() >> 16) as u16, |bits| {
            f32::from_bits(u32::from(bits) << 16)
        }),
        GgmlType::Q4_0 => scales::<18>(ty, bytes, [(0, "scale", 8.0)]),
        GgmlType::Q4_1 => scales::<20>(ty, bytes, [(0, "scale", 15.0), (2, "minimum", 1.0)]),
        GgmlType::Q5_0 => scales::<22>(ty, bytes, [(0, "scale", 16.0)]),
        GgmlType::Q5_1 => scales::<24>(ty, bytes, [(0, "scale", 31.0), (2, "minimum", 1.0)]),
        GgmlType::Q8_0 => scales::<34>(ty, bytes, [(0, "scale", 128.0)]),
        // The sum of 32 codes of up to 128.
        GgmlType::Q8_1 => scales::<36>(ty, bytes, [(0, "scale", 128.0), (2, "sum", 1.0 / 32.0)]),
        // Scale 15, code 3; minimum 15.
        GgmlType::Q2_K => scales::<84>(ty, bytes, [(80, "scale", 45.0), (82, "minimum", 15.0)]),
        // Scale -32, code -4.
        GgmlType::Q3_K => scales::<110>(ty, bytes, [(108, "scale", 128.0)]),
        // Scale 63, code 15; minimum 63.
        GgmlType::Q4_K => scales::<144>(ty, bytes, [(0, "scale", 945.0), (2, "minimum", 63.0)]),
        // Scale 63, code 31; minimum 63.
        GgmlType::Q5_K => scales::<176>(ty, bytes, [(0, "scale", 1953.0), (2, "minimum", 63.0)]),
        // Scale -128, code -32.
        GgmlType::Q6_K => scales::<210>(ty, bytes, [(208, "scale", 4096.0)]),
        GgmlType::Q8_K => q8_k(bytes),
        // Scale 15.5 / 4, level 43.
        GgmlType::IQ2_XXS => scales::<66>(ty, bytes, [(0, "scale", 166.625)]),
        GgmlType::IQ2_XS => scales::<74>(ty, bytes, [(0, "scale", 166.625)]),
        GgmlType::IQ2_S => scales::<82>(ty, bytes, [(0, "scale", 166.625)]),
        // Scale 15.5 / 2, level 62.
        GgmlType::IQ3_XXS => scales::<98>(ty, bytes, [(0, "scale", 480.5)]),
        // Scale 31, level 15.
        GgmlType::IQ3_S => scales::<110>(ty, bytes, [(0, "scale", 465.0)]),
        // Scale 15, level 1.125.
        GgmlType::IQ1_S => scales::<50>(ty, bytes, [(0, "scale", 16.875)]),
        GgmlType::IQ1_M => iq1_m(bytes),
        GgmlType::IQ4_NL => scales::<18>(ty, bytes, [(0, "scale", 127.0)]),
        // Scale -32, level -127.
        GgmlType::IQ4_XS => scales::<136>(ty, bytes, [(0, "scale", 4064.0)]),
        // Code 3 of TQ2_0, which no encoder writes, is 2.
        GgmlType::TQ1_0 => scales::<54>(ty, bytes, [(52, "scale", 1.0)]),
        GgmlType::TQ2_0 => scales::<66>(ty, bytes, [(64, "scale", 2.0)]),
        GgmlType::MXFP4 => mxfp4(bytes),
        GgmlType::NVFP4 => nvfp4(bytes),
        GgmlType::Q1_0
        | GgmlType::Q2_0
        | GgmlType::I8
        | GgmlType::I16
        | GgmlType::I32
        | GgmlType::I64
        | GgmlType::F64 => return Err(QuantError::UnknownLayout { ty }),
    };
    Ok(found)
}

/// Whether [`first_implausible`] knows this type.
pub fn can_scan(ty: GgmlType) -> bool {
    first_implausible(ty, &[]).is_ok()
}

/// Whether all numbers that elements depend on are zero in whole blocks, so that every element decodes to zero. Stops at the first
/// that is not. Of a type that cannot be scanned: whether all bytes are zero.
pub fn is_zero(ty: GgmlType, bytes: &[u8]) -> bool {
    let f16s_at = |places: &'static [usize]| {
        bytes.chunks_exact(ty.block_bytes()).all(|block| {
            places
                .iter()
                .all(|&at| block[at] == 0 && block[at + 1] & 0x7f == 0)
        })
    };
    match ty {
        GgmlType::F32 => {
            (bytes.as_chunks::<4>().0.iter()).all(|&bytes| u32::from_le_bytes(bytes) << 1 == 0)
        }
        GgmlType::F16 | GgmlType::BF16 => {
            (bytes.as_chunks::<2>().0.iter()).all(|&bytes| u16::from_le_bytes(bytes) << 1 == 0)
        }
        GgmlType::Q4_0 | GgmlType::Q5_0 | GgmlType::Q8_0 | GgmlType::Q8_1 => f16s_at(&[0]),
        GgmlType::IQ4_NL | GgmlType::IQ4_XS => f16s_at(&[0]),
        GgmlType::IQ2_XXS | GgmlType::IQ2_XS | GgmlType::IQ2_S => f16s_at(&[0]),
        GgmlType::IQ3_XXS | GgmlType::IQ3_S | GgmlType::IQ1_S => f16s_at(&[0]),
        GgmlType::Q4_1 | GgmlType::Q5_1 | GgmlType::Q4_K | GgmlType::Q5_K => f16s_at(&[0, 2]),
        GgmlType::Q2_K => f16s_at(&[80, 82]),
        GgmlType::Q3_K => f16s_at(&[108]),
        GgmlType::Q6_K => f16s_at(&[208]),
        GgmlType::TQ1_0 => f16s_at(&[52]),
        GgmlType::TQ2_0 => f16s_at(&[64]),
        _ => bytes.iter().all(|&byte| byte == 0),
    }
}

/// The largest f16, as bits without sign, whose product with `factor` is a plausible weight.
fn f16_limit(factor: f32) -> u16 {
    let limit = f16::from_f32(MAX_WEIGHT / factor);
    // Rounding up would let a little more pass; and what f16 cannot exceed must still be finite.
    let bits = limit.to_bits().min(f16::MAX.to_bits());
    if limit.to_f32() * factor > MAX_WEIGHT {
        bits - 1
    } else {
        bits
    }
}

fn element(element: usize, value: f32) -> Implausible {
    Implausible {
        element,
        found: format!("element {value}"),
        expected: format!("a finite number of at most {MAX_WEIGHT}"),
    }
}

fn scale(element: usize, what: &str, value: f32, factor: f32) -> Implausible {
    Implausible {
        element,
        found: format!("{what} {value}"),
        // Three decimals are enough to see how far off a number is.
        expected: format!(
            "a finite {what} of at most {}",
            (MAX_WEIGHT / factor * 1000.0).round() / 1000.0
        ),
    }
}

/// Elements of a chunk that is judged as a whole before its elements are: long enough to vectorise.
const CHUNK: usize = 1024;

fn f32s(bytes: &[u8]) -> Option<Implausible> {
    const LIMIT: i32 = MAX_WEIGHT.to_bits() as i32;
    // Without the sign, floats are ordered as their bits are; infinities and NaN come last.
    let is_bad = |bytes: &[u8; 4]| i32::from_le_bytes(*bytes) & i32::MAX > LIMIT;
    let (all, _) = bytes.as_chunks::<4>();
    for (i, chunk) in all.chunks(CHUNK).enumerate() {
        if !chunk.iter().fold(false, |bad, x| bad | is_bad(x)) {
            continue;
        }
        let j = chunk.iter().position(is_bad)?;
        return Some(element(i * CHUNK + j, f32::from_le_bytes(chunk[j])));
    }
    None
}

/// As [`f32s`] for 16-bit floats, whose bits are ordered in the same way.
fn words(bytes: &[u8], limit: u16, value: impl Fn(u16) -> f32) -> Option<Implausible> {
    let limit = limit as i16;
    let is_bad = |bytes: &[u8; 2]| i16::from_le_bytes(*bytes) & i16::MAX > limit;
    let (all, _) = bytes.as_chunks::<2>();
    for (i, chunk) in all.chunks(CHUNK).enumerate() {
        if !chunk.iter().fold(false, |bad, x| bad | is_bad(x)) {
            continue;
        }
        let j = chunk.iter().position(is_bad)?;
        return Some(element(i * CHUNK + j, value(u16::from_le_bytes(chunk[j]))));
    }
    None
}

/// The f16 numbers at these places of each block: where, what they are called, and what they are multiplied with at most.
#[inline]
fn scales<const BYTES: usize>(
    ty: GgmlType,
    bytes: &[u8],
    numbers: impl IntoIterator<Item = (usize, &'static str, f32), IntoIter: Clone>,
) -> Option<Implausible> {
    let numbers = numbers.into_iter();
    let mut limits = [(0usize, u16::MAX); 2];
    for (slot, (at, _, factor)) in limits.iter_mut().zip(numbers.clone()) {
        *slot = (at, f16_limit(factor));
    }
    let [(first, first_limit), (second, second_limit)] = limits;
    let (blocks, _) = bytes.as_chunks::<BYTES>();
    let bad = blocks.iter().position(|block| {
        u16_at(block, first) & 0x7fff > first_limit || u16_at(block, second) & 0x7fff > second_limit
    })?;
    let block = &blocks[bad];
    let value = |at: usize| f16::from_bits(u16_at(block, at)).to_f32();
    let (at, what, factor) = numbers
        .into_iter()
        .find(|&(at, _, factor)| u16_at(block, at) & 0x7fff > f16_limit(factor))?;
    Some(scale(bad * ty.block_elems(), what, value(at), factor))
}

fn q8_k(bytes: &[u8]) -> Option<Implausible> {
    const FACTOR: f32 = 128.0;
    let (blocks, _) = bytes.as_chunks::<292>();
    let d = |block: &[u8; 292]| f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
    // By bits, as in `f32s`: NaN is beyond any bound.
    let is_bad = |block: &[u8; 292]| d(block).abs().to_bits() > (MAX_WEIGHT / FACTOR).to_bits();
    let i = blocks.iter().position(is_bad)?;
    Some(scale(i * 256, "scale", d(&blocks[i]), FACTOR))
}

/// IQ1_M's scale is spread over the top nibbles of four words.
fn iq1_m(bytes: &[u8]) -> Option<Implausible> {
    // Scale 15, level 1.125.
    const FACTOR: f32 = 16.875;
    let (blocks, _) = bytes.as_chunks::<56>();
    let bits = |block: &[u8; 56]| {
        (0..4).fold(0, |bits, n| {
            bits | (u16_at(block, 48 + 2 * n) >> 12) << (4 * n)
        })
    };
    let limit = f16_limit(FACTOR);
    let i = blocks
        .iter()
        .position(|block| bits(block) & 0x7fff > limit)?;
    let d = f16::from_bits(bits(&blocks[i])).to_f32();
    Some(scale(i * 256, "scale", d, FACTOR))
}

/// 255 is the specification's NaN, although decoders make `2^127` of it.
fn mxfp4(bytes: &[u8]) -> Option<Implausible> {
    // 2^(e - 127) times 6, the largest level: 2^9 is the largest power that stays within the bound.
    const LARGEST: u8 = 127 + 9;
    const _: () = assert!(512.0 * 6.0 <= MAX_WEIGHT && 1024.0 * 6.0 > MAX_WEIGHT);
    let (blocks, _) = bytes.as_chunks::<17>();
    let i = blocks.iter().position(|block| block[0] > LARGEST)?;
    Some(Implausible {
        element: i * 32,
        found: match blocks[i][0] {
            255 => "scale NaN (E8M0 255)".to_owned(),
            e => format!("scale 2^{}", i32::from(e) - 127),
        },
        expected: format!("a scale of at most 2^{}", LARGEST - 127),
    })
}

/// UE4M3 ends at 448, 448 times 6 is within the bound: only its NaN is left.
fn nvfp4(bytes: &[u8]) -> Option<Implausible> {
    const _: () = assert!(448.0 * 6.0 <= MAX_WEIGHT);
    let (blocks, _) = bytes.as_chunks::<36>();
    let nan = |scales: &[u8; 36]| scales[..4].iter().position(|&scale| scale & 0x7f == 0x7f);
    let (i, sub_block) =
        (blocks.iter().enumerate()).find_map(|(i, block)| Some((i, nan(block)?)))?;
    Some(Implausible {
        element: i * 64 + sub_block * 16,
        found: format!("scale NaN (UE4M3 {:#04x})", blocks[i][sub_block]),
        expected: "a scale of at most 448".to_owned(),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::dequantize;

    /// SplitMix64.
    fn random(state: &mut u64) -> u64 {
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn decode(ty: GgmlType, bytes: &[u8]) -> Vec<f32> {
        let mut values = vec![0.0; bytes.len() / ty.block_bytes() * ty.block_elems()];
        dequantize(ty, bytes, &mut values).unwrap();
        values
    }

    /// On random bytes, of which many are no weights: whatever passes decodes to plausible weights only. A type with a minimum
    /// may reach twice the bound, since scale and minimum are judged apart.
    #[test]
    fn what_passes_decodes_to_plausible_numbers() {
        let (mut state, mut passed, mut refused) = (7, 0, 0);
        for &ty in GgmlType::ALL.iter().filter(|ty| ty.can_decode()) {
            for _ in 0..400 {
                let block: Vec<u8> = (0..ty.block_bytes())
                    .map(|_| random(&mut state) as u8)
                    .collect();
                if first_implausible(ty, &block).unwrap().is_some() {
                    refused += 1;
                    continue;
                }
                passed += 1;
                let values = decode(ty, &block);
                let max = values
                    .iter()
                    .fold(0f32, |max, x| if x.abs() <= max { max } else { x.abs() });
                assert!(max <= 2.0 * MAX_WEIGHT, "{ty}: {max} from {block:?}");
            }
        }
        assert!(passed > 1000 && refused > 1000, "{passed} {refused}");
    }

    #[test]
    fn every_type_that_can_be_decoded_can_be_scanned() {
        for &ty in GgmlType::ALL {
            assert_eq!(can_scan(ty), ty.can_decode(), "{ty}");
        }
    }

    #[test]
    fn the_block_and_what_is_wrong_with_it_are_named() {
        type Spoil = (GgmlType, usize, &'static [u8]);
        let cases: [(Spoil, &str, &str); 12] = [
            (
                (GgmlType::F32, 0, &[0, 0, 0xc0, 0x7f]),
                "element NaN",
                "a finite number of at most 4096",
            ),
            (
                (GgmlType::BF16, 0, &[0x80, 0xff]),
                "element -inf",
                "a finite number of at most 4096",
            ),
            (
                (GgmlType::F16, 0, &[0x01, 0x6c]),
                "element 4100",
                "a finite number of at most 4096",
            ),
            (
                (GgmlType::Q8_0, 0, &[0x00, 0x7e]),
                "scale NaN",
                "a finite scale of at most 32",
            ),
            (
                (GgmlType::Q8_0, 0, &[0x00, 0xd1]),
                "scale -40",
                "a finite scale of at most 32",
            ),
            (
                (GgmlType::Q4_K, 2, &[0x00, 0x7c]),
                "minimum inf",
                "a finite minimum of at most 65.016",
            ),
            (
                (GgmlType::Q2_K, 80, &[0x00, 0x7c]),
                "scale inf",
                "a finite scale of at most 91.022",
            ),
            (
                (GgmlType::Q6_K, 208, &[0x00, 0x40]),
                "scale 2",
                "a finite scale of at most 1",
            ),
            (
                (GgmlType::MXFP4, 0, &[255]),
                "scale NaN (E8M0 255)",
                "a scale of at most 2^9",
            ),
            (
                (GgmlType::MXFP4, 0, &[137]),
                "scale 2^10",
                "a scale of at most 2^9",
            ),
            (
                (GgmlType::NVFP4, 2, &[0x7f]),
                "scale NaN (UE4M3 0x7f)",
                "a scale of at most 448",
            ),
            (
                (GgmlType::IQ1_M, 54, &[0, 0x70]),
                "scale 8192",
                "a finite scale of at most 242.726",
            ),
        ];
        for ((ty, at, spoilt), found, expected) in cases {
            let mut blocks = vec![0; 2000 * ty.block_bytes()];
            assert_eq!(first_implausible(ty, &blocks).unwrap(), None, "{ty}");
            let block = 1500;
            blocks[block * ty.block_bytes() + at..][..spoilt.len()].copy_from_slice(spoilt);
            let sub_block = if ty == GgmlType::NVFP4 { 32 } else { 0 };
            let implausible = Implausible {
                element: block * ty.block_elems() + sub_block,
                found: found.to_owned(),
                expected: expected.to_owned(),
            };
            assert_eq!(
                first_implausible(ty, &blocks).unwrap(),
                Some(implausible),
                "{ty}"
            );
        }
    }

    /// The largest scale that passes, by way of the decoder: its block's largest element is within the bound, and the next
    /// larger scale's is not.
    #[test]
    fn the_bound_is_where_the_largest_code_meets_it() {
        let q8_0 = |bits: u16| {
            let mut block = bits.to_le_bytes().to_vec();
            block.resize(34, 0x80);
            block
        };
        let limit = f16_limit(128.0);
        for (bits, passes) in [(limit, true), (limit + 1, false)] {
            assert_eq!(
                first_implausible(GgmlType::Q8_0, &q8_0(bits))
                    .unwrap()
                    .is_none(),
                passes
            );
            assert_eq!(
                decode(GgmlType::Q8_0, &q8_0(bits))[0].abs() <= MAX_WEIGHT,
                passes
            );
        }
    }

    #[test]
    fn zero_blocks_decode_to_zeros_and_others_do_not() {
        let mut state = 3;
        for &ty in GgmlType::ALL.iter().filter(|ty| ty.can_decode()) {
            let zeros = vec![0; 3 * ty.block_bytes()];
            assert!(is_zero(ty, &zeros), "{ty}");
            for _ in 0..200 {
                let block: Vec<u8> = (0..ty.block_bytes())
                    .map(|_| {
                        random(&mut state) as u8
                            & random(&mut state) as u8
                            & random(&mut state) as u8
                    })
                    .collect();
                if is_zero(ty, &block) {
                    assert!(decode(ty, &block).iter().all(|&x| x == 0.0), "{ty}");
                }
            }
        }
        let mut q8_0 = vec![0; 68];
        q8_0[35] = 0x3c;
        assert!(!is_zero(GgmlType::Q8_0, &q8_0));
        assert!(is_zero(GgmlType::BF16, &[0, 0x80, 0, 0]), "minus zero");
    }

    #[test]
    fn partial_blocks_are_refused() {
        assert!(matches!(
            first_implausible(GgmlType::Q8_0, &[0; 35]),
            Err(QuantError::PartialBlock { bytes: 35, .. })
        ));
    }
}
