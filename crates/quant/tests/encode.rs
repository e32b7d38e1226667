//! What holds for encoders whatever the numbers: error bounds, canonical blocks, refusals.
#![allow(clippy::unwrap_used, reason = "tests")]

use glim_quant::{GgmlType, QuantError, dequantize, quantize};
use proptest::{collection::vec, prelude::*};

fn encode(ty: GgmlType, x: &[f32]) -> Result<Vec<u8>, QuantError> {
    let mut blocks = vec![0xa5; x.len() / ty.block_elems() * ty.block_bytes()];
    quantize(ty, x, &mut blocks).map(|()| blocks)
}

fn decode(ty: GgmlType, blocks: &[u8]) -> Vec<f32> {
    let mut x = vec![f32::NAN; blocks.len() / ty.block_bytes() * ty.block_elems()];
    dequantize(ty, blocks, &mut x).unwrap();
    x
}

/// The f16 nearest to `x`, as bits, of a block's scale in tests.
fn f16_bits(x: f32) -> u16 {
    half::f16::from_f32(x).to_bits()
}

/// How far a decoded element may be from the original, for a block of these elements.
///
/// A code is at most half a step off (a whole one at the short end of Q4_0 and Q5_0, where the code
/// that would be nearest does not exist). The scale, and the minimum, are rounded to f16: 2^-11 of
/// what they are, or 2^-25 where they are subnormal, times the largest code.
fn bound(ty: GgmlType, x: &[f32]) -> f32 {
    let amax = x.iter().fold(0f32, |amax, x| amax.max(x.abs()));
    let max = x.iter().fold(f32::MIN, |max, &x| max.max(x));
    let min = x.iter().fold(f32::MAX, |min, &x| min.min(x));
    let relative = 0.5f32.powi(11);
    let absolute = 0.5f32.powi(25);
    let (step, largest_code, slack) = match ty {
        GgmlType::F32 => return 0.0,
        GgmlType::F16 => return amax * relative + absolute,
        GgmlType::BF16 => return amax * 0.5f32.powi(8),
        GgmlType::Q8_0 => (0.5 * amax / 127.0, 127.0, 0.0),
        GgmlType::Q4_0 => (amax / 8.0, 8.0, 0.0),
        GgmlType::Q5_0 => (amax / 16.0, 16.0, 0.0),
        GgmlType::Q4_1 => (
            0.5 * (max - min) / 15.0,
            15.0,
            min.abs() * relative + absolute,
        ),
        GgmlType::Q5_1 => (
            0.5 * (max - min) / 31.0,
            31.0,
            min.abs() * relative + absolute,
        ),
        // The widest gap between levels is 24, and the search may leave the extreme as far beyond
        // the last one (113 or -127) as seven tries do, to serve the others better.
        GgmlType::IQ4_NL => (amax * 0.2, 127.0, 0.0),
        other => panic!("no bound for {other}"),
    };
    // The last term is for the float operations themselves.
    step + amax.max(max - min) * relative + largest_code * absolute + slack + amax * 1e-6
}

fn encodable() -> impl Strategy<Value = GgmlType> {
    let types: Vec<_> = GgmlType::ALL
        .iter()
        .copied()
        .filter(|ty| ty.can_encode())
        .collect();
    proptest::sample::select(types)
}

/// Blocks of numbers of one size each, which may be off centre.
fn numbers() -> impl Strategy<Value = Vec<f32>> {
    let block = (-30i32..15, -2.0f32..2.0, vec(-1.0f32..1.0, 32)).prop_map(|(e, centre, x)| {
        let size = 2f32.powi(e);
        x.into_iter()
            .map(move |x| (x + centre) * size)
            .collect::<Vec<_>>()
    });
    vec(block, 1..4).prop_map(|blocks| blocks.concat())
}

/// A block of `ty` as an encoder leaves it when the scale is exact: the extreme codes are taken.
fn canonical(ty: GgmlType) -> impl Strategy<Value = Vec<u8>> {
    // A power of two: its products with codes divide back exactly, whatever the rounding.
    (-12i32..8, vec(any::<u8>(), 32), 0usize..32, any::<bool>()).prop_map(
        move |(e, codes, at, flip)| {
            let scale = f16_bits(if flip { -(2f32.powi(e)) } else { 2f32.powi(e) });
            let mut block = scale.to_le_bytes().to_vec();
            match ty {
                GgmlType::Q8_0 => {
                    block[1] &= 0x7f; // this type's scale is positive
                    block.extend(codes.iter().map(|code| code % 127)); // 0 ..= 126
                    block[2 + at] = if flip { -127i8 as u8 } else { 127 };
                }
                GgmlType::Q4_0 => {
                    let mut codes: Vec<u8> = codes.iter().map(|code| code & 0x0f).collect();
                    codes[at] = 0;
                    block.extend((0..16).map(|j| codes[j] | codes[j + 16] << 4));
                }
                GgmlType::Q5_0 => {
                    let mut codes: Vec<u8> = codes.iter().map(|code| code & 0x1f).collect();
                    codes[at] = 0;
                    let qh = (0..32).fold(0, |qh, j| qh | u32::from(codes[j] >> 4) << j);
                    block.extend(qh.to_le_bytes());
                    block.extend((0..16).map(|j| codes[j] & 0x0f | (codes[j + 16] & 0x0f) << 4));
                }
                other => panic!("no canonical blocks of {other}"),
            }
            block
        },
    )
}

proptest! {
    #[test]
    fn decoded_numbers_are_within_the_formats_error(ty in encodable(), x in numbers()) {
        let decoded = decode(ty, &encode(ty, &x).unwrap());
        for (i, (x, decoded)) in x.chunks(32).zip(decoded.chunks(32)).enumerate() {
            let bound = bound(ty, x);
            for (j, (x, decoded)) in x.iter().zip(decoded).enumerate() {
                let error = (x - decoded).abs();
                prop_assert!(error <= bound, "{ty}: element {j} of block {i}: {x} became {decoded}, bound {bound}");
            }
        }
    }

    #[test]
    fn blocks_are_encoded_alone_as_together(ty in encodable(), x in numbers()) {
        let together = encode(ty, &x).unwrap();
        let alone: Vec<u8> = x.chunks(32).flat_map(|x| encode(ty, x).unwrap()).collect();
        prop_assert_eq!(together, alone);
    }

    #[test]
    fn canonical_q8_0_blocks_survive_the_round_trip(block in canonical(GgmlType::Q8_0)) {
        prop_assert_eq!(encode(GgmlType::Q8_0, &decode(GgmlType::Q8_0, &block)).unwrap(), block);
    }

    #[test]
    fn canonical_q4_0_blocks_survive_the_round_trip(block in canonical(GgmlType::Q4_0)) {
        prop_assert_eq!(encode(GgmlType::Q4_0, &decode(GgmlType::Q4_0, &block)).unwrap(), block);
    }

    #[test]
    fn canonical_q5_0_blocks_survive_the_round_trip(block in canonical(GgmlType::Q5_0)) {
        prop_assert_eq!(encode(GgmlType::Q5_0, &decode(GgmlType::Q5_0, &block)).unwrap(), block);
    }

    #[test]
    fn any_bits_are_encoded_or_refused(ty in encodable(), bits in vec(any::<u32>(), 64)) {
        let x: Vec<f32> = bits.into_iter().map(f32::from_bits).collect();
        match encode(ty, &x) {
            Ok(blocks) => {
                let blocked = ty.block_elems() > 1;
                let decoded = decode(ty, &blocks);
                prop_assert!(!blocked || decoded.iter().all(|x| x.is_finite()), "{ty}: {decoded:?}");
            }
            Err(QuantError::NotFinite { element, .. }) => prop_assert!(!x[element].is_finite()),
            Err(QuantError::ScaleOverflow { first, last, .. }) => {
                prop_assert!(x[first..=last].iter().any(|x| x.abs() > 65504.0));
            }
            Err(other) => prop_assert!(false, "{other}"),
        }
    }
}

const BLOCKED: [GgmlType; 6] = [
    GgmlType::Q8_0,
    GgmlType::Q4_0,
    GgmlType::Q4_1,
    GgmlType::Q5_0,
    GgmlType::Q5_1,
    GgmlType::IQ4_NL,
];

#[test]
fn one_number_that_is_not_finite_is_named() {
    for ty in BLOCKED {
        for (x, found) in [
            (f32::NAN, "NaN"),
            (f32::INFINITY, "infinite"),
            (f32::NEG_INFINITY, "infinite"),
        ] {
            let mut row = [1.0; 96];
            row[37] = x;
            assert_eq!(
                encode(ty, &row).unwrap_err().to_string(),
                format!(
                    "element 37 is {found}, which {ty} cannot store: expected finite numbers (F32, F16 and BF16 store any)"
                )
            );
        }
    }
}

#[test]
fn numbers_beyond_an_f16_scale_are_refused() {
    for ty in BLOCKED {
        let mut row = [1.0; 96];
        row[70] = -1e9;
        assert_eq!(
            encode(ty, &row).unwrap_err().to_string(),
            format!(
                "elements 64 to 95 are too large for {ty}, whose f16 scales end at 65504 (F32 and BF16 store them)"
            )
        );
        // Where sums and squares overflow f32 on the way.
        for x in [1e30, f32::MAX] {
            (row[3], row[4]) = (x, -x);
            let error = encode(ty, &row).unwrap_err();
            assert!(
                matches!(
                    error,
                    QuantError::ScaleOverflow {
                        first: 0,
                        last: 31,
                        ..
                    }
                ),
                "{ty}: {error}"
            );
        }
    }
    // A minimum beyond f16 with a small scale.
    let row: Vec<f32> = (0..32).map(|j| 70_000.0 + j as f32).collect();
    for (ty, fits) in [
        (GgmlType::Q4_1, false),
        (GgmlType::Q5_1, false),
        (GgmlType::Q4_0, true),
    ] {
        assert_eq!(encode(ty, &row).is_ok(), fits, "{ty}");
    }
}

#[test]
fn element_wise_types_carry_over_what_is_not_finite() {
    let x = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e6, -0.0];
    for ty in [GgmlType::F32, GgmlType::F16, GgmlType::BF16] {
        let decoded = decode(ty, &encode(ty, &x).unwrap());
        assert!(decoded[0].is_nan(), "{ty}");
        assert_eq!(decoded[1..3], [f32::INFINITY, f32::NEG_INFINITY], "{ty}");
        assert_eq!(decoded[3].is_infinite(), ty == GgmlType::F16, "{ty}");
        assert_eq!(decoded[4].to_bits(), (-0f32).to_bits(), "{ty}");
    }
    // Signalling NaNs stay NaNs, also those whose upper bits alone would be an infinity.
    let signalling = [0x7f80_0001, 0xff80_0001].map(f32::from_bits);
    for (ty, quiet) in [(GgmlType::BF16, 0x7fc0u16), (GgmlType::F16, 0x7e00)] {
        let expected = [quiet.to_le_bytes(), (quiet | 0x8000).to_le_bytes()].concat();
        assert_eq!(encode(ty, &signalling).unwrap(), expected, "{ty}");
    }
}

#[test]
fn the_smallest_numbers_become_zeros() {
    for ty in BLOCKED {
        let row: Vec<f32> = (1..=32).map(f32::from_bits).collect();
        let decoded = decode(ty, &encode(ty, &row).unwrap());
        assert!(decoded.iter().all(|&x| x == 0.0), "{ty}: {decoded:?}");
    }
}

#[test]
fn types_without_an_encoder_are_named_with_those_that_have_one() {
    let error = quantize(GgmlType::Q4_K, &[0.0; 256], &mut [0; 144]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "encoding to type Q4_K is not supported (supported: F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, BF16)"
    );
}

#[test]
fn lengths_that_do_not_fit_are_refused_and_nothing_is_written() {
    let mut dst = [7; 34];
    let partial = quantize(GgmlType::Q8_0, &[0.0; 33], &mut dst).unwrap_err();
    assert_eq!(
        partial.to_string(),
        "33 elements are not whole blocks of Q8_0: expected a multiple of 32"
    );
    let short = quantize(GgmlType::Q8_0, &[0.0; 64], &mut dst).unwrap_err();
    assert_eq!(
        short.to_string(),
        "64 elements take 68 bytes as Q8_0, but the destination has room for exactly 34"
    );
    assert_eq!(dst, [7; 34]);
}

#[test]
fn no_elements_are_no_blocks() {
    for ty in GgmlType::ALL.iter().filter(|ty| ty.can_encode()) {
        quantize(*ty, &[], &mut []).unwrap();
    }
}
