//! Requests in, tokens out.
//!
//! An [`Engine`] makes the plans of a model, loads its weights into a backend, and drives steps: it owns block tables, the
//! lifetime of cached rows, and the choice of buckets. It does not know how a backend computes, nor what a token spells.
//!
//! [`eval`] measures a model through the same steps: perplexity of a text, distance to a reference. [`proof`] holds each operation of
//! these steps against the file's bytes; [`imatrix`] sums up what its weights are multiplied with.
//!
//! ```no_run
//! use glim_engine::{Engine, EngineOptions, GenerateRequest};
//! use glim_model::{Checkpoint, Inventory};
//! use glim_plan::reference::{ReferenceBackend, ReferenceOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let checkpoint = Checkpoint::open("model.gguf".as_ref())?;
//! let backend = Box::new(ReferenceBackend::new(ReferenceOptions::default()));
//! let mut engine = Engine::new(Inventory::of(&checkpoint), &checkpoint, backend, EngineOptions::default())?;
//! let prompt = [1, 2, 3].map(glim_text::TokenId).to_vec();
//! let out = engine.generate(&GenerateRequest::new(prompt), |_token| std::ops::ControlFlow::Continue(()))?;
//! println!("{:?}", out.tokens);
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod bench;
mod buckets;
mod budget;
mod constraint;
mod engine;
mod error;
pub mod eval;
mod event;
mod imatrix;
mod kv;
mod latents;
mod options;
pub mod panics;
pub mod proof;
mod ranks;
mod request;
mod sampler;
mod scheduler;
mod sequence;
mod stats;
mod steps;
mod trace;

pub use buckets::{DECODE_BUCKETS, PREFILL_BUCKETS};
pub use budget::Budget;
pub use constraint::{ConstraintError, TokenConstraint};
pub use engine::Engine;
pub use error::EngineError;
pub use event::{Event, FinishReason, Generation, Logprobs};
pub use imatrix::{Collected, ImatrixOptions, imatrix};
pub use kv::{BlockHash, BlockId, KV_EVENTS_MAX, KvEvent, MissReason};
pub use latents::{LatentsCost, RankSpeeds};
pub use options::{EngineOptions, EnginePlan};
pub use ranks::{LoadStage, Rank};
pub use request::{Dry, GenerateRequest, SamplingParams, Xtc};
pub use scheduler::RequestId;
pub use stats::{EngineStats, StepSize};
