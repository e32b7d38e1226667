//! GPUs that another glim holds. A file stands for the device, since there is none here.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use crate::{MODEL, config, glim};

pub(crate) struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("gpu"), "").unwrap();
        config(&folder.path().join("c.toml"), MODEL, "step-timeout = 1\n");
        Self { folder }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.without_device(args);
        command.arg("--hold-device").arg(self.path("gpu"));
        command
    }

    fn is_of_root(&self) -> bool {
        use std::os::unix::fs::MetadataExt;
        self.folder.path().metadata().unwrap().uid() == 0
    }

    pub(crate) fn without_device(&self, args: &[&str]) -> Command {
        let mut command = glim();
        command
            .args(["serve", "--json", "--config"])
            .arg(self.path("c.toml"))
            .args(args)
            .env_remove("RUNTIME_DIRECTORY")
            .env("XDG_RUNTIME_DIR", self.folder.path())
            .env("GLIM_TEST_SLOW_STEPS", self.path("slow"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs one that is expected to end by itself.
    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Starts one, and waits until it listens.
    fn serve(&self, args: &[&str]) -> Served {
        Served::start(&mut self.command(args))
    }

    fn lock(&self) -> PathBuf {
        let locks = std::fs::read_dir(self.path("glim")).unwrap();
        let mut locks = locks.map(|entry| entry.unwrap().path());
        locks.next().unwrap()
    }
}

pub(crate) struct Served(pub(crate) Child, pub(crate) String);

impl Served {
    /// Starts one, and waits until it listens.
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut served = Self(
            command.stderr(Stdio::null()).spawn().unwrap(),
            String::new(),
        );
        served.listens();
        served
    }

    /// Waits until it listens, and notes where.
    pub(crate) fn listens(&mut self) {
        let mut line = String::new();
        let out = self.0.stdout.take().unwrap();
        BufReader::new(out).read_line(&mut line).unwrap();
        let told: serde_json::Value = serde_json::from_str(&line).unwrap();
        let address = told["address"].as_str();
        self.1 = address.unwrap_or_else(|| panic!("{line}")).to_owned();
    }

    /// Waits until it serves.
    pub(crate) fn serves(&self) {
        while !self.is_ready() {
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Whether it serves.
    pub(crate) fn is_ready(&self) -> bool {
        let mut stream = TcpStream::connect(&self.1).unwrap();
        let head = "GET /ready HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.starts_with("HTTP/1.1 200")
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[track_caller]
pub(crate) fn refused(output: &Output, words: &[&str]) {
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    let told = String::from_utf8_lossy(&output.stdout);
    for word in words {
        assert!(told.contains(word), "`{word}` is not in {told}");
    }
}

fn signal(served: &Served, name: &str) {
    let pid = served.0.id().to_string();
    let status = Command::new("kill").args(["-s", name, &pid]).status();
    assert!(status.unwrap().success());
}

/// Whether SIGTERM waits for a process that is stopped: bit 14 of `ShdPnd`, proc_pid_status(5).
fn is_told_to_end(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let mut lines = status.lines();
    let pending = lines.find_map(|line| line.strip_prefix("ShdPnd:")).unwrap();
    u64::from_str_radix(pending.trim(), 16).unwrap() & 1 << 14 != 0
}

/// Makes the holder look as if it had given no sign of life for long: it is stopped, and its lock's time set back.
fn hang(served: &Served, lock: &Path) {
    signal(served, "STOP");
    let file = std::fs::File::options().write(true).open(lock).unwrap();
    let long_ago = std::time::SystemTime::now() - Duration::from_secs(600);
    file.set_modified(long_ago).unwrap();
}

#[test]
fn a_second_glim_is_told_who_has_the_gpu() {
    let place = Place::new();
    let first = place.serve(&[]);
    let pid = first.0.id().to_string();
    let held = format!("gpu is held by glim with pid {pid}");
    let known = format!("; pid {pid} (user root");
    let known = match place.is_of_root() {
        true => known.as_str(),
        false => "; pid ",
    };
    let words = [&held, known, "running for", "glim serve --json --config"];
    refused(&place.run(&[]), &words);
    // A healthy one is not ended, whatever is asked for.
    refused(&place.run(&["--reclaim"]), &[&pid, "sign of life"]);
    drop(first);
    // One that was killed holds nothing.
    drop(place.serve(&[]));
}

#[test]
fn a_foreign_holder_is_named_and_never_ended() {
    let place = Place::new();
    let device = std::fs::File::open(place.path("gpu")).unwrap();
    let mut foreign = Command::new("sleep")
        .arg("600")
        .stdin(device)
        .spawn()
        .unwrap();
    let output = place.run(&["--reclaim"]);
    let lives = foreign.try_wait().unwrap().is_none();
    foreign.kill().unwrap();
    foreign.wait().unwrap();
    let pid = format!("gpu is held by pid {}", foreign.id());
    refused(&output, &[&pid, "gpu: sleep 600"]);
    assert!(lives);
}

#[test]
fn reclaim_ends_a_glim_that_is_hung() {
    let place = Place::new();
    let mut hung = place.serve(&[]);
    hang(&hung, &place.lock());
    refused(&place.run(&[]), &["which is hung"]);
    let mut next = place.command(&["--reclaim"]);
    let mut next = Served(next.stderr(Stdio::null()).spawn().unwrap(), String::new());
    // It was told to end. That it is ended by force otherwise is tested where the time for it can be set, in the crate `service`.
    while !is_told_to_end(hung.0.id()) {
        std::thread::sleep(Duration::from_millis(20));
    }
    signal(&hung, "CONT");
    hung.0.wait().unwrap();
    next.listens();
}

#[test]
fn a_wait_ends_when_the_gpu_is_free_or_the_time_is_over() {
    let place = Place::new();
    let first = place.serve(&[]);
    refused(&place.run(&["--wait-for-gpu", "1"]), &["is held by glim"]);
    // It listens, and waits.
    let second = place.serve(&["--wait-for-gpu", "600"]);
    let (holder, waiter) = (first.0.id().to_string(), second.0.id().to_string());
    let owner = || std::fs::read_to_string(place.lock()).unwrap();
    assert!(
        owner().contains(&format!("\"pid\":{holder},")),
        "{}",
        owner()
    );
    drop(first);
    while !owner().contains(&format!("\"pid\":{waiter},")) {
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(second);
}

#[test]
fn of_several_that_start_together_exactly_one_serves() {
    let place = Place::new();
    let mut started: Vec<Child> = (0..4)
        .map(|_| place.command(&[]).spawn().unwrap())
        .collect();
    let mut lost = 0;
    while lost < 3 {
        started.retain_mut(|child| match child.try_wait().unwrap() {
            None => true,
            Some(status) => {
                assert_eq!(status.code(), Some(69));
                lost += 1;
                false
            }
        });
        std::thread::sleep(Duration::from_millis(20));
    }
    Served(started.pop().unwrap(), String::new()).listens();
}

/// Ranks are threads: they end with their process, however that ends, and there is nothing else that could stay.
#[test]
fn a_server_that_is_killed_leaves_no_process_behind() {
    use std::os::unix::process::CommandExt;
    let place = Place::new();
    let mut command = place.without_device(&["--tp", "2"]);
    // All that it starts is in its group, unless it wants to be elsewhere, and is its child.
    let served = Served::start(command.process_group(0));
    served.serves();
    let pid = served.0.id();
    let of_it = || -> Vec<String> {
        let stats = std::fs::read_dir("/proc").unwrap().flatten();
        let stats = stats.filter_map(|it| std::fs::read_to_string(it.path().join("stat")).ok());
        let is_of_it = |stat: &String| {
            let fields = stat.rsplit_once(')').unwrap().1.split_whitespace();
            let numbers: Vec<u32> = fields
                .skip(1)
                .take(2)
                .map_while(|n| n.parse().ok())
                .collect();
            numbers.contains(&pid)
        };
        stats.filter(is_of_it).collect()
    };
    assert_eq!(of_it().len(), 1, "{:?}", of_it());
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let names = threads
        .flatten()
        .map(|it| std::fs::read_to_string(it.path().join("comm")).unwrap());
    let ranks = names.filter(|name| name.starts_with("glim-rank")).count();
    assert_eq!(ranks, 2);
    drop(served);
    assert!(of_it().is_empty(), "{:?}", of_it());
}
