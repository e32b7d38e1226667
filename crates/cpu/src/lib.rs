//! The CPU backend: plans on ordinary processors, as fast as their memory and vector units allow.
//!
//! [`CpuBackend`] implements [`glim_plan::Backend`] in two arithmetics ([`Math`]): `Exact` gives the bits of the scalar reference
//! executor, `Fast` multiplies 8-bit activations with the weights' own integers. Kernels are chosen at run time ([`Isa`]); all
//! threads of a [`Pool`] go through a step together.
//!
//! It does not know what a request, a token's text or a layer is: it sees operations, shapes and buffers.
//!
//! ```
//! use glim_cpu::{CpuBackend, CpuOptions};
//! use glim_plan::Backend;
//!
//! let backend = CpuBackend::new(CpuOptions::default());
//! println!("{}", backend.caps().name);
//! ```
#![warn(missing_docs)]

mod attention;
mod backend;
mod collective;
mod detect;
pub mod machine;
mod matmul;
mod moe;
mod pool;
mod shared;
mod step;

pub use backend::{CpuBackend, CpuOptions};
pub use collective::RankGroup;
pub use detect::Isa;
pub use matmul::Math;
pub use pool::{POOL_THREAD, Pool};
