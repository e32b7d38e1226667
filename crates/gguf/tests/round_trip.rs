//! What is written is what is read.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::{fs, io, path::Path};

use common::{F32, Raw, tiny_model};
use glim_gguf::{Array, Gguf, Metadata, Source, Strings, UintOrArray, Value, Writer};
use glim_quant::GgmlType;
use proptest::{collection::vec, prelude::*};

/// Any value; of floats only those that equal themselves.
fn value() -> impl Strategy<Value = Value> {
    let f32s = any::<f32>().prop_filter("NaN", |x| !x.is_nan());
    let f64s = any::<f64>().prop_filter("NaN", |x| !x.is_nan());
    prop_oneof![
        any::<u8>().prop_map(Value::from),
        any::<i8>().prop_map(Value::from),
        any::<u16>().prop_map(Value::from),
        any::<i16>().prop_map(Value::from),
        any::<u32>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        f32s.clone().prop_map(Value::from),
        f64s.clone().prop_map(Value::from),
        ".{0,40}".prop_map(Value::from),
        vec(any::<u8>(), 0..9).prop_map(Value::from),
        vec(any::<i8>(), 0..9).prop_map(Value::from),
        vec(any::<u16>(), 0..9).prop_map(Value::from),
        vec(any::<i16>(), 0..9).prop_map(Value::from),
        vec(any::<u32>(), 0..9).prop_map(Value::from),
        vec(any::<i32>(), 0..9).prop_map(Value::from),
        vec(any::<u64>(), 0..9).prop_map(Value::from),
        vec(any::<i64>(), 0..9).prop_map(Value::from),
        vec(any::<bool>(), 0..9).prop_map(Value::from),
        vec(f32s, 0..9).prop_map(Value::from),
        vec(f64s, 0..9).prop_map(Value::from),
        vec(".{0,9}", 0..9).prop_map(|texts| Value::from(texts.iter().collect::<Strings>())),
    ]
}

fn metadata() -> impl Strategy<Value = Metadata> {
    let alignment = proptest::option::of(prop_oneof![Just(8u32), Just(32), Just(64), Just(4096)]);
    (vec(("[a-zé._]{1,12}", value()), 0..12), alignment).prop_map(|(entries, alignment)| {
        let mut metadata = Metadata::new();
        entries
            .into_iter()
            .for_each(|(key, value)| metadata.set(key, value));
        if let Some(alignment) = alignment {
            metadata.set("general.alignment", alignment);
        }
        metadata
    })
}

/// Dimensions, type and bytes of a tensor.
fn tensor() -> impl Strategy<Value = (Vec<u64>, GgmlType, Vec<u8>)> {
    let ty = proptest::sample::select(GgmlType::ALL);
    (ty, 0u64..4, vec(1u64..4, 0..4), any::<u8>()).prop_map(|(ty, blocks, rows, fill)| {
        let dims: Vec<u64> = [blocks * ty.block_elems() as u64]
            .into_iter()
            .chain(rows.iter().copied())
            .collect();
        let bytes = blocks * ty.block_bytes() as u64 * rows.iter().product::<u64>();
        (
            dims,
            ty,
            (0..bytes).map(|i| fill.wrapping_add(i as u8)).collect(),
        )
    })
}

fn filled<'a>(metadata: &Metadata, tensors: &'a [(Vec<u64>, GgmlType, Vec<u8>)]) -> Writer<'a> {
    let mut writer = Writer::with_metadata(metadata.clone());
    for (i, (dims, ty, data)) in tensors.iter().enumerate() {
        writer.tensor(format!("blk.{i}.weight"), dims, *ty, data);
    }
    writer
}

/// The model's tensors are these, in this order, with these bytes.
fn check(model: &Gguf, tensors: &[(Vec<u64>, GgmlType, Vec<u8>)]) -> Result<(), TestCaseError> {
    prop_assert_eq!(model.tensors().len(), tensors.len());
    for (i, (dims, ty, data)) in tensors.iter().enumerate() {
        let read = model.tensor(&format!("blk.{i}.weight")).unwrap();
        prop_assert_eq!(read, &model.tensors()[i]);
        prop_assert_eq!(&read.ggml_dims, dims);
        prop_assert_eq!(read.ty, *ty);
        prop_assert_eq!(model.data(read), data.as_slice());
        prop_assert_eq!(read.elements(), dims.iter().product::<u64>());
        prop_assert!(
            read.shape()
                .iter()
                .rev()
                .map(|&dim| dim as u64)
                .eq(dims.iter().copied())
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_file_reads_back_as_it_was_written(metadata in metadata(), tensors in vec(tensor(), 0..6)) {
        let bytes = filled(&metadata, &tensors).to_bytes("m.gguf").unwrap();
        let model = Gguf::from_bytes("m.gguf", bytes).unwrap();
        prop_assert_eq!(model.metadata(), &metadata);
        prop_assert_eq!(model.version(), 3);
        check(&model, &tensors)?;
    }
}

proptest! {
    // Each case writes and syncs files.
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_set_reads_back_as_it_was_written(
        metadata in metadata(),
        tensors in vec(tensor(), 1..8),
        parts in any::<proptest::sample::Index>(),
    ) {
        let parts = parts.index(tensors.len()) + 1;
        let dir = tempfile::tempdir().unwrap();
        let paths = filled(&metadata, &tensors).write_split(dir.path(), "set", parts).unwrap();
        prop_assert_eq!(paths.len(), parts);
        let model = Gguf::open(dir.path()).unwrap();
        prop_assert_eq!(model.parts().len(), parts);
        for (key, value) in metadata.iter() {
            prop_assert_eq!(model.metadata().get(key), Some(value));
        }
        check(&model, &tensors)?;

        // And joined again it is the file that would have been written in one piece.
        let mut joined = Writer::with_metadata(model.metadata().clone());
        model.tensors().iter().for_each(|t| joined.tensor(&t.name, &t.ggml_dims, t.ty, model.data(t)));
        let whole = filled(&metadata, &tensors).to_bytes("m").unwrap();
        prop_assert_eq!(joined.to_bytes("m").unwrap(), whole);
    }
}

#[test]
fn a_file_by_llama_cpp_is_reproduced_byte_for_byte() {
    let model = Gguf::open(&tiny_model()).unwrap();
    let mut writer = Writer::with_metadata(model.metadata().clone());
    for tensor in model.tensors() {
        writer.tensor(
            &tensor.name,
            &tensor.ggml_dims,
            tensor.ty,
            model.data(tensor),
        );
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("copy.gguf");
    writer.write(&path).unwrap();
    assert!(fs::read(&path).unwrap() == fs::read(tiny_model()).unwrap());
    assert_eq!(names_in(dir.path()), ["copy.gguf"]);
}

#[test]
fn the_tiny_model_reads_as_gguf_py_reads_it() {
    let model = Gguf::open(&tiny_model()).unwrap();
    let keys = model.metadata();
    assert_eq!(model.version(), 3);
    assert_eq!(model.tensors().len(), 163);
    assert_eq!(keys.len(), 51);
    assert_eq!(keys.str("general.architecture").unwrap(), Some("glm-dsa"));
    assert_eq!(
        keys.uint("glm-dsa.attention.kv_lora_rank").unwrap(),
        Some(128)
    );
    assert_eq!(keys.float("glm-dsa.rope.freq_base").unwrap(), Some(1e6));
    assert_eq!(
        keys.bool("glm-dsa.expert_weights_norm").unwrap(),
        Some(true)
    );
    assert_eq!(
        keys.bools("glm-dsa.attention.indexer.types")
            .unwrap()
            .unwrap()
            .len(),
        6
    );
    assert_eq!(
        keys.strings("tokenizer.ggml.tokens")
            .unwrap()
            .unwrap()
            .len(),
        4096
    );
    assert_eq!(
        keys.strings("tokenizer.ggml.merges")
            .unwrap()
            .unwrap()
            .iter()
            .count(),
        3808
    );
    assert_eq!(
        keys.uint_array("tokenizer.ggml.token_type")
            .unwrap()
            .unwrap()
            .len(),
        4096
    );
    assert_eq!(keys.uint("no.such.key").unwrap(), None);
    let embedding = model.tensor("token_embd.weight").unwrap();
    assert_eq!(embedding.shape(), [4096, 256]);
    assert_eq!(embedding.ty, GgmlType::Q8_0);
    assert_eq!(embedding.offset, 1_254_592);
    assert_eq!(embedding.bytes, 4096 * 256 / 32 * 34);
}

#[test]
fn version_two_reads_like_version_three() {
    let bytes = Raw::with_version(2, 1, 1)
        .u32_key("a", 5)
        .tensor("t", &[2, 3], F32, 0)
        .data(24);
    let model = Gguf::from_bytes("v2.gguf", bytes).unwrap();
    assert_eq!(model.version(), 2);
    assert_eq!(model.metadata().uint("a").unwrap(), Some(5));
    let tensor = &model.tensors()[0];
    assert_eq!(tensor.shape(), [3, 2]);
    assert_eq!(model.data(tensor), (0..24).collect::<Vec<u8>>());
}

#[test]
fn a_static_model_opens_without_a_file() {
    let bytes: &'static [u8] = Raw::new(0, 1).u32_key("a", 5).0.leak();
    let model = Gguf::from_static("built-in", bytes).unwrap();
    assert_eq!(model.parts()[0].path, Path::new("built-in"));
    assert_eq!(model.metadata().uint("a").unwrap(), Some(5));
}

#[test]
fn integers_are_accepted_in_any_width_and_as_scalar_or_array() {
    let mut keys = Metadata::new();
    let integers = [
        Value::U8(7),
        Value::I8(7),
        Value::U16(7),
        Value::I16(7),
        Value::U32(7),
        Value::I32(7),
        Value::U64(7),
        Value::I64(7),
    ];
    for value in integers {
        keys.set("k", value);
        assert_eq!(keys.uint("k").unwrap(), Some(7));
        assert_eq!(keys.int("k").unwrap(), Some(7));
        assert_eq!(keys.float("k").unwrap(), Some(7.0));
        assert_eq!(keys.uints("k").unwrap(), Some(UintOrArray::Scalar(7)));
    }
    keys.set("k", vec![1i32, 0, 2]);
    assert_eq!(
        keys.uints("k").unwrap(),
        Some(UintOrArray::Array(vec![1, 0, 2]))
    );
    assert_eq!(keys.uint_array("k").unwrap(), Some(vec![1, 0, 2]));
    assert_eq!(keys.bools("k").unwrap(), Some(vec![true, false, true]));
    assert_eq!(keys.uints("k").unwrap().unwrap().get(2), Some(2));
    assert_eq!(keys.uints("k").unwrap().unwrap().get(3), None);
    keys.set("k", u64::MAX);
    assert_eq!(keys.uint("k").unwrap(), Some(u64::MAX));
    assert!(keys.int("k").is_err());
}

#[test]
fn values_print_short() {
    let strings: Strings = ["a", "b\n"].into_iter().collect();
    let cases = [
        (Value::from(1.5f32), "1.5"),
        (Value::from("x\"y"), r#""x\"y""#),
        (Value::from(strings), r#"["a", "b\n"]"#),
        (
            Value::from((0..100u32).collect::<Vec<_>>()),
            "[0, 1, 2, 3, 4, 5, 6, 7, … 100 in all]",
        ),
        (Value::Array(Array::Bool(vec![])), "[]"),
    ];
    for (value, expected) in cases {
        assert_eq!(value.to_string(), expected);
    }
}

#[test]
fn data_may_come_from_a_stream() {
    let mut writer = Writer::new();
    let produce =
        |out: &mut dyn io::Write| (0..4).try_for_each(|x| out.write_all(&(x as f32).to_le_bytes()));
    writer.tensor("t", &[4], GgmlType::F32, Source::Stream(Box::new(produce)));
    let model = Gguf::from_bytes("m", writer.to_bytes("m").unwrap()).unwrap();
    let expected: Vec<u8> = [0f32, 1.0, 2.0, 3.0]
        .iter()
        .flat_map(|x| x.to_le_bytes())
        .collect();
    assert_eq!(model.data(&model.tensors()[0]), expected);
}

fn names_in(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// A writer whose second tensor fails while it is written.
fn failing(fail: fn(&mut dyn io::Write) -> io::Result<()>) -> Writer<'static> {
    let mut writer = Writer::new();
    writer.tensor("a", &[16], GgmlType::F32, vec![0; 64]);
    writer.tensor("b", &[16], GgmlType::F32, Source::Stream(Box::new(fail)));
    writer
}

#[test]
fn a_failing_write_leaves_no_file_behind_and_the_old_one_in_place() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    fs::write(&path, "old").unwrap();

    let error = failing(|_| Err(io::Error::other("disk full")))
        .write(&path)
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("{}: cannot write the file: disk full", path.display())
    );
    let error = failing(|out| out.write_all(&[0; 60]))
        .write(&path)
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "{}: tensor `b` was given 60 bytes, expected 64",
            path.display()
        )
    );
    assert_eq!(names_in(dir.path()), ["m.gguf"]);
    assert_eq!(fs::read(&path).unwrap(), b"old");

    let error = failing(|_| Err(io::Error::other("disk full")))
        .write_split(dir.path(), "set", 2)
        .unwrap_err();
    let second = dir.path().join("set-00002-of-00002.gguf");
    assert_eq!(
        error.to_string(),
        format!("{}: cannot write the file: disk full", second.display())
    );
    assert_eq!(names_in(dir.path()), ["m.gguf"]);
}

#[test]
fn a_set_whose_last_part_cannot_have_its_name_disappears_whole() {
    let dir = tempfile::tempdir().unwrap();
    let in_the_way = dir.path().join("set-00002-of-00002.gguf");
    fs::create_dir(&in_the_way).unwrap();
    let error = failing(|out| out.write_all(&[0; 64]))
        .write_split(dir.path(), "set", 2)
        .unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with(&format!("{}: cannot rename", in_the_way.display())),
        "{error}"
    );
    assert_eq!(names_in(dir.path()), ["set-00002-of-00002.gguf"]);
}

#[test]
fn what_could_not_be_read_is_not_written() {
    let message = |fill: fn(&mut Writer<'_>)| {
        let mut writer = Writer::new();
        fill(&mut writer);
        writer.to_bytes("m").unwrap_err().to_string()
    };
    assert_eq!(
        message(|w| w.tensor("t", &[16], GgmlType::F32, vec![0; 63])),
        "m: tensor `t` was given 63 bytes, expected 64"
    );
    assert_eq!(
        message(|w| w.tensor("t", &[33], GgmlType::Q8_0, vec![])),
        "m: tensor `t` has rows of 33 elements, expected a multiple of 32 for type Q8_0"
    );
    assert_eq!(
        message(|w| (0..2).for_each(|_| w.tensor("t", &[1], GgmlType::F32, vec![0; 4]))),
        "m: tensor `t` stands twice in the file, expected it once"
    );
    assert_eq!(
        message(|w| w.tensor("t", &[1; 5], GgmlType::F32, vec![0; 4])),
        "m: tensor `t` has 5 dimensions, expected at most 4"
    );
    assert_eq!(
        message(|w| w.tensor("t".repeat(256), &[1], GgmlType::F32, vec![0; 4])),
        "m: the name of a tensor has 256 bytes, expected at most 255"
    );
    assert_eq!(
        message(|w| w.set("general.alignment", 3u32)),
        "m: key `general.alignment` is 3, expected a power of two up to 1048576"
    );
    let split = |parts| {
        let dir = tempfile::tempdir().unwrap();
        let error = failing(|_| Ok(()))
            .write_split(dir.path(), "s", parts)
            .unwrap_err()
            .to_string();
        assert!(names_in(dir.path()).is_empty());
        error.split_once(": ").unwrap().1.to_owned()
    };
    assert_eq!(
        split(3),
        "cannot split 2 tensors into 3 parts, expected 1 to 2"
    );
    assert_eq!(
        split(0),
        "cannot split 2 tensors into 0 parts, expected 1 to 2"
    );
}
