//! Quantised files: their bytes, what stays as it was, the part of an importance matrix, and what is refused.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::Path;

use glim_gguf::{Gguf, TensorInfo};
use glim_model::Checkpoint;
use glim_model::quantize::{Entry, Imatrix, Mix, Options, QuantizePlan, Sums, TypeFor};
use glim_quant::{GgmlType, quantize, quantize_weighted};
use glim_testkit::encode::decode;
use glim_testkit::tiny::{Dims, Tiny, TinyFile};

/// Rows of 256 for most matrices, so that K-quants fit; a table of more than one run; 5 experts.
fn dims() -> Dims {
    Dims {
        hidden_size: 256,
        vocab_size: 1100,
        q_lora_rank: 256,
        kv_lora_rank: 256,
        moe_intermediate_size: 64,
        n_routed_experts: 5,
        ..Dims::default()
    }
}

fn model() -> TinyFile {
    Tiny::new(11).dims(dims()).build()
}

/// The same with small tables, for what is done many times.
fn small() -> Tiny {
    Tiny::new(11).dims(Dims {
        vocab_size: 100,
        full: vec![true, false],
        mtp: false,
        ..dims()
    })
}

fn of(mix: Mix) -> Options {
    Options {
        mix: Some(mix),
        ..Options::default()
    }
}

fn write(source: &Gguf, options: &Options, imatrix: Option<&Imatrix>, path: &Path, threads: usize) {
    let plan = QuantizePlan::new(source, options, imatrix).unwrap();
    let mut bytes = 0;
    plan.write(path, threads, &mut |n| bytes += n).unwrap();
    assert_eq!(bytes, plan.data_bytes(), "progress adds up to the whole");
}

fn values(gguf: &Gguf, info: &TensorInfo) -> Vec<f32> {
    decode(info.ty, gguf.data(info))
}

/// Whether `found` holds what `source` holds, each tensor encoded with the weights that `weights` gives it.
fn assert_is_quantized(
    source: &Gguf,
    found: &Gguf,
    weights: impl Fn(&TensorInfo) -> Option<Vec<f32>>,
) {
    assert_eq!(found.tensors().len(), source.tensors().len());
    for (old, new) in source.tensors().iter().zip(found.tensors()) {
        assert_eq!((&new.name, &new.ggml_dims), (&old.name, &old.ggml_dims));
        let x = values(source, old);
        let mut expected = vec![0; new.bytes as usize];
        match weights(old).filter(|_| new.ty != old.ty) {
            None => quantize(new.ty, &x, &mut expected).unwrap(),
            Some(weights) => {
                // Each matrix with its own.
                let columns = old.ggml_dims[0] as usize;
                let matrices = weights.len() / columns;
                let (x, bytes) = (x.len() / matrices, expected.len() / matrices);
                let numbers = values(source, old);
                for (i, weights) in weights.chunks(columns).enumerate() {
                    let out = &mut expected[i * bytes..][..bytes];
                    let numbers = &numbers[i * x..][..x];
                    quantize_weighted(new.ty, numbers, Some(weights), out).unwrap();
                }
            }
        }
        assert!(found.data(new) == expected, "{} as {}", new.name, new.ty);
    }
}

#[test]
fn each_tensor_is_the_encoding_of_its_values_on_any_number_of_threads() {
    let (source, dir) = (model().gguf(), tempfile::tempdir().unwrap());
    for mix in [Mix::Q4_K_M, Mix::Q8_0, Mix::IQ4_XS, Mix::MXFP4, Mix::F16] {
        let mut files = Vec::new();
        for threads in [1, 5] {
            let path = dir.path().join("out.gguf");
            write(&source, &of(mix), None, &path, threads);
            files.push(fs::read(&path).unwrap());
            let found = Gguf::open(&path).unwrap();
            assert_is_quantized(&source, &found, |_| None);
        }
        assert!(files[0] == files[1], "{}", mix.name());
    }
}

#[test]
fn a_quantised_file_is_a_model_with_the_same_configuration() {
    let (file, dir) = (small().build(), tempfile::tempdir().unwrap());
    let source = Checkpoint::from_gguf(file.gguf()).unwrap();
    for mix in Mix::ALL.iter().filter(|mix| **mix != Mix::Q2_K_S) {
        let path = dir.path().join("out.gguf");
        write(&file.gguf(), &of(*mix), None, &path, 2);
        let found = Checkpoint::open(&path).unwrap();
        assert_eq!(found.config(), source.config(), "{}", mix.name());
        let keys = Gguf::open(&path).unwrap();
        let keys = keys.metadata();
        assert_eq!(
            keys.uint("general.file_type").unwrap(),
            Some(mix.file_type().into())
        );
        assert_eq!(keys.uint("general.quantization_version").unwrap(), Some(2));
    }
}

#[test]
fn fused_and_older_forms_stay_as_stored() {
    let dir = tempfile::tempdir().unwrap();
    for file in [
        small().build().fuse_gate_up(),
        small().build().legacy_kv_b(),
        small().build().with_kv_b(),
        small().build().flat_kv_b(),
        small().build().tie_output(),
    ] {
        let (source, path) = (file.gguf(), dir.path().join("out.gguf"));
        write(&source, &of(Mix::Q5_K_M), None, &path, 2);
        assert_is_quantized(&source, &Gguf::open(&path).unwrap(), |_| None);
        let config = Checkpoint::open(&path).unwrap().config().clone();
        assert_eq!(&config, Checkpoint::from_gguf(source).unwrap().config());
    }
}

#[test]
fn a_split_set_becomes_one_file() {
    let dir = tempfile::tempdir().unwrap();
    let parts = model().write_split(dir.path(), "model", 3);
    let source = Gguf::open(&parts[1]).unwrap();
    let path = dir.path().join("out.gguf");
    write(&source, &of(Mix::Q6_K), None, &path, 2);
    let found = Gguf::open(&path).unwrap();
    assert_eq!(found.parts().len(), 1);
    assert_is_quantized(&source, &found, |_| None);
}

#[test]
fn without_a_mix_bytes_are_copied_but_for_what_a_pattern_names() {
    let (source, dir) = (model().gguf(), tempfile::tempdir().unwrap());
    let path = dir.path().join("out.gguf");
    let options = Options {
        types: vec![TypeFor::parse(r"^blk\.2\..*_exps=q5_1").unwrap()],
        ..Options::default()
    };
    write(&source, &options, None, &path, 3);
    let found = Gguf::open(&path).unwrap();
    let mut changed = Vec::new();
    for (old, new) in source.tensors().iter().zip(found.tensors()) {
        if old.ty != new.ty {
            changed.push((new.name.as_str(), new.ty));
        } else {
            assert!(source.data(old) == found.data(new), "{}", old.name);
        }
    }
    changed.sort();
    let expected = ["down", "gate", "up"].map(|name| format!("blk.2.ffn_{name}_exps.weight"));
    let names: Vec<&str> = changed.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, expected);
    assert!(changed.iter().all(|(_, ty)| *ty == GgmlType::Q5_1));
    assert_eq!(
        found.metadata().get("general.file_type"),
        source.metadata().get("general.file_type")
    );
}

#[test]
fn what_was_quantised_before_is_told() {
    let file = Tiny::new(3).dims(dims()).matrices(GgmlType::Q8_0).build();
    let source = file.gguf();
    let plan = QuantizePlan::new(&source, &of(Mix::Q4_K_M), None).unwrap();
    let told = |name: &str| {
        let mut tensors = plan.tensors.iter();
        tensors
            .find(|t| t.source.name == name)
            .unwrap()
            .is_requantized()
    };
    assert!(told("blk.1.attn_q_b.weight"));
    assert!(!told("blk.1.attn_norm.weight"), "F32, and kept");
    let same = QuantizePlan::new(&source, &of(Mix::Q8_0), None).unwrap();
    assert!(!same.tensors.iter().any(|t| t.is_requantized()));
}

/// Sums that differ between columns and experts; expert 3 met no token.
fn sums(source: &Gguf, only: &str) -> Sums {
    let mut sums = Sums {
        datasets: vec!["a text".to_owned()],
        chunk_count: 4,
        chunk_size: 512,
        ..Sums::default()
    };
    for info in source.tensors().iter().filter(|t| t.name.contains(only)) {
        let (columns, rest) = (info.ggml_dims[0] as usize, info.ggml_dims.get(2));
        let n = rest.copied().unwrap_or(1) as usize;
        let experts = info.name.contains("_exps");
        let counts = if experts {
            (0..n)
                .map(|i| if i == 3 { 0 } else { 100 + i as u64 })
                .collect()
        } else {
            vec![2048]
        };
        let sum =
            |i: usize| ((i * 7919) % 1000) as f32 * if i.is_multiple_of(11) { 50.0 } else { 1.0 };
        let sums_of = (0..columns * n).map(sum).collect();
        let entry = Entry {
            sums: sums_of,
            counts,
        };
        sums.entries.insert(info.name.clone(), entry);
    }
    sums
}

/// The mean squares that come of `sums`.
fn means(entry: &Entry) -> Vec<f32> {
    let columns = entry.sums.len() / entry.counts.len();
    let mean = |(i, sum): (usize, &f32)| match entry.counts[i / columns] {
        0 => 1.0,
        count => sum / count as f32,
    };
    entry.sums.iter().enumerate().map(mean).collect()
}

#[test]
fn each_expert_and_head_is_encoded_with_its_own_weights() {
    let (source, dir) = (model().gguf(), tempfile::tempdir().unwrap());
    let sums = sums(&source, "blk.2.");
    let (imatrix, path) = (dir.path().join("i.gguf"), dir.path().join("out.gguf"));
    sums.write(&imatrix).unwrap();
    let imatrix = Imatrix::open(&imatrix).unwrap();
    for mix in [Mix::Q4_K_M, Mix::Q4_0, Mix::Q5_1, Mix::Q8_0] {
        write(&source, &of(mix), Some(&imatrix), &path, 2);
        let found = Gguf::open(&path).unwrap();
        assert_is_quantized(&source, &found, |info| {
            sums.entries.get(&info.name).map(means)
        });
        let plain = dir.path().join("plain.gguf");
        write(&source, &of(mix), None, &plain, 2);
        let plain = Gguf::open(&plain).unwrap();
        for name in ["blk.2.ffn_up_exps.weight", "blk.2.attn_k_b.weight"] {
            let data = |gguf: &Gguf| gguf.data(gguf.tensor(name).unwrap()).to_vec();
            assert_eq!(data(&found) == data(&plain), mix == Mix::Q8_0, "{name}");
        }
        let keys = found.metadata();
        assert_eq!(
            keys.str("quantize.imatrix.dataset").unwrap(),
            Some("a text")
        );
        assert_eq!(
            keys.uint("quantize.imatrix.entries_count").unwrap(),
            Some(sums.entries.len() as u64)
        );
        assert_eq!(keys.uint("quantize.imatrix.chunks_count").unwrap(), Some(4));
        assert!(keys.str("quantize.imatrix.file").unwrap().is_some());
    }
}

#[test]
fn a_type_that_needs_weights_is_refused_without() {
    let (source, dir) = (model().gguf(), tempfile::tempdir().unwrap());
    let path = dir.path().join("out.gguf");
    let plan = QuantizePlan::new(&source, &of(Mix::Q2_K_S), None).unwrap();
    let error = plan.write(&path, 2, &mut |_| ()).unwrap_err().to_string();
    assert!(
        error.starts_with("tensor `blk.") && error.contains("needs an importance matrix"),
        "{error}"
    );
    let imatrix = dir.path().join("i.gguf");
    sums(&source, "blk.").write(&imatrix).unwrap();
    let imatrix = Imatrix::open(&imatrix).unwrap();
    write(&source, &of(Mix::Q2_K_S), Some(&imatrix), &path, 2);
}

#[test]
fn weights_of_another_model_are_refused() {
    let (source, dir) = (model().gguf(), tempfile::tempdir().unwrap());
    let mut sums = sums(&source, "blk.2.ffn_up_exps");
    let entry = sums.entries.get_mut("blk.2.ffn_up_exps.weight").unwrap();
    entry.sums.truncate(4 * 256);
    entry.counts.truncate(4);
    let (imatrix, path) = (dir.path().join("i.gguf"), dir.path().join("out.gguf"));
    sums.write(&imatrix).unwrap();
    let opened = Imatrix::open(&imatrix).unwrap();
    let plan = QuantizePlan::new(&source, &of(Mix::Q4_K_M), Some(&opened)).unwrap();
    let error = plan.write(&path, 2, &mut |_| ()).unwrap_err().to_string();
    let expected = format!(
        "{}: it has 1024 values for tensor `blk.2.ffn_up_exps.weight`, expected 1280 (5 × 256)",
        imatrix.display()
    );
    assert_eq!(error, expected);
    assert!(!path.exists());
}

#[test]
fn a_number_that_is_none_is_named_by_its_place_and_the_file_stays_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.gguf");
    fs::write(&path, "before").unwrap();
    for (name, element, bits, expected) in [
        (
            "blk.2.ffn_down_exps.weight",
            (4 * 256 + 17) * 64 + 5,
            f32::NAN,
            "matrix 4, row 17, column 5 is NaN, expected a finite number",
        ),
        (
            "token_embd.weight",
            1050 * 256 + 255,
            f32::NEG_INFINITY,
            "row 1050, column 255 is infinite, expected a finite number",
        ),
        (
            "blk.0.attn_norm.weight",
            3,
            f32::NAN,
            "row 0, column 3 is NaN, expected a finite number",
        ),
    ] {
        let file = Tiny::new(11).dims(dims()).matrices(GgmlType::F32).build();
        let file = file.change(name, |tensor| {
            tensor.bytes[4 * element..][..4].copy_from_slice(&bits.to_le_bytes());
        });
        let source = file.gguf();
        let plan = QuantizePlan::new(&source, &of(Mix::Q4_K_M), None).unwrap();
        let error = plan.write(&path, 3, &mut |_| ()).unwrap_err().to_string();
        assert_eq!(error, format!("tiny.gguf: tensor `{name}`: {expected}"));
        assert_eq!(fs::read(&path).unwrap(), b"before");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}

#[test]
fn numbers_beyond_the_type_are_named() {
    let dir = tempfile::tempdir().unwrap();
    for (mix, number, expected) in [
        (
            Mix::F16,
            70000.0f32,
            "row 3, column 9 is 70000, and the largest number of F16 is 65504",
        ),
        (
            Mix::BF16,
            3.4e38,
            "row 3, column 9 is 340000000000000000000000000000000000000, and the largest number of BF16 is 3.39e38",
        ),
        (
            Mix::Q8_0,
            1e10,
            "row 3, column 0 begins a block of numbers that are too large for Q8_0 (BF16 and F32 store them)",
        ),
    ] {
        let file = Tiny::new(11).dims(dims()).matrices(GgmlType::F32).build();
        let file = file.change("blk.0.attn_q_a.weight", |tensor| {
            tensor.bytes[4 * (3 * 256 + 9)..][..4].copy_from_slice(&number.to_le_bytes());
        });
        let source = file.gguf();
        let plan = QuantizePlan::new(&source, &of(mix), None).unwrap();
        let path = dir.path().join("out.gguf");
        let error = plan.write(&path, 3, &mut |_| ()).unwrap_err().to_string();
        assert_eq!(
            error,
            format!("tiny.gguf: tensor `blk.0.attn_q_a.weight`: {expected}")
        );
    }
}

#[test]
fn the_file_that_is_read_is_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    model().write(&path);
    let source = Gguf::open(&path).unwrap();
    let plan = QuantizePlan::new(&source, &of(Mix::Q8_0), None).unwrap();
    // The same file by another name.
    let other = dir.path().join(".").join("model.gguf");
    let error = plan.write(&other, 1, &mut |_| ()).unwrap_err().to_string();
    assert!(
        error.ends_with("is the file to read as well: write another one"),
        "{error}"
    );
}

#[test]
fn another_architecture_and_a_type_without_decoder_are_refused() {
    let file = model().set_whole("general.architecture", "falcon");
    let source = file.gguf();
    let error = QuantizePlan::new(&source, &of(Mix::Q4_K_M), None).unwrap_err();
    assert_eq!(
        error.to_string(),
        "tiny.gguf: the architecture is `falcon`; those that glim can quantise are glm-dsa, deepseek2, deepseek32"
    );
    let source = model()
        .zeroed("blk.0.attn_q_b.weight", GgmlType::I32)
        .gguf();
    let error = QuantizePlan::new(&source, &of(Mix::Q4_K_M), None).unwrap_err();
    assert_eq!(
        error.to_string(),
        "tiny.gguf: tensor `blk.0.attn_q_b.weight` is of type I32, which glim cannot decode: start from a file with other types"
    );
}
