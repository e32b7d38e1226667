//! Recorded hosts, and changes to them.
#![allow(dead_code, reason = "each test uses a part")]

use std::path::PathBuf;

use glim_doctor::{Facts, Finding, Level, Recording, examine};
use serde_json::Value as Json;

/// The hosts of `tests/hosts`.
pub(crate) const HOSTS: [&str; 5] = ["single", "pcie-switch-acs", "nvlink", "iommu", "mig"];

pub(crate) fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests")
        .join(name)
}

/// A host's recording, as JSON that can be changed.
pub(crate) fn json(host: &str) -> Json {
    let path = folder("hosts").join(format!("{host}.json"));
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap()
}

/// Facts and findings of a recording.
pub(crate) fn examined(host: &str, recording: &Json) -> (Facts, Vec<Finding>) {
    let recording =
        Recording::parse(&recording.to_string()).unwrap_or_else(|error| panic!("{host}: {error}"));
    let facts = Facts::gather(&recording, &recording.subject);
    let findings = examine(&facts);
    (facts, findings)
}

/// A finding by its name.
pub(crate) fn find<'a>(findings: &'a [Finding], id: &str) -> Option<&'a Finding> {
    findings.iter().find(|finding| finding.id == id)
}

/// Level and whether it is unknown.
pub(crate) fn verdict(findings: &[Finding], id: &str) -> Option<(Level, bool)> {
    find(findings, id).map(|finding| (finding.level, finding.unknown))
}

/// Sets a file of a recording.
pub(crate) fn set_file(recording: &mut Json, path: &str, value: Json) {
    let (folder, name) = path.rsplit_once('/').unwrap();
    recording["files"][folder][name] = value;
}
