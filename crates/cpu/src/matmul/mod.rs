//! Products of weights with activations.
//!
//! Work is cut by weight rows, so that a weight is read from memory once for a step however many rows the step has.
//!
//! How a weight is multiplied depends on its type and on the arithmetic asked for, never on the number of rows:
//!
//! | weight | exact | fast |
//! | --- | --- | --- |
//! | integer types (see `unpack`) | decode to f32 | 8-bit activations, integer dot products |
//! | F32, F16, BF16 and all others | decode to f32 | as f32, fused multiply-add |

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod blocks_avx2;
mod dispatch;
mod dots;
#[cfg(target_arch = "x86_64")]
mod floats_avx2;
mod product;
pub(crate) mod q8;
mod unpack;

use glim_quant::{GgmlType, QuantError, dequantize};

pub(crate) use self::dispatch::{Kernels, Task, XRows};
pub(crate) use self::dots::{Dots, TILE};
use self::q8::{BLOCK, Q8};
use self::unpack::{Row, is_integer};

/// Arithmetic of a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Math {
    /// F32 in the reference's own order of summation: the same bits.
    Exact,
    /// 8-bit activations where weights are integers, fused multiply-adds elsewhere.
    Fast,
}

/// A resident weight: rows of blocks.
#[derive(Debug)]
pub(crate) struct Weight {
    pub(crate) ty: GgmlType,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
    /// The values of a weight of one axis, which many operations want at once; empty for others.
    pub(crate) vector: Vec<f32>,
    /// Elements of a row.
    pub(crate) k: usize,
    row_bytes: usize,
}

/// Why bytes are not a weight.
#[derive(Debug)]
pub(crate) enum WeightError {
    /// The number of bytes that the shape takes; `None`: a row is not whole blocks, or there is no such number.
    Length(Option<usize>),
    Decode(QuantError),
}

impl Weight {
    /// A weight of bytes that are as many as its shape takes.
    pub(crate) fn new(
        ty: GgmlType,
        shape: Vec<usize>,
        bytes: Vec<u8>,
    ) -> Result<Self, WeightError> {
        if !ty.can_decode() {
            return Err(WeightError::Decode(QuantError::Unsupported { ty }));
        }
        let (k, outer) = shape
            .split_last()
            .map_or((1, &[][..]), |(k, outer)| (*k, outer));
        let rows = outer
            .iter()
            .try_fold(1usize, |n, axis| n.checked_mul(*axis));
        let row_bytes = ty.row_bytes(k).filter(|n| *n > 0);
        let expected = rows.zip(row_bytes).and_then(|(n, row)| n.checked_mul(row));
        let (Some(row_bytes), true) = (row_bytes, expected == Some(bytes.len())) else {
            return Err(WeightError::Length(expected));
        };
        let mut vector = Vec::new();
        if outer.is_empty() {
            vector.resize(k, 0.0);
            dequantize(ty, &bytes, &mut vector).map_err(WeightError::Decode)?;
        }
        Ok(Self {
            ty,
            shape,
            bytes,
            vector,
            k,
            row_bytes,
        })
    }

    /// Blocks of row `j` (all axes but the last flattened).
    pub(crate) fn row(&self, j: usize) -> &[u8] {
        &self.bytes[j * self.row_bytes..][..self.row_bytes]
    }

    /// Whether the weight is multiplied as integers in fast math.
    pub(crate) fn is_integer(&self) -> bool {
        is_integer(self.ty) && self.k.is_multiple_of(BLOCK)
    }

    /// Decodes row `j` into `k` f32.
    pub(crate) fn decode(&self, j: usize, out: &mut [f32]) {
        let decoded = dequantize(self.ty, self.row(j), out);
        // `new` has seen that the type can be decoded and that rows are whole blocks.
        assert!(decoded.is_ok(), "{decoded:?}");
    }
}

/// Activations: rows of f32, and the same rows as 8-bit integers where a weight wants them.
#[derive(Clone, Copy)]
pub(crate) struct Operand<'a> {
    /// `[rows, k]`.
    pub(crate) f32s: &'a [f32],
    pub(crate) q8: Option<&'a Q8>,
}

/// A thread's own buffers.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    rows: Vec<Row>,
    decoded: Vec<f32>,
    /// Probabilities of a few heads.
    pub(crate) p: Vec<f32>,
}
