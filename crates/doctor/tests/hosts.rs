//! Five recorded hosts, and all that is found on each, as people read it. `UPDATE_GOLDEN=1 cargo test -p glim-doctor` writes the pages
//! again; then read the diff.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{HOSTS, examined, folder, json, verdict};
use glim_doctor::{Facts, Host, Level, Recorder, Recording, examine, page};

#[test]
fn pages_of_the_hosts() {
    let mut differ = Vec::new();
    for host in HOSTS {
        let (facts, findings) = examined(host, &json(host));
        let page = page::page(&facts, &findings, true);
        let path = folder("golden").join(format!("{host}.txt"));
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&path, &page).unwrap();
        }
        if std::fs::read_to_string(&path).unwrap_or_default() != page {
            differ.push(host);
        }
    }
    assert!(
        differ.is_empty(),
        "{differ:?} differ from tests/golden: UPDATE_GOLDEN=1, and read the diff"
    );
}

/// What each host was written down for, apart from all the words.
#[test]
fn each_host_has_the_faults_that_it_is_there_for() {
    let expected: &[(&str, &[&str])] = &[
        ("single", &[]),
        ("pcie-switch-acs", &["pcie-acs"]),
        ("nvlink", &[]),
        ("iommu", &["pcie-link-width", "iommu-mode", "model-files"]),
        (
            "mig",
            &["gpu-mig", "gpu-peer-access", "gpu-stuck-processes"],
        ),
    ];
    for (host, blockers) in expected {
        let (_, findings) = examined(host, &json(host));
        let found: Vec<&str> = findings
            .iter()
            .filter(|finding| finding.level == Level::Blocker)
            .map(|finding| finding.id)
            .collect();
        for blocker in *blockers {
            assert!(found.contains(blocker), "{host} lacks {blocker}: {found:?}");
        }
        if blockers.is_empty() {
            assert!(found.is_empty(), "{host}: {found:?}");
        }
    }
}

#[test]
fn every_bridge_with_redirection_gets_its_own_command() {
    let (facts, findings) = examined("pcie-switch-acs", &json("pcie-switch-acs"));
    let finding = common::find(&findings, "pcie-acs").unwrap();
    let redirecting = facts
        .bridges
        .iter()
        .filter(|bridge| bridge.acs.get().is_some_and(|acs| acs.redirects()));
    assert_eq!(redirecting.count(), 12);
    for command in [
        "setpci -s 0000:10:01.1 ECAP_ACS+6.w=0:c",
        "setpci -s 0000:f2:01.0 ECAP_ACS+6.w=0:c",
    ] {
        assert!(finding.fix.contains(command), "{}", finding.fix);
    }
    assert_eq!(finding.fix.matches("setpci").count(), 12);
}

#[test]
fn what_an_nvlink_host_does_not_use_does_not_block_it() {
    let (_, findings) = examined("nvlink", &json("nvlink"));
    assert_eq!(verdict(&findings, "pcie-acs"), Some((Level::Note, false)));
    assert_eq!(verdict(&findings, "iommu-mode"), Some((Level::Ok, false)));
    assert_eq!(verdict(&findings, "pcie-forced-p2p"), None);
}

#[test]
fn without_root_what_root_sees_is_unknown() {
    let (_, findings) = examined("iommu", &json("iommu"));
    for id in ["pcie-acs", "pcie-packets", "gpu-xid"] {
        let finding = common::find(&findings, id).unwrap();
        assert!(
            finding.unknown && finding.level == Level::Note && finding.fix.contains("root"),
            "{finding:?}"
        );
    }
    // Newer kernels show this one to all.
    assert_eq!(verdict(&findings, "pcie-aspm"), Some((Level::Note, false)));
}

/// A recording of a recording holds all that the checks asked for, and leads to the same findings.
#[test]
fn a_recording_answers_as_the_host_did() {
    for host in HOSTS {
        let original = Recording::parse(&json(host).to_string()).unwrap();
        let recorder = Recorder::new(&original, "again", &original.subject);
        let facts = Facts::gather(&recorder, &original.subject);
        let text = recorder.finish().to_text().unwrap();
        let again = Recording::parse(&text).unwrap();
        let replayed = Facts::gather(&again, &again.subject);
        assert_eq!(facts, replayed, "{host}");
        assert_eq!(examine(&facts), examined(host, &json(host)).1, "{host}");
    }
}

/// The live machine, whatever it is: nothing panics, and its recording gives the same again.
#[test]
fn the_machine_of_this_test_can_be_recorded() {
    let live = glim_doctor::Live::default();
    let recorder = Recorder::new(
        &live,
        "the machine of a test",
        &glim_doctor::Subject::default(),
    );
    let facts = Facts::gather(&recorder, &glim_doctor::Subject::default());
    let text = recorder.finish().to_text().unwrap();
    let replayed = Facts::gather(
        &Recording::parse(&text).unwrap(),
        &glim_doctor::Subject::default(),
    );
    assert_eq!(facts, replayed);
    assert!(!page::page(&facts, &examine(&facts), true).is_empty());
    assert!(live.read("/proc/uptime").known().is_some());
}

/// JSON of the facts has no float that JSON cannot hold, and findings have the fields that scripts rely on.
#[test]
fn facts_and_findings_are_json() {
    for host in HOSTS {
        let (facts, findings) = examined(host, &json(host));
        let facts = serde_json::to_value(&facts).unwrap();
        assert!(
            facts["gpus"]
                .as_array()
                .is_some_and(|gpus| !gpus.is_empty()),
            "{host}"
        );
        for finding in serde_json::to_value(&findings).unwrap().as_array().unwrap() {
            for field in ["id", "level", "title", "detail", "fix"] {
                assert!(finding[field].is_string(), "{host}: {finding}");
            }
        }
    }
}
