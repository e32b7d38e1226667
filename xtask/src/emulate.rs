//! `cargo xtask emulate`: builds the CUDA emulator and runs tests that need a GPU on it.
//!
//! The emulator is two shared objects with the names of the driver and of NVRTC (`crates/cuda/emulator/README.md`). They are built
//! anew when a source has changed.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::programs;
use crate::python::call;

/// The variable that tells the crate's tests where the libraries are.
const LIBRARIES: &str = "GLIM_CUDA_LIBRARIES";

/// The variable that tells them where compiled kernels are kept. They are named by the emulator's version, too.
const CACHE: &str = "GLIM_CUDA_CACHE";

/// The variable that has each buffer be an allocation of its own: the emulator watches their ends.
const APART: &str = "GLIM_CUDA_APART";

/// The variable that says how many GPUs the emulator shows: two, so that ranks can have their own.
const GPUS: (&str, &str) = ("GLIM_EMULATED_GPUS", "2");

/// The libraries, by their SONAMEs.
const DRIVER: &str = "libcuda.so.1";
const NVRTC: &str = "libnvrtc.so.13";

/// What a build does besides the sources.
const FLAGS: &[&str] = &[
    "-std=c++17",
    "-O2",
    "-g1",
    "-shared",
    "-fPIC",
    "-pthread",
    "-Wall",
    "-Wextra",
    "-fvisibility=hidden",
    // The way back from a fault is a long jump, which its checks refuse.
    "-U_FORTIFY_SOURCE",
];

/// Headers that kernels are compiled with; they lie beside the libraries.
const HEADERS: &[&str] = &["abi.h", "prelude.h", "collectives.h", "mma.h"];

/// Lists what the libraries were built from; written last.
const STAMP: &str = "build.txt";

/// The emulator's own test, beside the libraries.
const SELF_TEST: &str = "self_test";

/// Builds the emulator and runs the ignored tests of a crate on it.
pub(crate) fn run(
    root: &Path,
    package: &str,
    seed: Option<u64>,
    arguments: &[OsString],
) -> Result<()> {
    let (mut names, passed) = split(arguments)?;
    if names.is_empty() {
        names = programs::test_names(root, package)?;
    }
    let tests = programs::tests(root, package, &names)?;
    let libraries = build(root)?;
    test_itself(root, &libraries)?;
    let cache = std::env::var_os(CACHE).unwrap_or_else(|| libraries.join("cache").into());
    for test in tests {
        let mut command = Command::new(&test.path);
        command
            // Where cargo runs them.
            .current_dir(programs::folder(root, package))
            .env(LIBRARIES, &libraries)
            .env(APART, "1")
            .env(GPUS.0, GPUS.1)
            .env(CACHE, &cache)
            .args(&passed)
            // NCCL is for real GPUs.
            .args(["--ignored", "--skip", "itself_in_every_replay"]);
        if let Some(seed) = seed {
            command.env("GLIM_EMULATOR_SEED", seed.to_string());
        }
        println!("\n{}, test {}", package, test.name);
        let status = command
            .status()
            .with_context(|| format!("{command:?} did not start"))?;
        if !status.success() {
            bail!("{command:?} ended with {status}");
        }
    }
    Ok(())
}

/// Names behind `--test`, and what the programs are given.
fn split(arguments: &[OsString]) -> Result<(Vec<String>, Vec<OsString>)> {
    let (mut names, mut passed) = (Vec::new(), Vec::new());
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        if argument == "--test" {
            let name = arguments.next().context("--test without a name")?;
            names.push(name.to_string_lossy().into_owned());
        } else if argument == "--" {
            passed.extend(arguments.by_ref().cloned());
        } else {
            passed.push(argument.clone());
        }
    }
    Ok((names, passed))
}

/// Runs the emulator's own test. What it reports of kernels that are wrong on purpose is shown only if the test fails.
fn test_itself(root: &Path, folder: &Path) -> Result<()> {
    let mut command = Command::new(folder.join(SELF_TEST));
    let output = command
        .arg(root.join("crates/cuda/kernels/include/common.cuh"))
        .arg(root.join("crates/cuda/emulator/test/kernels.cu"))
        .output()
        .with_context(|| format!("{command:?} did not start"))?;
    print!("{}", String::from_utf8_lossy(&output.stdout));
    if !output.status.success() {
        eprint!("{}", String::from_utf8_lossy(&output.stderr));
        bail!(
            "the CUDA emulator does not pass its own test: {}",
            output.status
        );
    }
    Ok(())
}

/// Builds the emulator, unless it is there as its sources are now, and returns the folder of its libraries.
pub(crate) fn build(root: &Path) -> Result<PathBuf> {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "g++".to_owned());
    if Command::new(&compiler).arg("--version").output().is_err() {
        bail!(
            "the CUDA emulator needs a C++ compiler, and `{compiler}` does not start: install g++, or name another in CXX"
        );
    }
    let sources = root.join("crates/cuda/emulator");
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let folder = root.join(target).join("emulator");
    let build = fingerprint(&[&sources, &sources.join("driver")], &compiler)?;
    let tests = fingerprint(&[&sources.join("test")], &compiler)?;
    let stamp = format!("{build} {tests}\n");
    if std::fs::read_to_string(folder.join(STAMP)).is_ok_and(|found| found == stamp) {
        return Ok(folder);
    }
    println!("building the CUDA emulator in {}", folder.display());
    let include = folder.join("include");
    std::fs::create_dir_all(&include)
        .with_context(|| format!("{} was not made", include.display()))?;
    for header in HEADERS {
        std::fs::copy(sources.join(header), include.join(header))
            .with_context(|| format!("{header} was not copied"))?;
    }
    library(
        &compiler,
        &cpp_files(&sources.join("driver"))?,
        &folder,
        DRIVER,
        build,
    )?;
    library(
        &compiler,
        &[sources.join("nvrtc.cpp")],
        &folder,
        NVRTC,
        build,
    )?;
    let mut arguments: Vec<OsString> = ["-std=c++17", "-g", "-Wall", "-Wextra", "-pthread"]
        .map(Into::into)
        .into();
    arguments.extend(
        cpp_files(&sources.join("test"))?
            .into_iter()
            .map(Into::into),
    );
    arguments.extend([folder.join(DRIVER).into(), folder.join(NVRTC).into()]);
    arguments.push("-Wl,-rpath,$ORIGIN".into());
    arguments.extend(["-o".into(), folder.join(SELF_TEST).into()]);
    call(Path::new(&compiler), arguments)?;
    std::fs::write(folder.join(STAMP), stamp).context("the emulator's stamp was not written")?;
    Ok(folder)
}

fn library(compiler: &str, files: &[PathBuf], folder: &Path, name: &str, build: u32) -> Result<()> {
    // Not in place: a running test may have the old one open.
    let (made, wanted) = (folder.join(format!("{name}.new")), folder.join(name));
    let mut arguments: Vec<OsString> = FLAGS.iter().map(OsString::from).collect();
    arguments.push(format!("-DGLIM_EMULATOR_BUILD={build}").into());
    arguments.push(format!("-Wl,-soname,{name}").into());
    arguments.extend(files.iter().map(OsString::from));
    arguments.extend(["-o".into(), made.clone().into(), "-ldl".into()]);
    call(Path::new(compiler), arguments)?;
    std::fs::rename(&made, &wanted)
        .with_context(|| format!("{} was not put in place", wanted.display()))
}

fn cpp_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> = list(folder)?;
    files.retain(|path| path.extension().is_some_and(|extension| extension == "cpp"));
    Ok(files)
}

/// A number that changes with the C++ files in these folders and with the compiler (FNV-1a).
fn fingerprint(folders: &[&Path], compiler: &str) -> Result<u32> {
    let mut hash = 0x811c_9dc5u32;
    let mut add = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
        }
    };
    add(compiler.as_bytes());
    FLAGS.iter().for_each(|flag| add(flag.as_bytes()));
    for folder in folders {
        for path in list(folder)? {
            if path.extension().is_some_and(|e| e == "cpp" || e == "h") {
                let text = std::fs::read(&path)
                    .with_context(|| format!("{} is not readable", path.display()))?;
                add(&text);
            }
        }
    }
    Ok(hash)
}

fn list(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries =
        std::fs::read_dir(folder).with_context(|| format!("{} is not there", folder.display()))?;
    let mut paths = Vec::new();
    for entry in entries {
        paths.push(entry?.path());
    }
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_programs_and_what_they_are_given() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        let given = "--test parity fast_math --test draw -- --nocapture";
        let (names, passed) = split(&words(given)).unwrap();
        assert_eq!(names, ["parity", "draw"]);
        assert_eq!(passed, ["fast_math", "--nocapture"]);
        assert!(split(&words("--test")).is_err());
    }
}
