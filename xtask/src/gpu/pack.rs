//! `cargo xtask gpu pack`: programs, stripped, in one compressed archive beside this one.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use super::PackArgs;
use crate::python::call;

/// What travels to a device machine has a limit; this leaves room for the repository itself.
const BYTES_MAX: u64 = 20 << 20;

/// The archive, in the folder.
pub(super) const ARCHIVE: &str = "programs.tar.gz";

/// Test programs: package and test, by the names that the stages know.
const TESTS: &[(&str, &[&str])] = &[
    ("glim-cuda", &["--tests"]),
    ("glim-engine", &["--test", "cuda"]),
];

/// Builds and gathers everything.
pub(crate) fn pack(root: &Path, args: &PackArgs) -> Result<()> {
    let folder = std::path::absolute(&args.folder)?;
    let programs = folder.join("programs");
    std::fs::create_dir_all(&programs)
        .with_context(|| format!("{} was not made", programs.display()))?;
    for (package, which) in TESTS {
        let mut arguments = vec!["test", "--no-run", "-p", package];
        arguments.extend(*which);
        for (name, program) in executables(root, &arguments)? {
            strip(&program, &programs.join(format!("test-{package}-{name}")))?;
        }
    }
    let mut arguments = vec![
        "build",
        "-p",
        "glim",
        "--bin",
        "glim",
        "--no-default-features",
    ];
    if args.release {
        arguments.push("--release");
    }
    for (name, program) in executables(root, &arguments)? {
        strip(&program, &programs.join(name))?;
    }
    // Behind a link it is the same file: what travels is one archive and the program that unpacks it.
    let archive = folder.join(ARCHIVE);
    let tar: [OsString; 5] = [
        "-czf".into(),
        archive.clone().into(),
        "-C".into(),
        folder.clone().into(),
        "programs".into(),
    ];
    call(Path::new("tar"), tar)?;
    std::fs::remove_dir_all(&programs).context("the unpacked programs were not removed")?;
    let own = std::env::current_exe().context("this program's own file is not known")?;
    let xtask = folder.join("xtask");
    strip(&own, &xtask)?;
    let bytes = archive.metadata()?.len() + xtask.metadata()?.len();
    println!(
        "{} holds {:.1} MiB",
        folder.display(),
        bytes as f64 / f64::from(1 << 20)
    );
    if bytes > BYTES_MAX {
        bail!("that is more than {} MiB", BYTES_MAX >> 20);
    }
    println!(
        "there: {0}/xtask gpu run {0} --out OUT (in the repository's root, where the assets are)",
        args.folder.display()
    );
    Ok(())
}

/// Runs cargo, and gives name and file of each program that it made.
fn executables(root: &Path, arguments: &[&str]) -> Result<Vec<(String, PathBuf)>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .current_dir(root)
        .args(arguments)
        .arg("--message-format=json-render-diagnostics")
        .stderr(Stdio::inherit());
    let output = command.output().context("cargo did not start")?;
    if !output.status.success() {
        bail!("{command:?} ended with {}", output.status);
    }
    let mut found = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let message: serde_json::Value =
            serde_json::from_str(line).context("cargo's messages are not JSON")?;
        let (name, program) = (&message["target"]["name"], &message["executable"]);
        if let (Some(name), Some(program)) = (name.as_str(), program.as_str()) {
            found.push((name.to_owned(), PathBuf::from(program)));
        }
    }
    if found.is_empty() {
        bail!("{command:?} made no program");
    }
    Ok(found)
}

/// Copies a program without its symbols.
fn strip(from: &Path, to: &Path) -> Result<()> {
    let arguments: [OsString; 3] = ["-o".into(), to.into(), from.into()];
    call(Path::new("strip"), arguments)
}
