//! A Hugging Face folder: `config.json`, and one or several safetensors files.
//!
//! Headers are checked when the folder is opened: every tensor of `model.safetensors.index.json` lies in the file that
//! the index names, none lies in two, and all are F32, F16, BF16, or F8_E4M3 with scales (`fp8.rs`). Source of the
//! format: the safetensors crate, which also checks offsets and sizes.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};

use glim_quant::GgmlType;
use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use super::fp8::{self, BlockSize};
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
/// safetensors' name of the type that is decoded.
pub(super) const FP8: &str = "F8_E4M3";
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
    /// The type of its values: F32, F16 or BF16. What is stored as F8_E4M3 is F32 when decoded.
    pub ty: GgmlType,
    /// Row-major shape, in elements.
    pub shape: Vec<usize>,
    at: Place,
    /// Where the scales are, of a matrix stored as F8_E4M3.
    scales: Option<Scales>,
}

/// Bytes of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    shard: usize,
    bytes: Range<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Scales {
    at: Place,
    block: BlockSize,
}

impl HfTensor {
    /// Whether it is stored as F8_E4M3, with a scale for each block.
    pub fn is_fp8(&self) -> bool {
        self.scales.is_some()
    }

    /// The type in the file, by its name in messages and tables.
    pub fn type_name(&self) -> &'static str {
        if self.is_fp8() { FP8 } else { self.ty.name() }
    }

    /// Bytes in the files, scales included.
    pub fn stored_bytes(&self) -> usize {
        let scales = self
            .scales
            .as_ref()
            .map_or(0, |scales| scales.at.bytes.len());
        self.at.bytes.len() + scales
    }
}

impl HfFolder {
    /// Opens the folder at `path` and checks its headers; no tensor data is read.
    ///
    /// # Errors
    /// A file of the checkpoint is missing or broken; a tensor is in two files, or not in the file that the index
    /// names, or of a type other than F32, F16, BF16 and F8_E4M3; scales of an F8_E4M3 matrix are missing or mis-shaped, or
    /// `config.json` does not say of which blocks.
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
        let mut codes = Vec::new();
        for (file, names) in &expected {
            folder.open_shard(file, names, &mut codes, &mut problems)?;
        }
        folder.check_names(&mut problems);
        if !codes.is_empty() {
            folder.pair_scales(codes, &mut problems)?;
        }
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

    /// The bytes of one of this folder's tensors, elements of `tensor.ty`: borrowed from the mapping, or decoded.
    pub fn data(&self, tensor: &HfTensor) -> Cow<'_, [u8]> {
        match self.fp8(tensor) {
            Some(matrix) => Cow::Owned(matrix.decode(0..tensor.shape[0])),
            None => Cow::Borrowed(self.bytes(&tensor.at)),
        }
    }

    /// The bytes of a tensor as they lie in the file, unless it is F8_E4M3.
    pub(crate) fn data_of_plain(&self, tensor: &HfTensor) -> Option<&[u8]> {
        (!tensor.is_fp8()).then(|| self.bytes(&tensor.at))
    }

    /// Some rows of an F8_E4M3 matrix, decoded as [`Self::data`] decodes all; nothing of other tensors.
    pub(crate) fn data_rows(&self, tensor: &HfTensor, rows: Range<usize>) -> Vec<u8> {
        self.fp8(tensor)
            .map_or_else(Vec::new, |matrix| matrix.decode(rows))
    }

    /// The matrix as stored, if it is F8_E4M3.
    pub(super) fn fp8(&self, tensor: &HfTensor) -> Option<fp8::Matrix<'_>> {
        let scales = tensor.scales.as_ref()?;
        Some(fp8::Matrix {
            codes: self.bytes(&tensor.at),
            cols: tensor.shape[1],
            scales: self.bytes(&scales.at),
            block: scales.block,
        })
    }

    fn bytes(&self, at: &Place) -> &[u8] {
        &self.shards[at.shard].map[at.bytes.clone()]
    }

    /// The file that holds one of this folder's tensors.
    pub fn file(&self, tensor: &HfTensor) -> &Path {
        &self.shards[tensor.at.shard].path
    }

    /// Opens a file that should hold `names`. The tensors of type F8_E4M3 are noted in `codes`.
    fn open_shard(
        &mut self,
        file: &str,
        names: &[String],
        codes: &mut Vec<usize>,
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
                Dtype::F8_E4M3 => {
                    codes.push(self.tensors.len());
                    GgmlType::F32
                }
                other => {
                    problems.push(|| {
                        format!(
                            "tensor `{name}` in {file} has type {other:?}; expected F32, F16, BF16 or F8_E4M3"
                        )
                    });
                    continue;
                }
            };
            let (start, end) = info.data_offsets;
            self.tensors.push(HfTensor {
                name,
                ty,
                shape: info.shape.clone(),
                at: Place {
                    shard: self.shards.len(),
                    bytes: data + start..data + end,
                },
                scales: None,
            });
        }
        self.shards.push(Shard { path, map });
        Ok(())
    }

    /// Gives each of the matrices `codes` (indices) its scales, which are tensors of their own no longer.
    fn pair_scales(
        &mut self,
        codes: Vec<usize>,
        problems: &mut Problems,
    ) -> Result<(), ModelError> {
        let block = BlockSize::read(&self.config, &self.path.join(CONFIG).display().to_string())?;
        let by_name: HashMap<&str, usize> = (0..self.tensors.len())
            .map(|index| (self.tensors[index].name.as_str(), index))
            .collect();
        let mut pairs = Vec::with_capacity(codes.len());
        for index in codes {
            let HfTensor { name, shape, .. } = &self.tensors[index];
            let &[rows, cols] = shape.as_slice() else {
                problems.push(|| {
                    format!(
                        "tensor `{name}` has type F8_E4M3 and shape {shape:?}; expected a matrix"
                    )
                });
                continue;
            };
            let (expected, scales) = (
                block.scales(rows, cols),
                format!("{name}{}", fp8::SCALE_SUFFIX),
            );
            match by_name.get(scales.as_str()) {
                None => problems.push(|| {
                    format!(
                        "tensor `{scales}` is missing, the scales of `{name}`, which has type F8_E4M3; expected \
                         shape {expected:?}"
                    )
                }),
                Some(&at) if self.tensors[at].shape != expected || self.tensors[at].ty != GgmlType::F32 => {
                    let found = &self.tensors[at];
                    problems.push(|| {
                        format!(
                            "tensor `{scales}` has type {} and shape {:?}; expected F32 and {expected:?}, the blocks of \
                             `{name}`",
                            found.ty.name(),
                            found.shape
                        )
                    });
                }
                Some(&at) => pairs.push((index, at)),
            }
        }
        drop(by_name);
        let mut is_scales = vec![false; self.tensors.len()];
        for (index, at) in pairs {
            is_scales[at] = true;
            let at = self.tensors[at].at.clone();
            self.tensors[index].scales = Some(Scales { at, block });
        }
        let mut is_scales = is_scales.into_iter();
        self.tensors.retain(|_| !is_scales.next().unwrap_or(false));
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
        is_fp8: t.is_fp8(),
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
