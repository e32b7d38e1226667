//! Quantising a GGUF file: decide which tensor gets which type, then carry it out.
//!
//! The decision is plain data. A [`Mix`] is what `--type` names; [`choose`] gives every tensor its type and says why
//! ([`Choice`]), from names and dimensions alone. Both follow llama.cpp, so that a file of ours has the types that a
//! file of theirs has. A [`QuantizePlan`] is that for one file, and [`QuantizePlan::write`] carries it out, with the
//! weights of an [`Imatrix`] if there is one.

mod category;
mod choose;
mod error;
mod imatrix;
mod matrices;
mod mix;
mod pipeline;
mod plan;
mod write;

pub use self::choose::{Choice, Facts, Options, TensorFacts, TypeFor, Why, choose};
pub use self::error::{Place, QuantizeError};
pub use self::imatrix::{Entry, Imatrix, Sums};
pub use self::matrices::Matrices;
pub use self::mix::Mix;
pub use self::plan::{PlannedTensor, QuantizePlan};
