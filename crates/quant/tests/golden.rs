//! The scalar decoders and encoders against gguf-py (encoders that it lacks: against ggml), bit for
//! bit.
//! `golden/README.md` says how the files are made.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{fs, path::Path};

use glim_quant::{GgmlType, dequantize, quantize, quantize_weighted};

/// Values under one CRC, in the goldens that have CRCs in place of values.
const HASHED_VALUES: usize = 32;

fn read(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name);
    fs::read(path).unwrap()
}

fn words(bytes: &[u8]) -> Vec<u32> {
    let (words, rest) = bytes.as_chunks();
    assert!(rest.is_empty());
    words.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

/// Blocks of `ty`, and as many words of expectation as stand after them: one for each
/// `values_per_word` values.
fn decoded(ty: GgmlType, values_per_word: usize) -> (Vec<u8>, Vec<u32>) {
    let name = format!("{}.bin", ty.name().to_lowercase());
    let mut golden = read(&name);
    let per_block = ty.block_bytes() + 4 * ty.block_elems() / values_per_word;
    assert!(
        golden.len().is_multiple_of(per_block),
        "{name} is not whole blocks of {ty}"
    );
    let n_blocks = golden.len() / per_block;
    assert!(n_blocks >= 20, "{name} has only {n_blocks} blocks");
    let expected = golden.split_off(n_blocks * ty.block_bytes());
    (golden, words(&expected))
}

/// Decodes all blocks in one call, and each block in a call of its own.
fn decode(ty: GgmlType, blocks: &[u8]) -> Vec<f32> {
    let n_blocks = blocks.len() / ty.block_bytes();
    let mut values = vec![f32::NAN; n_blocks * ty.block_elems()];
    dequantize(ty, blocks, &mut values).unwrap();
    let mut one = vec![f32::NAN; ty.block_elems()];
    for (block, whole) in blocks
        .chunks_exact(ty.block_bytes())
        .zip(values.chunks_exact(ty.block_elems()))
    {
        dequantize(ty, block, &mut one).unwrap();
        assert!(
            one.iter()
                .zip(whole)
                .all(|(a, b)| a.to_bits() == b.to_bits()),
            "{ty}: blocks depend on each other"
        );
    }
    values
}

fn check_values(ty: GgmlType) {
    let (blocks, expected) = decoded(ty, 1);
    for (i, (value, bits)) in decode(ty, &blocks).into_iter().zip(expected).enumerate() {
        let (block, elem) = (i / ty.block_elems(), i % ty.block_elems());
        assert_eq!(
            value.to_bits(),
            bits,
            "{ty}: element {elem} of block {block} is {value}, expected {}",
            f32::from_bits(bits)
        );
    }
}

fn check_hashes(ty: GgmlType) {
    let (blocks, expected) = decoded(ty, HASHED_VALUES);
    let values = decode(ty, &blocks);
    let (runs, _) = values.as_chunks::<HASHED_VALUES>();
    assert_eq!(runs.len(), expected.len());
    for (i, (run, crc)) in runs.iter().zip(expected).enumerate() {
        let bytes: Vec<u8> = run.iter().flat_map(|x| x.to_le_bytes()).collect();
        let first = i * HASHED_VALUES;
        let (block, elem) = (first / ty.block_elems(), first % ty.block_elems());
        assert_eq!(
            crc32(&bytes),
            crc,
            "{ty}: elements from {elem} of block {block} are not as gguf-py has them: {run:?}"
        );
    }
}

/// CRC-32 as zlib has it.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            let carry = if crc & 1 == 1 { 0xedb8_8320 } else { 0 };
            crc >> 1 ^ carry
        })
    })
}

#[test]
fn crc32_is_that_of_zlib() {
    assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
}

/// What the numbers are multiplied with: NVFP4 cannot store the largest.
fn factor(ty: GgmlType) -> f32 {
    match ty {
        GgmlType::NVFP4 => 0.5f32.powi(12),
        _ => 1.0,
    }
}

/// Encodes the f32 in `input` and compares the blocks.
fn check_encoding(ty: GgmlType, input: &str) {
    let values: Vec<f32> = words(&read(input))
        .into_iter()
        .map(|word| f32::from_bits(word) * factor(ty))
        .collect();
    let expected = match ty {
        GgmlType::F32 => read(input),
        _ => read(&format!("encode_{}.bin", ty.name().to_lowercase())),
    };
    let mut blocks = vec![0xa5; values.len() / ty.block_elems() * ty.block_bytes()];
    quantize(ty, &values, &mut blocks).unwrap();
    assert_eq!(blocks.len(), expected.len());
    for (i, (block, expected)) in blocks
        .chunks_exact(ty.block_bytes())
        .zip(expected.chunks_exact(ty.block_bytes()))
        .enumerate()
    {
        let values = &values[i * ty.block_elems()..][..ty.block_elems()];
        assert_eq!(block, expected, "{ty}: block {i} of {values:?}");
    }
}

/// Blocks of 32 of `many_numbers`, and how many elements one CRC stands for.
const MANY: (usize, usize) = (1 << 15, 512 * 32);

/// The same of types that ggml encoded.
const GGML_MANY: (usize, usize) = (1 << 12, 2048);

/// The sum of the four u16 of the `i`-th output of splitmix64, centred.
fn sum_of_four(i: usize) -> f32 {
    let mut x = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^= x >> 31;
    let sum: i32 = (0..4).map(|n| i32::from((x >> (16 * n)) as u16)).sum();
    (sum - 0x20000) as f32
}

/// The numbers of `many_numbers` in the script, which describes them.
fn many_numbers(blocks: usize) -> Vec<f32> {
    (0..32 * blocks)
        .map(|i| sum_of_four(i) * 2f32.powi((i / 32 % 33) as i32 - 34))
        .collect()
}

/// One CRC for each `run` elements.
fn crcs(ty: GgmlType, blocks: &[u8], run: usize) -> Vec<u32> {
    let bytes = ty.row_bytes(run).unwrap();
    assert!(blocks.len().is_multiple_of(bytes));
    blocks.chunks(bytes).map(crc32).collect()
}

/// Encodes many blocks and compares their CRCs.
fn check_many_encodings(ty: GgmlType, (n_blocks, run): (usize, usize)) {
    let expected = words(&read(&format!("many_{}.bin", ty.name().to_lowercase())));
    let numbers: Vec<f32> = many_numbers(n_blocks)
        .iter()
        .map(|x| x * factor(ty))
        .collect();
    let mut blocks = vec![0xa5; ty.row_bytes(numbers.len()).unwrap()];
    quantize(ty, &numbers, &mut blocks).unwrap();
    assert_eq!(crcs(ty, &blocks, run), expected, "{ty}");
}

/// The weights of `column_weights` in the script.
fn column_weights() -> Vec<f32> {
    let root = |i: usize| match i {
        512..528 => 0.0,
        _ => sum_of_four(i) * 0.5f32.powi(15),
    };
    (0..1024).map(|i| root(i) * root(i)).collect()
}

/// Encodes many blocks with weights and compares their CRCs.
fn check_weighted_encodings(ty: GgmlType) {
    let expected = words(&read(&format!("weighted_{}.bin", ty.name().to_lowercase())));
    let numbers = many_numbers(GGML_MANY.0);
    let mut blocks = vec![0xa5; ty.row_bytes(numbers.len()).unwrap()];
    quantize_weighted(ty, &numbers, Some(&column_weights()), &mut blocks).unwrap();
    assert_eq!(crcs(ty, &blocks, GGML_MANY.1), expected, "{ty}");
}

macro_rules! decoding_tests {
    ($($check:ident { $($test:ident: $ty:ident,)* })*) => {
        $($(
            #[test]
            fn $test() {
                $check(GgmlType::$ty);
            }
        )*)*

        #[test]
        fn every_decodable_type_has_a_golden() {
            let tested = [$($(GgmlType::$ty,)*)*];
            // gguf-py does not decode them; their unit tests have blocks made by hand.
            let by_hand = [GgmlType::Q8_1, GgmlType::Q8_K];
            for ty in GgmlType::ALL.iter().filter(|ty| ty.can_decode()) {
                assert!(
                    tested.contains(ty) != by_hand.contains(ty),
                    "{ty} can be decoded, but no golden checks it"
                );
            }
        }
    };
}

decoding_tests! {
    check_values {
        f32_is_as_gguf_py: F32,
        f16_is_as_gguf_py: F16,
        bf16_is_as_gguf_py: BF16,
        q8_0_is_as_gguf_py: Q8_0,
        q4_0_is_as_gguf_py: Q4_0,
        q4_1_is_as_gguf_py: Q4_1,
        q5_0_is_as_gguf_py: Q5_0,
        q5_1_is_as_gguf_py: Q5_1,
        q4_k_is_as_gguf_py: Q4_K,
        q5_k_is_as_gguf_py: Q5_K,
        q6_k_is_as_gguf_py: Q6_K,
        iq4_nl_is_as_gguf_py: IQ4_NL,
        mxfp4_is_as_gguf_py: MXFP4,
        nvfp4_is_as_gguf_py: NVFP4,
    }
    check_hashes {
        q2_k_is_as_gguf_py: Q2_K,
        q3_k_is_as_gguf_py: Q3_K,
        iq4_xs_is_as_gguf_py: IQ4_XS,
        iq3_xxs_is_as_gguf_py: IQ3_XXS,
        iq3_s_is_as_gguf_py: IQ3_S,
        iq2_xxs_is_as_gguf_py: IQ2_XXS,
        iq2_xs_is_as_gguf_py: IQ2_XS,
        iq2_s_is_as_gguf_py: IQ2_S,
        iq1_s_is_as_gguf_py: IQ1_S,
        iq1_m_is_as_gguf_py: IQ1_M,
        tq1_0_is_as_gguf_py: TQ1_0,
        tq2_0_is_as_gguf_py: TQ2_0,
    }
}

macro_rules! encoding_tests {
    ($($check:ident { $($test:ident: $ty:ident,)* })*) => {
        $($(
            #[test]
            fn $test() {
                $check(GgmlType::$ty);
            }
        )*)*

        #[test]
        fn every_encodable_type_has_a_golden() {
            let tested = [$($(GgmlType::$ty),*),*];
            for ty in GgmlType::ALL.iter().filter(|ty| ty.can_encode()) {
                assert!(tested.contains(ty), "{ty} can be encoded, but no golden checks it");
            }
        }
    };
}

fn check_floats(ty: GgmlType) {
    check_encoding(ty, "encode_floats.bin");
}

fn check_blocks(ty: GgmlType) {
    check_encoding(ty, "encode_blocks.bin");
    check_many_encodings(ty, MANY);
}

fn check_blocks_of_ggml(ty: GgmlType) {
    check_encoding(ty, "encode_blocks.bin");
    check_many_encodings(ty, GGML_MANY);
}

encoding_tests! {
    check_floats {
        encoding_f32_moves_bits: F32,
        encoding_f16_is_as_gguf_py: F16,
        encoding_bf16_is_as_gguf_py: BF16,
    }
    check_blocks {
        encoding_q8_0_is_as_gguf_py: Q8_0,
        encoding_q4_0_is_as_gguf_py: Q4_0,
        encoding_q4_1_is_as_gguf_py: Q4_1,
        encoding_q5_0_is_as_gguf_py: Q5_0,
        encoding_q5_1_is_as_gguf_py: Q5_1,
        encoding_iq4_nl_is_as_ggml: IQ4_NL,
    }
    check_blocks_of_ggml {
        encoding_q2_k_is_as_ggml: Q2_K,
        encoding_q3_k_is_as_ggml: Q3_K,
        encoding_q4_k_is_as_ggml: Q4_K,
        encoding_q5_k_is_as_ggml: Q5_K,
        encoding_q6_k_is_as_ggml: Q6_K,
        encoding_iq4_xs_is_as_ggml: IQ4_XS,
        encoding_tq1_0_is_as_ggml: TQ1_0,
        encoding_tq2_0_is_as_ggml: TQ2_0,
        encoding_mxfp4_is_as_ggml: MXFP4,
        encoding_nvfp4_is_as_ggml: NVFP4,
    }
    check_weighted_encodings {
        weighted_q4_0_is_as_ggml: Q4_0,
        weighted_q4_1_is_as_ggml: Q4_1,
        weighted_q5_0_is_as_ggml: Q5_0,
        weighted_q5_1_is_as_ggml: Q5_1,
        weighted_q2_k_is_as_ggml: Q2_K,
        weighted_q3_k_is_as_ggml: Q3_K,
        weighted_q4_k_is_as_ggml: Q4_K,
        weighted_q5_k_is_as_ggml: Q5_K,
        weighted_q6_k_is_as_ggml: Q6_K,
        weighted_iq4_nl_is_as_ggml: IQ4_NL,
        weighted_iq4_xs_is_as_ggml: IQ4_XS,
    }
}
