//! `cargo xtask gpu`: what a machine with a GPU must show, in one call.
//!
//! `gpu pack` gathers here what that machine needs, which has neither Rust nor a network: test programs, the `glim` binary without its
//! built-in model, and this program. `gpu run` there runs the stages (`stages`), each step in a process of its own with a time limit, so
//! that a kernel that hangs costs its own limit and nothing else, and leaves a JSON file for each stage and `summary.json`.

mod pack;
mod run;
mod stages;

use std::path::PathBuf;

use clap::{Args, Subcommand};

pub(crate) use pack::pack;
pub(crate) use run::run;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Gather what a GPU machine without Rust needs
    Pack(PackArgs),
    /// Run all stages on a GPU machine: parity, tests, ranks, poison, replay, model, sanitizer, bench
    Run(RunArgs),
}

#[derive(Args)]
pub(crate) struct PackArgs {
    /// Folder to fill
    folder: PathBuf,
    /// Build glim in release mode (slow to build, and what is measured)
    #[arg(long)]
    release: bool,
}

#[derive(Args)]
pub(crate) struct RunArgs {
    /// The folder that `gpu pack` filled
    folder: PathBuf,
    /// Folder for the results
    #[arg(long)]
    out: PathBuf,
    /// Only these stages
    #[arg(long, value_name = "STAGE,…", value_delimiter = ',')]
    only: Vec<String>,
    /// Seconds for everything; what has not begun by then is skipped
    #[arg(long, value_name = "SECONDS", default_value_t = 540)]
    within: u64,
    /// The repository's assets, with the tiny models
    #[arg(long, value_name = "FOLDER", default_value = "assets")]
    assets: PathBuf,
    /// A checkpoint, if other than the tiny model of the assets
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Folder of libcuda and libnvrtc, for a trial on the emulator
    #[arg(long, value_name = "FOLDER")]
    libraries: Option<PathBuf>,
}
