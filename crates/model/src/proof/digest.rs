//! One number for a model: the digest that `glim verify` prints.
//!
//! It is a tree of BLAKE3 hashes, so that all cores share the work and holes of sparse files cost nothing:
//!
//! ```text
//! leaf   = BLAKE3(up to 1 MiB of a tensor's bytes)
//! data   = BLAKE3(the leaves of a tensor, in order)
//! digest = BLAKE3(context; the keys, sorted by name; the tensors, sorted by name: name, type, shape, data)
//! ```
//!
//! It covers what decides on the model's output: every tensor with its name, type, shape and bytes as they are stored, and every
//! key of the metadata but `general.*` and `split.*` (so: hyper-parameters, tokenizer, chat template; not title, author,
//! licence). An integer counts as its value, whichever width the file gives it; of a Hugging Face folder the keys are those of
//! `config.json`, the tokenizer's files are not covered, and an FP8 matrix counts as the F32 numbers that it decodes to. It does not depend on the order of keys and tensors, on how a
//! model is cut into parts, on alignment and padding, nor on which zeros are holes. It tells apart the forms in which one model can be
//! stored: a GGUF and the folder that it was made of have different digests.

use std::fmt;

use glim_gguf::{Array, Value};
use serde_json::Value as Json;

use super::stored::StoredTensor;
use crate::checkpoint::{Checkpoint, Source};

/// Bytes of a leaf.
pub(super) const LEAF_BYTES: usize = 1 << 20;

/// Separates this use of BLAKE3 from all others; a change of what is covered changes it.
const CONTEXT: &str = "glim 2026-11 digest of a model v1";

/// Zeros, for leaves that are holes.
static ZEROS: [u8; LEAF_BYTES] = [0; LEAF_BYTES];

/// The digest of a model; prints as 64 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest([u8; 32]);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The hash of some bytes of a tensor.
pub(super) type Hash = [u8; 32];

/// A leaf that was read.
pub(super) fn leaf(bytes: &[u8]) -> Hash {
    blake3::hash(bytes).into()
}

/// Leaves of zeros that nobody reads.
pub(super) struct ZeroLeaf(Hash);

impl ZeroLeaf {
    pub(super) fn new() -> Self {
        ZeroLeaf(leaf(&ZEROS))
    }

    /// `len` zeros, [`LEAF_BYTES`] at most.
    pub(super) fn of(&self, len: usize) -> Hash {
        match ZEROS.get(..len) {
            Some(zeros) if len < LEAF_BYTES => leaf(zeros),
            _ => self.0,
        }
    }
}

/// The hash of a tensor's bytes, of its leaves.
pub(super) fn data<'a>(leaves: impl IntoIterator<Item = &'a Hash>) -> Hash {
    let mut hasher = blake3::Hasher::new();
    for leaf in leaves {
        hasher.update(leaf);
    }
    hasher.finalize().into()
}

/// The digest, from the hash of each stored tensor's bytes.
pub(super) fn digest(
    checkpoint: &Checkpoint,
    tensors: &[StoredTensor<'_>],
    data: &[Hash],
) -> Digest {
    let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
    let keys = keys(checkpoint);
    count(&mut hasher, keys.len());
    for (key, value) in &keys {
        text(&mut hasher, key);
        hasher.update(value);
    }
    let mut sorted: Vec<(&StoredTensor<'_>, &Hash)> = tensors.iter().zip(data).collect();
    sorted.sort_unstable_by_key(|(tensor, _)| tensor.name);
    count(&mut hasher, sorted.len());
    for (tensor, data) in sorted {
        text(&mut hasher, tensor.name);
        text(&mut hasher, tensor.ty.name());
        count(&mut hasher, tensor.shape.len());
        for &n in &tensor.shape {
            count(&mut hasher, n);
        }
        hasher.update(data);
    }
    Digest(hasher.finalize().into())
}

/// The keys that count and their values in one spelling, sorted.
fn keys(checkpoint: &Checkpoint) -> Vec<(String, Vec<u8>)> {
    let mut keys: Vec<(String, Vec<u8>)> = match checkpoint.source() {
        Source::Gguf(gguf) => (gguf.metadata().iter())
            .filter(|(key, _)| {
                *key == "general.architecture"
                    || !(key.starts_with("general.") || key.starts_with("split."))
            })
            .map(|(key, value)| (key.to_owned(), spelled(value)))
            .collect(),
        Source::Hf(folder) => match folder.config_json() {
            Json::Object(config) => (config.iter())
                .map(|(key, value)| (key.clone(), sorted(value).to_string().into_bytes()))
                .collect(),
            _ => Vec::new(),
        },
    };
    keys.sort_unstable();
    keys
}

/// A value in one spelling: a letter for its kind, then its bytes.
fn spelled(value: &Value) -> Vec<u8> {
    match value {
        Value::U8(x) => integer((*x).into()),
        Value::I8(x) => integer((*x).into()),
        Value::U16(x) => integer((*x).into()),
        Value::I16(x) => integer((*x).into()),
        Value::U32(x) => integer((*x).into()),
        Value::I32(x) => integer((*x).into()),
        Value::U64(x) => integer((*x).into()),
        Value::I64(x) => integer((*x).into()),
        Value::F32(x) => float(f64::from(*x)),
        Value::F64(x) => float(*x),
        Value::Bool(x) => vec![b'b', u8::from(*x)],
        Value::String(x) => string(x),
        Value::Array(array) => {
            let mut bytes = vec![b'a'];
            bytes.extend((array.len() as u64).to_le_bytes());
            let items = &mut bytes;
            match array {
                Array::U8(x) => x.iter().for_each(|&x| items.extend(integer(x.into()))),
                Array::I8(x) => x.iter().for_each(|&x| items.extend(integer(x.into()))),
                Array::U16(x) => x.iter().for_each(|&x| items.extend(integer(x.into()))),
                Array::I16(x) => x.iter().for_each(|&x| items.extend(integer(x.into()))),
                Array::U32(x) => x.iter().for_each(|&x| items.extend(integer(x.into()))),
                Array::I32(x) => x.iter().for_each(|&x| items.extend(integer(x.into()))),
                Array::U64(x) => x.iter().for_each(|&x| items.extend(integer(x.into()))),
                Array::I64(x) => x.iter().for_each(|&x| items.extend(integer(x.into()))),
                Array::F32(x) => x.iter().for_each(|&x| items.extend(float(f64::from(x)))),
                Array::F64(x) => x.iter().for_each(|&x| items.extend(float(x))),
                Array::Bool(x) => x.iter().for_each(|&x| items.extend([b'b', u8::from(x)])),
                Array::String(x) => x.iter().for_each(|x| items.extend(string(x))),
            }
            bytes
        }
    }
}

fn integer(x: i128) -> Vec<u8> {
    let mut bytes = vec![b'i'];
    bytes.extend(x.to_le_bytes());
    bytes
}

fn float(x: f64) -> Vec<u8> {
    let mut bytes = vec![b'f'];
    bytes.extend(x.to_bits().to_le_bytes());
    bytes
}

fn string(x: &str) -> Vec<u8> {
    let mut bytes = vec![b's'];
    bytes.extend((x.len() as u64).to_le_bytes());
    bytes.extend(x.as_bytes());
    bytes
}

/// The same JSON with the keys of each object in order.
fn sorted(value: &Json) -> Json {
    match value {
        Json::Object(object) => {
            let mut entries: Vec<_> = object.iter().collect();
            entries.sort_unstable_by_key(|(key, _)| key.as_str());
            let entries = entries.into_iter();
            Json::Object(
                entries
                    .map(|(key, value)| (key.clone(), sorted(value)))
                    .collect(),
            )
        }
        Json::Array(items) => Json::Array(items.iter().map(sorted).collect()),
        other => other.clone(),
    }
}

fn text(hasher: &mut blake3::Hasher, text: &str) {
    count(hasher, text.len());
    hasher.update(text.as_bytes());
}

fn count(hasher: &mut blake3::Hasher, n: usize) {
    hasher.update(&(n as u64).to_le_bytes());
}
