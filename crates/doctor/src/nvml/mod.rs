//! What NVML says of the GPUs: the values, as they are recorded.
//!
//! Names follow `nvml.h`. What a driver, a GPU or a virtual machine does not answer is unknown with its reason, value by value.

mod library;
mod snapshot;

use serde::{Deserialize, Serialize};

use crate::reading::Reading;

pub(crate) use snapshot::snapshot;

/// All that was asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Nvml {
    /// The driver: `580.95.05`.
    pub driver: Reading<String>,
    /// The newest CUDA that the driver runs: 1000 · major + 10 · minor.
    pub cuda: Reading<u32>,
    /// In NVML's order, which is that of the bus.
    pub gpus: Vec<NvmlGpu>,
    /// Every pair, the lower index first.
    pub pairs: Vec<NvmlPair>,
}

/// A GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NvmlGpu {
    /// `NVIDIA H200`.
    pub name: Reading<String>,
    /// `GPU-…`, the same in every tool.
    pub uuid: Reading<String>,
    /// `00000000:19:00.0`.
    pub bus_id: Reading<String>,
    /// N of `/dev/nvidiaN`.
    pub minor: Reading<u32>,
    /// Compute capability.
    pub capability: Reading<(u32, u32)>,
    /// Its memory.
    pub memory: Reading<Memory>,
    /// Bytes of its memory that the bus can see at once.
    pub bar1: Reading<u64>,
    /// Whether it is cut into instances.
    pub mig: Reading<MigMode>,
    /// How many instances there are now.
    pub mig_instances: Reading<u32>,
    /// 0 default, 2 prohibited, 3 one process.
    pub compute_mode: Reading<u32>,
    /// Whether the driver stays awake without a client.
    pub persistence: Reading<bool>,
    /// Milliwatts that it may draw.
    pub power_limit: Reading<u32>,
    /// Milliwatts that it may draw as delivered.
    pub power_default: Reading<u32>,
    /// Why clocks are as they are: `nvmlClocksEventReason*`.
    pub clock_reasons: Reading<u64>,
    /// PCIe generation now, and at most for this GPU.
    pub link_generation: Reading<(u32, u32)>,
    /// PCIe lanes now, and at most for this GPU.
    pub link_width: Reading<(u32, u32)>,
    /// PCIe packets that were sent again since the driver was loaded.
    pub replays: Reading<u32>,
    /// Errors of the memory that could not be corrected, since the driver was loaded.
    pub ecc_uncorrected: Reading<u64>,
    /// Rows of the memory that were replaced.
    pub remapped: Reading<RemappedRows>,
    /// The NVSwitch fabric, if it is part of one.
    pub fabric: Reading<Fabric>,
    /// Its NVLinks, those that exist.
    pub nvlinks: Vec<NvmlLink>,
    /// Who has memory on it.
    pub processes: Reading<Vec<NvmlProcess>>,
}

/// Bytes of a GPU's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// All of it.
    pub total: u64,
    /// What the driver keeps to itself; no leak.
    pub reserved: u64,
    /// What processes hold.
    pub used: u64,
    /// The rest.
    pub free: u64,
}

/// Multi-instance mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigMode {
    /// Now.
    pub current: bool,
    /// After the next reset.
    pub pending: bool,
}

/// Rows of a GPU's memory that were replaced by spare ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemappedRows {
    /// After errors that were corrected.
    pub correctable: u32,
    /// After errors that were not.
    pub uncorrectable: u32,
    /// One waits for a reset.
    pub pending: bool,
    /// One could not be replaced.
    pub failed: bool,
}

/// State of the NVSwitch fabric (`nvmlGpuFabricState_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fabric {
    /// This GPU is in none.
    None,
    /// The fabric manager has not begun.
    NotStarted,
    /// It is at it.
    InProgress,
    /// Ready.
    Completed,
}

/// An NVLink.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvmlLink {
    /// Its number.
    pub link: u32,
    /// Whether it is up.
    pub active: bool,
    /// What is at the other end, by its place on the bus: a GPU or an NVSwitch.
    pub remote: Reading<String>,
}

/// What a process has a GPU for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Use {
    /// CUDA.
    Compute,
    /// A display.
    Graphics,
    /// CUDA through the multi-process server.
    Mps,
}

/// A process that has memory on a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvmlProcess {
    /// Its number, in the name space that NVML sees.
    pub pid: u32,
    /// For what.
    #[serde(rename = "use")]
    pub use_: Use,
    /// How much; the driver does not always say.
    pub bytes: Reading<u64>,
}

/// Two GPUs, and what they can do to each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvmlPair {
    /// Their indices.
    pub gpus: (usize, usize),
    /// Whether one may read the other's memory.
    pub read: Reading<P2p>,
    /// Whether one may write it.
    pub write: Reading<P2p>,
    /// Whether one may do atomic operations on it.
    pub atomics: Reading<P2p>,
}

/// Why peers can or cannot (`nvmlGpuP2PStatus_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum P2p {
    /// They can.
    Ok,
    /// The chipset does not.
    ChipsetNotSupported,
    /// One of them does not.
    GpuNotSupported,
    /// The way between them does not.
    TopologyNotSupported,
    /// A driver's setting forbids it.
    DisabledByRegkey,
    /// It is not supported.
    NotSupported,
    /// The driver does not know.
    Unknown,
}

impl P2p {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::ChipsetNotSupported => "the chipset does not support it",
            Self::GpuNotSupported => "the GPU or its driver does not support it",
            Self::TopologyNotSupported => "the way between them does not support it",
            Self::DisabledByRegkey => "a setting of the driver disables it",
            Self::NotSupported => "not supported",
            Self::Unknown => "the driver does not know",
        }
    }
}
