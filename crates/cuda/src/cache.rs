//! Compiled kernels on disk, so that only the first start on a machine compiles.
//!
//! A file is named by what it was made from: the expanded source with its defines, the options, the architecture and the
//! compiler's version. It is written under another name, synced and renamed, so that a reader sees all of it or nothing; two
//! processes that compile the same unit write the same bytes, and either may win. Cubins that were made before (`prebuilt`) are
//! looked for first and by the same name without the compiler's version: with them no compiler is needed at all.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use crate::compile::{self, OPTIONS};
use crate::error::CudaError;
use crate::kernels::{Unit, source};

/// Where cubins come from.
#[derive(Debug, Clone, Default)]
pub struct Cache {
    /// Folder of the cache; `None`: every start compiles.
    pub folder: Option<PathBuf>,
    /// Folder of cubins that came with the program.
    pub prebuilt: Option<PathBuf>,
}

/// Hex digits of a hash in a name: 128 bits.
const DIGITS: usize = 32;

/// The name of a unit's cubin for an architecture, without the compiler's version.
///
/// # Errors
/// If the unit's source is incomplete.
pub fn name(unit: &Unit, arch: &str) -> Result<String, CudaError> {
    let mut hash = blake3::Hasher::new();
    for part in OPTIONS.iter().copied().chain([arch]) {
        hash.update(part.as_bytes());
        hash.update(&[0]);
    }
    hash.update(source(unit)?.as_bytes());
    let hash = hash.finalize().to_hex();
    Ok(format!("{}-{arch}-{}.cubin", unit.file, &hash[..DIGITS]))
}

impl Cache {
    /// The machine code of a unit that came with the program, if it did.
    ///
    /// # Errors
    /// If the unit's source is incomplete.
    pub fn prebuilt(&self, unit: &Unit, arch: &str) -> Result<Option<Vec<u8>>, CudaError> {
        let Some(folder) = &self.prebuilt else {
            return Ok(None);
        };
        Ok(fs::read(folder.join(name(unit, arch)?)).ok())
    }

    /// The machine code of a unit as this machine's compiler makes it: cached, or compiled now.
    ///
    /// # Errors
    /// If it has to be compiled and cannot be. A cache that cannot be written is no error: it is logged, and the next start
    /// compiles again.
    pub fn compiled(&self, unit: &Unit, arch: &str) -> Result<Vec<u8>, CudaError> {
        let name = name(unit, arch)?;
        let Some(folder) = &self.folder else {
            return Ok(compile::compile(unit, arch)?.cubin);
        };
        let (major, minor) = compile::version()?;
        let folder = folder.join(format!("nvrtc-{major}.{minor}"));
        let path = folder.join(&name);
        if let Ok(cubin) = fs::read(&path) {
            return Ok(cubin);
        }
        let cubin = compile::compile(unit, arch)?.cubin;
        if let Err(error) = store(&folder, &path, &cubin) {
            tracing::warn!(path = %path.display(), %error, "the compiled kernel could not be cached");
        }
        Ok(cubin)
    }
}

/// Writes a file so that it is there whole or not at all.
fn store(folder: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let own = format!(
        ".{}-{:x}",
        std::process::id(),
        std::ptr::from_ref(bytes).addr()
    );
    let temporary = path.with_extension(own);
    let written = File::create(&temporary)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // What is left of it is of no use; if it cannot be removed either, the first error says why.
        let _ = fs::remove_file(&temporary);
    }
    written
}
