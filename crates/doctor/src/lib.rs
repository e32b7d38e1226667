//! What is wrong with a machine that is to run glim, why it matters, and the exact change to make.
//!
//! ```text
//! Host (the live machine, or a recording) ──▶ Facts (typed; what cannot be read is Unknown) ──▶ CHECKS ──▶ Findings
//! ```
//!
//! Everything that is read goes through one trait, [`Host`]: files and links of `/sys` and `/proc`, the answers of NVML, processes that
//! hold a GPU, libraries. So an operator's machine can be recorded in one file of a few kilobytes ([`Recorder`]) and examined elsewhere,
//! and every check is tested on machines that nobody here owns.
//!
//! Three rules. What cannot be read is [`Reading::Unknown`] with the reason, and a finding that says so: never `ok`. Nothing is changed:
//! no signal is sent, no setting is written, no module is loaded; a finding's `fix` is for the operator. Nothing is measured here: what
//! needs the GPUs to work is a probe, in a process of its own under a time limit ([`probe`]).
//!
//! This crate knows nothing of the engine.
//!
//! ```
//! use glim_doctor::{Facts, Recording, Subject, examine};
//!
//! # fn main() -> Result<(), glim_doctor::RecordingError> {
//! let host = Recording::parse(r#"{"glim_doctor": 1, "about": "nothing was recorded"}"#)?;
//! let findings = examine(&Facts::gather(&host, &Subject::default()));
//! assert!(findings.iter().any(|finding| finding.unknown));
//! # Ok(())
//! # }
//! ```
#![deny(unsafe_code)]

mod checks;
mod facts;
mod host;
mod nvml;
pub mod page;
pub mod probe;
pub mod process;
mod reading;

pub use checks::{AtStart, CHECKS, Check, Finding, Level, examine, examine_start};
pub use facts::{
    Acs, Bridge, Cpu, Driver, Facts, Gpu, GpuHolder, Held, Holder, Holders, Iommu, KernelCache,
    Limits, Link, Model, Nvlink, Pair, Path, Port, Subject, Told, Topology,
};
pub use host::{
    Host, Library, Live, ProcessFiles, Processes, Recorder, Recording, RecordingError, Search,
    Space,
};
pub use nvml::{
    Fabric, Memory, MigMode, Nvml, NvmlGpu, NvmlLink, NvmlPair, NvmlProcess, P2p, RemappedRows, Use,
};
pub use reading::{Reading, Unread};
