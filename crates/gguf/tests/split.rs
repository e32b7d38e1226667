//! Split sets: opened from any part, and refused with the name of the part that is wrong.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::{
    fs,
    path::{Path, PathBuf},
};

use common::tiny_model;
use glim_gguf::{Gguf, GgufError, Metadata, Value, Writer};
use glim_quant::GgmlType;
use tempfile::TempDir;

/// Splits the tiny model in three.
fn split_tiny() -> (Gguf, TempDir, Vec<PathBuf>) {
    let whole = Gguf::open(&tiny_model()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::with_metadata(whole.metadata().clone());
    for tensor in whole.tensors() {
        writer.tensor(
            &tensor.name,
            &tensor.ggml_dims,
            tensor.ty,
            whole.data(tensor),
        );
    }
    let paths = writer.write_split(dir.path(), "tiny", 3).unwrap();
    (whole, dir, paths)
}

/// The tiny model's keys and tensors, in parts of at most `max_bytes`.
fn split_by_size(whole: &Gguf, dir: &Path, max_bytes: u64) -> Vec<PathBuf> {
    let mut writer = Writer::with_metadata(whole.metadata().clone());
    for tensor in whole.tensors() {
        writer.tensor(
            &tensor.name,
            &tensor.ggml_dims,
            tensor.ty,
            whole.data(tensor),
        );
    }
    writer.write_split_by_size(dir, "tiny", max_bytes).unwrap()
}

#[test]
fn parts_by_size_are_as_large_as_they_may_be_and_no_larger() {
    let whole = Gguf::open(&tiny_model()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let largest = whole.tensors().iter().map(|t| t.bytes).max().unwrap();
    let max_bytes = 5_000_000;
    assert!(
        largest < max_bytes / 2,
        "so that every part can be filled by half"
    );
    let paths = split_by_size(&whole, dir.path(), max_bytes);
    let sizes: Vec<u64> = paths
        .iter()
        .map(|p| fs::metadata(p).unwrap().len())
        .collect();
    let (_, full) = sizes.split_last().unwrap();
    assert!(sizes.iter().all(|&size| size <= max_bytes), "{sizes:?}");
    assert!(full.iter().all(|&size| size > max_bytes / 2), "{sizes:?}");

    let set = Gguf::open(&paths[1]).unwrap();
    assert_eq!(set.tensors().len(), whole.tensors().len());
    for (found, expected) in set.tensors().iter().zip(whole.tensors()) {
        assert_eq!(found.name, expected.name);
        assert!(set.data(found) == whole.data(expected), "{}", found.name);
    }
}

#[test]
fn what_fits_into_one_file_is_no_set() {
    let whole = Gguf::open(&tiny_model()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let paths = split_by_size(&whole, dir.path(), u64::MAX);
    assert_eq!(paths, [dir.path().join("tiny.gguf")]);
    let one = Gguf::open(&paths[0]).unwrap();
    assert_eq!(one.metadata().uint("split.count").unwrap(), None);
    // A file of a set has three keys more, which count.
    let bytes = fs::metadata(&paths[0]).unwrap().len();
    assert_eq!(split_by_size(&whole, dir.path(), bytes + 256).len(), 1);
    assert_eq!(split_by_size(&whole, dir.path(), bytes - 1).len(), 2);
}

#[test]
fn a_tensor_beyond_the_size_has_a_part_of_its_own() {
    let data = vec![0; 4096];
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::new();
    for (name, bytes) in [("a", 64), ("b", 4096), ("c", 64), ("d", 64)] {
        writer.tensor(name, &[bytes as u64 / 4], GgmlType::F32, &data[..bytes]);
    }
    let paths = writer.write_split_by_size(dir.path(), "m", 512).unwrap();
    let tensors: Vec<Vec<String>> = (0..3)
        .map(|part| {
            let set = Gguf::open(&paths[0]).unwrap();
            let of_part = set.tensors().iter().filter(|t| t.part == part);
            of_part.map(|t| t.name.clone()).collect()
        })
        .collect();
    assert_eq!(paths.len(), 3);
    assert_eq!(tensors, [vec!["a"], vec!["b"], vec!["c", "d"]]);
}

/// A set of two small parts, `m-0000N-of-00002.gguf`, one tensor each.
fn split_small(dir: &Path) -> Vec<PathBuf> {
    let data = [7; 64];
    let mut writer = Writer::new();
    writer.set("general.name", "small");
    writer.tensor("a", &[16], GgmlType::F32, &data[..]);
    writer.tensor("b", &[32], GgmlType::F16, &data[..]);
    writer.write_split(dir, "m", 2).unwrap()
}

/// Writes one part by hand, with the keys as given.
fn write_part(path: &Path, keys: &[(&str, Value)], tensor: &str) {
    // The writer keeps `split.*` keys to itself, so the part is made under other names and patched.
    let mut metadata = Metadata::new();
    for (key, value) in keys {
        metadata.set(key.replace("split.", "tilps."), value.clone());
    }
    let mut writer = Writer::with_metadata(metadata);
    writer.tensor(tensor, &[16], GgmlType::F32, vec![1; 64]);
    let mut bytes = writer.to_bytes("part").unwrap();
    while let Some(at) = bytes.windows(6).position(|window| window == b"tilps.") {
        bytes[at..at + 6].copy_from_slice(b"split.");
    }
    fs::write(path, bytes).unwrap();
}

fn part_keys(no: u16, count: u16, tensors: i32) -> [(&'static str, Value); 3] {
    [
        ("split.no", no.into()),
        ("split.count", count.into()),
        ("split.tensors.count", tensors.into()),
    ]
}

#[track_caller]
fn check(path: &Path, names: &Path, expected: &str) -> GgufError {
    let error = Gguf::open(path).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("{}: {expected}", names.display())
    );
    error
}

#[test]
fn a_set_opens_from_each_part_and_from_its_folder_with_the_same_tensors() {
    let (whole, dir, paths) = split_tiny();
    let names: Vec<_> = paths
        .iter()
        .map(|path| path.file_name().unwrap().to_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "tiny-00001-of-00003.gguf",
            "tiny-00002-of-00003.gguf",
            "tiny-00003-of-00003.gguf"
        ]
    );

    for opened_from in paths.iter().map(PathBuf::as_path).chain([dir.path()]) {
        let set = Gguf::open(opened_from).unwrap();
        let part_paths: Vec<_> = set.parts().iter().map(|part| part.path.clone()).collect();
        assert_eq!(part_paths, paths);
        assert_eq!(set.tensors().len(), whole.tensors().len());
        for (tensor, expected) in set.tensors().iter().zip(whole.tensors()) {
            assert_eq!(tensor.name, expected.name);
            assert_eq!(
                (&tensor.ggml_dims, tensor.ty),
                (&expected.ggml_dims, expected.ty)
            );
            assert!(
                set.data(tensor) == whole.data(expected),
                "{}: other bytes",
                tensor.name
            );
            assert_eq!(set.tensor(&tensor.name), Some(tensor));
        }
        for (key, value) in whole.metadata().iter() {
            assert_eq!(set.metadata().get(key), Some(value), "{key}");
        }
        assert_eq!(set.metadata().len(), whole.metadata().len() + 3);
    }
}

#[test]
fn the_parts_are_about_equally_large_and_their_keys_are_those_of_gguf_split() {
    let (whole, _dir, paths) = split_tiny();
    let set = Gguf::open(&paths[0]).unwrap();
    let sizes: Vec<_> = set.parts().iter().map(|part| part.bytes).collect();
    let largest = whole
        .tensors()
        .iter()
        .map(|tensor| tensor.bytes)
        .max()
        .unwrap();
    assert!(
        sizes.iter().max().unwrap() - sizes.iter().min().unwrap() < 2 * largest,
        "{sizes:?}"
    );

    for (no, path) in paths.iter().enumerate() {
        // Read as what it is, a GGUF file of its own, under a name that does not ask for siblings.
        let bytes = fs::read(path).unwrap();
        let key = |name: &str| {
            bytes
                .windows(name.len())
                .any(|window| window == name.as_bytes())
        };
        assert!(key("split.no") && key("split.count") && key("split.tensors.count"));
        assert_eq!(
            key("general.architecture"),
            no == 0,
            "only part 1 has the model's keys"
        );
    }
    assert_eq!(set.metadata().get("split.no"), Some(&Value::U16(0)));
    assert_eq!(set.metadata().get("split.count"), Some(&Value::U16(3)));
    assert_eq!(
        set.metadata().get("split.tensors.count"),
        Some(&Value::I32(163))
    );
}

#[test]
fn a_missing_part_is_named_from_whichever_part_is_opened() {
    for missing in 0..3 {
        let (_, dir, paths) = split_tiny();
        fs::remove_file(&paths[missing]).unwrap();
        let rest = paths.iter().filter(|path| path.exists());
        for opened_from in rest.map(PathBuf::as_path) {
            let opened = opened_from.file_name().unwrap().to_str().unwrap();
            let expected = format!(
                "missing, but `{opened}` is one of a split set of 3 parts: put the file beside the other parts"
            );
            assert!(check(opened_from, &paths[missing], &expected).is_missing());
        }
        assert!(Gguf::open(dir.path()).unwrap_err().is_missing());
    }
}

#[test]
fn an_alignment_that_is_not_the_default_holds_in_each_part() {
    let dir = tempfile::tempdir().unwrap();
    let data = [3; 64];
    let mut writer = Writer::new();
    writer.set("general.alignment", 256u32);
    writer.tensor("a", &[16], GgmlType::F32, &data[..]);
    writer.tensor("b", &[16], GgmlType::F32, &data[..]);
    let paths = writer.write_split(dir.path(), "m", 2).unwrap();
    let set = Gguf::open(&paths[1]).unwrap();
    assert!(
        set.parts()
            .iter()
            .all(|part| part.alignment == 256 && part.data_offset % 256 == 0)
    );
    assert_eq!(set.data(set.tensor("b").unwrap()), data);
}

#[test]
fn part_one_without_tensors_is_fine() {
    let dir = tempfile::tempdir().unwrap();
    let paths = split_small(dir.path());
    let mut keys = Writer::new();
    for (key, value) in part_keys(0, 2, 1) {
        keys.set(key.replace("split.", "tilps."), value);
    }
    let mut bytes = keys.to_bytes("part").unwrap();
    while let Some(at) = bytes.windows(6).position(|window| window == b"tilps.") {
        bytes[at..at + 6].copy_from_slice(b"split.");
    }
    fs::write(&paths[0], bytes).unwrap();
    write_part(&paths[1], &part_keys(1, 2, 1), "b");
    let set = Gguf::open(&paths[1]).unwrap();
    assert_eq!(set.tensors().len(), 1);
    assert_eq!(set.tensors()[0].part, 1);
}

#[test]
fn a_set_that_was_merged_by_gguf_split_is_a_whole_model() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("merged.gguf");
    write_part(&path, &[("split.count", 0u16.into())], "a");
    assert_eq!(Gguf::open(&path).unwrap().parts().len(), 1);
}

#[test]
fn a_renamed_part_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let paths = split_small(dir.path());
    let renamed = dir.path().join("renamed.gguf");
    fs::rename(&paths[0], &renamed).unwrap();
    let expected = "key `split.count` says 2 parts, but the file is not named like one: expected \
                    NAME-00001-of-00002.gguf";
    check(&renamed, &renamed, expected);

    let other_count = dir.path().join("m-00001-of-00003.gguf");
    fs::rename(&renamed, &other_count).unwrap();
    let expected = "the file is named as one of 3 parts, but its key `split.count` is 2: expected the same number";
    check(&other_count, &other_count, expected);
}

#[test]
fn exchanged_parts_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let paths = split_small(dir.path());
    fs::copy(&paths[0], &paths[1]).unwrap();
    let expected = "the file is named as part 2, but its key `split.no` is 0: expected 1";
    check(&paths[0], &paths[1], expected);
    check(&paths[1], &paths[1], expected);
}

#[test]
fn a_file_that_is_only_named_like_a_part_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m-00002-of-00003.gguf");
    write_part(&path, &[], "a");
    let expected = "the file is named as one of 3 parts, but its key `split.count` is 0: expected the same number";
    check(&path, &path, expected);

    let alone = dir.path().join("m-00001-of-00001.gguf");
    write_part(&alone, &[], "a");
    assert!(
        Gguf::open(&alone).is_ok(),
        "a set of one part is a whole model"
    );
}

#[test]
fn a_part_of_another_model_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let paths = split_small(dir.path());
    write_part(&paths[1], &part_keys(1, 5, 2), "b");
    let expected = "part of another model: its key `split.count` is 5, expected 2 as in `m-00001-of-00002.gguf`";
    check(&paths[0], &paths[1], expected);

    write_part(&paths[1], &part_keys(1, 2, 99), "b");
    let expected = "part of another model: its key `split.tensors.count` is 99, expected 2 as in `m-00001-of-00002.gguf`";
    check(&paths[0], &paths[1], expected);
}

#[test]
fn a_wrong_total_and_a_tensor_in_two_parts_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let paths = split_small(dir.path());
    write_part(&paths[1], &part_keys(1, 2, 2), "a");
    check(
        &paths[1],
        &paths[1],
        "tensor `a` stands in `m-00001-of-00002.gguf` too, expected it in one part only",
    );

    write_part(&paths[0], &part_keys(0, 2, 7), "a");
    write_part(&paths[1], &part_keys(1, 2, 7), "b");
    check(
        &paths[1],
        &paths[0],
        "the parts hold 2 tensors together, expected 7 as key `split.tensors.count` says",
    );
}

#[test]
fn a_part_without_its_number_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m-00001-of-00002.gguf");
    write_part(&path, &[("split.count", 2u16.into())], "a");
    let expected =
        "key `split.no` is missing, expected an integer, since this is one part of a split set";
    check(&path, &path, expected);

    write_part(&path, &part_keys(0, 20_000, 1), "a");
    check(
        &path,
        &path,
        "key `split.count` has 20000 parts, expected at most 16384",
    );
}
