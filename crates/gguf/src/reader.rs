//! The header of one file: magic, version, counts, keys, tensor descriptions.
//!
//! ```text
//! "GGUF" | version u32 | tensor count u64 | key count u64
//! keys     × { name: string | type u32 | value }
//! tensors  × { name: string | n_dims u32 | ne[n_dims] u64 | type u32 | offset u64 }
//! padding to the alignment | data section
//! ```
//! All numbers are little-endian, or all big-endian ([`crate::byte_order`]), which the version
//! tells: nobody counts to 65536. A string is a u64 length and UTF-8 bytes; offsets count from the
//! data section. Versions 2 and 3 have this same layout (3 only added the big-endian variant);
//! version 1 had u32 counts. Source: `docs/gguf.md` of ggml.

use std::{collections::HashSet, path::Path};

use glim_quant::GgmlType;

use crate::{
    byte_order::ByteOrder,
    cursor::{Cursor, Place},
    error::GgufError,
    limits::*,
    metadata::Metadata,
    tensor::{SizeError, TensorInfo, tensor_bytes},
};

pub(crate) const MAGIC: &[u8; 4] = b"GGUF";
pub(crate) const ALIGNMENT_KEY: &str = "general.alignment";

/// Smallest encodings: an empty name, a type, one byte of value.
const MIN_KEY_BYTES: u64 = 8 + 4 + 1;
/// An empty name, no dimensions, a type, an offset.
const MIN_TENSOR_BYTES: u64 = 8 + 4 + 4 + 8;

/// What stands before the data section of one file, checked against the file's length.
pub(crate) struct Header {
    pub(crate) version: u32,
    pub(crate) byte_order: ByteOrder,
    pub(crate) metadata: Metadata,
    /// In the order of the file; `part` is set.
    pub(crate) tensors: Vec<TensorInfo>,
    pub(crate) alignment: u64,
    pub(crate) data_offset: u64,
}

/// Reads the header of the file `path` whose bytes are `bytes` and that is part number `part` (from
/// 0) of its model.
pub(crate) fn read_header(path: &Path, bytes: &[u8], part: usize) -> Result<Header, GgufError> {
    let (version, byte_order) = read_version(path, bytes)?;
    let after_version = MAGIC.len() + size_of_val(&version);
    let mut cursor = Cursor::new(path, bytes, after_version, byte_order);
    let n_tensors = cursor.u64(Place::Header)?;
    let n_keys = cursor.u64(Place::Header)?;

    let metadata = read_metadata(path, &mut cursor, n_keys)?;
    let alignment = alignment(path, &metadata)?;
    let described = read_tensors(path, &mut cursor, n_tensors)?;

    // A file's length is below 2^63 and the alignment below 2^21: no overflow.
    let data_offset = cursor.at().next_multiple_of(alignment);
    let available = (bytes.len() as u64).saturating_sub(data_offset);
    let mut tensors = Vec::with_capacity(described.len());
    for Described {
        name,
        dims,
        ty,
        offset,
    } in described
    {
        let size = place_tensor(path, &name, &dims, ty, offset, alignment, available)?;
        let offset = data_offset + offset; // inside the file
        tensors.push(TensorInfo {
            name,
            ggml_dims: dims,
            ty,
            part,
            offset,
            bytes: size,
        });
    }
    refuse_overlaps(path, &tensors)?;
    if byte_order == ByteOrder::Big {
        refuse_unknown_layouts(path, &tensors)?;
    }
    Ok(Header {
        version,
        byte_order,
        metadata,
        tensors,
        alignment,
        data_offset,
    })
}

/// Checks the magic and the version, and tells the byte order from it.
fn read_version(path: &Path, bytes: &[u8]) -> Result<(u32, ByteOrder), GgufError> {
    if !bytes.starts_with(MAGIC) {
        return Err(GgufError::NotGguf {
            path: path.to_owned(),
            found: looks_like(bytes),
        });
    }
    let as_little = Cursor::new(path, bytes, MAGIC.len(), ByteOrder::Little).u32(Place::Header)?;
    // A version below 2^16 has its low half set only if the bytes are little-endian.
    let (version, order) = if as_little & 0xffff == 0 {
        (as_little.swap_bytes(), ByteOrder::Big)
    } else {
        (as_little, ByteOrder::Little)
    };
    match version {
        2 | 3 => Ok((version, order)),
        _ => Err(GgufError::UnsupportedVersion {
            path: path.to_owned(),
            version,
        }),
    }
}

/// A guess at what a file without our magic is, to save the user a look with a hex editor.
fn looks_like(bytes: &[u8]) -> String {
    let starts = |prefix: &[u8]| bytes.starts_with(prefix);
    let known = if bytes.is_empty() {
        "an empty file"
    } else if starts(b"version https://git-lfs") {
        "a Git LFS pointer (fetch the file itself with `git lfs pull`)"
    } else if starts(b"lmgg") || starts(b"tjgg") || starts(b"fmgg") || starts(b"algg") {
        "a GGML file from before GGUF (convert the model anew)"
    } else if starts(b"PK\x03\x04") {
        "a zip archive (a PyTorch checkpoint?)"
    } else if starts(b"<!DOCTYPE") || starts(b"<!doctype") || starts(b"<html") {
        "an HTML page (a failed download?)"
    } else if matches!(
        bytes,
        [_, _, _, _, 0, 0, 0, 0, b'{', b'"' | b' ' | b'}', ..]
    ) {
        "a safetensors file (open its folder as a checkpoint, or convert it)"
    } else if starts(b"{") {
        "JSON text"
    } else {
        return format!("`{}`", bytes[..bytes.len().min(MAGIC.len())].escape_ascii());
    };
    known.to_owned()
}

fn read_metadata(path: &Path, cursor: &mut Cursor<'_>, count: u64) -> Result<Metadata, GgufError> {
    let count = cursor.checked_count(count, "keys", MAX_KEYS, MIN_KEY_BYTES, Place::Header)?;
    let mut metadata = Metadata::for_file(path);
    for n in 1..=count {
        let key = cursor.string(MAX_KEY_BYTES, Place::KeyName(n))?;
        let value = cursor.value(key)?;
        if !metadata.push_new(key.to_owned(), value) {
            return Err(GgufError::DuplicateKey {
                path: path.to_owned(),
                key: key.to_owned(),
            });
        }
    }
    Ok(metadata)
}

/// The alignment that `metadata` asks for.
pub(crate) fn alignment(path: &Path, metadata: &Metadata) -> Result<u64, GgufError> {
    let found = metadata.uint(ALIGNMENT_KEY)?.unwrap_or(DEFAULT_ALIGNMENT);
    if found.is_power_of_two() && found <= MAX_ALIGNMENT {
        Ok(found)
    } else {
        Err(GgufError::BadAlignment {
            path: path.to_owned(),
            found,
        })
    }
}

/// A tensor's description before its place in the file is checked.
struct Described {
    name: String,
    dims: Vec<u64>,
    ty: GgmlType,
    /// From the data section.
    offset: u64,
}

fn read_tensors(
    path: &Path,
    cursor: &mut Cursor<'_>,
    count: u64,
) -> Result<Vec<Described>, GgufError> {
    let count = cursor.checked_count(
        count,
        "tensors",
        MAX_TENSORS,
        MIN_TENSOR_BYTES,
        Place::Header,
    )?;
    let mut seen = HashSet::new();
    let mut tensors = Vec::with_capacity(count.min(PREALLOCATED_ENTRIES) as usize);
    for n in 1..=count {
        let name = cursor.string(MAX_TENSOR_NAME_BYTES, Place::TensorName(n))?;
        let place = Place::Tensor(name);
        let n_dims = cursor.u32(place)?;
        let n_dims = cursor.checked_count(n_dims.into(), "dimensions", MAX_DIMS, 8, place)?;
        let dims = (0..n_dims)
            .map(|_| cursor.u64(place))
            .collect::<Result<Vec<_>, _>>()?;
        let id = cursor.u32(place)?;
        let offset = cursor.u64(place)?;
        let ty = GgmlType::from_id(id).ok_or_else(|| GgufError::UnknownTensorType {
            path: path.to_owned(),
            tensor: name.to_owned(),
            id,
        })?;
        if !seen.insert(name) {
            return Err(GgufError::DuplicateTensor {
                path: path.to_owned(),
                tensor: name.to_owned(),
            });
        }
        tensors.push(Described {
            name: name.to_owned(),
            dims,
            ty,
            offset,
        });
    }
    Ok(tensors)
}

/// The size in bytes of a tensor; refuses one that does not fit the data section of `available`
/// bytes.
fn place_tensor(
    path: &Path,
    name: &str,
    dims: &[u64],
    ty: GgmlType,
    offset: u64,
    alignment: u64,
    available: u64,
) -> Result<u64, GgufError> {
    let bytes = sized(path, name, dims, ty)?;
    let (path, tensor) = (path.to_owned(), name.to_owned());
    if !offset.is_multiple_of(alignment) {
        return Err(GgufError::Misaligned {
            path,
            tensor,
            offset,
            alignment,
        });
    }
    match offset.checked_add(bytes) {
        Some(end) if end <= available => Ok(bytes),
        _ => Err(GgufError::OutOfFile {
            path,
            tensor,
            offset,
            bytes,
            available,
        }),
    }
}

/// [`tensor_bytes`] with the file and the tensor in its error.
pub(crate) fn sized(path: &Path, name: &str, dims: &[u64], ty: GgmlType) -> Result<u64, GgufError> {
    tensor_bytes(dims, ty).map_err(|error| {
        let (path, tensor) = (path.to_owned(), name.to_owned());
        match error {
            SizeError::PartialBlocks { ne0, block } => GgufError::PartialBlocks {
                path,
                tensor,
                ne0,
                block,
                ty,
            },
            SizeError::Overflow => GgufError::SizeOverflow {
                path,
                tensor,
                dims: dims.to_vec(),
            },
        }
    })
}

fn refuse_overlaps(path: &Path, tensors: &[TensorInfo]) -> Result<(), GgufError> {
    let mut by_offset: Vec<_> = tensors.iter().filter(|tensor| tensor.bytes > 0).collect();
    by_offset.sort_by_key(|tensor| tensor.offset);
    match by_offset
        .windows(2)
        .find(|pair| pair[0].offset + pair[0].bytes > pair[1].offset)
    {
        None => Ok(()),
        Some(pair) => Err(GgufError::Overlap {
            path: path.to_owned(),
            first: pair[0].name.clone(),
            second: pair[1].name.clone(),
        }),
    }
}

/// Refuses types whose big-endian blocks nobody here could turn around.
fn refuse_unknown_layouts(path: &Path, tensors: &[TensorInfo]) -> Result<(), GgufError> {
    match tensors
        .iter()
        .find(|tensor| tensor.ty.has_byte_order().is_none())
    {
        None => Ok(()),
        Some(tensor) => Err(GgufError::BigEndianType {
            path: path.to_owned(),
            tensor: tensor.name.clone(),
            ty: tensor.ty,
        }),
    }
}
