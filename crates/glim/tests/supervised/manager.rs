//! A service manager as far as one service needs it: what `systemd.service(5)` says of `Type=notify`, `TimeoutStartSec=`,
//! `TimeoutStopSec=`, `WatchdogSec=`, `Restart=on-failure`, `RestartPreventExitStatus=`, `StartLimitBurst=` and `KillSignal=`, and
//! `sd_notify(3)` of the messages. It has no control groups: the service has one process.
//!
//! It reads the unit's own text. A drop-in may shorten times, as an operator's would; no setting is built in here.

use std::collections::HashMap;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::glim;

/// Settings by name; a later assignment wins, as in drop-ins.
pub(crate) struct Unit(HashMap<String, String>);

impl Unit {
    pub(crate) fn read(files: &[&str]) -> Self {
        let lines = files.iter().flat_map(|text| text.lines());
        let settings = lines
            .filter(|line| !line.starts_with(['#', '[']))
            .filter_map(|line| line.split_once('='))
            .filter(|(_, value)| !value.is_empty());
        Self(
            settings
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
        )
    }

    fn get(&self, name: &str) -> &str {
        self.0
            .get(name)
            .unwrap_or_else(|| panic!("the unit has no {name}="))
    }

    /// `10min`, `1h`, `150`, `500ms`.
    fn time(&self, name: &str) -> Duration {
        let text = self.get(name);
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let number: u64 = digits.parse().unwrap();
        Duration::from_millis(match &text[digits.len()..] {
            "ms" => number,
            "" | "s" => number * 1000,
            "min" => number * 60_000,
            "h" => number * 3_600_000,
            other => panic!("{name}= has the unit {other}"),
        })
    }
}

/// What the service came to, in the words of `systemctl show`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Activating,
    Active,
    /// It will be started again.
    AutoRestart,
    Inactive,
    Failed,
}

/// Why a process was ended or ended itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Exit(i32),
    Signal(i32),
    Watchdog,
    Timeout,
}

pub(crate) struct Manager {
    unit: Unit,
    socket: UnixDatagram,
    folder: PathBuf,
    environment: Vec<(String, String)>,
    child: Option<Child>,
    pub(crate) state: State,
    /// One for each process that ended.
    pub(crate) outcomes: Vec<Outcome>,
    /// Everything that the service has said.
    pub(crate) said: Vec<String>,
    starts: Vec<Instant>,
    deadline: Option<Instant>,
    watchdog: Option<Instant>,
    restart_at: Option<Instant>,
    is_stopping: bool,
    /// What we have ended the process for.
    killed_for: Option<Outcome>,
}

impl Manager {
    pub(crate) fn new(unit: Unit, folder: &Path, environment: &[(&str, &str)]) -> Self {
        for (name, expected) in [
            ("Type", "notify"),
            ("NotifyAccess", "main"),
            ("Restart", "on-failure"),
        ] {
            assert_eq!(unit.get(name), expected, "{name}");
        }
        let socket = UnixDatagram::bind(folder.join("notify")).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_millis(10)))
            .unwrap();
        Self {
            unit,
            socket,
            folder: folder.to_owned(),
            environment: environment
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            child: None,
            state: State::Inactive,
            outcomes: Vec::new(),
            said: Vec::new(),
            starts: Vec::new(),
            deadline: None,
            watchdog: None,
            restart_at: None,
            is_stopping: false,
            killed_for: None,
        }
    }

    pub(crate) fn start(&mut self) {
        let now = Instant::now();
        let interval = self.unit.time("StartLimitIntervalSec");
        let recent = |at: &&Instant| now.duration_since(**at) < interval;
        let burst: usize = self.unit.get("StartLimitBurst").parse().unwrap();
        if self.starts.iter().filter(recent).count() >= burst {
            self.state = State::Failed;
            return;
        }
        self.starts.push(now);
        let words: Vec<&str> = self.unit.get("ExecStart").split(' ').collect();
        assert_eq!(words[0], env!("CARGO_BIN_EXE_glim"), "ExecStart=");
        let runtime = self.folder.join("run");
        std::fs::create_dir_all(&runtime).unwrap();
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        std::fs::set_permissions(&runtime, permissions).unwrap();
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.folder.join("log"))
            .unwrap();
        let child = glim()
            .args(&words[1..])
            .env("NOTIFY_SOCKET", self.folder.join("notify"))
            .env(
                "WATCHDOG_USEC",
                self.unit.time("WatchdogSec").as_micros().to_string(),
            )
            .env("RUNTIME_DIRECTORY", runtime)
            .envs(self.environment.iter().cloned())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.child = Some(child);
        self.state = State::Activating;
        self.deadline = Some(now + self.unit.time("TimeoutStartSec"));
        (self.watchdog, self.restart_at, self.killed_for) = (None, None, None);
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.pid().to_string();
        let mut kill = std::process::Command::new("kill");
        assert!(kill.args(["-s", name, &pid]).status().unwrap().success());
    }

    /// `systemctl stop`.
    pub(crate) fn stop(&mut self) {
        self.is_stopping = true;
        self.restart_at = None;
        if self.child.is_some() {
            self.watchdog = None;
            self.deadline = Some(Instant::now() + self.unit.time("TimeoutStopSec"));
            self.signal(self.unit.get("KillSignal").trim_start_matches("SIG"));
        }
    }

    /// Manages until `is_so`. A service that never comes to that fails the test after a while that has nothing to do with the unit's.
    #[track_caller]
    pub(crate) fn until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let give_up = Instant::now() + Duration::from_secs(300);
        while !is_so(self) {
            assert!(
                Instant::now() < give_up,
                "never {what}: {:?}, {:?}, {:?}\n{}",
                self.state,
                self.outcomes,
                self.said,
                std::fs::read_to_string(self.folder.join("log")).unwrap_or_default()
            );
            self.turn();
        }
    }

    /// Manages for so long.
    pub(crate) fn during(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.turn();
        }
    }

    fn turn(&mut self) {
        let mut buffer = [0; 4096];
        while let Ok(length) = self.socket.recv(&mut buffer) {
            let text = String::from_utf8(buffer[..length].to_vec()).unwrap();
            text.lines().for_each(|line| self.hear(line));
        }
        if let Some(child) = &mut self.child
            && let Some(status) = child.try_wait().unwrap()
        {
            self.child = None;
            self.ended(status);
        }
        let now = Instant::now();
        let is_over = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if is_over(self.watchdog) {
            self.pull();
        }
        if is_over(self.deadline) {
            self.deadline = None;
            self.kill("KILL", Outcome::Timeout);
        }
        if is_over(self.restart_at) {
            self.start();
        }
    }

    fn hear(&mut self, line: &str) {
        self.said.push(line.to_owned());
        let now = Instant::now();
        match line.split_once('=').unwrap() {
            ("READY", "1") if self.state == State::Activating => {
                self.state = State::Active;
                self.deadline = None;
                self.watchdog = Some(now + self.unit.time("WatchdogSec"));
            }
            ("WATCHDOG", "1") if self.watchdog.is_some() => {
                self.watchdog = Some(now + self.unit.time("WatchdogSec"));
            }
            ("WATCHDOG", "trigger") => self.pull(),
            ("STOPPING", "1") => self.watchdog = None,
            ("EXTEND_TIMEOUT_USEC", usec) => {
                let extended = now + Duration::from_micros(usec.parse().unwrap());
                // Never shortened.
                self.deadline = self.deadline.map(|at| at.max(extended));
            }
            _ => {}
        }
    }

    fn pull(&mut self) {
        self.watchdog = None;
        self.kill("ABRT", Outcome::Watchdog);
    }

    fn kill(&mut self, signal: &str, outcome: Outcome) {
        if self.child.is_some() {
            self.killed_for = Some(outcome);
            self.signal(signal);
        }
    }

    fn ended(&mut self, status: ExitStatus) {
        let own = match status.code() {
            Some(code) => Outcome::Exit(code),
            None => Outcome::Signal(status.signal().unwrap()),
        };
        let outcome = self.killed_for.take().unwrap_or(own);
        self.outcomes.push(outcome);
        (self.deadline, self.watchdog) = (None, None);
        if outcome == Outcome::Exit(0) || self.is_stopping {
            self.state = match outcome {
                Outcome::Exit(0) => State::Inactive,
                _ => State::Failed,
            };
            return;
        }
        let is_final = |code: i32| {
            let finals = self.unit.get("RestartPreventExitStatus");
            finals.split(' ').any(|known| known.parse() == Ok(code))
        };
        if matches!(outcome, Outcome::Exit(code) if is_final(code)) {
            self.state = State::Failed;
            return;
        }
        self.state = State::AutoRestart;
        self.restart_at = Some(Instant::now() + self.unit.time("RestartSec"));
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
