//! The machine that this process runs on.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, OFlags, access, statvfs};

use super::{Host, Library, MAX_FILE, Processes, Search, Space, libraries, processes};
use crate::nvml::{self, Nvml};
use crate::process::ProcFs;
use crate::reading::{Reading, Unread};

/// The machine itself.
#[derive(Debug, Clone, Default)]
pub struct Live {
    search: Search,
}

/// Longest record of the kernel's log (`PRINTK_MESSAGE_MAX` of `kernel/printk`, with room).
const LOG_RECORD: usize = 8 << 10;
/// Most records that are gone through, and most that are kept: a GPU that fails repeats itself.
const LOG_RECORDS: usize = 1 << 20;
const LOG_KEPT: usize = 64;

impl Live {
    /// The machine, with libraries looked for as given.
    pub fn new(search: Search) -> Self {
        Self { search }
    }
}

impl Host for Live {
    fn read(&self, path: &str) -> Reading<Vec<u8>> {
        let read = || {
            let mut bytes = Vec::new();
            File::open(path)?
                .take(MAX_FILE as u64)
                .read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        read().into()
    }

    fn link(&self, path: &str) -> Reading<String> {
        fs::read_link(path)
            .map(|target| target.to_string_lossy().into_owned())
            .into()
    }

    fn list(&self, path: &str) -> Reading<Vec<String>> {
        let list = || -> std::io::Result<Vec<String>> {
            let names = fs::read_dir(path)?
                .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
            let mut names = names.collect::<std::io::Result<Vec<_>>>()?;
            names.sort();
            Ok(names)
        };
        list().into()
    }

    fn size(&self, path: &str) -> Reading<u64> {
        fs::metadata(path).map(|metadata| metadata.len()).into()
    }

    fn space(&self, path: &str) -> Reading<Space> {
        let of = |path: &Path| statvfs(path).map_err(std::io::Error::from);
        // A folder that is yet to be made lies where its parent does.
        let mut path = PathBuf::from(path);
        let found = loop {
            match of(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound && path.pop() => {}
                found => break found,
            }
        };
        let bytes = |blocks: u64, size: u64| blocks.saturating_mul(size);
        Reading::from(found).map(|stat| Space {
            total: bytes(stat.f_blocks, stat.f_frsize),
            free: bytes(stat.f_bavail, stat.f_frsize),
        })
    }

    fn may_write(&self, path: &str) -> Reading<bool> {
        match access(path, Access::WRITE_OK | Access::EXEC_OK) {
            Ok(()) => Reading::Known(true),
            Err(rustix::io::Errno::ACCESS | rustix::io::Errno::PERM | rustix::io::Errno::ROFS) => {
                Reading::Known(false)
            }
            Err(error) => Unread::from(&std::io::Error::from(error)).into(),
        }
    }

    fn nvml(&self) -> Reading<Nvml> {
        nvml::snapshot()
    }

    fn libraries(&self) -> Reading<Vec<Library>> {
        Reading::Known(libraries::look(&self.search))
    }

    fn processes(&self, named: &[u32]) -> Reading<Processes> {
        processes::walk(&ProcFs::default(), named, processes::is_of_gpus)
    }

    fn kernel_log(&self) -> Reading<Vec<String>> {
        xids().into()
    }
}

/// Reads `/dev/kmsg` from its oldest record to its newest. Each `read` gives one record; without `O_NONBLOCK` the last would wait for
/// a new one (`Documentation/ABI/testing/dev-kmsg` of Linux).
fn xids() -> std::io::Result<Vec<String>> {
    let mut log = OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits() as i32)
        .open("/dev/kmsg")?;
    let mut record = vec![0; LOG_RECORD];
    let mut kept = Vec::new();
    for _ in 0..LOG_RECORDS {
        let length = match log.read(&mut record) {
            Ok(0) => break,
            Ok(length) => length,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
            // EPIPE: records were overwritten while we read; the next read goes on with the oldest that is left.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => continue,
            Err(error) => return Err(error),
        };
        let text = String::from_utf8_lossy(&record[..length]);
        // `6,1234,5678901,-;NVRM: Xid (PCI:0000:01:00): 79, …`, then lines of properties.
        let message = text
            .split_once(';')
            .map_or(text.as_ref(), |(_, message)| message);
        let line = message.lines().next().unwrap_or_default();
        if line.contains("NVRM: Xid") {
            kept.push(super::head(line, 240));
            if kept.len() > LOG_KEPT {
                kept.remove(0);
            }
        }
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn files_links_and_folders_are_read_and_what_is_not_there_is_absent() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        fs::write(path("long"), vec![7; MAX_FILE + 5]).unwrap();
        fs::write(path("a"), "0x10de\n").unwrap();
        std::os::unix::fs::symlink("../to/nowhere", path("link")).unwrap();
        let host = Live::default();
        assert_eq!(host.read(&path("long")).known().unwrap().len(), MAX_FILE);
        assert_eq!(host.size(&path("long")).get(), Some(MAX_FILE as u64 + 5));
        assert_eq!(
            super::super::number::<u32>(&host, &path("a")).get(),
            Some(0x10de)
        );
        assert_eq!(host.link(&path("link")).known().unwrap(), "../to/nowhere");
        assert_eq!(
            host.list(folder.path().to_str().unwrap()).known().unwrap(),
            &["a", "link", "long"]
        );
        assert!(host.read(&path("none")).is_absent());
        assert!(host.list(&path("none")).is_absent());
        assert_eq!(
            host.may_write(folder.path().to_str().unwrap()).get(),
            Some(true)
        );
        assert!(host.space(&path("to/be/made")).get().unwrap().total > 0);
    }

    #[test]
    fn a_number_that_is_none_is_unknown_and_says_what_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("n").to_str().unwrap().to_owned();
        for (text, known) in [
            ("12\n", Some(12)),
            ("0xff", Some(255)),
            ("-1", None),
            ("many", None),
            ("", None),
            ("300", None),
        ] {
            fs::write(&path, text).unwrap();
            let number: Reading<u8> = super::super::number(&Live::default(), &path);
            assert_eq!(number.get(), known, "{text}: {number:?}");
        }
    }
}
