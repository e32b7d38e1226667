//! What a service asks of the machine when it starts: of the GPUs that it uses, and no others.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{json, set_file};
use glim_doctor::{Facts, Level, Recording, Subject, examine_start};
use serde_json::{Value as Json, json as j};

const MODEL: &str = "/m/model.gguf";

/// Names of the blockers for a service with a model on these GPUs.
fn blockers(host: &Json, gpus: &[usize]) -> Vec<&'static str> {
    let host = Recording::parse(&host.to_string()).unwrap();
    let subject = Subject {
        model: Some(MODEL.to_owned()),
        ..host.subject.clone()
    };
    let findings = examine_start(Facts::gather(&host, &subject), gpus);
    let blockers = findings.iter().filter(|f| f.level == Level::Blocker);
    blockers.map(|finding| finding.id).collect()
}

fn with_model(host: &str, bytes: u64) -> Json {
    let mut host = json(host);
    set_file(&mut host, MODEL, j!({"size": bytes}));
    host
}

#[test]
fn what_matters_between_gpus_does_not_matter_to_one() {
    let host = with_model("pcie-switch-acs", 1 << 30);
    assert_eq!(blockers(&host, &[2, 3]), ["pcie-acs"]);
    assert!(blockers(&host, &[2]).is_empty());
    assert!(blockers(&host, &[]).is_empty());
    let nvlink = with_model("nvlink", 1 << 30);
    assert!(blockers(&nvlink, &[0, 1, 2, 3, 4, 5, 6, 7]).is_empty());
}

#[test]
fn what_is_wrong_with_another_gpu_does_not_matter() {
    let mut host = with_model("nvlink", 1 << 30);
    host["nvml"]["gpus"][3]["ecc_uncorrected"] = j!(2);
    assert_eq!(blockers(&host, &[0, 3]), ["gpu-memory-errors"]);
    assert!(blockers(&host, &[0, 1]).is_empty());
    // Nor does a fault of the past, which a reset may have mended.
    host["kernel_log"] = j!(["NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus."]);
    assert!(blockers(&host, &[0, 1]).is_empty());
}

#[test]
fn a_model_has_to_fit_in_the_memory_that_there_is_on_the_cpu() {
    let (fits, too_large) = (with_model("nvlink", 1 << 30), with_model("nvlink", 1 << 50));
    assert!(blockers(&fits, &[]).is_empty());
    assert_eq!(blockers(&too_large, &[]), ["model-host-memory"]);
    // On GPUs that is no reason; and that it does not fit there is told by the start itself.
    assert!(blockers(&too_large, &[0]).is_empty());
}

#[test]
fn a_control_group_limits_memory_on_the_way_to_the_root() {
    let mut host = with_model("nvlink", 8 << 30);
    set_file(
        &mut host,
        "/proc/self/cgroup",
        j!("0::/system.slice/glim.service"),
    );
    let limit = |host: &mut Json, group: &str, bytes: &str| {
        set_file(
            host,
            &format!("/sys/fs/cgroup{group}/memory.max"),
            j!(bytes),
        );
    };
    limit(&mut host, "/system.slice/glim.service", "max");
    limit(&mut host, "/system.slice", "17179869184");
    limit(&mut host, "", "34359738368");
    assert!(blockers(&host, &[]).is_empty());
    limit(&mut host, "/system.slice/glim.service", "4294967296");
    assert_eq!(blockers(&host, &[]), ["model-host-memory"]);
}
