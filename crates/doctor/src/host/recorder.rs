//! Writes down what is asked of a host: what a doctor read there is exactly what it needs elsewhere.
//!
//! A recording is sent to others, so it holds what the checks use and not more: of a PCIe function's configuration space the chain of
//! capabilities and the two that are looked into, of `cpuinfo` the first processor's name and features, of mounts the points and types.

use std::cell::RefCell;

use super::recording::{Entry, Recording};
use super::{Host, Library, Processes, Space};
use crate::facts::{Subject, pci};
use crate::nvml::Nvml;
use crate::reading::Reading;

/// A host that remembers what it was asked, and what it answered.
pub struct Recorder<'a> {
    host: &'a dyn Host,
    recording: RefCell<Recording>,
}

impl std::fmt::Debug for Recorder<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder")
            .field("recording", &self.recording)
            .finish_non_exhaustive()
    }
}

/// Fields of `/proc/cpuinfo` that are looked at.
const CPU_FIELDS: &[&str] = &[
    "vendor_id",
    "model name",
    "flags",
    "Features",
    "CPU implementer",
];

impl<'a> Recorder<'a> {
    /// Records `host`; `about` says which machine it is, for whoever reads the file, and `subject` what is asked about.
    pub fn new(host: &'a dyn Host, about: &str, subject: &Subject) -> Self {
        Self {
            host,
            recording: RefCell::new(Recording::new(about, subject)),
        }
    }

    /// What was recorded.
    pub fn finish(self) -> Recording {
        self.recording.into_inner()
    }

    fn keep(&self, path: &str, entry: Entry) {
        self.recording.borrow_mut().set(path, entry);
    }
}

impl Host for Recorder<'_> {
    fn read(&self, path: &str) -> Reading<Vec<u8>> {
        let bytes = self.host.read(path).map(|bytes| essence(path, bytes));
        self.keep(path, Entry::of_bytes(&bytes));
        bytes
    }

    fn link(&self, path: &str) -> Reading<String> {
        let link = self.host.link(path);
        self.keep(path, Entry::of_link(&link));
        link
    }

    fn list(&self, path: &str) -> Reading<Vec<String>> {
        let names = self.host.list(path);
        self.keep(path, Entry::of_list(&names));
        names
    }

    fn size(&self, path: &str) -> Reading<u64> {
        let size = self.host.size(path);
        self.keep(path, Entry::of_size(&size));
        size
    }

    fn space(&self, path: &str) -> Reading<Space> {
        let space = self.host.space(path);
        self.recording
            .borrow_mut()
            .spaces
            .insert(path.to_owned(), space.clone());
        space
    }

    fn may_write(&self, path: &str) -> Reading<bool> {
        let may = self.host.may_write(path);
        self.recording
            .borrow_mut()
            .writable
            .insert(path.to_owned(), may.clone());
        may
    }

    fn nvml(&self) -> Reading<Nvml> {
        let nvml = self.host.nvml();
        self.recording.borrow_mut().nvml = Some(nvml.clone());
        nvml
    }

    fn libraries(&self) -> Reading<Vec<Library>> {
        let libraries = self.host.libraries();
        self.recording.borrow_mut().libraries = Some(libraries.clone());
        libraries
    }

    fn processes(&self, named: &[u32]) -> Reading<Processes> {
        let processes = self.host.processes(named);
        self.recording.borrow_mut().processes = Some(processes.clone());
        processes
    }

    fn kernel_log(&self) -> Reading<Vec<String>> {
        let lines = self.host.kernel_log();
        self.recording.borrow_mut().kernel_log = Some(lines.clone());
        lines
    }
}

/// What the checks use of a file's bytes.
fn essence(path: &str, bytes: Vec<u8>) -> Vec<u8> {
    if path.starts_with("/sys/bus/pci/") && path.ends_with("/config") {
        return pci::essence(&bytes);
    }
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<String> = match path {
        "/proc/cpuinfo" => {
            let first = text.lines().take_while(|line| !line.trim().is_empty());
            let kept = first.filter(|line| CPU_FIELDS.iter().any(|field| line.starts_with(field)));
            kept.map(str::to_owned).collect()
        }
        // Mount points and types, not what is mounted from where and how.
        "/proc/self/mountinfo" => text.lines().filter_map(mount).collect(),
        _ => return bytes,
    };
    lines.join("\n").into_bytes()
}

/// `22 1 259:2 / /models … - xfs …` with dots for what is left out.
fn mount(line: &str) -> Option<String> {
    let (before, after) = line.split_once(" - ")?;
    let (point, kind) = (before.split(' ').nth(4)?, after.split(' ').next()?);
    Some(format!(". . . . {point} . - {kind} . ."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_cpuinfo_the_first_processor_is_kept() {
        let text = "processor\t: 0\nvendor_id\t: GenuineIntel\nmicrocode\t: 0x1\nflags\t\t: fpu avx2\n\nprocessor\t: 1\nflags\t: fpu\n";
        let kept = essence("/proc/cpuinfo", text.into());
        assert_eq!(
            String::from_utf8_lossy(&kept),
            "vendor_id\t: GenuineIntel\nflags\t\t: fpu avx2"
        );
        assert_eq!(essence("/proc/meminfo", text.into()), text.as_bytes());
    }
    #[test]
    fn of_mounts_sources_and_options_are_left_out() {
        let text =
            "91 22 0:44 / /models rw shared:4 - nfs4 fileserver:/secret rw,addr=10.0.0.1\nbroken";
        let kept = essence("/proc/self/mountinfo", text.into());
        assert_eq!(
            String::from_utf8_lossy(&kept),
            ". . . . /models . - nfs4 . ."
        );
    }
}
