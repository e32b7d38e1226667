//! The tensors of a checkpoint as they are stored, and which of their bytes are there.

use std::borrow::Cow;
use std::ops::Range;

use glim_gguf::{Gguf, TensorInfo};
use glim_quant::GgmlType;

use super::report::BadElement;
use crate::checkpoint::hf::HfTensor;
use crate::checkpoint::{Checkpoint, HfFolder, Source, TensorDesc};

/// One stored tensor. Its bytes are looked up when they are needed: those of big-endian files are made then.
#[derive(Clone)]
pub(super) struct StoredTensor<'a> {
    pub(super) name: &'a str,
    pub(super) ty: GgmlType,
    /// Row-major.
    pub(super) shape: Vec<usize>,
    /// Length in bytes.
    pub(super) len: usize,
    /// The bytes that are not holes of a sparse file, in order.
    pub(super) extents: Vec<Range<usize>>,
    place: Place<'a>,
}

#[derive(Clone, Copy)]
enum Place<'a> {
    Gguf(&'a Gguf, &'a TensorInfo),
    Hf(&'a HfFolder, &'a HfTensor),
}

impl<'a> StoredTensor<'a> {
    fn of_gguf(gguf: &'a Gguf, info: &'a TensorInfo) -> Self {
        StoredTensor {
            name: &info.name,
            ty: info.ty,
            shape: info.shape(),
            // Lossless: the reader has checked that the bytes are mapped.
            len: info.bytes as usize,
            extents: gguf.extents(info),
            place: Place::Gguf(gguf, info),
        }
    }

    fn of_hf(folder: &'a HfFolder, tensor: &'a HfTensor) -> Self {
        let len = hf_len(tensor);
        StoredTensor {
            name: &tensor.name,
            ty: tensor.ty,
            shape: tensor.shape.clone(),
            len,
            extents: std::iter::once(0..len)
                .filter(|all| !all.is_empty())
                .collect(),
            place: Place::Hf(folder, tensor),
        }
    }

    /// Some of its bytes; of an FP8 matrix, which counts as the F32 numbers that it decodes to, the rows that they are in are decoded.
    /// Nothing beyond its end.
    pub(super) fn read(&self, range: &Range<usize>) -> Cow<'a, [u8]> {
        match self.place {
            Place::Gguf(gguf, info) => {
                Cow::Borrowed(gguf.data(info).get(range.clone()).unwrap_or_default())
            }
            Place::Hf(folder, tensor) => match folder.data_of_plain(tensor) {
                Some(bytes) => Cow::Borrowed(bytes.get(range.clone()).unwrap_or_default()),
                None => {
                    let row_bytes = (self.columns() * self.ty.block_bytes()).max(1);
                    let rows = range.start / row_bytes..range.end.min(self.len).div_ceil(row_bytes);
                    let first = rows.start * row_bytes;
                    let decoded = folder.data_rows(tensor, rows);
                    let inside = range.start - first..range.end.min(self.len) - first;
                    Cow::Owned(decoded.get(inside).unwrap_or_default().to_vec())
                }
            },
        }
    }

    /// All of its bytes.
    pub(super) fn bytes(&self) -> Cow<'a, [u8]> {
        self.read(&(0..self.len))
    }

    /// Whether it is decoded when it is read.
    pub(super) fn is_fp8(&self) -> bool {
        matches!(self.place, Place::Hf(_, tensor) if tensor.is_fp8())
    }

    /// Bytes that are there.
    pub(super) fn data_len(&self) -> usize {
        self.extents.iter().map(ExactSizeIterator::len).sum()
    }

    /// Whether any byte of `range` is there.
    pub(super) fn has_data(&self, range: &Range<usize>) -> bool {
        // The first extent that ends beyond the beginning of the range.
        let first = self
            .extents
            .partition_point(|extent| extent.end <= range.start);
        self.extents
            .get(first)
            .is_some_and(|extent| extent.start < range.end)
    }

    /// Elements of a row: its last axis.
    pub(super) fn columns(&self) -> usize {
        self.shape.last().copied().unwrap_or(1).max(1)
    }

    /// An element by its index, as a report names it.
    pub(super) fn bad(&self, element: usize, expected: String, found: String) -> BadElement {
        bad_element(self.name, self.columns(), element, expected, found)
    }
}

/// Element `element` of a tensor with `columns` columns, as a report names it.
pub(super) fn bad_element(
    tensor: &str,
    columns: usize,
    element: usize,
    expected: String,
    found: String,
) -> BadElement {
    BadElement {
        tensor: tensor.to_owned(),
        row: (element / columns.max(1)) as u64,
        col: (element % columns.max(1)) as u64,
        expected,
        found,
    }
}

/// All logical tensors: the trunk's, then those of MTP blocks.
pub(super) fn descs(checkpoint: &Checkpoint) -> impl Iterator<Item = &TensorDesc> {
    checkpoint.tensors().iter().chain(checkpoint.mtp_tensors())
}

/// All stored tensors, in the order of the files. No data is read.
pub(super) fn stored(checkpoint: &Checkpoint) -> Vec<StoredTensor<'_>> {
    match checkpoint.source() {
        Source::Gguf(gguf) => (gguf.tensors().iter())
            .map(|info| StoredTensor::of_gguf(gguf, info))
            .collect(),
        Source::Hf(folder) => (folder.tensors().iter())
            .map(|tensor| StoredTensor::of_hf(folder, tensor))
            .collect(),
    }
}

/// Bytes of a tensor of a folder, of which the header has been checked.
fn hf_len(tensor: &HfTensor) -> usize {
    tensor.shape.iter().product::<usize>() * tensor.ty.block_bytes()
}

/// Bytes of all stored tensors, holes included.
pub(super) fn stored_bytes(checkpoint: &Checkpoint) -> u64 {
    match checkpoint.source() {
        Source::Gguf(gguf) => gguf.tensors().iter().map(|info| info.bytes).sum(),
        Source::Hf(folder) => (folder.tensors().iter())
            .map(|tensor| hf_len(tensor) as u64)
            .sum(),
    }
}
