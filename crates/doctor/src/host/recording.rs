//! A recorded machine: one JSON object, readable and short enough to write by hand.
//!
//! Files are grouped by folder. A file is its text; `{"link": …}` is a link, `{"list": […]}` a folder, `{"size": n}` a file that was only
//! measured, `{"bytes": n, "at": {"100": "0d00…"}}` binary data (hexadecimal runs at hexadecimal offsets, zeros between), and
//! `{"unread": "needs root"}` what could not be read. A path that is not in the file at all is unknown, not absent, unless the folder that
//! it lies in was listed without it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{Host, Library, MAX_FILE, Processes, Space, not_recorded};
use crate::facts::Subject;
use crate::nvml::Nvml;
use crate::reading::{Reading, Unread};

/// The form that this build writes and reads.
const FORM: u32 = 1;
/// Longest recording that is read.
const MAX_BYTES: usize = 8 << 20;

/// A recorded machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recording {
    glim_doctor: u32,
    /// Which machine, and how the file came to be.
    pub about: String,
    /// What was asked about.
    #[serde(default)]
    pub subject: Subject,
    #[serde(default)]
    files: BTreeMap<String, BTreeMap<String, Entry>>,
    #[serde(default)]
    pub(super) spaces: BTreeMap<String, Reading<Space>>,
    #[serde(default)]
    pub(super) writable: BTreeMap<String, Reading<bool>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) nvml: Option<Reading<Nvml>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) libraries: Option<Reading<Vec<Library>>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) processes: Option<Reading<Processes>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) kernel_log: Option<Reading<Vec<String>>>,
}

/// Why a recording cannot be used.
#[derive(Debug, Error)]
pub enum RecordingError {
    /// Not JSON, or not of this form.
    #[error("the recording is not in the form that glim doctor --record writes: {0}")]
    Json(#[from] serde_json::Error),
    /// Of another form.
    #[error(
        "the recording is of form {found}, and this build reads form {FORM}: record it again with this build"
    )]
    Form {
        /// Its form.
        found: u32,
    },
    /// Too long.
    #[error(
        "the recording has {found} bytes, and at most {MAX_BYTES} are read: this is something else"
    )]
    Long {
        /// Its length.
        found: usize,
    },
    /// Binary data of a file that is none.
    #[error("the recording's {path} cannot be unpacked: {why}")]
    Bytes {
        /// The file.
        path: String,
        /// What is wrong.
        why: &'static str,
    },
}

/// What is recorded of a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Entry {
    Text(String),
    Link {
        link: String,
    },
    List {
        list: Vec<String>,
    },
    Size {
        size: u64,
    },
    Bytes {
        bytes: usize,
        at: BTreeMap<String, String>,
    },
    Unread {
        unread: Unread,
    },
}

impl Entry {
    fn of<T>(reading: &Reading<T>, known: impl FnOnce(&T) -> Self) -> Self {
        match reading.as_result() {
            Ok(value) => known(value),
            Err(why) => Self::Unread {
                unread: why.clone(),
            },
        }
    }

    pub(super) fn of_bytes(reading: &Reading<Vec<u8>>) -> Self {
        Self::of(reading, |bytes| match std::str::from_utf8(bytes) {
            Ok(text) if !text.contains('\0') => Self::Text(text.trim_end().to_owned()),
            _ => Self::packed(bytes),
        })
    }

    pub(super) fn of_link(reading: &Reading<String>) -> Self {
        Self::of(reading, |link| Self::Link { link: link.clone() })
    }

    pub(super) fn of_list(reading: &Reading<Vec<String>>) -> Self {
        Self::of(reading, |list| Self::List { list: list.clone() })
    }

    pub(super) fn of_size(reading: &Reading<u64>) -> Self {
        Self::of(reading, |&size| Self::Size { size })
    }

    /// Runs of words that are not zero.
    fn packed(bytes: &[u8]) -> Self {
        let mut at: BTreeMap<String, String> = BTreeMap::new();
        let mut open: Option<String> = None;
        for (index, word) in bytes.chunks(4).enumerate() {
            if word.iter().all(|&byte| byte == 0) {
                open = None;
                continue;
            }
            let start = open
                .get_or_insert_with(|| format!("{:03x}", 4 * index))
                .clone();
            let run = at.entry(start).or_default();
            for byte in word {
                run.push_str(&format!("{byte:02x}"));
            }
        }
        Self::Bytes {
            bytes: bytes.len(),
            at,
        }
    }

    fn unpacked(bytes: usize, at: &BTreeMap<String, String>) -> Result<Vec<u8>, &'static str> {
        if bytes > MAX_FILE {
            return Err("it is longer than any file that is read");
        }
        let mut found = vec![0; bytes];
        for (offset, digits) in at {
            let offset =
                usize::from_str_radix(offset, 16).map_err(|_| "an offset is not hexadecimal")?;
            if digits.len() % 2 != 0 || !digits.is_ascii() {
                return Err("a run is not pairs of hexadecimal digits");
            }
            for index in 0..digits.len() / 2 {
                let byte = u8::from_str_radix(&digits[2 * index..2 * index + 2], 16);
                let place = offset
                    .checked_add(index)
                    .and_then(|place| found.get_mut(place));
                *place.ok_or("a run ends behind the file's end")? =
                    byte.map_err(|_| "a run is not pairs of hexadecimal digits")?;
            }
        }
        Ok(found)
    }
}

impl Recording {
    /// An empty one.
    pub(super) fn new(about: &str, subject: &Subject) -> Self {
        Self {
            glim_doctor: FORM,
            about: about.to_owned(),
            subject: subject.clone(),
            files: BTreeMap::new(),
            spaces: BTreeMap::new(),
            writable: BTreeMap::new(),
            nvml: None,
            libraries: None,
            processes: None,
            kernel_log: None,
        }
    }

    /// Reads a recording.
    ///
    /// # Errors
    /// If it is none, or none that this build understands.
    pub fn parse(text: &str) -> Result<Self, RecordingError> {
        if text.len() > MAX_BYTES {
            return Err(RecordingError::Long { found: text.len() });
        }
        #[derive(Deserialize)]
        struct Form {
            glim_doctor: u32,
        }
        let Form { glim_doctor: found } = serde_json::from_str(text)?;
        if found != FORM {
            return Err(RecordingError::Form { found });
        }
        let recording: Self = serde_json::from_str(text)?;
        for (folder, files) in &recording.files {
            for (name, entry) in files {
                if let Entry::Bytes { bytes, at } = entry {
                    Entry::unpacked(*bytes, at).map_err(|why| RecordingError::Bytes {
                        path: format!("{folder}/{name}"),
                        why,
                    })?;
                }
            }
        }
        Ok(recording)
    }

    /// The recording as it is written to a file: a line for each file.
    ///
    /// # Errors
    /// None that can happen: all keys are text.
    pub fn to_text(&self) -> Result<String, RecordingError> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    pub(super) fn set(&mut self, path: &str, entry: Entry) {
        let (folder, name) = split(path);
        self.files
            .entry(folder.to_owned())
            .or_default()
            .insert(name.to_owned(), entry);
    }

    fn entry<T>(&self, path: &str, known: impl FnOnce(&Entry) -> Option<T>) -> Reading<T> {
        let (folder, name) = split(path);
        match self.files.get(folder).and_then(|files| files.get(name)) {
            Some(Entry::Unread { unread }) => unread.clone().into(),
            Some(entry) => known(entry).map_or_else(not_recorded, Reading::Known),
            None if self.is_listed_without(folder, name) => Unread::Absent.into(),
            None => not_recorded(),
        }
    }

    /// Whether the folder, or one that it would have to lie in, was listed and the name was not there.
    fn is_listed_without(&self, folder: &str, name: &str) -> bool {
        let (above, own) = split(folder);
        let of_folder = self.files.get(above).and_then(|files| files.get(own));
        match of_folder {
            Some(Entry::List { list }) => !list.iter().any(|listed| listed == name),
            Some(Entry::Unread {
                unread: Unread::Absent,
            }) => true,
            _ if folder.is_empty() => false,
            _ => self.is_listed_without(above, own),
        }
    }
}

/// Folder and name; the root's own folder is empty.
fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

fn of<T: Clone>(recorded: Option<&Reading<T>>) -> Reading<T> {
    recorded.cloned().unwrap_or_else(not_recorded)
}

impl Host for Recording {
    fn read(&self, path: &str) -> Reading<Vec<u8>> {
        self.entry(path, |entry| match entry {
            Entry::Text(text) => Some(text.clone().into_bytes()),
            Entry::Bytes { bytes, at } => Entry::unpacked(*bytes, at).ok(),
            _ => None,
        })
    }

    fn link(&self, path: &str) -> Reading<String> {
        self.entry(path, |entry| match entry {
            Entry::Link { link } => Some(link.clone()),
            _ => None,
        })
    }

    fn list(&self, path: &str) -> Reading<Vec<String>> {
        self.entry(path, |entry| match entry {
            Entry::List { list } => Some(list.clone()),
            _ => None,
        })
    }

    fn size(&self, path: &str) -> Reading<u64> {
        self.entry(path, |entry| match entry {
            Entry::Size { size } => Some(*size),
            _ => None,
        })
    }

    fn space(&self, path: &str) -> Reading<Space> {
        of(self.spaces.get(path))
    }

    fn may_write(&self, path: &str) -> Reading<bool> {
        of(self.writable.get(path))
    }

    fn nvml(&self) -> Reading<Nvml> {
        of(self.nvml.as_ref())
    }

    fn libraries(&self) -> Reading<Vec<Library>> {
        of(self.libraries.as_ref())
    }

    fn processes(&self, _named: &[u32]) -> Reading<Processes> {
        of(self.processes.as_ref())
    }

    fn kernel_log(&self) -> Reading<Vec<String>> {
        of(self.kernel_log.as_ref())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn binary_data_survives_packing() {
        let mut bytes = vec![0; 4096];
        bytes[..4].copy_from_slice(&[0xde, 0x10, 0x35, 0x23]);
        bytes[0x100..0x109].copy_from_slice(&[1, 0, 0, 0, 2, 3, 0, 0, 4]);
        bytes[4095] = 9;
        let packed = Entry::of_bytes(&Reading::Known(bytes.clone()));
        let Entry::Bytes { bytes: length, at } = &packed else {
            panic!("{packed:?}");
        };
        assert_eq!(at.keys().collect::<Vec<_>>(), ["000", "100", "ffc"]);
        assert_eq!(Entry::unpacked(*length, at).unwrap(), bytes);
    }

    #[test]
    fn what_was_not_asked_is_unknown_and_what_was_not_listed_is_absent() {
        let text = r#"{"glim_doctor": 1, "about": "", "files": {
            "/sys/class": {"iommu": {"list": ["dmar0"]}, "none": {"unread": "absent"}},
            "/a": {"b": "text", "config": {"unread": "needs root"}}}}"#;
        let host = Recording::parse(text).unwrap();
        assert_eq!(host.read("/a/b").known().unwrap(), b"text");
        assert_eq!(host.read("/a/config").why(), Some(&Unread::NeedsRoot));
        assert_eq!(host.list("/sys/class/iommu").known().unwrap(), &["dmar0"]);
        assert!(host.read("/sys/class/iommu/dmar1/x").is_absent());
        assert!(host.read("/sys/class/none/x").is_absent());
        for unknown in [
            host.read("/a/c"),
            host.read("/sys/class/iommu/dmar0/x"),
            host.read("/"),
            host.read(""),
        ] {
            assert_eq!(unknown, not_recorded());
        }
        assert_eq!(host.list("/a/b"), not_recorded());
        assert_eq!(host.nvml(), not_recorded());
    }

    #[test]
    fn a_hostile_recording_is_refused_in_a_sentence() {
        let file = |entry: &str| {
            format!(
                r#"{{"glim_doctor": 1, "about": "", "files": {{"/x": {{"config": {entry}}}}}}}"#
            )
        };
        for (text, word) in [
            ("", "not in the form".to_owned()),
            ("{}", "missing field".to_owned()),
            (r#"{"glim_doctor": 2}"#, "form 2".to_owned()),
            (
                r#"{"glim_doctor": 1, "about": "", "more": 1}"#,
                "unknown field".to_owned(),
            ),
            (
                &file(r#"{"bytes": 4, "at": {"4": "00"}}"#),
                "behind the file's end".to_owned(),
            ),
            (
                &file(r#"{"bytes": 4, "at": {"ffffffffffffffff": "0000"}}"#),
                "behind the file's end".to_owned(),
            ),
            (
                &file(r#"{"bytes": 99999999999, "at": {}}"#),
                "longer than any file".to_owned(),
            ),
            (
                &file(r#"{"bytes": 4, "at": {"x": "00"}}"#),
                "not hexadecimal".to_owned(),
            ),
            (
                &file(r#"{"bytes": 4, "at": {"0": "0"}}"#),
                "pairs".to_owned(),
            ),
            (&file(r#"{"bytes": 4, "at": {"0": "+1"}}"#), "".to_owned()),
            (
                &file(r#"{"bytes": 4, "at": {"0": "é"}}"#),
                "pairs".to_owned(),
            ),
            (&" ".repeat(MAX_BYTES + 1), "something else".to_owned()),
        ] {
            let result = Recording::parse(text);
            // `u8::from_str_radix` takes a sign: `+1` is a byte of one digit, which harms nobody.
            if word.is_empty() {
                assert!(result.is_ok());
                continue;
            }
            let message = result.unwrap_err().to_string();
            assert!(message.contains(&word), "{message}");
        }
    }
}
