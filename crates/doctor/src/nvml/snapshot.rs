//! Asks NVML everything once.

use super::library::{Device, Loaded};
use super::{
    Fabric, MigMode, Nvml, NvmlGpu, NvmlLink, NvmlPair, NvmlProcess, P2p, RemappedRows, Use,
};
use crate::reading::{Reading, Unread};

/// `NVML_NVLINK_MAX_LINKS`.
const MAX_LINKS: u32 = 36;
/// Most GPUs of one machine.
const MAX_GPUS: u32 = 64;

/// All that NVML says now; unknown if there is no library or it cannot start.
pub(crate) fn snapshot() -> Reading<Nvml> {
    let loaded = match Loaded::open() {
        Ok(loaded) => loaded,
        Err(why) => return why.into(),
    };
    let count = match loaded.count().as_result() {
        Ok(&count) => count.min(MAX_GPUS),
        Err(why) => return why.clone().into(),
    };
    let devices: Vec<Reading<Device>> = (0..count).map(|index| loaded.device(index)).collect();
    let gpus = devices.iter().map(|device| gpu(&loaded, device)).collect();
    let mut pairs = Vec::new();
    for second in 0..devices.len() {
        for first in 0..second {
            pairs.push(pair(&loaded, &devices, first, second));
        }
    }
    Reading::Known(Nvml {
        driver: loaded.driver(),
        cuda: loaded.cuda(),
        gpus,
        pairs,
    })
}

fn gpu(loaded: &Loaded, device: &Reading<Device>) -> NvmlGpu {
    // A GPU that fell off the bus has a place in the list and no handle: then each value is unknown for that reason.
    macro_rules! ask {
        ($function:ident) => {
            device.clone().and_then(|device| loaded.$function(device))
        };
    }
    let mig = ask!(mig).map(|(current, pending)| MigMode {
        current: current == 1,
        pending: pending == 1,
    });
    NvmlGpu {
        name: ask!(name),
        uuid: ask!(uuid),
        bus_id: ask!(bus_id),
        minor: ask!(minor),
        capability: ask!(capability),
        memory: ask!(memory),
        bar1: ask!(bar1),
        mig_instances: match (&mig, device) {
            (Reading::Known(MigMode { current: true, .. }), Reading::Known(device)) => {
                loaded.mig_places(*device).map(|places| {
                    (0..places)
                        .filter(|&index| loaded.has_mig_instance(*device, index))
                        .count() as u32
                })
            }
            (Reading::Known(_), _) => Reading::Known(0),
            (Reading::Unknown { unknown }, _) => unknown.clone().into(),
        },
        mig,
        compute_mode: ask!(compute_mode),
        persistence: ask!(persistence),
        power_limit: ask!(power_limit),
        power_default: ask!(power_default),
        clock_reasons: ask!(clock_reasons),
        link_generation: ask!(link_generation),
        link_width: ask!(link_width),
        replays: ask!(replays),
        ecc_uncorrected: ask!(ecc_uncorrected),
        remapped: ask!(remapped).map(|[correctable, uncorrectable, pending, failed]| {
            RemappedRows {
                correctable,
                uncorrectable,
                pending: pending != 0,
                failed: failed != 0,
            }
        }),
        fabric: ask!(fabric_state).and_then(|state| match state {
            0 => Reading::Known(Fabric::None),
            1 => Reading::Known(Fabric::NotStarted),
            2 => Reading::Known(Fabric::InProgress),
            3 => Reading::Known(Fabric::Completed),
            other => Reading::unclear(format!("a state of the fabric with the number {other}")),
        }),
        nvlinks: device
            .get()
            .map(|device| links(loaded, device))
            .unwrap_or_default(),
        processes: device.clone().and_then(|device| processes(loaded, device)),
    }
}

fn links(loaded: &Loaded, device: Device) -> Vec<NvmlLink> {
    let link = |link| {
        let active = loaded.nvlink(device, link).get()?;
        Some(NvmlLink {
            link,
            active,
            remote: match active {
                true => loaded.nvlink_remote(device, link),
                false => Unread::Absent.into(),
            },
        })
    };
    (0..MAX_LINKS).filter_map(link).collect()
}

fn pair(loaded: &Loaded, devices: &[Reading<Device>], first: usize, second: usize) -> NvmlPair {
    let status = |capability| {
        let devices = devices[first]
            .clone()
            .and_then(|a| devices[second].clone().map(|b| (a, b)));
        devices
            .and_then(|(a, b)| loaded.p2p(a, b, capability))
            .map(|status| match status {
                0 => P2p::Ok,
                1 => P2p::ChipsetNotSupported,
                2 => P2p::GpuNotSupported,
                3 => P2p::TopologyNotSupported,
                4 => P2p::DisabledByRegkey,
                5 => P2p::NotSupported,
                _ => P2p::Unknown,
            })
    };
    NvmlPair {
        gpus: (first, second),
        read: status(0),
        write: status(1),
        atomics: status(3),
    }
}

fn processes(loaded: &Loaded, device: Device) -> Reading<Vec<NvmlProcess>> {
    let mut found: Vec<NvmlProcess> = Vec::new();
    for use_ in [Use::Compute, Use::Graphics, Use::Mps] {
        let list = match loaded.processes(device, use_) {
            Reading::Known(list) => list,
            // Few drivers list all three kinds; the first is the one that counts.
            Reading::Unknown { unknown } if use_ == Use::Compute => return unknown.into(),
            Reading::Unknown { .. } => continue,
        };
        for (pid, bytes) in list {
            // A process that both computes and draws is in two lists, with the same bytes.
            if found.iter().any(|process| process.pid == pid) {
                continue;
            }
            let bytes = match bytes {
                u64::MAX => Unread::Unsupported.into(),
                bytes => Reading::Known(bytes),
            };
            found.push(NvmlProcess { pid, use_, bytes });
        }
    }
    Reading::Known(found)
}
