//! Subcommands, one file each.

pub(crate) mod bench;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod convert;
pub(crate) mod doctor;
pub(crate) mod eval;
pub(crate) mod explain;
pub(crate) mod imatrix;
pub(crate) mod inspect;
pub(crate) mod man;
pub(crate) mod quantize;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod service;
pub(crate) mod synth;
pub(crate) mod tokenize;
pub(crate) mod verify;
