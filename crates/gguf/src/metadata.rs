//! The keys of a file in their order, with getters that check the type.
//!
//! Different tools write the same key as u32, i32 or u64, and a scalar where another writes one
//! value for each layer. The getters accept every spelling that has one meaning, and refuse the
//! rest with the file, the key, what was found and what was expected. An absent key is `Ok(None)`:
//! the caller knows whether it has a default.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use crate::{
    error::GgufError,
    value::{Array, Strings, Value},
};

/// Keys and values in the order of the file.
#[derive(Debug, Clone, Default)]
pub struct Metadata {
    /// The file the keys came from, for messages.
    path: PathBuf,
    entries: Vec<(String, Value)>,
    index: HashMap<String, usize>,
}

/// An integer that is given once for all layers, or one for each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UintOrArray {
    /// One value for all.
    Scalar(u64),
    /// One value for each layer, in order.
    Array(Vec<u64>),
}

impl UintOrArray {
    /// The value for `layer`; `None` beyond the end of an array.
    pub fn get(&self, layer: usize) -> Option<u64> {
        match self {
            Self::Scalar(value) => Some(*value),
            Self::Array(values) => values.get(layer).copied(),
        }
    }
}

/// Equal if the keys, their order and their values are; the file they came from does not count.
impl PartialEq for Metadata {
    fn eq(&self, other: &Self) -> bool {
        self.entries == other.entries
    }
}

impl Metadata {
    /// No keys yet; for [`crate::Writer`] and tests.
    pub fn new() -> Self {
        Self::default()
    }

    pub(crate) fn for_file(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            ..Self::default()
        }
    }

    /// The file that the keys came from; empty for one that was made in memory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sets `key`: in its place if it exists, else at the end.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<Value>) {
        let (key, value) = (key.into(), value.into());
        match self.index.get(&key) {
            Some(&at) => self.entries[at].1 = value,
            None => {
                self.index.insert(key.clone(), self.entries.len());
                self.entries.push((key, value));
            }
        }
    }

    /// The value of `key`, whatever its type.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|&at| &self.entries[at].1)
    }

    /// Keys and values in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries
            .iter()
            .map(|(key, value)| (key.as_str(), value))
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if there are no keys.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The error for a key that the caller cannot do without; `expected` says what it should be, as
    /// in `an integer`.
    pub fn missing(&self, key: &str, expected: &'static str) -> GgufError {
        GgufError::MissingKey {
            path: self.path.clone(),
            key: key.to_owned(),
            expected,
        }
    }

    /// The string under `key`.
    ///
    /// # Errors
    /// [`GgufError::KeyType`] if the key has another type; likewise for all getters below.
    pub fn str(&self, key: &str) -> Result<Option<&str>, GgufError> {
        self.typed(key, "a string", |value| match value {
            Value::String(text) => Some(text.as_str()),
            _ => None,
        })
    }

    /// The bool under `key`.
    ///
    /// # Errors
    /// As [`Metadata::str`].
    pub fn bool(&self, key: &str) -> Result<Option<bool>, GgufError> {
        self.typed(key, "a bool", |value| match *value {
            Value::Bool(flag) => Some(flag),
            _ => None,
        })
    }

    /// The integer of any width under `key`, which must not be negative.
    ///
    /// # Errors
    /// As [`Metadata::str`], and for a negative number.
    pub fn uint(&self, key: &str) -> Result<Option<u64>, GgufError> {
        self.typed(key, "a non-negative integer", |value| {
            u64::try_from(value.integer()?).ok()
        })
    }

    /// The integer of any width under `key`.
    ///
    /// # Errors
    /// As [`Metadata::str`], and for a number beyond `i64`.
    pub fn int(&self, key: &str) -> Result<Option<i64>, GgufError> {
        self.typed(key, "an integer", |value| {
            i64::try_from(value.integer()?).ok()
        })
    }

    /// The number under `key`: f32, f64 or an integer of any width (rounded to the nearest f64).
    ///
    /// # Errors
    /// As [`Metadata::str`].
    pub fn float(&self, key: &str) -> Result<Option<f64>, GgufError> {
        self.typed(key, "a number", |value| match *value {
            Value::F32(x) => Some(x.into()),
            Value::F64(x) => Some(x),
            _ => value.integer().map(|x| x as f64),
        })
    }

    /// The non-negative integer, or array of such, under `key`.
    ///
    /// # Errors
    /// As [`Metadata::str`], and for a negative number.
    pub fn uints(&self, key: &str) -> Result<Option<UintOrArray>, GgufError> {
        self.typed(
            key,
            "a non-negative integer or an array of them",
            |value| match value {
                Value::Array(array) => uints(array).map(UintOrArray::Array),
                scalar => u64::try_from(scalar.integer()?)
                    .ok()
                    .map(UintOrArray::Scalar),
            },
        )
    }

    /// The array of non-negative integers of any width under `key`.
    ///
    /// # Errors
    /// As [`Metadata::str`], and for a negative number or a scalar.
    pub fn uint_array(&self, key: &str) -> Result<Option<Vec<u64>>, GgufError> {
        self.array(key, "an array of non-negative integers", uints)
    }

    /// The array of bools under `key`; integers count as true unless zero, since some tools write
    /// flags so.
    ///
    /// # Errors
    /// As [`Metadata::str`].
    pub fn bools(&self, key: &str) -> Result<Option<Vec<bool>>, GgufError> {
        self.array(key, "an array of bools or integers", |array| match array {
            Array::Bool(flags) => Some(flags.clone()),
            other => Some(other.integers()?.into_iter().map(|x| x != 0).collect()),
        })
    }

    /// The array of strings under `key`.
    ///
    /// # Errors
    /// As [`Metadata::str`].
    pub fn strings(&self, key: &str) -> Result<Option<&Strings>, GgufError> {
        self.array(key, "an array of strings", |array| match array {
            Array::String(strings) => Some(strings),
            _ => None,
        })
    }

    /// The array of f32 under `key`.
    ///
    /// # Errors
    /// As [`Metadata::str`].
    pub fn f32s(&self, key: &str) -> Result<Option<&[f32]>, GgufError> {
        self.array(key, "an array of f32", |array| match array {
            Array::F32(items) => Some(items.as_slice()),
            _ => None,
        })
    }

    /// Appends a key that was read from a file; false if it is there already.
    pub(crate) fn push_new(&mut self, key: String, value: Value) -> bool {
        if self.index.contains_key(&key) {
            return false;
        }
        self.set(key, value);
        true
    }

    /// Converts the value of `key`, where `None` from `convert` means that it is not what was
    /// `expected`.
    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, GgufError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match convert(value) {
            Some(converted) => Ok(Some(converted)),
            None => Err(GgufError::KeyType {
                path: self.path.clone(),
                key: key.to_owned(),
                found: described(value),
                expected,
            }),
        }
    }

    fn array<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        convert: impl FnOnce(&'a Array) -> Option<T>,
    ) -> Result<Option<T>, GgufError> {
        self.typed(key, expected, |value| match value {
            Value::Array(array) => convert(array),
            _ => None,
        })
    }
}

fn uints(array: &Array) -> Option<Vec<u64>> {
    array
        .integers()?
        .into_iter()
        .map(|x| u64::try_from(x).ok())
        .collect()
}

/// A value for an error message: the type, and the value itself where it is short.
fn described(value: &Value) -> String {
    match value {
        Value::String(_) => "a string".to_owned(),
        Value::Array(array) => {
            // A wrong sign hides in the type's name: name the element that is to blame.
            let negative = array
                .integers()
                .and_then(|items| items.into_iter().find(|&x| x < 0));
            let note = negative.map_or_else(String::new, |x| format!(" with the element {x}"));
            format!("an {}{note}", value.type_name())
        }
        scalar => format!("{scalar} ({})", scalar.type_name()),
    }
}
