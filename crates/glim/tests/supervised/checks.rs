//! What doctor's checks make of a start, on recorded hosts.

use std::fs;
use std::path::Path;

use serde_json::json;

use crate::MODEL;
use crate::holders::Host;
use crate::locks::Served;

#[test]
fn a_machine_that_is_unfit_is_told_with_the_change_to_make() {
    let host = Host::new("pcie-switch-acs");
    let pair = ["0000:73:00.0", "0000:74:00.0"];
    let words = ["pcie-acs", "setpci -s", "ECAP_ACS+6.w=0:c", "--checks warn"];
    host.refuses(&pair, &[], &words);
    Served::start(&mut host.command(&pair, &["--checks", "warn"])).serves();
    // To one GPU it does not matter.
    Served::start(&mut host.command(&pair[..1], &[])).serves();
}

#[test]
fn notes_are_one_line_of_the_log() {
    let host = Host::new("single");
    let output = host.command(&["0000:01:00.0"], &["--log-format", "json"]);
    let log = log_of(output);
    let notes: Vec<&str> = log.lines().filter(|line| line.contains("notes")).collect();
    assert_eq!(notes.len(), 1, "{log}");
    assert!(notes[0].contains("gpu-power-limit"), "{log}");
    let off = host.command(&["0000:01:00.0"], &["--checks", "off"]);
    assert!(!log_of(off).contains("glim doctor"));
}

/// All that it says on stderr until it is ready.
fn log_of(mut command: std::process::Command) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let mut child = command
        .args(["--port", "0"])
        .stderr(fs::File::create(&path).unwrap())
        .spawn()
        .unwrap();
    let log = || fs::read_to_string(&path).unwrap();
    while !log().contains(" ready") && !log().contains("\"ready\"") {
        assert!(child.try_wait().unwrap().is_none(), "{}", log());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    log()
}

#[test]
fn a_model_that_does_not_fit_in_memory_is_not_loaded_on_the_cpu() {
    let mut host = Host::new("nvlink");
    let model = Path::new(MODEL).canonicalize().unwrap();
    let (folder, name) = (model.parent().unwrap(), model.file_name().unwrap());
    let (folder, name) = (folder.to_str().unwrap(), name.to_str().unwrap());
    host.recording["files"][folder][name] = json!({"size": 1_u64 << 50});
    host.write();
    host.refuses(&[], &[], &["model-host-memory", "does not fit in memory"]);
}
