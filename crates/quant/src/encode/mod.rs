//! From f32 to blocks: [`quantize`] and [`quantize_weighted`], the mirrors of `dequantize`.
//!
//! An encoder is a function over whole blocks, named in the last column of the registry. Those of
//! the element-wise types and of the types without a search do what gguf-py does, bit for bit
//! (`legacy`); all others do what ggml's quantisers do (`k_quants`, `iq4`, `fp4`, `ternary`; `legacy`
//! with weights), which look for good scales (`search`) and may weight columns by their importance.
//!
//! What cannot be stored is refused, not mangled. The blocked types share one scale among 32
//! elements, so a single NaN or infinity would spoil its neighbours, and a scale beyond f16 (whose
//! largest number is 65504) would make infinities of them. The element-wise types have no
//! neighbours: F32, F16 and BF16 carry NaN and infinities over, and round what is too large to
//! infinity, as the formats have it.

mod fp4;
mod iq4;
mod k_quants;
mod legacy;
mod search;
mod ternary;

use half::{bf16, f16};

use self::legacy::inverse;
pub(crate) use self::{
    fp4::{mxfp4, nvfp4},
    iq4::{iq4_nl, iq4_xs},
    k_quants::{q2_k, q3_k, q4_k, q5_k, q6_k},
    legacy::{q4_0, q4_1, q5_0, q5_1, q8_0},
    ternary::{tq1_0, tq2_0},
};
use crate::{GgmlType, QuantError};

/// Encodes whole blocks; the caller has checked all lengths.
#[derive(Clone, Copy)]
pub(crate) enum Encoder {
    /// Every element counts the same, or no choice depends on what counts.
    Plain(fn(&[f32], &mut [u8]) -> Encoded),
    /// Takes weights beside the elements, as many, if there are any.
    Weighted(fn(&[f32], Weights<'_>, &mut [u8]) -> Encoded),
}

/// Weights of as many elements, or none.
pub(crate) type Weights<'a> = Option<&'a [f32]>;

/// What an encoder returns.
pub(crate) type Encoded = Result<(), Refused>;

/// Why a run of elements cannot be encoded.
pub(crate) enum Refused {
    /// This element is NaN or infinite.
    NotFinite { element: usize },
    /// The scale of the block that begins with this element is too large for an f16.
    Scale { first: usize },
}

impl Refused {
    /// The same for a run that begins at this element.
    fn offset_by(self, start: usize) -> Self {
        match self {
            Self::NotFinite { element } => Self::NotFinite {
                element: start + element,
            },
            Self::Scale { first } => Self::Scale {
                first: start + first,
            },
        }
    }
}

/// A scale or a minimum is larger than the block's type can store.
struct TooLarge;

/// Larger numbers fit into no block whose f16 scale is multiplied by at most 128 (of a sub-block)
/// and 32 (a code); IQ4_XS ends a little below. Up to here no sum of a search overflows.
const MAX_MAGNITUDE: f32 = 65504.0 * 128.0 * 32.0;

/// Weights below this part of the largest are as good as none, and would underflow.
const MIN_WEIGHT: f32 = 1.0 / (1u64 << 60) as f32;

/// Encodes `src` to blocks of type `ty`, all columns alike.
///
/// `src` is whole blocks of elements in order, `dst` takes their bytes and must have exactly their
/// number. The bytes are those of gguf-py's `quantize` or, for types that it does not encode, of
/// ggml's `ggml_quantize_chunk` without an importance matrix (MXFP4 and NVFP4 with two corrections:
/// see `encode/fp4.rs`).
///
/// NaN and infinities: F32 keeps every bit, F16 and BF16 keep what they are and make signalling
/// NaNs quiet; all other types refuse them. Numbers beyond the range of F16 or BF16 become
/// infinite. Blocks of numbers so small that the scale is 0 decode to zeros.
///
/// # Errors
/// [`QuantError::CannotEncode`] for a type without encoder, [`QuantError::PartialRow`] and
/// [`QuantError::OutputLength`] for lengths that do not fit; nothing is written then.
/// [`QuantError::NotFinite`] and [`QuantError::ScaleOverflow`] for what the type cannot store; the
/// contents of `dst` are unspecified then.
pub fn quantize(ty: GgmlType, src: &[f32], dst: &mut [u8]) -> Result<(), QuantError> {
    quantize_weighted(ty, src, None, dst)
}

/// As [`quantize`], with weights that say how much an error in each column matters.
///
/// `weights` has one number for each column, and `src` is whole rows of that many elements. Only
/// their proportions count, and less than 2^-60 of the largest is nothing. The K-quants, IQ4_NL,
/// IQ4_XS and Q4_0 to Q5_1 use them; the other types, whose scales follow from the extremes, are
/// encoded as without, as ggml does. A block whose weights are all zero is encoded as without, too.
///
/// # Errors
/// Those of [`quantize`]; and, before anything is written, [`QuantError::PartialRow`] if the columns
/// are not whole blocks, [`QuantError::WeightCount`] if `src` is not whole rows, and
/// [`QuantError::BadWeight`] for a weight that is negative or not finite.
pub fn quantize_weighted(
    ty: GgmlType,
    src: &[f32],
    weights: Option<&[f32]>,
    dst: &mut [u8],
) -> Result<(), QuantError> {
    let encoder = ty.encoder().ok_or(QuantError::CannotEncode { ty })?;
    let elements = src.len();
    if !elements.is_multiple_of(ty.block_elems()) {
        return Err(QuantError::PartialRow { ty, elements });
    }
    // No encodable type has more bytes than elements times four, which is what `src` takes: the
    // product does not overflow.
    let expected = elements / ty.block_elems() * ty.block_bytes();
    if dst.len() != expected {
        return Err(QuantError::OutputLength {
            ty,
            elements,
            expected,
            found: dst.len(),
        });
    }
    let weights = weights
        .map(|weights| checked_weights(ty, elements, weights))
        .transpose()?;
    let encoded = match (encoder, &weights) {
        (Encoder::Plain(encode), _) => encode(src, dst),
        (Encoder::Weighted(encode), None) => encode(src, None, dst),
        (Encoder::Weighted(encode), Some(weights)) => {
            let row_bytes = weights.len() / ty.block_elems() * ty.block_bytes();
            src.chunks_exact(weights.len().max(1))
                .zip(dst.chunks_exact_mut(row_bytes.max(1)))
                .enumerate()
                .try_for_each(|(row, (src, dst))| {
                    encode(src, Some(weights), dst)
                        .map_err(|refused| refused.offset_by(row * weights.len()))
                })
        }
    };
    encoded.map_err(|refused| match refused {
        Refused::NotFinite { element } => QuantError::NotFinite {
            ty,
            element,
            found: if src[element].is_nan() {
                "NaN"
            } else {
                "infinite"
            },
        },
        Refused::Scale { first } => QuantError::ScaleOverflow {
            ty,
            first,
            last: first + ty.block_elems() - 1,
        },
    })
}

/// The weights of a row, scaled by a power of two so that the largest is in 1 .. 2: that changes no
/// choice, and no sum overflows.
fn checked_weights(ty: GgmlType, elements: usize, weights: &[f32]) -> Result<Vec<f32>, QuantError> {
    let columns = weights.len();
    if !columns.is_multiple_of(ty.block_elems()) {
        return Err(QuantError::PartialRow {
            ty,
            elements: columns,
        });
    }
    // Of no columns there can be no elements.
    if elements.checked_rem(columns).unwrap_or(elements) != 0 {
        return Err(QuantError::WeightCount { elements, columns });
    }
    if let Some(column) = weights.iter().position(|w| !(w.is_finite() && *w >= 0.0)) {
        return Err(QuantError::BadWeight {
            column,
            found: weights[column].to_string(),
        });
    }
    let max = weights.iter().fold(0.0, |max: f32, w| max.max(*w));
    // 2^-e for max = 2^e * 1.…; of subnormal and of the very largest ones, whose inverse is none, as
    // far as f32 goes.
    let biased = (max.to_bits() >> 23).clamp(1, 253);
    let factor = f32::from_bits((254 - biased) << 23);
    let scaled = weights.iter().map(|w| w * factor);
    Ok(scaled
        .map(|w| if w < MIN_WEIGHT { 0.0 } else { w })
        .collect())
}

/// Calls `encode` for each block, after a check that its elements are finite.
fn each_block<const ELEMS: usize, const BYTES: usize>(
    src: &[f32],
    dst: &mut [u8],
    encode: impl Fn(&[f32; ELEMS], &mut [u8; BYTES]) -> Result<(), TooLarge>,
) -> Encoded {
    each_weighted_block(src, None, dst, |x, _, block| encode(x, block))
}

/// The same with the weights of each block's elements, unless all of them are zero.
fn each_weighted_block<const ELEMS: usize, const BYTES: usize>(
    src: &[f32],
    weights: Weights<'_>,
    dst: &mut [u8],
    encode: impl Fn(&[f32; ELEMS], Option<&[f32; ELEMS]>, &mut [u8; BYTES]) -> Result<(), TooLarge>,
) -> Encoded {
    let (ins, src_rest) = src.as_chunks::<ELEMS>();
    let weights = weights.map(|weights| weights.as_chunks::<ELEMS>().0);
    let (blocks, dst_rest) = dst.as_chunks_mut::<BYTES>();
    assert!(
        src_rest.is_empty() && dst_rest.is_empty() && blocks.len() == ins.len(),
        "an encoder for blocks of {BYTES} bytes and {ELEMS} elements was handed other blocks"
    );
    for (i, (x, block)) in ins.iter().zip(blocks).enumerate() {
        let first = i * ELEMS;
        if let Some(j) = x.iter().position(|x| !x.is_finite()) {
            return Err(Refused::NotFinite { element: first + j });
        }
        let weights = weights
            .map(|weights| &weights[i])
            .filter(|weights| weights.iter().any(|w| *w > 0.0));
        encode(x, weights, block).map_err(|TooLarge| Refused::Scale { first })?;
    }
    Ok(())
}

/// The bytes of `x` as f16, rounded to nearest even.
fn f16_bytes(x: f32) -> Result<[u8; 2], TooLarge> {
    let rounded = f16::from_f32(x);
    // A NaN can come of nothing but overflow on the way: the elements were finite.
    if rounded.is_finite() {
        Ok(rounded.to_le_bytes())
    } else {
        Err(TooLarge)
    }
}

/// Refuses elements beyond [`MAX_MAGNITUDE`].
fn check_magnitude(x: &[f32]) -> Result<(), TooLarge> {
    if x.iter().any(|x| x.abs() > MAX_MAGNITUDE) {
        return Err(TooLarge);
    }
    Ok(())
}

/// Puts 256 codes below 4 into 64 bytes: those of the four runs `k` of each half `n` of 128 elements
/// into bits `2 * k` of bytes `32 * n ..`.
fn pack_pairs(codes: &[u8; 256], qs: &mut [u8]) {
    for (i, q) in qs.iter_mut().enumerate() {
        let e = i / 32 * 128 + i % 32;
        *q = (0..4).fold(0, |q, k| q | codes[e + 32 * k] << (2 * k));
    }
}

/// Puts codes below 16 into nibbles: code `j` low and code `j + 16` high in byte `j`.
fn pack_nibbles(codes: &[u8; 32], qs: &mut [u8]) {
    for (j, q) in qs.iter_mut().enumerate() {
        *q = codes[j] | codes[j + 16] << 4;
    }
}

pub(crate) fn f32(src: &[f32], dst: &mut [u8]) -> Encoded {
    elements(src, dst, |x| x.to_le_bytes())
}

/// To nearest even.
pub(crate) fn f16(src: &[f32], dst: &mut [u8]) -> Encoded {
    elements(src, dst, |x| f16::from_f32(x).to_le_bytes())
}

/// To nearest even; a NaN keeps its upper bits and becomes quiet.
pub(crate) fn bf16(src: &[f32], dst: &mut [u8]) -> Encoded {
    elements(src, dst, |x| bf16::from_f32(x).to_le_bytes())
}

/// Encodes each element on its own.
fn elements<const BYTES: usize>(
    src: &[f32],
    dst: &mut [u8],
    encode: impl Fn(f32) -> [u8; BYTES],
) -> Encoded {
    for (x, bytes) in src.iter().zip(dst.as_chunks_mut::<BYTES>().0) {
        *bytes = encode(*x);
    }
    Ok(())
}
