//! A whole model: one file, or all parts of a split set, opened and checked against each other.

use std::{
    collections::HashMap,
    fmt, fs,
    path::{Path, PathBuf},
};

use crate::{
    byte_order::{ByteOrder, Turned},
    error::GgufError,
    extents::Identity,
    metadata::Metadata,
    mmap::Bytes,
    reader::{Header, read_header},
    split::{self, PartName, SplitKeys},
    tensor::TensorInfo,
};

/// One model's keys, tensor descriptions and bytes.
///
/// Nothing is copied: the data stays mapped, and pages are read when they are touched. (Tensors of
/// a big-endian file are copied when they are first asked for, and the copies kept.) Do not
/// truncate the files while they are open (see the crate's documentation).
pub struct Gguf {
    version: u32,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
    parts: Vec<Part>,
    /// The bytes of each part.
    storage: Vec<Bytes>,
    /// For each tensor, in their order; used by those of big-endian parts.
    turned: Vec<Turned>,
}

/// One file of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The file; for a model in memory the name that it was given.
    pub path: PathBuf,
    /// Length of the whole file in bytes.
    pub bytes: u64,
    /// Where the data section begins, in bytes from the beginning of the file.
    pub data_offset: u64,
    /// Alignment of the tensors in the data section, in bytes.
    pub alignment: u64,
    /// How the file stores its numbers.
    pub byte_order: ByteOrder,
}

/// One file whose header has been read.
struct Opened {
    path: PathBuf,
    bytes: Bytes,
    header: Header,
    keys: Option<SplitKeys>,
}

impl Opened {
    fn new(path: PathBuf, bytes: Bytes, part: usize) -> Result<Self, GgufError> {
        let header = read_header(&path, &bytes, part)?;
        let keys = SplitKeys::read(&path, &header.metadata)?;
        Ok(Self {
            path,
            bytes,
            header,
            keys,
        })
    }

    fn map(path: PathBuf, part: usize) -> Result<Self, GgufError> {
        let bytes = Bytes::map(&path)?;
        Self::new(path, bytes, part)
    }
}

impl Gguf {
    /// Opens a model: a `.gguf` file, any part of a split set, or a folder that holds exactly one
    /// file or one split set.
    ///
    /// # Errors
    /// [`GgufError`] names the file and what is wrong with it; [`GgufError::is_missing`] tells
    /// absent from bad.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        let meta = fs::metadata(path).map_err(|e| GgufError::io(path, "look at the file", e))?;
        let path = if meta.is_dir() {
            split::only_model_in(path)?
        } else {
            path.to_owned()
        };
        let first = Opened::map(path, 0)?;
        match split::part_name(&first.path, first.keys)? {
            None => Self::assemble(vec![first]),
            Some(name) => Self::assemble(open_siblings(first, &name)?),
        }
    }

    /// A model that is built into the program. `name` stands for the file in messages.
    ///
    /// # Errors
    /// As [`Gguf::open`]; one part of a split set is refused, since its siblings cannot be found.
    pub fn from_static(name: &str, bytes: &'static [u8]) -> Result<Self, GgufError> {
        Self::from_memory(name, Bytes::Static(bytes))
    }

    /// A model in memory. `name` stands for the file in messages.
    ///
    /// # Errors
    /// As [`Gguf::from_static`].
    pub fn from_bytes(name: &str, bytes: Vec<u8>) -> Result<Self, GgufError> {
        Self::from_memory(name, Bytes::Owned(bytes))
    }

    fn from_memory(name: &str, bytes: Bytes) -> Result<Self, GgufError> {
        let opened = Opened::new(PathBuf::from(name), bytes, 0)?;
        match opened.keys {
            Some(keys) => Err(GgufError::PartInMemory {
                path: opened.path,
                count: keys.count,
            }),
            None => Self::assemble(vec![opened]),
        }
    }

    /// Joins the parts, which are in order and of one set; there is at least one.
    fn assemble(opened: Vec<Opened>) -> Result<Self, GgufError> {
        let mut model = Self {
            version: 0,
            metadata: Metadata::new(),
            tensors: Vec::new(),
            by_name: HashMap::new(),
            parts: Vec::new(),
            storage: Vec::new(),
            turned: Vec::new(),
        };
        for Opened {
            path,
            bytes,
            header,
            ..
        } in opened
        {
            let Header {
                version,
                byte_order,
                metadata,
                tensors,
                alignment,
                data_offset,
            } = header;
            if model.parts.is_empty() {
                (model.version, model.metadata) = (version, metadata);
            }
            for tensor in tensors {
                let index = model.tensors.len();
                if let Some(earlier) = model.by_name.insert(tensor.name.clone(), index) {
                    let other = &model.parts[model.tensors[earlier].part];
                    return Err(GgufError::DuplicateAcrossParts {
                        path,
                        tensor: tensor.name,
                        other: display_name(&other.path),
                    });
                }
                model.tensors.push(tensor);
                model.turned.push(Turned::default());
            }
            model.parts.push(Part {
                path,
                bytes: bytes.len() as u64,
                data_offset,
                alignment,
                byte_order,
            });
            model.storage.push(bytes);
        }
        Ok(model)
    }

    /// The version of the (first) file: 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The files, in the order of the set; one for a model that is not split.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// The model's keys; of a split set those of part 1.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// All tensors, in the order of the files.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor called `name`.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|&index| &self.tensors[index])
    }

    /// The bytes of `tensor`, which must be one of [`Gguf::tensors`] of this model: its blocks in
    /// order, each as a little-endian file has it.
    ///
    /// The first call for a tensor of a big-endian file copies it, `tensor.bytes` bytes that stay
    /// in memory until the model is dropped; all others cost nothing.
    ///
    /// # Panics
    /// May panic if `tensor` comes from another model.
    pub fn data(&self, tensor: &TensorInfo) -> &[u8] {
        // Lossless: the reader has checked that both ends lie inside the mapped bytes.
        let start = tensor.offset as usize;
        let stored = &self.storage[tensor.part][start..start + tensor.bytes as usize];
        match self.parts[tensor.part].byte_order {
            ByteOrder::Little => stored,
            ByteOrder::Big => self.turned[self.by_name[&tensor.name]].bytes(tensor, stored),
        }
    }
}

impl Gguf {
    /// The file that part `part` is mapped from.
    pub(crate) fn identity(&self, part: usize) -> Option<Identity> {
        self.storage[part].identity()
    }
}

/// A summary: the data itself is too long to show.
impl fmt::Debug for Gguf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gguf")
            .field("version", &self.version)
            .field("parts", &self.parts)
            .field("keys", &self.metadata.len())
            .field("tensors", &self.tensors.len())
            .finish()
    }
}

/// Opens all parts of the set that `opened` belongs to, in order, and checks that they belong
/// together.
fn open_siblings(opened: Opened, name: &PartName) -> Result<Vec<Opened>, GgufError> {
    let opened_name = display_name(&opened.path);
    let dir = opened.path.parent().unwrap_or(Path::new("")).to_owned();
    let mut parts: Vec<Opened> = Vec::new();
    let mut mapped = Some(opened);
    for number in 1..=name.count {
        let index = parts.len();
        let part = match mapped.take_if(|_| number == name.number) {
            Some(mut part) => {
                part.header
                    .tensors
                    .iter_mut()
                    .for_each(|tensor| tensor.part = index);
                part
            }
            None => {
                Opened::map(dir.join(name.sibling(number)), index).map_err(|error| match error {
                    GgufError::NotFound { path } => GgufError::MissingPart {
                        path,
                        opened: opened_name.clone(),
                        count: name.count,
                    },
                    other => other,
                })?
            }
        };
        if let Some(first) = parts.first() {
            refuse_other_model(first, &part)?;
        }
        split::part_name(&part.path, part.keys)?;
        parts.push(part);
    }
    check_total(&parts)?;
    Ok(parts)
}

/// Refuses a part whose split keys do not agree with those of part 1.
fn refuse_other_model(first: &Opened, part: &Opened) -> Result<(), GgufError> {
    let counts = |opened: &Opened| {
        opened
            .keys
            .map_or((0, 0), |keys| (keys.count, keys.tensors))
    };
    let (first_count, first_tensors) = counts(first);
    let (count, tensors) = counts(part);
    let checks = [
        (split::COUNT_KEY, count, first_count),
        (split::TENSORS_KEY, tensors, first_tensors),
    ];
    match checks
        .into_iter()
        .find(|(_, found, expected)| found != expected)
    {
        None => Ok(()),
        Some((key, found, expected)) => Err(GgufError::OtherModel {
            path: part.path.clone(),
            key,
            found,
            expected,
            first: display_name(&first.path),
        }),
    }
}

fn check_total(parts: &[Opened]) -> Result<(), GgufError> {
    let found = parts
        .iter()
        .map(|part| part.header.tensors.len() as u64)
        .sum();
    match parts.first() {
        Some(Opened {
            path,
            keys: Some(keys),
            ..
        }) if keys.tensors != found => Err(GgufError::TensorTotal {
            path: path.clone(),
            found,
            expected: keys.tensors,
        }),
        _ => Ok(()),
    }
}

/// The last component of a path.
fn display_name(path: &Path) -> String {
    path.file_name()
        .unwrap_or(path.as_os_str())
        .to_string_lossy()
        .into_owned()
}
