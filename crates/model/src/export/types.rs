//! Which type each tensor gets.
//!
//! llama.cpp's rules: what has one dimension, every `*_norm.weight`, the router, and whatever is no `.weight` stay F32;
//! so does the projection of the index heads, whose few numbers decide which positions are seen. All else takes the
//! file's type, or F16 where its rows are no whole blocks.

use glim_quant::GgmlType;

use crate::catalogue::Role;
use crate::checkpoint::TensorDesc;

/// What most of a file's weights are stored as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileType {
    /// 32-bit floats.
    F32,
    /// 16-bit floats with 5 bits of exponent: weights beyond 65504 cannot be stored.
    F16,
    /// The upper half of a 32-bit float: what checkpoints are published in.
    Bf16,
    /// 8-bit integers in blocks of 32, with a scale each.
    Q8_0,
}

impl FileType {
    /// The type of most weights.
    pub fn ggml_type(self) -> GgmlType {
        match self {
            Self::F32 => GgmlType::F32,
            Self::F16 => GgmlType::F16,
            Self::Bf16 => GgmlType::BF16,
            Self::Q8_0 => GgmlType::Q8_0,
        }
    }

    /// The number in `general.file_type`, from llama.cpp's `LLAMA_FTYPE`.
    pub(super) fn id(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q8_0 => 7,
            Self::Bf16 => 32,
        }
    }
}

/// The type of one tensor in a file of `file_type`.
pub(super) fn type_of(desc: &TensorDesc, file_type: FileType) -> GgmlType {
    let name = &desc.name;
    let stays_f32 = desc.shape.len() <= 1
        || name.ends_with("_norm.weight")
        || !name.ends_with(".weight")
        || matches!(desc.role, Role::FfnGateInp | Role::IndexerProj);
    if stays_f32 {
        return GgmlType::F32;
    }
    let ty = file_type.ggml_type();
    let row = desc.shape.last().copied().unwrap_or(1);
    if ty.row_bytes(row).is_some() {
        ty
    } else {
        GgmlType::F16
    }
}
