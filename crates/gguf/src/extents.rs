//! Which bytes of a tensor storage backs, and which are holes of a sparse file.
//!
//! A file with holes has its full length, yet only what was written takes room on disk; the rest
//! reads as zeros. Whoever checks all data of such a model wants to skip the holes: a paper model of
//! 744 billion parameters is half a terabyte of them. Linux tells data from holes by
//! `lseek(SEEK_DATA)` and `lseek(SEEK_HOLE)` (lseek(2)); file systems without holes answer that all
//! is data, and so do we wherever nobody can tell.
//!
//! The file is opened anew for each question rather than kept open: a set may have more parts than a
//! process may have open files ([`crate::limits::MAX_PARTS`]). Device, inode, length and time of
//! the last change say whether it still is the file that was mapped.

use std::{ops::Range, path::Path};

use crate::{byte_order::ByteOrder, model::Gguf, tensor::TensorInfo};

/// What tells one state of one file from all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    #[cfg(target_os = "linux")]
    stamp: [u64; 5],
}

impl Identity {
    #[cfg(target_os = "linux")]
    pub(crate) fn of(meta: &std::fs::Metadata) -> Option<Self> {
        use std::os::unix::fs::MetadataExt;
        let stamp = [
            meta.dev(),
            meta.ino(),
            meta.len(),
            meta.mtime().cast_unsigned(),
            meta.mtime_nsec().cast_unsigned(),
        ];
        Some(Self { stamp })
    }

    /// Holes are not asked for on this system.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn of(_: &std::fs::Metadata) -> Option<Self> {
        None
    }
}

impl Gguf {
    /// The byte ranges of the data of `tensor` that storage backs, in order and apart from each
    /// other, counted from the tensor's first byte. All else is holes and reads as zeros. Nothing
    /// is read from the data.
    ///
    /// One range covers everything where the system or the file cannot tell: in memory, on a file
    /// system without holes, in a big-endian file (whose blocks are turned around as they are
    /// read), and if another file stands under this name by now. A tensor that is all hole has no
    /// range at all, and neither has one without elements.
    ///
    /// # Panics
    /// May panic if `tensor` comes from another model.
    pub fn extents(&self, tensor: &TensorInfo) -> Vec<Range<usize>> {
        let part = &self.parts()[tensor.part];
        let told = self
            .identity(tensor.part)
            .filter(|_| tensor.bytes > 0 && part.byte_order == ByteOrder::Little)
            .and_then(|identity| {
                data_ranges(
                    &part.path,
                    identity,
                    tensor.offset..tensor.offset + tensor.bytes,
                )
            });
        // Lossless: the reader has checked that both ends lie inside the mapped bytes.
        let inside = |at: u64| (at - tensor.offset) as usize;
        match told {
            Some(ranges) => ranges
                .into_iter()
                .map(|range| inside(range.start)..inside(range.end))
                .collect(),
            None if tensor.bytes == 0 => Vec::new(),
            None => std::iter::once(0..tensor.bytes as usize).collect(),
        }
    }
}

/// The parts of `wanted` (bytes of the file) that are data; `None` if that cannot be told.
#[cfg(target_os = "linux")]
fn data_ranges(path: &Path, identity: Identity, wanted: Range<u64>) -> Option<Vec<Range<u64>>> {
    use rustix::{
        fs::{SeekFrom, seek},
        io::Errno,
    };
    let file = std::fs::File::open(path).ok()?;
    if Identity::of(&file.metadata().ok()?) != Some(identity) {
        return None;
    }
    let mut ranges = Vec::new();
    let mut at = wanted.start;
    while at < wanted.end {
        let data = match seek(&file, SeekFrom::Data(at)) {
            Ok(data) if data < wanted.end => data,
            // No data from here on: up to the end of the file, or of what was asked for.
            Ok(_) | Err(Errno::NXIO) => break,
            Err(_) => return None,
        };
        let hole = seek(&file, SeekFrom::Hole(data)).ok()?;
        // A file that changes right now could send us round in circles.
        if data < at || hole <= data {
            return None;
        }
        ranges.push(data..hole.min(wanted.end));
        at = hole;
    }
    Some(ranges)
}

#[cfg(not(target_os = "linux"))]
fn data_ranges(_: &Path, _: Identity, _: Range<u64>) -> Option<Vec<Range<u64>>> {
    None
}
