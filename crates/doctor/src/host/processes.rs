//! Which processes of this machine hold a GPU: a walk over `/proc`.
//!
//! NVML names those that have memory on a GPU; an open `/dev/nvidia*` also gives away those that have a handle and no context yet, those
//! of other containers that NVML does not name, and those that are dying. Reading another user's `fd` folder needs root or
//! `CAP_SYS_PTRACE`: how many could not be seen is told, so that "nobody" is not claimed where "nobody of mine" was found.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::{ProcessFiles, Processes};
use crate::process::ProcFs;
use crate::reading::{Reading, Unread};

/// Whether a file is a GPU's, or one of all GPUs': `/dev/nvidia0`, `/dev/nvidiactl`, `/dev/nvidia-uvm`.
pub(super) fn is_of_gpus(path: &Path) -> bool {
    path.to_string_lossy().starts_with("/dev/nvidia")
}

/// Goes through all processes once: those with these numbers, and those that have a device open.
pub(crate) fn walk(
    proc: &ProcFs,
    named: &[u32],
    is_device: impl Fn(&Path) -> bool,
) -> Reading<Processes> {
    let users = users();
    let mut unreadable = 0;
    let mut found = Vec::new();
    let pids = match proc.pids() {
        Reading::Known(pids) => pids,
        Reading::Unknown { unknown } => return unknown.into(),
    };
    for pid in pids {
        let devices = proc.open_files(pid, &is_device);
        unreadable += u32::from(devices.why() == Some(&Unread::NeedsRoot));
        if named.contains(&pid) || devices.known().is_some_and(|devices| !devices.is_empty()) {
            // One that ended in between is no holder any more.
            found.extend(files(proc, pid, devices, &users));
        }
    }
    Reading::Known(Processes {
        ticks_per_second: rustix::param::clock_ticks_per_second(),
        found,
        unreadable,
    })
}

fn files(
    proc: &ProcFs,
    pid: u32,
    devices: Reading<Vec<String>>,
    users: &BTreeMap<u32, String>,
) -> Option<ProcessFiles> {
    let uid = proc.uid(pid);
    let name = |uid| {
        let name = users.get(&uid).cloned();
        name.map_or(Unread::Absent.into(), Reading::Known)
    };
    Some(ProcessFiles {
        pid,
        stat: proc.text(pid, "stat")?,
        command: proc.command(pid),
        cgroup: proc.text(pid, "cgroup").unwrap_or_default(),
        user: uid.clone().and_then(name),
        uid,
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_process_that_is_named_is_told_even_without_a_device() {
        let own = std::process::id();
        let processes = walk(&ProcFs::default(), &[own], is_of_gpus);
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

    #[test]
    fn the_devices_are_those_of_gpus() {
        for (path, expected) in [
            ("/dev/nvidia0", true),
            ("/dev/nvidia-uvm", true),
            ("/dev/null", false),
            ("/srv/dev/nvidia0", false),
        ] {
            assert_eq!(is_of_gpus(Path::new(path)), expected, "{path}");
        }
    }
}
