//! Hugging Face folders: the same logical tensors as the GGUF of the same model, and faults by their own names.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::path::Path;

use common::{assert_same_tensors, check_refusal, open};
use glim_model::config::IndexerKind::{Full, Shared};
use glim_model::config::RopeStyle;
use glim_model::{Checkpoint, Config};
use glim_quant::GgmlType;
use glim_testkit::assets;
use glim_testkit::hf::{TinyHf, safetensors_bytes};
use glim_testkit::tiny::{Dims, Tiny, TinyTensor};
use safetensors::SafeTensors;

fn plain() -> TinyHf {
    TinyHf::from_gguf(&Tiny::new(31).build())
}

fn write(model: &TinyHf, shards: usize) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    model.write(folder.path(), shards);
    folder
}

#[track_caller]
fn config(model: &TinyHf) -> Config {
    let folder = write(model, 1);
    Checkpoint::open(folder.path())
        .unwrap_or_else(|error| panic!("{error}"))
        .config()
        .clone()
}

/// The message without the folder, whose name is another in each run.
#[track_caller]
fn refusal(model: &TinyHf) -> String {
    let folder = write(model, 1);
    refusal_of(folder.path())
}

#[track_caller]
fn refusal_of(folder: &Path) -> String {
    match Checkpoint::open(folder) {
        Ok(_) => panic!("accepted"),
        Err(error) => check_refusal(error).replace(&folder.display().to_string(), "HF"),
    }
}

fn tensor(name: &str, shape: &[usize]) -> TinyTensor {
    let bytes = vec![0; shape.iter().product::<usize>() * 4];
    TinyTensor {
        name: name.to_owned(),
        shape: shape.to_vec(),
        ty: GgmlType::F32,
        bytes,
    }
}

#[test]
fn a_folder_and_a_gguf_of_one_model_are_the_same() {
    for ty in [GgmlType::BF16, GgmlType::F16, GgmlType::F32] {
        let file = Tiny::new(31).matrices(ty).build();
        let expected = open(&file);
        let hf = TinyHf::from_gguf(&file);
        for shards in [1, 4] {
            let folder = write(&hf, shards);
            let found = Checkpoint::open(folder.path()).unwrap_or_else(|error| panic!("{error}"));
            assert_same_tensors(&found, &expected);
            assert_eq!(found.config(), expected.config());
            assert_eq!(found.oddities(), [] as [&str; 0]);
        }
    }
}

#[test]
fn odd_glm52_resolves_by_the_formulas() {
    let checkpoint = Checkpoint::open(&assets::odd_glm52()).unwrap();
    let config = checkpoint.config();
    assert_eq!(config.indexer.kinds, [Full, Full, Shared, Full, Shared]);
    assert_eq!(
        (
            config.n_layers,
            config.n_mtp_layers,
            config.moe.first_dense_layers
        ),
        (5, 0, 2)
    );
    assert_eq!(
        (
            config.rope_theta,
            config.moe.routed_scaling_factor,
            config.indexer.topk
        ),
        (8e6, 1.75, 48)
    );
    assert_eq!((config.indexer.n_heads, config.indexer.head_dim), (9, 64));
    assert_eq!(config.indexer.rope_style, RopeStyle::Interleaved);
    assert_eq!(checkpoint.mtp_tensors(), []);

    let bytes = std::fs::read(assets::odd_glm52().join("model.safetensors")).unwrap();
    let stored = SafeTensors::deserialize(&bytes).unwrap();
    let data = |name: &str| checkpoint.data(checkpoint.tensor(name).unwrap()).unwrap();
    let (heads, nope, v, rank) = (6, 96, 80, 256);
    let kv_b = stored
        .tensor("model.layers.4.self_attn.kv_b_proj.weight")
        .unwrap();
    assert_eq!(kv_b.shape(), [heads * (nope + v), rank]);
    let (k_b, v_b) = (data("blk.4.attn_k_b.weight"), data("blk.4.attn_v_b.weight"));
    let at = |bytes: &[u8], i: usize| [bytes[2 * i], bytes[2 * i + 1]];
    for h in 0..heads {
        for r in 0..rank {
            for d in 0..nope {
                let expected = at(kv_b.data(), (h * (nope + v) + d) * rank + r);
                assert_eq!(
                    at(&k_b, (h * rank + r) * nope + d),
                    expected,
                    "key {h} {r} {d}"
                );
            }
            for j in 0..v {
                let expected = at(kv_b.data(), (h * (nope + v) + nope + j) * rank + r);
                assert_eq!(
                    at(&v_b, (h * v + j) * rank + r),
                    expected,
                    "value {h} {r} {j}"
                );
            }
        }
    }

    let down = checkpoint.tensor("blk.3.ffn_down_exps.weight").unwrap();
    assert_eq!(
        (down.shape.as_slice(), down.ty),
        ([10, 128, 32].as_slice(), GgmlType::BF16)
    );
    let experts: Vec<u8> = (0..10)
        .flat_map(|e| {
            stored
                .tensor(&format!("model.layers.3.mlp.experts.{e}.down_proj.weight"))
                .unwrap()
                .data()
                .to_vec()
        })
        .collect();
    assert_eq!(*checkpoint.data(down).unwrap(), *experts);
    let bias = checkpoint.tensor("blk.2.exp_probs_b.bias").unwrap();
    assert_eq!(
        (bias.shape.as_slice(), bias.ty),
        ([10].as_slice(), GgmlType::F32)
    );
}

#[test]
fn the_indexer_schedule_is_read_in_each_spelling() {
    let dims = Dims {
        full: vec![true, true, true, false, false, false, true, false],
        ..Dims::default()
    };
    let kinds = [Full, Full, Full, Shared, Shared, Shared, Full, Shared];
    let listed = TinyHf::from_gguf(&Tiny::new(31).dims(dims).build());
    let ruled = listed.clone().unset("indexer_types");
    let pattern = ruled.clone().set("index_topk_pattern", "\"FFFSSSFS\"");
    let frequency = ruled
        .set("indexer_types", "null")
        .set("index_topk_freq", "4")
        .set("index_skip_topk_offset", "3");
    // The list wins over the rules.
    let both = listed.clone().set("index_topk_freq", "1");
    for model in [listed, pattern, frequency, both] {
        assert_eq!(config(&model).indexer.kinds, kinds);
    }
}

#[test]
fn the_schedule_starts_after_two_layers_unless_it_says_otherwise() {
    let full = vec![true, true, false, true, false];
    let model = TinyHf::from_gguf(
        &Tiny::new(31)
            .dims(Dims {
                full,
                ..Dims::default()
            })
            .build(),
    );
    let model = model.unset("indexer_types").set("index_topk_freq", "2");
    assert_eq!(
        config(&model).indexer.kinds,
        [Full, Full, Shared, Full, Shared]
    );
}

#[test]
fn without_a_schedule_every_layer_is_full() {
    let dims = Dims {
        full: vec![true; 4],
        ..Dims::default()
    };
    let model = TinyHf::from_gguf(&Tiny::new(31).dims(dims).build()).unset("indexer_types");
    assert_eq!(config(&model).indexer.kinds, [Full; 4]);
}

#[test]
fn older_spellings_of_rope_and_dense_layers_are_read() {
    let model = plain()
        .unset("rope_parameters")
        .set("rope_theta", "5000")
        .unset("mlp_layer_types");
    let read = config(&model);
    assert_eq!((read.rope_theta, read.moe.first_dense_layers), (5e3, 1));
    assert_eq!(
        config(&plain().set("indexer_rope_interleave", "false"))
            .indexer
            .rope_style,
        RopeStyle::HalfSplit
    );
}

#[test]
fn indexers_of_shared_layers_are_ignored_and_said() {
    let mut model = plain();
    for name in [
        "wq_b.weight",
        "wk.weight",
        "k_norm.weight",
        "k_norm.bias",
        "weights_proj.weight",
    ] {
        model.tensors.push(tensor(
            &format!("model.layers.2.self_attn.indexer.{name}"),
            &[3],
        ));
    }
    let folder = write(&model, 1);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(
        checkpoint.oddities(),
        [
            "indexer tensors of layer 2 are ignored: by the metadata an earlier layer's indexer is shared"
        ]
    );
}

#[test]
fn a_tied_head_is_the_embedding() {
    let folder = write(&plain().drop_tensor("lm_head.weight"), 1);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(
        checkpoint.oddities(),
        ["`lm_head.weight` is absent: `model.embed_tokens.weight` is used in its place"]
    );
}

#[test]
fn tensors_are_named_as_the_folder_names_them() {
    assert_eq!(
        refusal(&plain().drop_tensor("model.layers.2.mlp.experts.5.up_proj.weight")),
        "HF: tensor `model.layers.2.mlp.experts.5.up_proj.weight` is missing; expected shape [288, 96]"
    );
    let message = refusal(&plain().drop_tensor("model.layers.0.self_attn.kv_b_proj.weight"));
    assert!(
        message.starts_with("HF: tensor `model.layers.0.self_attn.kv_b_proj.weight` is missing"),
        "{message}"
    );

    let mut surplus = plain();
    surplus
        .tensors
        .push(tensor("model.layers.0.self_attn.rotary_emb.inv_freq", &[5]));
    assert_eq!(
        refusal(&surplus),
        "HF: tensor `model.layers.0.self_attn.rotary_emb.inv_freq` is not one of this model's"
    );

    let mut shapes = plain();
    let norm = shapes
        .tensors
        .iter_mut()
        .find(|t| t.name == "model.layers.1.mlp.experts.0.down_proj.weight")
        .unwrap();
    norm.shape.reverse();
    assert_eq!(
        refusal(&shapes),
        "HF: tensor `model.layers.1.mlp.experts.0.down_proj.weight` has shape [288, 96]; expected [96, 288]"
    );
}

#[test]
fn experts_of_one_layer_have_one_type() {
    let mut mixed = plain();
    let name = "model.layers.1.mlp.experts.3.gate_proj.weight";
    *mixed.tensors.iter_mut().find(|t| t.name == name).unwrap() = tensor(name, &[288, 96]);
    assert_eq!(
        refusal(&mixed),
        "HF: tensor `model.layers.1.mlp.experts.0.gate_proj.weight` has type BF16 and `model.layers.1.mlp.experts.3.gate_proj.weight` \
         has type F32; expected one type for the experts of a layer"
    );
}

#[test]
fn a_tensor_in_two_files_is_named_with_both() {
    let folder = write(&plain(), 2);
    let second = folder.path().join("model-00002-of-00002.safetensors");
    let half = plain().tensors.len().div_ceil(2);
    let mut tensors = plain().tensors.split_off(half);
    tensors.push(plain().tensors[0].clone());
    std::fs::write(&second, safetensors_bytes(&tensors)).unwrap();
    assert_eq!(
        refusal_of(folder.path()),
        "HF: tensor `lm_head.weight` is in two files, model-00001-of-00002.safetensors and \
         model-00002-of-00002.safetensors; expected one"
    );
}

#[test]
fn a_tensor_that_is_not_where_the_index_says_is_named() {
    let folder = write(&plain(), 2);
    let path = folder.path().join("model-00001-of-00002.safetensors");
    std::fs::write(&path, safetensors_bytes(&[])).unwrap();
    let message = refusal_of(folder.path());
    assert!(
        message.contains("is missing from model-00001-of-00002.safetensors, where model.safetensors.index.json says it is"),
        "{message}"
    );
}

#[test]
fn a_missing_file_is_missing_and_a_broken_one_is_not() {
    let folder = write(&plain(), 2);
    let shard = folder.path().join("model-00002-of-00002.safetensors");
    let bytes = std::fs::read(&shard).unwrap();
    std::fs::write(&shard, &bytes[..bytes.len() - 1]).unwrap();
    let message = refusal_of(folder.path());
    assert!(
        message.starts_with("HF/model-00002-of-00002.safetensors: not a whole safetensors file: "),
        "{message}"
    );
    std::fs::remove_file(&shard).unwrap();
    let error = Checkpoint::open(folder.path()).unwrap_err();
    assert!(
        error.is_missing()
            && error
                .to_string()
                .contains("model-00002-of-00002.safetensors"),
        "{error}"
    );

    let error = Checkpoint::open(&folder.path().join("nothing.gguf")).unwrap_err();
    assert!(error.is_missing(), "{error}");
}

#[test]
fn an_index_does_not_reach_out_of_its_folder() {
    let folder = write(&plain(), 2);
    for file in [
        "../x.safetensors",
        "/etc/passwd",
        "..",
        "a/b.safetensors",
        "",
    ] {
        let index = format!(r#"{{"weight_map": {{"x": "{file}"}}}}"#);
        std::fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
        assert_eq!(
            refusal_of(folder.path()),
            format!(
                "HF/model.safetensors.index.json: tensor `x` is said to be in \"{file}\"; expected the name of a file beside it"
            )
        );
    }
}

#[test]
fn broken_json_is_named() {
    let folder = write(&plain(), 1);
    std::fs::write(folder.path().join("config.json"), "{").unwrap();
    let message = refusal_of(folder.path());
    assert!(
        message.starts_with("HF/config.json: not valid JSON: "),
        "{message}"
    );
}

#[test]
fn configuration_faults_are_named_by_their_key() {
    for (key, json, expected) in [
        (
            "model_type",
            "\"deepseek_v3\"",
            "model_type is `deepseek_v3`, which is not supported; supported: `glm_moe_dsa`",
        ),
        (
            "hidden_act",
            "\"gelu\"",
            "hidden_act is `gelu`, which is not supported; supported: `silu`",
        ),
        (
            "attention_bias",
            "true",
            "attention_bias is `true`, which is not supported; supported: `false`",
        ),
        (
            "rope_interleave",
            "false",
            "rope_interleave is `false`, which is not supported; supported: `true`",
        ),
        (
            "rope_parameters",
            "{\"rope_type\": \"yarn\"}",
            "rope_type is `yarn`, which is not supported; supported: `default`",
        ),
        (
            "moe_layer_freq",
            "2",
            "moe_layer_freq is `2`, which is not supported; supported: `1`",
        ),
        (
            "hidden_size",
            "null",
            "key `hidden_size` is missing; expected a whole number",
        ),
        (
            "hidden_size",
            "-1",
            "key `hidden_size` is -1; expected a whole number",
        ),
        (
            "hidden_size",
            "0",
            "key `hidden_size` is 0; expected 1 to 1048576",
        ),
        (
            "num_hidden_layers",
            "99999999999",
            "key `num_hidden_layers` is 99999999999; expected 1 to 4096",
        ),
        (
            "norm_topk_prob",
            "1",
            "key `norm_topk_prob` is 1; expected true or false",
        ),
        (
            "num_experts_per_tok",
            "8",
            "key `num_experts_per_tok` is 8; expected 1 to 7",
        ),
        (
            "indexer_types",
            "[\"full\", \"half\", \"full\", \"full\"]",
            "key `indexer_types` is `half`; expected `full` or `shared` for each layer",
        ),
        (
            "indexer_types",
            "[\"full\"]",
            "key `indexer_types` is a list of 1 entries; expected one for each of 4 layers",
        ),
        (
            "indexer_types",
            "[\"shared\", \"full\", \"full\", \"full\"]",
            "key `indexer_types` is such that layer 0 is shared; expected layer 0 full: no earlier layer chooses positions",
        ),
        (
            "mlp_layer_types",
            "[\"dense\", \"sparse\", \"dense\", \"sparse\"]",
            "key `mlp_layer_types` is `dense` for layer 2; expected `dense` for the first layers, then `sparse` for all others",
        ),
    ] {
        assert_eq!(
            refusal(&plain().set(key, json)),
            format!("HF/config.json: {expected}")
        );
    }
}
