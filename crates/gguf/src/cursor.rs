//! Reading fields of either byte order from untrusted bytes: every read is checked, and says where
//! it stood.

use std::{fmt, path::Path};

use crate::{
    byte_order::ByteOrder,
    error::GgufError,
    limits::{MAX_ARRAY_LEN, MAX_STRING_BYTES},
    value::{Array, Strings, Value, ValueType},
};

/// What is being read, for messages.
#[derive(Clone, Copy)]
pub(crate) enum Place<'a> {
    Header,
    /// Counted from 1.
    KeyName(u64),
    Key(&'a str),
    /// Counted from 1.
    TensorName(u64),
    Tensor(&'a str),
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header => write!(f, "the header"),
            Self::KeyName(n) => write!(f, "the name of key number {n}"),
            Self::Key(key) => write!(f, "key `{key}`"),
            Self::TensorName(n) => write!(f, "the name of tensor number {n}"),
            Self::Tensor(name) => write!(f, "the description of tensor `{name}`"),
        }
    }
}

/// A position in the bytes of the file `path`.
pub(crate) struct Cursor<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    at: usize,
    order: ByteOrder,
}

/// Bytes of the length that precedes a string.
const STRING_LENGTH_BYTES: usize = 8;

impl<'a> Cursor<'a> {
    pub(crate) fn new(path: &'a Path, bytes: &'a [u8], at: usize, order: ByteOrder) -> Self {
        Self {
            path,
            bytes,
            at,
            order,
        }
    }

    pub(crate) fn at(&self) -> u64 {
        self.at as u64
    }

    pub(crate) fn left(&self) -> u64 {
        self.bytes.len().saturating_sub(self.at) as u64
    }

    /// The next `len` bytes.
    fn take(&mut self, len: u64, place: Place<'_>) -> Result<&'a [u8], GgufError> {
        let taken = usize::try_from(len)
            .ok()
            .and_then(|len| self.at.checked_add(len))
            .and_then(|end| Some((end, self.bytes.get(self.at..end)?)));
        let Some((end, bytes)) = taken else {
            return Err(GgufError::Truncated {
                path: self.path.to_owned(),
                place: place.to_string(),
                at: self.at(),
                needed: len,
                left: self.left(),
            });
        };
        self.at = end;
        Ok(bytes)
    }

    /// The bytes of one number, least significant first.
    fn array<const N: usize>(&mut self, place: Place<'_>) -> Result<[u8; N], GgufError> {
        let bytes = self.take(N as u64, place)?;
        let mut array = [0; N];
        array.copy_from_slice(bytes);
        Ok(self.to_little(array))
    }

    fn to_little<const N: usize>(&self, mut bytes: [u8; N]) -> [u8; N] {
        if self.order == ByteOrder::Big {
            bytes.reverse();
        }
        bytes
    }

    pub(crate) fn u32(&mut self, place: Place<'_>) -> Result<u32, GgufError> {
        self.array(place).map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self, place: Place<'_>) -> Result<u64, GgufError> {
        self.array(place).map(u64::from_le_bytes)
    }

    /// A number of entries of at least `min_bytes` each, that must be at most `limit` and fit into
    /// what is left.
    pub(crate) fn checked_count(
        &self,
        count: u64,
        unit: &'static str,
        limit: u64,
        min_bytes: u64,
        place: Place<'_>,
    ) -> Result<u64, GgufError> {
        if count > limit {
            return Err(self.limit(place, unit, count, limit));
        }
        // Both factors are bounded by constants of this crate: no overflow.
        let needed = count * min_bytes;
        if needed > self.left() {
            return Err(GgufError::Truncated {
                path: self.path.to_owned(),
                place: place.to_string(),
                at: self.at(),
                needed,
                left: self.left(),
            });
        }
        Ok(count)
    }

    fn limit(&self, place: Place<'_>, unit: &'static str, found: u64, limit: u64) -> GgufError {
        GgufError::Limit {
            path: self.path.to_owned(),
            place: place.to_string(),
            unit,
            found,
            limit,
        }
    }

    /// A length and that many bytes of UTF-8.
    pub(crate) fn string(&mut self, max: u64, place: Place<'_>) -> Result<&'a str, GgufError> {
        let len = self.u64(place)?;
        if len > max {
            return Err(self.limit(place, "bytes", len, max));
        }
        let start = self.at();
        let bytes = self.take(len, place)?;
        std::str::from_utf8(bytes).map_err(|e| GgufError::NotUtf8 {
            path: self.path.to_owned(),
            place: place.to_string(),
            at: start.saturating_add(e.valid_up_to() as u64),
        })
    }

    /// The type and the value of `key`.
    pub(crate) fn value(&mut self, key: &str) -> Result<Value, GgufError> {
        let place = Place::Key(key);
        Ok(match self.value_type(key)? {
            ValueType::U8 => Value::U8(u8::from_le_bytes(self.array(place)?)),
            ValueType::I8 => Value::I8(i8::from_le_bytes(self.array(place)?)),
            ValueType::U16 => Value::U16(u16::from_le_bytes(self.array(place)?)),
            ValueType::I16 => Value::I16(i16::from_le_bytes(self.array(place)?)),
            ValueType::U32 => Value::U32(u32::from_le_bytes(self.array(place)?)),
            ValueType::I32 => Value::I32(i32::from_le_bytes(self.array(place)?)),
            ValueType::F32 => Value::F32(f32::from_le_bytes(self.array(place)?)),
            ValueType::U64 => Value::U64(u64::from_le_bytes(self.array(place)?)),
            ValueType::I64 => Value::I64(i64::from_le_bytes(self.array(place)?)),
            ValueType::F64 => Value::F64(f64::from_le_bytes(self.array(place)?)),
            ValueType::Bool => {
                let [byte] = self.array(place)?;
                Value::Bool(self.to_bool(byte, key)?)
            }
            ValueType::String => Value::String(self.string(MAX_STRING_BYTES, place)?.to_owned()),
            ValueType::Array => Value::Array(self.value_array(key)?),
        })
    }

    fn value_type(&mut self, key: &str) -> Result<ValueType, GgufError> {
        let id = self.u32(Place::Key(key))?;
        ValueType::from_id(id).ok_or_else(|| GgufError::UnknownValueType {
            path: self.path.to_owned(),
            key: key.to_owned(),
            id,
        })
    }

    fn value_array(&mut self, key: &str) -> Result<Array, GgufError> {
        let place = Place::Key(key);
        let ty = self.value_type(key)?;
        let count = self.u64(place)?;
        if count > MAX_ARRAY_LEN {
            return Err(self.limit(place, "elements", count, MAX_ARRAY_LEN));
        }
        Ok(match ty {
            ValueType::U8 => Array::U8(self.items(count, place, u8::from_le_bytes)?),
            ValueType::I8 => Array::I8(self.items(count, place, i8::from_le_bytes)?),
            ValueType::U16 => Array::U16(self.items(count, place, u16::from_le_bytes)?),
            ValueType::I16 => Array::I16(self.items(count, place, i16::from_le_bytes)?),
            ValueType::U32 => Array::U32(self.items(count, place, u32::from_le_bytes)?),
            ValueType::I32 => Array::I32(self.items(count, place, i32::from_le_bytes)?),
            ValueType::F32 => Array::F32(self.items(count, place, f32::from_le_bytes)?),
            ValueType::U64 => Array::U64(self.items(count, place, u64::from_le_bytes)?),
            ValueType::I64 => Array::I64(self.items(count, place, i64::from_le_bytes)?),
            ValueType::F64 => Array::F64(self.items(count, place, f64::from_le_bytes)?),
            ValueType::Bool => {
                let bytes = self.take(count, place)?;
                Array::Bool(
                    bytes
                        .iter()
                        .map(|&byte| self.to_bool(byte, key))
                        .collect::<Result<_, _>>()?,
                )
            }
            ValueType::String => Array::String(self.strings(count, place)?),
            ValueType::Array => {
                return Err(GgufError::NestedArray {
                    path: self.path.to_owned(),
                    key: key.to_owned(),
                });
            }
        })
    }

    /// `count` numbers of `N` bytes. The bytes are there before the vector is allocated.
    fn items<const N: usize, T>(
        &mut self,
        count: u64,
        place: Place<'_>,
        from_le: fn([u8; N]) -> T,
    ) -> Result<Vec<T>, GgufError> {
        let bytes = self.take(count.saturating_mul(N as u64), place)?;
        let (items, _) = bytes.as_chunks::<N>();
        Ok(items
            .iter()
            .map(|item| from_le(self.to_little(*item)))
            .collect())
    }

    fn strings(&mut self, count: u64, place: Place<'_>) -> Result<Strings, GgufError> {
        let min_bytes = STRING_LENGTH_BYTES as u64;
        let count = self.checked_count(count, "strings", MAX_ARRAY_LEN, min_bytes, place)?;
        let mut strings = Strings::with_capacity(count as usize);
        for _ in 0..count {
            strings.push(self.string(MAX_STRING_BYTES, place)?);
        }
        Ok(strings)
    }

    fn to_bool(&self, byte: u8, key: &str) -> Result<bool, GgufError> {
        match byte {
            0 => Ok(false),
            1 => Ok(true),
            found => Err(GgufError::BadBool {
                path: self.path.to_owned(),
                key: key.to_owned(),
                found,
            }),
        }
    }
}
