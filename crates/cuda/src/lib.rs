//! The CUDA backend: plans become lists of kernel launches, and those captured graphs.
//!
//! Nothing of CUDA is needed to build this: the driver and the run-time compiler are loaded when they are used
//! ([`libraries`]), and a machine without them gets a reason ([`probe()`]), never a panic. Kernels are CUDA C++ in `kernels/`,
//! embedded in the binary, compiled for the GPU that is there and kept in a cache on disk ([`kernels`], [`compile`],
//! [`cache`]).
//!
//! The way of a step: `backend` checks a plan and has [`program`] turn each operation into launches whose arguments are the same in
//! every run; `run` launches them one by one, or captures them once and replays the graph.

mod backend;
pub mod cache;
mod code;
mod collective;
pub mod compile;
mod driver;
mod error;
mod faults;
mod hash;
pub mod kernels;
mod layout;
pub mod libraries;
mod machine;
mod pair;
pub mod probe;
mod program;
mod random;
mod run;
mod stamps;
mod weights;

pub use backend::{CudaBackend, CudaOptions, Math};
pub use collective::{GpuGroup, MAX_RANKS, Place, Transport};
pub use driver::{GpuFacts, Held};
pub use error::CudaError;
#[doc(hidden)]
pub use faults::DeviceFault;
pub use machine::{bandwidth_of, read_bandwidth};
pub use pair::{Pair, pair_of, probe_pair};
pub use probe::{ProbeError, free_memory, probe};
pub use weights::Loaded;
