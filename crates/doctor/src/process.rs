//! What `/proc` says of a process (`proc(5)`): the one reader of it, for the doctor and for whoever acts on a process.
//!
//! A number alone names no process, since it is used again: with the time of its start it does ([`Identity`]). The folder is a
//! parameter, so that tests can bring their own; the texts are parsed apart from reading, so that a recording's can be parsed too.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::host::head;
use crate::reading::{Reading, Unread};

/// Longest command line that is told.
const MAX_COMMAND: usize = 200;
/// Most open files of one process that are gone through.
const MAX_FILES: usize = 1 << 16;

/// A process by what cannot be used again: its number alone can.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Its number.
    pub pid: u32,
    /// When it began, in clock ticks since the system did: field 22 of `stat`.
    pub start: u64,
}

/// The processes of this system, or of another folder that looks like `/proc`.
#[derive(Debug, Clone)]
pub struct ProcFs(PathBuf);

impl Default for ProcFs {
    fn default() -> Self {
        Self::at("/proc")
    }
}

impl ProcFs {
    /// Those of this folder.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self(folder.into())
    }

    fn path(&self, pid: u32) -> PathBuf {
        self.0.join(pid.to_string())
    }

    /// Numbers of all processes, in order.
    pub(crate) fn pids(&self) -> Reading<Vec<u32>> {
        let read = || -> std::io::Result<Vec<u32>> {
            let names = fs::read_dir(&self.0)?.flatten();
            let mut pids: Vec<u32> = names
                .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
                .collect();
            pids.sort_unstable();
            Ok(pids)
        };
        read().into()
    }

    /// A file of a process as text, without blanks at its ends.
    pub(crate) fn text(&self, pid: u32, name: &str) -> Option<String> {
        let bytes = fs::read(self.path(pid).join(name)).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// State, parent and start. `None` if it is gone.
    pub fn stat(&self, pid: u32) -> Option<Stat> {
        Stat::parse(&self.text(pid, "stat")?)
    }

    /// Whether it still is this process, and not another with its number; a zombie has nothing any more and counts as gone.
    pub fn is_alive(&self, identity: Identity) -> bool {
        self.stat(identity.pid).is_some_and(|stat| {
            stat.start == identity.start
                && (!matches!(stat.state, 'Z' | 'X') || self.has_other_threads(identity.pid))
        })
    }

    /// The first thread of a process may be a zombie while others have its files and memory still: they are the last to go.
    fn has_other_threads(&self, pid: u32) -> bool {
        let threads = fs::read_dir(self.path(pid).join("task"));
        threads.is_ok_and(|threads| threads.count() > 1)
    }

    /// Whom it belongs to, by number.
    pub fn uid(&self, pid: u32) -> Reading<u32> {
        fs::metadata(self.path(pid))
            .map(|metadata| metadata.uid())
            .into()
    }

    /// What it runs. `None` if that may not be seen.
    pub fn executable(&self, pid: u32) -> Option<PathBuf> {
        let path = fs::read_link(self.path(pid).join("exe")).ok()?;
        // A program that was replaced since, as by an upgrade, is still the same program.
        let text = path.to_string_lossy();
        let stripped = text.strip_suffix(" (deleted)").map(PathBuf::from);
        Some(stripped.unwrap_or(path))
    }

    /// Its command line for people: shortened, and without what looks like a secret. Empty for a kernel's thread and one that has ended.
    pub(crate) fn command(&self, pid: u32) -> String {
        shown(&fs::read(self.path(pid).join("cmdline")).unwrap_or_default())
    }

    /// The systemd service that it is a part of.
    pub fn service(&self, pid: u32) -> Option<String> {
        let group = ControlGroup::parse(&self.text(pid, "cgroup")?);
        group.service().map(str::to_owned)
    }

    /// The files that it has open and that are wanted, by path, each once. For another user's process that needs root.
    pub(crate) fn open_files(
        &self,
        pid: u32,
        is_wanted: impl Fn(&Path) -> bool,
    ) -> Reading<Vec<String>> {
        let entries = match fs::read_dir(self.path(pid).join("fd")) {
            Ok(entries) => entries,
            Err(error) => return Unread::from(&error).into(),
        };
        let links = entries.flatten().take(MAX_FILES);
        let targets = links.filter_map(|entry| fs::read_link(entry.path()).ok());
        let wanted: BTreeSet<String> = targets
            .filter(|target| is_wanted(target))
            .map(|target| target.to_string_lossy().into_owned())
            .collect();
        Reading::Known(wanted.into_iter().collect())
    }
}

/// What `stat` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// `R`, `S`, `D`, `Z`…
    pub state: char,
    /// Its parent.
    pub parent: u32,
    /// When it began, in clock ticks since the system did.
    pub start: u64,
}

impl Stat {
    /// State (field 3), parent (4) and start (22): proc_pid_stat(5). The name before them stands in parentheses and may hold some itself.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (_, fields) = text.rsplit_once(')')?;
        let mut fields = fields.split_whitespace();
        Some(Self {
            state: fields.next()?.chars().next()?,
            parent: fields.next()?.parse().ok()?,
            start: fields.nth(22 - 5)?.parse().ok()?,
        })
    }

    /// The short name.
    pub(crate) fn name(text: &str) -> Option<&str> {
        let (start, end) = (text.find('(')?, text.rfind(')')?);
        text.get(start + 1..end)
    }
}

/// Where a process belongs, by its control groups: names as systemd, Docker, containerd, CRI-O, Podman and Kubernetes make them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ControlGroup {
    /// The innermost unit of systemd: a service, or a scope such as a login's.
    pub(crate) unit: Option<String>,
    /// The container, twelve digits of its name.
    pub(crate) container: Option<String>,
    /// The pod, by its uid.
    pub(crate) pod: Option<String>,
}

impl ControlGroup {
    /// From the lines of `cgroup`, one for each hierarchy.
    pub(crate) fn parse(text: &str) -> Self {
        let mut found = Self::default();
        for line in text.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
                continue;
            };
            // Version 2 has one hierarchy without a name, version 1 one that systemd keeps; others have what was made of them.
            let is_of_systemd = matches!(controllers, "" | "name=systemd");
            for part in path.split('/') {
                found.note(part, is_of_systemd);
            }
        }
        found
    }

    fn note(&mut self, part: &str, is_of_systemd: bool) {
        let stem = part
            .strip_suffix(".scope")
            .or_else(|| part.strip_suffix(".slice"))
            .unwrap_or(part);
        let last = stem.rsplit('-').next().unwrap_or(stem);
        let is_pod = |(before, uid): &(&str, &str)| {
            (before.is_empty() || before.ends_with('-')) && uid.len() >= 32
        };
        if last.len() == 64 && last.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            self.container = Some(last[..12].to_owned());
        } else if let Some((_, uid)) = stem.rsplit_once("pod").filter(is_pod) {
            self.pod = Some(uid.replace('_', "-"));
        } else if is_of_systemd && (part.ends_with(".service") || part.ends_with(".scope")) {
            self.unit = Some(part.to_owned());
        }
    }

    /// The unit, if it is a service. A login, and the manager of a user's own services, are none.
    fn service(&self) -> Option<&str> {
        let unit = self.unit.as_deref()?;
        (unit.ends_with(".service") && !unit.starts_with("user@")).then_some(unit)
    }
}

/// A command line for people: what could be a secret is left out, since it is printed, and recordings are sent to others.
fn shown(bytes: &[u8]) -> String {
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
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let line = "42 (a) b) D 7 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 99887 123 456";
        let expected = Stat {
            state: 'D',
            parent: 7,
            start: 99_887,
        };
        assert_eq!(Stat::parse(line), Some(expected));
        assert_eq!(Stat::name(line), Some("a) b"));
        for hostile in ["", "42 (x) S", ")", "42 (x) S x y", ")("] {
            assert_eq!(Stat::parse(hostile), None, "{hostile}");
        }
        assert_eq!(Stat::name(")("), None);
    }

    #[test]
    fn units_containers_and_pods_are_told_from_control_groups() {
        let id = "0123456789abcdef".repeat(4);
        let check = |text: &str, unit: Option<&str>, container: Option<&str>, pod: Option<&str>| {
            let found = ControlGroup::parse(text);
            assert_eq!(
                (
                    found.unit.as_deref(),
                    found.container.as_deref(),
                    found.pod.as_deref()
                ),
                (unit, container, pod),
                "{text}"
            );
        };
        let glim = Some("glim.service");
        check("0::/system.slice/glim.service", glim, None, None);
        check(
            "0::/user.slice/user-1000.slice/user@1000.service/app.slice/old-glim.service",
            Some("old-glim.service"),
            None,
            None,
        );
        check(
            "0::/user.slice/user-1000.slice/session-3.scope",
            Some("session-3.scope"),
            None,
            None,
        );
        let docker = Some("0123456789ab");
        let scope = format!("0::/system.slice/docker-{id}.scope");
        check(&scope, None, docker, None);
        let first = format!("12:devices:/docker/{id}\n0::/");
        check(&first, None, docker, None);
        check(
            &format!(
                "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1b2c3d4e_0000_1111_2222_333344445555.slice/cri-containerd-{id}.scope"
            ),
            None,
            docker,
            Some("1b2c3d4e-0000-1111-2222-333344445555"),
        );
        for none in ["", "0::/podman.slice", "12:pids:/system.slice/glim.service"] {
            check(none, None, None, None);
        }
    }

    #[test]
    fn services_are_no_logins_and_no_managers() {
        let service = |text| ControlGroup::parse(text).service().map(str::to_owned);
        let glim = Some("glim@a.service".to_owned());
        assert_eq!(service("0::/system.slice/glim@a.service"), glim);
        let first = "12:pids:/a\n1:name=systemd:/system.slice/glim@a.service\n";
        assert_eq!(service(first), glim);
        for none in [
            "0::/user.slice/user-1000.slice/session-3.scope\n",
            "0::/user.slice/user-1000.slice/user@1000.service\n",
            "0::/\n",
            "",
        ] {
            assert_eq!(service(none), None, "{none}");
        }
    }

    #[test]
    fn secrets_of_a_command_line_are_left_out() {
        for (bytes, expected) in [
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
            assert_eq!(shown(bytes.as_bytes()), expected);
        }
        assert_eq!(shown(&vec![b'a'; 10 * MAX_COMMAND]).len(), MAX_COMMAND);
    }

    #[test]
    fn a_zombie_is_alive_while_it_has_other_threads() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("42");
        for thread in ["42", "43"] {
            fs::create_dir_all(own.join("task").join(thread)).unwrap();
        }
        let stat = "42 (a) Z 7 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 1 2";
        fs::write(own.join("stat"), stat).unwrap();
        let processes = ProcFs::at(folder.path());
        let process = Identity {
            pid: 42,
            start: 987_654,
        };
        assert!(processes.is_alive(process));
        fs::remove_dir(own.join("task/43")).unwrap();
        assert!(!processes.is_alive(process));
    }

    #[test]
    fn this_process_is_alive_and_another_with_its_number_is_not() {
        let processes = ProcFs::default();
        let pid = std::process::id();
        let start = processes.stat(pid).unwrap().start;
        assert!(processes.is_alive(Identity { pid, start }));
        assert!(!processes.is_alive(Identity {
            pid,
            start: start + 1
        }));
        assert_eq!(
            processes.executable(pid).unwrap(),
            std::env::current_exe().unwrap()
        );
        assert!(processes.uid(pid).known().is_some());
        assert!(processes.pids().known().unwrap().contains(&pid));
    }
}
