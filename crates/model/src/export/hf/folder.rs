//! A folder that appears whole or not at all: filled under a temporary name beside it, synced, then renamed.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::export::ExportError;
use crate::export::recode::Failure;

/// Buffer between the writer and a file, in bytes.
const BUFFER_BYTES: usize = 1 << 20;
/// Temporary names to try: what a killed process left behind may hold some.
const MAX_TEMPORARY_NAMES: u32 = 100;

/// A folder that is being filled. Dropped before [`Self::publish`], it disappears.
#[derive(Debug)]
pub(super) struct NewFolder {
    target: PathBuf,
    temporary: PathBuf,
}

/// See [`super::check_target`].
pub(super) fn check_target(target: &Path) -> Result<(), ExportError> {
    match fs::read_dir(target) {
        Ok(mut entries) => match entries.next() {
            None => Ok(()),
            Some(_) => Err(ExportError::Occupied {
                path: target.to_owned(),
            }),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => Err(ExportError::Occupied {
            path: target.to_owned(),
        }),
        Err(error) => Err(failed(target, "list the folder", error)),
    }
}

impl NewFolder {
    pub(super) fn create(target: &Path) -> Result<Self, ExportError> {
        check_target(target)?;
        let parent = parent_of(target);
        let name = target.file_name().unwrap_or_default().to_string_lossy();
        let mut taken = io::Error::from(io::ErrorKind::AlreadyExists);
        for n in 0..MAX_TEMPORARY_NAMES {
            let temporary = parent.join(format!(".{name}.{}-{n}.partial", std::process::id()));
            match fs::create_dir(&temporary) {
                Ok(()) => {
                    return Ok(Self {
                        target: target.to_owned(),
                        temporary,
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => taken = error,
                Err(error) => return Err(failed(parent, "create a folder in", error)),
            }
        }
        Err(failed(parent, "create a folder in", taken))
    }

    /// Writes one file and hands it to the disk.
    pub(super) fn file(
        &self,
        name: &str,
        fill: impl FnOnce(&mut dyn Write) -> Result<(), Failure>,
    ) -> Result<(), ExportError> {
        let failed = |error| failed(&self.target.join(name), "write the file", error);
        let file = File::create_new(self.temporary.join(name)).map_err(failed)?;
        let mut out = BufWriter::with_capacity(BUFFER_BYTES, file);
        fill(&mut out).map_err(|failure| match failure {
            Failure::Io(error) => failed(error),
            Failure::Export(error) => error,
        })?;
        out.flush().map_err(failed)?;
        out.get_ref().sync_all().map_err(failed)
    }

    /// Gives the folder its name. An empty folder that has it makes way.
    pub(super) fn publish(self) -> Result<(), ExportError> {
        let sync = |dir: &Path| {
            // The names survive a power cut only once the folder is on disk too; not every system can sync one.
            if let Ok(dir) = File::open(dir) {
                let _ = dir.sync_all();
            }
        };
        sync(&self.temporary);
        // Not every system renames onto an empty folder. This refuses one that has been filled meanwhile.
        match fs::remove_dir(&self.target) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed(&self.target, "replace the empty folder", error));
            }
            _ => {}
        }
        fs::rename(&self.temporary, &self.target)
            .map_err(|error| failed(&self.target, "rename the finished folder to", error))?;
        sync(parent_of(&self.target));
        Ok(())
    }
}

impl Drop for NewFolder {
    fn drop(&mut self) {
        // After `publish` there is nothing under this name. Nobody is left to tell of a failure here.
        let _ = fs::remove_dir_all(&self.temporary);
    }
}

fn failed(path: &Path, action: &'static str, source: io::Error) -> ExportError {
    ExportError::Write {
        path: path.to_owned(),
        action,
        source,
    }
}

fn parent_of(target: &Path) -> &Path {
    match target.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    }
}
