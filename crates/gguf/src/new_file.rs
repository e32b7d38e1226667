//! Files that appear whole or not at all: written under a temporary name in the same folder,
//! synced, then renamed.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufWriter, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use crate::error::GgufError;

/// Buffer between the writer and the file, in bytes. Tensors that are larger pass by it.
const BUFFER_BYTES: usize = 1 << 20;
/// Temporary names to try: other writers, or what a killed one left behind, may hold some.
const MAX_TEMPORARY_NAMES: u32 = 100;

/// A file that is being written. Dropped before [`publish`], it disappears.
pub(crate) struct NewFile {
    /// Where it will stand.
    target: PathBuf,
    temporary: PathBuf,
    out: BufWriter<File>,
}

impl NewFile {
    pub(crate) fn create(target: &Path) -> Result<Self, GgufError> {
        let dir = folder_of(target);
        let name = target.file_name().unwrap_or_default().to_string_lossy();
        let pid = std::process::id();
        let mut taken = io::Error::from(io::ErrorKind::AlreadyExists);
        for n in 0..MAX_TEMPORARY_NAMES {
            let temporary = dir.join(format!(".{name}.{pid}-{n}.partial"));
            match OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(&temporary)
            {
                Ok(file) => {
                    let out = BufWriter::with_capacity(BUFFER_BYTES, file);
                    return Ok(Self {
                        target: target.to_owned(),
                        temporary,
                        out,
                    });
                }
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => taken = e,
                Err(e) => return Err(GgufError::io(dir, "create a file in the folder", e)),
            }
        }
        Err(GgufError::io(dir, "create a file in the folder", taken))
    }

    /// Hands what is buffered to the file and the file to the disk.
    pub(crate) fn sync(&mut self) -> Result<(), GgufError> {
        let synced = self.end().and_then(|()| self.out.get_ref().sync_all());
        synced.map_err(|e| GgufError::io(&self.target, "write the file", e))
    }
}

impl NewFile {
    /// Lets the file end where the writer stands: a hole at its end has no byte that would say so.
    fn end(&mut self) -> io::Result<()> {
        let len = self.out.stream_position()?;
        self.out.flush()?;
        self.out.get_ref().set_len(len)
    }
}

/// Where a file is written to.
pub(crate) trait Output: Write {
    /// Leaves `bytes` bytes out, which will read as zeros: a hole, where there can be one.
    fn skip(&mut self, bytes: u64) -> io::Result<()>;
}

impl Output for NewFile {
    fn skip(&mut self, bytes: u64) -> io::Result<()> {
        let too_long = |_| io::Error::from(io::ErrorKind::FileTooLarge);
        let bytes = i64::try_from(bytes).map_err(too_long)?;
        self.out.seek(SeekFrom::Current(bytes)).map(drop)
    }
}

impl Output for Vec<u8> {
    fn skip(&mut self, bytes: u64) -> io::Result<()> {
        io::copy(&mut io::Read::take(io::repeat(0), bytes), self).map(drop)
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        // After `publish` there is nothing under this name. Nobody is left to tell of a failure
        // here.
        let _ = fs::remove_file(&self.temporary);
    }
}

/// Gives synced files their names. If one cannot have its name, those that got theirs are removed
/// again.
pub(crate) fn publish(files: &[NewFile]) -> Result<(), GgufError> {
    for (done, file) in files.iter().enumerate() {
        if let Err(e) = fs::rename(&file.temporary, &file.target) {
            files[..done].iter().for_each(|published| {
                let _ = fs::remove_file(&published.target);
            });
            return Err(GgufError::io(
                &file.target,
                "rename the finished file to this name",
                e,
            ));
        }
    }
    // The names survive a power cut only once the folder is on disk too. Not every system can sync
    // a folder.
    if let Some(file) = files.first()
        && let Ok(dir) = File::open(folder_of(&file.target))
    {
        let _ = dir.sync_all();
    }
    Ok(())
}

fn folder_of(target: &Path) -> &Path {
    match target.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    }
}
