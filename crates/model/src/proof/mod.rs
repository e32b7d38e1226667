//! Proof that a checkpoint is what it says, from bytes and shapes alone: nothing is run.
//!
//! The levels of a proof are those of [`Level`]. This module holds what needs no backend (file, layout, checkpoint, shards);
//! `glim_engine::proof` holds what a model must run for (function, sense). Each check gives one [`Check`], whatever it finds: a
//! fault is a result here, not an error.

mod report;

pub use self::report::{BadElement, Check, Level, Outcome, Timer};
