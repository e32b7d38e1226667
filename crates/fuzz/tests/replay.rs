//! Replays the committed corpus of every target: what the fuzzer once found stays found.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::{Path, PathBuf};

use glim_fuzz::TARGETS;

/// All corpora together, in bytes.
const MAX_CORPUS_BYTES: u64 = 2 << 20;

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus")
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder);
    let entries = entries.unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn fuzz_corpus_replay() {
    for target in TARGETS {
        let files = files(&corpus().join(target.name));
        assert!(!files.is_empty(), "{} has no corpus", target.name);
        for file in files {
            println!("{}", file.display()); // shown where one fails
            (target.run)(&std::fs::read(&file).unwrap());
        }
    }
}

#[test]
fn every_target_has_its_corpus_and_its_file_and_there_are_no_others() {
    let mut expected: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    expected.sort_unstable();
    let stems = |folder: &Path| -> Vec<String> {
        let stem = |path: PathBuf| path.file_stem().unwrap().to_str().unwrap().to_owned();
        files(folder).into_iter().map(stem).collect()
    };
    assert_eq!(stems(&corpus()), expected);
    assert_eq!(stems(&corpus().join("../fuzz_targets")), expected);
}

#[test]
fn the_corpora_are_small() {
    let folders = TARGETS.iter().map(|target| corpus().join(target.name));
    let size = |path: PathBuf| std::fs::metadata(path).unwrap().len();
    let bytes: u64 = folders.flat_map(|folder| files(&folder)).map(size).sum();
    assert!(bytes <= MAX_CORPUS_BYTES, "{bytes} bytes");
}
