//! The scalar decoders against gguf-py, bit for bit. `golden/README.md` says how the files are
//! made.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{fs, path::Path};

use glim_quant::{GgmlType, dequantize};

/// Compares all blocks of a golden in one call, and each block in a call of its own.
fn check(ty: GgmlType) {
    let name = format!("tests/golden/{}.bin", ty.name().to_lowercase());
    let golden = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(&name)).unwrap();
    let per_block = ty.block_bytes() + 4 * ty.block_elems();
    assert!(
        golden.len().is_multiple_of(per_block),
        "{name} is not whole blocks of {ty}"
    );
    let n_blocks = golden.len() / per_block;
    assert!(n_blocks >= 20, "{name} has only {n_blocks} blocks");

    let (blocks, expected) = golden.split_at(n_blocks * ty.block_bytes());
    let expected: Vec<u32> = expected
        .as_chunks()
        .0
        .iter()
        .map(|bytes| u32::from_le_bytes(*bytes))
        .collect();

    let mut values = vec![f32::NAN; n_blocks * ty.block_elems()];
    dequantize(ty, blocks, &mut values).unwrap();
    for (i, (value, &bits)) in values.iter().zip(&expected).enumerate() {
        let (block, elem) = (i / ty.block_elems(), i % ty.block_elems());
        assert_eq!(
            value.to_bits(),
            bits,
            "{ty}: element {elem} of block {block} is {value}, expected {}",
            f32::from_bits(bits)
        );
    }

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
}

macro_rules! golden_tests {
    ($($test:ident: $ty:ident,)*) => {
        $(
            #[test]
            fn $test() {
                check(GgmlType::$ty);
            }
        )*

        #[test]
        fn every_decodable_type_has_a_golden() {
            let tested = [$(GgmlType::$ty),*];
            for ty in GgmlType::ALL.iter().filter(|ty| ty.can_decode()) {
                assert!(tested.contains(ty), "{ty} can be decoded, but no golden checks it");
            }
        }
    };
}

golden_tests! {
    f32_is_as_gguf_py: F32,
    f16_is_as_gguf_py: F16,
    bf16_is_as_gguf_py: BF16,
    q8_0_is_as_gguf_py: Q8_0,
    q4_0_is_as_gguf_py: Q4_0,
    q5_0_is_as_gguf_py: Q5_0,
    q4_k_is_as_gguf_py: Q4_K,
    q5_k_is_as_gguf_py: Q5_K,
    q6_k_is_as_gguf_py: Q6_K,
    iq4_nl_is_as_gguf_py: IQ4_NL,
}
