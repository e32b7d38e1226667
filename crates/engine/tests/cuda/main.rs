//! The CUDA backend through the engine, on a GPU or on the emulator ([`glim_testkit::device`] says what they are told from outside).
//!
//! One program, since it travels: against another implementation ([`reference`]), against the CPU on files of every kind ([`types`]),
//! against itself over runs, ranks and ways to launch ([`repeats`], [`ahead`]), against its budget
//! ([`memory`]), and with faults that a proof must name ([`faults`]).
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../common/mod.rs"]
mod common;

mod ahead;
mod faults;
mod gpu;
mod memory;
mod reference;
mod repeats;
mod types;
