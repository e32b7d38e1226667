//! What `inspect` knows about a model, as data.

use std::collections::BTreeMap;

use glim_engine::{EngineError, EngineOptions, EnginePlan};
use glim_gguf::Gguf;
use glim_model::checkpoint::{HfFolder, Source};
use glim_model::shard::Options;
use glim_model::{Checkpoint, Inventory};
use serde_json::{Map, Value as Json, json};

use super::InspectArgs;
use super::facts::{Architecture, Memory, TokenizerFacts};
use super::plans::{self, PricedPlan};
use super::values::value_json;
use crate::exit::Failure;

/// Everything that is printed.
pub(super) struct Report {
    pub(super) model: String,
    pub(super) format: String,
    pub(super) files: Vec<(String, Option<u64>)>,
    /// Key, value, and the value in words.
    pub(super) metadata: Vec<(String, Json, String)>,
    pub(super) tensors: Vec<Tensor>,
    pub(super) architecture: Option<Architecture>,
    pub(super) tokenizer: Option<TokenizerFacts>,
    pub(super) oddities: Vec<String>,
    pub(super) plans: Vec<PricedPlan>,
}

/// A stored tensor.
pub(super) struct Tensor {
    pub(super) name: String,
    /// Fastest first.
    pub(super) ggml_dims: Vec<u64>,
    /// The type as stored: GGUF's, or FP8.
    pub(super) type_name: &'static str,
    pub(super) can_decode: bool,
    /// Index in the list of files.
    pub(super) part: Option<usize>,
    /// From the beginning of its file.
    pub(super) offset: Option<u64>,
    pub(super) bytes: u64,
}

impl Tensor {
    /// Row-major, slowest first.
    pub(super) fn shape(&self) -> Vec<u64> {
        self.ggml_dims.iter().rev().copied().collect()
    }

    pub(super) fn elements(&self) -> u64 {
        self.ggml_dims
            .iter()
            .fold(1, |n, dim| n.saturating_mul(*dim))
    }
}

/// What the tensors of one type amount to.
#[derive(Debug, Default)]
pub(super) struct TypeShare {
    pub(super) tensors: usize,
    pub(super) params: u64,
    pub(super) bytes: u64,
    pub(super) can_decode: bool,
}

impl Report {
    /// Reads a model; also what kept it from being understood whole.
    pub(super) fn of(args: &InspectArgs) -> Result<(Self, Option<Failure>), Failure> {
        let name = args.model.name();
        let (mut report, text, problem) = match args.model.checkpoint() {
            Ok(checkpoint) => {
                let mut report = match checkpoint.source() {
                    Source::Gguf(gguf) => Self::of_gguf(name, gguf),
                    Source::Hf(folder) => Self::of_hf(name, folder),
                };
                report.add_model(&checkpoint, args)?;
                (report, args.text.of(&checkpoint), None)
            }
            Err(problem) => match args.model.gguf() {
                Ok(gguf) => (
                    Self::of_gguf(name, &gguf),
                    args.text.of_gguf(&gguf),
                    Some(problem),
                ),
                Err(_) => return Err(problem),
            },
        };
        let problem = match text {
            Ok(text) => {
                report.tokenizer = Some(TokenizerFacts::of(&text));
                problem
            }
            Err(error) => problem.or(Some(error)),
        };
        Ok((report, problem))
    }

    fn of_gguf(model: String, gguf: &Gguf) -> Self {
        let tensor = |t: &glim_gguf::TensorInfo| Tensor {
            name: t.name.clone(),
            ggml_dims: t.ggml_dims.clone(),
            type_name: t.ty.name(),
            can_decode: t.ty.can_decode(),
            part: Some(t.part),
            offset: Some(t.offset),
            bytes: t.bytes,
        };
        Self {
            format: format!("GGUF v{}", gguf.version()),
            files: gguf
                .parts()
                .iter()
                .map(|part| (part.path.display().to_string(), Some(part.bytes)))
                .collect(),
            metadata: gguf
                .metadata()
                .iter()
                .map(|(k, v)| (k.to_owned(), value_json(v), v.to_string()))
                .collect(),
            tensors: gguf.tensors().iter().map(tensor).collect(),
            ..Self::empty(model)
        }
    }

    fn of_hf(model: String, folder: &HfFolder) -> Self {
        let mut files: Vec<(String, Option<u64>)> = Vec::new();
        let tensors = folder.tensors().iter().map(|t| {
            let file = folder.file(t).display().to_string();
            let part = files
                .iter()
                .position(|(known, _)| *known == file)
                .unwrap_or_else(|| {
                    let bytes = std::fs::metadata(folder.file(t))
                        .ok()
                        .map(|meta| meta.len());
                    files.push((file, bytes));
                    files.len() - 1
                });
            Tensor {
                name: t.name.clone(),
                ggml_dims: t.shape.iter().rev().map(|dim| *dim as u64).collect(),
                type_name: t.type_name(),
                can_decode: t.ty.can_decode(),
                part: Some(part),
                offset: None,
                bytes: t.stored_bytes() as u64,
            }
        });
        let tensors = tensors.collect();
        let entries = folder.config_json().as_object().into_iter().flatten();
        Self {
            format: "Hugging Face folder".to_owned(),
            files,
            metadata: entries
                .map(|(key, value)| (key.clone(), value.clone(), value.to_string()))
                .collect(),
            tensors,
            ..Self::empty(model)
        }
    }

    fn empty(model: String) -> Self {
        Self {
            model,
            format: String::new(),
            files: Vec::new(),
            metadata: Vec::new(),
            tensors: Vec::new(),
            architecture: None,
            tokenizer: None,
            oddities: Vec::new(),
            plans: Vec::new(),
        }
    }

    fn add_model(&mut self, checkpoint: &Checkpoint, args: &InspectArgs) -> Result<(), Failure> {
        let config = checkpoint.config();
        let max = config.max_context;
        let context = args
            .context
            .unwrap_or(max.min(EngineOptions::DEFAULT_CONTEXT));
        if context > max {
            return Err(Failure::usage(format!(
                "--context {context}: expected 1 to {max}, the model's own limit"
            )));
        }
        self.oddities = checkpoint.oddities().to_vec();
        let inventory = Inventory::of(checkpoint)
            .over(args.tp, &Options::default())
            .map_err(EngineError::from)?;
        let options = EngineOptions {
            context: Some(context),
            ..EngineOptions::default()
        };
        let plan = EnginePlan::new(inventory.clone(), &plans::caps(), options)?;
        let fits = match args.memory {
            Some(bytes) => Some((bytes, plan.largest_context(&plans::caps(), bytes)?)),
            None => None,
        };
        let memory = Memory {
            context,
            ranks: plan.rank_budgets().to_vec(),
            fits,
        };
        for step in args.plan.iter().flat_map(|choice| choice.steps()) {
            self.plans.push(PricedPlan::new(&inventory, step, context)?);
        }
        self.architecture = Some(Architecture::of(checkpoint, memory));
        Ok(())
    }

    /// Tensors by type, the heaviest type first.
    pub(super) fn types(&self) -> Vec<(&'static str, TypeShare)> {
        let mut shares: BTreeMap<&'static str, TypeShare> = BTreeMap::new();
        for tensor in &self.tensors {
            let share = shares.entry(tensor.type_name).or_default();
            share.tensors += 1;
            share.params += tensor.elements();
            share.bytes += tensor.bytes;
            share.can_decode = tensor.can_decode;
        }
        let mut shares: Vec<_> = shares.into_iter().collect();
        shares.sort_by_key(|(_, share)| std::cmp::Reverse(share.bytes));
        shares
    }

    /// Bytes of all files.
    pub(super) fn file_bytes(&self) -> u64 {
        self.files.iter().filter_map(|(_, bytes)| *bytes).sum()
    }

    /// Elements of all stored tensors.
    pub(super) fn params(&self) -> u64 {
        self.tensors.iter().map(Tensor::elements).sum()
    }

    /// The object of `--json`.
    pub(super) fn to_json(&self) -> Map<String, Json> {
        let tensor = |t: &Tensor| {
            json!({
                "name": t.name, "ggml_dims": t.ggml_dims, "shape": t.shape(), "type": t.type_name, "part": t.part,
                "offset": t.offset, "bytes": t.bytes,
            })
        };
        let share = |(name, share): &(&str, TypeShare)| {
            json!({
                "type": name, "tensors": share.tensors, "params": share.params, "bytes": share.bytes,
                "can_decode": share.can_decode,
            })
        };
        let files = self
            .files
            .iter()
            .map(|(path, bytes)| json!({ "path": path, "bytes": bytes }));
        let metadata: Map<String, Json> = self
            .metadata
            .iter()
            .map(|(k, v, _)| (k.clone(), v.clone()))
            .collect();
        let object = json!({
            "model": self.model,
            "format": self.format,
            "files": files.collect::<Vec<_>>(),
            "file_bytes": self.file_bytes(),
            "params": self.params(),
            "architecture": self.architecture.as_ref().map(Architecture::to_json),
            "types": self.types().iter().map(share).collect::<Vec<_>>(),
            "tokenizer": self.tokenizer.as_ref().map(TokenizerFacts::to_json),
            "oddities": self.oddities,
            "metadata": metadata,
            "tensors": self.tensors.iter().map(tensor).collect::<Vec<_>>(),
            "plans": self.plans.iter().map(PricedPlan::to_json).collect::<Vec<_>>(),
        });
        match object {
            Json::Object(object) => object,
            _ => Map::new(),
        }
    }
}
