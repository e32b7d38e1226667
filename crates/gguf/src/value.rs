//! The values that keys can have: scalars, strings, and flat arrays of either.

use std::fmt;

use crate::limits::DISPLAYED_ELEMENTS;

/// The value of one key, in the type that the file stores.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "a variant is its type")]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// An array of one type. GGUF's arrays of arrays are refused: no model uses them.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "a variant is its element type")]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(Strings),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

/// Many strings in one allocation: a vocabulary has 150 000, its merges twice as many.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Strings {
    blob: String,
    /// End of each string in `blob`; each is a character boundary.
    ends: Vec<usize>,
}

impl Strings {
    /// None yet, with room for the ends of `count` strings.
    pub(crate) fn with_capacity(count: usize) -> Self {
        Self {
            blob: String::new(),
            ends: Vec::with_capacity(count),
        }
    }

    /// Appends a copy of `text`.
    pub fn push(&mut self, text: &str) {
        self.blob.push_str(text);
        self.ends.push(self.blob.len());
    }

    /// Number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// String number `index`, from 0.
    pub fn get(&self, index: usize) -> Option<&str> {
        let end = *self.ends.get(index)?;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some(&self.blob[start..end])
    }

    /// The strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> + Clone {
        let mut start = 0;
        self.ends
            .iter()
            .map(move |&end| &self.blob[std::mem::replace(&mut start, end)..end])
    }
}

impl<S: AsRef<str>> FromIterator<S> for Strings {
    fn from_iter<I: IntoIterator<Item = S>>(texts: I) -> Self {
        let mut strings = Self::default();
        texts
            .into_iter()
            .for_each(|text| strings.push(text.as_ref()));
        strings
    }
}

/// The type ids of values, as GGUF numbers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ValueType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    Array,
    U64,
    I64,
    F64,
}

impl ValueType {
    /// In the order of their ids: the discriminant is the id.
    const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::String,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    pub(crate) fn from_id(id: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(id).ok()?).copied()
    }

    pub(crate) fn id(self) -> u32 {
        self as u32
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::String => "string",
            Self::Array => "array",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        }
    }
}

/// Runs `$body` for the numeric arrays with `$items` as the vector; the rest is given as ordinary
/// arms.
macro_rules! on_numbers {
    ($array:expr, $items:ident => $body:expr, $($rest:tt)*) => {
        match $array {
            Array::U8($items) => $body,
            Array::I8($items) => $body,
            Array::U16($items) => $body,
            Array::I16($items) => $body,
            Array::U32($items) => $body,
            Array::I32($items) => $body,
            Array::U64($items) => $body,
            Array::I64($items) => $body,
            Array::F32($items) => $body,
            Array::F64($items) => $body,
            $($rest)*
        }
    };
}
pub(crate) use on_numbers;

impl Array {
    /// Number of elements.
    pub fn len(&self) -> usize {
        on_numbers!(self, items => items.len(), Array::Bool(items) => items.len(), Array::String(items) => items.len(),)
    }

    /// True if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn element_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// The elements as `i128`, which holds every integer type; `None` if they are no integers.
    pub(crate) fn integers(&self) -> Option<Vec<i128>> {
        match self {
            Self::U8(items) => Some(items.iter().map(|&x| x.into()).collect()),
            Self::I8(items) => Some(items.iter().map(|&x| x.into()).collect()),
            Self::U16(items) => Some(items.iter().map(|&x| x.into()).collect()),
            Self::I16(items) => Some(items.iter().map(|&x| x.into()).collect()),
            Self::U32(items) => Some(items.iter().map(|&x| x.into()).collect()),
            Self::I32(items) => Some(items.iter().map(|&x| x.into()).collect()),
            Self::U64(items) => Some(items.iter().map(|&x| x.into()).collect()),
            Self::I64(items) => Some(items.iter().map(|&x| x.into()).collect()),
            Self::F32(_) | Self::F64(_) | Self::Bool(_) | Self::String(_) => None,
        }
    }
}

impl Value {
    pub(crate) fn value_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// The type as text: `u32`, `string`, `array of 151 i32`.
    pub fn type_name(&self) -> String {
        match self {
            Self::Array(array) => {
                format!("array of {} {}", array.len(), array.element_type().name())
            }
            scalar => scalar.value_type().name().to_owned(),
        }
    }

    /// The integer, whatever its width; `None` if this is no integer.
    pub(crate) fn integer(&self) -> Option<i128> {
        match *self {
            Self::U8(x) => Some(x.into()),
            Self::I8(x) => Some(x.into()),
            Self::U16(x) => Some(x.into()),
            Self::I16(x) => Some(x.into()),
            Self::U32(x) => Some(x.into()),
            Self::I32(x) => Some(x.into()),
            Self::U64(x) => Some(x.into()),
            Self::I64(x) => Some(x.into()),
            Self::F32(_) | Self::F64(_) | Self::Bool(_) | Self::String(_) | Self::Array(_) => None,
        }
    }
}

/// Scalars and strings as in Rust source; of an array the first elements and the length.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::U8(x) => x.fmt(f),
            Self::I8(x) => x.fmt(f),
            Self::U16(x) => x.fmt(f),
            Self::I16(x) => x.fmt(f),
            Self::U32(x) => x.fmt(f),
            Self::I32(x) => x.fmt(f),
            Self::F32(x) => x.fmt(f),
            Self::Bool(x) => x.fmt(f),
            Self::String(x) => fmt::Debug::fmt(x, f),
            Self::Array(x) => x.fmt(f),
            Self::U64(x) => x.fmt(f),
            Self::I64(x) => x.fmt(f),
            Self::F64(x) => x.fmt(f),
        }
    }
}

impl fmt::Display for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn list<T: fmt::Debug>(
            f: &mut fmt::Formatter<'_>,
            items: impl ExactSizeIterator<Item = T>,
        ) -> fmt::Result {
            let len = items.len();
            f.write_str("[")?;
            for (i, item) in items.take(DISPLAYED_ELEMENTS).enumerate() {
                let comma = if i == 0 { "" } else { ", " };
                write!(f, "{comma}{item:?}")?;
            }
            if len > DISPLAYED_ELEMENTS {
                write!(f, ", … {len} in all")?;
            }
            f.write_str("]")
        }
        on_numbers!(self, items => list(f, items.iter()),
            Array::Bool(items) => list(f, items.iter()),
            Array::String(items) => list(f, items.iter()),
        )
    }
}

macro_rules! from {
    ($($variant:ident($ty:ty)),*) => {
        $(
            impl From<$ty> for Value {
                fn from(value: $ty) -> Self {
                    Self::$variant(value)
                }
            }
            impl From<Vec<$ty>> for Value {
                fn from(items: Vec<$ty>) -> Self {
                    Self::Array(Array::$variant(items))
                }
            }
        )*
    };
}
from!(
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    U64(u64),
    I64(i64),
    F64(f64)
);

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::String(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::String(text)
    }
}

impl From<Strings> for Value {
    fn from(strings: Strings) -> Self {
        Self::Array(Array::String(strings))
    }
}

impl From<Array> for Value {
    fn from(array: Array) -> Self {
        Self::Array(array)
    }
}
