//! GPUs and the bridges above them: NVML's answers beside those of `/sys/bus/pci`.

use std::collections::BTreeMap;

use serde::Serialize;

use super::pci::{self, Acs, Port};
use crate::host::{Host, number, text};
use crate::nvml::{Nvml, NvmlGpu};
use crate::reading::{Reading, Unread};

const DEVICES: &str = "/sys/bus/pci/devices";
const NVIDIA: u32 = 0x10de;
/// Most GPUs, and most bridges above one.
const MAX_GPUS: usize = 64;
const MAX_BRIDGES: usize = 16;

/// The driver.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Driver {
    /// Whether NVML answers; if not, why.
    pub nvml: Reading<()>,
    /// The version, by NVML.
    pub version: Reading<String>,
    /// The newest CUDA that it runs: 1000 · major + 10 · minor.
    pub cuda: Reading<u32>,
    /// First line of `/proc/driver/nvidia/version`: the kernel's part.
    pub module: Reading<String>,
    /// `RegistryDwords` of the module's parameters.
    pub registry: Reading<String>,
    /// `uvm_disable_hmm` of the module `nvidia_uvm`.
    pub hmm_disabled: Reading<bool>,
}

/// A GPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Gpu {
    /// Its number for NVML, and for CUDA if `CUDA_DEVICE_ORDER=PCI_BUS_ID`.
    pub index: usize,
    /// `0000:19:00.0`.
    pub bus_id: Reading<String>,
    /// NVML's answers.
    pub nvml: Reading<NvmlGpu>,
    /// The host bridge that it hangs on: `pci0000:16`.
    pub host_bridge: Reading<String>,
    /// Bridges above it, the root port first.
    pub parents: Reading<Vec<String>>,
    /// Its NUMA node; −1 where the firmware does not say.
    pub numa_node: Reading<i32>,
    /// Processors that are near: `0-31,64-95`.
    pub cpus: Reading<String>,
    /// Its link.
    pub link: Link,
    /// Bytes of its second memory region, which holds its memory for others.
    pub bar1: Reading<u64>,
    /// `DMA`, `DMA-FQ`, `identity`; absent where it is in no group.
    pub iommu_group: Reading<String>,
    /// Sums of `aer_dev_correctable`, `aer_dev_nonfatal`, `aer_dev_fatal`.
    pub aer: Aer,
    /// Sleep states of its link: bit 0 L0s, bit 1 L1.
    pub aspm: Reading<u8>,
    /// `on` or `auto`.
    pub power_control: Reading<String>,
    /// Bytes of a packet.
    pub max_payload: Reading<u32>,
    /// Bytes that one read may ask for.
    pub max_read_request: Reading<u32>,
    /// Whether writes may pass each other.
    pub relaxed_ordering: Reading<bool>,
}

/// A bridge above a GPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Bridge {
    /// `0000:16:01.0`.
    pub bus_id: String,
    /// What it is; from its place if its registers cannot be read.
    pub port: Port,
    /// `0x1000`, the maker.
    pub vendor: Reading<u32>,
    /// The product.
    pub device: Reading<u32>,
    /// Its link to what is below, or for an upstream port above.
    pub link: Link,
    /// Access Control Services; absent where it has none.
    pub acs: Reading<Acs>,
    /// Sleep states of its link: bit 0 L0s, bit 1 L1.
    pub aspm: Reading<u8>,
    /// `on` or `auto`.
    pub power_control: Reading<String>,
    /// As of a GPU.
    pub aer: Aer,
    /// GPUs below it, by index.
    pub gpus: Vec<usize>,
}

/// A link as sysfs tells it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Link {
    /// Gigatransfers a second and lane, now.
    pub speed: Reading<f64>,
    /// At most.
    pub max_speed: Reading<f64>,
    /// Lanes now.
    pub width: Reading<u32>,
    /// At most.
    pub max_width: Reading<u32>,
}

/// Errors that the bus reported of a function since the system started.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Aer {
    /// Corrected by sending again.
    pub correctable: Reading<u64>,
    /// Not corrected; the link went on.
    pub nonfatal: Reading<u64>,
    /// The link was lost.
    pub fatal: Reading<u64>,
}

/// Translation of the addresses that devices use.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Iommu {
    /// Names in `/sys/class/iommu`; none: there is none, or it is off.
    pub units: Reading<Vec<String>>,
    /// What the kernel was told about it, and about PCIe.
    pub command_line: Reading<Vec<String>>,
}

/// What of the kernel's command line concerns PCIe and memory.
const WORDS: &[&str] = &[
    "iommu",
    "pcie_",
    "pci=",
    "numa_balancing",
    "hugepages",
    "transparent_hugepage",
    "nvidia",
];

pub(super) fn driver(host: &dyn Host, nvml: &Reading<Nvml>) -> Driver {
    let of = |why: &Unread| why.clone();
    Driver {
        nvml: nvml.clone().map(|_| ()),
        version: nvml
            .as_result()
            .map_or_else(|why| of(why).into(), |nvml| nvml.driver.clone()),
        cuda: nvml
            .as_result()
            .map_or_else(|why| of(why).into(), |nvml| nvml.cuda.clone()),
        module: text(host, "/proc/driver/nvidia/version")
            .map(|text| text.lines().next().unwrap_or_default().trim().to_owned()),
        registry: text(host, "/proc/driver/nvidia/params").and_then(|text| {
            let value = text
                .lines()
                .find_map(|line| line.strip_prefix("RegistryDwords: "));
            value.map_or(Unread::Absent.into(), |value| {
                Reading::Known(value.trim_matches('"').to_owned())
            })
        }),
        hmm_disabled: text(host, "/sys/module/nvidia_uvm/parameters/uvm_disable_hmm").and_then(
            |text| match text.as_str() {
                "Y" | "1" => Reading::Known(true),
                "N" | "0" => Reading::Known(false),
                other => Reading::unclear(format!(
                    "uvm_disable_hmm is {:?}",
                    crate::host::head(other, 20)
                )),
            },
        ),
    }
}

pub(super) fn gpus(host: &dyn Host, nvml: &Reading<Nvml>) -> Vec<Gpu> {
    match nvml.as_result() {
        Ok(nvml) => {
            let gpus = nvml.gpus.iter().take(MAX_GPUS).enumerate();
            gpus.map(|(index, gpu)| of_nvml(host, index, gpu)).collect()
        }
        Err(why) => on_the_bus(host, why),
    }
}

fn of_nvml(host: &dyn Host, index: usize, nvml: &NvmlGpu) -> Gpu {
    let place = nvml
        .bus_id
        .clone()
        .and_then(|text| match pci::bus_id(&text) {
            Some(place) => Reading::Known(place),
            None => Reading::unclear(format!(
                "NVML gives the place {:?}",
                crate::host::head(&text, 40)
            )),
        });
    gpu(host, index, place, Reading::Known(nvml.clone()))
}

/// GPUs by the bus alone: functions of NVIDIA whose class is a display controller.
fn on_the_bus(host: &dyn Host, why: &Unread) -> Vec<Gpu> {
    let places = host.list(DEVICES).known().cloned().unwrap_or_default();
    let is_gpu = |place: &String| {
        let number = |name: &str| number::<u32>(host, &format!("{DEVICES}/{place}/{name}")).get();
        number("vendor") == Some(NVIDIA) && number("class").is_some_and(|class| class >> 16 == 0x03)
    };
    let places = places.into_iter().filter(is_gpu).take(MAX_GPUS).enumerate();
    let of_place = |(index, place)| gpu(host, index, Reading::Known(place), why.clone().into());
    places.map(of_place).collect()
}

fn gpu(host: &dyn Host, index: usize, bus_id: Reading<String>, nvml: Reading<NvmlGpu>) -> Gpu {
    let folder = bus_id.clone().map(|place| format!("{DEVICES}/{place}"));
    macro_rules! at {
        ($name:literal, $read:expr) => {
            folder
                .clone()
                .and_then(|folder| $read(host, &format!("{folder}/{}", $name)))
        };
    }
    let chain = folder
        .clone()
        .and_then(|folder| host.link(&folder))
        .and_then(|link| match pci::chain(&link) {
            Some(chain) => Reading::Known(chain),
            None => Reading::unclear(format!(
                "its link in sysfs has an unusual form: {}",
                crate::host::head(&link, 120)
            )),
        });
    let config = folder
        .clone()
        .and_then(|folder| host.read(&format!("{folder}/config")));
    let express = config.and_then(|config| pci::express(&config));
    let place = bus_id.known().map_or("", String::as_str);
    Gpu {
        index,
        nvml,
        host_bridge: chain.clone().map(|(host, _)| host),
        parents: chain.map(|(_, mut parents)| {
            parents.truncate(MAX_BRIDGES);
            parents
        }),
        numa_node: at!("numa_node", number::<i32>),
        cpus: at!("local_cpulist", text),
        link: link(host, place),
        bar1: at!("resource", text).and_then(|text| region(&text, 1)),
        iommu_group: folder
            .clone()
            .and_then(|folder| host.link(&format!("{folder}/iommu_group")))
            .and_then(|link| {
                let group = link.rsplit('/').next().unwrap_or_default().to_owned();
                text(host, &format!("/sys/kernel/iommu_groups/{group}/type"))
            }),
        aer: aer(host, place),
        aspm: aspm(host, place, &express),
        power_control: at!("power/control", text),
        max_payload: express.clone().map(|express| express.max_payload),
        max_read_request: express.clone().map(|express| express.max_read_request),
        relaxed_ordering: express.map(|express| express.relaxed_ordering),
        bus_id,
    }
}

/// Bridges above GPUs, in the order of the bus, those nearer to the root first.
pub(super) fn bridges(host: &dyn Host, gpus: &[Gpu]) -> Vec<Bridge> {
    let mut above: BTreeMap<(usize, String), Vec<usize>> = BTreeMap::new();
    for gpu in gpus {
        for (depth, place) in gpu.parents.known().into_iter().flatten().enumerate() {
            above
                .entry((depth, place.clone()))
                .or_default()
                .push(gpu.index);
        }
    }
    let of = |((depth, place), gpus)| bridge(host, place, depth, gpus);
    above.into_iter().map(of).collect()
}

fn bridge(host: &dyn Host, bus_id: String, depth: usize, gpus: Vec<usize>) -> Bridge {
    let config = host.read(&format!("{DEVICES}/{bus_id}/config"));
    let express = config.clone().and_then(|config| pci::express(&config));
    Bridge {
        // Below a root port, the sides of switches alternate.
        port: express.known().map_or(
            match depth {
                0 => Port::Root,
                depth if depth % 2 == 1 => Port::Upstream,
                _ => Port::Downstream,
            },
            |express| express.port,
        ),
        vendor: number(host, &format!("{DEVICES}/{bus_id}/vendor")),
        device: number(host, &format!("{DEVICES}/{bus_id}/device")),
        link: link(host, &bus_id),
        acs: config.and_then(|config| pci::acs(&config)),
        aspm: aspm(host, &bus_id, &express),
        power_control: text(host, &format!("{DEVICES}/{bus_id}/power/control")),
        aer: aer(host, &bus_id),
        gpus,
        bus_id,
    }
}

fn link(host: &dyn Host, place: &str) -> Link {
    let speed = |name: &str| {
        text(host, &format!("{DEVICES}/{place}/{name}")).and_then(|text| {
            // `32.0 GT/s PCIe`; `Unknown` where the link is down.
            let number = text
                .split(' ')
                .next()
                .and_then(|number| number.parse::<f64>().ok());
            match number.filter(|number| number.is_finite() && *number > 0.0) {
                Some(number) => Reading::Known(number),
                // `Unknown`: a link that is down, or that a hypervisor does not show.
                None if text.starts_with("Unknown") => Unread::Absent.into(),
                None => Reading::unclear(format!("{name} is {:?}", crate::host::head(&text, 20))),
            }
        })
    };
    let width = |name: &str| {
        number(host, &format!("{DEVICES}/{place}/{name}")).and_then(|lanes: u32| match lanes {
            0 | 255 => Unread::Absent.into(),
            lanes => Reading::Known(lanes),
        })
    };
    Link {
        speed: speed("current_link_speed"),
        max_speed: speed("max_link_speed"),
        width: width("current_link_width"),
        max_width: width("max_link_width"),
    }
}

fn aer(host: &dyn Host, place: &str) -> Aer {
    let total = |name: &str, sum: &str| {
        text(host, &format!("{DEVICES}/{place}/{name}")).and_then(|text| {
            let line = text.lines().find_map(|line| line.strip_prefix(sum));
            match line.and_then(|number| number.trim().parse().ok()) {
                Some(number) => Reading::Known(number),
                None => Reading::unclear(format!("{name} has no line {sum}")),
            }
        })
    };
    Aer {
        correctable: total("aer_dev_correctable", "TOTAL_ERR_COR"),
        nonfatal: total("aer_dev_nonfatal", "TOTAL_ERR_NONFATAL"),
        fatal: total("aer_dev_fatal", "TOTAL_ERR_FATAL"),
    }
}

/// From the register, or without root from `link/l0s_aspm` and `link/l1_aspm`, which newer kernels show to all.
fn aspm(host: &dyn Host, place: &str, express: &Reading<pci::Express>) -> Reading<u8> {
    let why = match express.as_result() {
        Ok(express) => return Reading::Known(express.aspm),
        Err(why) => why.clone(),
    };
    let state = |name: &str| number::<u8>(host, &format!("{DEVICES}/{place}/link/{name}"));
    match (state("l0s_aspm"), state("l1_aspm")) {
        (Reading::Known(l0s), Reading::Known(l1)) => Reading::Known((l0s & 1) | (l1 & 1) << 1),
        (Reading::Known(l0s), _) => Reading::Known(l0s & 1),
        (_, Reading::Known(l1)) => Reading::Known((l1 & 1) << 1),
        _ => why.into(),
    }
}

/// Bytes of a memory region: a line `start end flags` of `resource` for each.
fn region(text: &str, index: usize) -> Reading<u64> {
    let line = text.lines().nth(index);
    let size = line.and_then(|line| {
        let mut numbers = line
            .split_whitespace()
            .map(|n| u64::from_str_radix(n.trim_start_matches("0x"), 16).ok());
        let (start, end) = (numbers.next()??, numbers.next()??);
        match (start, end) {
            (0, 0) => Some(0),
            _ => end.checked_sub(start)?.checked_add(1),
        }
    });
    size.map_or_else(
        || Reading::unclear("the file resource has no such region"),
        Reading::Known,
    )
}

pub(super) fn iommu(host: &dyn Host) -> Iommu {
    Iommu {
        units: match host.list("/sys/class/iommu") {
            // A kernel without IOMMU support has no such class.
            Reading::Unknown {
                unknown: Unread::Absent,
            } => Reading::Known(Vec::new()),
            units => units,
        },
        command_line: text(host, "/proc/cmdline").map(|line| {
            let words = line
                .split_whitespace()
                .filter(|word| WORDS.iter().any(|part| word.contains(part)));
            words.map(str::to_owned).collect()
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_from_its_first_to_its_last_byte() {
        let text = "0x0000000094000000 0x0000000097ffffff 0x0000000000140204\n0x0000380000000000 0x0000381fffffffff 0x000000000014220c\n0x0 0x0 0x0";
        assert_eq!(region(text, 0).get(), Some(64 << 20));
        assert_eq!(region(text, 1).get(), Some(128 << 30));
        assert_eq!(region(text, 2).get(), Some(0));
        for hostile in ["", "x y z", "0x2 0x1 0x0", "0x0 0xffffffffffffffff"] {
            assert_eq!(region(hostile, 0).get(), None, "{hostile}");
        }
    }
}
