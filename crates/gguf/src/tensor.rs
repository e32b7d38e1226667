//! What a file says about one tensor.

use glim_quant::GgmlType;

/// Name, shape, type and place of one tensor. The reader has checked that its bytes lie inside its
/// part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// The file's own name, as in `blk.0.attn_kv_a_mqa.weight`.
    pub name: String,
    /// Dimensions as stored, fastest first (ggml's `ne`); at most four.
    pub ggml_dims: Vec<u64>,
    /// Type of the elements.
    pub ty: GgmlType,
    /// Index of the part that holds the data, from 0.
    pub part: usize,
    /// Where the data begins, in bytes from the beginning of its part.
    pub offset: u64,
    /// Length of the data in bytes.
    pub bytes: u64,
}

impl TensorInfo {
    /// Dimensions row-major, slowest first, as everything above this crate writes them. Dimensions
    /// of 1 stay as stored.
    pub fn shape(&self) -> Vec<usize> {
        // Lossless: the reader refuses tensors whose dimensions do not fit into usize.
        self.ggml_dims
            .iter()
            .rev()
            .map(|&dim| dim as usize)
            .collect()
    }

    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.ggml_dims.iter().product()
    }
}

/// Why dimensions and a type make no tensor.
pub(crate) enum SizeError {
    PartialBlocks { ne0: u64, block: u64 },
    Overflow,
}

/// Bytes of a tensor with these dimensions (fastest first; none at all is a scalar).
pub(crate) fn tensor_bytes(dims: &[u64], ty: GgmlType) -> Result<u64, SizeError> {
    let ne0 = dims.first().copied().unwrap_or(1);
    let block = ty.block_elems() as u64;
    if !ne0.is_multiple_of(block) {
        return Err(SizeError::PartialBlocks { ne0, block });
    }
    // Also without its zeros the product must not overflow, or `elements` would.
    let product = |dims: &[u64]| {
        dims.iter()
            .try_fold(1u64, |n, &dim| n.checked_mul(dim.max(1)))
    };
    let fits_usize = dims.iter().all(|&dim| usize::try_from(dim).is_ok());
    let rows = dims.get(1..).unwrap_or_default();
    let bytes = product(dims)
        .and(product(rows))
        .and_then(|_| (ne0 / block).checked_mul(ty.block_bytes() as u64))
        .and_then(|row_bytes| {
            rows.iter()
                .try_fold(row_bytes, |n, &dim| n.checked_mul(dim))
        });
    bytes.filter(|_| fits_usize).ok_or(SizeError::Overflow)
}
