//! `cargo xtask gpu pack`: programs, stripped, in one compressed archive beside this one.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::PackArgs;
use super::stages::STAGES;
use crate::programs;
use crate::python::call;

/// What travels to a device machine has a limit; this leaves room for the repository itself.
const BYTES_MAX: u64 = 20 << 20;

/// The archive, in the folder.
pub(super) const ARCHIVE: &str = "programs.tar.xz";

/// Crates whose tests need a GPU.
const CRATES: [&str; 2] = ["glim-cuda", "glim-engine"];

/// What a stage calls test `name` of a crate.
fn called(package: &str, name: &str) -> String {
    format!("test-{package}-{name}")
}

/// Builds and gathers everything.
pub(crate) fn pack(root: &Path, args: &PackArgs) -> Result<()> {
    let folder = std::path::absolute(&args.folder)?;
    let unpacked = folder.join("programs");
    std::fs::create_dir_all(&unpacked)
        .with_context(|| format!("{} was not made", unpacked.display()))?;
    let steps = STAGES.iter().flat_map(|stage| stage.steps);
    let wanted: BTreeSet<&str> = steps.map(|step| step.program).collect();
    for package in CRATES {
        let mut names = programs::test_names(root, package)?;
        names.retain(|name| wanted.contains(called(package, name).as_str()));
        for test in programs::tests(root, package, &names)? {
            strip(&test.path, &unpacked.join(called(package, &test.name)))?;
        }
    }
    // Without its built-in model, which lies among the assets there.
    let mut arguments = vec!["-p", "glim", "--no-default-features", "--features", "cuda"];
    if args.release {
        arguments.push("--release");
    }
    let glim = programs::program(root, "glim", &arguments)?;
    strip(&glim, &unpacked.join("glim"))?;
    let missing = wanted
        .iter()
        .find(|name| name.starts_with("test-") && !unpacked.join(name).is_file());
    if let Some(name) = missing {
        bail!("a stage runs {name}, which no crate has");
    }
    // Behind a link it is the same file: what travels is one archive and the program that unpacks it.
    let archive = folder.join(ARCHIVE);
    let mut tar = Command::new("tar");
    tar.arg("-cJf")
        .arg(&archive)
        .arg("-C")
        .arg(&folder)
        .arg("programs");
    // The programs have most of their code in common, further apart than the smaller windows reach.
    tar.env("XZ_OPT", "-9 -T1");
    let status = tar.status().context("tar did not start")?;
    if !status.success() {
        bail!("{tar:?} ended with {status}: is xz installed?");
    }
    std::fs::remove_dir_all(&unpacked).context("the unpacked programs were not removed")?;
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

/// Copies a program without its symbols.
fn strip(from: &Path, to: &Path) -> Result<()> {
    let arguments: [OsString; 3] = ["-o".into(), to.into(), from.into()];
    call(Path::new("strip"), arguments)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::super::stages::SANITIZER;
    use super::*;

    #[test]
    fn the_programs_of_all_stages_are_tests_of_a_crate() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut known: BTreeSet<String> = ["glim", SANITIZER].map(str::to_owned).into();
        for package in CRATES {
            let names = programs::test_names(root, package).unwrap();
            known.extend(names.iter().map(|name| called(package, name)));
        }
        for step in STAGES.iter().flat_map(|stage| stage.steps) {
            assert!(known.contains(step.program), "{}", step.program);
        }
    }

    #[test]
    fn steps_side_by_side_write_to_files_of_their_own() {
        for stage in STAGES {
            let files: BTreeSet<String> = stage.steps.iter().map(|step| step.file()).collect();
            assert_eq!(files.len(), stage.steps.len(), "{}", stage.name);
        }
    }
}
