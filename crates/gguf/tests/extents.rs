//! Holes: written by [`Source::Hole`], told from data by [`Gguf::extents`].
#![allow(clippy::unwrap_used, reason = "tests")]

use std::ops::Range;
use std::path::Path;

use glim_gguf::{Gguf, Source, Writer};
use glim_quant::GgmlType;

/// Elements of a tensor of 1 MiB: many blocks of any file system.
const MIB: u64 = (1 << 20) / 4;

/// Three tensors of 1 MiB each: data, a hole, data; and a hole of 64 GiB at the end.
fn sparse<'a>(data: &'a [u8]) -> Writer<'a> {
    let mut writer = Writer::new();
    writer.set("general.architecture", "none");
    writer.tensor("first", &[MIB], GgmlType::F32, data);
    writer.tensor("hole", &[MIB], GgmlType::F32, Source::Hole);
    writer.tensor("last", &[MIB], GgmlType::F32, data);
    writer.tensor("end", &[1 << 17, 1 << 17], GgmlType::F32, Source::Hole);
    writer
}

fn data() -> Vec<u8> {
    (0..1u32 << 20).map(|i| (i % 251) as u8 | 1).collect()
}

fn all(bytes: usize) -> Vec<Range<usize>> {
    std::iter::once(0..bytes).collect()
}

/// Whether the file system of `dir` keeps holes; a test that needs them prints why it is skipped.
#[cfg(target_os = "linux")]
fn has_holes(dir: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let probe = dir.join("probe");
    std::fs::File::create(&probe)
        .unwrap()
        .set_len(1 << 20)
        .unwrap();
    let kept = std::fs::metadata(&probe).unwrap().blocks() == 0;
    if !kept {
        println!(
            "skipped: the file system of {} keeps no holes",
            dir.display()
        );
    }
    kept
}

#[cfg(not(target_os = "linux"))]
fn has_holes(_: &Path) -> bool {
    println!("skipped: holes are looked for on Linux only");
    false
}

#[test]
fn a_hole_is_told_from_data_and_takes_no_room() {
    let dir = tempfile::tempdir().unwrap();
    if !has_holes(dir.path()) {
        return;
    }
    let (path, data) = (dir.path().join("sparse.gguf"), data());
    sparse(&data).write(&path).unwrap();
    let model = Gguf::open(&path).unwrap();
    let extents = |name| model.extents(model.tensor(name).unwrap());

    assert_eq!(extents("first"), all(1 << 20));
    assert_eq!(extents("last"), all(1 << 20));
    assert_eq!(model.data(model.tensor("last").unwrap()), data);
    // Blocks of the disk are shared at both ends, so that a hole may begin late and end early.
    let backed: usize = extents("hole").iter().map(Range::len).sum();
    assert!(backed < 1 << 17, "{backed} of {} bytes", 1 << 20);
    let hole = model.data(model.tensor("hole").unwrap());
    assert!(hole.iter().all(|&byte| byte == 0));
    let backed: usize = extents("end").iter().map(Range::len).sum();
    assert!(backed < 1 << 17, "{backed} bytes of the hole at the end");

    #[cfg(target_os = "linux")]
    {
        use std::os::unix::fs::MetadataExt;
        let meta = std::fs::metadata(&path).unwrap();
        assert!(meta.len() > 1 << 36);
        assert!(meta.blocks() * 512 < 4 << 20, "{} blocks", meta.blocks());
    }
}

#[test]
fn a_set_of_parts_has_holes_too() {
    let dir = tempfile::tempdir().unwrap();
    if !has_holes(dir.path()) {
        return;
    }
    let data = data();
    let paths = sparse(&data).write_split(dir.path(), "set", 2).unwrap();
    let model = Gguf::open(&paths[1]).unwrap();
    let end = model.tensor("end").unwrap();
    assert_eq!(end.part, 1);
    assert!(model.extents(end).iter().map(Range::len).sum::<usize>() < 1 << 17);
    assert_eq!(model.extents(model.tensor("first").unwrap()), all(1 << 20));
}

#[test]
fn without_a_file_everything_is_data() {
    let mut writer = Writer::new();
    writer.tensor("hole", &[8], GgmlType::F32, Source::Hole);
    writer.tensor("none", &[0], GgmlType::F32, Source::Hole);
    let bytes = writer.to_bytes("memory.gguf").unwrap();
    let model = Gguf::from_bytes("memory.gguf", bytes).unwrap();
    assert_eq!(model.extents(model.tensor("hole").unwrap()), all(32));
    assert_eq!(model.extents(model.tensor("none").unwrap()), []);
    assert_eq!(model.data(model.tensor("hole").unwrap()), [0; 32]);
}

#[test]
fn another_file_under_the_name_tells_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (path, data) = (dir.path().join("model.gguf"), data());
    let mut writer = Writer::new();
    writer.tensor("t", &[MIB], GgmlType::F32, &data);
    writer.write(&path).unwrap();
    let model = Gguf::open(&path).unwrap();

    let mut writer = Writer::new();
    writer.tensor("t", &[MIB], GgmlType::F32, Source::Hole);
    writer.write(&path).unwrap();
    assert_eq!(model.extents(&model.tensors()[0]), all(1 << 20));

    std::fs::remove_file(&path).unwrap();
    assert_eq!(model.extents(&model.tensors()[0]), all(1 << 20));
}
