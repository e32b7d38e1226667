//! What `/proc` says of a process (`proc(5)`). The folder is a parameter, so that tests can bring their own.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A process by what cannot be reused: its number alone can.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Its number.
    pub pid: u32,
    /// When it began, in clock ticks since the system did: field 22 of `stat`.
    pub start: u64,
}

/// The processes of this system.
#[derive(Debug, Clone)]
pub struct Processes(PathBuf);

impl Default for Processes {
    fn default() -> Self {
        Self(PathBuf::from("/proc"))
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

impl Processes {
    /// Those of another folder that looks like `/proc`.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self(folder.into())
    }

    pub(crate) fn path(&self, pid: u32) -> PathBuf {
        self.0.join(pid.to_string())
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.0
    }

    /// State, parent and start. `None` if it is gone.
    pub fn stat(&self, pid: u32) -> Option<Stat> {
        let text = fs::read(self.path(pid).join("stat")).ok()?;
        parse_stat(&String::from_utf8_lossy(&text))
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

    /// Whom it belongs to.
    pub fn uid(&self, pid: u32) -> Option<u32> {
        Some(fs::metadata(self.path(pid)).ok()?.uid())
    }

    /// What it runs. `None` if that may not be seen.
    pub fn executable(&self, pid: u32) -> Option<PathBuf> {
        let path = fs::read_link(self.path(pid).join("exe")).ok()?;
        // A program that was replaced since, as by an upgrade, is still the same program.
        let text = path.to_string_lossy();
        let stripped = text.strip_suffix(" (deleted)").map(PathBuf::from);
        Some(stripped.unwrap_or(path))
    }

    /// Its command line, or its name if it has none.
    pub fn command(&self, pid: u32) -> String {
        let line = fs::read(self.path(pid).join("cmdline")).unwrap_or_default();
        let words: Vec<_> = line
            .split(|byte| *byte == 0)
            .filter(|word| !word.is_empty())
            .map(String::from_utf8_lossy)
            .collect();
        match words.is_empty() {
            false => words.join(" "),
            true => fs::read_to_string(self.path(pid).join("comm"))
                .map_or_else(|_| "?".to_owned(), |name| name.trim().to_owned()),
        }
    }

    /// The systemd service that it is a part of, by its control group. Scopes, such as a login's, are none.
    pub fn unit(&self, pid: u32) -> Option<String> {
        let text = fs::read_to_string(self.path(pid).join("cgroup")).ok()?;
        parse_unit(&text)
    }
}

/// The name in `stat` stands in parentheses and may itself hold some.
fn parse_stat(text: &str) -> Option<Stat> {
    let (_, fields) = text.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    Some(Stat {
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        // The third field is the first here.
        start: fields.get(22 - 3)?.parse().ok()?,
    })
}

fn parse_unit(text: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers) = (fields.next()?, fields.next()?);
        // Version 2 has one hierarchy without a name, version 1 one that systemd keeps.
        if !controllers.is_empty() && controllers != "name=systemd" {
            return None;
        }
        let unit = fields.next()?.rsplit('/').next()?;
        let is_manager = unit.starts_with("user@");
        (unit.ends_with(".service") && !is_manager).then(|| unit.to_owned())
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let text = "42 (a) b (c) S 7 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 1 2";
        let expected = Stat {
            state: 'S',
            parent: 7,
            start: 987_654,
        };
        assert_eq!(parse_stat(text), Some(expected));
        assert_eq!(parse_stat("42 (a"), None);
        assert_eq!(parse_stat(""), None);
    }

    #[test]
    fn units_are_services_and_no_logins() {
        let unit = |text| parse_unit(text);
        assert_eq!(
            unit("0::/system.slice/glim.service\n").unwrap(),
            "glim.service"
        );
        let first = "12:pids:/a\n1:name=systemd:/system.slice/glim@a.service\n";
        assert_eq!(unit(first).unwrap(), "glim@a.service");
        for none in [
            "0::/user.slice/user-1000.slice/session-3.scope\n",
            "0::/user.slice/user-1000.slice/user@1000.service\n",
            "12:pids:/system.slice/glim.service\n",
            "0::/\n",
            "",
        ] {
            assert_eq!(unit(none), None, "{none}");
        }
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
        let processes = Processes::at(folder.path());
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
        let processes = Processes::default();
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
        assert!(processes.uid(pid).is_some());
    }
}
