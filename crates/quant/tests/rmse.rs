//! The error of every encoder, against ggml's on the same numbers: `golden/rmse.txt`, which
//! `golden/README.md` says how to make.
#![allow(clippy::unwrap_used, reason = "tests")]

use glim_quant::{GgmlType, dequantize, quantize};

/// What ggml's error may be exceeded by.
const MARGIN: f64 = 1.02;

/// Numbers of each kind.
const NUMBERS: usize = 1 << 16;

/// 64-bit words behind one normal number.
const WORDS: usize = 17;

const GGML: &str = include_str!("golden/rmse.txt");

/// The `i`-th output of splitmix64 that was seeded with 0.
fn splitmix64(i: usize) -> u64 {
    let mut x = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// Normal numbers, the `n`-th run of them: of 1024 bits the number that are set, less the mean, and
/// an even fraction, in standard deviations.
fn normals(n: usize) -> Vec<f64> {
    let number = |i: usize| {
        let first = WORDS * (NUMBERS * n + i);
        let ones: u32 = (0..16).map(|k| splitmix64(first + k).count_ones()).sum();
        let fraction = (splitmix64(first + 16) >> 40) as f64 / f64::from(1 << 24) - 0.5;
        (f64::from(ones) - 512.0 + fraction) / 16.0
    };
    (0..NUMBERS).map(number).collect()
}

/// The two kinds of `rmse_numbers` in the script: normal ones, and Student's t with 3 degrees of
/// freedom.
fn numbers() -> [Vec<f32>; 2] {
    let z: [Vec<f64>; 5] = std::array::from_fn(normals);
    let t = |i: usize| {
        let squares = z[2][i] * z[2][i] + z[3][i] * z[3][i] + z[4][i] * z[4][i];
        z[1][i] / (squares / 3.0).sqrt()
    };
    [
        z[0].iter().map(|x| (x * 0.02) as f32).collect(),
        (0..NUMBERS).map(|i| (t(i) * 0.02) as f32).collect(),
    ]
}

fn rmse(ty: GgmlType, numbers: &[f32]) -> f64 {
    let mut blocks = vec![0xa5; ty.row_bytes(numbers.len()).unwrap()];
    quantize(ty, numbers, &mut blocks).unwrap();
    let mut decoded = vec![f32::NAN; numbers.len()];
    dequantize(ty, &blocks, &mut decoded).unwrap();
    let squares: f64 = numbers
        .iter()
        .zip(&decoded)
        .map(|(x, y)| (f64::from(*x) - f64::from(*y)).powi(2))
        .sum();
    (squares / numbers.len() as f64).sqrt()
}

/// A type and ggml's error on each kind of numbers.
fn ggml() -> Vec<(GgmlType, [f64; 2])> {
    GGML.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let [name, normal, heavy] = line.split(' ').collect::<Vec<_>>()[..] else {
                panic!("not a type and two errors: {line}");
            };
            let errors = [normal, heavy].map(|error| error.parse().unwrap());
            (GgmlType::from_name(name).unwrap(), errors)
        })
        .collect()
}

#[test]
fn errors_are_not_larger_than_those_of_ggml() {
    let numbers = numbers();
    for (ty, expected) in ggml() {
        for ((numbers, expected), kind) in numbers.iter().zip(expected).zip(["normal", "heavy"]) {
            let found = rmse(ty, numbers);
            let ratio = found / expected;
            println!("{ty:<7} {kind:<6} {found:.4e} {ratio:.6}");
            assert!(
                ratio <= MARGIN,
                "{ty}: RMSE {found} on {kind} numbers, ggml has {expected}"
            );
            // A far smaller one would mean that these are not the same numbers.
            assert!(ratio >= 0.9, "{ty}: RMSE {found}, ggml has {expected}");
        }
    }
}

#[test]
fn every_blocked_encoder_is_compared() {
    let compared: Vec<_> = ggml().iter().map(|(ty, _)| *ty).collect();
    for &ty in GgmlType::ALL {
        assert_eq!(
            compared.contains(&ty),
            ty.can_encode() && ty.block_elems() > 1,
            "{ty}"
        );
    }
}
