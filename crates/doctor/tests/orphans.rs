//! A probe does not outlive the process that started it.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use glim_doctor::probe::end_with_parent;
use glim_doctor::process::ProcFs;

/// What a probe says that nobody has killed.
const BY_ITSELF: &str = "it ended by itself";
/// Names the parent of a process that stands in for a probe.
const VARIABLE: &str = "GLIM_TEST_PARENT";

/// A shell that starts this program as its child, tells the child's number, and waits for it.
fn parent(of: &str) -> Child {
    let script = format!("{VARIABLE}=$$ \"$0\" --exact {of} --ignored --nocapture & wait");
    Command::new("sh")
        .args(["-c", &script])
        .arg(std::env::current_exe().unwrap())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
#[ignore = "stands in for a probe, in a process of its own"]
fn stands_in_for_a_probe() {
    let Ok(parent) = std::env::var(VARIABLE) else {
        return println!("skipped: only another test's");
    };
    end_with_parent(parent.parse().unwrap()).unwrap();
    println!("\npid {}", std::process::id());
    std::thread::sleep(Duration::from_secs(60));
    println!("{BY_ITSELF}");
}

#[test]
fn a_probe_ends_when_its_parent_is_killed() {
    let mut parent = parent("stands_in_for_a_probe");
    let out = BufReader::new(parent.stdout.take().unwrap());
    let mut lines = out.lines().map(Result::unwrap);
    let pid = lines.find_map(|line| line.strip_prefix("pid ")?.parse().ok());
    let pid: u32 = pid.unwrap();
    let stat = ProcFs::default().stat(pid).unwrap();
    assert_eq!(stat.parent, parent.id());
    // SIGKILL: it can tell nobody.
    parent.kill().unwrap();
    parent.wait().unwrap();
    // The end of what it says is its own end, since nobody else has the other end of the pipe.
    let rest: Vec<String> = lines.collect();
    assert!(!rest.iter().any(|line| line == BY_ITSELF), "{rest:?}");
}

#[test]
fn a_parent_that_has_ended_before_is_noticed() {
    let error = end_with_parent(std::process::id()).unwrap_err();
    assert!(error.to_string().contains("has ended"), "{error}");
}
