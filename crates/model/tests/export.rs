//! Exports: what a plan says of order, types and keys, and what the file that comes of it holds.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::ops::ControlFlow::{Break, Continue};
use std::path::Path;

use common::assert_same_tensors;
use glim_gguf::{Gguf, Metadata};
use glim_model::Checkpoint;
use glim_model::export::{
    ExportError, ExportOptions, ExportPlan, FileType, General, Mtp, write, write_split,
};
use glim_quant::{GgmlType, dequantize, quantize};
use glim_testkit::assets;
use glim_testkit::hf::TinyHf;
use glim_testkit::tiny::{Dims, Tiny};

fn hf(tiny: &Tiny, shards: usize) -> (tempfile::TempDir, Checkpoint) {
    let folder = tempfile::tempdir().unwrap();
    TinyHf::from_gguf(&tiny.build()).write(folder.path(), shards);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    (folder, checkpoint)
}

fn plan(checkpoint: &Checkpoint, file_type: FileType) -> ExportPlan<'_> {
    ExportPlan::new(checkpoint, file_type, &General::default(), &Metadata::new()).unwrap()
}

/// Writes the file and opens it.
fn export(checkpoint: &Checkpoint, file_type: FileType, folder: &Path) -> Checkpoint {
    let path = folder.join("out.gguf");
    let plan = plan(checkpoint, file_type);
    let mut bytes = 0;
    write(checkpoint, &plan, &path, &mut |n| {
        bytes += n;
        Continue(())
    })
    .unwrap();
    assert_eq!(bytes, plan.data_bytes(), "progress adds up to the whole");
    Checkpoint::open(&path).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn the_stored_type_comes_back_bit_for_bit_with_the_same_configuration() {
    let dir = tempfile::tempdir().unwrap();
    for shards in [1, 3] {
        let (_folder, source) = hf(&Tiny::new(5).matrices(GgmlType::F32), shards);
        let found = export(&source, FileType::F32, dir.path());
        assert_same_tensors(&found, &source);
        assert_eq!(found.config(), source.config());
        assert_eq!(found.oddities(), [] as [&str; 0]);
    }
    let source = Checkpoint::open(&assets::odd_glm52()).unwrap();
    let found = export(&source, FileType::Bf16, dir.path());
    assert_eq!(found.config(), source.config());
}

#[test]
fn every_tensor_is_its_values_in_the_type_of_the_rule() {
    let source = Checkpoint::open(&assets::odd_glm52()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    for file_type in [FileType::F32, FileType::F16, FileType::Bf16, FileType::Q8_0] {
        let found = export(&source, file_type, dir.path());
        for t in source.tensors() {
            let mut values = vec![0f32; t.elements()];
            dequantize(t.ty, &source.data(t).unwrap(), &mut values).unwrap();
            let written = found.tensor(&t.name).unwrap();
            let mut expected = vec![0; written.byte_len()];
            quantize(written.ty, &values, &mut expected).unwrap();
            assert!(*found.data(written).unwrap() == expected[..], "{}", t.name);
        }
    }
}

#[test]
fn vectors_norms_router_and_index_weights_stay_f32() {
    let source = Checkpoint::open(&assets::odd_glm52()).unwrap();
    let plan = plan(&source, FileType::Q8_0);
    let of = |suffix: &str| {
        let mut types: Vec<GgmlType> = plan
            .tensors
            .iter()
            .filter(|t| t.name().ends_with(suffix))
            .map(|t| t.ty)
            .collect();
        types.dedup();
        types
    };
    for name in [
        "_norm.weight",
        "k_norm.bias",
        "exp_probs_b.bias",
        "ffn_gate_inp.weight",
        "indexer.proj.weight",
    ] {
        assert_eq!(of(name), [GgmlType::F32], "{name}");
    }
    for name in [
        "token_embd.weight",
        "attn_k_b.weight",
        "ffn_down_exps.weight",
    ] {
        assert_eq!(of(name), [GgmlType::Q8_0], "{name}");
    }
}

#[test]
fn rows_that_are_no_whole_blocks_become_f16() {
    let dims = Dims {
        qk_nope_head_dim: 24,
        ..Dims::default()
    };
    let (_folder, source) = hf(&Tiny::new(6).dims(dims), 1);
    let plan = plan(&source, FileType::Q8_0);
    for t in &plan.tensors {
        if t.name().ends_with("attn_k_b.weight") {
            assert_eq!(t.ty, GgmlType::F16, "{}", t.name());
        } else {
            assert_ne!(t.ty, GgmlType::F16, "{}", t.name());
        }
    }
    let dir = tempfile::tempdir().unwrap();
    export(&source, FileType::Q8_0, dir.path());
}

/// llama.cpp's converter wrote the built-in model: a random one of the same layers must come in the same order.
#[test]
fn tensors_come_in_the_order_of_names_and_stacks_when_they_are_whole() {
    let gguf = Gguf::open(&assets::tiny_glm5()).unwrap();
    let theirs: Vec<&str> = gguf.tensors().iter().map(|t| t.name.as_str()).collect();
    let dims = Dims {
        full: vec![true; 6],
        first_dense_layers: 1,
        ..Dims::default()
    };
    let (_folder, checkpoint) = hf(&Tiny::new(7).dims(dims), 1);
    let ours: Vec<String> = plan(&checkpoint, FileType::Bf16)
        .tensors
        .iter()
        .map(|t| t.name().to_owned())
        .collect();
    assert_eq!(ours, theirs);
}

#[test]
fn shards_are_taken_by_name_whatever_the_order_of_their_tensors() {
    let names = |shards| {
        let (_folder, checkpoint) = hf(&Tiny::new(8), shards);
        let plan = plan(&checkpoint, FileType::Bf16);
        let names: Vec<String> = plan.tensors.iter().map(|t| t.name().to_owned()).collect();
        names
    };
    let (one, many) = (names(1), names(5));
    assert_ne!(one, many, "another cut is another order");
    let sorted = |mut names: Vec<String>| {
        names.sort();
        names
    };
    assert_eq!(sorted(one), sorted(many));
}

#[test]
fn a_tied_head_is_written_once_and_read_as_tied() {
    let folder = tempfile::tempdir().unwrap();
    TinyHf::from_gguf(&Tiny::new(9).build())
        .drop_tensor("lm_head.weight")
        .write(folder.path(), 1);
    let source = Checkpoint::open(folder.path()).unwrap();
    assert!(source.is_tied());
    let dir = tempfile::tempdir().unwrap();
    let found = export(&source, FileType::Bf16, dir.path());
    assert!(found.is_tied());
}

#[test]
fn the_mtp_block_is_counted_where_it_is_kept() {
    let keys = |mtp| {
        let dims = Dims {
            mtp,
            ..Dims::default()
        };
        let (_folder, checkpoint) = hf(&Tiny::new(10).dims(dims), 1);
        let plan = plan(&checkpoint, FileType::Bf16);
        let uint = |key: &str| plan.metadata.uint(key).unwrap();
        (
            uint("glm-dsa.block_count"),
            uint("glm-dsa.nextn_predict_layers"),
        )
    };
    assert_eq!(keys(true), (Some(5), Some(1)));
    assert_eq!(keys(false), (Some(4), None));
}

#[test]
fn a_dropped_mtp_block_leaves_no_tensor_and_no_key() {
    let (_folder, source) = hf(&Tiny::new(10), 1);
    let options = ExportOptions {
        file_type: FileType::Bf16,
        mtp: Mtp::Drop,
    };
    let general = General::default();
    let plan = ExportPlan::new(&source, options, &general, &Metadata::new()).unwrap();
    let uint = |key: &str| plan.metadata.uint(key).unwrap();
    assert_eq!(uint("glm-dsa.block_count"), Some(4));
    assert_eq!(uint("glm-dsa.nextn_predict_layers"), None);

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.gguf");
    write(&source, &plan, &path, &mut |_| Continue(())).unwrap();
    let found = Checkpoint::open(&path).unwrap();
    assert_eq!(found.config().n_mtp_layers, 0);
    assert_eq!(found.mtp_tensors(), []);
    assert_eq!(found.oddities(), [] as [&str; 0]);
    assert_eq!(found.tensors().len(), source.tensors().len());
}

#[test]
fn parts_hold_what_one_file_would() {
    let (_folder, source) = hf(&Tiny::new(10), 1);
    let dir = tempfile::tempdir().unwrap();
    let whole = export(&source, FileType::Bf16, dir.path());
    let plan = plan(&source, FileType::Bf16);
    let (max_bytes, mut bytes) = (1_500_000, 0);
    let target = (dir.path(), "split");
    let paths = write_split(&source, &plan, target, max_bytes, &mut |n| {
        bytes += n;
        Continue(())
    })
    .unwrap();
    assert_eq!(bytes, plan.data_bytes(), "progress adds up to the whole");
    assert!(paths.len() > 2, "{paths:?}");
    for path in &paths {
        assert!(
            std::fs::metadata(path).unwrap().len() <= max_bytes,
            "{path:?}"
        );
    }
    assert_same_tensors(&Checkpoint::open(&paths[0]).unwrap(), &whole);
}

#[test]
fn a_job_that_is_ended_leaves_nothing() {
    let (_folder, source) = hf(&Tiny::new(10), 1);
    let plan = plan(&source, FileType::Bf16);
    let dir = tempfile::tempdir().unwrap();
    let mut told = 0;
    let mut stop = |n| {
        told += n;
        if told > 2_000_000 {
            Break(())
        } else {
            Continue(())
        }
    };
    let error = write_split(&source, &plan, (dir.path(), "m"), 1_000_000, &mut stop).unwrap_err();
    assert!(matches!(error, ExportError::Stopped), "{error}");
    assert_eq!(dir.path().read_dir().unwrap().count(), 0);
}

#[test]
fn a_failed_set_leaves_no_part() {
    let dir = tempfile::tempdir().unwrap();
    let mut model = TinyHf::from_gguf(&Tiny::new(12).matrices(GgmlType::F32).build());
    let name = "model.layers.3.self_attn.q_a_proj.weight";
    let tensor = model.tensors.iter_mut().find(|t| t.name == name).unwrap();
    tensor.bytes[..4].copy_from_slice(&7e4f32.to_le_bytes());
    let folder = tempfile::tempdir().unwrap();
    model.write(folder.path(), 1);
    let source = Checkpoint::open(folder.path()).unwrap();
    let plan = plan(&source, FileType::F16);
    let error = write_split(&source, &plan, (dir.path(), "m"), 300_000, &mut |_| {
        Continue(())
    })
    .unwrap_err();
    assert!(matches!(error, ExportError::BeyondF16 { .. }), "{error}");
    assert_eq!(dir.path().read_dir().unwrap().count(), 0);
}

#[test]
fn keys_of_the_text_side_are_written_as_they_are() {
    let (_folder, checkpoint) = hf(&Tiny::new(11), 1);
    let mut text = Metadata::new();
    text.set("tokenizer.ggml.model", "gpt2");
    let general = General {
        name: Some("A Name".to_owned()),
        ..General::default()
    };
    let plan = ExportPlan::new(&checkpoint, FileType::Bf16, &general, &text).unwrap();
    let last = plan.metadata.iter().last().unwrap();
    assert_eq!(last.0, "tokenizer.ggml.model");
    assert_eq!(plan.metadata.str("general.name").unwrap(), Some("A Name"));
}

#[test]
fn a_trait_that_gguf_cannot_express_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    TinyHf::from_gguf(&Tiny::new(12).build())
        .set("indexer_rope_interleave", "false")
        .write(folder.path(), 1);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let (general, text) = (General::default(), Metadata::new());
    let refused = ExportPlan::new(&checkpoint, FileType::Bf16, &general, &text).unwrap_err();
    assert!(refused.to_string().contains("half-split"), "{refused}");
}

/// Changes one element of `blk.0.attn_q_a.weight` and exports.
fn export_with(value: f32, file_type: FileType, dir: &Path) -> Result<(), ExportError> {
    let folder = tempfile::tempdir().unwrap();
    let mut model = TinyHf::from_gguf(&Tiny::new(13).matrices(GgmlType::F32).build());
    let tensor = model
        .tensors
        .iter_mut()
        .find(|t| t.name == "model.layers.0.self_attn.q_a_proj.weight")
        .unwrap();
    tensor.bytes[4 * 70..4 * 71].copy_from_slice(&value.to_le_bytes());
    model.write(folder.path(), 1);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let plan = plan(&checkpoint, file_type);
    write(&checkpoint, &plan, &dir.join("out.gguf"), &mut |_| {
        Continue(())
    })
}

#[test]
fn weights_that_a_type_cannot_store_are_named_and_no_file_is_left() {
    let dir = tempfile::tempdir().unwrap();
    for (value, file_type, words) in [
        (7e4, FileType::F16, &["element 70", "70000", "bf16"][..]),
        (f32::NAN, FileType::Q8_0, &["NaN", "element 70"]),
    ] {
        let error = export_with(value, file_type, dir.path()).unwrap_err();
        let told = error.to_string();
        for word in [&["blk.0.attn_q_a.weight"], words].concat() {
            assert!(told.contains(word), "`{word}` is not in: {told}");
        }
        assert_eq!(dir.path().read_dir().unwrap().count(), 0, "{told}");
    }
    export_with(65504.0, FileType::F16, dir.path()).unwrap();
    export_with(7e4, FileType::Bf16, dir.path()).unwrap();
}

#[test]
fn a_folder_gives_name_and_recommended_sampling() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("my-model-2b");
    std::fs::create_dir(&folder).unwrap();
    let name = Some("My Model 2b".to_owned());
    let general = General::of_folder(&folder).unwrap();
    assert_eq!((general.name, general.sampling.len()), (name, 0));
    let file = folder.join("generation_config.json");
    std::fs::write(&file, r#"{"temperature": 0.7, "top_p": 0.95}"#).unwrap();
    assert_eq!(General::of_folder(&folder).unwrap().sampling.len(), 2);
    std::fs::write(&file, "{").unwrap();
    let error = General::of_folder(&folder).unwrap_err().to_string();
    assert!(error.contains("generation_config.json"), "{error}");
}
