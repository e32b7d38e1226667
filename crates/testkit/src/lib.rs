//! Test support for the workspace: tiny seeded models, golden data, comparisons. Never part of a product build.
//!
//! - [`tiny`]: random models of the GLM-5 architecture with sizes that are all different, as GGUF or as a Hugging Face
//!   folder, in every stored form that the loader must accept and with every fault that it must name;
//! - [`golden`]: arrays of a reference file; [`assets`]: where the repository keeps such files;
//! - [`close`]: how far two arrays are apart, and where;
//! - [`encode`]: `f32` into the few types that tests need;
//! - [`weights`]: tensors for plans of a few operations; [`device`]: what tests on a GPU are told from outside;
//! - [`faults`]: sound files spoiled in one place, for proofs to find;
//! - [`parity`]: the operation parity table, which every backend is held to.
//!
//! It knows container and block formats and plans, and deliberately not `glim-model`: names and layouts are written down here a
//! second time, so that a mistake in one place shows in the other. Functions panic with a message instead of returning
//! errors: their callers are tests.
//!
//! ```
//! use glim_testkit::tiny::Tiny;
//!
//! let gguf = Tiny::new(7).build().gguf();
//! assert!(gguf.tensor("blk.0.attn_norm.weight").is_some());
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod assets;
pub mod close;
pub mod device;
pub mod encode;
pub mod faults;
pub mod golden;
pub mod hf;
pub mod parity;
pub mod tiny;
pub mod weights;
