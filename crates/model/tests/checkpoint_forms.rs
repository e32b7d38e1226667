//! Every stored form that files of the family have resolves to the same logical tensors, byte for byte.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{all, assert_same_tensors, open, type_of, values};
use glim_gguf::Gguf;
use glim_model::catalogue::{Role, catalogue, mtp_catalogue};
use glim_model::config::IndexerKind::{Full, Shared};
use glim_model::{Checkpoint, Config};
use glim_quant::GgmlType;
use glim_testkit::assets;
use glim_testkit::tiny::Tiny;

#[test]
fn the_built_in_model_resolves() {
    let checkpoint = Checkpoint::open(&assets::tiny_glm5()).unwrap();
    let config = checkpoint.config();
    assert_eq!((config.n_layers, config.n_mtp_layers), (6, 1));
    assert_eq!(
        (
            config.qk_nope_head_dim,
            config.qk_rope_head_dim,
            config.v_head_dim
        ),
        (96, 32, 128)
    );
    assert_eq!(config.indexer.kinds, [Full; 6]);
    assert_eq!(
        (
            config.rms_norm_eps,
            config.latent_norm_eps,
            config.indexer.norm_eps
        ),
        (1e-5, 1e-5, 1e-6)
    );
    assert_eq!(checkpoint.oddities(), [] as [&str; 0]);
    // 20 057 088 parameters as its model card says, and the six router biases, which are buffers.
    let elements: usize = all(&checkpoint).iter().map(|desc| desc.elements()).sum();
    assert_eq!(elements, 20_057_088 + 6 * 8);
    checkpoint.check_loadable().unwrap();
    for desc in all(&checkpoint) {
        assert_eq!(
            checkpoint.data(desc).unwrap().len(),
            desc.byte_len(),
            "{}",
            desc.name
        );
    }
    assert_eq!(
        checkpoint.tensor("blk.0.attn_k_b.weight").unwrap().shape,
        [8, 128, 96]
    );
    assert_eq!(
        type_of(&checkpoint, "blk.0.attn_k_b.weight"),
        GgmlType::Q8_0
    );
}

#[test]
fn the_plain_form_is_handed_out_as_it_is_in_catalogue_order() {
    let file = Tiny::new(1).build().reverse_order();
    let checkpoint = open(&file);
    let names: Vec<String> = all(&checkpoint)
        .iter()
        .map(|desc| desc.name.clone())
        .collect();
    let specs: Vec<String> = catalogue(checkpoint.config())
        .into_iter()
        .chain(mtp_catalogue(checkpoint.config()))
        .map(|spec| spec.name)
        .collect();
    assert_eq!(names, specs);
    assert_eq!(names.len(), file.tensors().len());
    for desc in all(&checkpoint) {
        let stored = file.tensor(&desc.name);
        assert_eq!(
            (&desc.shape, desc.ty),
            (&stored.shape, stored.ty),
            "{}",
            desc.name
        );
        assert!(
            *checkpoint.data(desc).unwrap() == *stored.bytes,
            "the bytes of {} differ",
            desc.name
        );
    }
    assert_eq!(
        checkpoint.config().indexer.kinds,
        [Full, Full, Shared, Full]
    );
    assert_eq!(checkpoint.oddities(), [] as [&str; 0]);
}

#[test]
fn fused_gate_and_up_come_apart_expert_by_expert() {
    for ty in [GgmlType::F32, GgmlType::BF16, GgmlType::Q8_0] {
        let plain = Tiny::new(2).matrices(ty).build();
        assert_same_tensors(&open(&plain.clone().fuse_gate_up()), &open(&plain));
    }
}

#[test]
fn types_may_differ_inside_a_layer() {
    let file = Tiny::new(3)
        .ty("blk.1.ffn_up_exps.weight", GgmlType::Q8_0)
        .ty("blk.1.ffn_down_exps.weight", GgmlType::F16)
        .ty("blk.2.attn_k_b.weight", GgmlType::Q8_0)
        .build();
    let checkpoint = open(&file);
    let types = ["gate", "up", "down"]
        .map(|part| type_of(&checkpoint, &format!("blk.1.ffn_{part}_exps.weight")));
    assert_eq!(types, [GgmlType::BF16, GgmlType::Q8_0, GgmlType::F16]);
    assert_eq!(
        type_of(&checkpoint, "blk.2.attn_k_b.weight"),
        GgmlType::Q8_0
    );
}

#[test]
fn vectors_and_router_may_be_of_any_float_type() {
    let mut tiny = Tiny::new(3);
    for ending in [
        "norm.weight",
        "exp_probs_b.bias",
        "k_norm.bias",
        "ffn_gate_inp.weight",
    ] {
        tiny = tiny.ty(ending, GgmlType::BF16);
    }
    let checkpoint = open(&tiny.ty("output_norm.weight", GgmlType::F16).build());
    assert_eq!(
        type_of(&checkpoint, "blk.1.ffn_gate_inp.weight"),
        GgmlType::BF16
    );
    assert_eq!(type_of(&checkpoint, "output_norm.weight"), GgmlType::F16);
}

#[test]
fn legacy_kv_b_splits_into_the_same_halves() {
    for ty in [GgmlType::F32, GgmlType::F16, GgmlType::BF16] {
        let plain = Tiny::new(4).matrices(ty).build();
        assert_same_tensors(&open(&plain.clone().legacy_kv_b()), &open(&plain));
    }
}

#[test]
fn keys_of_a_quantised_kv_b_are_decoded_and_values_are_not() {
    let file = Tiny::new(4)
        .build()
        .legacy_kv_b()
        .retype("attn_kv_b.weight", GgmlType::Q8_0);
    let checkpoint = open(&file);
    let (k_b, v_b) = ("blk.1.attn_k_b.weight", "blk.1.attn_v_b.weight");
    assert_eq!(
        (type_of(&checkpoint, k_b), type_of(&checkpoint, v_b)),
        (GgmlType::F32, GgmlType::Q8_0)
    );

    let stored = file.tensor("blk.1.attn_kv_b.weight");
    let kv_b = glim_testkit::encode::decode(stored.ty, &stored.bytes);
    let (keys, vals) = (values(&checkpoint, k_b), values(&checkpoint, v_b));
    let (heads, nope, v, rank) = (3, 32, 224, 128);
    for h in 0..heads {
        for r in 0..rank {
            for d in 0..nope {
                assert_eq!(
                    keys[(h * rank + r) * nope + d],
                    kv_b[(h * (nope + v) + d) * rank + r],
                    "key {h} {r} {d}"
                );
            }
            for j in 0..v {
                assert_eq!(
                    vals[(h * v + j) * rank + r],
                    kv_b[(h * (nope + v) + nope + j) * rank + r],
                    "value {h} {r} {j}"
                );
            }
        }
    }
}

#[test]
fn halves_of_kv_b_may_be_matrices() {
    for ty in [GgmlType::BF16, GgmlType::Q8_0] {
        let plain = Tiny::new(5).matrices(ty).build();
        assert_same_tensors(&open(&plain.clone().flat_kv_b()), &open(&plain));
    }
}

#[test]
fn kv_b_beside_its_halves_is_ignored_and_said() {
    let plain = Tiny::new(5).build();
    let checkpoint = open(&plain.clone().with_kv_b());
    assert_same_tensors(&checkpoint, &open(&plain));
    assert_eq!(
        checkpoint.oddities(),
        [
            "`attn_kv_b` stands beside `attn_k_b` and `attn_v_b` in layers 0, 1, 2, 3: it is ignored",
            "`attn_kv_b` stands beside `attn_k_b` and `attn_v_b` in layer 4: it is ignored",
        ]
    );
}

#[test]
fn an_absent_head_is_the_embedding_table() {
    let file = Tiny::new(6).build().tie_output();
    let checkpoint = open(&file);
    assert_eq!(
        values(&checkpoint, "output.weight"),
        values(&checkpoint, "token_embd.weight")
    );
    assert_eq!(
        checkpoint.tensor("output.weight").unwrap().role,
        Role::Output
    );
    assert!(checkpoint.is_tied());
    assert!(!open(&Tiny::new(6).build()).is_tied());
    assert_eq!(
        checkpoint.oddities(),
        ["`output.weight` is absent: `token_embd.weight` is used in its place"]
    );
}

#[test]
fn a_stripped_mtp_block_is_said() {
    let plain = Tiny::new(7).build();
    let checkpoint = open(&plain.clone().strip_mtp());
    assert_eq!(checkpoint.mtp_tensors(), []);
    assert_eq!(checkpoint.tensors().len(), open(&plain).tensors().len());
    assert_eq!(checkpoint.config().n_mtp_layers, 1);
    assert_eq!(
        checkpoint.oddities(),
        ["the metadata declares an MTP block, but its tensors were stripped"]
    );
}

#[test]
fn an_mtp_block_may_bring_a_table_and_a_head_and_may_lack_its_norm() {
    let file = Tiny::new(7)
        .build()
        .add_tensor("blk.4.nextn.embed_tokens.weight", &[259, 96])
        .add_tensor("blk.4.nextn.shared_head_head.weight", &[259, 96])
        .drop_tensor("blk.4.nextn.shared_head_norm.weight");
    let checkpoint = open(&file);
    let roles: Vec<Role> = checkpoint
        .mtp_tensors()
        .iter()
        .map(|desc| desc.role)
        .rev()
        .take(3)
        .collect();
    assert_eq!(
        roles,
        [
            Role::NextnSharedHeadHead,
            Role::NextnEmbedTokens,
            Role::NextnSharedHeadNorm
        ]
    );
    let norm = values(&checkpoint, "blk.4.nextn.shared_head_norm.weight");
    assert_eq!(norm, values(&checkpoint, "output_norm.weight"));
}

#[test]
fn an_indexer_copied_to_all_layers_is_shared() {
    let plain = Tiny::new(8).build();
    let checkpoint = open(&plain.clone().copy_indexers());
    assert_same_tensors(&checkpoint, &open(&plain));
    assert_eq!(
        checkpoint.config().indexer.kinds,
        [Full, Full, Shared, Full]
    );
    assert_eq!(
        checkpoint.oddities(),
        [
            "the indexer tensors of layer 2 are copies of the nearest earlier full layer's: taken as shared"
        ]
    );

    // One element apart in one of five tensors, and it is an indexer of its own.
    let changed = plain
        .copy_indexers()
        .change("blk.2.indexer.attn_q_b.weight", |tensor| {
            let last = tensor.bytes.last_mut().unwrap();
            *last ^= 1;
        });
    let checkpoint = open(&changed);
    assert_eq!(checkpoint.config().indexer.kinds, [Full; 4]);
    assert_eq!(checkpoint.oddities(), [] as [&str; 0]);
}

#[test]
fn the_key_decides_which_layers_have_an_indexer() {
    let file = Tiny::new(8).build().copy_indexers().with_indexer_types();
    let checkpoint = open(&file);
    assert_eq!(
        checkpoint.config().indexer.kinds,
        [Full, Full, Shared, Full]
    );
    assert_eq!(
        checkpoint.oddities(),
        [
            "indexer tensors of layer 2 are ignored: by the metadata an earlier layer's indexer is shared"
        ]
    );

    // Copies, but the key says that each is its own.
    let checkpoint = open(&file.set("attention.indexer.types", vec![true; 4]));
    assert_eq!(checkpoint.config().indexer.kinds, [Full; 4]);
}

#[test]
fn files_folders_and_every_part_open_to_the_same_model() {
    let file = Tiny::new(9).build();
    let expected = open(&file);
    let folder = tempfile::tempdir().unwrap();
    let parts = file.write_split(folder.path(), "tiny", 3);
    for path in parts
        .iter()
        .map(|part| part.as_path())
        .chain([folder.path()])
    {
        assert_same_tensors(&Checkpoint::open(path).unwrap(), &expected);
    }

    std::fs::remove_file(&parts[1]).unwrap();
    let error = Checkpoint::open(&parts[0]).unwrap_err();
    assert!(error.is_missing());
    assert!(
        error.to_string().contains("tiny-00002-of-00003.gguf"),
        "{error}"
    );
}

#[test]
fn the_latent_epsilon_can_be_overridden() {
    let mut checkpoint = open(&Tiny::new(9).build());
    checkpoint.set_latent_norm_eps(1e-6);
    assert_eq!(
        (
            checkpoint.config().latent_norm_eps,
            checkpoint.config().rms_norm_eps
        ),
        (1e-6, 1e-5)
    );
}

#[test]
fn types_without_a_decoder_are_refused_on_load_and_not_before() {
    let Some(&ty) = GgmlType::ALL
        .iter()
        .find(|ty| !ty.can_decode() && 96 % ty.block_elems() == 0)
    else {
        // Once every type has a decoder there is nothing to refuse.
        return;
    };
    let checkpoint = open(&Tiny::new(9).build().zeroed("blk.1.ffn_up_exps.weight", ty));
    let desc = checkpoint.tensor("blk.1.ffn_up_exps.weight").unwrap();
    assert_eq!(desc.ty, ty);
    let expected = format!(
        "tiny.gguf: tensor `blk.1.ffn_up_exps.weight` has type {}, which cannot be decoded yet; requantise it to a supported type",
        ty.name()
    );
    assert_eq!(checkpoint.data(desc).unwrap_err().to_string(), expected);
    assert_eq!(
        checkpoint.check_loadable().unwrap_err().to_string(),
        expected
    );
    assert!(checkpoint.data(&checkpoint.tensors()[0]).is_ok());
}

#[test]
fn config_alone_equals_the_checkpoints() {
    let gguf = Gguf::open(&assets::tiny_glm5()).unwrap();
    assert_eq!(
        &Config::from_gguf(&gguf).unwrap(),
        Checkpoint::from_gguf(gguf).unwrap().config()
    );
}
