//! Every check, shown to fail: a host on which it is fine, one change, and what is found then.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{examined, json, set_file, verdict};
use glim_doctor::{CHECKS, Level};
use serde_json::{Value as Json, json as j};

const G: &str = "/sys/bus/pci/devices";

/// A check, a host, a change, and the level that it leads to; `Note` with `true` is unknown.
struct Fault {
    id: &'static str,
    host: &'static str,
    change: fn(&mut Json),
    level: Level,
    unknown: bool,
}

const fn blocker(id: &'static str, host: &'static str, change: fn(&mut Json)) -> Fault {
    Fault {
        id,
        host,
        change,
        level: Level::Blocker,
        unknown: false,
    }
}

const fn note(id: &'static str, host: &'static str, change: fn(&mut Json)) -> Fault {
    Fault {
        id,
        host,
        change,
        level: Level::Note,
        unknown: false,
    }
}

const fn unknown(id: &'static str, host: &'static str, change: fn(&mut Json)) -> Fault {
    Fault {
        id,
        host,
        change,
        level: Level::Note,
        unknown: true,
    }
}

fn gpu(host: &mut Json, field: &str, value: Json) {
    host["nvml"]["gpus"][0][field] = value;
}

fn library(host: &mut Json, part: &str, field: &str, value: Json) {
    let libraries = host["libraries"].as_array_mut().unwrap();
    let library = libraries
        .iter_mut()
        .find(|library| library["part"] == part)
        .unwrap();
    library[field] = value;
}

const ROOT: &str = r#"{"unread": "needs root"}"#;

fn needs_root() -> Json {
    serde_json::from_str(ROOT).unwrap()
}

fn not_known() -> Json {
    j!({"unknown": "it burns"})
}

/// `nvlink` has one GPU an island over PCIe; these two are wanted where PCIe counts.
fn without_nvlink(host: &mut Json) {
    for gpu in host["nvml"]["gpus"].as_array_mut().unwrap() {
        gpu["nvlinks"] = j!([]);
    }
}

const FAULTS: &[Fault] = &[
    blocker("driver-loaded", "single", |h| {
        h["nvml"] = j!({"unknown": "absent"});
        let functions = j!({"list": ["0000:00:01.1", "0000:01:00.0"]});
        set_file(h, G, functions);
        set_file(h, &format!("{G}/0000:00:01.1/class"), j!("0x060400"));
        set_file(h, &format!("{G}/0000:01:00.0/class"), j!("0x030000"));
    }),
    blocker("driver-loaded", "single", |h| {
        h["nvml"] = j!({"unknown": "nvmlInit_v2: Driver/library version mismatch"})
    }),
    note("driver-loaded", "single", |h| h["nvml"]["gpus"] = j!([])),
    blocker("driver-version", "single", |h| {
        h["nvml"]["cuda"] = j!(11080)
    }),
    unknown("driver-version", "single", |h| {
        h["nvml"]["cuda"] = not_known()
    }),
    blocker("driver-module-match", "single", |h| {
        h["nvml"]["driver"] = j!("580.105.08")
    }),
    unknown("driver-module-match", "single", |h| {
        set_file(h, "/proc/driver/nvidia/version", needs_root())
    }),
    blocker("gpu-capability", "single", |h| {
        gpu(h, "capability", j!([7, 5]))
    }),
    note("gpu-capability", "nvlink", |h| {
        gpu(h, "capability", j!([7, 5]))
    }),
    unknown("gpu-capability", "single", |h| {
        gpu(h, "capability", not_known())
    }),
    note("gpu-mixed", "nvlink", |h| gpu(h, "name", j!("NVIDIA H100"))),
    unknown("gpu-mixed", "nvlink", |h| gpu(h, "memory", not_known())),
    blocker("gpu-mig", "nvlink", |h| {
        gpu(h, "mig", j!({"current": true, "pending": true}))
    }),
    note("gpu-mig", "single", |h| {
        gpu(h, "mig", j!({"current": true, "pending": true}));
        gpu(h, "mig_instances", j!(1));
    }),
    blocker("gpu-mig", "single", |h| {
        gpu(h, "mig", j!({"current": true, "pending": true}))
    }),
    unknown("gpu-mig", "single", |h| gpu(h, "mig", not_known())),
    blocker("gpu-compute-mode", "single", |h| {
        gpu(h, "compute_mode", j!(2))
    }),
    note("gpu-compute-mode", "single", |h| {
        gpu(h, "compute_mode", j!(3))
    }),
    unknown("gpu-compute-mode", "single", |h| {
        gpu(h, "compute_mode", not_known())
    }),
    note("gpu-persistence", "nvlink", |h| {
        gpu(h, "persistence", j!(false))
    }),
    unknown("gpu-persistence", "nvlink", |h| {
        gpu(h, "persistence", not_known())
    }),
    note("gpu-power-limit", "nvlink", |h| {
        gpu(h, "power_limit", j!(400_000))
    }),
    unknown("gpu-power-limit", "nvlink", |h| {
        gpu(h, "power_default", not_known())
    }),
    note("gpu-clocks", "nvlink", |h| {
        gpu(h, "clock_reasons", j!(0x40))
    }),
    note("gpu-clocks", "nvlink", |h| gpu(h, "clock_reasons", j!(0x4))),
    unknown("gpu-clocks", "nvlink", |h| {
        gpu(h, "clock_reasons", not_known())
    }),
    blocker("gpu-memory-errors", "nvlink", |h| {
        gpu(h, "ecc_uncorrected", j!(3))
    }),
    blocker("gpu-memory-errors", "nvlink", |h| {
        h["nvml"]["gpus"][0]["remapped"]["failed"] = j!(true)
    }),
    note("gpu-memory-errors", "nvlink", |h| {
        h["nvml"]["gpus"][0]["remapped"]["pending"] = j!(true)
    }),
    unknown("gpu-memory-errors", "nvlink", |h| {
        gpu(h, "ecc_uncorrected", not_known())
    }),
    blocker("gpu-xid", "nvlink", |h| {
        h["kernel_log"] = j!(["NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus."])
    }),
    note("gpu-xid", "nvlink", |h| {
        h["kernel_log"] = j!(["NVRM: Xid (PCI:0000:1b:00): 31, pid=1"])
    }),
    note("gpu-xid", "nvlink", |h| {
        h["kernel_log"] = j!(["NVRM: Xid of an unusual form"])
    }),
    unknown("gpu-xid", "nvlink", |h| {
        h["kernel_log"] = j!({"unknown": "needs root"})
    }),
    blocker("nvlink-active", "nvlink", |h| {
        h["nvml"]["gpus"][0]["nvlinks"][3]["active"] = j!(false)
    }),
    blocker("nvlink-fabric", "nvlink", |h| {
        gpu(h, "fabric", j!("in_progress"))
    }),
    unknown("nvlink-fabric", "nvlink", |h| gpu(h, "fabric", not_known())),
    blocker("gpu-peer-access", "nvlink", |h| {
        h["nvml"]["pairs"][0]["write"] = j!("chipset_not_supported")
    }),
    unknown("gpu-peer-access", "nvlink", |h| {
        h["nvml"]["pairs"][0]["read"] = not_known()
    }),
    unknown("gpu-peer-access", "nvlink", |h| h["nvml"]["pairs"] = j!([])),
    blocker("pcie-acs", "nvlink", without_nvlink),
    unknown("pcie-acs", "mig", |h| {
        set_file(
            h,
            &format!("{G}/0000:16:01.0/config"),
            j!({"bytes": 64, "at": {"004": "0701100001000000"}}),
        )
    }),
    unknown("pcie-acs", "mig", |h| {
        set_file(
            h,
            &format!("{G}/0000:16:01.0/config"),
            j!({"bytes": 258, "at": {"100": "0d00"}}),
        )
    }),
    unknown("pcie-acs", "mig", |h| {
        set_file(
            h,
            &format!("{G}/0000:16:01.0/config"),
            j!("this is no configuration space"),
        )
    }),
    note("pcie-link-width", "nvlink", |h| {
        set_file(h, &format!("{G}/0000:1b:00.0/current_link_width"), j!("8"))
    }),
    blocker("pcie-link-width", "pcie-switch-acs", |h| {
        set_file(h, &format!("{G}/0000:11:00.0/current_link_width"), j!("4"))
    }),
    unknown("pcie-link-width", "nvlink", |h| {
        set_file(
            h,
            &format!("{G}/0000:1b:00.0/current_link_width"),
            j!("many"),
        )
    }),
    note("pcie-link-speed", "nvlink", |h| {
        set_file(
            h,
            &format!("{G}/0000:17:02.0/max_link_speed"),
            j!("16.0 GT/s PCIe"),
        )
    }),
    note("pcie-link-speed", "nvlink", |h| {
        set_file(
            h,
            &format!("{G}/0000:1b:00.0/current_link_speed"),
            j!("16.0 GT/s PCIe"),
        );
        gpu(h, "clock_reasons", j!(0));
    }),
    unknown("pcie-link-speed", "nvlink", |h| {
        set_file(
            h,
            &format!("{G}/0000:1b:00.0/current_link_speed"),
            j!("Unknown"),
        )
    }),
    unknown("pcie-uplink", "nvlink", |h| {
        set_file(h, &format!("{G}/0000:1b:00.0"), needs_root())
    }),
    note("pcie-switch-partitions", "nvlink", without_nvlink),
    unknown("pcie-switch-partitions", "mig", |h| {
        set_file(
            h,
            &format!("{G}/0000:17:00.0"),
            j!({"link": "../../../devices/pci0000:16/0000:16:01.0/0000:16:02.0/0000:17:00.0"}),
        );
    }),
    note("gpu-order", "pcie-switch-acs", |h| {
        let other = h["nvml"]["gpus"][7]["bus_id"].take();
        h["nvml"]["gpus"][7]["bus_id"] = h["nvml"]["gpus"][0]["bus_id"].take();
        h["nvml"]["gpus"][0]["bus_id"] = other;
    }),
    note("pcie-bar1", "single", |h| gpu(h, "bar1", j!(256 << 20))),
    blocker("pcie-bar1", "pcie-switch-acs", |h| {
        gpu(h, "bar1", j!(256 << 20))
    }),
    unknown("pcie-bar1", "single", |h| gpu(h, "memory", not_known())),
    note("pcie-forced-p2p", "mig", |_| {}),
    unknown("pcie-forced-p2p", "mig", |h| {
        set_file(h, "/proc/driver/nvidia/params", needs_root())
    }),
    note("pcie-aspm", "single", |_| {}),
    unknown("pcie-aspm", "nvlink", |h| {
        set_file(h, &format!("{G}/0000:1b:00.0/config"), needs_root())
    }),
    note("pcie-port-power", "nvlink", |h| {
        set_file(h, &format!("{G}/0000:1b:00.0/power/control"), j!("auto"))
    }),
    unknown("pcie-port-power", "nvlink", |h| {
        set_file(h, &format!("{G}/0000:1b:00.0/power/control"), needs_root())
    }),
    note("pcie-packets", "mig", |h| {
        // Device control: payload 512 instead of 256, the rest as it is.
        let at = &mut h["files"][format!("{G}/0000:17:00.0")]["config"]["at"]["068"];
        assert_eq!(at, "3f500000");
        *at = j!("5f500000");
    }),
    unknown("pcie-packets", "mig", |h| {
        set_file(h, &format!("{G}/0000:17:00.0/config"), needs_root())
    }),
    note("pcie-errors", "nvlink", |h| gpu(h, "replays", j!(7))),
    note("pcie-errors", "nvlink", |h| {
        set_file(
            h,
            &format!("{G}/0000:15:01.0/aer_dev_fatal"),
            j!("DLP 1\nTOTAL_ERR_FATAL 1"),
        )
    }),
    unknown("pcie-errors", "nvlink", |h| {
        set_file(h, &format!("{G}/0000:15:01.0/aer_dev_fatal"), j!("nothing"))
    }),
    unknown("pcie-errors", "nvlink", |h| gpu(h, "replays", not_known())),
    note("iommu-mode", "single", |_| {}),
    blocker("iommu-mode", "iommu", |_| {}),
    note("iommu-mode", "iommu", |h| {
        for group in 20..24 {
            set_file(
                h,
                &format!("/sys/kernel/iommu_groups/{group}/type"),
                j!("identity"),
            );
        }
    }),
    unknown("iommu-mode", "iommu", |h| {
        for group in 20..24 {
            set_file(
                h,
                &format!("/sys/kernel/iommu_groups/{group}/type"),
                needs_root(),
            );
        }
    }),
    unknown("iommu-mode", "iommu", |h| {
        set_file(h, "/sys/class/iommu", needs_root())
    }),
    note("virtual-machine", "mig", |h| {
        set_file(h, "/proc/cpuinfo", j!("flags : avx2 hypervisor"))
    }),
    unknown("virtual-machine", "mig", |h| {
        set_file(h, "/proc/cpuinfo", needs_root())
    }),
    note("uvm-hmm", "mig", |h| {
        set_file(
            h,
            "/sys/module/nvidia_uvm/parameters/uvm_disable_hmm",
            j!("N"),
        )
    }),
    unknown("uvm-hmm", "mig", |h| {
        set_file(
            h,
            "/sys/module/nvidia_uvm/parameters/uvm_disable_hmm",
            j!("maybe"),
        )
    }),
    note("locked-memory", "single", |_| {}),
    unknown("locked-memory", "nvlink", |h| {
        set_file(
            h,
            "/proc/self/limits",
            j!("Max locked memory         a-lot    a-lot    bytes"),
        )
    }),
    note("open-files", "nvlink", |h| {
        set_file(
            h,
            "/proc/self/limits",
            j!("Max open files            1024    1024    files"),
        )
    }),
    unknown("open-files", "nvlink", |h| {
        set_file(h, "/proc/self/limits", j!(""))
    }),
    note("shared-memory", "nvlink", |h| {
        h["spaces"]["/dev/shm"]["free"] = j!(64 << 20)
    }),
    unknown("shared-memory", "nvlink", |h| {
        h["spaces"]["/dev/shm"] = not_known()
    }),
    note("cpu-features", "nvlink", |h| {
        set_file(h, "/proc/cpuinfo", j!("flags : fpu sse4_2"))
    }),
    unknown("cpu-features", "nvlink", |h| {
        set_file(h, "/proc/cpuinfo", j!(""))
    }),
    note("cpu-governor", "single", |_| {}),
    unknown("cpu-governor", "nvlink", |h| {
        set_file(
            h,
            "/sys/devices/system/cpu/cpu56/cpufreq/scaling_governor",
            needs_root(),
        )
    }),
    note("numa-balancing", "nvlink", |_| {}),
    unknown("numa-balancing", "nvlink", |h| {
        set_file(h, "/proc/sys/kernel/numa_balancing", j!("x"))
    }),
    note("gpu-numa", "nvlink", |h| {
        set_file(h, &format!("{G}/0000:1b:00.0/numa_node"), j!("-1"))
    }),
    unknown("gpu-numa", "nvlink", |h| {
        set_file(h, &format!("{G}/0000:1b:00.0/numa_node"), needs_root())
    }),
    note("huge-pages", "mig", |_| {}),
    unknown("huge-pages", "nvlink", |h| {
        set_file(
            h,
            "/sys/kernel/mm/transparent_hugepage/enabled",
            j!("always"),
        )
    }),
    note("gpu-holders", "nvlink", |h| {
        gpu(
            h,
            "processes",
            j!([{"pid": 9, "use": "compute", "bytes": 9}]),
        )
    }),
    note("gpu-holders", "nvlink", |h| {
        gpu(
            h,
            "processes",
            j!([{"pid": 3011, "use": "compute", "bytes": 5}]),
        )
    }),
    unknown("gpu-holders", "nvlink", |h| {
        h["processes"] = j!({"unknown": "absent"})
    }),
    unknown("gpu-holders", "nvlink", |h| {
        gpu(h, "processes", not_known())
    }),
    blocker("gpu-stuck-processes", "pcie-switch-acs", |h| {
        let stat = &mut h["processes"]["found"][0]["stat"];
        *stat = j!(stat.as_str().unwrap().replace(") S ", ") D "));
    }),
    note("gpu-unattributed-memory", "nvlink", |h| {
        h["nvml"]["gpus"][0]["memory"]["used"] = j!(9_u64 << 30)
    }),
    unknown("gpu-unattributed-memory", "nvlink", |h| {
        gpu(h, "processes", not_known())
    }),
    blocker("library-driver", "nvlink", |h| {
        library(h, "driver", "path", j!({"unknown": "absent"}))
    }),
    unknown("library-driver", "nvlink", |h| h["libraries"] = j!([])),
    blocker("library-nvrtc", "iommu", |h| {
        set_file(h, "/var/cache/glim/kernels", j!({"list": []}))
    }),
    note("library-nvrtc", "nvlink", |h| {
        library(h, "nvrtc", "path", j!({"unknown": "absent"}))
    }),
    unknown("library-nvrtc", "nvlink", |h| h["libraries"] = not_known()),
    note("library-nccl", "nvlink", |h| {
        library(h, "nccl", "path", j!({"unknown": "absent"}))
    }),
    unknown("library-nccl", "nvlink", |h| h["libraries"] = not_known()),
    note("compiler-and-driver", "nvlink", |h| {
        h["nvml"]["cuda"] = j!(12_080)
    }),
    unknown("compiler-and-driver", "nvlink", |h| {
        library(h, "nvrtc", "version", j!("new"))
    }),
    note("kernel-cache", "nvlink", |h| {
        h["writable"]["/var/cache/glim/kernels"] = j!(false)
    }),
    note("kernel-cache", "nvlink", |h| {
        h["spaces"]["/var/cache/glim/kernels"]["free"] = j!(1 << 20)
    }),
    unknown("kernel-cache", "nvlink", |h| h["writable"] = j!({})),
    blocker("model-files", "nvlink", |h| {
        set_file(
            h,
            "/models/GLM-5.2-FP8-00007-of-00020.gguf",
            j!({"unread": "absent"}),
        )
    }),
    blocker("model-files", "nvlink", |h| {
        set_file(
            h,
            "/models/GLM-5.2-FP8-00001-of-00020.gguf",
            j!({"unread": "absent"}),
        )
    }),
    blocker("model-files", "nvlink", |h| {
        set_file(h, "/models/GLM-5.2-FP8-00001-of-00020.gguf", needs_root())
    }),
    note("model-gpu-memory", "single", |h| {
        set_file(
            h,
            "/models/glm-flash-q4_k_m.gguf",
            j!({"size": 100_u64 << 30}),
        )
    }),
    blocker("model-gpu-memory", "single", |h| {
        h["nvml"]["gpus"][0]["memory"]["free"] = j!(20_u64 << 30)
    }),
    unknown("model-gpu-memory", "single", |h| {
        gpu(h, "memory", not_known())
    }),
    note("model-host-memory", "single", |h| {
        set_file(
            h,
            "/models/glm-flash-q4_k_m.gguf",
            j!({"size": 200_u64 << 30}),
        )
    }),
    blocker("model-host-memory", "single", |h| {
        h["nvml"]["gpus"] = j!([]);
        set_file(
            h,
            "/models/glm-flash-q4_k_m.gguf",
            j!({"size": 200_u64 << 30}),
        );
    }),
    unknown("model-host-memory", "single", |h| {
        set_file(h, "/proc/meminfo", j!("MemTotal: 1 kB"))
    }),
    note("model-file-system", "nvlink", |_| {}),
    note("model-file-system", "single", |h| {
        set_file(
            h,
            "/proc/self/mountinfo",
            j!("1 1 0:1 / /models rw - fuse.s3fs s3fs rw"),
        )
    }),
    note("model-file-system", "single", |h| {
        set_file(
            h,
            "/proc/self/mountinfo",
            j!("1 1 0:1 / / rw - overlay overlay rw"),
        )
    }),
    unknown("model-file-system", "single", |h| {
        set_file(h, "/proc/self/mountinfo", j!(""))
    }),
];

#[test]
fn each_fault_is_found_at_its_level() {
    let mut wrong = Vec::new();
    for (index, fault) in FAULTS.iter().enumerate() {
        let mut host = json(fault.host);
        (fault.change)(&mut host);
        let (_, findings) = examined(fault.host, &host);
        let found = verdict(&findings, fault.id);
        if found != Some((fault.level, fault.unknown)) {
            wrong.push(format!(
                "{index}: {} on {}: {:?}",
                fault.id,
                fault.host,
                common::find(&findings, fault.id)
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A check that no fault makes fail is a check that cannot fail. Those that inform only are named.
#[test]
fn every_check_can_fail() {
    const INFORM: &[&str] = &[];
    for check in CHECKS {
        let bad = FAULTS.iter().any(|fault| fault.id == check.id);
        assert!(bad != INFORM.contains(&check.id), "{}", check.id);
    }
}

/// And each is fine, or has no question, on at least one host.
#[test]
fn every_check_can_pass() {
    let hosts: Vec<_> = common::HOSTS
        .iter()
        .map(|host| examined(host, &json(host)).1)
        .collect();
    for check in CHECKS {
        let passes = hosts.iter().any(|findings| {
            verdict(findings, check.id).is_none_or(|found| found == (Level::Ok, false))
        });
        assert!(passes, "{}", check.id);
    }
}

/// Without any answer nothing is `ok`.
#[test]
fn a_host_that_answers_nothing_is_fine_in_nothing() {
    let (_, findings) = examined("single", &j!({"glim_doctor": 1, "about": "silence"}));
    for finding in &findings {
        assert!(finding.level != Level::Ok, "{finding:?}");
    }
}

/// Hostile bytes in any file of a host: whatever is found, nothing panics, and the bus's chains end.
#[test]
fn hostile_files_are_survived() {
    for host in common::HOSTS.iter().take(2) {
        let original = json(host);
        let files = original["files"].as_object().unwrap();
        let paths: Vec<String> = files
            .iter()
            .flat_map(|(folder, names)| {
                names
                    .as_object()
                    .unwrap()
                    .keys()
                    .map(move |name| format!("{folder}/{name}"))
            })
            .collect();
        for value in [
            j!(""),
            j!("\u{0}\u{fffd} ) ( - : / 0x"),
            j!({"bytes": 4096, "at": {"0": "ffffffff", "34": "34", "100": "0d000110"}}),
            j!({"link": "pci/pci/.."}),
            j!({"list": ["", "..", "0000:00:00.0"]}),
            j!("99999999999999999999999999"),
        ] {
            let mut all = original.clone();
            for path in &paths {
                set_file(&mut all, path, value.clone());
            }
            examined(host, &all);
        }
        for path in paths.iter().step_by(7) {
            let mut one = original.clone();
            set_file(&mut one, path, j!("-9223372036854775808 -1 -1"));
            examined(host, &one);
        }
    }
}
