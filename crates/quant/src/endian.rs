//! The multi-byte words inside blocks, for files of the other byte order.
//!
//! A big-endian GGUF file has every word of every block swapped: scales, packed u16 and u32 fields,
//! elements wider than a byte. Bytes of codes stay where they are. gguf-py's
//! `gguf_convert_endian.py` does this for the float types, Q4_0, Q8_0, Q4_K, Q6_K, MXFP4 and NVFP4;
//! for the others the words are those that ggml's own code reads and writes as one, whatever the
//! struct declares (`qh` of Q5_0 and Q5_1 is four bytes there, but copied to and from a u32).

use crate::{GgmlType, QuantError};

/// A run of words in a block.
#[derive(Debug, Clone, Copy)]
struct Words {
    /// Where the first begins, in bytes.
    at: usize,
    /// Bytes of a word: 2, 4 or 8.
    bytes: usize,
    /// How many follow each other.
    count: usize,
}

const fn words(at: usize, bytes: usize, count: usize) -> Words {
    Words { at, bytes, count }
}

/// The words of a block of this type; `None` where its layout is not known here.
fn words_of(ty: GgmlType) -> Option<&'static [Words]> {
    use GgmlType::*;
    Some(match ty {
        // Elements.
        I8 => &[],
        F16 | BF16 | I16 => const { &[words(0, 2, 1)] },
        F32 | I32 => const { &[words(0, 4, 1)] },
        F64 | I64 => const { &[words(0, 8, 1)] },
        // One scale in front, two, or one at the end.
        Q4_0 | Q8_0 | IQ4_NL | IQ2_S | IQ3_S => const { &[words(0, 2, 1)] },
        Q4_1 | Q8_1 | Q4_K | Q5_K | IQ4_XS => const { &[words(0, 2, 2)] }, // IQ4_XS: d, scales_h
        Q2_K => const { &[words(80, 2, 2)] },
        Q3_K => const { &[words(108, 2, 1)] },
        Q6_K => const { &[words(208, 2, 1)] },
        TQ1_0 => const { &[words(52, 2, 1)] },
        TQ2_0 => const { &[words(64, 2, 1)] },
        // Scales and packed words.
        Q5_0 => const { &[words(0, 2, 1), words(2, 4, 1)] },
        Q5_1 => const { &[words(0, 2, 2), words(4, 4, 1)] },
        Q8_K => const { &[words(0, 4, 1), words(260, 2, 16)] },
        IQ2_XXS => const { &[words(0, 2, 1), words(2, 4, 16)] },
        IQ2_XS => const { &[words(0, 2, 33)] },
        IQ3_XXS => const { &[words(0, 2, 1), words(66, 4, 8)] },
        IQ1_S => const { &[words(0, 2, 1), words(34, 2, 8)] },
        IQ1_M => const { &[words(48, 2, 4)] },
        // Scales of one byte.
        MXFP4 | NVFP4 => &[],
        Q1_0 | Q2_0 => return None,
    })
}

/// Swaps the byte order of whole blocks in place; doing it twice changes nothing.
///
/// # Errors
/// [`QuantError::UnknownLayout`] for a type whose words are not known here (none that can be
/// decoded), [`QuantError::PartialBlock`]. Nothing is changed then.
pub fn swap_byte_order(ty: GgmlType, blocks: &mut [u8]) -> Result<(), QuantError> {
    let words = words_of(ty).ok_or(QuantError::UnknownLayout { ty })?;
    if !blocks.len().is_multiple_of(ty.block_bytes()) {
        return Err(QuantError::PartialBlock {
            ty,
            bytes: blocks.len(),
        });
    }
    if words.is_empty() {
        return Ok(());
    }
    for block in blocks.chunks_exact_mut(ty.block_bytes()) {
        for run in words {
            block[run.at..][..run.bytes * run.count]
                .chunks_exact_mut(run.bytes)
                .for_each(<[u8]>::reverse);
        }
    }
    Ok(())
}

impl GgmlType {
    /// Whether the bytes of this type depend on the byte order; `None` where [`swap_byte_order`]
    /// does not know its layout.
    pub fn has_byte_order(self) -> Option<bool> {
        words_of(self).map(|words| !words.is_empty())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn words_lie_inside_their_block_and_apart() {
        for &ty in GgmlType::ALL {
            let mut end = 0;
            for run in words_of(ty).unwrap_or_default() {
                assert!(run.at >= end, "{ty}: {run:?}");
                end = run.at + run.bytes * run.count;
                assert!(end <= ty.block_bytes(), "{ty}: {run:?}");
            }
        }
    }

    #[test]
    fn every_decodable_type_has_a_known_layout() {
        for &ty in GgmlType::ALL.iter().filter(|ty| ty.can_decode()) {
            assert!(ty.has_byte_order().is_some(), "{ty}");
        }
        assert_eq!(GgmlType::NVFP4.has_byte_order(), Some(false));
        assert_eq!(GgmlType::Q1_0.has_byte_order(), None);
    }

    #[test]
    fn each_block_is_swapped_and_codes_stay() {
        let mut blocks: Vec<u8> = (0..44).collect();
        swap_byte_order(GgmlType::Q5_0, &mut blocks).unwrap();
        assert_eq!(blocks[..8], [1, 0, 5, 4, 3, 2, 6, 7]);
        assert_eq!(blocks[20..30], [20, 21, 23, 22, 27, 26, 25, 24, 28, 29]);
    }

    #[test]
    fn what_cannot_be_swapped_is_refused_and_left_alone() {
        let mut bytes: Vec<u8> = (0..18).collect();
        let unknown = swap_byte_order(GgmlType::Q1_0, &mut bytes).unwrap_err();
        assert_eq!(
            unknown.to_string(),
            "the byte order of blocks of type Q1_0 cannot be changed, since their layout is not known here"
        );
        let partial = swap_byte_order(GgmlType::Q8_0, &mut bytes).unwrap_err();
        assert_eq!(
            partial,
            QuantError::PartialBlock {
                ty: GgmlType::Q8_0,
                bytes: 18
            }
        );
        assert!(
            bytes
                .iter()
                .enumerate()
                .all(|(i, &byte)| i == usize::from(byte))
        );
    }
}
