//! Importance matrices: for each column of each weight matrix the mean square of what it is multiplied with.
//!
//! [`Imatrix`] reads both forms that llama.cpp writes, [`Sums`] writes the newer one. Source: `save_imatrix` and
//! `save_imatrix_legacy` in `tools/imatrix/imatrix.cpp`, `common_imatrix_load` in `common/imatrix-loader.cpp`, `load_imatrix`
//! in `tools/quantize/quantize.cpp`.
//!
//! The newer form is a GGUF with `general.type` "imatrix", the keys `imatrix.datasets`, `imatrix.chunk_count` and
//! `imatrix.chunk_size`, and for a weight `NAME` the F32 tensors `NAME.in_sum2`, sums of squares `[n, columns]`, and
//! `NAME.counts`, rows that were summed `[n, 1]`. `n` is the number of experts; the heads of `attn_k_b` stand one after
//! the other in one row, with one count.
//!
//! The older form, little-endian: `n` entries (i32), each with its name (i32 length, bytes), calls (i32), number of values
//! (i32) and the values, mean squares times calls (f32); then, if the file goes on, chunks (i32) and the name of the
//! text (i32 length, bytes).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use glim_gguf::{Array, Gguf, GgufError, Source, Writer};
use glim_quant::GgmlType;

use super::QuantizeError;

const SUMS: &str = ".in_sum2";
const COUNTS: &str = ".counts";
/// Numbers that are written at a time.
const STREAMED: usize = 1 << 14;
const GGUF_MAGIC: [u8; 4] = *b"GGUF";
/// Longest name of a tensor or a text in the older form: that of a path.
const MAX_NAME_BYTES: usize = 4096;

/// An importance matrix in a file.
#[derive(Debug)]
pub struct Imatrix {
    path: PathBuf,
    datasets: Vec<String>,
    chunk_count: u32,
    form: Form,
}

#[derive(Debug)]
enum Form {
    /// The tensors stay mapped: GLM-5's sums are 1.2 GB.
    Gguf(Box<Gguf>),
    Legacy(BTreeMap<String, Legacy>),
}

/// One entry of the older form.
#[derive(Debug)]
struct Legacy {
    calls: i32,
    values: Vec<f32>,
}

impl Imatrix {
    /// Reads a file of either form.
    ///
    /// # Errors
    /// [`QuantizeError::Gguf`] if it cannot be read, [`QuantizeError::BadImatrix`] if it is none.
    pub fn open(path: &Path) -> Result<Self, QuantizeError> {
        let failed = |source: io::Error| {
            let path = path.to_owned();
            match source.kind() {
                io::ErrorKind::NotFound => GgufError::NotFound { path },
                _ => GgufError::Io {
                    path,
                    action: "read the file",
                    source,
                },
            }
        };
        let mut start = [0; 4];
        let mut file = File::open(path).map_err(failed)?;
        match file.read_exact(&mut start) {
            Ok(()) if start == GGUF_MAGIC => Self::from_gguf(path, Gguf::open(path)?),
            _ => Self::from_legacy(path, &fs::read(path).map_err(failed)?),
        }
    }

    fn from_gguf(path: &Path, gguf: Gguf) -> Result<Self, QuantizeError> {
        let bad = |reason: String| bad(path, reason);
        let keys = gguf.metadata();
        match keys.str("general.type")? {
            Some("imatrix") => {}
            found => {
                let found = found.unwrap_or("missing");
                return Err(bad(format!("`general.type` is {found}, expected imatrix")));
            }
        }
        let number = |key: &str| -> Result<u32, QuantizeError> {
            let found = keys.uint(key)?;
            let found = found.ok_or_else(|| keys.missing(key, "an integer"))?;
            Ok(u32::try_from(found).unwrap_or(u32::MAX))
        };
        let (chunk_count, _chunk_size) = (
            number("imatrix.chunk_count")?,
            number("imatrix.chunk_size")?,
        );
        let datasets = keys.strings("imatrix.datasets")?;
        let datasets =
            datasets.ok_or_else(|| keys.missing("imatrix.datasets", "an array of strings"))?;
        let datasets = datasets.iter().map(str::to_owned).collect();
        for tensor in gguf.tensors() {
            let other = if let Some(name) = tensor.name.strip_suffix(SUMS) {
                format!("{name}{COUNTS}")
            } else if let Some(name) = tensor.name.strip_suffix(COUNTS) {
                format!("{name}{SUMS}")
            } else {
                continue;
            };
            if gguf.tensor(&other).is_none() {
                let name = &tensor.name;
                return Err(bad(format!("there is a tensor `{name}` and no `{other}`")));
            }
            if tensor.ty != GgmlType::F32 {
                let (name, ty) = (&tensor.name, tensor.ty);
                return Err(bad(format!("tensor `{name}` is {ty}, expected F32")));
            }
        }
        Ok(Self {
            path: path.to_owned(),
            datasets,
            chunk_count,
            form: Form::Gguf(Box::new(gguf)),
        })
    }

    fn from_legacy(path: &Path, bytes: &[u8]) -> Result<Self, QuantizeError> {
        let mut cursor = Cursor { path, bytes };
        let n = cursor.length("the number of entries")?;
        if n == 0 {
            return Err(bad(path, "it has no entries".to_owned()));
        }
        let mut entries = BTreeMap::new();
        for i in 0..n {
            let what = format!("entry {i} of {n}");
            let name = cursor.text(&what)?;
            let calls = cursor.int(&what)?;
            let values = cursor.length(&what)?;
            let values = cursor.take(values.saturating_mul(4), &what)?;
            let (values, _) = values.as_chunks::<4>();
            let values = values
                .iter()
                .map(|value| f32::from_le_bytes(*value))
                .collect();
            if entries
                .insert(name.clone(), Legacy { calls, values })
                .is_some()
            {
                return Err(bad(path, format!("it has two entries for `{name}`")));
            }
        }
        let (mut chunk_count, mut datasets) = (0, Vec::new());
        if !cursor.bytes.is_empty() {
            chunk_count = cursor.length("the number of chunks")?;
            if !cursor.bytes.is_empty() {
                datasets.push(cursor.text("the name of the text")?);
            }
        }
        Ok(Self {
            path: path.to_owned(),
            datasets,
            chunk_count: u32::try_from(chunk_count).unwrap_or(u32::MAX),
            form: Form::Legacy(entries),
        })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The texts that it was made from.
    pub fn datasets(&self) -> &[String] {
        &self.datasets
    }

    /// Windows of text that it was made from; 0 if the file does not say.
    pub fn chunk_count(&self) -> u32 {
        self.chunk_count
    }

    /// Weight matrices in it.
    pub fn n_entries(&self) -> usize {
        match &self.form {
            Form::Gguf(gguf) => {
                let sums = |name: &str| name.ends_with(SUMS);
                gguf.tensors().iter().filter(|t| sums(&t.name)).count()
            }
            Form::Legacy(entries) => entries.len(),
        }
    }

    /// Whether it knows this weight.
    pub fn contains(&self, tensor: &str) -> bool {
        match &self.form {
            Form::Gguf(gguf) => gguf.tensor(&format!("{tensor}{SUMS}")).is_some(),
            Form::Legacy(entries) => entries.contains_key(tensor),
        }
    }

    /// Weights of the columns of `tensor`, `[matrices, columns]`: mean squares, and 1 for all columns of an expert that no
    /// token met. `None` if the file does not know the tensor.
    ///
    /// # Errors
    /// [`QuantizeError::BadImatrix`] if there are not as many, or one is negative or not finite.
    pub fn weights(
        &self,
        tensor: &str,
        columns: usize,
        matrices: usize,
    ) -> Result<Option<Vec<f32>>, QuantizeError> {
        let Some(weights) = self.means(tensor)? else {
            return Ok(None);
        };
        let (found, expected) = (weights.len(), columns.saturating_mul(matrices));
        if found != expected {
            let reason = format!(
                "it has {found} values for tensor `{tensor}`, expected {expected} ({matrices} × {columns})"
            );
            return Err(bad(&self.path, reason));
        }
        match weights.iter().position(|w| !(w.is_finite() && *w >= 0.0)) {
            None => Ok(Some(weights)),
            Some(at) => {
                let (matrix, column, found) = (at / columns, at % columns, weights[at]);
                let reason = format!(
                    "the mean square of matrix {matrix}, column {column} of tensor `{tensor}` is {found}, expected a finite number of at least 0"
                );
                Err(bad(&self.path, reason))
            }
        }
    }

    fn means(&self, tensor: &str) -> Result<Option<Vec<f32>>, QuantizeError> {
        let gguf = match &self.form {
            Form::Gguf(gguf) => gguf,
            Form::Legacy(entries) => {
                return Ok(entries.get(tensor).map(|entry| {
                    let calls = if entry.calls > 0 {
                        entry.calls as f32
                    } else {
                        1.0
                    };
                    entry.values.iter().map(|value| value / calls).collect()
                }));
            }
        };
        let floats = |suffix: &str| -> Option<Vec<f32>> {
            let info = gguf.tensor(&format!("{tensor}{suffix}"))?;
            let (words, _) = gguf.data(info).as_chunks::<4>();
            Some(words.iter().map(|word| f32::from_le_bytes(*word)).collect())
        };
        let (Some(mut sums), Some(counts)) = (floats(SUMS), floats(COUNTS)) else {
            return Ok(None);
        };
        if counts.is_empty() || !sums.len().is_multiple_of(counts.len()) {
            let (sums, counts) = (sums.len(), counts.len());
            let reason = format!(
                "it has {sums} sums and {counts} counts for tensor `{tensor}`, expected a multiple"
            );
            return Err(bad(&self.path, reason));
        }
        let columns = sums.len() / counts.len();
        for (sums, count) in sums.chunks_mut(columns.max(1)).zip(counts) {
            let count = count.round();
            if count > 0.0 {
                sums.iter_mut().for_each(|sum| *sum /= count);
            } else {
                sums.fill(1.0);
            }
        }
        Ok(Some(sums))
    }
}

fn bad(path: &Path, reason: String) -> QuantizeError {
    QuantizeError::BadImatrix {
        path: path.to_owned(),
        reason,
    }
}

/// What is left of a file of the older form.
struct Cursor<'a> {
    path: &'a Path,
    bytes: &'a [u8],
}

impl<'a> Cursor<'a> {
    fn take(&mut self, n: usize, what: &str) -> Result<&'a [u8], QuantizeError> {
        match self.bytes.split_at_checked(n) {
            Some((taken, rest)) => {
                self.bytes = rest;
                Ok(taken)
            }
            None => {
                let left = self.bytes.len();
                let reason = format!(
                    "it is no importance matrix, or cut short: {what} takes {n} bytes, and {left} are left"
                );
                Err(bad(self.path, reason))
            }
        }
    }

    fn int(&mut self, what: &str) -> Result<i32, QuantizeError> {
        let bytes = self.take(4, what)?;
        let (words, _) = bytes.as_chunks::<4>();
        Ok(i32::from_le_bytes(words[0]))
    }

    fn length(&mut self, what: &str) -> Result<usize, QuantizeError> {
        let found = self.int(what)?;
        usize::try_from(found).map_err(|_| {
            let reason = format!("it is no importance matrix: {what} has a length of {found}");
            bad(self.path, reason)
        })
    }

    fn text(&mut self, what: &str) -> Result<String, QuantizeError> {
        let length = self.length(what)?;
        if length > MAX_NAME_BYTES {
            let reason = format!(
                "it is no importance matrix: {what} has a name of {length} bytes, more than {MAX_NAME_BYTES}"
            );
            return Err(bad(self.path, reason));
        }
        let bytes = self.take(length, what)?;
        let text = std::str::from_utf8(bytes);
        let text = text.map_err(|_| bad(self.path, format!("the name of {what} is no UTF-8")))?;
        Ok(text.to_owned())
    }
}

/// What was summed up over a text, to be written.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sums {
    /// Names of the texts.
    pub datasets: Vec<String>,
    /// Windows of text.
    pub chunk_count: u32,
    /// Tokens of a window.
    pub chunk_size: u32,
    /// By the name of the weight in its file.
    pub entries: BTreeMap<String, Entry>,
}

/// The sums of one weight.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Entry {
    /// Sums of squares, `[counts, columns]`.
    pub sums: Vec<f32>,
    /// Rows that were summed up: one number for each expert, one for anything else.
    pub counts: Vec<u64>,
}

impl Sums {
    /// Writes the file at `path`; one that is there is replaced.
    ///
    /// # Errors
    /// The file cannot be written. None is left behind then.
    pub fn write(&self, path: &Path) -> Result<(), QuantizeError> {
        let mut writer = Writer::new();
        writer.set("general.type", "imatrix");
        let datasets = self.datasets.iter().collect();
        writer.set("imatrix.datasets", Array::String(datasets));
        writer.set("imatrix.chunk_count", self.chunk_count);
        writer.set("imatrix.chunk_size", self.chunk_size);
        for (name, entry) in &self.entries {
            let n = entry.counts.len();
            let columns = entry.sums.len().checked_div(n).unwrap_or(0);
            writer.tensor(
                format!("{name}{SUMS}"),
                &[columns as u64, n as u64],
                GgmlType::F32,
                stream(&entry.sums, |sum| *sum),
            );
            writer.tensor(
                format!("{name}{COUNTS}"),
                &[1, n as u64],
                GgmlType::F32,
                stream(&entry.counts, |count| *count as f32),
            );
        }
        Ok(writer.write(path)?)
    }
}

/// Numbers as F32, not all of them at a time.
fn stream<'a, T>(items: &'a [T], to_f32: fn(&T) -> f32) -> Source<'a> {
    Source::Stream(Box::new(move |out| {
        items.chunks(STREAMED).try_for_each(|items| {
            let bytes: Vec<u8> = items
                .iter()
                .flat_map(|item| to_f32(item).to_le_bytes())
                .collect();
            out.write_all(&bytes)
        })
    }))
}
