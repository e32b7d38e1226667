//! What a checkpoint is: configuration, tensor catalogue, and the architecture that emits plans.
//!
//! [`Checkpoint`] opens a GGUF or an HF folder and resolves it against the [`catalogue`]: every tensor that the configuration
//! calls for, in one logical form whatever the file stores. An [`Inventory`] is what plans are made from, and [`arch::emit`] makes
//! them. This crate names operations, never a backend, and knows nothing of requests.
#![deny(unsafe_code)]
#![warn(missing_docs)]

pub mod arch;
pub mod catalogue;
pub mod checkpoint;
pub mod config;
pub mod config_check;
pub mod error;
pub mod export;
pub mod hparams;
pub mod inventory;
pub mod kv_b;
mod layers;
mod presets;
pub mod proof;
pub mod quantize;
pub mod shard;
pub mod synth;

pub use arch::{EmitError, EmitRequest, OutputRows, emit, names, states};
pub use checkpoint::{Checkpoint, TensorDesc};
pub use config::Config;
pub use error::ModelError;
pub use glim_quant::QuantError;
pub use inventory::Inventory;
