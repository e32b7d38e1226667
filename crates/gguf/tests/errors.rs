//! What a user is told about a file that is wrong: one crafted file for each sentence.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::{fs, path::Path};

use common::{F32, Q8_0, Raw, ty};
use glim_gguf::Gguf;

/// Opening `bytes` under the name `m.gguf` fails with this sentence, and not because something is
/// missing.
#[track_caller]
fn check(bytes: impl Into<Vec<u8>>, expected: &str) {
    let error = Gguf::from_bytes("m.gguf", bytes.into()).unwrap_err();
    assert_eq!(error.to_string(), format!("m.gguf: {expected}"));
    assert!(!error.is_missing());
}

#[test]
fn what_is_no_gguf_is_named_for_what_it_is() {
    let not =
        |found: &str| format!("not a GGUF file: expected the magic bytes `GGUF`, found {found}");
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n";
    check(
        pointer,
        &not("a Git LFS pointer (fetch the file itself with `git lfs pull`)"),
    );
    let safetensors = [&100u64.to_le_bytes()[..], b"{\"a\":{\"dtype\""].concat();
    check(
        safetensors,
        &not("a safetensors file (open its folder as a checkpoint, or convert it)"),
    );
    check(
        "PK\x03\x04....",
        &not("a zip archive (a PyTorch checkpoint?)"),
    );
    check("<!DOCTYPE html>", &not("an HTML page (a failed download?)"));
    check(
        "tjgg\x03\0\0\0",
        &not("a GGML file from before GGUF (convert the model anew)"),
    );
    check("{\"a\": 1}", &not("JSON text"));
    check("", &not("an empty file"));
    check("GG", &not("`GG`"));
    check("\x7fELF\x02", &not("`\\x7fELF`"));
}

#[test]
fn other_versions_are_refused_by_name() {
    let version = |v| Raw::with_version(v, 0, 0).0;
    check(
        version(1),
        "GGUF version 1 is not supported, expected version 2 or 3",
    );
    check(
        version(4),
        "GGUF version 4 is not supported, expected version 2 or 3",
    );
    check(
        version(0),
        "GGUF version 0 is not supported, expected version 2 or 3",
    );
    check(
        version(1 << 24), // big-endian
        "GGUF version 1 is not supported, expected version 2 or 3",
    );
}

#[test]
fn a_header_that_is_cut_short_says_where() {
    let cut = |at: usize, what: &str, needed: u64, left: u64| {
        let file = Raw::new(1, 1).u32_key("a.b", 7).tensor("t", &[4], F32, 0);
        let bytes = file.0[..at].to_vec();
        let expected = format!(
            "the file ends inside {what}: expected {needed} bytes at offset {}, found {left} (an incomplete download?)",
            at as u64 - left
        );
        check(bytes, &expected);
    };
    cut(6, "the header", 4, 2);
    cut(15, "the header", 8, 7);
    cut(30, "the header", 13, 6); // one key needs 13 bytes at least
    cut(41, "key `a.b`", 4, 2);
    cut(46, "the header", 24, 3); // and one tensor 24
    cut(70, "the description of tensor `t`", 8, 2);
}

#[test]
fn counts_beyond_the_limits_are_refused() {
    check(
        Raw::new(0, 65_537).0,
        "the header has 65537 keys, expected at most 65536",
    );
    check(
        Raw::new(u64::MAX, 0).0,
        "the header has 18446744073709551615 tensors, expected at most 1048576",
    );
    check(
        Raw::new(0, 1).u64(1 << 16).data(64),
        "the name of key number 1 has 65536 bytes, expected at most 65535",
    );
    check(
        Raw::new(1, 0).string([b'x'; 256]).u32(0).data(64),
        "the name of tensor number 1 has 256 bytes, expected at most 255",
    );
    check(
        Raw::new(1, 0).tensor("t", &[1; 5], F32, 0).data(64),
        "the description of tensor `t` has 5 dimensions, expected at most 4",
    );
    check(
        Raw::new(0, 1)
            .key("k", ty::ARRAY)
            .u32(ty::U32)
            .u64(u64::MAX)
            .data(64),
        "key `k` has 18446744073709551615 elements, expected at most 67108864",
    );
    check(
        Raw::new(0, 1).key("k", ty::STRING).u64(1 << 40).data(64),
        "key `k` has 1099511627776 bytes, expected at most 67108864",
    );
}

#[test]
fn counts_that_the_file_cannot_hold_are_refused_before_anything_is_allocated() {
    check(
        Raw::new(1 << 20, 0).0,
        "the file ends inside the header: expected 25165824 bytes at offset 24, found 0 (an incomplete download?)",
    );
    check(
        Raw::new(0, 1)
            .key("k", ty::ARRAY)
            .u32(ty::STRING)
            .u64(1 << 26)
            .u64(0)
            .0,
        "the file ends inside key `k`: expected 536870912 bytes at offset 49, found 8 (an incomplete download?)",
    );
    check(
        Raw::new(0, 1)
            .key("k", ty::ARRAY)
            .u32(ty::U32)
            .u64(1 << 26)
            .0,
        "the file ends inside key `k`: expected 268435456 bytes at offset 49, found 0 (an incomplete download?)",
    );
}

#[test]
fn values_that_make_no_sense_are_refused() {
    check(
        Raw::new(0, 1).key("k", 13).u64(0).0,
        "key `k` has the unknown value type 13, expected 0 to 12",
    );
    check(
        Raw::new(0, 1).key("k", ty::ARRAY).u32(99).u64(0).0,
        "key `k` has the unknown value type 99, expected 0 to 12",
    );
    check(
        Raw::new(0, 1).key("k", ty::ARRAY).u32(ty::ARRAY).u64(0).0,
        "key `k` is an array of arrays, expected an array of scalars or strings",
    );
    check(
        Raw::new(0, 1).key("k", ty::BOOL).u8(2).0,
        "key `k` holds a bool of value 2, expected 0 or 1",
    );
    check(
        Raw::new(0, 1)
            .key("k", ty::ARRAY)
            .u32(ty::BOOL)
            .u64(2)
            .u8(1)
            .u8(255)
            .0,
        "key `k` holds a bool of value 255, expected 0 or 1",
    );
}

#[test]
fn text_that_is_not_utf8_is_refused_with_its_place() {
    check(
        Raw::new(0, 1).string(b"a\xff").u32(ty::U32).u32(0).0,
        "the name of key number 1 is not valid UTF-8 (byte 33 of the file)",
    );
    check(
        Raw::new(0, 1).key("k", ty::STRING).string(b"\xc3").0,
        "key `k` is not valid UTF-8 (byte 45 of the file)",
    );
    check(
        Raw::new(0, 1)
            .key("k", ty::ARRAY)
            .u32(ty::STRING)
            .u64(2)
            .string("ok")
            .string(b"\xe2\x82")
            .0,
        "key `k` is not valid UTF-8 (byte 67 of the file)",
    );
    check(
        Raw::new(1, 0).string(b"\x80").u32(0).u32(F32).u64(0).0,
        "the name of tensor number 1 is not valid UTF-8 (byte 32 of the file)",
    );
}

#[test]
fn names_that_stand_twice_are_refused() {
    check(
        Raw::new(0, 2).u32_key("a.b", 1).u32_key("a.b", 1).0,
        "key `a.b` stands twice in the file, expected it once",
    );
    check(
        Raw::new(2, 0)
            .tensor("t", &[8], F32, 0)
            .tensor("t", &[8], F32, 32)
            .data(64),
        "tensor `t` stands twice in the file, expected it once",
    );
}

#[test]
fn an_alignment_that_is_no_power_of_two_is_refused() {
    for alignment in [0, 24, 1 << 21] {
        check(
            Raw::new(0, 1).u32_key("general.alignment", alignment).0,
            &format!(
                "key `general.alignment` is {alignment}, expected a power of two up to 1048576"
            ),
        );
    }
    check(
        Raw::new(0, 1)
            .key("general.alignment", ty::STRING)
            .string("32")
            .0,
        "key `general.alignment` is a string, expected a non-negative integer",
    );
}

#[test]
fn tensors_that_cannot_be_are_refused() {
    let one =
        |dims: &[u64], ty, offset| Raw::new(1, 0).tensor("blk.0.w", dims, ty, offset).data(64);
    check(
        one(&[32], 137, 0),
        "tensor `blk.0.w` has the unknown type 137 (a fork's own type?), expected a type of upstream ggml",
    );
    check(
        one(&[33, 2], Q8_0, 0),
        "tensor `blk.0.w` has rows of 33 elements, expected a multiple of 32 for type Q8_0",
    );
    check(
        one(&[], Q8_0, 0),
        "tensor `blk.0.w` has rows of 1 elements, expected a multiple of 32 for type Q8_0",
    );
    check(
        one(&[1 << 40, 1 << 40], F32, 0),
        "tensor `blk.0.w` has dimensions [1099511627776, 1099511627776], whose size overflows",
    );
    check(
        one(&[1 << 40, 1 << 40, 0], F32, 0),
        "tensor `blk.0.w` has dimensions [1099511627776, 1099511627776, 0], whose size overflows",
    );
    check(
        one(&[1 << 62], F32, 0),
        "tensor `blk.0.w` has dimensions [4611686018427387904], whose size overflows",
    );
    check(
        one(&[8], F32, 8),
        "tensor `blk.0.w` starts at offset 8 of the data section, expected a multiple of 32",
    );
}

#[test]
fn tensors_outside_of_the_file_are_refused() {
    let one = |dims: &[u64], offset| Raw::new(1, 0).tensor("w", dims, F32, offset).data(64);
    let outside = |bytes: u64, offset: u64| {
        format!(
            "tensor `w` needs {bytes} bytes from offset {offset} of the data section, expected at most 64 (an \
             incomplete download?)"
        )
    };
    assert!(
        Gguf::from_bytes("m.gguf", one(&[16], 0)).is_ok(),
        "exactly up to the end"
    );
    check(one(&[17], 0), &outside(68, 0));
    check(one(&[16], 32), &outside(64, 32));
    check(one(&[1], 64), &outside(4, 64));
    check(one(&[1], !31), &outside(4, !31));
    check(one(&[1 << 60], 0), &outside(1 << 62, 0));
}

#[test]
fn tensors_that_share_bytes_are_refused() {
    check(
        Raw::new(2, 0)
            .tensor("late", &[8], F32, 32)
            .tensor("early", &[9], F32, 0)
            .data(64),
        "tensors `early` and `late` overlap, expected separate bytes",
    );
    check(
        Raw::new(2, 0)
            .tensor("a", &[8], F32, 0)
            .tensor("b", &[8], F32, 0)
            .data(64),
        "tensors `a` and `b` overlap, expected separate bytes",
    );
}

#[test]
fn one_part_of_a_set_is_refused_from_memory() {
    let part = Raw::new(0, 3)
        .u32_key("split.no", 0)
        .u32_key("split.count", 2)
        .u32_key("split.tensors.count", 0);
    check(
        part.0,
        "one part of a split set of 2 cannot be opened from memory, expected a whole model",
    );
}

#[test]
fn getters_name_file_key_and_both_types() {
    let negative = Raw::new(0, 3)
        .u32_key("u", 7)
        .key("i", 5)
        .u32((-1i32) as u32)
        .key("a", ty::ARRAY)
        .u32(5)
        .u64(2)
        .u32(3)
        .u32((-4i32) as u32);
    let model = Gguf::from_bytes("m.gguf", negative.0).unwrap();
    let keys = model.metadata();
    let errors = [
        (
            keys.str("u").unwrap_err(),
            "key `u` is 7 (u32), expected a string",
        ),
        (
            keys.bool("u").unwrap_err(),
            "key `u` is 7 (u32), expected a bool",
        ),
        (
            keys.uint("i").unwrap_err(),
            "key `i` is -1 (i32), expected a non-negative integer",
        ),
        (
            keys.int("a").unwrap_err(),
            "key `a` is an array of 2 i32 with the element -4, expected an integer",
        ),
        (
            keys.uints("a").unwrap_err(),
            "key `a` is an array of 2 i32 with the element -4, expected a non-negative integer or an array of them",
        ),
        (
            keys.strings("u").unwrap_err(),
            "key `u` is 7 (u32), expected an array of strings",
        ),
        (
            keys.f32s("u").unwrap_err(),
            "key `u` is 7 (u32), expected an array of f32",
        ),
        (
            keys.bools("u").unwrap_err(),
            "key `u` is 7 (u32), expected an array of bools or integers",
        ),
        (
            keys.missing("x.y", "a string"),
            "key `x.y` is missing, expected a string",
        ),
    ];
    for (error, expected) in errors {
        assert_eq!(error.to_string(), format!("m.gguf: {expected}"));
    }
}

#[test]
fn what_is_not_there_is_missing_and_not_bad() {
    let dir = tempfile::tempdir().unwrap();
    let absent = dir.path().join("absent.gguf");
    let error = Gguf::open(&absent).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("{}: no such file or folder", absent.display())
    );
    assert!(error.is_missing());

    fs::write(dir.path().join("README.md"), "no model").unwrap();
    let error = Gguf::open(dir.path()).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("{}: no .gguf file in this folder", dir.path().display())
    );
    assert!(error.is_missing());
}

#[test]
fn a_folder_with_two_models_is_refused_with_their_names() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["b.gguf", "a-00001-of-00002.gguf", "a-00002-of-00002.gguf"] {
        fs::write(dir.path().join(name), "").unwrap();
    }
    let error = Gguf::open(dir.path()).unwrap_err();
    let expected =
        "this folder holds more than one model (a-00001-of-00002.gguf, b.gguf): name one file";
    assert_eq!(
        error.to_string(),
        format!("{}: {expected}", dir.path().display())
    );
    assert!(!error.is_missing());
}

#[cfg(unix)]
#[test]
fn a_device_is_no_file() {
    let error = Gguf::open(Path::new("/dev/null")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "/dev/null: neither a regular file nor a folder"
    );
}
