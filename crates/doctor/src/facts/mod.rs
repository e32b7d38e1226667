//! What is known of a machine, in types: the checks look at this and at nothing else.

mod gpus;
mod holders;
mod model;
pub(crate) mod pci;
mod system;
mod topology;

use serde::{Deserialize, Serialize};

use crate::host::{Host, Library};
use crate::reading::Reading;

pub use gpus::{Bridge, Driver, Gpu, Iommu, Link};
pub use holders::{GpuHolder, Held, Holder, Holders, Told};
pub use model::Model;
pub use pci::{Acs, Port};
pub use system::{Cpu, KernelCache, Limits};
pub use topology::{Nvlink, Pair, Path, Topology};

/// What the doctor is asked about besides the machine itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Subject {
    /// A model's file, any part of a set, or its folder.
    pub model: Option<String>,
    /// Where compiled kernels are kept.
    pub kernel_cache: Option<String>,
    /// Folders of kernels that came with the program.
    pub prebuilt_kernels: Option<String>,
}

/// A machine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Facts {
    /// The driver.
    pub driver: Driver,
    /// GPUs, in NVML's order; without NVML those on the bus.
    pub gpus: Vec<Gpu>,
    /// Bridges above any GPU, each once, root ports first.
    pub bridges: Vec<Bridge>,
    /// How GPUs lie to each other.
    pub topology: Topology,
    /// Translation of addresses.
    pub iommu: Iommu,
    /// Processors.
    pub cpu: Cpu,
    /// What this process may take.
    pub limits: Limits,
    /// Who holds GPUs.
    pub holders: Holders,
    /// Libraries.
    pub libraries: Reading<Vec<Library>>,
    /// Where compiled kernels are kept.
    pub kernel_cache: Option<KernelCache>,
    /// The model, if one was named.
    pub model: Option<Model>,
    /// Lines of the kernel's log with an Xid.
    pub xids: Reading<Vec<String>>,
}

impl Facts {
    /// Reads all of it, once.
    pub fn gather(host: &dyn Host, subject: &Subject) -> Self {
        let nvml = host.nvml();
        let gpus = gpus::gpus(host, &nvml);
        let bridges = gpus::bridges(host, &gpus);
        Self {
            driver: gpus::driver(host, &nvml),
            topology: topology::topology(&gpus, &nvml),
            iommu: gpus::iommu(host),
            cpu: system::cpu(host),
            limits: system::limits(host),
            holders: holders::holders(host, &nvml),
            libraries: host.libraries(),
            kernel_cache: subject
                .kernel_cache
                .as_deref()
                .map(|path| system::kernel_cache(host, path, subject.prebuilt_kernels.as_deref())),
            model: subject
                .model
                .as_deref()
                .map(|path| model::model(host, path)),
            xids: host.kernel_log(),
            gpus,
            bridges,
        }
    }

    /// Index of the GPU at a place on the bus, in whatever form.
    pub fn gpu_at(&self, bus_id: &str) -> Option<usize> {
        let place = pci::bus_id(bus_id)?;
        let mut at = self
            .gpus
            .iter()
            .filter(|gpu| gpu.bus_id.known() == Some(&place));
        at.next().map(|gpu| gpu.index)
    }

    /// The same machine with these GPUs, by index, and no others: what concerns others is left out.
    pub(crate) fn only(mut self, gpus: &[usize]) -> Self {
        let is_one = |gpu: &usize| gpus.contains(gpu);
        self.gpus.retain(|gpu| is_one(&gpu.index));
        for bridge in &mut self.bridges {
            bridge.gpus.retain(is_one);
        }
        self.bridges.retain(|bridge| !bridge.gpus.is_empty());
        let pairs = &mut self.topology.pairs;
        pairs.retain(|pair| is_one(&pair.gpus.0) && is_one(&pair.gpus.1));
        for island in &mut self.topology.islands {
            island.retain(is_one);
        }
        self.topology.islands.retain(|island| !island.is_empty());
        self
    }

    /// Whether there are GPUs that have to work together.
    pub fn has_several(&self) -> bool {
        self.gpus.len() > 1
    }

    /// Whether GPUs that have to work together have no NVLink between some of them.
    pub fn shares_over_pcie(&self) -> bool {
        self.topology.pairs.iter().any(|pair| pair.nvlinks == 0)
    }

    /// Whether this is a guest of a hypervisor, which hides the host's bridges and its IOMMU.
    pub fn is_virtual(&self) -> bool {
        self.cpu.hypervisor.get() == Some(true)
    }
}

impl Holders {
    /// Who holds GPUs now, without all the rest: for a service that is about to start.
    pub fn now(host: &dyn Host) -> Self {
        holders::holders(host, &host.nvml())
    }
}
