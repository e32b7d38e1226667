//! `glim doctor`: on recorded hosts, and on the machine of the test.

use std::path::Path;

use super::{glim, text, write};

/// A recorded host of the crate `doctor`.
fn host(name: &str) -> String {
    format!(
        "{}/../doctor/tests/hosts/{name}.json",
        env!("CARGO_MANIFEST_DIR")
    )
}

#[test]
fn a_blocker_is_exit_code_1_and_notes_alone_are_0() {
    let bad = glim(&["doctor", "--from", &host("pcie-switch-acs")]);
    assert_eq!(bad.code, 1, "{bad:?}");
    for word in [
        "BLOCKER pcie-acs: 12 bridges",
        "ECAP_ACS+6.w=0:c",
        "pid 48210",
        "1 blocker, ",
    ] {
        assert!(bad.stdout.contains(word), "{word}: {}", bad.stdout);
    }
    // What is fine is told with -v only.
    assert!(!bad.stdout.contains("\nok "), "{}", bad.stdout);
    assert!(
        glim(&["doctor", "--from", &host("pcie-switch-acs"), "-v"])
            .stdout
            .contains("\nok      driver-version")
    );
    let good = glim(&["doctor", "--from", &host("nvlink")]).ok();
    assert!(
        good.contains("0 blockers, ") && good.contains("islands: [0, 1, 2, 3, 4, 5, 6, 7]"),
        "{good}"
    );
}

#[test]
fn json_has_the_fields_that_scripts_rely_on() {
    let json = glim(&["doctor", "--json", "--from", &host("iommu")]).json();
    let findings = json["findings"].as_array().unwrap();
    assert!(findings.len() > 30);
    for finding in findings {
        for field in ["id", "level", "title", "detail", "fix"] {
            assert!(finding[field].is_string(), "{finding}");
        }
        assert!(
            ["ok", "note", "blocker"].contains(&finding["level"].as_str().unwrap()),
            "{finding}"
        );
    }
    let blockers = findings
        .iter()
        .filter(|finding| finding["level"] == "blocker")
        .count();
    assert!(blockers > 0 && json["blockers"] == blockers, "{json}");
    assert_eq!(json["facts"]["gpus"].as_array().unwrap().len(), 4);
}

/// What a recording of this machine says is what this machine says, apart from what changes by itself.
#[test]
fn this_machine_can_be_recorded_and_examined_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("host.json");
    let live = glim(&["doctor", "--json", "--record", text(&path)]);
    assert!(live.code == 0 || live.code == 1, "{live:?}");
    let again = glim(&["doctor", "--json", "--from", text(&path)]);
    assert_eq!(
        (live.code, &live.json()["findings"]),
        (again.code, &again.json()["findings"])
    );
}

#[test]
fn a_model_that_is_not_there_is_a_blocker() {
    let outcome = glim(&["doctor", "--json", "no-such-model.gguf"]);
    assert_eq!(outcome.code, 1, "{outcome:?}");
    let json = outcome.json();
    let finding = json["findings"]
        .as_array()
        .unwrap()
        .iter()
        .find(|finding| finding["id"] == "model-files")
        .unwrap();
    assert!(
        finding["level"] == "blocker"
            && finding["title"]
                .as_str()
                .unwrap()
                .ends_with("no-such-model.gguf is not there"),
        "{finding}"
    );
}

#[test]
fn without_two_gpus_there_is_nothing_to_probe() {
    let outcome = glim(&["doctor", "--probe", "--json"]);
    let json = outcome.json();
    let Some(gpus) = json["facts"]["gpus"]
        .as_array()
        .filter(|gpus| gpus.len() < 2)
    else {
        return println!("skipped: this machine has several GPUs");
    };
    let finding = json["findings"]
        .as_array()
        .unwrap()
        .iter()
        .find(|finding| finding["id"] == "probe-finished")
        .unwrap();
    assert!(
        finding["level"] == "ok" && finding["title"].as_str().unwrap().contains("no pair"),
        "{gpus:?} {finding}"
    );
}

#[test]
fn a_recording_that_is_none_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let other = write(dir.path(), "other.json", "{\"glim_doctor\": 99}");
    glim(&["doctor", "--from", text(&other)]).fails(65, &["other.json", "form 99"]);
    let none = write(dir.path(), "none.json", "[]");
    glim(&["doctor", "--from", text(&none)]).fails(65, &["none.json", "--record"]);
    glim(&["doctor", "--from", text(Path::new("no-such.json"))]).fails(66, &["no-such.json"]);
}

#[test]
fn a_recording_is_not_probed() {
    glim(&["doctor", "--from", &host("nvlink"), "--probe"]).fails(64, &["--from", "--probe"]);
    glim(&["doctor", "--probe-timeout", "5"]).fails(64, &["--probe"]);
    glim(&[
        "doctor",
        "--record",
        text(Path::new("no-such-folder/host.json")),
    ])
    .fails(75, &["no-such-folder"]);
}
