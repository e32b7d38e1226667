//! A checkpoint as a Hugging Face folder, as transformers' `glm_moe_dsa` reads it.
//!
//! [`HfPlan`] decides everything from headers: each tensor under its name there, experts apart and `kv_b` whole, and the
//! files that they go to. [`write()`] carries it out; the folder appears under its name when it is whole and on disk.
//!
//! F32, F16 and BF16 are kept as they are; whatever is quantised is decoded, and rounded to the type that was asked for.
//! A folder made of a GGUF that was made of a folder has the same values, but norms, router and index weights as F32.

mod config;
mod folder;
mod shards;
mod write;

use std::path::Path;

use glim_quant::GgmlType;
use serde_json::{Map, Value as Json};

pub use self::write::write;
use super::general::General;
use super::{ExportError, Mtp, keys, order};
use crate::catalogue::TensorSpec;
use crate::checkpoint::{Checkpoint, Form, Half, TensorDesc, hf_forms};
use crate::hparams::DEFAULT_INDEX_NORM_EPS;

/// Most bytes of tensors in a file, where nobody says otherwise: huggingface_hub's default.
pub const DEFAULT_SHARD_BYTES: u64 = 5_000_000_000;

/// What may be chosen about a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HfOptions {
    /// What quantised tensors become.
    pub float: Float,
    /// Whether MTP blocks are kept.
    pub mtp: Mtp,
    /// Most bytes of tensors in a file; a tensor that alone is larger has a file to itself.
    pub shard_bytes: u64,
}

impl Default for HfOptions {
    fn default() -> Self {
        Self {
            float: Float::Bf16,
            mtp: Mtp::Keep,
            shard_bytes: DEFAULT_SHARD_BYTES,
        }
    }
}

/// A type of safetensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Float {
    /// 32-bit floats.
    F32,
    /// 16-bit floats with 5 bits of exponent.
    F16,
    /// The upper half of a 32-bit float.
    Bf16,
}

impl Float {
    /// As GGUF knows it.
    pub fn ggml_type(self) -> GgmlType {
        match self {
            Self::F32 => GgmlType::F32,
            Self::F16 => GgmlType::F16,
            Self::Bf16 => GgmlType::BF16,
        }
    }

    /// In the header of a safetensors file.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
        }
    }

    /// `None` for a type that must be decoded.
    fn of(ty: GgmlType) -> Option<Self> {
        [Self::F32, Self::F16, Self::Bf16]
            .into_iter()
            .find(|float| float.ggml_type() == ty)
    }

    fn bytes(self) -> usize {
        self.ggml_type().block_bytes()
    }
}

/// What a folder will hold.
#[derive(Debug)]
pub struct HfPlan<'a> {
    /// `config.json`.
    pub config: Json,
    /// `generation_config.json`.
    pub generation: Json,
    /// The tensors, by name.
    pub tensors: Vec<HfExport<'a>>,
    /// The files, as runs of `tensors`.
    shards: Vec<std::ops::Range<usize>>,
}

/// One tensor of the folder.
#[derive(Debug)]
pub struct HfExport<'a> {
    /// Its name there.
    pub name: String,
    /// Its type there.
    pub float: Float,
    /// Row-major shape.
    pub shape: Vec<usize>,
    /// What it is made of.
    from: MadeOf<'a>,
}

/// What a tensor is made of.
#[derive(Debug, Clone, Copy)]
enum MadeOf<'a> {
    Whole(&'a TensorDesc),
    /// One index of the first axis.
    Expert(&'a TensorDesc, usize),
    /// Keys and values of `kv_b`.
    KvB(&'a TensorDesc, &'a TensorDesc),
}

impl HfExport<'_> {
    /// Its bytes in the file.
    pub fn byte_len(&self) -> u64 {
        (self.shape.iter().product::<usize>() * self.float.bytes()) as u64
    }

    /// Whether it had to be decoded, so that its values were rounded unless they are F32 now.
    pub fn is_decoded(&self) -> bool {
        let is_float = |desc: &TensorDesc| Float::of(desc.ty).is_some();
        match self.from {
            MadeOf::Whole(desc) | MadeOf::Expert(desc, _) => !is_float(desc),
            MadeOf::KvB(keys, values) => !is_float(keys) || !is_float(values),
        }
    }
}

impl<'a> HfPlan<'a> {
    /// Plans a folder. `token_ids` are keys that go to `config.json` and `generation_config.json`: this crate knows nothing
    /// of text.
    ///
    /// # Errors
    /// [`ExportError::NoKey`] if the model has a trait that `config.json` cannot express.
    pub fn new(
        checkpoint: &'a Checkpoint,
        options: HfOptions,
        general: &General,
        token_ids: &Map<String, Json>,
    ) -> Result<Self, ExportError> {
        let model = checkpoint.config();
        if model.indexer.norm_eps != DEFAULT_INDEX_NORM_EPS {
            return Err(ExportError::NoKey {
                origin: checkpoint.source().name(),
                what: "an epsilon of its own for the norm of index keys",
                format: "config.json",
            });
        }
        let mut tensors = Vec::new();
        let descs = order::own_tensors(checkpoint, options.mtp);
        for desc in &descs {
            push(&mut tensors, desc, &descs, checkpoint, options.float);
        }
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        let traits = config::Traits {
            float: prevailing(&tensors),
            is_tied: checkpoint.is_tied(),
            n_mtp: keys::n_mtp(checkpoint, options.mtp),
        };
        Ok(Self {
            config: config::config(model, traits, token_ids),
            generation: config::generation(general, token_ids),
            shards: shards::cut(&tensors, options.shard_bytes),
            tensors,
        })
    }

    /// Bytes of all tensors.
    pub fn data_bytes(&self) -> u64 {
        self.tensors.iter().map(HfExport::byte_len).sum()
    }

    /// Files that hold tensors.
    pub fn n_shards(&self) -> usize {
        self.shards.len()
    }
}

/// Adds what one logical tensor becomes. `descs` are all of them.
fn push<'a>(
    tensors: &mut Vec<HfExport<'a>>,
    desc: &'a TensorDesc,
    descs: &[&'a TensorDesc],
    checkpoint: &Checkpoint,
    float: Float,
) {
    let spec = TensorSpec {
        name: desc.name.clone(),
        role: desc.role,
        layer: desc.layer,
        shape: desc.shape.clone(),
    };
    let kept_or = |desc: &TensorDesc| Float::of(desc.ty).unwrap_or(float);
    let config = checkpoint.config();
    // The first form is the one that transformers writes.
    match hf_forms(&spec, config).into_iter().next() {
        Some(Form::Whole(name)) => tensors.push(HfExport {
            name,
            float: kept_or(desc),
            shape: desc.shape.clone(),
            from: MadeOf::Whole(desc),
        }),
        Some(Form::Stack(names)) => {
            for (expert, name) in names.into_iter().enumerate() {
                tensors.push(HfExport {
                    name,
                    float: kept_or(desc),
                    shape: desc.shape[1..].to_vec(),
                    from: MadeOf::Expert(desc, expert),
                });
            }
        }
        Some(Form::KvB(name, Half::First)) => {
            let values = crate::catalogue::Role::AttnVB;
            let values = descs
                .iter()
                .find(|other| other.role == values && other.layer == desc.layer);
            let Some(values) = values else { return };
            let (keys_float, values_float) = (kept_or(desc), kept_or(values));
            let rows = config.n_heads * (config.qk_nope_head_dim + config.v_head_dim);
            tensors.push(HfExport {
                name,
                // What differs meets in the type that holds both.
                float: if keys_float == values_float {
                    keys_float
                } else {
                    Float::F32
                },
                shape: vec![rows, config.kv_lora_rank],
                from: MadeOf::KvB(desc, values),
            });
        }
        // Values go with their keys; the others are forms of sources only.
        _ => {}
    }
}

/// The type of most weights.
fn prevailing(tensors: &[HfExport<'_>]) -> Float {
    let of = |float: Float| -> usize {
        let tensors = tensors.iter().filter(|tensor| tensor.float == float);
        tensors
            .map(|tensor| tensor.shape.iter().product::<usize>())
            .sum()
    };
    let floats = [Float::F32, Float::F16, Float::Bf16];
    floats
        .into_iter()
        .max_by_key(|float| of(*float))
        .unwrap_or(Float::Bf16)
}

/// Whether `path` can become a folder: it does not exist, or is an empty folder.
///
/// # Errors
/// [`ExportError::Occupied`] if not; [`ExportError::Write`] if that cannot be known.
pub fn check_target(path: &Path) -> Result<(), ExportError> {
    folder::check_target(path)
}
