//! The bytes of one file: mapped, owned, or built into the program. The only module with `unsafe`
//! code.
//!
//! A mapping is read-only and private to us, its length is the file's length at the time of
//! opening. If another process *truncates* the file while it is mapped, the next read beyond its
//! new end raises SIGBUS and ends the process: no reader of mapped files can prevent that. Replace
//! model files by renaming a new one over them (as [`crate::Writer`] does), never by writing into
//! them.
#![allow(unsafe_code, reason = "mapping a file")]

use std::{fs::File, ops::Deref, path::Path};

use memmap2::{Mmap, MmapOptions};

use crate::{error::GgufError, extents::Identity};

/// Bytes of a file, wherever they live.
pub(crate) enum Bytes {
    /// And what file that is, where files can be told apart.
    Mapped(Mmap, Option<Identity>),
    Owned(Vec<u8>),
    Static(&'static [u8]),
}

impl Bytes {
    /// Maps the regular file at `path`.
    pub(crate) fn map(path: &Path) -> Result<Self, GgufError> {
        let file = File::open(path).map_err(|e| GgufError::io(path, "open the file", e))?;
        let meta = file
            .metadata()
            .map_err(|e| GgufError::io(path, "ask for the file's size", e))?;
        if !meta.is_file() {
            return Err(GgufError::NotAFile {
                path: path.to_owned(),
            });
        }
        // An empty mapping is an error on some systems.
        if meta.len() == 0 {
            return Ok(Self::Owned(Vec::new()));
        }
        // SAFETY: the mapping is read-only and covers exactly the length that the file has now.
        // That nobody truncates or rewrites the file while it is mapped cannot be established here;
        // the module's documentation says so.
        let mapped = unsafe { MmapOptions::new().map(&file) };
        let mapped = mapped.map_err(|e| GgufError::io(path, "map the file", e))?;
        if mapped.len() as u64 != meta.len() {
            let changed = std::io::Error::other("its size changes while it is being opened");
            return Err(GgufError::io(path, "map the file", changed));
        }
        Ok(Self::Mapped(mapped, Identity::of(&meta)))
    }

    /// The file that these bytes are mapped from.
    pub(crate) fn identity(&self) -> Option<Identity> {
        match self {
            Self::Mapped(_, identity) => *identity,
            Self::Owned(_) | Self::Static(_) => None,
        }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map, _) => map,
            Self::Owned(bytes) => bytes,
            Self::Static(bytes) => bytes,
        }
    }
}
