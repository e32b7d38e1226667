//! A checkpoint as a GGUF file, the way llama.cpp's converter writes it, or as a Hugging Face folder ([`hf`]).
//!
//! [`ExportPlan`] decides everything from headers: the tensors in their order with names, dimensions and types, and the
//! metadata. It can be printed, compared and tested without touching a weight. [`write`] carries it out tensor by
//! tensor, so that memory stays at some megabytes for each thread whatever the model's size, and the file appears under
//! its name only when it is whole and on disk.
//!
//! Source of order, types and keys: llama.cpp's converter (`conversion/base.py`, `deepseek.py`, `glm.py`) and gguf-py.
//! A file written from a Hugging Face folder equals that converter's, tensor by tensor and byte by byte; `keys.rs` says
//! where metadata may differ.

mod error;
mod general;
pub mod hf;
pub(crate) mod keys;
mod order;
mod recode;
mod types;
mod write;

use glim_gguf::Metadata;
use glim_quant::GgmlType;

pub use self::error::ExportError;
pub use self::general::General;
pub use self::recode::Progress;
pub use self::types::FileType;
pub use self::write::{write, write_split};
use crate::checkpoint::{Checkpoint, TensorDesc};
use crate::config::RopeStyle;

/// What becomes of the MTP blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mtp {
    /// They are written, where the checkpoint holds them.
    #[default]
    Keep,
    /// They are left out, as are the keys that count them.
    Drop,
}

/// What may be chosen about a GGUF file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExportOptions {
    /// What most weights are stored as.
    pub file_type: FileType,
    /// Whether MTP blocks are kept.
    pub mtp: Mtp,
}

impl From<FileType> for ExportOptions {
    fn from(file_type: FileType) -> Self {
        Self {
            file_type,
            mtp: Mtp::default(),
        }
    }
}

/// What a GGUF file will hold.
#[derive(Debug)]
pub struct ExportPlan<'a> {
    /// The keys, in order.
    pub metadata: Metadata,
    /// The tensors, in order.
    pub tensors: Vec<ExportTensor<'a>>,
}

/// One tensor of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportTensor<'a> {
    /// Its type in the file.
    pub ty: GgmlType,
    /// The logical tensor that it holds.
    pub desc: &'a TensorDesc,
}

impl ExportTensor<'_> {
    /// Its name in the file.
    pub fn name(&self) -> &str {
        &self.desc.name
    }

    /// Its dimensions, fastest first.
    pub fn ggml_dims(&self) -> Vec<u64> {
        self.desc.shape.iter().rev().map(|&n| n as u64).collect()
    }

    /// Its bytes in the file.
    pub fn byte_len(&self) -> u64 {
        (self.desc.elements() / self.ty.block_elems() * self.ty.block_bytes()) as u64
    }
}

impl<'a> ExportPlan<'a> {
    /// Plans a file. `general` becomes `general.*` keys; the keys of `text` (tokenizer and chat template,
    /// which this crate knows nothing of) are written last, as they are.
    ///
    /// A tensor that is another one once more (a tied head) is written once, as readers expect.
    ///
    /// # Errors
    /// [`ExportError::NoKey`] if the model has a trait that GGUF cannot express.
    pub fn new(
        checkpoint: &'a Checkpoint,
        options: impl Into<ExportOptions>,
        general: &General,
        text: &Metadata,
    ) -> Result<Self, ExportError> {
        let ExportOptions { file_type, mtp } = options.into();
        if checkpoint.config().indexer.rope_style == RopeStyle::HalfSplit {
            return Err(ExportError::NoKey {
                origin: checkpoint.source().name(),
                what: "an indexer that rotates half-split pairs",
                format: "GGUF",
            });
        }
        let tensors: Vec<ExportTensor<'a>> = order::order(checkpoint, mtp)
            .into_iter()
            .map(|desc| ExportTensor {
                ty: types::type_of(desc, file_type),
                desc,
            })
            .collect();
        let mut metadata = Metadata::new();
        let label = general::size_label(&tensors);
        let keys = general
            .keys(checkpoint.config(), &label)
            .into_iter()
            .chain(keys::keys(checkpoint, file_type, mtp));
        for (key, value) in keys {
            metadata.set(key, value);
        }
        for (key, value) in text.iter() {
            metadata.set(key, value.clone());
        }
        Ok(Self { metadata, tensors })
    }

    /// Bytes of all tensors, without padding.
    pub fn data_bytes(&self) -> u64 {
        self.tensors.iter().map(ExportTensor::byte_len).sum()
    }
}
