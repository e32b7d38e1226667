//! Running the scripts of `xtask/py`: with the system's Python, or in a virtual environment with pinned packages.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

/// What the scripts import. The versions are those that the goldens name; numpy only moves bytes.
const PACKAGES: &[&str] = &[
    "gguf==0.19.0",
    "jinja2==3.1.6",
    "numpy",
    "tokenizers==0.23.3",
];

/// Lists the packages that an environment was filled with; written last, so an interrupted fill is repeated.
const STAMP: &str = "glim-packages.txt";

/// Python as the system has it, enough for scripts that need only its own library and pip.
pub(crate) fn system() -> PathBuf {
    PathBuf::from("python3")
}

/// Python of the virtual environment of the goldens, which is made and filled if it is not there yet.
pub(crate) fn with_packages(root: &Path) -> Result<PathBuf> {
    environment(&root.join("target/xtask-venv"), PACKAGES)
}

/// Python of a virtual environment with these packages, which is made and filled if it is not there yet.
pub(crate) fn environment(venv: &Path, packages: &[&str]) -> Result<PathBuf> {
    let python = venv.join("bin/python");
    let wanted = packages.join("\n");
    if std::fs::read_to_string(venv.join(STAMP)).is_ok_and(|found| found == wanted) {
        return Ok(python);
    }
    println!("filling {} with {}", venv.display(), packages.join(", "));
    let arguments = ["-m", "venv", "--clear"].map(OsStr::new);
    call(&system(), arguments.into_iter().chain([venv.as_os_str()]))?;
    let arguments = ["-m", "pip", "install", "--quiet"];
    call(&python, arguments.iter().chain(packages))?;
    std::fs::write(venv.join(STAMP), wanted).context("the environment's stamp was not written")?;
    Ok(python)
}

/// Runs a program, its output passed on; anything but success is an error.
pub(crate) fn call<S: AsRef<OsStr>>(
    program: &Path,
    arguments: impl IntoIterator<Item = S>,
) -> Result<()> {
    let mut command = Command::new(program);
    command.args(arguments);
    let status = command
        .status()
        .with_context(|| format!("{} did not start: is it installed?", program.display()))?;
    if !status.success() {
        bail!("{command:?} ended with {status}");
    }
    Ok(())
}
