//! A running `glim serve` and the system around it.
//!
//! Knows processes, files and systemd; knows nothing of models, requests or HTTP. What it needs of the environment is handed to it.
//!
//! - [`notify`]: the datagrams of `sd_notify(3)`. [`report`] decides which of them are due: a state machine that is given the time.
//! - [`unit`]: the text of a systemd unit; [`install`]: puts it in its place, and takes it away.
//! - [`lock`]: one glim for each GPU, by lock files; [`reclaim`]: ends one that is hung, and nothing else.
//!
//! Who else has a GPU, and what `/proc` says of a process, the crate `doctor` knows.
//!
//! Linux only, as systemd is.

#![forbid(unsafe_code)]
#![warn(missing_docs)]
#![cfg(target_os = "linux")]

pub mod install;
pub mod lock;
pub mod notify;
pub mod reclaim;
pub mod report;
pub mod unit;
