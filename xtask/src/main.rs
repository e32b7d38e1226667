//! Developer tasks: what a shell script would do, as `cargo xtask COMMAND`.
//!
//! `tidy` needs nothing but git, `emulate` a C++ compiler. The others need `python3`; `golden` makes a virtual environment under
//! `target/` and fills it from PyPI.
#![forbid(unsafe_code)]

mod dist;
mod emulate;
mod golden;
mod gpu;
mod kernels;
mod programs;
mod python;
mod templates;
mod tidy;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Developer tasks of glim")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Check dependency arrows and file habits of everything that git tracks or would add
    Tidy,
    /// Write the goldens again with the reference implementations; all of them if none is named
    Golden {
        /// Which goldens
        #[arg(value_enum)]
        which: Vec<golden::Which>,
        /// Write nothing; fail if a file is not what would be written
        #[arg(long)]
        check: bool,
    },
    /// Fetch the GLM chat templates, which the repository does not carry, into target/templates
    Templates,
    /// Fetch llama.cpp's test vocabularies into target/vocabs
    Vocabs,
    /// Pack a release: binary, kernels, manual, completions, unit, deploy files, checksums
    Dist(dist::DistArgs),
    /// Pack what a GPU machine needs, or run all stages there
    #[command(subcommand)]
    Gpu(gpu::Command),
    /// Compile every CUDA kernel without a GPU, and keep what each takes in crates/cuda/kernels/resources.txt
    #[command(disable_help_flag = true)]
    Kernels {
        /// --all, --arch sm_N, --check, --only WORD, --out FOLDER, --compile-only
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Build the CUDA emulator and run tests that need a GPU on it
    Emulate {
        /// The crate whose tests these are
        #[arg(long, default_value = "glim-cuda")]
        package: String,
        /// Another order of threads and blocks
        #[arg(long)]
        seed: Option<u64>,
        /// Only build it, and print its folder (for GLIM_CUDA_LIBRARIES)
        #[arg(long)]
        build: bool,
        /// `--test NAME` for each test program (none: all of them), then words in the names of tests; behind another `--` what else the
        /// programs are given
        #[arg(last = true)]
        arguments: Vec<OsString>,
    },
}

fn main() -> ExitCode {
    match run(&Cli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command) -> Result<ExitCode> {
    // On a machine without the repository's place.
    if let Command::Gpu(gpu::Command::Run(args)) = command {
        return gpu::run(args);
    }
    let root = root()?;
    match command {
        Command::Gpu(gpu::Command::Pack(args)) => gpu::pack(&root, args)?,
        Command::Gpu(gpu::Command::Run(_)) => {}
        Command::Dist(args) => dist::run(&root, args)?,
        Command::Tidy => return tidy::run(&root),
        Command::Golden { which, check } => golden::run(&root, which, *check)?,
        Command::Templates => {
            let folder = templates::fetch(&root)?;
            println!("templates are in {}", folder.display());
        }
        Command::Kernels { arguments } => kernels::run(&root, arguments)?,
        Command::Emulate { build: true, .. } => println!("{}", emulate::build(&root)?.display()),
        Command::Emulate {
            package,
            seed,
            arguments,
            ..
        } => emulate::run(&root, package, *seed, arguments)?,
        Command::Vocabs => {
            let folder = templates::fetch_vocabs(&root)?;
            println!("vocabularies are in {}", folder.display());
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The root of the repository: the folder above this crate.
fn root() -> Result<PathBuf> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = manifest.parent().context("xtask has no parent folder")?;
    Ok(root.to_path_buf())
}
