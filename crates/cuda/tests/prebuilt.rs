//! Kernels that come with the program: with them nothing is compiled, and what the driver refuses of them is compiled after all.
//!
//! One test, since what was loaded on a GPU once stays as long as the process lives.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::path::Path;

use glim_cuda::cache::Cache;
use glim_testkit::device;

/// Files below a folder; none if it is not there.
fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in folder.read_dir().into_iter().flatten() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push(path),
        }
    }
    found
}

/// Measures in a process of its own, and says whether that went well.
fn measure(cache: &Cache) -> Result<(), String> {
    measure_with(cache, None)
}

/// The same with other libraries than the tests'.
fn measure_with(cache: &Cache, libraries: Option<&Path>) -> Result<(), String> {
    let folder = |folder: &Option<std::path::PathBuf>| folder.clone().unwrap_or_default();
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--ignored",
            "--exact",
            "in_a_process_of_its_own",
            "--nocapture",
        ])
        .env(FOLDER, folder(&cache.folder))
        .env(PREBUILT, folder(&cache.prebuilt))
        .envs(libraries.map(|folder| (device::LIBRARIES, folder)))
        .output()
        .unwrap();
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr)),
    }
}

/// The driver's file, as the emulator has it.
const DRIVER: &str = "libcuda.so.1";
const FOLDER: &str = "GLIM_TEST_FOLDER";
const PREBUILT: &str = "GLIM_TEST_PREBUILT";

/// What [`measure`] runs; by itself there is nothing that it should do.
#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn in_a_process_of_its_own() {
    let named = |name| std::env::var_os(name).map(std::path::PathBuf::from);
    let (Some(folder), Some(prebuilt)) = (named(FOLDER), named(PREBUILT)) else {
        return;
    };
    let some = |path: std::path::PathBuf| (path != Path::new("")).then_some(path);
    let options = common::options();
    let cache = Cache {
        folder: some(folder),
        prebuilt: some(prebuilt),
    };
    glim_cuda::bandwidth_of(options.gpu, &cache, 1 << 20).unwrap();
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn what_came_with_the_program_is_not_compiled_and_what_is_refused_is() {
    let place = tempfile::tempdir().unwrap();
    let [first, second, third, prebuilt] =
        ["first", "second", "third", "prebuilt"].map(|name| place.path().join(name));
    let cache = |folder: &Path, prebuilt: Option<&Path>| Cache {
        folder: Some(folder.to_owned()),
        prebuilt: prebuilt.map(Path::to_owned),
    };
    measure(&cache(&first, None)).unwrap();
    let compiled = files(&first);
    assert!(!compiled.is_empty());

    std::fs::create_dir(&prebuilt).unwrap();
    let copies: Vec<_> = compiled
        .iter()
        .map(|path| prebuilt.join(path.file_name().unwrap()))
        .collect();
    for (from, to) in compiled.iter().zip(&copies) {
        std::fs::copy(from, to).unwrap();
    }
    measure(&cache(&second, Some(&prebuilt))).unwrap();
    assert_eq!(
        files(&second),
        Vec::<std::path::PathBuf>::new(),
        "it was compiled again"
    );

    // As the cubin of a newer compiler is to an older driver.
    for copy in &copies {
        std::fs::write(copy, [b'x'; 4096]).unwrap();
    }
    measure(&cache(&third, Some(&prebuilt))).unwrap();
    assert_eq!(files(&third).len(), compiled.len());

    // Without a compiler: both reasons are told, and what is not refused needs none. A GPU's machine may have one anywhere.
    let Some(libraries) = device::emulator() else {
        return;
    };
    let driver_only = place.path().join("libraries");
    std::fs::create_dir(&driver_only).unwrap();
    std::fs::copy(libraries.join(DRIVER), driver_only.join(DRIVER)).unwrap();
    let without = |cache: &Cache| measure_with(cache, Some(&driver_only));
    let error = without(&cache(&third.join("other"), Some(&prebuilt))).unwrap_err();
    for reason in ["came with glim is of no use", "INVALID_IMAGE", "NVRTC"] {
        assert!(error.contains(reason), "{reason} is not in {error}");
    }
    for (from, to) in compiled.iter().zip(&copies) {
        std::fs::copy(from, to).unwrap();
    }
    without(&cache(&third.join("other"), Some(&prebuilt))).unwrap();
}
