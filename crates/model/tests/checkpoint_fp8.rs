//! FP8 folders: values, every place where codes may stand, and faults by name.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::ops::ControlFlow::Continue;

use common::{all, assert_same_tensors, check_refusal, type_of, values};
use glim_gguf::Metadata;
use glim_model::Checkpoint;
use glim_model::export::{ExportPlan, FileType, General, write};
use glim_model::shard::{Options, Shards};
use glim_quant::GgmlType;
use glim_testkit::encode::{decode, encode};
use glim_testkit::hf::{RawTensor, TinyHf, e4m3};
use glim_testkit::tiny::Tiny;
use safetensors::Dtype;

/// All matrices that published FP8 checkpoints store so; their sizes are no multiples of 128, nor less.
const MATRICES: [&str; 6] = [
    "self_attn.q_b_proj.weight",
    "self_attn.kv_b_proj.weight",
    "self_attn.o_proj.weight",
    "indexer.wq_b.weight",
    "_proj.weight",
    "eh_proj.weight",
];

fn fp8() -> TinyHf {
    let plain = TinyHf::from_gguf(&Tiny::new(31).build());
    // The head weights of the indexer end like a projection.
    let keep: Vec<_> = plain
        .tensors
        .iter()
        .filter(|t| t.name.ends_with("weights_proj.weight"))
        .cloned()
        .collect();
    let mut model = plain;
    model.tensors.retain(|t| !keep.contains(t));
    let mut model = model
        .fp8("_proj.weight")
        .fp8("indexer.wq_b.weight")
        .fp8("kv_a_proj_with_mqa.weight");
    model.tensors.extend(keep);
    model
}

/// The same model with each FP8 matrix as F32, by the format's formula.
fn decoded(model: &TinyHf) -> TinyHf {
    let mut model = model.clone().unset("quantization_config");
    for raw in std::mem::take(&mut model.raw) {
        let name = format!("{}_scale_inv", raw.name);
        let at = model.tensors.iter().position(|t| t.name == name).unwrap();
        let mut tensor = model.tensors.remove(at);
        let (cols, scales) = (raw.shape[1], decode(tensor.ty, &tensor.bytes));
        let value = |(i, code): (usize, &u8)| {
            let block = (i / cols / 128) * cols.div_ceil(128) + i % cols / 128;
            e4m3(*code) * scales[block]
        };
        let values: Vec<f32> = raw.bytes.iter().enumerate().map(value).collect();
        (tensor.name, tensor.shape) = (raw.name, raw.shape);
        tensor.bytes = encode(GgmlType::F32, &values);
        model.tensors.push(tensor);
    }
    model
}

fn open(model: &TinyHf, shards: usize) -> (tempfile::TempDir, Checkpoint) {
    let folder = tempfile::tempdir().unwrap();
    model.write(folder.path(), shards);
    let checkpoint = Checkpoint::open(folder.path()).unwrap_or_else(|error| panic!("{error}"));
    (folder, checkpoint)
}

#[track_caller]
fn refusal(model: &TinyHf) -> String {
    let folder = tempfile::tempdir().unwrap();
    model.write(folder.path(), 1);
    let error = Checkpoint::open(folder.path()).map(drop).unwrap_err();
    check_refusal(error).replace(&folder.path().display().to_string(), "HF")
}

#[test]
fn codes_times_scales_are_the_logical_tensors() {
    let model = fp8();
    for part in MATRICES {
        assert!(model.raw.iter().any(|t| t.name.ends_with(part)), "{part}");
    }
    let (_folder, expected) = open(&decoded(&model), 1);
    for shards in [1, 5] {
        let (_folder, found) = open(&model, shards);
        assert_same_tensors(&found, &expected);
        assert_eq!(found.config(), expected.config());
        let [oddity] = found.oddities() else {
            panic!("{:?}", found.oddities())
        };
        assert!(
            oddity.starts_with(&format!(
                "{} tensors are stored as F8_E4M3",
                model.raw.len()
            )),
            "{oddity}"
        );
    }
}

#[test]
fn pieces_are_the_whole_and_experts_come_one_at_a_time() {
    let (_folder, checkpoint) = open(&fp8(), 2);
    for desc in all(&checkpoint) {
        let pieces: Vec<_> = checkpoint.pieces(desc).unwrap().collect();
        assert!(
            pieces.concat() == *checkpoint.data(desc).unwrap(),
            "{}",
            desc.name
        );
        if desc.name.contains("_exps") {
            assert_eq!(pieces.len(), desc.shape[0], "{}", desc.name);
        }
    }
}

#[test]
fn ranks_load_their_part_of_what_is_decoded() {
    let model = fp8();
    let (_a, found) = open(&model, 1);
    let (_b, expected) = open(&decoded(&model), 1);
    let shards = Shards::of(&found, 3, &Options::default()).unwrap();
    for rank in 0..3 {
        let (found, expected) = (
            shards.rank(&found, rank).unwrap(),
            shards.rank(&expected, rank).unwrap(),
        );
        for weight in shards.weights() {
            let name = &weight.weight().name;
            let (x, y) = (found.load(name).unwrap(), expected.load(name).unwrap());
            assert!(
                x.bytes == y.bytes && x.shape == y.shape,
                "{name}, rank {rank}"
            );
        }
    }
}

/// llama.cpp's converter rounds once as well: from the f32 product to the file's type.
#[test]
fn a_conversion_to_bf16_rounds_the_product_once() {
    let dir = tempfile::tempdir().unwrap();
    let (_folder, source) = open(&fp8(), 1);
    let path = dir.path().join("out.gguf");
    let plan = ExportPlan::new(
        &source,
        FileType::Bf16,
        &General::default(),
        &Metadata::new(),
    )
    .unwrap();
    write(&source, &plan, &path, &mut |_| Continue(())).unwrap();
    let found = Checkpoint::open(&path).unwrap();
    for name in [
        "blk.0.attn_q_b.weight",
        "blk.1.attn_k_b.weight",
        "blk.2.ffn_down_exps.weight",
    ] {
        assert_eq!(
            (type_of(&source, name), type_of(&found, name)),
            (GgmlType::F32, GgmlType::BF16)
        );
        let rounded = encode(GgmlType::BF16, &values(&source, name));
        assert!(
            *found.data(found.tensor(name).unwrap()).unwrap() == rounded,
            "{name}"
        );
    }
}

const Q_A: &str = "model.layers.0.self_attn.q_a_proj.weight";

fn scales_of<'a>(model: &'a mut TinyHf, name: &str) -> &'a mut glim_testkit::tiny::TinyTensor {
    let name = format!("{name}_scale_inv");
    model.tensors.iter_mut().find(|t| t.name == name).unwrap()
}

#[test]
fn faults_of_scales_are_named() {
    let missing = fp8().drop_tensor(&format!("{Q_A}_scale_inv"));
    assert_eq!(
        refusal(&missing),
        format!(
            "HF: tensor `{Q_A}_scale_inv` is missing, the scales of `{Q_A}`, which has type F8_E4M3; expected shape [1, 1]"
        )
    );

    let mut misshapen = fp8();
    let scales = scales_of(&mut misshapen, Q_A);
    (scales.shape, scales.bytes) = (vec![1, 2], vec![0; 8]);
    assert!(refusal(&misshapen).starts_with(&format!(
        "HF: tensor `{Q_A}_scale_inv` has type F32 and shape [1, 2]; expected F32 and [1, 1], the blocks of `{Q_A}`"
    )));

    let mut narrow = fp8();
    let scales = scales_of(&mut narrow, Q_A);
    (scales.ty, scales.bytes) = (GgmlType::BF16, vec![0; 2]);
    assert!(refusal(&narrow).contains("_scale_inv` has type BF16 and shape [1, 1]; expected F32"));

    let mut surplus = TinyHf::from_gguf(&Tiny::new(31).build());
    let mut scales = surplus.tensors[0].clone();
    scales.name = format!("{Q_A}_scale_inv");
    surplus.tensors.push(scales);
    assert_eq!(
        refusal(&surplus),
        format!(
            "HF: tensor `{Q_A}_scale_inv` is not one of this model's: `{Q_A}` is not of type F8_E4M3, which is what such \
             scales are for"
        )
    );
}

#[test]
fn other_fp8_types_and_shapes_are_refused_by_name() {
    let with = |dtype, shape: &[usize]| {
        let mut model = fp8();
        let name = "model.norm.weight".to_owned();
        model.tensors.retain(|t| t.name != name);
        let bytes = vec![0; shape.iter().product()];
        model.raw.push(RawTensor {
            name,
            shape: shape.to_vec(),
            dtype,
            bytes,
        });
        refusal(&model)
    };
    assert!(with(Dtype::F8_E5M2, &[96]).starts_with(
        "HF: tensor `model.norm.weight` in model.safetensors has type F8_E5M2; expected F32, F16, BF16 or F8_E4M3"
    ));
    assert!(with(Dtype::F8_E4M3, &[96]).starts_with(
        "HF: tensor `model.norm.weight` has type F8_E4M3 and shape [96]; expected a matrix"
    ));
}

#[test]
fn the_blocks_must_be_known() {
    assert!(refusal(&fp8().unset("quantization_config")).contains(
        "key `quantization_config.weight_block_size` is missing; expected the rows and columns that share a scale"
    ));
    let other = fp8().set(
        "quantization_config",
        r#"{"quant_method": "compressed-tensors"}"#,
    );
    assert!(refusal(&other).contains(
        "quantization_config.quant_method is `compressed-tensors`, which is not supported"
    ));
}

#[test]
fn experts_of_a_layer_are_all_fp8_or_none() {
    let name = "model.layers.1.mlp.experts.3.gate_proj.weight";
    let mut model = TinyHf::from_gguf(&Tiny::new(31).build());
    model = model.fp8(name);
    let told = refusal(&model);
    assert!(
        told.contains("experts.0.gate_proj.weight` has type BF16 and"),
        "{told}"
    );
    assert!(
        told.contains("experts.3.gate_proj.weight` has type F8_E4M3;"),
        "{told}"
    );
}

#[test]
fn nan_codes_are_nan_and_not_some_large_number() {
    let mut model = fp8();
    let raw = model.raw.iter_mut().find(|t| t.name == Q_A).unwrap();
    (raw.bytes[5], raw.bytes[6], raw.bytes[7]) = (0x7F, 0xFF, 0x7E);
    let (_folder, checkpoint) = open(&model, 1);
    let values = values(&checkpoint, "blk.0.attn_q_a.weight");
    assert!(values[5].is_nan() && values[6].is_nan() && values[7].is_finite());
}
