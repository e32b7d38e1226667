//! What can be wrong with a file, each said in one sentence that names the file, the key or tensor,
//! what was found and what was expected.

use std::{io, path::PathBuf};

use crate::limits;

/// Why a GGUF file could not be opened, read or written. Each variant names the file it is about.
///
/// A caller that maps errors to exit codes asks [`GgufError::is_missing`]: missing input against
/// bad input.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the message says what each field is")]
pub enum GgufError {
    // Nothing there.
    #[error("{}: no such file or folder", path.display())]
    NotFound { path: PathBuf },
    #[error("{}: no .gguf file in this folder", path.display())]
    EmptyFolder { path: PathBuf },
    #[error(
        "{}: missing, but `{opened}` is one of a split set of {count} parts: put the file beside the other parts",
        path.display()
    )]
    MissingPart {
        path: PathBuf,
        opened: String,
        count: u64,
    },

    // The file system.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        path: PathBuf,
        action: &'static str,
        source: io::Error,
    },
    #[error("{}: neither a regular file nor a folder", path.display())]
    NotAFile { path: PathBuf },
    #[error("{}: this folder holds more than one model ({found}): name one file", path.display())]
    AmbiguousFolder { path: PathBuf, found: String },

    // The container.
    #[error("{}: not a GGUF file: expected the magic bytes `GGUF`, found {found}", path.display())]
    NotGguf { path: PathBuf, found: String },
    #[error("{}: GGUF version {version} is not supported, expected version 2 or 3", path.display())]
    UnsupportedVersion { path: PathBuf, version: u32 },
    #[error(
        "{}: tensor `{tensor}` has type {ty}, which cannot be read from a big-endian file: convert the file to \
         little-endian with the tool that wrote it",
        path.display()
    )]
    BigEndianType {
        path: PathBuf,
        tensor: String,
        ty: glim_quant::GgmlType,
    },
    #[error(
        "{}: the file ends inside {place}: expected {needed} bytes at offset {at}, found {left} (an incomplete download?)",
        path.display()
    )]
    Truncated {
        path: PathBuf,
        place: String,
        at: u64,
        needed: u64,
        left: u64,
    },
    #[error("{}: {place} has {found} {unit}, expected at most {limit}", path.display())]
    Limit {
        path: PathBuf,
        place: String,
        unit: &'static str,
        found: u64,
        limit: u64,
    },
    #[error("{}: {place} is not valid UTF-8 (byte {at} of the file)", path.display())]
    NotUtf8 {
        path: PathBuf,
        place: String,
        at: u64,
    },

    // Keys.
    #[error("{}: key `{key}` has the unknown value type {id}, expected 0 to 12", path.display())]
    UnknownValueType { path: PathBuf, key: String, id: u32 },
    #[error("{}: key `{key}` is an array of arrays, expected an array of scalars or strings", path.display())]
    NestedArray { path: PathBuf, key: String },
    #[error("{}: key `{key}` holds a bool of value {found}, expected 0 or 1", path.display())]
    BadBool {
        path: PathBuf,
        key: String,
        found: u8,
    },
    #[error("{}: key `{key}` stands twice in the file, expected it once", path.display())]
    DuplicateKey { path: PathBuf, key: String },
    #[error("{}: key `{key}` is missing, expected {expected}", path.display())]
    MissingKey {
        path: PathBuf,
        key: String,
        expected: &'static str,
    },
    #[error("{}: key `{key}` is {found}, expected {expected}", path.display())]
    KeyType {
        path: PathBuf,
        key: String,
        found: String,
        expected: &'static str,
    },
    #[error(
        "{}: key `general.alignment` is {found}, expected a power of two up to {}",
        path.display(),
        limits::MAX_ALIGNMENT
    )]
    BadAlignment { path: PathBuf, found: u64 },

    // Tensors.
    #[error("{}: tensor `{tensor}` stands twice in the file, expected it once", path.display())]
    DuplicateTensor { path: PathBuf, tensor: String },
    #[error(
        "{}: tensor `{tensor}` has the unknown type {id} (a fork's own type?), expected a type of upstream ggml",
        path.display()
    )]
    UnknownTensorType {
        path: PathBuf,
        tensor: String,
        id: u32,
    },
    #[error(
        "{}: tensor `{tensor}` has rows of {ne0} elements, expected a multiple of {block} for type {ty}",
        path.display()
    )]
    PartialBlocks {
        path: PathBuf,
        tensor: String,
        ne0: u64,
        block: u64,
        ty: glim_quant::GgmlType,
    },
    #[error("{}: tensor `{tensor}` has dimensions {dims:?}, whose size overflows", path.display())]
    SizeOverflow {
        path: PathBuf,
        tensor: String,
        dims: Vec<u64>,
    },
    #[error(
        "{}: tensor `{tensor}` starts at offset {offset} of the data section, expected a multiple of {alignment}",
        path.display()
    )]
    Misaligned {
        path: PathBuf,
        tensor: String,
        offset: u64,
        alignment: u64,
    },
    #[error(
        "{}: tensor `{tensor}` needs {bytes} bytes from offset {offset} of the data section, expected at most {available} \
         (an incomplete download?)",
        path.display()
    )]
    OutOfFile {
        path: PathBuf,
        tensor: String,
        offset: u64,
        bytes: u64,
        available: u64,
    },
    #[error("{}: tensors `{first}` and `{second}` overlap, expected separate bytes", path.display())]
    Overlap {
        path: PathBuf,
        first: String,
        second: String,
    },

    // Split sets.
    #[error(
        "{}: key `split.count` says {count} parts, but the file is not named like one: expected \
         NAME-00001-of-{count:05}.gguf",
        path.display()
    )]
    NotAPartName { path: PathBuf, count: u64 },
    #[error(
        "{}: the file is named as one of {named} parts, but its key `split.count` is {found}: expected the same number",
        path.display()
    )]
    PartCount {
        path: PathBuf,
        named: u64,
        found: u64,
    },
    #[error(
        "{}: the file is named as part {named}, but its key `split.no` is {found}: expected {}",
        path.display(),
        named.saturating_sub(1)
    )]
    PartNumber {
        path: PathBuf,
        named: u64,
        found: u64,
    },
    #[error(
        "{}: part of another model: its key `{key}` is {found}, expected {expected} as in `{first}`",
        path.display()
    )]
    OtherModel {
        path: PathBuf,
        key: &'static str,
        found: u64,
        expected: u64,
        first: String,
    },
    #[error("{}: tensor `{tensor}` stands in `{other}` too, expected it in one part only", path.display())]
    DuplicateAcrossParts {
        path: PathBuf,
        tensor: String,
        other: String,
    },
    #[error(
        "{}: the parts hold {found} tensors together, expected {expected} as key `split.tensors.count` says",
        path.display()
    )]
    TensorTotal {
        path: PathBuf,
        found: u64,
        expected: u64,
    },
    #[error("{}: one part of a split set of {count} cannot be opened from memory, expected a whole model", path.display())]
    PartInMemory { path: PathBuf, count: u64 },

    // Writing.
    #[error("{}: tensor `{tensor}` was given {found} bytes, expected {expected}", path.display())]
    DataLength {
        path: PathBuf,
        tensor: String,
        found: u64,
        expected: u64,
    },
    #[error("{}: cannot split {tensors} tensors into {parts} parts, expected 1 to {}", path.display(), limit)]
    BadSplit {
        path: PathBuf,
        tensors: u64,
        parts: u64,
        limit: u64,
    },
}

impl GgufError {
    /// True if the input is not there (exit 66, `EX_NOINPUT`), false if it is there but bad (exit
    /// 65, `EX_DATAERR`).
    pub fn is_missing(&self) -> bool {
        matches!(
            self,
            Self::NotFound { .. } | Self::EmptyFolder { .. } | Self::MissingPart { .. }
        )
    }

    /// Wraps an I/O error; one of kind `NotFound` becomes [`GgufError::NotFound`].
    pub(crate) fn io(path: impl Into<PathBuf>, action: &'static str, source: io::Error) -> Self {
        let path = path.into();
        match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Self::NotFound { path },
            _ => Self::Io {
                path,
                action,
                source,
            },
        }
    }
}
