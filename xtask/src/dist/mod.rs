//! `cargo xtask dist`: a release as one archive and its checksum.
//!
//! The binary is that of `cargo build --release`, stripped; manual, completions and unit are what it prints itself. The same commit and
//! binary give the same bytes: entries are sorted, belong to nobody, and are of the commit's time. A binary of another commit, or a tree with
//! changes, is refused, unless it is for trying.

mod files;
mod identity;
mod licences;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use clap::Args;

use crate::programs;
use crate::python::call;
use identity::Identity;

#[derive(Args)]
pub(crate) struct DistArgs {
    /// Folder for the archive and its checksum
    #[arg(long, value_name = "FOLDER", default_value = "target/dist")]
    out: PathBuf,
    /// What `cargo xtask kernels --all --compile-only --out FOLDER` wrote; left out, the machine needs NVRTC
    #[arg(long, value_name = "FOLDER")]
    cubins: Option<PathBuf>,
    /// Pack this binary in place of the release build
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// For trying: a tree with changes, or a binary that is of no commit
    #[arg(long)]
    snapshot: bool,
}

/// The system that release binaries are for.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Makes the archive.
pub(crate) fn run(root: &Path, args: &DistArgs) -> Result<()> {
    let out = std::path::absolute(&args.out)?;
    let binary = match &args.binary {
        Some(binary) => binary.clone(),
        // As the README has it, so that nothing is built twice.
        None => programs::program(root, "glim", &["--release", "--locked"])?,
    };
    let binary = binary
        .canonicalize()
        .with_context(|| format!("{} is not there", binary.display()))?;
    let identity = Identity::of(&binary)?;
    if !args.snapshot {
        identity.check_commit(root)?;
    }
    let name = format!("glim-{}-{TARGET}", identity.version);
    // Beside the archive, so that a rename is one of the same disk.
    let staging = out.join(format!(".{name}.{}", std::process::id()));
    let folder = staging.join(&name);
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("{} was not made", folder.display()))?;
    let made = files::gather(root, &binary, &folder)
        .and_then(|()| match &args.cubins {
            Some(cubins) => files::cubins(cubins, &identity, &folder),
            None => Ok(()),
        })
        .and_then(|()| files::checksums(&folder))
        .and_then(|()| archive(root, &staging, &name, &out));
    // Of no use any more, whatever happened; the first error says why.
    let removed = std::fs::remove_dir_all(&staging);
    made?;
    removed.with_context(|| format!("{} was not removed", staging.display()))
}

/// Packs the folder, and writes the archive's checksum beside it.
fn archive(root: &Path, staging: &Path, name: &str, out: &Path) -> Result<()> {
    let time = said(
        Command::new("git")
            .current_dir(root)
            .args(["log", "-1", "--format=%ct"]),
    )?;
    let file = format!("{name}.tar.gz");
    let mut command: Vec<OsString> = [
        "--create",
        "--sort=name",
        "--format=ustar",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
        "--mode=u=rwX,go=rX",
        // Without its own time and name in the head.
        "--use-compress-program=gzip --no-name --best",
    ]
    .map(OsString::from)
    .into();
    command.push(format!("--mtime=@{time}").into());
    command.extend(["--file".into(), staging.join(&file).into()]);
    command.extend(["--directory".into(), staging.into(), name.into()]);
    call(Path::new("tar"), command)?;
    let sums = said(Command::new("sha256sum").current_dir(staging).arg(&file))?;
    let sum_file = format!("{file}.sha256");
    std::fs::write(staging.join(&sum_file), sums + "\n").context("the checksum was not written")?;
    for name in [&file, &sum_file] {
        std::fs::rename(staging.join(name), out.join(name))
            .with_context(|| format!("{name} was not moved to {}", out.display()))?;
    }
    let bytes = out.join(&file).metadata()?.len();
    println!(
        "{}, {:.1} MB",
        out.join(&file).display(),
        bytes as f64 / 1e6
    );
    Ok(())
}

/// What a program prints, which must end well.
fn said(command: &mut Command) -> Result<String> {
    let output = command
        .output()
        .with_context(|| format!("{command:?} did not start: is it installed?"))?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        bail!("{command:?} ended with {}: {error}", output.status);
    }
    let text = String::from_utf8(output.stdout).context("what it prints is not UTF-8")?;
    Ok(text.trim_end().to_owned())
}
