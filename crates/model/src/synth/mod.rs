//! Models of real shapes with random weights, for measurements and proofs that need a size and no sense.
//!
//! [`SynthPlan`] decides everything as plain data: a [`Shape`] gives the hyper-parameters, a [`TypeRule`] the type of each
//! tensor, the catalogue names and shapes. [`write`] carries it out: random blocks ([`Blocks`]) that stream to disk on all
//! cores, or holes ([`Data::Holes`]) that take no room at all. The same plan and seed give the same bytes, on any machine
//! and any number of threads.
//!
//! Sizes of weights are those that keep a forward pass in range: standard deviation 1/√(inputs) for each matrix, so that
//! unit inputs make unit outputs; norms are 1. The text that such a model makes is noise.

mod blocks;
mod random;
mod shape;
mod source;
mod types;
mod write;

use glim_gguf::{GgufError, Metadata, Value};
use glim_quant::{GgmlType, QuantError};

pub use self::blocks::Blocks;
pub use self::random::Stream;
pub use self::shape::{Changes, Shape};
pub use self::source::RandomWeights;
pub use self::types::{Classes, Published, TypeRule};
pub use self::write::{Data, Target, write};
use crate::catalogue::{Role, TensorSpec, catalogue, mtp_catalogue};
use crate::config::{Config, IndexerKind};
use crate::export::keys;
use crate::quantize::QuantizeError;

/// Mean of a router's selection biases: from 5 to 35, another one in each layer.
const ROUTER_BIAS_MEANS: (f32, f32) = (5.0, 35.0);
/// Standard deviation of a router's selection biases. The real ones are a large offset with a tiny spread: published are
/// 6.817 to 7.063 in one layer of GLM-5.2 and 34.5 ± 0.14 in another.
const ROUTER_BIAS_SPREAD: f32 = 0.05;

/// Why a model cannot be made up. No file is left behind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SynthError {
    /// A size that the shape cannot have.
    #[error("{what} {found}: expected {expected}")]
    Size {
        /// Which size.
        what: &'static str,
        /// The value.
        found: usize,
        /// What would do.
        expected: String,
    },

    /// A type that no rule knows.
    #[error("`{name}` is no type: expected one of {known}")]
    UnknownType {
        /// What was asked for.
        name: String,
        /// What would do.
        known: String,
    },

    /// A tensor that a mix has no rule for.
    #[error(transparent)]
    Quantize(#[from] QuantizeError),

    /// A type without a decoder.
    #[error(transparent)]
    Quant(#[from] QuantError),

    /// The file cannot be written.
    #[error(transparent)]
    Gguf(#[from] GgufError),
}

/// What a file will hold.
#[derive(Debug, Clone, PartialEq)]
pub struct SynthPlan {
    /// The keys, in order.
    pub metadata: Metadata,
    /// The tensors, in order.
    pub tensors: Vec<SynthTensor>,
}

/// One tensor of the file.
#[derive(Debug, Clone, PartialEq)]
pub struct SynthTensor {
    /// Name, role and row-major shape.
    pub spec: TensorSpec,
    /// Its type in the file.
    pub ty: GgmlType,
    /// What it is filled with.
    pub fill: Fill,
}

/// What a tensor is filled with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fill {
    /// The same number everywhere.
    Constant(f32),
    /// Mean 0 and this standard deviation.
    Random(f32),
    /// A mean of the tensor's own, and a small spread.
    RouterBias,
}

impl SynthPlan {
    /// Plans a model of this configuration, MTP blocks included. `name` becomes `general.name`; the keys of `text`
    /// (tokenizer and chat template, which this crate knows nothing of) are written last, as they are.
    ///
    /// # Errors
    /// [`SynthError::Quant`] if `types` yields a type that cannot be decoded.
    pub fn new(
        config: &Config,
        types: TypeRule,
        name: &str,
        text: &Metadata,
    ) -> Result<Self, SynthError> {
        let mut specs = [catalogue(config), mtp_catalogue(config)].concat();
        let has_indexer = config.indexer.kinds.contains(&IndexerKind::Full);
        specs.retain(|spec| has_indexer || !spec.role.is_indexer());
        let chosen = types.types(&specs, config)?;
        let tensors: Vec<SynthTensor> = specs
            .into_iter()
            .zip(chosen)
            .map(|(spec, ty)| SynthTensor {
                ty,
                fill: Fill::of(&spec),
                spec,
            })
            .collect();
        if let Some(tensor) = tensors.iter().find(|tensor| !tensor.ty.can_decode()) {
            return Err(QuantError::Unsupported { ty: tensor.ty }.into());
        }
        let mut metadata = Metadata::new();
        metadata.set("general.architecture", config.arch.as_str());
        metadata.set("general.type", "model");
        metadata.set("general.name", name);
        let keys = keys::of_config(config, config.n_mtp_layers, types.file_type());
        for (key, value) in keys {
            if has_indexer || !key.contains(".indexer.") {
                metadata.set(key, value);
            }
        }
        for (key, value) in text.iter() {
            metadata.set(key, Value::clone(value));
        }
        Ok(Self { metadata, tensors })
    }

    /// Bytes of all tensors, without padding.
    pub fn data_bytes(&self) -> u64 {
        self.tensors.iter().map(SynthTensor::byte_len).sum()
    }

    /// Elements of all tensors.
    pub fn parameters(&self) -> u64 {
        self.tensors
            .iter()
            .map(|tensor| tensor.spec.elements())
            .sum()
    }
}

impl SynthTensor {
    /// Its dimensions, fastest first.
    pub fn ggml_dims(&self) -> Vec<u64> {
        ggml_dims(&self.spec)
    }

    /// Blocks of its type; its rows are whole blocks, as the rules see to.
    pub fn blocks(&self) -> u64 {
        self.spec.elements() / self.ty.block_elems() as u64
    }

    /// Its bytes in the file.
    pub fn byte_len(&self) -> u64 {
        self.blocks() * self.ty.block_bytes() as u64
    }
}

/// A tensor's dimensions, fastest first.
fn ggml_dims(spec: &TensorSpec) -> Vec<u64> {
    spec.shape.iter().rev().map(|&n| n as u64).collect()
}

impl Fill {
    fn of(spec: &TensorSpec) -> Self {
        let inputs = match spec.role {
            Role::ExpProbsB => return Self::RouterBias,
            Role::IndexerKNormBias => return Self::Constant(0.0),
            // A table that is looked up has one input at a time.
            Role::TokenEmbd | Role::NextnEmbedTokens => 1,
            // Transposed in each head: the key projection reads the latent.
            Role::AttnKB => spec.shape.get(1).copied().unwrap_or(1),
            _ if spec.shape.len() <= 1 => return Self::Constant(1.0),
            _ => spec.shape.last().copied().unwrap_or(1),
        };
        Self::Random(1.0 / (inputs.max(1) as f32).sqrt())
    }
}
