//! Who keeps a GPU from being free, for a service that is about to start on it.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{examined, json};
use glim_doctor::{Holders, Recording};
use serde_json::{Value as Json, json as j};

fn holders(host: &Json) -> Holders {
    Holders::now(&Recording::parse(&host.to_string()).unwrap())
}

fn pids(holders: &Holders, gpus: &[usize]) -> Vec<u32> {
    holders
        .held(gpus)
        .processes
        .iter()
        .map(|holder| holder.pid)
        .collect()
}

#[test]
fn a_foreign_process_is_named_on_the_gpus_that_it_holds_and_not_on_others() {
    let holders = holders(&json("pcie-switch-acs"));
    assert_eq!(pids(&holders, &[0]), [48210]);
    assert_eq!(pids(&holders, &[0, 1, 2]), [48210, 48211]);
    assert!(holders.held(&[2, 3, 4, 5, 6, 7]).is_free());
    let line = holders.held(&[0]).processes[0].line();
    for word in [
        "pid 48210",
        "user root",
        "container 9f86d081884c",
        "3 d",
        "69.7 GiB on GPU 0",
        "VLLM::Worker_TP0",
    ] {
        assert!(line.contains(word), "{word}: {line}");
    }
}

#[test]
fn displays_and_daemons_of_the_driver_keep_nothing() {
    let single = holders(&json("single"));
    assert!(single.held(&[0]).is_free(), "{single:?}");
    assert_eq!(single.of(&[0]).known().unwrap().len(), 2);
    let nvlink = holders(&json("nvlink"));
    assert!(nvlink.of(&[0]).known().unwrap().is_empty());
}

/// The name of a daemon is no disguise: with memory it is a holder.
#[test]
fn a_daemon_with_memory_is_a_holder() {
    let mut host = json("nvlink");
    host["nvml"]["gpus"][0]["processes"] = j!([{"pid": 3011, "use": "compute", "bytes": 1 << 30}]);
    assert_eq!(pids(&holders(&host), &[0]), [3011]);
}

#[test]
fn a_process_is_one_number_and_one_start() {
    let holders = holders(&json("pcie-switch-acs"));
    let starts: Vec<_> = holders
        .held(&[0, 1])
        .processes
        .iter()
        .map(|holder| (holder.pid, holder.start_ticks.get().unwrap()))
        .collect();
    assert_eq!(starts, [(48210, 161_398_012), (48211, 161_398_013)]);
}

#[test]
fn memory_without_a_process_keeps_a_gpu_too() {
    let holders = holders(&json("iommu"));
    let held = holders.held(&[3]);
    assert!(held.processes.is_empty() && !held.is_free());
    assert_eq!(held.unattributed, [(3, 1530 << 20)]);
    assert!(holders.held(&[0, 1, 2]).is_free());
}

/// In a container NVML names a process that `/proc` does not have.
#[test]
fn a_process_of_another_name_space_is_named_by_its_number() {
    let mut host = json("pcie-switch-acs");
    host["processes"]["found"] = j!([]);
    let holders = holders(&host);
    assert_eq!(pids(&holders, &[1]), [48211]);
    let line = holders.held(&[1]).processes[0].line();
    assert!(
        line.contains("command unknown") && line.contains("69.7 GiB"),
        "{line}"
    );
}

#[test]
fn what_cannot_be_seen_is_not_free() {
    for (pointer, value) in [
        ("/nvml", j!({"unknown": "absent"})),
        ("/nvml/gpus/2/processes", j!({"unknown": "needs root"})),
        ("/processes", j!({"unknown": "absent"})),
    ] {
        let mut host = json("nvlink");
        *host.pointer_mut(pointer).unwrap() = value;
        let holders = holders(&host);
        assert!(
            !holders.held(&[2]).is_free() && holders.held(&[2]).unknown.is_some(),
            "{pointer}"
        );
    }
}

#[test]
fn a_zombie_is_told_as_what_no_signal_ends() {
    let (facts, _) = examined("mig", &json("mig"));
    let held = facts.holders.held(&[1]);
    assert!(held.processes[0].is_stuck());
    let line = held.processes[0].line();
    assert!(
        line.contains("[python3]")
            && line.contains("no signal ends it")
            && line.contains("user bob"),
        "{line}"
    );
}

/// CUDA's ordinals are others than NVML's indices: a place on the bus is what both know, each in its own form.
#[test]
fn a_gpu_is_found_by_its_place_on_the_bus() {
    let holders = holders(&json("pcie-switch-acs"));
    for (place, index) in [
        ("0000:13:00.0", Some(0)),
        ("00000000:F4:00.0", Some(7)),
        ("0000:99:00.0", None),
        ("", None),
    ] {
        assert_eq!(holders.at(place), index, "{place}");
    }
}

#[test]
fn what_is_not_told_of_one_gpu_makes_no_secret_of_another() {
    let mut host = json("pcie-switch-acs");
    host["nvml"]["gpus"][5]["processes"] = j!({"unknown": "not supported"});
    let holders = holders(&host);
    assert!(holders.held(&[5]).unknown.is_some());
    assert!(holders.held(&[4]).is_free());
}

#[test]
fn a_gpu_that_is_cut_into_instances_is_said_to_be() {
    let holders = holders(&json("mig"));
    let cut: Vec<bool> = holders.gpus.iter().map(|gpu| gpu.is_cut).collect();
    assert_eq!(cut, [true, false]);
}

/// A device that NVML does not know: whoever has its file open, with all that is told of a holder.
#[test]
fn a_process_with_a_file_open_is_named_and_none_when_it_has_gone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap().join("device");
    std::fs::write(&path, "").unwrap();
    let held = || Holders::of_files(std::slice::from_ref(&path));
    assert_eq!(held().known().unwrap(), &[]);
    let mut child = std::process::Command::new("sleep")
        .arg("600")
        .stdin(std::fs::File::open(&path).unwrap())
        .spawn()
        .unwrap();
    let found = held();
    child.kill().unwrap();
    child.wait().unwrap();
    let [holder] = found.known().unwrap().as_slice() else {
        panic!("{found:?}");
    };
    assert_eq!(holder.pid, child.id());
    let line = holder.line();
    for word in ["running for", "a handle of", "device: sleep 600"] {
        assert!(line.contains(word), "{word}: {line}");
    }
    assert_eq!(held().known().unwrap(), &[]);
}
