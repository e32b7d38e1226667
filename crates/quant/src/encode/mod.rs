//! From f32 to blocks: [`quantize`], the mirror of `dequantize`.
//!
//! An encoder is a function over whole blocks, named in the last column of the registry. Those of
//! the element-wise types and of the types without a search do what gguf-py does, bit for bit
//! (`legacy`); IQ4_NL does what ggml's quantiser does without an importance matrix (`iq4_nl`).
//!
//! What cannot be stored is refused, not mangled. The blocked types share one scale among 32
//! elements, so a single NaN or infinity would spoil its neighbours, and a scale beyond f16 (whose
//! largest number is 65504) would make infinities of them. The element-wise types have no
//! neighbours: F32, F16 and BF16 carry NaN and infinities over, and round what is too large to
//! infinity, as the formats have it.

mod iq4_nl;
mod legacy;

use half::{bf16, f16};

pub(crate) use self::{
    iq4_nl::iq4_nl,
    legacy::{q4_0, q4_1, q5_0, q5_1, q8_0},
};
use crate::{GgmlType, QuantError};

/// Encodes whole blocks; the caller has checked both lengths.
pub(crate) type Encoder = fn(&[f32], &mut [u8]) -> Result<(), Refused>;

/// Why a run of elements cannot be encoded.
pub(crate) enum Refused {
    /// This element is NaN or infinite.
    NotFinite { element: usize },
    /// The scale of the block that begins with this element is too large for an f16.
    Scale { first: usize },
}

/// A number that belongs into a block as f16 and is too large for one.
struct TooLarge;

/// Encodes `src` to blocks of type `ty`.
///
/// `src` is whole blocks of elements in order, `dst` takes their bytes and must have exactly their
/// number. The bytes are those of gguf-py's `quantize` (of IQ4_NL: of ggml's `ggml_quantize_chunk`
/// without an importance matrix).
///
/// NaN and infinities: F32 keeps every bit, F16 and BF16 keep what they are and make signalling
/// NaNs quiet; all other types refuse them. Numbers beyond the range of F16 or BF16 become
/// infinite. Blocks of numbers so small that the f16 scale is 0 decode to zeros.
///
/// # Errors
/// [`QuantError::CannotEncode`] for a type without encoder, [`QuantError::PartialRow`] and
/// [`QuantError::OutputLength`] for lengths that do not fit; nothing is written then.
/// [`QuantError::NotFinite`] and [`QuantError::ScaleOverflow`] for what the type cannot store; the
/// contents of `dst` are unspecified then.
pub fn quantize(ty: GgmlType, src: &[f32], dst: &mut [u8]) -> Result<(), QuantError> {
    let encode = ty.encoder().ok_or(QuantError::CannotEncode { ty })?;
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
    encode(src, dst).map_err(|refused| match refused {
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

/// Calls `encode` for each block, after a check that its elements are finite.
fn each_block<const ELEMS: usize, const BYTES: usize>(
    src: &[f32],
    dst: &mut [u8],
    encode: impl Fn(&[f32; ELEMS], &mut [u8; BYTES]) -> Result<(), TooLarge>,
) -> Result<(), Refused> {
    let (ins, src_rest) = src.as_chunks::<ELEMS>();
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
        encode(x, block).map_err(|TooLarge| Refused::Scale { first })?;
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

/// Puts codes below 16 into nibbles: code `j` low and code `j + 16` high in byte `j`.
fn pack_nibbles(codes: &[u8; 32], qs: &mut [u8]) {
    for (j, q) in qs.iter_mut().enumerate() {
        *q = codes[j] | codes[j + 16] << 4;
    }
}

pub(crate) fn f32(src: &[f32], dst: &mut [u8]) -> Result<(), Refused> {
    elements(src, dst, |x| x.to_le_bytes())
}

/// To nearest even.
pub(crate) fn f16(src: &[f32], dst: &mut [u8]) -> Result<(), Refused> {
    elements(src, dst, |x| f16::from_f32(x).to_le_bytes())
}

/// To nearest even; a NaN keeps its upper bits and becomes quiet.
pub(crate) fn bf16(src: &[f32], dst: &mut [u8]) -> Result<(), Refused> {
    elements(src, dst, |x| bf16::from_f32(x).to_le_bytes())
}

/// Encodes each element on its own.
fn elements<const BYTES: usize>(
    src: &[f32],
    dst: &mut [u8],
    encode: impl Fn(f32) -> [u8; BYTES],
) -> Result<(), Refused> {
    for (x, bytes) in src.iter().zip(dst.as_chunks_mut::<BYTES>().0) {
        *bytes = encode(*x);
    }
    Ok(())
}
