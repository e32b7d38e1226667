//! Metadata values as JSON.

use glim_gguf::{Array, Value};
use serde_json::{Number, Value as Json, json};

/// Longest array of metadata that the JSON holds whole; vocabularies are longer, lists for each layer are not.
const MAX_JSON_ARRAY: usize = 1024;
/// Elements that stand for a longer one.
const FIRST_ELEMENTS: usize = 8;

/// The value as its author wrote it: 0.00001, not the nearest f32 in f64 digits. What is no number becomes null.
pub(super) fn float(x: f32) -> Json {
    let shortest = x.to_string().parse::<f64>().ok();
    shortest
        .and_then(Number::from_f64)
        .map_or(Json::Null, Json::Number)
}

pub(super) fn value_json(value: &Value) -> Json {
    match value {
        Value::U8(x) => (*x).into(),
        Value::I8(x) => (*x).into(),
        Value::U16(x) => (*x).into(),
        Value::I16(x) => (*x).into(),
        Value::U32(x) => (*x).into(),
        Value::I32(x) => (*x).into(),
        Value::U64(x) => (*x).into(),
        Value::I64(x) => (*x).into(),
        Value::F32(x) => float(*x),
        Value::F64(x) => (*x).into(),
        Value::Bool(x) => (*x).into(),
        Value::String(x) => x.as_str().into(),
        Value::Array(array) if array.len() <= MAX_JSON_ARRAY => elements(array, array.len()).into(),
        Value::Array(array) => {
            json!({ "type": value.type_name(), "first": elements(array, FIRST_ELEMENTS) })
        }
    }
}

/// The first `n` elements.
fn elements(array: &Array, n: usize) -> Vec<Json> {
    fn of<T: Copy + Into<Json>>(items: &[T], n: usize) -> Vec<Json> {
        items.iter().take(n).map(|x| (*x).into()).collect()
    }
    match array {
        Array::U8(items) => of(items, n),
        Array::I8(items) => of(items, n),
        Array::U16(items) => of(items, n),
        Array::I16(items) => of(items, n),
        Array::U32(items) => of(items, n),
        Array::I32(items) => of(items, n),
        Array::U64(items) => of(items, n),
        Array::I64(items) => of(items, n),
        Array::F64(items) => of(items, n),
        Array::Bool(items) => of(items, n),
        Array::F32(items) => items.iter().take(n).map(|x| float(*x)).collect(),
        Array::String(items) => items.iter().take(n).map(Json::from).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_read_as_their_author_wrote_them() {
        assert_eq!(float(1e-5), json!(1e-5));
        assert_eq!(float(0.7), json!(0.7));
        assert_eq!(float(f32::NAN), Json::Null);
    }

    #[test]
    fn long_arrays_are_summed_up_and_short_ones_are_whole() {
        assert_eq!(value_json(&vec![1u32, 2].into()), json!([1, 2]));
        let long = value_json(&vec![7i32; 5000].into());
        assert_eq!(long["type"], "array of 5000 i32");
        assert_eq!(long["first"].as_array().map(Vec::len), Some(8));
    }
}
