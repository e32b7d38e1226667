//! Which tensors go to which file, and how a safetensors file begins.
//!
//! The format: the length of the header as u64, the header as JSON, padded with spaces to a multiple of 8, then the data;
//! `data_offsets` count from the end of the header. Within a file wide types come first, so that each tensor lies at a
//! multiple of its element's size, as the safetensors crate does it.

use std::ops::Range;

use serde_json::{Map, json};

use super::HfExport;

/// Bytes to which the header is padded.
const HEADER_ALIGNMENT: usize = 8;

/// Runs of tensors of at most `max_bytes` together, or of one that is larger.
pub(super) fn cut(tensors: &[HfExport<'_>], max_bytes: u64) -> Vec<Range<usize>> {
    let mut shards = Vec::new();
    let (mut start, mut bytes) = (0, 0u64);
    for (i, tensor) in tensors.iter().enumerate() {
        let len = tensor.byte_len();
        if i > start && bytes.saturating_add(len) > max_bytes {
            shards.push(start..i);
            (start, bytes) = (i, 0);
        }
        bytes = bytes.saturating_add(len);
    }
    shards.push(start..tensors.len());
    shards
}

/// `model.safetensors`, or `model-00001-of-00003.safetensors`; `index` counts from 0.
pub(super) fn file_name(index: usize, count: usize) -> String {
    match count {
        1 => "model.safetensors".to_owned(),
        _ => format!("model-{:05}-of-{count:05}.safetensors", index + 1),
    }
}

/// A file's tensors in the order of their data.
pub(super) fn ordered<'t, 'a>(tensors: &'t [HfExport<'a>]) -> Vec<&'t HfExport<'a>> {
    let mut ordered: Vec<_> = tensors.iter().collect();
    // Stable: among tensors of one width the names stay in order.
    ordered.sort_by_key(|tensor| std::cmp::Reverse(tensor.float.bytes()));
    ordered
}

/// Everything in front of the data of `tensors`, which are in the order of their data.
pub(super) fn header(tensors: &[&HfExport<'_>]) -> Vec<u8> {
    let mut entries = Map::new();
    // transformers wants to know which library wrote tensors of this layout.
    entries.insert("__metadata__".to_owned(), json!({"format": "pt"}));
    let mut offset = 0;
    for tensor in tensors {
        let end = offset + tensor.byte_len();
        entries.insert(
            tensor.name.clone(),
            json!({"dtype": tensor.float.name(), "shape": tensor.shape, "data_offsets": [offset, end]}),
        );
        offset = end;
    }
    let mut json = serde_json::Value::Object(entries).to_string().into_bytes();
    json.resize(json.len().next_multiple_of(HEADER_ALIGNMENT), b' ');
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.extend(json);
    header
}
