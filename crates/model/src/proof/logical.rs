//! Logical tensors read by ranges of elements, straight from what is stored.
//!
//! [`Checkpoint::data`] hands out whole tensors; of a layer's experts that is gigabytes. A proof reads them a piece at a time. The
//! places are written down here by formula, beside those of the loader, so that levels 2 and 4 can hold the two against each other:
//!
//! ```text
//! expert e of a stack                    = stored tensor e
//! gate, expert e, row i                  = row  e * 2I + i      of ffn_gate_up_exps [E, 2I, D]
//! up,   expert e, row i                  = row  e * 2I + I + i
//! values, head h, row j                  = row  h * (nope + v) + nope + j   of attn_kv_b [H * (nope + v), rank]
//! keys,   head h, row r, column d        = row  h * (nope + v) + d, column r
//! ```

use std::borrow::Cow;
use std::ops::Range;

use glim_quant::dequantize;

use super::stored::StoredTensor;
use crate::checkpoint::{Checkpoint, TensorDesc};
use crate::error::ModelError;
use crate::shard::{Form, Part, ShardError};

/// Elements of a chunk, at most: a whole number of blocks of every type.
pub(super) const CHUNK_ELEMENTS: usize = 1 << 20;

/// One logical tensor, to be read in pieces.
#[derive(Clone)]
pub(super) struct Logical<'a> {
    pub(super) desc: &'a TensorDesc,
    checkpoint: &'a Checkpoint,
    /// The whole list of the checkpoint.
    stored: &'a [StoredTensor<'a>],
    form: Form,
}

impl<'a> Logical<'a> {
    /// `stored` is the list of all stored tensors of `checkpoint`.
    pub(super) fn new(
        checkpoint: &'a Checkpoint,
        stored: &'a [StoredTensor<'a>],
        desc: &'a TensorDesc,
    ) -> Result<Self, ShardError> {
        Ok(Logical {
            desc,
            checkpoint,
            stored,
            form: Form::of(checkpoint, desc)?,
        })
    }

    /// Whether these are keys of a whole `kv_b`, which lie transposed there.
    pub(super) fn is_transposed(&self) -> bool {
        matches!(&self.form, Form::Part { fused, part: Part::First, .. } if fused.is_first_transposed())
    }

    /// Whether the loader makes the whole of it, whatever part it is asked for: keys of a quantised `kv_b`, and single
    /// FP8 matrices.
    pub(super) fn is_loaded_whole(&self) -> bool {
        let stored = self
            .desc
            .stored()
            .first()
            .and_then(|&index| self.stored.get(index));
        stored.is_some_and(|tensor| {
            let is_decoded = tensor.is_fp8() || tensor.ty.block_elems() > 1;
            let is_stack = matches!(self.form, Form::Stack { .. });
            self.is_transposed() && is_decoded || tensor.is_fp8() && !is_stack
        })
    }

    /// The elements of each index of the first axis, if pieces must not cross it: experts, heads.
    pub(super) fn outer_elements(&self) -> usize {
        let elements = self.desc.elements();
        match self.desc.shape.as_slice() {
            [outer, _, _] if *outer > 0 => elements / outer,
            _ => elements,
        }
    }

    /// Whether any byte of these elements is there; where they lie is asked for to the index of the first axis.
    pub(super) fn has_data(&self, elements: &Range<usize>) -> bool {
        let all = self.desc.elements().max(1);
        match &self.form {
            Form::Whole { stored } => self.is_there(*stored, &self.byte_range(elements)),
            Form::Part { stored, .. } => {
                // Experts and heads of the stored tensor are those of the logical one.
                let outer = self.outer_elements().max(1);
                let count = all / outer;
                let each = self.stored.get(*stored).map_or(0, |t| t.len / count.max(1));
                let range = elements.start / outer..elements.end.div_ceil(outer);
                self.is_there(*stored, &(range.start * each..range.end * each))
            }
            Form::Stack { .. } => true,
        }
    }

    fn is_there(&self, stored: usize, bytes: &Range<usize>) -> bool {
        self.stored
            .get(stored)
            .is_some_and(|tensor| tensor.has_data(bytes))
    }

    fn byte_range(&self, elements: &Range<usize>) -> Range<usize> {
        let ty = self.desc.ty;
        let at = |element: usize| element / ty.block_elems() * ty.block_bytes();
        at(elements.start)..at(elements.end)
    }

    /// The blocks of these elements, which begin and end with a block and do not cross an index of the first axis (see
    /// [`Self::outer_elements`]) unless the tensor is stored as it is. Borrowed from the mapping, but for keys of `attn_kv_b`.
    pub(super) fn bytes(&self, elements: &Range<usize>) -> Result<Cow<'a, [u8]>, ModelError> {
        let outer = self.outer_elements().max(1);
        let (index, inside) = (
            elements.start / outer,
            elements.start % outer..elements.end - elements.start / outer * outer,
        );
        let range = self.byte_range(&inside);
        match &self.form {
            Form::Whole { stored } => Ok(self.borrowed(*stored, self.byte_range(elements))),
            Form::Stack { stored } => {
                let stored = stored.get(index).copied().unwrap_or(usize::MAX);
                Ok(self.borrowed(stored, range))
            }
            Form::Part { stored, .. } if self.is_transposed() => {
                let head = self.keys_of_head(*stored, index)?;
                Ok(Cow::Owned(head.get(range).unwrap_or_default().to_vec()))
            }
            Form::Part {
                stored,
                fused,
                part,
            } => {
                let [_, rows_of_both, cols] = fused.view();
                let rows = fused.logical_shape(*part)[1];
                let skipped = match part {
                    Part::First => 0,
                    Part::Second => rows_of_both - rows,
                };
                let row_bytes = self.desc.ty.row_bytes(cols).unwrap_or_default();
                let first = (index * rows_of_both + skipped) * row_bytes;
                Ok(self.borrowed(*stored, first + range.start..first + range.end))
            }
        }
    }

    /// The error of a type that has no decoder yet.
    pub(super) fn undecodable(&self) -> ModelError {
        let stored = self
            .desc
            .stored()
            .first()
            .and_then(|&index| self.stored.get(index));
        let (tensor, ty) = match stored {
            Some(tensor) => (tensor.name, tensor.ty),
            None => (self.desc.name.as_str(), self.desc.ty),
        };
        ModelError::Undecodable {
            origin: self.checkpoint.source().name(),
            tensor: tensor.to_owned(),
            ty: ty.name().to_owned(),
        }
    }

    /// The keys of one head, `[rank, nope]`, of a stored `kv_b`.
    fn keys_of_head(&self, stored: usize, head: usize) -> Result<Vec<u8>, ModelError> {
        let config = self.checkpoint.config();
        let (nope, v, rank) = (
            config.qk_nope_head_dim,
            config.v_head_dim,
            config.kv_lora_rank,
        );
        let Some(tensor) = self.stored.get(stored) else {
            return Ok(Vec::new());
        };
        let row_bytes = tensor.ty.row_bytes(rank).unwrap_or_default();
        let first = head * (nope + v) * row_bytes;
        let rows = self.borrowed(stored, first..first + nope * row_bytes);
        let rows = match tensor.ty == self.desc.ty {
            true => rows,
            false => {
                let mut values = vec![0f32; nope * rank];
                dequantize(tensor.ty, &rows, &mut values).map_err(|_| self.undecodable())?;
                Cow::Owned(values.iter().flat_map(|x| x.to_le_bytes()).collect())
            }
        };
        let elem = self.desc.ty.block_bytes();
        let mut keys = Vec::with_capacity(rows.len());
        for r in 0..rank {
            for d in 0..nope {
                let at = (d * rank + r) * elem;
                keys.extend_from_slice(rows.get(at..at + elem).unwrap_or_default());
            }
        }
        Ok(keys)
    }

    /// Resolution has checked sizes, so the range is there; a shorter answer is named by whoever compares.
    fn borrowed(&self, stored: usize, range: Range<usize>) -> Cow<'a, [u8]> {
        let tensor = self.stored.get(stored);
        tensor.map_or(Cow::Borrowed(&[]), |tensor| tensor.read(&range))
    }

    /// Its elements in chunks of at most [`CHUNK_ELEMENTS`] that [`Self::bytes`] can read, of this tensor and of the same one of another
    /// checkpoint, however that is stored.
    pub(super) fn chunks(&self) -> Vec<Range<usize>> {
        let (elements, outer) = (self.desc.elements(), self.outer_elements());
        let mut chunks = Vec::new();
        for first in (0..elements).step_by(outer.max(1)) {
            for start in (0..outer).step_by(CHUNK_ELEMENTS) {
                chunks.push(first + start..first + (start + CHUNK_ELEMENTS).min(outer));
            }
        }
        chunks
    }
}
