//! The matrices of a tensor, one at a time, in f32.

use std::borrow::Cow;

use glim_quant::{GgmlType, QuantError, dequantize};

use crate::checkpoint::{Checkpoint, TensorDesc};
use crate::error::ModelError;

/// A tensor `[matrices, rows, columns]` of a checkpoint, to be decoded one matrix at a time. Nothing is copied unless the
/// file stores the tensor in another form.
#[derive(Debug)]
pub struct Matrices<'a> {
    pieces: Vec<Cow<'a, [u8]>>,
    ty: GgmlType,
    /// Elements of a matrix.
    elements: usize,
    /// Matrices of a piece.
    piece_matrices: usize,
}

impl<'a> Matrices<'a> {
    /// Of a tensor with three axes; another one is a single matrix.
    ///
    /// # Errors
    /// If the checkpoint cannot hand out the tensor.
    pub fn of(checkpoint: &'a Checkpoint, tensor: &'a TensorDesc) -> Result<Self, ModelError> {
        let pieces: Vec<_> = checkpoint.pieces(tensor)?.collect();
        let n = match tensor.shape.as_slice() {
            [n, _, _] => *n,
            _ => 1,
        };
        Ok(Self {
            ty: tensor.ty,
            elements: tensor.elements().checked_div(n).unwrap_or(0),
            piece_matrices: n.checked_div(pieces.len()).unwrap_or(0).max(1),
            pieces,
        })
    }

    /// Matrix `i` into `values`, whose length is made to fit.
    ///
    /// # Errors
    /// If the type has no decoder; [`QuantError::PartialBlock`] if there is no such matrix.
    pub fn decode(&self, i: usize, values: &mut Vec<f32>) -> Result<(), QuantError> {
        let bytes = self.elements / self.ty.block_elems() * self.ty.block_bytes();
        let at = i % self.piece_matrices * bytes;
        let piece = self.pieces.get(i / self.piece_matrices);
        let matrix = piece.and_then(|piece| piece.get(at..at + bytes));
        values.resize(self.elements, 0.0);
        match matrix {
            Some(matrix) => dequantize(self.ty, matrix, values),
            None => Err(QuantError::PartialBlock {
                ty: self.ty,
                bytes: 0,
            }),
        }
    }
}
