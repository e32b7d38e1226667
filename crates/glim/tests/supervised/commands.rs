//! `glim config` and `glim service` as an operator calls them.

use std::fs;
use std::process::Command;

use crate::glim;

/// Exit code, and all that was printed.
fn told(command: &mut Command) -> (i32, String) {
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.code().unwrap(),
        String::from_utf8(text).unwrap(),
    )
}

#[test]
fn config_says_of_each_option_what_is_in_force_and_who_said_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c.toml");
    fs::write(
        &path,
        "[serve]\nmax-queue = 5\nport = 8001\nhost = \"::1\"\n",
    )
    .unwrap();
    let config = || {
        let mut command = glim();
        command.arg("config").arg("--config").arg(&path);
        command.env("GLIM_SERVE_MAX_QUEUE", "7");
        command.env("GLIM_SERVE_PORT", "8002");
        command
    };
    let (code, text) = told(config().args(["--port", "8003"]));
    assert_eq!(code, 0, "{text}");
    let line = |key: &str| {
        let mut lines = text.lines().map(|line| line.split_whitespace());
        let line = lines.find_map(|mut words| (words.next() == Some(key)).then_some(words));
        line.unwrap().collect::<Vec<_>>()
    };
    assert_eq!(line("port"), ["8003", "--port"]);
    assert_eq!(line("max-queue"), ["7", "GLIM_SERVE_MAX_QUEUE"]);
    assert_eq!(line("host"), ["::1", &format!("{}:4", path.display())]);
    assert_eq!(line("max-num-seqs"), ["16", "default"]);

    fs::write(&path, "[serve]\nmax-queu = 5\n").unwrap();
    let (code, text) = told(&mut config());
    assert_eq!(code, 78, "{text}");
    assert!(
        text.contains("c.toml:2") && text.contains("did you mean max-queue?"),
        "{text}"
    );
}

#[test]
fn a_service_is_printed_installed_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let service = |verb: &str| {
        let mut command = glim();
        command.args(["service", verb, "--name", "tiny", "--root"]);
        command.arg(folder.path());
        command
    };
    let unit = folder.path().join("etc/systemd/system/tiny.service");
    let (code, printed) = told(&mut service("print"));
    assert_eq!(code, 0, "{printed}");
    assert!(!unit.exists());

    let (code, text) = told(&mut service("install"));
    assert_eq!(code, 0, "{text}");
    assert_eq!(fs::read_to_string(&unit).unwrap(), printed);
    let config = folder.path().join("etc/glim/tiny.toml");
    assert!(config.exists());

    let (code, text) = told(&mut service("remove"));
    assert_eq!(code, 0, "{text}");
    assert!(!unit.exists() && config.exists());
    assert_eq!(told(&mut service("remove")).0, 66);
}

/// A program of the tests' own stands for systemctl.
#[test]
fn status_is_0_if_it_is_active_and_1_if_not() {
    let programs = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/supervised/bin");
    let status = |state: &str| {
        let mut command = glim();
        command.args(["service", "status"]).env("PATH", programs);
        told(command.env("GLIM_TEST_STATE", state))
    };
    let (code, text) = status("active");
    assert_eq!(code, 0, "{text}");
    assert!(
        text.contains("show glim.service") && text.contains("MainPID"),
        "{text}"
    );
    assert_eq!(status("failed").0, 1);
}
