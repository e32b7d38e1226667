//! Who else has a device open.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::process::Processes;

/// A process that holds a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its number.
    pub pid: u32,
    /// Its user, by number.
    pub uid: Option<u32>,
    /// What it is, in a line.
    pub command: String,
    /// The systemd service that it is a part of.
    pub unit: Option<String>,
}

/// Knows who holds a device. Implemented by [`OpenFiles`], and by whatever can ask a driver.
pub trait Holders {
    /// Processes other than this one that hold the device, as far as they can be seen.
    fn of(&self, device: &str) -> Vec<Holder>;
}

/// Finds holders by their open files: any process with a descriptor of the device's node, which is its path. Those of other users are
/// seen by root only.
#[derive(Debug, Default)]
pub struct OpenFiles(pub Processes);

/// Characters of a command line that are shown.
const COMMAND: usize = 80;

impl Holders for OpenFiles {
    fn of(&self, device: &str) -> Vec<Holder> {
        let device = Path::new(device);
        let Ok(node) = fs::metadata(device) else {
            return Vec::new();
        };
        let node = (node.dev(), node.ino(), node.rdev());
        let folders = fs::read_dir(self.0.folder())
            .into_iter()
            .flatten()
            .flatten();
        let pids = folders.filter_map(|folder| folder.file_name().to_str()?.parse().ok());
        let mut found: Vec<Holder> = pids
            .filter(|pid| *pid != std::process::id() && self.has_open(*pid, node))
            .map(|pid| self.holder(pid))
            .collect();
        found.sort_by_key(|holder| holder.pid);
        found
    }
}

impl OpenFiles {
    fn has_open(&self, pid: u32, node: (u64, u64, u64)) -> bool {
        let files = fs::read_dir(self.0.path(pid).join("fd"));
        let mut files = files.into_iter().flatten().flatten();
        files.any(|file| {
            // Through the link: what the descriptor is open on, whatever its path is now.
            let open = fs::metadata(file.path());
            open.is_ok_and(|open| (open.dev(), open.ino(), open.rdev()) == node)
        })
    }

    fn holder(&self, pid: u32) -> Holder {
        let command = self.0.command(pid);
        let command = match command.char_indices().nth(COMMAND) {
            Some((end, _)) => format!("{}…", &command[..end]),
            None => command,
        };
        Holder {
            pid,
            uid: self.0.uid(pid),
            command,
            unit: self.0.unit(pid),
        }
    }
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "process {} ({})", self.pid, self.command)?;
        if let Some(uid) = self.uid {
            write!(f, " of user {uid}")?;
        }
        match &self.unit {
            Some(unit) => write!(f, " in {unit}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_with_the_device_open_is_named_and_none_when_it_has_gone() {
        let device = tempfile::NamedTempFile::new().unwrap();
        let path = device.path().to_str().unwrap();
        let holders = OpenFiles::default();
        // We have it open ourselves, and are none of the others.
        assert_eq!(holders.of(path), []);
        let mut child = Command::new("sleep")
            .arg("600")
            .stdin(Stdio::from(device.reopen().unwrap()))
            .spawn()
            .unwrap();
        let found = holders.of(path);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].pid, child.id());
        assert!(found[0].to_string().contains("(sleep 600)"), "{}", found[0]);
        assert_eq!(holders.of(path), []);
        assert_eq!(holders.of("/nonexistent"), []);
    }
}
