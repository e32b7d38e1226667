//! One table of all ggml types: id, name, block size, decoder and encoder.
//!
//! A new type that we can decode is one function in its family's file and one column of one line
//! here; an encoder likewise. Ids and sizes follow `ggml.h` and gguf-py 0.19.0 (`GGML_QUANT_SIZES`); ids that are
//! missing between them were removed from ggml.

use std::fmt;

use crate::{
    encode::{
        self,
        Encoder::{self, Plain, Weighted},
    },
    float, fp4, grid, iq4, k_quants, legacy, ternary,
};

/// Decodes whole blocks; the caller has checked both lengths.
type Decoder = fn(&[u8], &mut [f32]);

/// Why [`dequantize`], [`quantize`](crate::quantize) or
/// [`swap_byte_order`](crate::swap_byte_order) refused.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum QuantError {
    /// The type is known, but this version has no decoder for it.
    #[error(
        "decoding tensors of type {ty} is not supported yet (supported: {})",
        names(GgmlType::can_decode)
    )]
    Unsupported {
        /// The type that was asked for.
        ty: GgmlType,
    },
    /// The source is not a whole number of blocks.
    #[error("{bytes} bytes of {ty} are not whole blocks: expected a multiple of {} bytes", ty.block_bytes())]
    PartialBlock {
        /// Type of the source.
        ty: GgmlType,
        /// Length of the source in bytes.
        bytes: usize,
    },
    /// Source and destination do not hold the same number of elements.
    #[error(
        "{bytes} bytes of {ty} hold {expected} elements, but the destination has room for exactly {found}"
    )]
    LengthMismatch {
        /// Type of the source.
        ty: GgmlType,
        /// Length of the source in bytes.
        bytes: usize,
        /// Elements in the source.
        expected: usize,
        /// Length of the destination in elements.
        found: usize,
    },
    /// The type is known, but this version has no encoder for it.
    #[error(
        "encoding to type {ty} is not supported (supported: {})",
        names(GgmlType::can_encode)
    )]
    CannotEncode {
        /// The type that was asked for.
        ty: GgmlType,
    },
    /// The elements to encode are not whole blocks.
    #[error("{elements} elements are not whole blocks of {ty}: expected a multiple of {}", ty.block_elems())]
    PartialRow {
        /// Type that was asked for.
        ty: GgmlType,
        /// Length of the source in elements.
        elements: usize,
    },
    /// The destination is not as long as the blocks.
    #[error(
        "{elements} elements take {expected} bytes as {ty}, but the destination has room for exactly {found}"
    )]
    OutputLength {
        /// Type that was asked for.
        ty: GgmlType,
        /// Length of the source in elements.
        elements: usize,
        /// Bytes that these elements take.
        expected: usize,
        /// Length of the destination in bytes.
        found: usize,
    },
    /// An element is NaN or infinite, and the type has no place for it.
    #[error(
        "element {element} is {found}, which {ty} cannot store: expected finite numbers (F32, F16 and BF16 store any)"
    )]
    NotFinite {
        /// Type that was asked for.
        ty: GgmlType,
        /// Index of the element.
        element: usize,
        /// `NaN` or `infinite`.
        found: &'static str,
    },
    /// The numbers of a block are so large that its scale or its minimum is beyond f16 (NVFP4: E4M3).
    #[error(
        "elements {first} to {last} are too large for {ty}, whose {} (F32 and BF16 store them)",
        scales_end(*.ty)
    )]
    ScaleOverflow {
        /// Type that was asked for.
        ty: GgmlType,
        /// Index of the block's first element.
        first: usize,
        /// Index of the block's last element.
        last: usize,
    },
    /// The weights are not as many as the columns of the elements.
    #[error(
        "{elements} elements are not whole rows of {columns} columns, as many as there are weights"
    )]
    WeightCount {
        /// Length of the source in elements.
        elements: usize,
        /// Number of weights.
        columns: usize,
    },
    /// A weight cannot say how much a column matters.
    #[error("the weight of column {column} is {found}: expected a finite number of at least 0")]
    BadWeight {
        /// Index of the weight.
        column: usize,
        /// The weight.
        found: String,
    },
    /// The words inside a block of this type are not known.
    #[error(
        "the byte order of blocks of type {ty} cannot be changed, since their layout is not known here"
    )]
    UnknownLayout {
        /// The type that was asked for.
        ty: GgmlType,
    },
}

/// Where the scales of a type end, for messages.
fn scales_end(ty: GgmlType) -> &'static str {
    match ty {
        GgmlType::NVFP4 => "E4M3 scales end at 448",
        _ => "f16 scales end at 65504",
    }
}

/// The names of the types of which `is_able` holds.
fn names(is_able: fn(GgmlType) -> bool) -> String {
    let names: Vec<_> = GgmlType::ALL
        .iter()
        .filter(|ty| is_able(**ty))
        .map(|ty| ty.name())
        .collect();
    names.join(", ")
}

/// What the registry knows about one type.
struct Entry {
    id: u32,
    name: &'static str,
    block_elems: usize,
    block_bytes: usize,
    decode: Option<Decoder>,
    encode: Option<Encoder>,
}

/// Makes the enum and the table from the same lines, so that they cannot disagree.
macro_rules! registry {
    ($($variant:ident $id:literal $elems:literal $bytes:literal $decode:expr, $encode:expr;)*) => {
        /// The type of a tensor's elements, as ggml numbers them.
        ///
        /// Variants are named as ggml names them, so that a reader can search for the name in a
        /// file's dump.
        #[allow(non_camel_case_types, reason = "the field's own names: Q4_K, IQ4_NL")]
        #[allow(missing_docs, reason = "a variant is its name; the registry's lines say the sizes")]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum GgmlType { $($variant,)* }

        impl GgmlType {
            /// All types, in the order of their ids.
            pub const ALL: &'static [GgmlType] = &[$(GgmlType::$variant,)*];
        }

        /// Indexed by the enum's discriminant.
        const TABLE: &[Entry] = &[$(
            Entry {
                id: $id,
                name: stringify!($variant),
                block_elems: $elems,
                block_bytes: $bytes,
                decode: $decode,
                encode: $encode,
            },
        )*];
    };
}

registry! {
    // name  id  elements  bytes  decoder                  encoder
    F32       0    1    4  Some(float::f32),           Some(Plain(encode::f32));
    F16       1    1    2  Some(float::f16),           Some(Plain(encode::f16));
    Q4_0      2   32   18  Some(legacy::q4_0),         Some(Weighted(encode::q4_0));
    Q4_1      3   32   20  Some(legacy::q4_1),         Some(Weighted(encode::q4_1));
    Q5_0      6   32   22  Some(legacy::q5_0),         Some(Weighted(encode::q5_0));
    Q5_1      7   32   24  Some(legacy::q5_1),         Some(Weighted(encode::q5_1));
    Q8_0      8   32   34  Some(legacy::q8_0),         Some(Plain(encode::q8_0));
    // gguf-py 0.19.0 says 40 (two f32 scales, as ggml once had); ggml has stored two f16 since
    // 2024: 36.
    Q8_1      9   32   36  Some(legacy::q8_1),         None;
    Q2_K     10  256   84  Some(k_quants::q2_k),       Some(Weighted(encode::q2_k));
    Q3_K     11  256  110  Some(k_quants::q3_k),       Some(Weighted(encode::q3_k));
    Q4_K     12  256  144  Some(k_quants::q4_k),       Some(Weighted(encode::q4_k));
    Q5_K     13  256  176  Some(k_quants::q5_k),       Some(Weighted(encode::q5_k));
    Q6_K     14  256  210  Some(k_quants::q6_k),       Some(Weighted(encode::q6_k));
    Q8_K     15  256  292  Some(k_quants::q8_k),       None;
    IQ2_XXS  16  256   66  Some(grid::iq2_xxs),        None;
    IQ2_XS   17  256   74  Some(grid::iq2_xs),         None;
    IQ3_XXS  18  256   98  Some(grid::iq3_xxs),        None;
    IQ1_S    19  256   50  Some(grid::iq1_s),          None;
    IQ4_NL   20   32   18  Some(iq4::iq4_nl),          Some(Weighted(encode::iq4_nl));
    IQ3_S    21  256  110  Some(grid::iq3_s),          None;
    IQ2_S    22  256   82  Some(grid::iq2_s),          None;
    IQ4_XS   23  256  136  Some(iq4::iq4_xs),          Some(Weighted(encode::iq4_xs));
    I8       24    1    1  None,                       None;
    I16      25    1    2  None,                       None;
    I32      26    1    4  None,                       None;
    I64      27    1    8  None,                       None;
    F64      28    1    8  None,                       None;
    IQ1_M    29  256   56  Some(grid::iq1_m),          None;
    BF16     30    1    2  Some(float::bf16),          Some(Plain(encode::bf16));
    TQ1_0    34  256   54  Some(ternary::tq1_0),       Some(Plain(encode::tq1_0));
    TQ2_0    35  256   66  Some(ternary::tq2_0),       Some(Plain(encode::tq2_0));
    MXFP4    39   32   17  Some(fp4::mxfp4),           Some(Plain(encode::mxfp4));
    NVFP4    40   64   36  Some(fp4::nvfp4),           Some(Plain(encode::nvfp4));
    Q1_0     41  128   18  None,                       None;
    // Not in gguf-py 0.19.0. ggml proper has groups of 64; at least one fork writes groups of 128
    // (34 bytes) under this id.
    Q2_0     42   64   18  None,                       None;
}

impl GgmlType {
    fn entry(self) -> &'static Entry {
        &TABLE[self as usize]
    }

    /// The type with this id, or `None` for removed ids and for those of forks.
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.iter().copied().find(|ty| ty.id() == id)
    }

    /// The type with this name, in any case: `Q8_0`, `q4_k`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|ty| ty.name().eq_ignore_ascii_case(name))
    }

    /// The number that stands for this type in a GGUF file.
    pub fn id(self) -> u32 {
        self.entry().id
    }

    /// The name that ggml uses: `Q8_0`, `IQ4_NL`.
    pub fn name(self) -> &'static str {
        self.entry().name
    }

    /// Elements in one block; 1 for types that are not blocked.
    pub fn block_elems(self) -> usize {
        self.entry().block_elems
    }

    /// Bytes of one block.
    pub fn block_bytes(self) -> usize {
        self.entry().block_bytes
    }

    /// Bytes of `elems` consecutive elements; `None` if they are not whole blocks or the size
    /// overflows.
    pub fn row_bytes(self, elems: usize) -> Option<usize> {
        let entry = self.entry();
        if !elems.is_multiple_of(entry.block_elems) {
            return None;
        }
        (elems / entry.block_elems).checked_mul(entry.block_bytes)
    }

    /// Storage in bits for each element, scales included.
    pub fn bits_per_weight(self) -> f64 {
        (8 * self.block_bytes()) as f64 / self.block_elems() as f64
    }

    /// Whether [`dequantize`] knows this type.
    pub fn can_decode(self) -> bool {
        self.entry().decode.is_some()
    }

    /// Whether [`quantize`](crate::quantize) knows this type.
    pub fn can_encode(self) -> bool {
        self.entry().encode.is_some()
    }

    pub(crate) fn encoder(self) -> Option<Encoder> {
        self.entry().encode
    }
}

impl fmt::Display for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Decodes whole blocks to f32: bit for bit what gguf-py's `dequantize` yields (which does not know
/// Q8_1 and Q8_K).
///
/// `src` holds blocks of type `ty`, `dst` takes their elements in order and must have exactly their
/// number. Scales that are not finite pass through as IEEE arithmetic has it.
///
/// # Errors
/// [`QuantError::Unsupported`] for a type without decoder, [`QuantError::PartialBlock`] and
/// [`QuantError::LengthMismatch`] for lengths that do not fit. Nothing is written then.
pub fn dequantize(ty: GgmlType, src: &[u8], dst: &mut [f32]) -> Result<(), QuantError> {
    let decode = ty.entry().decode.ok_or(QuantError::Unsupported { ty })?;
    if !src.len().is_multiple_of(ty.block_bytes()) {
        return Err(QuantError::PartialBlock {
            ty,
            bytes: src.len(),
        });
    }
    // A slice is at most isize::MAX bytes, and no type packs more than 8 elements into a byte:
    // saturating never bites where a destination of that length could exist.
    let expected = (src.len() / ty.block_bytes()).saturating_mul(ty.block_elems());
    if dst.len() != expected {
        return Err(QuantError::LengthMismatch {
            ty,
            bytes: src.len(),
            expected,
            found: dst.len(),
        });
    }
    decode(src, dst);
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn ids_and_names_are_unique_and_lead_back_to_their_type() {
        for &ty in GgmlType::ALL {
            assert_eq!(GgmlType::from_id(ty.id()), Some(ty));
            assert_eq!(GgmlType::from_name(ty.name()), Some(ty));
            assert_eq!(GgmlType::from_name(&ty.name().to_lowercase()), Some(ty));
        }
        assert!(GgmlType::ALL.is_sorted_by(|a, b| a.id() < b.id()));
    }

    #[test]
    fn removed_and_foreign_ids_are_unknown() {
        for id in [4, 5, 31, 32, 33, 36, 37, 38, 43, 137, u32::MAX] {
            assert_eq!(GgmlType::from_id(id), None, "{id}");
        }
        assert_eq!(GgmlType::from_name("IQ4_K"), None);
    }

    #[test]
    fn bits_per_weight_are_the_published_ones() {
        use GgmlType::*;
        let published = [
            (F32, 32.0),
            (BF16, 16.0),
            (Q8_0, 8.5),
            (Q6_K, 6.5625),
            (Q5_K, 5.5),
            (Q5_0, 5.5),
            (Q4_K, 4.5),
            (Q4_0, 4.5),
            (IQ4_NL, 4.5),
            (IQ4_XS, 4.25),
            (MXFP4, 4.25),
            (NVFP4, 4.5),
            (Q3_K, 3.4375),
            (IQ3_S, 3.4375),
            (IQ3_XXS, 3.0625),
            (Q2_K, 2.625),
            (IQ2_S, 2.5625),
            (IQ2_XS, 2.3125),
            (IQ2_XXS, 2.0625),
            (IQ1_M, 1.75),
            (IQ1_S, 1.5625),
        ];
        for (ty, bits) in published {
            assert_eq!(ty.bits_per_weight(), bits, "{ty}");
        }
    }

    #[test]
    fn row_bytes_wants_whole_blocks_and_no_overflow() {
        assert_eq!(GgmlType::Q4_K.row_bytes(512), Some(288));
        assert_eq!(GgmlType::Q4_K.row_bytes(192), None);
        assert_eq!(GgmlType::Q5_0.row_bytes(192), Some(132));
        assert_eq!(GgmlType::F32.row_bytes(0), Some(0));
        assert_eq!(GgmlType::F32.row_bytes(usize::MAX), None);
    }

    #[test]
    fn an_unsupported_type_is_named_with_those_that_work() {
        let error = dequantize(GgmlType::Q1_0, &[0; 18], &mut [0.0; 128]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "decoding tensors of type Q1_0 is not supported yet (supported: F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, \
             Q8_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, Q8_K, IQ2_XXS, IQ2_XS, IQ3_XXS, IQ1_S, IQ4_NL, IQ3_S, IQ2_S, IQ4_XS, \
             IQ1_M, BF16, TQ1_0, TQ2_0, MXFP4, NVFP4)"
        );
    }

    #[test]
    fn lengths_that_do_not_fit_are_refused_and_nothing_is_written() {
        let mut dst = [7.0; 32];
        let partial = dequantize(GgmlType::Q8_0, &[0; 33], &mut dst).unwrap_err();
        assert_eq!(
            partial.to_string(),
            "33 bytes of Q8_0 are not whole blocks: expected a multiple of 34 bytes"
        );
        let mismatch = dequantize(GgmlType::Q8_0, &[0; 68], &mut dst).unwrap_err();
        assert_eq!(
            mismatch.to_string(),
            "68 bytes of Q8_0 hold 64 elements, but the destination has room for exactly 32"
        );
        assert_eq!(dst, [7.0; 32]);
    }

    #[test]
    fn no_blocks_are_no_elements() {
        for &ty in GgmlType::ALL.iter().filter(|ty| ty.can_decode()) {
            dequantize(ty, &[], &mut []).unwrap();
        }
    }

    #[test]
    fn every_decoder_takes_blocks_of_its_registered_size() {
        for &ty in GgmlType::ALL.iter().filter(|ty| ty.can_decode()) {
            let mut dst = vec![1.0; 3 * ty.block_elems()];
            dequantize(ty, &vec![0; 3 * ty.block_bytes()], &mut dst).unwrap();
            assert!(
                dst.iter().all(|&x| x == 0.0),
                "{ty}: zero blocks decode to zeros"
            );
        }
    }

    #[test]
    fn padding_in_a_table_works() {
        assert_eq!(
            format!("{:>8}|{:<6}|", GgmlType::Q8_0, GgmlType::F32),
            "    Q8_0|F32   |"
        );
    }
}
