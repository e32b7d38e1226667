//! Quantising a GGUF file: decide which tensor gets which type, then carry it out.
//!
//! The decision is plain data. A [`Mix`] is what `--type` names; [`choose`] gives every tensor its type and says why
//! ([`Choice`]), from names and dimensions alone. Both follow llama.cpp, so that a file of ours has the types that a
//! file of theirs has.

mod category;
mod choose;
mod error;
mod mix;

pub use self::choose::{Choice, Facts, Options, TensorFacts, TypeFor, Why, choose};
pub use self::error::QuantizeError;
pub use self::mix::Mix;
