//! Shards of files that exist: what the ranks load, gathered, hashes to what the file holds.
#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(
    clippy::single_range_in_vec_init,
    reason = "a list of one range is meant"
)]

mod common;

use std::borrow::Cow;

use common::{all, open};
use glim_model::Checkpoint;
use glim_model::shard::{Form, Latents, Options, RankWeights, ShardError, Shards, TokenEmbd};
use glim_plan::{Placement, WeightSource};
use glim_quant::GgmlType;
use glim_testkit::assets;
use glim_testkit::tiny::{Dims, Tiny, TinyFile};
use sha2::{Digest, Sha256};

const ALL_CUT: Options = Options {
    token_embd: TokenEmbd::VocabRows,
    latents: Latents::Rows,
    allow_idle_ranks: false,
};

/// Every rank loads every tensor; gathered by [`glim_model::shard::ShardedWeight::gather_runs`] they hash to the whole.
/// Returns the bytes that all ranks hold.
#[track_caller]
fn check_gather(checkpoint: &Checkpoint, world_size: usize, options: &Options) -> u64 {
    let shards = Shards::of(checkpoint, world_size, options).unwrap();
    shards.check().unwrap();
    shards.check_stored(checkpoint).unwrap();
    let ranks: Vec<RankWeights> = (0..world_size)
        .map(|rank| shards.rank(checkpoint, rank).unwrap())
        .collect();
    let names: Vec<&str> = shards
        .weights()
        .iter()
        .map(|w| w.weight().name.as_str())
        .collect();
    assert_eq!(
        names,
        all(checkpoint)
            .iter()
            .map(|d| d.name.as_str())
            .collect::<Vec<_>>(),
        "catalogue order"
    );
    for desc in all(checkpoint) {
        let sharded = shards.weight(&desc.name).unwrap();
        let pieces: Vec<_> = ranks
            .iter()
            .map(|rank| rank.load(&desc.name).unwrap())
            .collect();
        for (rank, piece) in pieces.iter().enumerate() {
            assert_eq!(
                (piece.ty, &piece.shape),
                (desc.ty, &sharded.shape(rank).unwrap()),
                "{}",
                desc.name
            );
            assert_eq!(
                piece.bytes.len(),
                desc.ty.row_bytes(piece.shape.iter().product()).unwrap(),
                "{}",
                desc.name
            );
        }
        let whole = checkpoint.data(desc).unwrap();
        let mut hash = Sha256::new();
        for (rank, bytes) in sharded.gather_runs().unwrap() {
            hash.update(&pieces[rank].bytes[bytes]);
        }
        assert_eq!(
            hash.finalize(),
            Sha256::digest(&whole),
            "{} of {world_size}",
            desc.name
        );
        if sharded.placement() == Placement::Replicated {
            let hashes: Vec<_> = pieces
                .iter()
                .map(|piece| Sha256::digest(&piece.bytes))
                .collect();
            assert!(
                hashes.iter().all(|hash| *hash == hashes[0]),
                "{}: ranks agree",
                desc.name
            );
        }
    }
    (0..world_size)
        .map(|rank| shards.byte_len(rank).unwrap())
        .sum()
}

#[test]
fn the_built_in_model_gathers_to_itself() {
    let checkpoint = Checkpoint::open(&assets::tiny_glm5()).unwrap();
    let file: u64 = all(&checkpoint)
        .iter()
        .map(|desc| desc.byte_len() as u64)
        .sum();
    assert_eq!(check_gather(&checkpoint, 1, &Options::default()), file);
    for world_size in [2, 4, 8] {
        let held = check_gather(&checkpoint, world_size, &Options::default());
        assert!(held > file);
        let held_when_all_is_cut = check_gather(&checkpoint, world_size, &ALL_CUT);
        assert!(held_when_all_is_cut < held);
    }
}

#[test]
fn the_odd_model_gathers_to_itself_over_uneven_ranks() {
    let checkpoint = Checkpoint::open(&assets::odd_glm52()).unwrap();
    for world_size in [1, 2, 3, 6] {
        check_gather(&checkpoint, world_size, &Options::default());
        check_gather(&checkpoint, world_size, &ALL_CUT);
    }
    let error = Shards::of(&checkpoint, 4, &Options::default()).unwrap_err();
    assert!(
        matches!(
            error,
            ShardError::Heads {
                heads: 6,
                world_size: 4,
                ..
            }
        ),
        "{error}"
    );
}

/// The hash sees the fault that the checker refuses without data.
#[test]
fn gathered_in_another_order_the_hash_is_another() {
    let checkpoint = Checkpoint::open(&assets::odd_glm52()).unwrap();
    let shards = Shards::of(&checkpoint, 2, &Options::default()).unwrap();
    for name in [
        "output.weight",
        "blk.0.attn_output.weight",
        "blk.2.ffn_down_exps.weight",
    ] {
        let piece = |rank| {
            shards
                .rank(&checkpoint, rank)
                .unwrap()
                .load(name)
                .unwrap()
                .bytes
        };
        let whole = checkpoint.data(checkpoint.tensor(name).unwrap()).unwrap();
        let gather = |pieces: [Cow<[u8]>; 2]| -> Vec<u8> {
            let order = shards.weight(name).unwrap().gather_runs().unwrap();
            order
                .flat_map(|(rank, bytes)| pieces[rank][bytes].to_vec())
                .collect()
        };
        assert!(whole == gather([piece(0), piece(1)]), "{name}");
        assert!(whole != gather([piece(1), piece(0)]), "{name}");
        let is_column_cut = name != "output.weight";
        assert_eq!(
            whole != [piece(0), piece(1)].concat(),
            is_column_cut,
            "{name}: columns are no concatenation"
        );
    }
}

/// Three heads, inner widths 160 and 288, two shared experts.
fn tiny(ty: GgmlType) -> TinyFile {
    Tiny::new(7)
        .matrices(ty)
        .ty("attn_k_b.weight", GgmlType::BF16)
        .ty("attn_v_b.weight", GgmlType::BF16)
        .ty("indexer.attn_q_b.weight", GgmlType::BF16)
        .build()
}

/// In each stored form, ranks read only their rows of it, and get what they get of the plain form.
#[test]
fn every_stored_form_gives_ranks_the_same_bytes() {
    let quantised = tiny(GgmlType::Q8_0);
    let plain = open(&quantised);
    let forms = [
        (quantised.clone().fuse_gate_up(), 4),
        (quantised.clone().legacy_kv_b(), 5),
        (
            quantised
                .clone()
                .legacy_kv_b()
                .fuse_gate_up()
                .reverse_order(),
            9,
        ),
        (quantised.clone().flat_kv_b().tie_output(), 0),
    ];
    for (file, fused) in forms {
        let checkpoint = open(&file);
        for options in [Options::default(), ALL_CUT] {
            let shards = Shards::of(&checkpoint, 3, &options).unwrap();
            assert_eq!(shards.check_stored(&checkpoint).unwrap(), fused);
            check_gather(&checkpoint, 3, &options);
            for rank in 0..3 {
                let (found, expected) = (
                    shards.rank(&checkpoint, rank).unwrap(),
                    shards.rank(&plain, rank).unwrap(),
                );
                for desc in all(&checkpoint)
                    .into_iter()
                    .filter(|desc| !checkpoint.is_tied() || desc.name != "output.weight")
                {
                    let (found, expected) = (
                        found.load(&desc.name).unwrap(),
                        expected.load(&desc.name).unwrap(),
                    );
                    assert_eq!(
                        (found.ty, found.shape),
                        (expected.ty, expected.shape),
                        "{}",
                        desc.name
                    );
                    assert!(found.bytes == expected.bytes, "{}, rank {rank}", desc.name);
                }
            }
        }
    }
}

#[test]
fn a_quantised_kv_b_is_cut_by_head_too() {
    let file = tiny(GgmlType::BF16)
        .legacy_kv_b()
        .retype("attn_kv_b.weight", GgmlType::Q8_0);
    let checkpoint = open(&file);
    assert_eq!(
        checkpoint.tensor("blk.0.attn_k_b.weight").unwrap().ty,
        GgmlType::F32
    );
    check_gather(&checkpoint, 3, &Options::default());
}

#[test]
fn k_quants_are_cut_in_super_blocks() {
    let dims = Dims {
        n_heads: 4,
        hidden_size: 256,
        q_lora_rank: 256,
        kv_lora_rank: 256,
        v_head_dim: 256,
        intermediate_size: 1280,
        moe_intermediate_size: 1024,
        n_routed_experts: 3,
        ..Dims::default()
    };
    let zeroed = |file: TinyFile, name: &str, ty: GgmlType| file.zeroed(name, ty);
    let mut file = Tiny::new(3).dims(dims).build();
    for (layer, names) in [
        (0, ["ffn_gate", "ffn_up", "ffn_down"]),
        (2, ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"]),
    ] {
        for (name, ty) in names
            .into_iter()
            .zip([GgmlType::Q4_K, GgmlType::Q4_K, GgmlType::Q6_K])
        {
            file = zeroed(file, &format!("blk.{layer}.{name}.weight"), ty);
        }
    }
    // Bytes that name their place: zeros would gather to anything.
    for layer in [0, 2] {
        for suffix in [
            "ffn_down.weight",
            "ffn_down_exps.weight",
            "ffn_gate_exps.weight",
        ] {
            let name = format!("blk.{layer}.{suffix}");
            if file.tensors().iter().any(|tensor| tensor.name == name) {
                file = file.change(&name, |tensor| {
                    for (i, byte) in tensor.bytes.iter_mut().enumerate() {
                        *byte = (i % 251) as u8 ^ (i / 251) as u8;
                    }
                });
            }
        }
    }
    let checkpoint = open(&file);
    for world_size in [1, 2, 4] {
        check_gather(&checkpoint, world_size, &Options::default());
    }
    let shards = Shards::of(&checkpoint, 4, &Options::default()).unwrap();
    // 1280 is five super-blocks: 1, 1, 1 and 2.
    let columns: Vec<usize> = (0..4)
        .map(|rank| {
            shards
                .weight("blk.0.ffn_down.weight")
                .unwrap()
                .shape(rank)
                .unwrap()[1]
        })
        .collect();
    assert_eq!(columns, [256, 256, 256, 512]);
    assert_eq!(
        shards
            .weight("blk.2.ffn_down_exps.weight")
            .unwrap()
            .shape(0)
            .unwrap(),
        [3, 256, 256]
    );
}

#[test]
fn what_lies_in_one_piece_is_borrowed_from_the_mapping() {
    let checkpoint = Checkpoint::open(&assets::tiny_glm5()).unwrap();
    let shards = Shards::of(&checkpoint, 4, &Options::default()).unwrap();
    let rank = shards.rank(&checkpoint, 2).unwrap();
    for (name, is_borrowed) in [
        ("token_embd.weight", true),
        ("output.weight", true),
        ("blk.1.attn_q_b.weight", true),
        ("blk.1.attn_k_b.weight", true),
        ("blk.1.attn_output.weight", false),
        ("blk.2.ffn_gate_exps.weight", false),
        ("blk.2.ffn_gate_shexp.weight", true),
    ] {
        let bytes = rank.load(name).unwrap().bytes;
        assert_eq!(matches!(bytes, Cow::Borrowed(_)), is_borrowed, "{name}");
    }
}

#[test]
fn a_rank_is_a_source_of_weights_for_a_backend() {
    let checkpoint = Checkpoint::open(&assets::tiny_glm5()).unwrap();
    let shards = Shards::of(&checkpoint, 2, &Options::default()).unwrap();
    let rank = shards.rank(&checkpoint, 1).unwrap();
    assert_eq!(
        rank.weight("blk.0.attn_v_b.weight").unwrap().shape,
        [4, 128, 128]
    );
    let error = rank
        .weight("blk.0.attn_kv_b.weight")
        .unwrap_err()
        .to_string();
    assert!(error.contains("is not in the list of shards"), "{error}");
    assert!(matches!(
        shards.rank(&checkpoint, 2),
        Err(ShardError::Rank {
            rank: 2,
            world_size: 2
        })
    ));
}

#[test]
fn shards_of_another_checkpoint_are_refused() {
    let (bf16, q8_0) = (open(&tiny(GgmlType::BF16)), open(&tiny(GgmlType::Q8_0)));
    let shards = Shards::of(&bf16, 3, &Options::default()).unwrap();
    let error = shards
        .rank(&q8_0, 0)
        .unwrap()
        .load("blk.0.attn_q_b.weight")
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "tensor `blk.0.attn_q_b.weight` of the checkpoint is Q8_0 [126, 64]; the shards were made for BF16 [126, 64]"
    );
}

#[test]
fn a_wrong_list_is_not_loaded() {
    let checkpoint = open(&tiny(GgmlType::BF16));
    let mut shards = Shards::of(&checkpoint, 3, &Options::default()).unwrap();
    let name = "blk.0.attn_output.weight";
    let mut slices = shards.weight(name).unwrap().slices().to_vec();
    slices.reverse();
    shards.set_slices(name, slices).unwrap();
    let error = shards.rank(&checkpoint, 0).unwrap().load(name).unwrap_err();
    assert!(matches!(error, ShardError::Fault(_)), "{error}");
    assert!(matches!(
        shards.weight(name).unwrap().gather_runs(),
        Err(ShardError::Fault(_))
    ));
}

#[test]
fn the_stored_form_of_each_tensor_is_known() {
    let odd = Checkpoint::open(&assets::odd_glm52()).unwrap();
    let form = |name: &str| Form::of(&odd, odd.tensor(name).unwrap()).unwrap();
    assert!(matches!(
        form("blk.0.attn_output.weight"),
        Form::Whole { .. }
    ));
    assert!(matches!(form("blk.0.attn_v_b.weight"), Form::Part { .. }));
    assert!(
        matches!(form("blk.2.ffn_down_exps.weight"), Form::Stack { stored } if stored.len() == 10)
    );
}
