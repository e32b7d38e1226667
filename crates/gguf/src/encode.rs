//! The bytes of a header: the mirror of `reader` and `cursor`.

use std::{fmt::Display, path::Path};

use glim_quant::GgmlType;

use crate::{
    error::GgufError,
    limits::*,
    metadata::Metadata,
    reader::MAGIC,
    value::{Array, Value, on_numbers},
};

/// The version that is written.
const VERSION: u32 = 3;

/// Everything up to the tensor descriptions.
pub(crate) fn header(metadata: &Metadata, n_tensors: usize) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend(VERSION.to_le_bytes());
    length(&mut out, n_tensors);
    length(&mut out, metadata.len());
    for (key, value) in metadata.iter() {
        string(&mut out, key);
        self::value(&mut out, value);
    }
    out
}

/// One tensor description; `offset` counts from the data section.
pub(crate) fn tensor_info(out: &mut Vec<u8>, name: &str, dims: &[u64], ty: GgmlType, offset: u64) {
    string(out, name);
    out.extend((dims.len() as u32).to_le_bytes()); // at most MAX_DIMS
    dims.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
    out.extend(ty.id().to_le_bytes());
    out.extend(offset.to_le_bytes());
}

fn length(out: &mut Vec<u8>, len: usize) {
    out.extend((len as u64).to_le_bytes());
}

fn string(out: &mut Vec<u8>, text: &str) {
    length(out, text.len());
    out.extend(text.as_bytes());
}

fn value(out: &mut Vec<u8>, value: &Value) {
    out.extend(value.value_type().id().to_le_bytes());
    match value {
        Value::U8(x) => out.extend(x.to_le_bytes()),
        Value::I8(x) => out.extend(x.to_le_bytes()),
        Value::U16(x) => out.extend(x.to_le_bytes()),
        Value::I16(x) => out.extend(x.to_le_bytes()),
        Value::U32(x) => out.extend(x.to_le_bytes()),
        Value::I32(x) => out.extend(x.to_le_bytes()),
        Value::F32(x) => out.extend(x.to_le_bytes()),
        Value::U64(x) => out.extend(x.to_le_bytes()),
        Value::I64(x) => out.extend(x.to_le_bytes()),
        Value::F64(x) => out.extend(x.to_le_bytes()),
        Value::Bool(x) => out.push(u8::from(*x)),
        Value::String(text) => string(out, text),
        Value::Array(array) => {
            out.extend(array.element_type().id().to_le_bytes());
            length(out, array.len());
            elements(out, array);
        }
    }
}

fn elements(out: &mut Vec<u8>, array: &Array) {
    on_numbers!(array, items => items.iter().for_each(|x| out.extend(x.to_le_bytes())),
        Array::Bool(items) => out.extend(items.iter().map(|&x| u8::from(x))),
        Array::String(items) => items.iter().for_each(|text| string(out, text)),
    );
}

/// Refuses what the reader would refuse, so that no file is written that cannot be opened.
pub(crate) fn check_metadata(path: &Path, metadata: &Metadata) -> Result<(), GgufError> {
    check_limit(path, "the header", "keys", metadata.len(), MAX_KEYS)?;
    for (key, value) in metadata.iter() {
        let place = format_args!("key `{key}`");
        check_limit(path, "the name of a key", "bytes", key.len(), MAX_KEY_BYTES)?;
        match value {
            Value::String(text) => check_limit(path, place, "bytes", text.len(), MAX_STRING_BYTES)?,
            Value::Array(array) => {
                check_limit(path, place, "elements", array.len(), MAX_ARRAY_LEN)?;
                if let Array::String(strings) = array {
                    let longest = strings.iter().map(str::len).max().unwrap_or(0);
                    check_limit(path, place, "bytes", longest, MAX_STRING_BYTES)?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

pub(crate) fn check_limit(
    path: &Path,
    place: impl Display,
    unit: &'static str,
    found: usize,
    limit: u64,
) -> Result<(), GgufError> {
    let found = found as u64;
    if found <= limit {
        return Ok(());
    }
    Err(GgufError::Limit {
        path: path.to_owned(),
        place: place.to_string(),
        unit,
        found,
        limit,
    })
}
