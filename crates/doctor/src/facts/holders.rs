//! Who holds GPUs now.
//!
//! NVML names processes with memory; `/proc` names those with an open device file. A process is the same one only as long as its start
//! time is the same: numbers are used again, so whoever acts on a holder compares both. What is in use and belongs to no process that can
//! be seen is told in bytes: held by another container, by a peer that was given the memory, or by one that died in the driver.

use std::path::PathBuf;

use serde::Serialize;

use super::pci;
use crate::host::processes::walk;
use crate::host::{Host, Live, ProcessFiles};
use crate::nvml::{MigMode, Nvml, NvmlGpu, NvmlProcess, Use};
use crate::process::{ControlGroup, ProcFs, Stat};
use crate::reading::{Reading, Unread};

/// Bytes in use without a holder that are no finding: the driver's own, and contexts that come and go.
const SMALL: u64 = 512 << 20;

/// Who holds GPUs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Holders {
    /// Processes, by number.
    pub processes: Reading<Vec<Holder>>,
    /// Processes whose open files could not be seen.
    pub unreadable: u32,
    /// GPUs with memory in use that no process in sight holds, and how much of it.
    pub unattributed: Vec<(usize, u64)>,
    /// GPUs by NVML's index: where they are, and what NVML does not tell of them.
    pub gpus: Vec<Told>,
    /// Why NVML tells nothing of any GPU, if it does not answer.
    pub untold: Option<Unread>,
}

/// A GPU, as far as its holders go.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Told {
    /// `0000:19:00.0`: the same in every process, whatever it calls visible.
    pub bus_id: Reading<String>,
    /// Why NVML does not tell its processes, if it does not: then nobody's being named does not make it free.
    pub untold: Option<Unread>,
    /// Whether it is cut into instances: NVML does not tell which of them a process is on.
    pub is_cut: bool,
}

/// A process that holds a GPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Holder {
    /// Its number.
    pub pid: u32,
    /// When it was started, in ticks since the system was: with the number, which process it is.
    pub start_ticks: Reading<u64>,
    /// For how many seconds it has run.
    pub age_seconds: Reading<u64>,
    /// R, S, D, Z …
    pub state: Reading<char>,
    /// Its parent; 1: nobody waits for it.
    pub parent: Reading<u32>,
    /// Its command line, shortened.
    pub command: Reading<String>,
    /// Its user by number.
    pub uid: Reading<u32>,
    /// Its user by name.
    pub user: Reading<String>,
    /// The systemd unit that it belongs to.
    pub unit: Option<String>,
    /// The container that it runs in, twelve digits.
    pub container: Option<String>,
    /// The Kubernetes pod, by its uid.
    pub pod: Option<String>,
    /// GPUs on which it has memory.
    pub gpus: Vec<GpuHolder>,
    /// Device files of GPUs that it has open.
    pub devices: Vec<String>,
}

/// What a process has on one GPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GpuHolder {
    /// The GPU's index.
    pub gpu: usize,
    /// How much; the driver does not always say.
    pub bytes: Reading<u64>,
    /// For what; unknown if only a device file is open.
    #[serde(rename = "use")]
    pub use_: Reading<Use>,
}

impl Holder {
    /// Whether no signal ends it any more: a zombie whose memory the driver keeps, or one that waits in the driver.
    pub fn is_stuck(&self) -> bool {
        matches!(self.state.get(), Some('D' | 'Z' | 'X'))
    }

    /// Whether it has memory on this GPU, or its device file open.
    pub fn holds(&self, gpu: usize) -> bool {
        self.gpus.iter().any(|held| held.gpu == gpu)
    }

    /// Whether it has memory for computing on this GPU.
    pub fn computes_on(&self, gpu: usize) -> bool {
        let mut held = self.gpus.iter().filter(|held| held.gpu == gpu);
        held.any(|held| matches!(held.use_.get(), Some(Use::Compute | Use::Mps)))
    }

    /// Bytes on all GPUs, as far as they are known.
    pub fn bytes(&self) -> u64 {
        self.gpus.iter().filter_map(|held| held.bytes.get()).sum()
    }

    /// Whether it is a part of the driver that every machine runs, and that holds no memory.
    pub fn is_daemon(&self) -> bool {
        const DAEMONS: &[&str] = &[
            "nvidia-persistenced",
            "nv-fabricmanager",
            "nvidia-smi",
            "nv-hostengine",
            "dcgm",
            "nvsm_core",
        ];
        let command = self.command.known().map_or("", String::as_str);
        let name = command
            .split(' ')
            .next()
            .unwrap_or_default()
            .rsplit('/')
            .next()
            .unwrap_or_default();
        self.bytes() == 0 && DAEMONS.iter().any(|daemon| name.starts_with(daemon))
    }

    /// In one line: `pid 4711 (user ann, unit old.service, 3 d): 41.2 GiB on GPU 0, …: command`.
    pub fn line(&self) -> String {
        let mut who = vec![match self.user.known() {
            Some(user) => format!("user {user}"),
            None => self
                .uid
                .get()
                .map_or_else(|| "user unknown".to_owned(), |uid| format!("user {uid}")),
        }];
        who.extend(self.unit.as_ref().map(|unit| format!("unit {unit}")));
        who.extend(
            self.container
                .as_ref()
                .map(|container| format!("container {container}")),
        );
        who.extend(self.pod.as_ref().map(|pod| format!("pod {pod}")));
        who.extend(
            self.age_seconds
                .get()
                .map(|age| format!("running for {}", crate::page::age(age))),
        );
        if self.is_stuck() {
            who.push(format!(
                "state {}: no signal ends it",
                self.state.get().unwrap_or('?')
            ));
        }
        let what = self.gpus.iter().map(|held| match held.bytes.get() {
            Some(bytes) => format!("{} on GPU {}", crate::page::bytes(bytes), held.gpu),
            None => format!("a handle of GPU {}", held.gpu),
        });
        let mut what = what.collect::<Vec<_>>();
        if what.is_empty() {
            what.extend(
                self.devices
                    .iter()
                    .map(|device| format!("a handle of {device}")),
            );
        }
        let mut line = format!("pid {} ({}): ", self.pid, who.join(", "));
        if !what.is_empty() {
            line += &format!("{}: ", what.join(", "));
        }
        line + self
            .command
            .known()
            .map_or("command unknown", String::as_str)
    }
}

/// What keeps GPUs from being free.
#[derive(Debug, Clone, PartialEq)]
pub struct Held<'a> {
    /// Processes that have memory for computing on one of them.
    pub processes: Vec<&'a Holder>,
    /// GPUs with memory in use that no process in sight holds, and how much of it.
    pub unattributed: Vec<(usize, u64)>,
    /// Why processes could not be told, if they could not.
    pub unknown: Option<Unread>,
}

impl Held<'_> {
    /// Whether nothing keeps the GPUs, and that is known.
    pub fn is_free(&self) -> bool {
        self.processes.is_empty() && self.unattributed.is_empty() && self.unknown.is_none()
    }
}

impl Holders {
    /// Those that have one of these GPUs open in any way, parts of the driver aside; unknown if processes cannot be seen.
    pub fn of(&self, gpus: &[usize]) -> Reading<Vec<&Holder>> {
        match self.processes.as_result() {
            Ok(processes) => {
                let holds = |holder: &&Holder| {
                    !holder.is_daemon() && gpus.iter().any(|&gpu| holder.holds(gpu))
                };
                Reading::Known(processes.iter().filter(holds).collect())
            }
            Err(why) => why.clone().into(),
        }
    }

    /// What keeps these GPUs (by NVML's index) from being free for computing. Displays and mere handles do not: what they take is small,
    /// and part of the memory in use.
    pub fn held(&self, gpus: &[usize]) -> Held<'_> {
        let of = self.of(gpus);
        let computes = |holder: &&Holder| gpus.iter().any(|&gpu| holder.computes_on(gpu));
        let all = of.known().into_iter().flatten().copied();
        let unattributed = self.unattributed.iter().copied();
        let told = gpus.iter().filter_map(|&gpu| self.gpus.get(gpu));
        let untold = told.filter_map(|told| told.untold.as_ref()).next();
        Held {
            processes: all.filter(computes).collect(),
            unattributed: unattributed.filter(|(gpu, _)| gpus.contains(gpu)).collect(),
            unknown: of.why().or(self.untold.as_ref()).or(untold).cloned(),
        }
    }

    /// NVML's index of the GPU at a place on the bus, in whatever form; CUDA's ordinals are other numbers (`CUDA_VISIBLE_DEVICES`,
    /// fastest first).
    pub fn at(&self, bus_id: &str) -> Option<usize> {
        let place = pci::bus_id(bus_id)?;
        let is_at = |told: &Told| told.bus_id.known() == Some(&place);
        self.gpus.iter().position(is_at)
    }

    /// A process of this machine, whatever it holds: what is told of a holder that is known otherwise, as by its lock.
    pub fn of_process(pid: u32) -> Option<Holder> {
        let seen = walk(&ProcFs::default(), &[pid], |_| false);
        let uptime = uptime(&Live::default()).get();
        let seen = seen.known()?;
        let files = seen.found.first()?;
        Some(holder(files, &[], &[], seen.ticks_per_second, uptime))
    }

    /// Processes of this machine that have one of these files open, by canonical path: of a device that NVML does not know.
    pub fn of_files(paths: &[PathBuf]) -> Reading<Vec<Holder>> {
        let is_wanted = |path: &std::path::Path| paths.iter().any(|wanted| wanted == path);
        let seen = walk(&ProcFs::default(), &[], is_wanted);
        let uptime = uptime(&Live::default());
        seen.map(|seen| {
            let ticks = seen.ticks_per_second;
            let holder = |files| holder(files, &[], &[], ticks, uptime.get());
            seen.found.iter().map(holder).collect()
        })
    }
}

pub(super) fn holders(host: &dyn Host, nvml: &Reading<Nvml>) -> Holders {
    let none = Vec::new();
    let gpus = nvml.known().map_or(&none, |nvml| &nvml.gpus);
    // Who has memory, by process.
    let mut told: Vec<(usize, &NvmlProcess)> = Vec::new();
    for (index, gpu) in gpus.iter().enumerate() {
        told.extend(
            gpu.processes
                .known()
                .into_iter()
                .flatten()
                .map(|process| (index, process)),
        );
    }
    let mut pids: Vec<u32> = told.iter().map(|(_, process)| process.pid).collect();
    pids.sort_unstable();
    pids.dedup();
    let seen = host.processes(&pids);
    let uptime = uptime(host);
    let minors: Vec<Option<u32>> = gpus.iter().map(|gpu| gpu.minor.get()).collect();
    let processes = seen.clone().map(|seen| {
        let ticks = seen.ticks_per_second;
        let mut holders: Vec<Holder> = seen
            .found
            .iter()
            .map(|files| holder(files, &told, &minors, ticks, uptime.get()))
            .collect();
        // Named by NVML and not in /proc: of another name space.
        for pid in pids
            .iter()
            .filter(|pid| !seen.found.iter().any(|files| files.pid == **pid))
        {
            holders.push(unseen(*pid, &told));
        }
        holders.retain(|holder| !holder.gpus.is_empty());
        holders.sort_by_key(|holder| holder.pid);
        holders
    });
    Holders {
        processes,
        untold: nvml.why().cloned(),
        gpus: gpus.iter().map(told_of).collect(),
        unreadable: seen.known().map_or(0, |seen| seen.unreadable),
        unattributed: gpus
            .iter()
            .enumerate()
            .filter_map(|(index, gpu)| Some((index, unattributed(gpu)?)))
            .collect(),
    }
}

fn told_of(gpu: &NvmlGpu) -> Told {
    let place = |text: String| match pci::bus_id(&text) {
        Some(place) => Reading::Known(place),
        None => Reading::unclear("NVML gives no place on the bus"),
    };
    Told {
        bus_id: gpu.bus_id.clone().and_then(place),
        untold: gpu.processes.why().cloned(),
        is_cut: matches!(gpu.mig.get(), Some(MigMode { current: true, .. })),
    }
}

/// Seconds since the system started.
fn uptime(host: &dyn Host) -> Reading<f64> {
    crate::host::text(host, "/proc/uptime").and_then(|text| {
        let seconds = text
            .split(' ')
            .next()
            .and_then(|seconds| seconds.parse::<f64>().ok());
        seconds.map_or_else(
            || Reading::unclear("/proc/uptime holds no number"),
            Reading::Known,
        )
    })
}

/// Bytes in use that no process accounts for, if they are many and all processes' shares are known.
fn unattributed(gpu: &NvmlGpu) -> Option<u64> {
    let used = gpu.memory.get()?.used;
    let shares = gpu
        .processes
        .known()?
        .iter()
        .map(|process| process.bytes.get());
    let known: u64 = shares.sum::<Option<u64>>()?;
    used.checked_sub(known).filter(|&bytes| bytes > SMALL)
}

fn on_gpus(pid: u32, told: &[(usize, &NvmlProcess)]) -> Vec<GpuHolder> {
    let of_pid = told.iter().filter(|(_, process)| process.pid == pid);
    let held = of_pid.map(|(gpu, process)| GpuHolder {
        gpu: *gpu,
        bytes: process.bytes.clone(),
        use_: Reading::Known(process.use_),
    });
    held.collect()
}

fn unseen(pid: u32, told: &[(usize, &NvmlProcess)]) -> Holder {
    fn away<T>() -> Reading<T> {
        Unread::Absent.into()
    }
    Holder {
        pid,
        start_ticks: away(),
        age_seconds: away(),
        state: away(),
        parent: away(),
        command: away(),
        uid: away(),
        user: away(),
        unit: None,
        container: None,
        pod: None,
        gpus: on_gpus(pid, told),
        devices: Vec::new(),
    }
}

fn holder(
    files: &ProcessFiles,
    told: &[(usize, &NvmlProcess)],
    minors: &[Option<u32>],
    ticks_per_second: u64,
    uptime: Option<f64>,
) -> Holder {
    let stat = match Stat::parse(&files.stat) {
        Some(stat) => Reading::Known(stat),
        None => Reading::unclear("its stat has an unusual form"),
    };
    let start = stat.clone().map(|stat| stat.start);
    let mut gpus = on_gpus(files.pid, told);
    let devices = files.devices.known().cloned().unwrap_or_default();
    for device in &devices {
        // `/dev/nvidia3` is a GPU; `nvidiactl`, `nvidia-uvm` are those of all.
        let minor = device
            .strip_prefix("/dev/nvidia")
            .and_then(|minor| minor.parse::<u32>().ok());
        let gpu = minor.and_then(|minor| minors.iter().position(|of| *of == Some(minor)));
        if let Some(gpu) = gpu.filter(|gpu| !gpus.iter().any(|held| held.gpu == *gpu)) {
            gpus.push(GpuHolder {
                gpu,
                bytes: Unread::Unsupported.into(),
                use_: Unread::Unsupported.into(),
            });
        }
    }
    gpus.sort_by_key(|held| held.gpu);
    let group = ControlGroup::parse(&files.cgroup);
    Holder {
        pid: files.pid,
        age_seconds:
            start
                .clone()
                .and_then(|start| match (uptime, ticks_per_second) {
                    (Some(uptime), 1..) => Reading::Known(
                        (uptime - start as f64 / ticks_per_second as f64).max(0.0) as u64,
                    ),
                    _ => Unread::Absent.into(),
                }),
        start_ticks: start,
        state: stat.clone().map(|stat| stat.state),
        parent: stat.map(|stat| stat.parent),
        // A kernel thread, and a process that has ended, has none: then its short name.
        command: match files.command.is_empty() {
            false => Reading::Known(files.command.clone()),
            true => match Stat::name(&files.stat) {
                Some(name) => Reading::Known(format!("[{name}]")),
                None => Unread::Absent.into(),
            },
        },
        uid: files.uid.clone(),
        user: files.user.clone(),
        unit: group.unit,
        container: group.container,
        pod: group.pod,
        gpus,
        devices,
    }
}
