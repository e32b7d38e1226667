//! Processors, memory, limits, and where compiled kernels are kept.

use serde::Serialize;

use crate::host::{Host, Space, number, text};
use crate::reading::{Reading, Unread};

/// Most control groups above each other.
const MAX_GROUPS: usize = 32;
/// Most NUMA nodes that are looked at.
const MAX_NODES: usize = 64;
/// Instruction sets that the CPU backend has kernels for.
const FEATURES: &[&str] = &[
    "avx2",
    "fma",
    "f16c",
    "avx_vnni",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "amx_int8",
];

/// Processors and memory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cpu {
    /// The product's name.
    pub model: Reading<String>,
    /// Which of the instruction sets that matter it has.
    pub features: Reading<Vec<String>>,
    /// Whether it is a virtual machine's.
    pub hypervisor: Reading<bool>,
    /// Processors that are on: `0-127`.
    pub online: Reading<String>,
    /// NUMA nodes and their processors.
    pub nodes: Reading<Vec<(u32, String)>>,
    /// How clocks are chosen, of the first processor of each node; absent where the firmware or a hypervisor does it.
    pub governors: Reading<Vec<(u32, String)>>,
    /// Whether the kernel moves pages between nodes.
    pub numa_balancing: Reading<bool>,
    /// Bytes of memory.
    pub memory: Reading<u64>,
    /// Bytes that can be had without swapping.
    pub memory_available: Reading<u64>,
    /// Bytes that this process's control group, or one above it, may have; absent: as many as there are.
    pub memory_limit: Reading<u64>,
    /// Huge pages that were set aside, and those that nobody has.
    pub huge_pages: Reading<(u64, u64)>,
    /// `always`, `madvise` or `never`.
    pub transparent_huge_pages: Reading<String>,
}

/// What this process may take.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Limits {
    /// Bytes that may be locked in memory; `None`: no limit.
    pub locked_memory: Reading<Option<u64>>,
    /// Files that may be open; `None`: no limit.
    pub open_files: Reading<Option<u64>>,
    /// Room of `/dev/shm`.
    pub shared_memory: Reading<Space>,
}

/// Where compiled kernels are kept.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KernelCache {
    /// The folder.
    pub path: String,
    /// Files in it.
    pub files: Reading<usize>,
    /// Whether more can be added; for a folder that is yet to be made, whether it can be.
    pub writable: Reading<bool>,
    /// Room of its file system.
    pub space: Reading<Space>,
    /// Files among the kernels that came with the program.
    pub prebuilt: Reading<usize>,
}

pub(super) fn cpu(host: &dyn Host) -> Cpu {
    let info = text(host, "/proc/cpuinfo");
    // Of the first processor; `flags` on x86, `Features` on ARM.
    let field = |names: &[&str]| {
        info.clone().and_then(|info| {
            let line = info.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                names
                    .contains(&name.trim())
                    .then(|| value.trim().to_owned())
            });
            line.map_or(Unread::Absent.into(), Reading::Known)
        })
    };
    let flags: Reading<Vec<String>> =
        field(&["flags", "Features"]).map(|flags| flags.split(' ').map(str::to_owned).collect());
    let memory = text(host, "/proc/meminfo");
    let of_memory = |name: &str, unit: u64| {
        memory.clone().and_then(|text| {
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            let number = line.and_then(|line| line.trim().split(' ').next()?.parse::<u64>().ok());
            number.map_or(Unread::Absent.into(), |number| {
                Reading::Known(number.saturating_mul(unit))
            })
        })
    };
    let nodes = nodes(host);
    Cpu {
        model: field(&["model name", "CPU implementer"]),
        hypervisor: flags
            .clone()
            .map(|flags| flags.iter().any(|flag| flag == "hypervisor")),
        features: flags.map(|flags| {
            FEATURES
                .iter()
                .filter(|name| flags.iter().any(|flag| flag == *name))
                .map(|name| (*name).to_owned())
                .collect()
        }),
        online: text(host, "/sys/devices/system/cpu/online"),
        governors: nodes.clone().and_then(|nodes| governors(host, &nodes)),
        nodes,
        numa_balancing: number::<u32>(host, "/proc/sys/kernel/numa_balancing")
            .map(|mode| mode != 0),
        memory: of_memory("MemTotal", 1024),
        memory_available: of_memory("MemAvailable", 1024),
        memory_limit: memory_limit(host),
        huge_pages: of_memory("HugePages_Total", 1)
            .and_then(|all| of_memory("HugePages_Free", 1).map(|free| (all, free))),
        transparent_huge_pages: text(host, "/sys/kernel/mm/transparent_hugepage/enabled").and_then(
            |text| {
                // `always [madvise] never`
                let chosen = text
                    .split_once('[')
                    .and_then(|(_, rest)| rest.split_once(']'));
                match chosen {
                    Some((chosen, _)) => Reading::Known(chosen.to_owned()),
                    None => Reading::unclear("nothing is chosen in transparent_hugepage/enabled"),
                }
            },
        ),
    }
}

/// The least `memory.max` on the way from this process's control group to the root, version 2 (`Documentation/admin-guide/cgroup-v2.rst`
/// of Linux). A container sees its own group as the root.
fn memory_limit(host: &dyn Host) -> Reading<u64> {
    let groups = match text(host, "/proc/self/cgroup") {
        Reading::Known(groups) => groups,
        Reading::Unknown { unknown } => return unknown.into(),
    };
    let mut least: Option<u64> = None;
    let mut path = groups.lines().find_map(|line| line.strip_prefix("0::"));
    for _ in 0..MAX_GROUPS {
        let Some(group) = path else { break };
        let group = group.trim_end_matches('/');
        // "max" is no number: no limit here.
        let limit = number::<u64>(host, &format!("/sys/fs/cgroup{group}/memory.max")).get();
        least = least.into_iter().chain(limit).min();
        path = group.rsplit_once('/').map(|(above, _)| above);
    }
    least.map_or(Unread::Absent.into(), Reading::Known)
}

fn nodes(host: &dyn Host) -> Reading<Vec<(u32, String)>> {
    host.list("/sys/devices/system/node").and_then(|names| {
        let mut numbers: Vec<u32> = names
            .iter()
            .filter_map(|name| name.strip_prefix("node")?.parse().ok())
            .collect();
        numbers.sort_unstable();
        numbers.truncate(MAX_NODES);
        let mut nodes = Vec::new();
        for node in numbers {
            match text(
                host,
                &format!("/sys/devices/system/node/node{node}/cpulist"),
            ) {
                Reading::Known(cpus) => nodes.push((node, cpus)),
                Reading::Unknown { unknown } => return unknown.into(),
            }
        }
        Reading::Known(nodes)
    })
}

/// Of the first processor of each node: settings of one node's processors differ only where somebody meant it.
fn governors(host: &dyn Host, nodes: &[(u32, String)]) -> Reading<Vec<(u32, String)>> {
    let mut found = Vec::new();
    for (_, cpus) in nodes {
        let first = cpus
            .split([',', '-'])
            .next()
            .and_then(|first| first.parse::<u32>().ok());
        // A node of memory alone has no processor.
        let Some(first) = first else { continue };
        match text(
            host,
            &format!("/sys/devices/system/cpu/cpu{first}/cpufreq/scaling_governor"),
        ) {
            Reading::Known(governor) => found.push((first, governor)),
            Reading::Unknown { unknown } => return unknown.into(),
        }
    }
    Reading::Known(found)
}

pub(super) fn limits(host: &dyn Host) -> Limits {
    let limits = text(host, "/proc/self/limits");
    let of = |name: &str| {
        limits.clone().and_then(|text| {
            // Name, soft limit, hard limit, unit, in columns.
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            match line.and_then(|line| line.split_whitespace().next()) {
                Some("unlimited") => Reading::Known(None),
                Some(number) => match number.parse() {
                    Ok(number) => Reading::Known(Some(number)),
                    Err(_) => {
                        Reading::unclear(format!("{name} is not a number in /proc/self/limits"))
                    }
                },
                None => Unread::Absent.into(),
            }
        })
    };
    Limits {
        locked_memory: of("Max locked memory"),
        open_files: of("Max open files"),
        shared_memory: host.space("/dev/shm"),
    }
}

pub(super) fn kernel_cache(host: &dyn Host, path: &str, prebuilt: Option<&str>) -> KernelCache {
    let count = |path: &str| match host.list(path).map(|names| names.len()) {
        Reading::Unknown {
            unknown: Unread::Absent,
        } => Reading::Known(0),
        count => count,
    };
    // The nearest folder above that there is decides whether it can be made.
    let mut folder = path;
    let writable = loop {
        match host.may_write(folder) {
            Reading::Unknown {
                unknown: Unread::Absent,
            } => match folder.rsplit_once('/') {
                Some((above, _)) if !above.is_empty() => folder = above,
                _ => break host.may_write("/"),
            },
            writable => break writable,
        }
    };
    KernelCache {
        files: count(path),
        writable,
        space: host.space(path),
        prebuilt: prebuilt.map_or(Reading::Known(0), count),
        path: path.to_owned(),
    }
}
