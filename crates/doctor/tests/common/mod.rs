//! Recorded hosts, and changes to them.
#![allow(dead_code, reason = "each test uses a part")]

use std::path::PathBuf;

use glim_doctor::{Facts, Finding, Level, Recording, Subject, examine};
use serde_json::Value as Json;

/// The hosts of `tests/hosts`, each with the model that is asked about.
pub(crate) const HOSTS: [(&str, &str); 5] = [
    ("single", "/models/glm-flash-q4_k_m.gguf"),
    (
        "pcie-switch-acs",
        "/models/glm-5.2/GLM-5.2-Q6_K-00001-of-00013.gguf",
    ),
    ("nvlink", "/models/GLM-5.2-FP8-00001-of-00020.gguf"),
    ("iommu", "/models/GLM-5.2-IQ3_XXS-00001-of-00007.gguf"),
    ("mig", "/models/glm-flash-q4_k_m.gguf"),
];

pub(crate) fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests")
        .join(name)
}

/// What is asked about a host.
pub(crate) fn subject(host: &str) -> Subject {
    let (_, model) = HOSTS.iter().find(|(name, _)| *name == host).unwrap();
    Subject {
        model: Some((*model).to_owned()),
        kernel_cache: Some("/var/cache/glim/kernels".to_owned()),
        prebuilt_kernels: None,
    }
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
    let facts = Facts::gather(&recording, &subject(host));
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
