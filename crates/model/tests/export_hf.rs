//! GGUF to Hugging Face folder: names, types, values, files; and the way round.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::ops::ControlFlow::{Break, Continue};
use std::path::{Path, PathBuf};

use common::{all, assert_same_tensors, open};
use glim_gguf::Metadata;
use glim_model::export::hf::{self, Float, HfOptions, HfPlan};
use glim_model::export::{ExportError, ExportPlan, FileType, General, Mtp, write};
use glim_model::{Checkpoint, TensorDesc};
use glim_quant::GgmlType;
use glim_testkit::assets;
use glim_testkit::encode::{decode, encode};
use glim_testkit::tiny::Tiny;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Map, Value, json};

fn plan(checkpoint: &Checkpoint, options: HfOptions) -> HfPlan<'_> {
    HfPlan::new(checkpoint, options, &General::default(), &Map::new()).unwrap()
}

/// Writes the folder `hf` and opens it.
fn export(checkpoint: &Checkpoint, options: HfOptions, dir: &Path) -> Checkpoint {
    let plan = plan(checkpoint, options);
    let (target, mut bytes) = (dir.join("hf"), 0);
    hf::write(checkpoint, &plan, &[], &target, &mut |n| {
        bytes += n;
        Continue(())
    })
    .unwrap();
    assert_eq!(bytes, plan.data_bytes(), "progress adds up to the whole");
    Checkpoint::open(&target).unwrap_or_else(|error| panic!("{error}"))
}

fn float(float: Float) -> HfOptions {
    HfOptions {
        float,
        ..HfOptions::default()
    }
}

#[test]
fn a_folder_holds_the_tensors_of_the_file_bit_for_bit() {
    for ty in [GgmlType::BF16, GgmlType::F16, GgmlType::F32] {
        let source = open(&Tiny::new(41).matrices(ty).build());
        for shard_bytes in [u64::MAX, 700_000, 1] {
            let dir = tempfile::tempdir().unwrap();
            let options = HfOptions {
                shard_bytes,
                ..HfOptions::default()
            };
            let found = export(&source, options, dir.path());
            assert_same_tensors(&found, &source);
            assert_eq!(found.config(), source.config());
            assert_eq!(found.oddities(), [] as [&str; 0]);
        }
    }
}

#[test]
fn every_stored_form_of_a_gguf_gives_the_same_folder() {
    let plain = Tiny::new(42).build();
    let expected = open(&plain);
    for file in [plain.clone().fuse_gate_up(), plain.clone().legacy_kv_b()] {
        let dir = tempfile::tempdir().unwrap();
        assert_same_tensors(
            &export(&open(&file), HfOptions::default(), dir.path()),
            &expected,
        );
    }
}

/// What was quantised has the values of its blocks, rounded once to the type that was asked for.
#[test]
fn quantised_tensors_are_decoded_and_rounded_once() {
    let source = open(&Tiny::new(43).matrices(GgmlType::Q8_0).build());
    for chosen in [Float::F32, Float::F16, Float::Bf16] {
        let dir = tempfile::tempdir().unwrap();
        let found = export(&source, float(chosen), dir.path());
        let values = |checkpoint: &Checkpoint, desc: &TensorDesc| {
            decode(desc.ty, &checkpoint.data(desc).unwrap())
        };
        for (x, y) in all(&found).into_iter().zip(all(&source)) {
            let ty = if y.ty == GgmlType::Q8_0 {
                chosen.ggml_type()
            } else {
                y.ty
            };
            assert_eq!((&x.name, x.ty), (&y.name, ty));
            assert!(
                *found.data(x).unwrap() == encode(ty, &values(&source, y)),
                "{}",
                x.name
            );
        }
    }
    let plan = plan(&source, HfOptions::default());
    let decoded = plan.tensors.iter().filter(|t| t.is_decoded());
    assert!(decoded.clone().count() > 20);
    assert!(
        decoded.clone().all(|t| t.float == Float::Bf16),
        "{decoded:?}"
    );
    assert_eq!(plan.config["dtype"], "bfloat16");
}

#[test]
fn halves_of_kv_b_of_two_types_meet_in_f32() {
    let file = Tiny::new(44).ty("attn_k_b.weight", GgmlType::F16).build();
    let source = open(&file);
    let plan = plan(&source, HfOptions::default());
    let name = "model.layers.2.self_attn.kv_b_proj.weight";
    let kv_b = plan.tensors.iter().find(|t| t.name == name).unwrap();
    assert_eq!(
        (kv_b.float, &kv_b.shape[..]),
        (Float::F32, &[3 * (32 + 224), 128][..])
    );
    let dir = tempfile::tempdir().unwrap();
    let found = export(&source, HfOptions::default(), dir.path());
    for name in ["blk.2.attn_k_b.weight", "blk.2.attn_v_b.weight"] {
        assert_eq!(common::values(&found, name), common::values(&source, name));
    }
}

#[test]
fn mtp_blocks_can_be_left_out() {
    let source = open(&Tiny::new(45).build());
    let dir = tempfile::tempdir().unwrap();
    let options = HfOptions {
        mtp: Mtp::Drop,
        ..HfOptions::default()
    };
    let found = export(&source, options, dir.path());
    assert_eq!(
        (found.config().n_mtp_layers, found.mtp_tensors()),
        (0, &[][..])
    );
    assert_eq!(found.tensors().len(), source.tensors().len());
}

#[test]
fn a_tied_head_is_said_and_not_written() {
    let source = open(&Tiny::new(46).build().drop_tensor("output.weight"));
    let dir = tempfile::tempdir().unwrap();
    let found = export(&source, HfOptions::default(), dir.path());
    assert!(found.is_tied());
    assert_eq!(
        plan(&source, HfOptions::default()).config["tie_word_embeddings"],
        true
    );
}

/// Through a GGUF and back: the names of the original folder, its bytes, and where GGUF holds F32 its values.
#[test]
fn a_published_folder_comes_back_from_its_gguf() {
    let dir = tempfile::tempdir().unwrap();
    let original = Checkpoint::open(&assets::odd_glm52()).unwrap();
    let path = dir.path().join("m.gguf");
    let general = General::of_folder(&assets::odd_glm52()).unwrap();
    let gguf_plan = ExportPlan::new(&original, FileType::Bf16, &general, &Metadata::new()).unwrap();
    write(&original, &gguf_plan, &path, &mut |_| Continue(())).unwrap();
    let gguf = Checkpoint::open(&path).unwrap();
    let found = export(&gguf, HfOptions::default(), dir.path());
    assert_eq!(found.config(), original.config());

    let read = |path: PathBuf| std::fs::read(path).unwrap();
    let (a, b) = (
        read(dir.path().join("hf/model.safetensors")),
        read(assets::odd_glm52().join("model.safetensors")),
    );
    let (a, b) = (
        SafeTensors::deserialize(&a).unwrap(),
        SafeTensors::deserialize(&b).unwrap(),
    );
    let names = |tensors: &SafeTensors<'_>| {
        let mut names: Vec<String> = tensors.names().into_iter().map(str::to_owned).collect();
        names.sort();
        names
    };
    assert_eq!(names(&a), names(&b));
    let mut widened = Vec::new();
    for name in names(&a) {
        let (x, y) = (a.tensor(&name).unwrap(), b.tensor(&name).unwrap());
        assert_eq!(x.shape(), y.shape(), "{name}");
        if x.dtype() == y.dtype() {
            assert!(x.data() == y.data(), "{name}");
            continue;
        }
        assert_eq!((x.dtype(), y.dtype()), (Dtype::F32, Dtype::BF16), "{name}");
        assert!(
            x.data() == encode(GgmlType::F32, &decode(GgmlType::BF16, y.data())),
            "{name}"
        );
        let kind = name.rsplit("layers.").next().unwrap();
        let kind = kind
            .trim_start_matches(|c: char| c.is_ascii_digit() || c == '.')
            .to_owned();
        if !widened.contains(&kind) {
            widened.push(kind);
        }
    }
    widened.sort();
    assert_eq!(
        widened,
        [
            "input_layernorm.weight",
            "mlp.gate.weight",
            "model.norm.weight",
            "post_attention_layernorm.weight",
            "self_attn.indexer.k_norm.bias",
            "self_attn.indexer.k_norm.weight",
            "self_attn.indexer.weights_proj.weight",
            "self_attn.kv_a_layernorm.weight",
            "self_attn.q_a_layernorm.weight",
        ]
    );
}

#[test]
fn keys_are_those_of_transformers_with_short_numbers() {
    let source = open(&Tiny::new(47).build());
    let general = General {
        sampling: vec![("temp", 0.7f32.into()), ("top_k", 40i32.into())],
        ..General::default()
    };
    let ids = Map::from_iter([
        ("eos_token_id".to_owned(), json!([1, 2])),
        ("bos_token_id".to_owned(), Value::Null),
    ]);
    let plan = HfPlan::new(&source, HfOptions::default(), &general, &ids).unwrap();
    assert_eq!(
        plan.generation,
        json!({"eos_token_id": [1, 2], "do_sample": true, "temperature": 0.7, "top_k": 40})
    );
    insta::assert_snapshot!(format!("{:#}", plan.config));
}

#[test]
fn files_are_cut_by_size_with_an_index_only_if_there_are_several() {
    let source = open(&Tiny::new(48).build());
    let dir = tempfile::tempdir().unwrap();
    let options = HfOptions {
        shard_bytes: 1_000_000,
        ..HfOptions::default()
    };
    let plan = plan(&source, options);
    export(&source, options, dir.path());
    let folder = dir.path().join("hf");
    let index: Value = serde_json::from_slice(
        &std::fs::read(folder.join("model.safetensors.index.json")).unwrap(),
    )
    .unwrap();
    assert_eq!(index["metadata"]["total_size"], plan.data_bytes());
    assert_eq!(
        index["weight_map"].as_object().unwrap().len(),
        plan.tensors.len()
    );
    let n = plan.n_shards();
    assert!(n > 2, "{n}");
    for i in 1..=n {
        let bytes =
            std::fs::read(folder.join(format!("model-{i:05}-of-{n:05}.safetensors"))).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let data: usize = tensors.iter().map(|(_, view)| view.data().len()).sum();
        assert!(data <= 1_000_000, "{i}: {data}");
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        let format = header.metadata().as_ref().and_then(|m| m.get("format"));
        assert_eq!(format.map(String::as_str), Some("pt"));
    }

    let one = tempfile::tempdir().unwrap();
    export(&source, HfOptions::default(), one.path());
    let mut names: Vec<_> = one
        .path()
        .join("hf")
        .read_dir()
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(
        names,
        ["config.json", "generation_config.json", "model.safetensors"]
    );
}

#[test]
fn an_occupied_target_is_refused_and_an_empty_one_is_taken() {
    let source = open(&Tiny::new(49).build());
    let plan = plan(&source, HfOptions::default());
    let dir = tempfile::tempdir().unwrap();
    let write = |target: &Path| hf::write(&source, &plan, &[], target, &mut |_| Continue(()));
    let full = dir.path().join("full");
    std::fs::create_dir(&full).unwrap();
    write(&full).unwrap();
    assert!(full.join("config.json").is_file());
    for target in [full.clone(), full.join("config.json")] {
        let error = write(&target).unwrap_err();
        assert!(matches!(error, ExportError::Occupied { .. }), "{error}");
        assert!(error.to_string().contains("exists already"), "{error}");
    }
    let nowhere = dir.path().join("no").join("such");
    let error = write(&nowhere).unwrap_err().to_string();
    assert!(error.contains("cannot create a folder in"), "{error}");
    let left: Vec<_> = dir
        .path()
        .read_dir()
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(left, ["full"]);
}

#[test]
fn a_failed_folder_is_not_left_behind() {
    let mut values = vec![0f32; 96 * 64];
    values[70] = 7e4;
    let file = Tiny::new(50).matrices(GgmlType::Q8_0).build();
    let name = "blk.0.attn_q_a.weight";
    let bytes = encode(GgmlType::Q8_0, &values);
    assert!(
        decode(GgmlType::Q8_0, &bytes)[70] > 65504.0,
        "Q8_0 holds it, F16 does not"
    );
    let source = open(&file.change(name, |tensor| tensor.bytes = bytes));
    let plan = plan(&source, float(Float::F16));
    let dir = tempfile::tempdir().unwrap();
    let error = hf::write(&source, &plan, &[], &dir.path().join("hf"), &mut |_| {
        Continue(())
    })
    .unwrap_err();
    let told = error.to_string();
    assert!(
        told.contains("model.layers.0.self_attn.q_a_proj.weight") && told.contains("element 70"),
        "{told}"
    );
    assert_eq!(dir.path().read_dir().unwrap().count(), 0);
}

#[test]
fn a_job_that_is_ended_leaves_nothing() {
    let source = open(&Tiny::new(49).build());
    let plan = plan(&source, HfOptions::default());
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("hf");
    let error = hf::write(&source, &plan, &[], &target, &mut |_| Break(())).unwrap_err();
    assert!(matches!(error, ExportError::Stopped), "{error}");
    assert_eq!(dir.path().read_dir().unwrap().count(), 0);
}

#[test]
fn an_epsilon_that_config_json_cannot_say_is_refused() {
    let source = open(
        &Tiny::new(51)
            .build()
            .set("attention.layer_norm_epsilon", 1e-5f32),
    );
    let error = HfPlan::new(
        &source,
        HfOptions::default(),
        &General::default(),
        &Map::new(),
    )
    .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("which config.json has no key for"),
        "{error}"
    );
}
