//! Writes GGUF version 3, as one file or as a split set.
//!
//! The layout is fixed before the first byte is written, so that a tensor's data may come from a
//! stream and never has to stand in memory whole. Files appear under their names only when they are
//! complete and on disk.

use std::{
    borrow::Cow,
    collections::HashSet,
    fmt,
    io::{self, Write},
    ops::Range,
    path::{Path, PathBuf},
};

use glim_quant::GgmlType;

use crate::{
    encode,
    error::GgufError,
    limits::*,
    metadata::Metadata,
    new_file::{self, NewFile, Output},
    reader::{ALIGNMENT_KEY, alignment, sized},
    split,
    value::Value,
};

/// Collects keys and tensors, then writes them.
///
/// Keys are written in the order in which they were set, tensors in the order in which they were
/// added. The container's own keys: `general.alignment` is obeyed (32 if absent); `split.*` keys
/// are dropped, and written anew where a set is written, so the metadata of an opened split set can
/// be passed on as it is.
#[derive(Default)]
pub struct Writer<'a> {
    metadata: Metadata,
    tensors: Vec<NewTensor<'a>>,
}

/// Writes the bytes of one tensor.
pub type Produce<'a> = Box<dyn FnMut(&mut dyn Write) -> io::Result<()> + 'a>;

/// Where the bytes of a new tensor come from.
pub enum Source<'a> {
    /// They are there.
    Bytes(Cow<'a, [u8]>),
    /// They are written on demand, in one go, when it is the tensor's turn; the length must be what
    /// shape and type say.
    Stream(Produce<'a>),
    /// Nowhere: the bytes are zeros that are not written. On file systems that know holes they take
    /// no room on disk ([`crate::Gguf::extents`] tells them from data).
    Hole,
}

impl fmt::Debug for Source<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "Bytes({} bytes)", bytes.len()),
            Self::Stream(_) => f.write_str("Stream"),
            Self::Hole => f.write_str("Hole"),
        }
    }
}

impl<'a> From<&'a [u8]> for Source<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::Bytes(Cow::Borrowed(bytes))
    }
}

impl<'a> From<&'a Vec<u8>> for Source<'a> {
    fn from(bytes: &'a Vec<u8>) -> Self {
        Self::Bytes(Cow::Borrowed(bytes))
    }
}

impl From<Vec<u8>> for Source<'_> {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(Cow::Owned(bytes))
    }
}

#[derive(Debug)]
struct NewTensor<'a> {
    name: String,
    /// Fastest first.
    dims: Vec<u64>,
    ty: GgmlType,
    source: Source<'a>,
}

impl<'a> Writer<'a> {
    /// No keys, no tensors.
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts with these keys, such as those of an opened model.
    pub fn with_metadata(metadata: Metadata) -> Self {
        Self {
            metadata,
            tensors: Vec::new(),
        }
    }

    /// Sets a key: in its place if it is there already, else at the end.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<Value>) {
        self.metadata.set(key, value);
    }

    /// Adds a tensor. `ggml_dims` has the fastest dimension first, as
    /// [`crate::TensorInfo::ggml_dims`] does.
    pub fn tensor(
        &mut self,
        name: impl Into<String>,
        ggml_dims: &[u64],
        ty: GgmlType,
        source: impl Into<Source<'a>>,
    ) {
        self.tensors.push(NewTensor {
            name: name.into(),
            dims: ggml_dims.to_vec(),
            ty,
            source: source.into(),
        });
    }

    /// Writes one file; a file of that name is replaced.
    ///
    /// # Errors
    /// What the reader would refuse is refused here with the same error; [`GgufError::DataLength`]
    /// if a tensor's bytes are not as many as its shape and type say; [`GgufError::Io`]. No file is
    /// left behind then.
    pub fn write(mut self, path: &Path) -> Result<(), GgufError> {
        let sizes = self.check(path)?;
        let metadata = self.model_metadata();
        let mut file = NewFile::create(path)?;
        write_file(path, &mut file, &metadata, &mut self.tensors, &sizes)?;
        file.sync()?;
        new_file::publish(&[file])
    }

    /// The file as bytes, for tests and for models in memory; `name` stands for the file in
    /// messages.
    ///
    /// # Errors
    /// As [`Writer::write`].
    pub fn to_bytes(mut self, name: &str) -> Result<Vec<u8>, GgufError> {
        let path = Path::new(name);
        let sizes = self.check(path)?;
        let metadata = self.model_metadata();
        let mut bytes = Vec::new();
        write_file(path, &mut bytes, &metadata, &mut self.tensors, &sizes)?;
        Ok(bytes)
    }

    /// Writes `parts` files `STEM-00001-of-NNNNN.gguf` and so on into `dir`, and returns their
    /// paths in order.
    ///
    /// As llama.cpp's gguf-split does, the tensors keep their order, part 1 has all keys and the
    /// others only `split.no` (u16), `split.count` (u16) and `split.tensors.count` (i32). The cuts
    /// make the parts about equally large; each part gets at least one tensor. Files of these names
    /// are replaced.
    ///
    /// # Errors
    /// As [`Writer::write`], and [`GgufError::BadSplit`] if there are not as many tensors as parts.
    /// No part is left behind then.
    pub fn write_split(
        self,
        dir: &Path,
        stem: &str,
        parts: usize,
    ) -> Result<Vec<PathBuf>, GgufError> {
        let whole = dir.join(stem);
        let sizes = self.check(&whole)?;
        let limit = (sizes.len() as u64).min(MAX_PARTS);
        if !(1..=limit).contains(&(parts as u64)) {
            let tensors = sizes.len() as u64;
            return Err(GgufError::BadSplit {
                path: whole,
                tensors,
                parts: parts as u64,
                limit,
            });
        }

        self.write_parts(dir, stem, &sizes, &cuts(&sizes, parts))
    }

    /// As [`Writer::write_split`], with the cuts where a file would grow beyond `max_bytes`: each
    /// part gets as many tensors as fit. A tensor that alone is too large gets a part that is too
    /// large. What fits into one file becomes `STEM.gguf`, a whole model.
    ///
    /// # Errors
    /// As [`Writer::write`], and [`GgufError::Limit`] beyond [`MAX_PARTS`] parts. No part is left
    /// behind then.
    pub fn write_split_by_size(
        self,
        dir: &Path,
        stem: &str,
        max_bytes: u64,
    ) -> Result<Vec<PathBuf>, GgufError> {
        let whole = dir.join(stem);
        let sizes = self.check(&whole)?;
        let ranges = self.cuts_by_size(&whole, &sizes, max_bytes)?;
        encode::check_limit(&whole, "the set", "parts", ranges.len(), MAX_PARTS)?;
        if ranges.len() <= 1 {
            let path = dir.join(format!("{stem}{}", split::EXTENSION));
            self.write(&path)?;
            return Ok(vec![path]);
        }
        self.write_parts(dir, stem, &sizes, &ranges)
    }

    /// Writes a range of tensors into each part, then gives all parts their names.
    fn write_parts(
        mut self,
        dir: &Path,
        stem: &str,
        sizes: &[u64],
        ranges: &[Range<usize>],
    ) -> Result<Vec<PathBuf>, GgufError> {
        let parts = ranges.len();
        let mut files = Vec::with_capacity(parts);
        let mut paths = Vec::with_capacity(parts);
        for (no, range) in ranges.iter().enumerate() {
            let path = dir.join(split::file_name(stem, no as u64 + 1, parts as u64));
            let metadata = self.part_metadata(no, parts);
            let mut file = NewFile::create(&path)?;
            write_file(
                &path,
                &mut file,
                &metadata,
                &mut self.tensors[range.clone()],
                &sizes[range.clone()],
            )?;
            file.sync()?;
            files.push(file);
            paths.push(path);
        }
        new_file::publish(&files)?;
        Ok(paths)
    }

    /// Runs of tensors, each as long as the part's file may grow.
    fn cuts_by_size(
        &self,
        path: &Path,
        sizes: &[u64],
        max_bytes: u64,
    ) -> Result<Vec<Range<usize>>, GgufError> {
        let alignment = alignment(path, &self.metadata)?;
        let padded = |bytes: u64| {
            bytes
                .checked_next_multiple_of(alignment)
                .unwrap_or(u64::MAX)
        };
        // Only numbers of fixed width differ between the headers of one set.
        let first = encode::header(&self.part_metadata(0, 1), 0).len() as u64;
        let other = encode::header(&self.part_metadata(1, 1), 0).len() as u64;
        let mut ranges = Vec::new();
        let (mut start, mut header, mut data) = (0, first, 0u64);
        for (i, (tensor, &size)) in self.tensors.iter().zip(sizes).enumerate() {
            let mut info = Vec::new();
            encode::tensor_info(&mut info, &tensor.name, &tensor.dims, tensor.ty, 0);
            let (info, size) = (info.len() as u64, padded(size));
            let grown = padded(header + info)
                .saturating_add(data)
                .saturating_add(size);
            if i > start && grown > max_bytes {
                ranges.push(start..i);
                (start, header, data) = (i, other, 0);
            }
            header += info;
            data = data.saturating_add(size);
        }
        ranges.push(start..sizes.len());
        Ok(ranges)
    }

    /// Checks everything that can be checked before writing; returns the size in bytes of each
    /// tensor.
    fn check(&self, path: &Path) -> Result<Vec<u64>, GgufError> {
        alignment(path, &self.metadata)?;
        encode::check_metadata(path, &self.metadata)?;
        encode::check_limit(
            path,
            "the header",
            "tensors",
            self.tensors.len(),
            MAX_TENSORS,
        )?;
        let mut names = HashSet::new();
        let mut sizes = Vec::with_capacity(self.tensors.len());
        for NewTensor {
            name,
            dims,
            ty,
            source,
        } in &self.tensors
        {
            encode::check_limit(
                path,
                "the name of a tensor",
                "bytes",
                name.len(),
                MAX_TENSOR_NAME_BYTES,
            )?;
            encode::check_limit(
                path,
                format_args!("tensor `{name}`"),
                "dimensions",
                dims.len(),
                MAX_DIMS,
            )?;
            if !names.insert(name) {
                return Err(GgufError::DuplicateTensor {
                    path: path.to_owned(),
                    tensor: name.clone(),
                });
            }
            let size = sized(path, name, dims, *ty)?;
            if let Source::Bytes(bytes) = source {
                check_length(path, name, bytes.len() as u64, size)?;
            }
            sizes.push(size);
        }
        Ok(sizes)
    }

    /// The keys without those of a split set.
    fn model_metadata(&self) -> Metadata {
        let mut metadata = Metadata::new();
        for (key, value) in self
            .metadata
            .iter()
            .filter(|(key, _)| !key.starts_with(split::KEY_PREFIX))
        {
            metadata.set(key, value.clone());
        }
        metadata
    }

    /// The keys of part `no`, from 0.
    fn part_metadata(&self, no: usize, parts: usize) -> Metadata {
        let mut metadata = if no == 0 {
            self.model_metadata()
        } else {
            Metadata::new()
        };
        // Each part's data section follows its own header, so each must say an alignment that is
        // not the default.
        if let Some(alignment) = self.metadata.get(ALIGNMENT_KEY) {
            metadata.set(ALIGNMENT_KEY, alignment.clone());
        }
        // Lossless: MAX_PARTS is below 2^16 and MAX_TENSORS below 2^31.
        metadata.set(split::NO_KEY, no as u16);
        metadata.set(split::COUNT_KEY, parts as u16);
        metadata.set(split::TENSORS_KEY, self.tensors.len() as i32);
        metadata
    }
}

/// Cuts the tensors into `parts` runs of about equal bytes, none of them empty. There are at least
/// as many tensors.
fn cuts(sizes: &[u64], parts: usize) -> Vec<Range<usize>> {
    let total: u128 = sizes.iter().map(|&size| u128::from(size)).sum();
    let mut ranges = Vec::with_capacity(parts);
    let (mut start, mut written) = (0, 0u128);
    for part in 1..=parts {
        let target = total * part as u128 / parts as u128;
        let last_end = sizes.len() - (parts - part); // leaves one tensor for each later part
        let mut end = start;
        while end < last_end {
            let with_next = written + u128::from(sizes[end]);
            // A part begins with a tensor in any case; the next one goes where more of it lies.
            if end > start && with_next + written > 2 * target {
                break;
            }
            written = with_next;
            end += 1;
        }
        ranges.push(start..end);
        start = end;
    }
    ranges
}

/// Writes a whole file: header, padding, and each tensor padded to the alignment.
fn write_file(
    path: &Path,
    out: &mut dyn Output,
    metadata: &Metadata,
    tensors: &mut [NewTensor<'_>],
    sizes: &[u64],
) -> Result<(), GgufError> {
    let failed = |source| GgufError::Io {
        path: path.to_owned(),
        action: "write the file",
        source,
    };
    let alignment = alignment(path, metadata)?;
    let mut offset = 0u64;
    let mut header = encode::header(metadata, tensors.len());
    for (tensor, &size) in tensors.iter().zip(sizes) {
        encode::tensor_info(&mut header, &tensor.name, &tensor.dims, tensor.ty, offset);
        offset = offset
            .checked_add(size)
            .and_then(|end| end.checked_next_multiple_of(alignment))
            .ok_or_else(|| GgufError::SizeOverflow {
                path: path.to_owned(),
                tensor: tensor.name.clone(),
                dims: tensor.dims.clone(),
            })?;
    }
    out.write_all(&header).map_err(failed)?;
    pad(out, header.len() as u64, alignment).map_err(failed)?;
    for (tensor, &size) in tensors.iter_mut().zip(sizes) {
        match &mut tensor.source {
            Source::Bytes(bytes) => out.write_all(bytes).map_err(failed)?,
            Source::Stream(produce) => {
                let mut counted = Counted { out, bytes: 0 };
                produce(&mut counted).map_err(failed)?;
                check_length(path, &tensor.name, counted.bytes, size)?;
            }
            Source::Hole => {
                // With its padding, so that the next block of the disk is not touched.
                out.skip(size).map_err(failed)?;
                out.skip(padding(size, alignment)).map_err(failed)?;
                continue;
            }
        }
        pad(out, size, alignment).map_err(failed)?;
    }
    Ok(())
}

fn check_length(path: &Path, tensor: &str, found: u64, expected: u64) -> Result<(), GgufError> {
    if found == expected {
        return Ok(());
    }
    Err(GgufError::DataLength {
        path: path.to_owned(),
        tensor: tensor.to_owned(),
        found,
        expected,
    })
}

/// Bytes from `len` up to the alignment, which is a power of two.
fn padding(len: u64, alignment: u64) -> u64 {
    len.wrapping_neg() & (alignment - 1)
}

/// Writes zeros after `len` bytes up to the alignment.
fn pad(out: &mut dyn Write, len: u64, alignment: u64) -> io::Result<()> {
    let zeros = padding(len, alignment);
    io::copy(&mut io::Read::take(io::repeat(0), zeros), out).map(drop)
}

/// Counts what passes through.
struct Counted<'a> {
    out: &'a mut dyn Write,
    bytes: u64,
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(sizes: &[u64], parts: usize, expected: &[Range<usize>]) {
        assert_eq!(cuts(sizes, parts), expected, "{sizes:?} in {parts}");
    }

    #[test]
    fn cuts_make_parts_of_about_equal_bytes() {
        check(&[10, 10, 10, 10], 2, &[0..2, 2..4]);
        check(&[100, 1, 1, 1], 2, &[0..1, 1..4]);
        check(&[1, 1, 1, 100], 2, &[0..3, 3..4]);
        check(&[5, 5, 5, 5, 5], 3, &[0..2, 2..3, 3..5]);
    }

    #[test]
    fn no_part_is_empty() {
        check(&[100, 1, 1], 3, &[0..1, 1..2, 2..3]);
        check(&[1, 1, 100], 3, &[0..1, 1..2, 2..3]);
        check(&[0, 0, 0], 2, &[0..2, 2..3]);
        check(&[7, 7], 1, &[Range { start: 0, end: 2 }]);
    }
}
