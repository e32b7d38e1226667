//! Which processes of this machine hold a GPU: a walk over `/proc`.
//!
//! NVML names those that have memory on a GPU; an open `/dev/nvidia*` also gives away those that have a handle and no context yet, those
//! of other containers that NVML does not name, and those that are dying. Reading another user's `fd` folder needs root or
//! `CAP_SYS_PTRACE`: how many could not be seen is told, so that "nobody" is not claimed where "nobody of mine" was found.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;

use super::{ProcessFiles, Processes, head};
use crate::reading::{Reading, Unread};

/// Longest command that is told.
const MAX_COMMAND: usize = 200;
/// Most open files of one process that are gone through.
const MAX_FILES: usize = 1 << 16;

/// Goes through all processes once.
pub(super) fn walk(named: &[u32]) -> Reading<Processes> {
    let entries = match fs::read_dir("/proc") {
        Ok(entries) => entries,
        Err(error) => return Unread::from(&error).into(),
    };
    let users = users();
    let mut pids: Vec<u32> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    pids.sort_unstable();
    let mut unreadable = 0;
    let mut found = Vec::new();
    for pid in pids {
        let devices = devices(pid);
        unreadable += u32::from(devices.why() == Some(&Unread::NeedsRoot));
        if named.contains(&pid) || devices.known().is_some_and(|devices| !devices.is_empty()) {
            // One that ended in between is no holder any more.
            found.extend(files(pid, devices, &users));
        }
    }
    Reading::Known(Processes {
        ticks_per_second: rustix::param::clock_ticks_per_second(),
        found,
        unreadable,
    })
}

fn devices(pid: u32) -> Reading<Vec<String>> {
    let entries = match fs::read_dir(format!("/proc/{pid}/fd")) {
        Ok(entries) => entries,
        Err(error) => return Unread::from(&error).into(),
    };
    let links = entries.flatten().take(MAX_FILES);
    let targets = links.filter_map(|entry| fs::read_link(entry.path()).ok());
    let targets = targets.map(|target| target.to_string_lossy().into_owned());
    let devices: BTreeSet<String> = targets
        .filter(|target| target.starts_with("/dev/nvidia"))
        .collect();
    Reading::Known(devices.into_iter().collect())
}

fn files(
    pid: u32,
    devices: Reading<Vec<String>>,
    users: &BTreeMap<u32, String>,
) -> Option<ProcessFiles> {
    let read = |name: &str| fs::read(format!("/proc/{pid}/{name}"));
    let text =
        |name: &str| read(name).map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned());
    let uid = fs::metadata(format!("/proc/{pid}")).map(|metadata| metadata.uid());
    Some(ProcessFiles {
        pid,
        stat: text("stat").ok()?,
        command: command(&read("cmdline").unwrap_or_default()),
        cgroup: text("cgroup").unwrap_or_default(),
        user: match &uid {
            Ok(uid) => users
                .get(uid)
                .cloned()
                .map_or(Unread::Absent.into(), Reading::Known),
            Err(error) => Unread::from(error).into(),
        },
        uid: uid.into(),
        devices,
    })
}

/// Names of users by number, from `/etc/passwd`.
fn users() -> BTreeMap<u32, String> {
    let text = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let user = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        Some((fields.nth(1)?.parse().ok()?, name.to_owned()))
    };
    text.lines().filter_map(user).collect()
}

/// A command line for people: what could be a secret is left out, since it is printed, and recordings are sent to others.
fn command(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut shown: Vec<String> = Vec::new();
    let mut is_secret = false;
    for argument in text.split('\0').filter(|argument| !argument.is_empty()) {
        let (name, value) = match argument.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (argument, None),
        };
        let lower = name.to_ascii_lowercase();
        let names_one = ["key", "token", "secret", "password", "passwd"]
            .iter()
            .any(|word| lower.contains(word));
        shown.push(match value {
            _ if is_secret => "…".to_owned(),
            Some(_) if names_one => format!("{name}=…"),
            _ => argument.to_owned(),
        });
        is_secret = !is_secret && names_one && value.is_none() && name.starts_with('-');
    }
    head(&shown.join(" "), MAX_COMMAND)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn secrets_of_a_command_line_are_left_out() {
        for (bytes, shown) in [
            ("python\0-m\0vllm\0serve\0", "python -m vllm serve"),
            (
                "glim\0serve\0--api-key\0hunter2\0--port\08000\0",
                "glim serve --api-key … --port 8000",
            ),
            (
                "x\0--hf-token=abc\0HF_TOKEN=abc\0",
                "x --hf-token=… HF_TOKEN=…",
            ),
            ("x\0--api-key-file\0f\0-v\0", "x --api-key-file … -v"),
            ("", ""),
        ] {
            assert_eq!(command(bytes.as_bytes()), shown);
        }
        assert_eq!(command(&vec![b'a'; 10 * MAX_COMMAND]).len(), MAX_COMMAND);
    }

    #[test]
    fn a_process_that_is_named_is_told_even_without_a_device() {
        let own = std::process::id();
        let processes = walk(&[own]);
        let processes = processes.known().unwrap();
        let own = processes
            .found
            .iter()
            .find(|process| process.pid == own)
            .unwrap();
        assert!(own.stat.starts_with(&own.pid.to_string()), "{own:?}");
        assert!(
            own.devices.known().is_some() && own.uid.known().is_some(),
            "{own:?}"
        );
        assert!(processes.ticks_per_second > 0);
    }
}
