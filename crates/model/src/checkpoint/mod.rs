//! A checkpoint: configuration and logical tensors of one model, from a GGUF (single, split, in memory) or an HF
//! folder.
//!
//! Opening reads headers and metadata only; it resolves every tensor of the [catalogue](crate::catalogue) to what the
//! source stores, and fails with a sentence that names what is missing, surplus or mis-shaped. [`Checkpoint::data`]
//! then hands out a tensor's bytes in the logical form: borrowed from the mapping where the source stores that form,
//! rearranged into a copy where it does not (experts apart, gate and up fused, `kv_b` whole).

mod fp8;
mod gguf;
pub mod hf;
mod hf_config;
mod hf_names;
mod mmap;
mod pieces;
mod rearrange;
mod resolve;

use std::borrow::Cow;
use std::path::Path;

use glim_gguf::Gguf;
use glim_quant::GgmlType;

pub use self::hf::HfFolder;
pub(crate) use self::hf_names::forms as hf_forms;
pub use self::pieces::Pieces;
pub(crate) use self::resolve::Form;
use self::resolve::{Naming, Resolver, Stored, layer_list};
use crate::catalogue::{Role, TensorSpec, catalogue, mtp_catalogue, mtp_optional};
use crate::config::{Config, IndexerKind};
use crate::error::ModelError;
use crate::hparams::KindsFrom;
use crate::kv_b::KvBDims;

/// Where a checkpoint's bytes come from.
#[derive(Debug)]
pub enum Source {
    /// A GGUF file or set of parts.
    Gguf(Gguf),
    /// A Hugging Face folder.
    Hf(HfFolder),
}

impl Source {
    /// File or folder, for messages.
    pub fn name(&self) -> String {
        match self {
            Source::Gguf(gguf) => gguf.metadata().path().display().to_string(),
            Source::Hf(folder) => folder.path().display().to_string(),
        }
    }

    /// Name and type of the stored tensor `index`.
    fn header(&self, index: usize) -> (&str, GgmlType) {
        match self {
            Source::Gguf(gguf) => {
                let info = &gguf.tensors()[index];
                (&info.name, info.ty)
            }
            Source::Hf(folder) => {
                let tensor = &folder.tensors()[index];
                (&tensor.name, tensor.ty)
            }
        }
    }

    /// The bytes of the stored tensor `index`, in the type that [`Self::header`] says.
    fn stored(&self, index: usize) -> Cow<'_, [u8]> {
        match self {
            Source::Gguf(gguf) => Cow::Borrowed(gguf.data(&gguf.tensors()[index])),
            Source::Hf(folder) => folder.data(&folder.tensors()[index]),
        }
    }
}

/// Which part of a tensor that holds two logical ones: gate or up, keys or values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Half {
    First,
    Second,
}

/// How a logical tensor is made of stored ones (indices into the source's list).
#[derive(Debug, Clone, PartialEq, Eq)]
enum Origin {
    /// Stored as it is.
    Whole(usize),
    /// Half of the rows of each expert.
    GateUp(usize, Half),
    /// Keys (transposed) or values of `kv_b`.
    KvB(usize, Half),
    /// Concatenated along a new first axis.
    Stack(Vec<usize>),
}

/// One logical tensor of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorDesc {
    /// GGUF's name of the logical form.
    pub name: String,
    /// What it is for.
    pub role: Role,
    /// Its layer; MTP blocks count on from the trunk.
    pub layer: Option<usize>,
    /// Type of the logical form: the stored one, but F32 for keys made from a quantised `kv_b`, and for FP8.
    pub ty: GgmlType,
    /// Row-major shape, in elements.
    pub shape: Vec<usize>,
    origin: Origin,
}

impl TensorDesc {
    /// Elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Bytes of the logical form.
    pub fn byte_len(&self) -> usize {
        self.elements() / self.ty.block_elems() * self.ty.block_bytes()
    }
}

/// An opened checkpoint. Immutable but for [`Self::set_latent_norm_eps`], and freely shared between threads.
#[derive(Debug)]
pub struct Checkpoint {
    config: Config,
    tensors: Vec<TensorDesc>,
    mtp_tensors: Vec<TensorDesc>,
    oddities: Vec<String>,
    source: Source,
}

impl Checkpoint {
    /// Opens a `.gguf` file (any part of a split set), a folder with one such set, or a Hugging Face folder.
    ///
    /// # Errors
    /// A missing path or part; a broken file; a model of another architecture; hyper-parameters that are absent or
    /// cannot be right; tensors that are missing, surplus or mis-shaped.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        if hf::is_hf_folder(path) {
            Self::from_hf(HfFolder::open(path)?)
        } else {
            Self::from_gguf(Gguf::open(path)?)
        }
    }

    /// Resolves an opened GGUF, e.g. one that is in memory.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn from_gguf(gguf: Gguf) -> Result<Self, ModelError> {
        let (config, kinds_from) = crate::hparams::read(&gguf)?;
        let stored = gguf::stored(&gguf);
        Self::resolve(
            config,
            kinds_from,
            Naming::Gguf,
            &stored,
            Source::Gguf(gguf),
        )
    }

    fn from_hf(folder: HfFolder) -> Result<Self, ModelError> {
        let config = folder.config()?;
        let stored = hf::stored(&folder);
        let fp8 = folder
            .tensors()
            .iter()
            .filter(|tensor| tensor.is_fp8())
            .count();
        let mut checkpoint = Self::resolve(
            config,
            KindsFrom::Metadata,
            Naming::Hf,
            &stored,
            Source::Hf(folder),
        )?;
        if fp8 > 0 {
            checkpoint.oddities.push(format!(
                "{fp8} tensors are stored as F8_E4M3 with scales for blocks: they are decoded to F32, four times as large"
            ));
        }
        Ok(checkpoint)
    }

    fn resolve(
        config: Config,
        kinds_from: KindsFrom,
        naming: Naming,
        stored: &[Stored],
        source: Source,
    ) -> Result<Self, ModelError> {
        let mut resolver = Resolver::new(&config, naming, stored);
        let tensors = resolver.take_all(&catalogue(&config));

        let block = mtp_catalogue(&config);
        let mut mtp_tensors = Vec::new();
        if block.iter().any(|spec| resolver.holds(spec)) {
            let optional: Vec<TensorSpec> = mtp_optional(&config)
                .into_iter()
                .filter(|spec| resolver.holds(spec))
                .collect();
            mtp_tensors = resolver.take_all(&block);
            mtp_tensors.extend(resolver.take_all(&optional));
        } else if config.n_mtp_layers > 0 {
            resolver.note(
                "the metadata declares an MTP block, but its tensors were stripped".to_owned(),
            );
        }

        let copied: Vec<usize> = (0..config.n_layers)
            .filter(|&layer| config.indexer.kinds[layer] == IndexerKind::Shared)
            .filter(|&layer| resolver.ignore(&indexer_specs(layer)))
            .collect();
        if !copied.is_empty() {
            let layers = layer_list(&copied);
            resolver.note(match kinds_from {
                KindsFrom::Metadata => format!(
                    "indexer tensors of {layers} are ignored: by the metadata an earlier layer's indexer is shared"
                ),
                KindsFrom::Tensors => format!(
                    "the indexer tensors of {layers} are copies of the nearest earlier full layer's: taken as shared"
                ),
            });
        }

        let (problems, oddities) = resolver.finish();
        if !problems.is_empty() {
            return Err(ModelError::Tensors {
                origin: source.name(),
                problems,
            });
        }
        Ok(Checkpoint {
            config,
            tensors,
            mtp_tensors,
            oddities,
            source,
        })
    }

    /// Hyper-parameters.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Overrides the epsilon of `q_a_norm` and `kv_a_norm`. transformers uses 1e-6 there, whatever `rms_norm_eps` says.
    pub fn set_latent_norm_eps(&mut self, eps: f32) {
        self.config.latent_norm_eps = eps;
    }

    /// The trunk's tensors, in catalogue order.
    pub fn tensors(&self) -> &[TensorDesc] {
        &self.tensors
    }

    /// The MTP blocks' tensors; empty if there are none, or if they were stripped.
    pub fn mtp_tensors(&self) -> &[TensorDesc] {
        &self.mtp_tensors
    }

    /// A logical tensor of trunk or MTP block, by its GGUF name.
    pub fn tensor(&self, name: &str) -> Option<&TensorDesc> {
        self.tensors
            .iter()
            .chain(&self.mtp_tensors)
            .find(|desc| desc.name == name)
    }

    /// Whether the output head is the embedding table: one stored tensor for both, to be resident once.
    pub fn is_tied(&self) -> bool {
        let origin = |role: Role| {
            self.tensors
                .iter()
                .find(|desc| desc.role == role)
                .map(|desc| &desc.origin)
        };
        origin(Role::Output) == origin(Role::TokenEmbd)
    }

    /// The bytes of one of this checkpoint's tensors: row-major blocks of `t.ty`, `t.byte_len()` long.
    ///
    /// # Errors
    /// [`ModelError::Undecodable`] if no codec exists for the stored type yet.
    pub fn data(&self, t: &TensorDesc) -> Result<Cow<'_, [u8]>, ModelError> {
        self.check_decodable(t)?;
        rearrange::data(self, t)
    }

    /// Whether [`Self::data`] will work for every tensor: to be asked before a long load.
    ///
    /// # Errors
    /// [`ModelError::Undecodable`] for the first tensor whose stored type has no codec yet.
    pub fn check_loadable(&self) -> Result<(), ModelError> {
        self.tensors
            .iter()
            .chain(&self.mtp_tensors)
            .try_for_each(|desc| self.check_decodable(desc))
    }

    /// What is unusual about the source but was understood: a sentence each.
    pub fn oddities(&self) -> &[String] {
        &self.oddities
    }

    /// Where the bytes come from.
    pub fn source(&self) -> &Source {
        &self.source
    }

    fn check_decodable(&self, t: &TensorDesc) -> Result<(), ModelError> {
        let index = match &t.origin {
            Origin::Whole(index) | Origin::GateUp(index, _) | Origin::KvB(index, _) => Some(*index),
            // The experts of a stack all have one type.
            Origin::Stack(indices) => indices.first().copied(),
        };
        let Some((name, ty)) = index.map(|index| self.source.header(index)) else {
            return Ok(());
        };
        if ty.can_decode() {
            return Ok(());
        }
        Err(ModelError::Undecodable {
            origin: self.source.name(),
            tensor: name.to_owned(),
            ty: ty.name().to_owned(),
        })
    }
}

/// The indexer tensors that `layer` would have if it were full; names only.
fn indexer_specs(layer: usize) -> Vec<TensorSpec> {
    let roles = Role::ALL.iter().copied().filter(|role| role.is_indexer());
    roles
        .map(|role| TensorSpec {
            name: role.gguf_name(Some(layer)),
            role,
            layer: Some(layer),
            shape: Vec::new(),
        })
        .collect()
}

pub(crate) fn kv_b_dims(config: &Config) -> KvBDims {
    KvBDims {
        n_heads: config.n_heads,
        nope: config.qk_nope_head_dim,
        v: config.v_head_dim,
        rank: config.kv_lora_rank,
    }
}

/// The type of keys that were transposed: elements of plain types move, blocks must be decoded.
fn transposable(ty: GgmlType) -> GgmlType {
    match ty {
        GgmlType::F32 | GgmlType::F16 | GgmlType::BF16 => ty,
        _ => GgmlType::F32,
    }
}
