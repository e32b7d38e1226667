//! GPUs that programs other than glim hold: on recorded hosts of the crate `doctor`, whose NVML and processes are what serve looks at.

use std::fs;
use std::process::Command;

use serde_json::{Value as Json, json};

use crate::locks::{Place, Served, refused};

/// A host, and a place to serve there.
pub(crate) struct Host {
    place: Place,
    pub(crate) recording: Json,
}

impl Host {
    pub(crate) fn new(name: &str) -> Self {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../doctor/tests/hosts");
        let text = fs::read_to_string(format!("{folder}/{name}.json")).unwrap();
        let host = Self {
            place: Place::new(),
            recording: serde_json::from_str(&text).unwrap(),
        };
        host.write();
        host
    }

    /// Whole or not at all: a server may be reading it.
    pub(crate) fn write(&self) {
        let (new, path) = (self.place.path("new.json"), self.place.path("host.json"));
        fs::write(&new, self.recording.to_string()).unwrap();
        fs::rename(new, path).unwrap();
    }

    /// What NVML says of a GPU.
    fn nvml(&mut self, gpu: usize, key: &str, value: Json) {
        self.recording["nvml"]["gpus"][gpu][key] = value;
        self.write();
    }

    /// `glim serve` on GPUs by their places on the bus.
    pub(crate) fn command(&self, gpus: &[&str], args: &[&str]) -> Command {
        let mut command = self.place.without_device(args);
        for gpu in gpus {
            command.args(["--hold-device", gpu]);
        }
        command.env("GLIM_TEST_HOST", self.place.path("host.json"));
        command
    }

    #[track_caller]
    pub(crate) fn refuses(&self, gpus: &[&str], args: &[&str], words: &[&str]) {
        refused(&self.command(gpus, args).output().unwrap(), words);
    }
}

#[test]
fn a_program_that_computes_on_a_gpu_is_named_with_all_that_is_known_of_it() {
    let host = Host::new("pcie-switch-acs");
    // In the form and the letters of CUDA, not NVML's.
    let words = [
        "GPU 0000:13:00.0 is held by pid 48210",
        "user root",
        "container 9f86d081884c",
        "running for 3 d",
        "69.7 GiB",
        "VLLM::Worker_TP0",
        "--wait-for-gpu",
    ];
    host.refuses(&["0000:13:00.0"], &[], &words);
    // Whoever holds a GPU that is not needed does not matter, and whoever is no glim is never ended.
    host.refuses(
        &["0000:73:00.0", "0000:14:00.0"],
        &["--reclaim"],
        &["GPU 0000:14:00.0 is held by pid 48211"],
    );
    Served::start(&mut host.command(&["0000:74:00.0"], &[])).serves();
}

#[test]
fn a_gpu_is_shared_where_the_operator_says_so_but_not_with_another_glim() {
    let host = Host::new("pcie-switch-acs");
    let gpu = ["0000:13:00.0"];
    let _first = Served::start(&mut host.command(&gpu, &["--share-gpu"]));
    host.refuses(
        &gpu,
        &["--share-gpu"],
        &["gpu-0000:13:00.0 is held by glim"],
    );
}

#[test]
fn displays_do_not_hold_a_gpu() {
    let host = Host::new("single");
    Served::start(&mut host.command(&["0000:01:00.0"], &[])).serves();
}

#[test]
fn memory_that_no_process_in_sight_holds_is_held() {
    let host = Host::new("iommu");
    let words = [
        "GPU 0000:e1:00.0: 1.5 GiB are in use",
        "no process in sight",
    ];
    host.refuses(&["0000:e1:00.0"], &[], &words);
}

/// A container without NVML: then the memory that is free decides.
#[test]
fn what_cannot_be_told_does_not_keep_a_service_down() {
    let mut host = Host::new("pcie-switch-acs");
    host.recording["nvml"] = json!({"unknown": "absent"});
    host.write();
    Served::start(&mut host.command(&["0000:13:00.0"], &[])).serves();
    // Nor do the instances of a GPU, of which NVML does not say which one a process is on.
    let cut = Host::new("mig");
    Served::start(&mut cut.command(&["0000:17:00.0"], &[])).serves();
}

#[test]
fn a_wait_ends_when_the_program_has_gone_or_the_time_is_over() {
    let mut host = Host::new("pcie-switch-acs");
    let gpu = ["0000:13:00.0"];
    host.refuses(&gpu, &["--wait-for-gpu", "1"], &["held by pid 48210"]);
    let waiter = Served::start(&mut host.command(&gpu, &["--wait-for-gpu", "600"]));
    assert!(!waiter.is_ready());
    host.recording["processes"]["found"] = json!([]);
    host.nvml(0, "processes", json!([]));
    // It has gone, and the driver clears up behind it.
    assert!(!waiter.is_ready());
    let memory = json!({"total": 102_641_958_912_u64, "reserved": 668_991_488, "used": 0, "free": 101_972_967_424_u64});
    host.nvml(0, "memory", memory);
    waiter.serves();
}
