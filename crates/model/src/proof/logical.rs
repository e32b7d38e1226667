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
//! ```
//!
//! Keys of `attn_kv_b` are transposed, and are taken from the loader as a whole.

use std::borrow::Cow;
use std::ops::Range;

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

    /// How it is stored.
    pub(super) fn form(&self) -> &Form {
        &self.form
    }

    /// Whether it can only be had as a whole.
    pub(super) fn is_whole_only(&self) -> bool {
        matches!(&self.form, Form::Part { fused, part: Part::First, .. } if fused.is_first_transposed())
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
    /// [`Self::outer_elements`]). Borrowed from the mapping, but for keys of `attn_kv_b`.
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
            Form::Part { .. } if self.is_whole_only() => {
                let whole = self.checkpoint.data(self.desc)?;
                let range = self.byte_range(elements);
                Ok(match whole {
                    Cow::Borrowed(whole) => Cow::Borrowed(whole.get(range).unwrap_or_default()),
                    Cow::Owned(whole) if range == (0..whole.len()) => Cow::Owned(whole),
                    Cow::Owned(whole) => Cow::Owned(whole.get(range).unwrap_or_default().to_vec()),
                })
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

    /// Resolution has checked sizes, so the range is there; a shorter answer is named by whoever compares.
    fn borrowed(&self, stored: usize, range: Range<usize>) -> Cow<'a, [u8]> {
        let bytes = self
            .stored
            .get(stored)
            .map_or(&[][..], |tensor| tensor.bytes());
        Cow::Borrowed(bytes.get(range).unwrap_or_default())
    }

    /// Its elements in chunks of at most [`CHUNK_ELEMENTS`] that [`Self::bytes`] and its like of `other` can read: the whole where one
    /// of them is to be had as a whole only.
    pub(super) fn chunks(&self, other: &Logical<'_>) -> Vec<Range<usize>> {
        let elements = self.desc.elements();
        if elements == 0 {
            return Vec::new();
        }
        if self.is_whole_only() || other.is_whole_only() {
            return std::iter::once(0..elements).collect();
        }
        let outer = self.outer_elements();
        let mut chunks = Vec::new();
        for first in (0..elements).step_by(outer) {
            for start in (0..outer).step_by(CHUNK_ELEMENTS) {
                chunks.push(first + start..first + (start + CHUNK_ELEMENTS).min(outer));
            }
        }
        chunks
    }
}
