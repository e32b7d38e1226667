//! Whether the GPUs' free memory holds what the ranks will take; and if not, who has the rest.

use glim_doctor::Holders;

use crate::exit::Failure;
use crate::gpu::{self, Found, Gpus};
use crate::placement::usable;
use crate::{host, units};

/// A GPU that does not hold its ranks.
#[derive(Debug)]
pub(crate) struct Shortage {
    gpu: Found,
    free: u64,
    needed: u64,
    /// Whether it would hold them if it were all theirs.
    pub(crate) is_by_others: bool,
}

/// Bytes that nobody holds of each rank's GPU.
///
/// # Errors
/// If a GPU cannot be opened.
pub(crate) fn free_memory(gpus: &Gpus) -> Result<Vec<u64>, Failure> {
    gpus.of_ranks.iter().map(gpu::free_memory).collect()
}

impl Shortage {
    /// The first GPU whose free bytes are less than what its ranks need together; one number for each rank.
    pub(crate) fn of(gpus: &Gpus, free: &[u64], needed: &[u64]) -> Option<Self> {
        gpus.of_ranks.iter().zip(free).find_map(|(gpu, &free)| {
            let own = gpus.of_ranks.iter().zip(needed);
            let own = own.filter(|(other, _)| other.ordinal == gpu.ordinal);
            let needed: u64 = own.map(|(_, needed)| needed).sum();
            (needed > usable(free)).then(|| Self {
                gpu: gpu.clone(),
                free,
                needed,
                is_by_others: needed <= usable(gpu.memory),
            })
        })
    }

    /// In a line, with those who hold the memory as far as they can be seen.
    pub(crate) fn told(&self) -> String {
        let mut told = format!(
            "GPU {} ({}) has {} free of {}, and {} are needed",
            self.gpu.ordinal,
            self.gpu.name,
            units::bytes(self.free),
            units::bytes(self.gpu.memory),
            units::bytes(self.needed)
        );
        let others = others(&self.gpu.bus_id);
        if self.is_by_others && !others.is_empty() {
            told += &format!("; it is held by {}", others.join("; by "));
        }
        told
    }
}

/// Others that have the GPU open in any way.
fn others(bus_id: &str) -> Vec<String> {
    let Ok(machine) = host::machine() else {
        return Vec::new();
    };
    let holders = Holders::now(&*machine);
    let Some(index) = holders.at(bus_id) else {
        return Vec::new();
    };
    let of = holders.of(&[index]);
    let of = of.known().into_iter().flatten();
    let others = of.filter(|holder| holder.pid != std::process::id());
    others.map(|holder| holder.line()).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn gpus(ordinals: &[usize]) -> Gpus {
        let found = |ordinal: &usize| Found {
            ordinal: *ordinal,
            name: "A".into(),
            bus_id: format!("0000:{ordinal:02x}:00.0"),
            memory: 100 * GIB,
        };
        Gpus {
            of_ranks: ordinals.iter().map(found).collect(),
            is_choice: false,
            insists: false,
            graphs: true,
            sync_launches: false,
        }
    }

    #[test]
    fn ranks_of_one_gpu_need_its_memory_together() {
        let short = |ordinals: &[usize], free: &[u64], needed: &[u64]| {
            let bytes = |gib: &[u64]| gib.iter().map(|gib| gib * GIB).collect::<Vec<_>>();
            let short = Shortage::of(&gpus(ordinals), &bytes(free), &bytes(needed));
            short.map(|short| (short.gpu.ordinal, short.needed / GIB, short.is_by_others))
        };
        assert_eq!(short(&[0, 1], &[60, 60], &[50, 50]), None);
        assert_eq!(short(&[0, 0], &[60, 60], &[50, 50]), Some((0, 100, false)));
        assert_eq!(short(&[0, 0], &[60, 60], &[40, 40]), Some((0, 80, true)));
        assert_eq!(short(&[0, 1], &[60, 20], &[50, 50]), Some((1, 50, true)));
    }
}
