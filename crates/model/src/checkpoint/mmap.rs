//! A file as bytes. The one place of this crate with `unsafe`: mapping a file is.

use std::fs::File;
use std::path::Path;

use memmap2::Mmap;

use crate::error::ModelError;

/// Maps a whole file, read-only.
///
/// Truncating the file while it is mapped ends the process with SIGBUS; rewriting it changes the bytes. Checkpoints are
/// not written in place, so this is accepted, as everywhere in the field.
#[expect(unsafe_code, reason = "mapping a file is unsafe by nature")]
pub(super) fn map(path: &Path) -> Result<Mmap, ModelError> {
    let io = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => ModelError::Missing {
            path: path.to_owned(),
            what: "no such file, though the checkpoint needs it".to_owned(),
        },
        _ => ModelError::Io {
            path: path.to_owned(),
            error,
        },
    };
    let file = File::open(path).map_err(io)?;
    if !file.metadata().map_err(io)?.is_file() {
        let reason = "not a regular file; expected a safetensors file".to_owned();
        return Err(ModelError::Malformed {
            path: path.to_owned(),
            reason,
        });
    }
    // SAFETY: the mapping is read-only and private to us; that nobody truncates or rewrites the file meanwhile cannot
    // be established here, and is documented above.
    unsafe { Mmap::map(&file) }.map_err(io)
}
