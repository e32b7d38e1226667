//! How the GPUs lie to each other: on one switch, below one processor, across the machine; NVLinks; islands.
//!
//! The names are those of `nvidia-smi topo -m`, but from the parents in sysfs, which tell switches and ports by name. What no register
//! tells is whether two virtual switches are one chip: only a bandwidth probe of two pairs at once shows that.

use serde::Serialize;

use super::gpus::Gpu;
use crate::nvml::{Nvml, P2p};
use crate::reading::{Reading, Unread};

/// How GPUs lie to each other.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Topology {
    /// Every pair, the lower index first.
    pub pairs: Vec<Pair>,
    /// Groups whose members reach each other without the processor: over NVLink, else over a switch. By index, each GPU in one.
    pub islands: Vec<Vec<usize>>,
}

/// The way between two GPUs over PCIe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Path {
    /// One switch.
    Pix,
    /// Several switches, not the root.
    Pxb,
    /// One host bridge.
    Phb,
    /// One NUMA node.
    Node,
    /// Across nodes.
    Sys,
}

/// NVLinks of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Nvlink {
    /// Those that exist.
    pub links: u32,
    /// Those that are up.
    pub active: u32,
}

/// Two GPUs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Pair {
    /// Their indices.
    pub gpus: (usize, usize),
    /// The way over PCIe.
    pub path: Reading<Path>,
    /// Active NVLinks between them, through an NVSwitch or not.
    pub nvlinks: u32,
    /// Whether one may read the other's memory.
    pub read: Reading<P2p>,
    /// Whether one may write it.
    pub write: Reading<P2p>,
    /// Whether one may do atomic operations on it.
    pub atomics: Reading<P2p>,
}

impl Gpu {
    /// Its NVLinks.
    pub fn nvlink(&self) -> Nvlink {
        let links = self.nvml.known().map_or(&[][..], |nvml| &nvml.nvlinks);
        Nvlink {
            links: links.len() as u32,
            active: links.iter().filter(|link| link.active).count() as u32,
        }
    }

    /// Active NVLinks to another GPU: those that end at it, or where both end at NVSwitches, the fewer of the two.
    fn nvlinks_to(&self, other: &Self, gpus: &[Self]) -> u32 {
        let is_gpu = |place: &str| {
            gpus.iter()
                .any(|gpu| gpu.bus_id.known().is_some_and(|own| own == place))
        };
        // An NVSwitch that a guest cannot see has the place ffff…, or none.
        let ends = |gpu: &Self| -> Vec<Option<String>> {
            let links = gpu.nvml.known().map_or(&[][..], |nvml| &nvml.nvlinks);
            let active = links.iter().filter(|link| link.active);
            active
                .map(|link| {
                    link.remote
                        .known()
                        .and_then(|place| super::pci::bus_id(place))
                })
                .collect()
        };
        let place = other.bus_id.known();
        let direct = ends(self)
            .iter()
            .filter(|end| end.is_some() && end.as_ref() == place)
            .count();
        if direct > 0 {
            return direct as u32;
        }
        let to_switch = |gpu| {
            ends(gpu)
                .iter()
                .filter(|end| end.as_deref().is_none_or(|place| !is_gpu(place)))
                .count()
        };
        to_switch(self).min(to_switch(other)) as u32
    }
}

fn path(a: &Gpu, b: &Gpu) -> Reading<Path> {
    let (host_a, host_b) = match (a.host_bridge.as_result(), b.host_bridge.as_result()) {
        (Ok(a), Ok(b)) => (a, b),
        (Err(why), _) | (_, Err(why)) => return why.clone().into(),
    };
    let (Some(up_a), Some(up_b)) = (a.parents.known(), b.parents.known()) else {
        return Unread::Absent.into();
    };
    let common = up_a.iter().zip(up_b).take_while(|(a, b)| a == b).count();
    if host_a == host_b && common > 0 {
        // Below the common bridge (a switch's upstream port) lie one downstream port and the GPU, or further switches.
        let is_one = |up: &Vec<String>| up.len() - common <= 1;
        return Reading::Known(if is_one(up_a) && is_one(up_b) {
            Path::Pix
        } else {
            Path::Pxb
        });
    }
    if host_a == host_b {
        return Reading::Known(Path::Phb);
    }
    match (a.numa_node.get(), b.numa_node.get()) {
        (Some(a), Some(b)) if a == b => Reading::Known(Path::Node),
        (Some(_), Some(_)) => Reading::Known(Path::Sys),
        _ => Unread::Absent.into(),
    }
}

pub(super) fn topology(gpus: &[Gpu], nvml: &Reading<Nvml>) -> Topology {
    let mut pairs = Vec::new();
    for (second, b) in gpus.iter().enumerate() {
        for (first, a) in gpus[..second].iter().enumerate() {
            let told = nvml
                .known()
                .and_then(|nvml| nvml.pairs.iter().find(|pair| pair.gpus == (first, second)));
            let why = || nvml.why().cloned().unwrap_or(Unread::Absent).into();
            pairs.push(Pair {
                gpus: (first, second),
                path: path(a, b),
                nvlinks: a.nvlinks_to(b, gpus),
                read: told.map_or_else(why, |pair| pair.read.clone()),
                write: told.map_or_else(why, |pair| pair.write.clone()),
                atomics: told.map_or_else(why, |pair| pair.atomics.clone()),
            });
        }
    }
    Topology {
        islands: islands(gpus.len(), &pairs),
        pairs,
    }
}

/// GPUs that are joined, directly or through others, by NVLink; where no pair has one, by switches.
fn islands(gpus: usize, pairs: &[Pair]) -> Vec<Vec<usize>> {
    let has_nvlink = pairs.iter().any(|pair| pair.nvlinks > 0);
    let is_near = |pair: &&Pair| match has_nvlink {
        true => pair.nvlinks > 0,
        false => pair.path.get().is_some_and(|path| path <= Path::Pxb),
    };
    let mut island: Vec<usize> = (0..gpus).collect();
    for pair in pairs.iter().filter(is_near) {
        let (a, b) = (island[pair.gpus.0], island[pair.gpus.1]);
        let (to, from) = (a.min(b), a.max(b));
        island
            .iter_mut()
            .filter(|of| **of == from)
            .for_each(|of| *of = to);
    }
    let members = |root| {
        (0..gpus)
            .filter(|&gpu| island[gpu] == root)
            .collect::<Vec<_>>()
    };
    (0..gpus)
        .map(members)
        .filter(|members| !members.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(gpus: (usize, usize), path: Path, nvlinks: u32) -> Pair {
        Pair {
            gpus,
            path: Reading::Known(path),
            nvlinks,
            read: Reading::Known(P2p::Ok),
            write: Reading::Known(P2p::Ok),
            atomics: Reading::Known(P2p::Ok),
        }
    }

    #[test]
    fn islands_follow_nvlink_where_there_is_any_and_switches_otherwise() {
        let switched = [
            pair((0, 2), Path::Pix, 0),
            pair((0, 1), Path::Sys, 0),
            pair((1, 3), Path::Pxb, 0),
        ];
        assert_eq!(islands(4, &switched), [vec![0, 2], vec![1, 3]]);
        let bridged = [
            pair((0, 1), Path::Pix, 4),
            pair((2, 3), Path::Pix, 0),
            pair((1, 2), Path::Sys, 4),
        ];
        assert_eq!(islands(4, &bridged), [vec![0, 1, 2], vec![3]]);
        assert_eq!(islands(1, &[]), [vec![0]]);
        assert_eq!(islands(0, &[]), Vec::<Vec<usize>>::new());
    }
}
