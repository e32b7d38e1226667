//! `cargo xtask kernels`: `xtask/kernels` with NVIDIA's compiler and disassembler from PyPI, neither of which needs a GPU.
//!
//! Their versions are pinned: the snapshot of registers holds for one version of the compiler.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::programs;
use crate::python::{call, environment};

const PACKAGES: &[&str] = &[
    "nvidia-cuda-nvrtc==13.5.37",
    "nvidia-cuda-nvdisasm==13.5.37",
];

/// Runs the program with `arguments`.
pub(crate) fn run(root: &Path, arguments: &[OsString]) -> Result<()> {
    let toolkit = toolkit(root)?;
    // With a test beside it the features are those of tests, too, and what was built for them serves.
    let build = ["--workspace", "--test", "grids"];
    let program = programs::program(root, "xtask-kernels", &build)?;
    let mut all: Vec<OsString> = vec!["--root".into(), root.into()];
    all.extend(["--cache".into(), root.join("target/kernels").into()]);
    all.extend(["--nvrtc".into(), toolkit.join("lib").into()]);
    all.extend(["--nvdisasm".into(), toolkit.join("bin/nvdisasm").into()]);
    all.extend_from_slice(arguments);
    call(&program, all)
}

/// The folder that the packages were unpacked to, with `lib` and `bin`.
fn toolkit(root: &Path) -> Result<PathBuf> {
    let venv = root.join("target/kernels-venv");
    environment(&venv, PACKAGES)?;
    let lib = venv.join("lib");
    let pythons = lib
        .read_dir()
        .with_context(|| format!("{} is not there", lib.display()))?;
    let mut toolkits = pythons
        .flatten()
        .map(|python| python.path().join("site-packages/nvidia/cu13"))
        .filter(|path| path.is_dir());
    toolkits.next().with_context(|| {
        format!(
            "the packages left no nvidia/cu13 under {}: remove the folder and try again",
            lib.display()
        )
    })
}
