//! The fuzz targets: for each parser of bytes that others wrote, a function that takes any bytes.
//!
//! A target asserts what holds whatever the bytes are: nothing panics, an error is a sentence that names its place, what
//! opens can be read to its last byte. `fuzz/` at the root gives each to libFuzzer (`fuzz/README.md`); the test `replay`
//! gives each its committed corpus, on stable and in every run of the tests.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod gguf;
mod grammar;
mod hf;
mod template;
mod text;

use std::error::Error;
use std::path::Path;

/// One target.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// The name of its corpus and of its file in `fuzz/fuzz_targets`.
    pub name: &'static str,
    /// What it does.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: &[Target] = &[
    target("gguf", gguf::gguf),
    target("safetensors", hf::safetensors),
    target("safetensors_index", hf::index),
    target("hf_config", hf::config),
    target("tokenizer_gguf", text::from_gguf),
    target("tokenizer_json", text::from_json),
    target("chat_template", template::chat_template),
    target("schema", grammar::schema),
    target("stop_strings", grammar::stop_strings),
];

const fn target(name: &'static str, run: fn(&[u8])) -> Target {
    Target { name, run }
}

/// Gives `data` to the target called `name`.
///
/// # Panics
/// If there is no such target, or if it finds a fault.
pub fn run(name: &str, data: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    let target = target.unwrap_or_else(|| panic!("no target is called {name}"));
    (target.run)(data);
}

/// The rule for errors: one that nobody can place helps nobody.
#[track_caller]
fn assert_named(error: &dyn Error, places: &[&str]) {
    let message = error.to_string();
    assert!(
        places.iter().any(|place| message.contains(place)),
        "names none of {places:?}: {message}"
    );
}

/// A folder with these files, for the time of `run`: checkpoints in folders are mapped, so there must be files.
fn in_folder<T>(files: &[(&str, &[u8])], run: impl FnOnce(&Path) -> T) -> T {
    // In memory where that is to be had: a fuzzer makes thousands a second.
    let memory = Path::new("/dev/shm");
    let dir = if memory.is_dir() {
        tempfile::tempdir_in(memory)
    } else {
        tempfile::tempdir()
    };
    let dir = dir.unwrap_or_else(|error| panic!("no folder for temporary files: {error}"));
    for (name, bytes) in files {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    run(dir.path())
}
