//! Importance matrices in both forms of file, and files that are none.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::{Path, PathBuf};

use glim_model::quantize::{Entry, Imatrix, Sums};

fn in_file(dir: &Path, bytes: &[u8]) -> PathBuf {
    let path = dir.join("imatrix.dat");
    fs::write(&path, bytes).unwrap();
    path
}

fn text(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as i32).to_le_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes
}

/// The older form; entries are name, calls, values.
fn legacy(entries: &[(&str, i32, &[f32])], chunks: Option<(i32, &str)>) -> Vec<u8> {
    let mut bytes = (entries.len() as i32).to_le_bytes().to_vec();
    for (name, calls, values) in entries {
        bytes.extend(text(name));
        bytes.extend(calls.to_le_bytes());
        bytes.extend((values.len() as i32).to_le_bytes());
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }
    if let Some((chunks, dataset)) = chunks {
        bytes.extend(chunks.to_le_bytes());
        bytes.extend(text(dataset));
    }
    bytes
}

fn sums() -> Sums {
    let entry = |sums: &[f32], counts: &[u64]| Entry {
        sums: sums.to_vec(),
        counts: counts.to_vec(),
    };
    Sums {
        datasets: vec!["wiki.txt".to_owned()],
        chunk_count: 3,
        chunk_size: 512,
        entries: [
            ("a.weight", entry(&[2.0, 4.0, 8.0, 16.0], &[2, 0])),
            // Heads in one row, with one count.
            ("b.weight", entry(&[3.0, 6.0, 9.0, 12.0], &[3])),
        ]
        .map(|(name, entry)| (name.to_owned(), entry))
        .into(),
    }
}

#[test]
fn sums_are_read_as_means_and_an_expert_that_met_no_token_as_ones() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("i.gguf");
    sums().write(&path).unwrap();
    let found = Imatrix::open(&path).unwrap();
    assert_eq!(found.datasets(), ["wiki.txt"]);
    assert_eq!((found.chunk_count(), found.n_entries()), (3, 2));
    let weights = |name: &str| found.weights(name, 2, 2).unwrap();
    assert_eq!(weights("a.weight"), Some(vec![1.0, 2.0, 1.0, 1.0]));
    assert_eq!(weights("b.weight"), Some(vec![1.0, 2.0, 3.0, 4.0]));
    assert_eq!(weights("c.weight"), None);
    assert!(found.contains("a.weight") && !found.contains("a"));
}

#[test]
fn the_older_form_is_read_with_and_without_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let entries: [(&str, i32, &[f32]); 2] =
        [("a.weight", 4, &[4.0, 8.0]), ("b.weight", 0, &[5.0, 6.0])];
    for (end, chunks, datasets) in [
        (None, 0, &[][..]),
        (Some((7, "wiki.txt")), 7, &["wiki.txt"][..]),
    ] {
        let path = in_file(dir.path(), &legacy(&entries, end));
        let found = Imatrix::open(&path).unwrap();
        assert_eq!(found.chunk_count(), chunks);
        assert_eq!(found.datasets(), datasets);
        let weights = |name: &str| found.weights(name, 2, 1).unwrap();
        assert_eq!(weights("a.weight"), Some(vec![1.0, 2.0]));
        assert_eq!(
            weights("b.weight"),
            Some(vec![5.0, 6.0]),
            "no calls: as it is"
        );
    }
}

#[test]
fn a_file_that_is_cut_anywhere_is_refused_or_whole_without_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let entries: [(&str, i32, &[f32]); 2] =
        [("a.weight", 4, &[4.0, 8.0]), ("b.weight", 1, &[5.0, 6.0])];
    let whole = legacy(&entries, Some((7, "wiki.txt")));
    let entries_end = legacy(&entries, None).len();
    for n in 0..whole.len() {
        let path = in_file(dir.path(), &whole[..n]);
        // The end may be missing, and the name in it.
        let may_end_here = n == entries_end || n == entries_end + 4;
        assert_eq!(Imatrix::open(&path).is_ok(), may_end_here, "{n} bytes");
    }
    let path = dir.path().join("i.gguf");
    sums().write(&path).unwrap();
    let whole = fs::read(&path).unwrap();
    for n in 0..whole.len() - 32 {
        fs::write(&path, &whole[..n]).unwrap();
        assert!(Imatrix::open(&path).is_err(), "{n} bytes");
    }
}

#[test]
fn files_that_are_no_importance_matrix_are_refused_in_a_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let wild = |words: &[i32]| -> Vec<u8> { words.iter().flat_map(|w| w.to_le_bytes()).collect() };
    for (bytes, expected) in [
        (
            b"hi".to_vec(),
            "it is no importance matrix, or cut short: the number of entries takes 4 bytes, and 2 are left",
        ),
        (wild(&[0, 0]), "it has no entries"),
        (
            wild(&[-5]),
            "it is no importance matrix: the number of entries has a length of -5",
        ),
        (
            wild(&[1, i32::MAX]),
            "it is no importance matrix: entry 0 of 1 has a name of 2147483647 bytes, more than 4096",
        ),
        (
            wild(&[1, 0, 1, i32::MAX, 0]),
            "it is no importance matrix, or cut short: entry 0 of 1 takes 8589934588 bytes, and 4 are left",
        ),
        (
            legacy(&[("a", 1, &[1.0]), ("a", 1, &[1.0])], None),
            "it has two entries for `a`",
        ),
    ] {
        let path = in_file(dir.path(), &bytes);
        let error = Imatrix::open(&path).unwrap_err().to_string();
        assert_eq!(error, format!("{}: {expected}", path.display()));
    }
    let model = dir.path().join("model.gguf");
    glim_testkit::tiny::Tiny::new(1).build().write(&model);
    let error = Imatrix::open(&model).unwrap_err().to_string();
    assert!(
        error.contains("`general.type` is m") && error.ends_with("expected imatrix"),
        "{error}"
    );
}

#[test]
fn weights_that_do_not_fit_or_are_none_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let entries: [(&str, i32, &[f32]); 2] = [
        ("a.weight", 1, &[1.0, f32::NAN]),
        ("b.weight", 1, &[1.0, -1.0]),
    ];
    let path = in_file(dir.path(), &legacy(&entries, None));
    let found = Imatrix::open(&path).unwrap();
    for (name, columns, matrices, expected) in [
        (
            "a.weight",
            2,
            3,
            "it has 2 values for tensor `a.weight`, expected 6 (3 × 2)",
        ),
        (
            "a.weight",
            2,
            1,
            "the mean square of matrix 0, column 1 of tensor `a.weight` is NaN, expected a finite number of at least 0",
        ),
        (
            "b.weight",
            1,
            2,
            "the mean square of matrix 1, column 0 of tensor `b.weight` is -1, expected a finite number of at least 0",
        ),
    ] {
        let error = found.weights(name, columns, matrices).unwrap_err();
        assert_eq!(error.to_string(), format!("{}: {expected}", path.display()));
    }
}
