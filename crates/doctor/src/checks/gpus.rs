//! Driver and GPUs.

use super::{Survey, Verdict, few, gpu_names};
use crate::facts::{Facts, Gpu};
use crate::nvml::{Fabric, MigMode, NvmlGpu, P2p};
use crate::page::bytes;
use crate::reading::{Reading, Unread};

/// CUDA 12.0, the oldest that is known to load our kernels.
const OLDEST_CUDA: u32 = 12_000;
/// The oldest that kernels are compiled for.
const OLDEST_CAPABILITY: (u32, u32) = (8, 0);
/// Bits of the clocks' reasons (`nvmlClocksEventReason*`).
const IDLE: u64 = 0x1;
const POWER_CAP: u64 = 0x4;
const HELD_DOWN: &[(u64, &str)] = &[
    (0x8, "hardware slowdown"),
    (0x20, "software thermal slowdown"),
    (0x40, "hardware thermal slowdown"),
    (0x80, "power brake"),
];

/// Asks each GPU one thing.
fn survey<T: Clone>(
    facts: &Facts,
    value: impl Fn(&NvmlGpu) -> &Reading<T>,
    mut judge: impl FnMut(&Gpu, T) -> Option<String>,
) -> Survey {
    let mut survey = Survey::default();
    for gpu in &facts.gpus {
        let read = gpu
            .nvml
            .as_result()
            .and_then(|nvml| value(nvml).as_result());
        match read {
            Ok(value) => match judge(gpu, value.clone()) {
                Some(bad) => survey.bad(bad),
                None => survey.good(),
            },
            // The device has no such thing: nothing to ask.
            Err(Unread::Unsupported) => {}
            Err(why) => survey.unknown(format!("GPU {}", gpu.index), why),
        }
    }
    survey
}

pub(super) fn driver_loaded(facts: &Facts) -> Option<Verdict> {
    let names: Vec<String> = facts
        .gpus
        .iter()
        .filter_map(|gpu| gpu.bus_id.known().cloned())
        .collect();
    Some(match (facts.driver.nvml.why(), names.len()) {
        (None, 0) => Verdict::note("the NVIDIA driver runs and finds no GPU")
            .why("glim runs on the CPU.")
            .fix("in a container: --gpus all; on a machine: lspci -d 10de: and dmesg | grep NVRM"),
        (None, count) => Verdict::ok(format!("the driver answers for {}", super::count(count, "GPU"))),
        (Some(Unread::Absent), 0) => Verdict::note("there is no NVIDIA GPU and no driver").why("glim runs on the CPU."),
        (Some(Unread::Absent), _) => Verdict::blocker(format!("there is a GPU at {} and no driver (libnvidia-ml.so.1)", few(&names)))
            .why("Without a driver glim runs on the CPU.")
            .fix("install the driver of your distribution (Ubuntu: ubuntu-drivers install --gpgpu), or give the container access (--gpus all)"),
        (Some(why), _) => {
            let mismatch = why.to_string().contains("version mismatch");
            let verdict = Verdict::bad(!names.is_empty() || mismatch, format!("the NVIDIA driver does not answer: {why}"));
            match mismatch {
                true => verdict
                    .why("The driver was upgraded while its kernel module was loaded.")
                    .fix("reboot; or end all users of the GPUs, then: modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia && modprobe nvidia nvidia_uvm"),
                false => verdict.fix("see dmesg | grep -e NVRM -e nvidia"),
            }
        }
    })
}

pub(super) fn driver_version(facts: &Facts) -> Option<Verdict> {
    facts.driver.nvml.known()?;
    let version = facts
        .driver
        .version
        .known()
        .map_or("of unknown version", String::as_str);
    Some(match facts.driver.cuda.as_result() {
        Ok(&cuda) if cuda < OLDEST_CUDA => Verdict::blocker(format!(
            "the driver {version} is for CUDA {}.{}, and 12.0 or newer is needed",
            cuda / 1000,
            cuda % 1000 / 10
        ))
        .fix("install driver 525.60.13 or newer; 580 or newer for kernels of CUDA 13"),
        Ok(&cuda) => Verdict::ok(format!(
            "driver {version}, CUDA {}.{}",
            cuda / 1000,
            cuda % 1000 / 10
        )),
        Err(why) => Verdict::unknown("the driver's version of CUDA", why),
    })
}

pub(super) fn driver_module_match(facts: &Facts) -> Option<Verdict> {
    let version = facts.driver.version.known()?;
    Some(match facts.driver.module.as_result() {
        Ok(module) if module.split_whitespace().any(|word| word == version) => {
            Verdict::ok(format!("module and libraries are both {version}"))
        }
        Ok(module) => Verdict::blocker(format!(
            "the libraries are of driver {version}, and the kernel's module is another: {module}"
        ))
        .why("The next process that opens a GPU fails with \"Driver/library version mismatch\".")
        .fix("reboot, or reload the module once nobody uses the GPUs"),
        Err(why) => Verdict::unknown("the version of the kernel's module", why),
    })
}

pub(super) fn capability(facts: &Facts) -> Option<Verdict> {
    facts.driver.nvml.known()?;
    let survey = survey(
        facts,
        |nvml| &nvml.capability,
        |gpu, found| {
            (found < OLDEST_CAPABILITY)
                .then(|| format!("GPU {} ({}.{})", gpu.index, found.0, found.1))
        },
    );
    let all = facts.gpus.len();
    survey.verdict(
        "the compute capability",
        |bad| {
            Verdict::bad(bad.len() == all, format!("too old for glim's kernels: {}", few(bad)))
                .why("Kernels are compiled for compute capability 8.0 and newer; older GPUs are left out.")
                .fix("use other GPUs, or --device cpu")
        },
        || Verdict::ok("every GPU is new enough"),
    )
}

pub(super) fn mixed(facts: &Facts) -> Option<Verdict> {
    if !facts.has_several() {
        return None;
    }
    let mut kinds: Vec<(String, Vec<usize>)> = Vec::new();
    for gpu in &facts.gpus {
        let nvml = match gpu.nvml.as_result() {
            Ok(nvml) => nvml,
            Err(why) => return Some(Verdict::unknown("the kinds of the GPUs", why)),
        };
        let (name, memory) = match (nvml.name.as_result(), nvml.memory.as_result()) {
            (Ok(name), Ok(memory)) => (name, memory),
            (Err(why), _) | (_, Err(why)) => {
                return Some(Verdict::unknown(
                    format!("the kind of GPU {}", gpu.index),
                    why,
                ));
            }
        };
        let kind = format!("{name}, {}", bytes(memory.total));
        match kinds.iter_mut().find(|(other, _)| *other == kind) {
            Some((_, gpus)) => gpus.push(gpu.index),
            None => kinds.push((kind, vec![gpu.index])),
        }
    }
    Some(match kinds.as_slice() {
        [(kind, gpus)] => Verdict::ok(format!("{} × {kind}", gpus.len())),
        kinds => {
            let each: Vec<String> = kinds
                .iter()
                .map(|(kind, gpus)| format!("{}: {kind}", gpu_names(gpus)))
                .collect();
            Verdict::note("the GPUs are of different kinds")
                .why(format!("{}. Ranks wait for each other, so all run as fast as the slowest, and each gets what the smallest can hold.", each.join("; ")))
                .fix("name GPUs of one kind: --device cuda:…")
        }
    })
}

pub(super) fn mig(facts: &Facts) -> Option<Verdict> {
    facts.driver.nvml.known()?;
    let several = facts.has_several();
    let mut instances = 0;
    let mut survey = Survey::default();
    for gpu in &facts.gpus {
        let Some(nvml) = gpu.nvml.known() else {
            continue;
        };
        match nvml.mig.as_result() {
            Ok(MigMode {
                current: false,
                pending: false,
            })
            | Err(Unread::Unsupported) => survey.good(),
            Ok(MigMode {
                current: false,
                pending: true,
            }) => survey.bad(format!("GPU {} (from its next reset on)", gpu.index)),
            Ok(MigMode { current: true, .. }) => {
                let count = nvml.mig_instances.get();
                instances += count.unwrap_or(0);
                let count =
                    count.map_or("an unknown number of".to_owned(), |count| count.to_string());
                survey.bad(format!("GPU {} ({count} instances)", gpu.index));
            }
            Err(why) => survey.unknown(format!("GPU {}", gpu.index), why),
        }
    }
    survey.verdict(
        "MIG mode",
        |bad| {
            Verdict::bad(several || instances == 0, format!("cut into instances (MIG): {}", few(bad)))
                .why("An instance has a part of the memory and of its bandwidth, has no peers, and a process sees one instance only: tensor parallelism is not possible. A GPU in MIG mode without an instance is no device for CUDA.")
                .fix("as root, once nobody uses the GPU: nvidia-smi -i INDEX -mig 0; or name an instance in CUDA_VISIBLE_DEVICES and run one rank")
        },
        || Verdict::ok("no GPU is cut into instances"),
    )
}

pub(super) fn compute_mode(facts: &Facts) -> Option<Verdict> {
    let mut prohibited = false;
    facts.driver.nvml.known()?;
    let survey = survey(
        facts,
        |nvml| &nvml.compute_mode,
        |gpu, mode| match mode {
            0 => None,
            2 => {
                prohibited = true;
                Some(format!("GPU {}: prohibited", gpu.index))
            }
            _ => Some(format!("GPU {}: one process at a time", gpu.index)),
        },
    );
    survey.verdict(
        "the compute mode",
        |bad| {
            Verdict::bad(prohibited, format!("the compute mode limits who may use a GPU: {}", few(bad)))
                .why("Prohibited: no process can open it. One process: a second one, such as a probe or a monitor with a context, fails.")
                .fix("as root: nvidia-smi -c DEFAULT")
        },
        || Verdict::ok("any process may use the GPUs"),
    )
}

pub(super) fn persistence(facts: &Facts) -> Option<Verdict> {
    facts.driver.nvml.known()?;
    survey(facts, |nvml| &nvml.persistence, |gpu, on| (!on).then(|| gpu.index.to_string())).verdict(
        "persistence mode",
        |bad| {
            Verdict::note(format!("persistence mode is off on GPU {}", few(bad)))
                .why("Without a client the driver shuts the GPU down: the next start takes seconds longer for each GPU, and power limits and counters are lost.")
                .fix("systemctl enable --now nvidia-persistenced")
        },
        || Verdict::ok("the driver stays awake between processes"),
    )
}

pub(super) fn power_limit(facts: &Facts) -> Option<Verdict> {
    facts.driver.nvml.known()?;
    let limits = |nvml: &NvmlGpu| {
        nvml.power_limit
            .clone()
            .and_then(|limit| nvml.power_default.clone().map(|default| (limit, default)))
    };
    let mut survey = Survey::default();
    for gpu in &facts.gpus {
        match gpu.nvml.clone().and_then(|nvml| limits(&nvml)).as_result() {
            Ok((limit, default)) if limit < default => survey.bad(format!(
                "GPU {}: {} of {} W",
                gpu.index,
                limit / 1000,
                default / 1000
            )),
            Ok(_) => survey.good(),
            Err(Unread::Unsupported) => {}
            Err(why) => survey.unknown(format!("GPU {}", gpu.index), why),
        }
    }
    survey.verdict(
        "the power limit",
        |bad| {
            Verdict::note(format!("the power limit is lowered: {}", few(bad)))
                .why("Decode waits for memory and loses little; prefill loses about as much as the limit. If it is meant, leave it.")
                .fix("as root: nvidia-smi -i INDEX -pl WATTS")
        },
        || Verdict::ok("power limits are those of delivery"),
    )
}

pub(super) fn clocks(facts: &Facts) -> Option<Verdict> {
    facts.driver.nvml.known()?;
    survey(facts, |nvml| &nvml.clock_reasons, |gpu, reasons| {
        let held = HELD_DOWN.iter().filter(|(bit, _)| reasons & bit != 0).map(|(_, name)| *name);
        // An idle GPU at its cap is only idle.
        let capped = (reasons & POWER_CAP != 0 && reasons & IDLE == 0).then_some("power cap");
        let reasons: Vec<&str> = held.chain(capped).collect();
        (!reasons.is_empty()).then(|| format!("GPU {}: {}", gpu.index, reasons.join(", ")))
    })
    .verdict(
        "the reasons of its clocks",
        |bad| {
            Verdict::note(format!("clocks are held down now: {}", few(bad)))
                .why("One slow GPU slows all ranks. A power brake or a hardware slowdown points to the power supply or the cooling.")
                .fix("look at nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER under load; check fans, inlet temperature and power cables")
        },
        || Verdict::ok("no clock is held down"),
    )
}

pub(super) fn memory_errors(facts: &Facts) -> Option<Verdict> {
    facts.driver.nvml.known()?;
    let (mut survey, mut is_blocker) = (Survey::default(), false);
    for gpu in &facts.gpus {
        let Some(nvml) = gpu.nvml.known() else {
            continue;
        };
        let mut bad = Vec::new();
        for value in [
            nvml.ecc_uncorrected.clone().map(|_| ()),
            nvml.remapped.clone().map(|_| ()),
        ] {
            // A GPU without ECC, or without spare rows, has nothing to tell.
            if let Some(why) = value.why().filter(|why| **why != Unread::Unsupported) {
                survey.unknown(format!("GPU {}", gpu.index), why);
            }
        }
        if let Some(errors) = nvml.ecc_uncorrected.get().filter(|&errors| errors > 0) {
            is_blocker = true;
            bad.push(format!("{errors} uncorrected errors"));
        }
        if let Some(rows) = nvml.remapped.get() {
            is_blocker |= rows.failed;
            bad.extend(
                rows.failed
                    .then(|| "a row that could not be replaced".to_owned()),
            );
            bad.extend(
                rows.pending
                    .then(|| "a row that waits for a reset to be replaced".to_owned()),
            );
        }
        match bad.is_empty() {
            true => survey.good(),
            false => survey.bad(format!("GPU {}: {}", gpu.index, bad.join(", "))),
        }
    }
    survey.verdict(
        "errors of the memory",
        |bad| {
            Verdict::bad(is_blocker, format!("errors of GPU memory: {}", few(bad)))
                .why("An uncorrected error ends every process that touches the place, or gives wrong numbers where ECC is off. A pending row is replaced at the next reset; one that cannot be replaced is a case for the maker.")
                .fix("end all users of the GPU, then reset it (nvidia-smi --gpu-reset -i INDEX) or reboot; look at nvidia-smi -q -d ROW_REMAPPER,ECC again")
        },
        || Verdict::ok("no errors of GPU memory"),
    )
}

pub(super) fn xid(facts: &Facts) -> Option<Verdict> {
    if facts.gpus.is_empty() {
        return None;
    }
    /// Those after which the GPU is of no use until a reset, and those of its memory: docs.nvidia.com/deploy/xid-errors.
    const FATAL: &[u32] = &[48, 62, 64, 74, 79, 95, 119, 120, 140];
    let lines = match facts.xids.as_result() {
        Ok(lines) if lines.is_empty() => {
            return Some(Verdict::ok("no fault (Xid) in the kernel's log"));
        }
        Ok(lines) => lines,
        Err(why) => return Some(Verdict::unknown("faults (Xid) in the kernel's log", why)),
    };
    // `NVRM: Xid (PCI:0000:19:00): 79, pid=…`
    let number = |line: &String| {
        line.split_once("): ")?
            .1
            .split([',', ' '])
            .next()?
            .parse::<u32>()
            .ok()
    };
    let mut numbers: Vec<u32> = lines.iter().filter_map(number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let names: Vec<String> = numbers.iter().map(u32::to_string).collect();
    let is_fatal = numbers.iter().any(|number| FATAL.contains(number));
    Some(
        Verdict::bad(is_fatal, format!("the driver reported faults since the system started: Xid {}", few(&names)))
            .why(format!(
                "The last: {}. 13, 31, 43 and 45 are mostly a program's fault; 48, 63, 64, 94, 95 memory; 74 NVLink; 79 the GPU fell off the bus; 119 and 120 the firmware does not answer.",
                lines.last().map_or("", |line| line.trim_end_matches('.'))
            ))
            .fix("dmesg -T | grep Xid; for 79, 119 and 120 reboot, and look at power, cooling and pcie-aspm before"),
    )
}

pub(super) fn nvlink_active(facts: &Facts) -> Option<Verdict> {
    let mut survey = Survey::default();
    for gpu in &facts.gpus {
        let found = gpu.nvlink();
        match found.links - found.active {
            _ if found.links == 0 => {}
            0 => survey.good(),
            down => survey.bad(format!("GPU {}: {down} of {}", gpu.index, found.links)),
        }
    }
    let links = facts.gpus.first().map_or(0, |gpu| gpu.nvlink().links);
    let several = facts.has_several();
    survey.verdict(
        "NVLinks",
        |bad| {
            Verdict::bad(several, format!("NVLinks are down: {}", few(bad)))
                .why("Traffic between GPUs falls back to PCIe (about 50 GB/s each way instead of 396 measured on 18 links), or CUDA does not start at all (error 802) while the fabric is not up.")
                .fix("nvidia-smi nvlink -s; systemctl status nvidia-fabricmanager; look for Xid 74 in dmesg")
        },
        || Verdict::ok(format!("all NVLinks are up, {links} a GPU")),
    )
}

pub(super) fn nvlink_fabric(facts: &Facts) -> Option<Verdict> {
    let mut survey = Survey::default();
    for gpu in &facts.gpus {
        let Some(nvml) = gpu.nvml.known() else {
            continue;
        };
        match nvml.fabric.as_result() {
            // An older driver does not tell, and a GPU without NVLink is in none.
            Ok(Fabric::None) | Err(Unread::Unsupported) => {}
            Ok(Fabric::Completed) => survey.good(),
            Ok(Fabric::NotStarted) => survey.bad(format!("GPU {}: not started", gpu.index)),
            Ok(Fabric::InProgress) => survey.bad(format!("GPU {}: in progress", gpu.index)),
            Err(why) => survey.unknown(format!("GPU {}", gpu.index), why),
        }
    }
    survey.verdict(
        "the fabric's state",
        |bad| {
            Verdict::blocker(format!("the NVSwitch fabric is not ready: {}", few(bad)))
                .why("Until the fabric manager has finished, CUDA does not start on these GPUs (error 802, system not yet initialized).")
                .fix("systemctl enable --now nvidia-fabricmanager (of exactly the driver's version), then journalctl -u nvidia-fabricmanager")
        },
        || Verdict::ok("the NVSwitch fabric is ready"),
    )
}

pub(super) fn peer_access(facts: &Facts) -> Option<Verdict> {
    let mut survey = Survey::default();
    let mut no_atomics = 0;
    for pair in &facts.topology.pairs {
        let name = format!("{}–{}", pair.gpus.0, pair.gpus.1);
        match (pair.read.as_result(), pair.write.as_result()) {
            (Ok(P2p::Ok), Ok(P2p::Ok)) => survey.good(),
            (Ok(P2p::Ok), Err(why)) | (Err(why), _) => survey.unknown(name, why),
            (Ok(P2p::Ok), Ok(bad)) | (Ok(bad), _) => {
                survey.bad(format!("{name} ({})", bad.words()));
            }
        }
        no_atomics += usize::from(!matches!(pair.atomics.get(), Some(P2p::Ok)));
    }
    let pairs = facts.topology.pairs.len();
    survey.verdict(
        "peer access",
        |bad| {
            Verdict::blocker(format!("{} of {pairs} pairs of GPUs cannot reach each other's memory: {}", bad.len(), few(bad)))
                .why("Ranks exchange their sums through peer memory: without it a run over these GPUs does not start. NCCL falls back to host memory (12.7 µs instead of 7.3 for 12 KiB, 236 instead of 38 for 6 MiB between two H200).")
                .fix("use the GPUs of one island (see topology), turn MIG off, look at iommu-mode and pcie-acs; GeForce cards from the 40 series on have no peer access with NVIDIA's driver")
        },
        || match no_atomics {
            0 => Verdict::ok("every GPU reaches every other's memory"),
            // Own collectives need none: flags are plain stores.
            _ => Verdict::ok(format!("every GPU reaches every other's memory; {no_atomics} of {pairs} pairs without atomics, which are not needed")),
        },
    )
}
