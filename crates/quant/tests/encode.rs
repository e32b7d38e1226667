//! What holds for encoders whatever the numbers: error bounds, canonical blocks, refusals.
#![allow(clippy::unwrap_used, reason = "tests")]

use glim_quant::{GgmlType, QuantError, dequantize, quantize, quantize_weighted};
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
///
/// A search gives up to a step of the extremes to serve the others better, so there it is one and a
/// half. Then the scales (and minima) of sub-blocks are rounded to integers, of which the largest is
/// 31 or more (Q2_K: 15): half of one at both ends.
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
        GgmlType::IQ4_XS => (amax * (0.2 + 0.5 / 31.0), 32.0 * 127.0, 0.0),
        GgmlType::Q2_K => minima(max, min, 3.0, 15.0),
        GgmlType::Q4_K => minima(max, min, 15.0, 63.0),
        GgmlType::Q5_K => minima(max, min, 31.0, 63.0),
        // The longer side ends at -4 or -32 steps, the other one step earlier.
        GgmlType::Q3_K => (amax * (1.5 / 3.0 + 0.5 / 31.0), 32.0 * 4.0, 0.0),
        GgmlType::Q6_K => (amax * (1.5 / 31.0 + 0.5 / 127.0), 128.0 * 32.0, 0.0),
        GgmlType::TQ1_0 | GgmlType::TQ2_0 => (0.5 * amax, 1.0, 0.0),
        // What is below 8 scales becomes 6.
        GgmlType::MXFP4 => (amax * 0.25, 0.0, 0.0),
        // Half of the widest gap, 2 of 6 scales, and a scale with three bits, which is 2^-10 off
        // where it is subnormal.
        GgmlType::NVFP4 => (amax * (1.0 / 6.0 + 1.0 / 15.0), 0.0, 6.0 * 0.5f32.powi(10)),
        other => panic!("no bound for {other}"),
    };
    // The last term is for the float operations themselves.
    step + amax.max(max - min) * relative + largest_code * absolute + slack + amax * 1e-6
}

/// Step, largest product of codes, and slack of a type with minima.
fn minima(max: f32, min: f32, top: f32, scale_top: f32) -> (f32, f32, f32) {
    let range = max.max(0.0) - min.min(0.0);
    let step = range * (1.5 / top + 1.0 / scale_top);
    (step, scale_top * (top + 1.0), range * 0.5f32.powi(11))
}

fn encodable() -> impl Strategy<Value = GgmlType> {
    let types: Vec<_> = GgmlType::ALL
        .iter()
        .copied()
        .filter(|ty| ty.can_encode())
        .collect();
    proptest::sample::select(types)
}

/// Super-blocks of runs of one size each, which may be off centre. None too large for NVFP4.
fn numbers() -> impl Strategy<Value = Vec<f32>> {
    let run = (-30i32..9, -2.0f32..2.0, vec(-1.0f32..1.0, 32)).prop_map(|(e, centre, x)| {
        let size = 2f32.powi(e);
        x.into_iter()
            .map(move |x| (x + centre) * size)
            .collect::<Vec<_>>()
    });
    vec(run, 16).prop_map(|runs| runs.concat())
}

/// How far a number may be decoded from those that were encoded, in units of the largest. Types with a minimum fit a line to the
/// elements that weigh something: two of them, one code and twice the largest apart, and the other codes lie on that line.
fn reach(ty: GgmlType) -> f32 {
    let steps = match ty {
        GgmlType::Q2_K => 3.0,
        GgmlType::Q4_1 | GgmlType::Q4_K => 15.0,
        GgmlType::Q5_1 | GgmlType::Q5_K => 31.0,
        _ => return 2.0,
    };
    2.0 * steps + 1.0
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
        // The bounds of element-wise types follow from the largest element, too.
        let n = ty.block_elems().max(32);
        for (i, (x, decoded)) in x.chunks(n).zip(decoded.chunks(n)).enumerate() {
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
        let alone: Vec<u8> = x.chunks(ty.block_elems()).flat_map(|x| encode(ty, x).unwrap()).collect();
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

    /// Whatever the weights are, no scale comes out wilder than they can make it.
    #[test]
    fn any_weights_keep_numbers_within_reach_of_the_largest(
        ty in encodable(),
        x in numbers(),
        bits in vec(any::<u32>(), 256),
    ) {
        let weights: Vec<f32> = bits
            .into_iter()
            .map(|bits| f32::from_bits(bits & 0x7fff_ffff))
            .map(|w| if w.is_finite() { w } else { 0.0 })
            .collect();
        let decoded = decode(ty, &encode_weighted(ty, &x, &weights).unwrap());
        let reach = reach(ty);
        for (x, decoded) in x.chunks(256).zip(decoded.chunks(256)) {
            let amax = x.iter().fold(0f32, |amax, x| amax.max(x.abs()));
            for decoded in decoded {
                // The smallest scale may be as small as an f16 gets.
                prop_assert!(decoded.abs() <= reach * amax + 1e-2, "{ty}: {decoded} of {amax}");
            }
        }
    }

    #[test]
    fn any_bits_are_encoded_or_refused(ty in encodable(), bits in vec(any::<u32>(), 256)) {
        let x: Vec<f32> = bits.into_iter().map(f32::from_bits).collect();
        match encode(ty, &x) {
            Ok(blocks) => {
                let blocked = ty.block_elems() > 1;
                let decoded = decode(ty, &blocks);
                prop_assert!(!blocked || decoded.iter().all(|x| x.is_finite()), "{ty}: {decoded:?}");
            }
            Err(QuantError::NotFinite { element, .. }) => prop_assert!(!x[element].is_finite()),
            Err(QuantError::ScaleOverflow { first, last, .. }) => {
                let end = if ty == GgmlType::NVFP4 { 6.0 * 448.0 } else { 65504.0 };
                prop_assert!(x[first..=last].iter().any(|x| x.abs() > end));
            }
            Err(other) => prop_assert!(false, "{other}"),
        }
    }
}

/// Types that share scales among elements.
fn blocked() -> impl Iterator<Item = GgmlType> {
    GgmlType::ALL
        .iter()
        .copied()
        .filter(|ty| ty.can_encode() && ty.block_elems() > 1)
}

#[test]
fn one_number_that_is_not_finite_is_named() {
    for ty in blocked() {
        let n = ty.block_elems();
        for (x, found) in [
            (f32::NAN, "NaN"),
            (f32::INFINITY, "infinite"),
            (f32::NEG_INFINITY, "infinite"),
        ] {
            let mut row = vec![1.0; 3 * n];
            row[n + 5] = x;
            assert_eq!(
                encode(ty, &row).unwrap_err().to_string(),
                format!(
                    "element {} is {found}, which {ty} cannot store: expected finite numbers (F32, F16 and BF16 store any)",
                    n + 5
                )
            );
        }
    }
}

#[test]
fn numbers_beyond_the_scale_are_refused() {
    for ty in blocked().filter(|&ty| ty != GgmlType::MXFP4) {
        let n = ty.block_elems();
        let mut row = vec![1.0; 3 * n];
        row[2 * n + 6] = -1e9;
        let scales = match ty {
            GgmlType::NVFP4 => "E4M3 scales end at 448",
            _ => "f16 scales end at 65504",
        };
        assert_eq!(
            encode(ty, &row).unwrap_err().to_string(),
            format!(
                "elements {} to {} are too large for {ty}, whose {scales} (F32 and BF16 store them)",
                2 * n,
                3 * n - 1
            )
        );
        // Where sums and squares overflow f32 on the way.
        for x in [1e30, f32::MAX] {
            (row[3], row[4]) = (x, -x);
            let error = encode(ty, &row).unwrap_err();
            let expected = QuantError::ScaleOverflow {
                ty,
                first: 0,
                last: n - 1,
            };
            assert_eq!(error, expected);
        }
    }
    // A minimum beyond f16 with a small scale.
    let row: Vec<f32> = (0..32).map(|j| 70_000.0 + j as f32).collect();
    for (ty, fits) in [
        (GgmlType::Q4_1, false),
        (GgmlType::Q5_1, false),
        (GgmlType::Q4_0, true),
        (GgmlType::MXFP4, true),
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
    for ty in blocked() {
        let row: Vec<f32> = (1..=256).map(f32::from_bits).collect();
        let decoded = decode(ty, &encode(ty, &row).unwrap());
        assert!(decoded.iter().all(|&x| x == 0.0), "{ty}: {decoded:?}");
    }
}

#[test]
fn types_without_an_encoder_are_named_with_those_that_have_one() {
    let error = quantize(GgmlType::IQ2_XS, &[0.0; 256], &mut [0; 74]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "encoding to type IQ2_XS is not supported (supported: F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, \
         Q5_K, Q6_K, IQ4_NL, IQ4_XS, BF16, TQ1_0, TQ2_0, MXFP4, NVFP4)"
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

/// How far the largest element of a block may be off, as a fraction of itself, if nothing else in
/// the block matters.
fn precision(ty: GgmlType) -> f32 {
    match ty {
        GgmlType::MXFP4 => 0.25,
        GgmlType::NVFP4 => 1.0 / 16.0,
        // Scales (of sub-blocks) and codes reach it; the rest is f16, if not a subnormal one.
        _ => 0.5f32.powi(10),
    }
}

#[test]
fn zeros_stay_zeros() {
    for ty in blocked() {
        for zero in [0.0, -0.0] {
            let decoded = decode(ty, &encode(ty, &[zero; 512]).unwrap());
            assert!(decoded.iter().all(|&x| x == 0.0), "{ty}: {decoded:?}");
        }
    }
}

#[test]
fn zeros_beside_other_sub_blocks_stay_zeros() {
    for ty in blocked() {
        let mut row = [0.0; 256];
        for (j, x) in row.iter_mut().enumerate().skip(128) {
            *x = (j % 7) as f32 - 3.0;
        }
        let decoded = decode(ty, &encode(ty, &row).unwrap());
        assert!(
            decoded[..128].iter().all(|&x| x == 0.0),
            "{ty}: {decoded:?}"
        );
    }
}

#[test]
fn constants_are_kept() {
    for ty in blocked() {
        for c in [0.75, -0.75, 1.0, -3.3, 511.0] {
            for x in decode(ty, &encode(ty, &[c; 256]).unwrap()) {
                assert!(
                    (x - c).abs() <= c.abs() * precision(ty),
                    "{ty}: {c} became {x}"
                );
            }
        }
    }
}

#[test]
fn one_outlier_is_kept_whatever_stands_around_it() {
    for ty in blocked() {
        for at in [0, 15, 100, 255] {
            for outlier in [300.0, -300.0] {
                let mut row: Vec<f32> = (0..256).map(|j| (j % 9) as f32 * 1e-3 - 4e-3).collect();
                row[at] = outlier;
                let decoded = decode(ty, &encode(ty, &row).unwrap());
                let error = (decoded[at] - outlier).abs();
                // Between its codes and the others' there is room for a little more.
                assert!(
                    error <= 300.0 * (precision(ty) + 0.01),
                    "{ty}: {outlier} at {at} became {}",
                    decoded[at]
                );
            }
        }
    }
}

/// About normal numbers, by a linear congruence.
fn some_numbers(n: usize) -> Vec<f32> {
    let mut state = 1u32;
    let mut uniform = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..n).map(|_| (0..6).map(|_| uniform()).sum()).collect()
}

fn encode_weighted(ty: GgmlType, x: &[f32], weights: &[f32]) -> Result<Vec<u8>, QuantError> {
    let mut blocks = vec![0xa5; x.len() / ty.block_elems() * ty.block_bytes()];
    quantize_weighted(ty, x, Some(weights), &mut blocks).map(|()| blocks)
}

const WEIGHTED: [GgmlType; 11] = [
    GgmlType::Q4_0,
    GgmlType::Q4_1,
    GgmlType::Q5_0,
    GgmlType::Q5_1,
    GgmlType::Q2_K,
    GgmlType::Q3_K,
    GgmlType::Q4_K,
    GgmlType::Q5_K,
    GgmlType::Q6_K,
    GgmlType::IQ4_NL,
    GgmlType::IQ4_XS,
];

#[test]
fn errors_move_to_the_columns_that_matter_less() {
    let x = some_numbers(16 * 512);
    let weights: Vec<f32> = (0..512)
        .map(|j| if j % 3 == 0 { 100.0 } else { 1.0 })
        .collect();
    for ty in WEIGHTED {
        let error = |blocks: &[u8]| -> f32 {
            let decoded = decode(ty, blocks);
            let square = |j: usize| weights[j % 512] * (x[j] - decoded[j]).powi(2);
            (0..x.len()).map(square).sum()
        };
        let plain = error(&encode(ty, &x).unwrap());
        let weighted = error(&encode_weighted(ty, &x, &weights).unwrap());
        assert!(
            weighted < 0.99 * plain,
            "{ty}: {weighted} and {plain} without"
        );
    }
}

#[test]
fn types_without_a_weighted_search_are_encoded_as_without_weights() {
    let x = some_numbers(512);
    let weights: Vec<f32> = (0..256).map(|j| j as f32).collect();
    for ty in GgmlType::ALL.iter().copied().filter(|ty| ty.can_encode()) {
        let same = encode(ty, &x).unwrap() == encode_weighted(ty, &x, &weights).unwrap();
        assert_eq!(same, !WEIGHTED.contains(&ty), "{ty}");
    }
}

#[test]
fn only_the_proportions_of_weights_count() {
    let x = some_numbers(1024);
    let weights: Vec<f32> = some_numbers(512).iter().map(|x| x * x).collect();
    for ty in WEIGHTED {
        let expected = encode_weighted(ty, &x, &weights).unwrap();
        for power in [-60, 20, 120] {
            let weights: Vec<f32> = weights.iter().map(|w| w * 2f32.powi(power)).collect();
            let scaled = encode_weighted(ty, &x, &weights).unwrap();
            assert!(scaled == expected, "{ty}: times 2^{power}");
        }
    }
}

#[test]
fn a_block_without_any_weight_is_encoded_as_without_weights() {
    let x = some_numbers(512);
    for ty in WEIGHTED {
        let mut weights = vec![0.0; 512];
        assert!(
            encode_weighted(ty, &x, &weights).unwrap() == encode(ty, &x).unwrap(),
            "{ty}"
        );
        weights[256..].fill(1.0);
        let blocks = encode_weighted(ty, &x, &weights).unwrap();
        let (first, _) = blocks.split_at(blocks.len() / 2);
        assert!(first == encode(ty, &x[..256]).unwrap(), "{ty}");
    }
}

#[test]
fn weights_that_do_not_fit_are_refused() {
    let ty = GgmlType::Q4_K;
    let x = [1.0; 1024];
    let message = |weights: &[f32]| encode_weighted(ty, &x, weights).unwrap_err().to_string();
    assert_eq!(
        message(&[1.0; 768]),
        "1024 elements are not whole rows of 768 columns, as many as there are weights"
    );
    assert_eq!(
        message(&[]),
        "1024 elements are not whole rows of 0 columns, as many as there are weights"
    );
    assert_eq!(
        message(&[1.0; 128]),
        "128 elements are not whole blocks of Q4_K: expected a multiple of 256"
    );
    for (bad, found) in [(-1.0, "-1"), (f32::NAN, "NaN"), (f32::INFINITY, "inf")] {
        let mut weights = [1.0; 512];
        weights[300] = bad;
        assert_eq!(
            message(&weights),
            format!("the weight of column 300 is {found}: expected a finite number of at least 0")
        );
    }
    quantize_weighted(ty, &[], Some(&[]), &mut []).unwrap();
    quantize_weighted(ty, &[], Some(&[1.0; 256]), &mut []).unwrap();
}

#[test]
fn what_weighted_rows_cannot_store_is_named_by_its_place_in_all_rows() {
    for ty in WEIGHTED {
        let mut x = vec![1.0; 4 * 512];
        x[3 * 512 + 260] = f32::NAN;
        let error = encode_weighted(ty, &x, &[1.0; 512]).unwrap_err();
        assert!(
            matches!(error, QuantError::NotFinite { element: 1796, .. }),
            "{error}"
        );
        x[3 * 512 + 260] = 1e12;
        let error = encode_weighted(ty, &x, &[1.0; 512]).unwrap_err();
        let block = ty.block_elems();
        let (start, end) = (1796 / block * block, 1796 / block * block + block - 1);
        assert!(
            matches!(error, QuantError::ScaleOverflow { first, last, .. } if first == start && last == end),
            "{error}"
        );
    }
}
