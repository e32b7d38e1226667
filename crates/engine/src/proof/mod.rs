//! Proof that a model computes what its file says: what must run for it.
//!
//! Levels of bytes and shapes alone are in [`glim_model::proof`]. Three are here:
//!
//! - **Residence** ([`residence()`]): the weights in each rank's memory, read back, are the file's bytes.
//! - **Function** ([`function`]), operation by operation. One prefill step and one decode step run as they serve: the given backend, in
//!   its arithmetic, through its own fused plans. What each operation read is taken from them, what it should have written is
//!   computed anew in f32 from the bytes of the file, and what it wrote must lie within a bound ([`bounds`]) that follows from the
//!   arithmetic. So the first operation that is wrong is named by construction, whatever went wrong before or after it.
//!   For files that are not too large the same is done end to end ([`whole`]).
//! - **Sense** ([`sense()`]): how likely the model finds a text. It is the only check without a reference that sees weights which are all
//!   well-formed and in the wrong place.
//!
//! ```no_run
//! # fn f(engine: &mut glim_engine::Engine, checkpoint: &glim_model::Checkpoint, ids: &[glim_text::TokenId]) {
//! use glim_engine::proof::{Arithmetic, Outcome, Probe, function};
//!
//! let probe = Probe { arithmetic: Arithmetic::Exact, threads: 1, ids };
//! for check in function(engine, &[checkpoint], &probe, &mut |_done, _all| {}) {
//!     assert_ne!(check.outcome, Outcome::Failed, "{}", check.detail);
//! }
//! # }
//! ```

pub mod bounds;
mod function;
mod judge;
mod residence;
mod seen;
mod sense;
mod stage;
mod whole;
mod windows;

pub use glim_model::proof::{BadElement, Check, Level, Outcome, Timer};

pub use self::bounds::Arithmetic;
pub use self::function::{Probe, function};
pub use self::residence::residence;
pub use self::sense::{SENSE_TEXTS, SenseText, sense};
pub use self::stage::{ROWS, context};
pub use self::whole::{WHOLE_BYTES, whole};
pub use self::windows::TAP_BYTES;

/// Told how far a check is: what is done, and of how much.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);
