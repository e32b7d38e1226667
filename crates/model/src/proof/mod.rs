//! Proof that a checkpoint is what it says, from bytes and shapes alone: nothing is run.
//!
//! The levels of a proof are those of [`Level`]. This module holds what needs no backend; `glim_engine::proof` holds what a model
//! must run for (function, sense). Each check gives one [`Check`], whatever it finds: a fault is a result here, not an error.
//!
//! | level | function | sees |
//! | --- | --- | --- |
//! | 1 file | [`file()`] | NaN, infinities, impossible scales, copied layers; computes the [`Digest`] |
//! | 2 layout | [`layout()`] | `kv_b` and its halves, fused and stacked tensors: a loader that takes them from the wrong place |
//! | 3 checkpoint | [`against()`] | any weight that is not what the original's becomes in the file's type |
//! | 4 shards | [`shards()`] | parts of ranks that are not the tensor, for each number of ranks |
//!
//! All functions use all cores, take less than 1 GiB beside the mapping whatever the model's size, and name the first wrong
//! element in file order, however many threads looked. (Big-endian GGUFs are the exception: their tensors are turned into copies
//! that stay.) `progress` is called with bytes as they are done, from any thread; each function has a twin that tells
//! the sum beforehand.

mod against;
mod bounds;
mod compare;
mod copies;
mod digest;
mod file;
mod forms;
mod layout;
mod logical;
mod norms;
mod parallel;
mod pass;
mod report;
mod shards;
mod stored;
mod words;

pub use self::against::{SAME_ENCODER, against, against_bytes};
pub use self::digest::Digest;
pub use self::file::{FileProof, file, file_bytes, of_open_error};
pub use self::layout::{layout, layout_bytes};
pub use self::report::{BadElement, Check, Level, Outcome, Timer};
pub use self::shards::{shard_list, shards, shards_bytes};

/// Takes note of bytes that are done.
pub type Progress<'a> = &'a (dyn Fn(u64) + Sync);
