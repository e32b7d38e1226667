//! All that the doctor reads of a machine, behind one trait: the machine itself ([`Live`]), or a file about one ([`Recording`]).
//!
//! The methods are as raw as they can be, so that what is recorded is what the machine said and parsing is tested on it. Two are not:
//! NVML answers through functions and not files, and of the processes only those are told that hold a GPU.

mod libraries;
mod live;
pub(crate) mod processes;
mod recorder;
mod recording;

use serde::{Deserialize, Serialize};

use crate::nvml::Nvml;
use crate::reading::{Reading, Unread};

pub use libraries::Search;
pub use live::Live;
pub use recorder::Recorder;
pub use recording::{Recording, RecordingError};

/// Longest file that is read: the configuration space of a PCIe function has 4096 bytes, the rest is short text.
pub(crate) const MAX_FILE: usize = 64 << 10;

/// A machine.
pub trait Host {
    /// A file's bytes, at most the first 64 KiB.
    fn read(&self, path: &str) -> Reading<Vec<u8>>;
    /// What a symbolic link says, unresolved.
    fn link(&self, path: &str) -> Reading<String>;
    /// Names in a folder, sorted.
    fn list(&self, path: &str) -> Reading<Vec<String>>;
    /// Bytes of a file that is not read.
    fn size(&self, path: &str) -> Reading<u64>;
    /// Room of the file system that holds a path.
    fn space(&self, path: &str) -> Reading<Space>;
    /// Whether this user may make files in a folder.
    fn may_write(&self, path: &str) -> Reading<bool>;
    /// All that NVML says.
    fn nvml(&self) -> Reading<Nvml>;
    /// Libraries that were looked for.
    fn libraries(&self) -> Reading<Vec<Library>>;
    /// Processes that have a GPU's device file open, and those with these numbers.
    fn processes(&self, named: &[u32]) -> Reading<Processes>;
    /// Lines of the kernel's log in which the driver reports an Xid.
    fn kernel_log(&self) -> Reading<Vec<String>>;
}

/// A file as text, without blanks at its ends.
pub(crate) fn text(host: &dyn Host, path: &str) -> Reading<String> {
    host.read(path)
        .map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned())
}

/// A file that holds one number, decimal or hexadecimal with `0x`.
pub(crate) fn number<T: TryFrom<i64>>(host: &dyn Host, path: &str) -> Reading<T> {
    text(host, path).and_then(|text| {
        let number = match text.strip_prefix("0x") {
            Some(digits) => i64::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        };
        match number.and_then(|number| T::try_from(number).ok()) {
            Some(number) => Reading::Known(number),
            None => Reading::unclear(format!(
                "{path} holds {:?}, and a number was expected",
                head(&text, 40)
            )),
        }
    })
}

/// The first characters of a text that may be anything.
pub(crate) fn head(text: &str, characters: usize) -> String {
    text.chars().take(characters).collect()
}

/// Room of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Space {
    /// All of it, in bytes.
    pub total: u64,
    /// What this user can still fill.
    pub free: u64,
}

/// A library that was looked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Library {
    /// What it is for: `driver`, `nvml`, `nvrtc`, `nccl`.
    pub part: String,
    /// Names that were tried, in order.
    pub tried: Vec<String>,
    /// The file that was opened.
    pub path: Reading<String>,
    /// What it says of itself: `13.0`.
    pub version: Reading<String>,
}

/// Processes that hold GPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Processes {
    /// Unit of the times in `stat`.
    pub ticks_per_second: u64,
    /// Those that were found.
    pub found: Vec<ProcessFiles>,
    /// How many there are whose open files this user may not see.
    pub unreadable: u32,
}

/// What `/proc/PID` says of one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessFiles {
    /// Its number.
    pub pid: u32,
    /// `stat`, one line.
    pub stat: String,
    /// `cmdline`, with blanks for zeros; shortened, and without what looks like a secret.
    pub command: String,
    /// `cgroup`: a line for each hierarchy.
    pub cgroup: String,
    /// Its user, by number.
    pub uid: Reading<u32>,
    /// Its user, by name.
    pub user: Reading<String>,
    /// The device files of GPUs that it has open, each once.
    pub devices: Reading<Vec<String>>,
}

/// What a path that nobody asked for while recording answers.
pub(crate) fn not_recorded<T>() -> Reading<T> {
    Unread::Other("not in the recording".into()).into()
}
