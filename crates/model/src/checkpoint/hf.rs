//! A Hugging Face folder: `config.json`, and one or several safetensors files.
//!
//! Headers are checked when the folder is opened: every tensor of `model.safetensors.index.json` lies in the file that
//! the index names, none lies in two, and all are F32, F16 or BF16. Source of the format: the safetensors crate, which
//! also checks offsets and sizes.

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use glim_quant::GgmlType;
use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use super::resolve::Stored;
use super::{hf_config, mmap};
use crate::config::Config;
use crate::error::{ModelError, Problems};

/// Longest `config.json` or index that is read, in bytes.
pub const MAX_JSON_BYTES: u64 = 256 << 20;
/// Most safetensors files of one checkpoint.
pub const MAX_SHARDS: usize = 1 << 14;

const CONFIG: &str = "config.json";
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// Bytes before the header of a safetensors file: its length.
const LENGTH_BYTES: usize = 8;

/// Whether `path` is a Hugging Face folder. Repositories of GGUF files often carry a `config.json` too, but no
/// safetensors.
pub(super) fn is_hf_folder(path: &Path) -> bool {
    let has = |name: &str| path.join(name).is_file();
    has(CONFIG) && (has(SINGLE) || has(INDEX))
}

/// An opened folder: configuration, and every tensor by its own name.
#[derive(Debug)]
pub struct HfFolder {
    path: PathBuf,
    config: Value,
    shards: Vec<Shard>,
    tensors: Vec<HfTensor>,
}

#[derive(Debug)]
struct Shard {
    path: PathBuf,
    map: Mmap,
}

/// One stored tensor of a Hugging Face folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HfTensor {
    /// Its own name, e.g. `model.layers.0.self_attn.kv_b_proj.weight`.
    pub name: String,
    /// F32, F16 or BF16.
    pub ty: GgmlType,
    /// Row-major shape, in elements.
    pub shape: Vec<usize>,
    shard: usize,
    bytes: Range<usize>,
}

impl HfFolder {
    /// Opens the folder at `path` and checks its headers; no tensor data is read.
    ///
    /// # Errors
    /// A file of the checkpoint is missing or broken; a tensor is in two files, or not in the file that the index
    /// names, or of a type other than F32, F16 and BF16.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let config = read_json(&path.join(CONFIG))?;
        let index = path.join(INDEX);
        // A single file beside an index is a leftover or the whole; the index says what the checkpoint is.
        let expected = if index.is_file() {
            read_index(&index)?
        } else {
            BTreeMap::from([(SINGLE.to_owned(), Vec::new())])
        };
        let mut folder = HfFolder {
            path: path.to_owned(),
            config,
            shards: Vec::new(),
            tensors: Vec::new(),
        };
        let mut problems = Problems::default();
        for (file, names) in &expected {
            folder.open_shard(file, names, &mut problems)?;
        }
        folder.check_names(&mut problems);
        if problems.is_empty() {
            return Ok(folder);
        }
        Err(ModelError::Tensors {
            origin: path.display().to_string(),
            problems,
        })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `config.json` as it is.
    pub fn config_json(&self) -> &Value {
        &self.config
    }

    /// The hyper-parameters in `config.json`.
    ///
    /// # Errors
    /// Another model type; a key that is missing or cannot be right.
    pub fn config(&self) -> Result<Config, ModelError> {
        hf_config::read(&self.config, &self.path.join(CONFIG))
    }

    /// Every stored tensor, by file and offset.
    pub fn tensors(&self) -> &[HfTensor] {
        &self.tensors
    }

    /// The bytes of one of this folder's tensors.
    pub fn data(&self, tensor: &HfTensor) -> &[u8] {
        &self.shards[tensor.shard].map[tensor.bytes.clone()]
    }

    /// The file that holds one of this folder's tensors.
    pub fn file(&self, tensor: &HfTensor) -> &Path {
        &self.shards[tensor.shard].path
    }

    fn open_shard(
        &mut self,
        file: &str,
        names: &[String],
        problems: &mut Problems,
    ) -> Result<(), ModelError> {
        let path = self.path.join(file);
        let map = mmap::map(&path)?;
        let malformed = |reason: String| ModelError::Malformed {
            path: path.clone(),
            reason,
        };
        let (header_len, header) = SafeTensors::read_metadata(&map)
            .map_err(|error| malformed(format!("not a whole safetensors file: {error}")))?;
        for name in names {
            if header.info(name).is_none() {
                problems.push(|| {
                    format!("tensor `{name}` is missing from {file}, where {INDEX} says it is")
                });
            }
        }
        let data = LENGTH_BYTES + header_len;
        for name in header.offset_keys() {
            let Some(info) = header.info(&name) else {
                continue;
            };
            let ty = match info.dtype {
                Dtype::F32 => GgmlType::F32,
                Dtype::F16 => GgmlType::F16,
                Dtype::BF16 => GgmlType::BF16,
                other => {
                    problems.push(|| {
                        format!("tensor `{name}` in {file} has type {other:?}; expected F32, F16 or BF16")
                    });
                    continue;
                }
            };
            let (start, end) = info.data_offsets;
            self.tensors.push(HfTensor {
                name,
                ty,
                shape: info.shape.clone(),
                shard: self.shards.len(),
                bytes: data + start..data + end,
            });
        }
        self.shards.push(Shard { path, map });
        Ok(())
    }

    fn check_names(&self, problems: &mut Problems) {
        let mut seen: HashMap<&str, &HfTensor> = HashMap::with_capacity(self.tensors.len());
        for tensor in &self.tensors {
            if let Some(first) = seen.insert(&tensor.name, tensor) {
                let file = |tensor: &HfTensor| {
                    self.file(tensor)
                        .file_name()
                        .unwrap_or_default()
                        .display()
                        .to_string()
                };
                problems.push(|| {
                    format!(
                        "tensor `{}` is in two files, {} and {}; expected one",
                        tensor.name,
                        file(first),
                        file(tensor)
                    )
                });
            }
        }
    }
}

/// The folder's tensors for resolution; an index into the result is one into [`HfFolder::tensors`].
pub(super) fn stored(folder: &HfFolder) -> Vec<Stored> {
    let file = |tensor: &HfTensor| {
        let name = folder
            .file(tensor)
            .file_name()
            .filter(|_| folder.shards.len() > 1)?;
        Some(name.display().to_string())
    };
    let tensor = |t: &HfTensor| Stored {
        name: t.name.clone(),
        ty: t.ty,
        shape: t.shape.clone(),
        file: file(t),
    };
    folder.tensors.iter().map(tensor).collect()
}

pub(crate) fn read_json(path: &Path) -> Result<Value, ModelError> {
    let io = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => ModelError::Missing {
            path: path.to_owned(),
            what: "no such file; expected a Hugging Face checkpoint".to_owned(),
        },
        _ => ModelError::Io {
            path: path.to_owned(),
            error,
        },
    };
    let malformed = |reason: String| ModelError::Malformed {
        path: path.to_owned(),
        reason,
    };
    let len = std::fs::metadata(path).map_err(io)?.len();
    if len > MAX_JSON_BYTES {
        return Err(malformed(format!(
            "has {len} bytes; expected at most {MAX_JSON_BYTES}"
        )));
    }
    let text = std::fs::read(path).map_err(io)?;
    serde_json::from_slice(&text).map_err(|error| malformed(format!("not valid JSON: {error}")))
}

/// The tensors that each file should hold, by file.
fn read_index(path: &Path) -> Result<BTreeMap<String, Vec<String>>, ModelError> {
    let malformed = |reason: String| ModelError::Malformed {
        path: path.to_owned(),
        reason,
    };
    let index = read_json(path)?;
    let map = index
        .get("weight_map")
        .and_then(Value::as_object)
        .ok_or_else(|| {
            malformed(
                "`weight_map` is missing; expected an object of tensor names and files".to_owned(),
            )
        })?;
    let mut files: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (tensor, file) in map {
        let Some(file) = file.as_str().filter(|file| is_plain_name(file)) else {
            return Err(malformed(format!(
                "tensor `{tensor}` is said to be in {file}; expected the name of a file beside it"
            )));
        };
        files
            .entry(file.to_owned())
            .or_default()
            .push(tensor.clone());
        if files.len() > MAX_SHARDS {
            return Err(malformed(format!("names more than {MAX_SHARDS} files")));
        }
    }
    if files.is_empty() {
        return Err(malformed(
            "`weight_map` is empty; expected tensor names and files".to_owned(),
        ));
    }
    Ok(files)
}

/// A file in the folder itself: an index must not reach elsewhere.
fn is_plain_name(file: &str) -> bool {
    let mut components = Path::new(file).components();
    matches!(
        (components.next(), components.next()),
        (Some(std::path::Component::Normal(_)), None)
    )
}
