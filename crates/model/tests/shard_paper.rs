//! Shards of the real models, in real mixes of types, over 1 to 16 ranks: what can be cut is proven, what cannot is named.
#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(
    clippy::single_range_in_vec_init,
    reason = "a list of one range is meant"
)]

use glim_model::catalogue::{Role, TensorSpec};
use glim_model::shard::{
    Family, Latents, Options, PaperModel, ShardError, ShardFault, Shards, Slice, TokenEmbd, share,
};
use glim_quant::GgmlType;

/// llama.cpp's fall-back for rows that are not whole super-blocks; F16 where not even blocks of 32 fit.
fn fit(ty: GgmlType, spec: &TensorSpec) -> GgmlType {
    let row = *spec.shape.last().unwrap();
    let small = match ty {
        GgmlType::Q4_K => GgmlType::Q5_0,
        GgmlType::Q5_K => GgmlType::Q5_1,
        GgmlType::Q6_K => GgmlType::Q8_0,
        GgmlType::IQ4_XS | GgmlType::IQ2_XXS => GgmlType::IQ4_NL,
        other => other,
    };
    [ty, small]
        .into_iter()
        .find(|ty| ty.row_bytes(row).is_some())
        .unwrap_or(GgmlType::F16)
}

fn mix(name: &str) -> impl Fn(&TensorSpec) -> GgmlType {
    move |spec| {
        if spec.role.is_float_only() {
            return GgmlType::F32;
        }
        let experts = matches!(spec.role, Role::FfnGateExps | Role::FfnUpExps);
        let down = spec.role == Role::FfnDownExps;
        let ty = match name {
            "BF16" => GgmlType::BF16,
            "Q8_0" => GgmlType::Q8_0,
            // Experts gate and up Q4_K, down Q5_K, the rest Q8_0: a published recipe.
            "Q8_0 + Q4_K/Q5_K" if experts => GgmlType::Q4_K,
            "Q8_0 + Q4_K/Q5_K" if down => GgmlType::Q5_K,
            "Q8_0 + Q4_K/Q5_K" => GgmlType::Q8_0,
            "Q4_K_M"
                if matches!(
                    spec.role,
                    Role::Output | Role::FfnDown | Role::FfnDownExps | Role::AttnVB
                ) =>
            {
                GgmlType::Q6_K
            }
            "Q4_K_M" => GgmlType::Q4_K,
            "IQ2_XXS + IQ4_XS" if experts || down => GgmlType::IQ2_XXS,
            "IQ2_XXS + IQ4_XS" => GgmlType::IQ4_XS,
            "BF16 + MXFP4" if experts || down => GgmlType::MXFP4,
            "BF16 + MXFP4" => GgmlType::BF16,
            _ => panic!("no mix {name}"),
        };
        fit(ty, spec)
    }
}

const MIXES: [&str; 6] = [
    "BF16",
    "Q8_0",
    "Q8_0 + Q4_K/Q5_K",
    "Q4_K_M",
    "IQ2_XXS + IQ4_XS",
    "BF16 + MXFP4",
];
const IDLE: Options = Options {
    token_embd: TokenEmbd::VocabRows,
    latents: Latents::Rows,
    allow_idle_ranks: true,
};

/// The world sizes up to 16 over which a model can be cut; each list made is proven on the way.
fn possible(model: &PaperModel, mix_name: &str, options: &Options) -> Vec<usize> {
    let weights = model.weights(mix(mix_name));
    let found: Vec<usize> = (1..=16)
        .filter(|&world_size| {
            match Shards::new(model.heads, weights.clone(), world_size, options) {
                Ok(shards) => {
                    shards.check().unwrap_or_else(|fault| {
                        panic!("{}, {mix_name}, {world_size}: {fault}", model.name)
                    });
                    true
                }
                Err(
                    ShardError::Heads { would_do, .. } | ShardError::HeadBlocks { would_do, .. },
                ) => {
                    assert!(!would_do.contains(&world_size));
                    false
                }
                Err(ShardError::IdleRanks { units, .. }) => {
                    assert!(!options.allow_idle_ranks && units < world_size);
                    false
                }
                Err(error) => panic!("{}, {mix_name}, {world_size}: {error}", model.name),
            }
        })
        .collect();
    let asked = Shards::possible_world_sizes(model.heads, &weights, options);
    assert_eq!(
        asked.into_iter().filter(|&n| n <= 16).collect::<Vec<_>>(),
        found
    );
    found
}

#[test]
fn every_real_model_is_cut_wherever_heads_and_blocks_allow() {
    // Inner blocks: 2048 / 256 = 8 for GLM-5 and V3; 1536 / 256 = 6 for Flash; V2-Lite's 1408 = 44 blocks of 32, but its
    // shared experts' 2816 = 11 of 256, and 128-wide heads make whole super-blocks in pairs only.
    let to_8 = vec![1, 2, 4, 8];
    let to_16 = vec![1, 2, 4, 8, 16];
    let (glm5, glm52, flash) = (
        PaperModel::glm5(),
        PaperModel::glm52(),
        PaperModel::glm47_flash(),
    );
    let (v2_lite, v3) = (PaperModel::deepseek_v2_lite(), PaperModel::deepseek_v3());
    for model in [&glm5, &glm52, &v3] {
        for (mix, expected) in MIXES
            .into_iter()
            .zip([&to_16, &to_16, &to_8, &to_8, &to_8, &to_16])
        {
            assert_eq!(
                possible(model, mix, &Options::default()),
                *expected,
                "{} {mix}",
                model.name
            );
            assert_eq!(possible(model, mix, &IDLE), to_16, "{} {mix}", model.name);
        }
    }
    let (to_5, to_10) = (vec![1, 2, 4, 5], vec![1, 2, 4, 5, 10]);
    for (mix, expected) in MIXES
        .into_iter()
        .zip([&to_10, &to_10, &to_5, &to_5, &to_5, &to_10])
    {
        assert_eq!(
            possible(&flash, mix, &Options::default()),
            *expected,
            "{mix}"
        );
        assert_eq!(possible(&flash, mix, &IDLE), to_10, "{mix}");
    }
    for (mix, expected) in MIXES
        .into_iter()
        .zip([&to_16, &to_16, &to_16, &to_8, &to_8, &to_16])
    {
        assert_eq!(
            possible(&v2_lite, mix, &Options::default()),
            *expected,
            "{mix}"
        );
        assert_eq!(possible(&v2_lite, mix, &IDLE), *expected, "{mix}");
    }
}

fn refusal(model: &PaperModel, mix_name: &str, world_size: usize) -> String {
    match Shards::new(
        model.heads,
        model.weights(mix(mix_name)),
        world_size,
        &Options::default(),
    ) {
        Ok(_) => panic!("cut"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn what_cannot_be_cut_is_refused_by_name_and_told_what_can() {
    assert_eq!(
        refusal(&PaperModel::glm47_flash(), "Q8_0", 8),
        "tensor `blk.0.attn_q_b.weight`: 20 heads cannot be divided among 8 ranks; world sizes that would do: \
         1, 2, 4, 5, 10, 20"
    );
    assert_eq!(
        refusal(&PaperModel::deepseek_v2_lite(), "Q4_K_M", 16),
        "tensor `blk.0.attn_output.weight`: with 16 ranks each has 128 columns, which are not whole blocks of 256 of Q4_K; \
         world sizes that would do: 1, 2, 4, 8; or requantise the tensor to a type with a smaller block"
    );
    assert_eq!(
        refusal(&PaperModel::glm5(), "Q4_K_M", 16),
        "tensor `blk.3.ffn_down_exps.weight` can be cut into 8 parts of 256 at most, too few for 16 ranks; use fewer ranks, \
         a type with a smaller block, or allow idle ranks"
    );
    assert_eq!(
        refusal(&PaperModel::glm5(), "Q8_0", 0),
        "0 ranks; expected 1 to 256"
    );
    assert_eq!(
        refusal(&PaperModel::glm5(), "Q8_0", 257),
        "257 ranks; expected 1 to 256"
    );
}

/// The sizes of the reference table for GLM-5 on 8 ranks.
#[test]
fn a_rank_of_glm5_has_the_shapes_that_were_worked_out_by_hand() {
    let model = PaperModel::glm5();
    let shards = Shards::new(
        model.heads,
        model.weights(mix("Q4_K_M")),
        8,
        &Options::default(),
    )
    .unwrap();
    for (name, shape) in [
        ("token_embd.weight", &[154_880, 6144][..]),
        ("output.weight", &[19_360, 6144]),
        ("blk.0.attn_q_a.weight", &[2048, 6144]),
        ("blk.0.attn_kv_a_mqa.weight", &[576, 6144]),
        ("blk.0.attn_q_b.weight", &[2048, 2048]),
        ("blk.0.attn_k_b.weight", &[8, 512, 192]),
        ("blk.0.attn_v_b.weight", &[8, 256, 512]),
        ("blk.0.attn_output.weight", &[6144, 2048]),
        ("blk.0.indexer.attn_q_b.weight", &[4096, 2048]),
        ("blk.0.indexer.proj.weight", &[32, 6144]),
        ("blk.0.ffn_gate.weight", &[1536, 6144]),
        ("blk.0.ffn_down.weight", &[6144, 1536]),
        ("blk.3.ffn_gate_inp.weight", &[256, 6144]),
        ("blk.3.exp_probs_b.bias", &[256]),
        ("blk.3.ffn_up_exps.weight", &[256, 256, 6144]),
        ("blk.3.ffn_down_exps.weight", &[256, 6144, 256]),
        ("blk.3.ffn_gate_shexp.weight", &[256, 6144]),
        ("blk.3.ffn_down_shexp.weight", &[6144, 256]),
        ("blk.78.nextn.eh_proj.weight", &[6144, 12_288]),
        ("blk.78.attn_q_b.weight", &[2048, 2048]),
    ] {
        for rank in 0..8 {
            assert_eq!(
                shards.weight(name).unwrap().shape(rank).unwrap(),
                shape,
                "{name}, rank {rank}"
            );
        }
    }
    let down = shards.weight("blk.3.ffn_down_exps.weight").unwrap();
    assert_eq!(
        down.slices()[3],
        [Slice::new(vec![0..256, 0..6144, 768..1024])]
    );
    // A super-block of each row: 210 bytes of every 1680.
    assert_eq!(
        down.runs(3).unwrap().take(2).collect::<Vec<_>>(),
        [630..840, 2310..2520]
    );
    assert_eq!(down.runs(3).unwrap().count(), 256 * 6144);
}

#[test]
fn uneven_shares_are_whole_blocks_and_the_same_in_gate_up_and_down() {
    let model = PaperModel::deepseek_v2_lite();
    let shards = Shards::new(
        model.heads,
        model.weights(mix("Q4_K_M")),
        4,
        &Options::default(),
    )
    .unwrap();
    let inner = |name: &str, axis: usize| -> Vec<usize> {
        let weight = shards.weight(name).unwrap();
        (0..4)
            .map(|rank| weight.shape(rank).unwrap()[axis])
            .collect()
    };
    // 2816 is 11 blocks of 256, cut at 0, 2, 5, 8, 11.
    for (name, axis) in [("gate_shexp", 0), ("up_shexp", 0), ("down_shexp", 1)] {
        assert_eq!(
            inner(&format!("blk.1.ffn_{name}.weight"), axis),
            [512, 768, 768, 768],
            "{name}"
        );
    }
    // 10944 is 342 blocks of 32.
    for (name, axis) in [("gate", 0), ("up", 0), ("down", 1)] {
        assert_eq!(
            inner(&format!("blk.0.ffn_{name}.weight"), axis),
            [2720, 2752, 2720, 2752],
            "{name}"
        );
    }
    assert_eq!(
        inner("blk.0.attn_q.weight", 0),
        [4 * 192; 4],
        "the direct projection goes by head"
    );
}

#[test]
fn ranks_hold_the_model_once_but_for_what_is_replicated() {
    let model = PaperModel::glm5();
    for world_size in [1, 2, 8] {
        let shards =
            Shards::new(model.heads, model.weights(mix("Q4_K_M")), world_size, &IDLE).unwrap();
        let of_one = |ty: GgmlType, elements: u64| {
            elements / ty.block_elems() as u64 * ty.block_bytes() as u64
        };
        let whole: u64 = shards
            .weights()
            .iter()
            .map(|w| {
                of_one(
                    w.weight().ty,
                    w.weight().shape.iter().map(|&n| n as u64).product(),
                )
            })
            .sum();
        let replicated: u64 = (shards.weights().iter())
            .filter(|w| w.placement() == glim_plan::Placement::Replicated)
            .map(|w| w.byte_len(0).unwrap() as u64)
            .sum();
        let held: u64 = (0..world_size)
            .map(|rank| shards.byte_len(rank).unwrap())
            .sum();
        assert_eq!(held, whole + replicated * (world_size as u64 - 1));
    }
}

#[test]
fn the_options_cut_embedding_and_latents_by_rows() {
    let model = PaperModel::glm52();
    let shards = Shards::new(model.heads, model.weights(mix("Q8_0")), 8, &IDLE).unwrap();
    let shape = |name: &str| shards.weight(name).unwrap().shape(5).unwrap();
    assert_eq!(shape("token_embd.weight"), [19_360, 6144]);
    assert_eq!(shape("blk.0.attn_q_a.weight"), [256, 6144]);
    assert_eq!(shape("blk.0.attn_kv_a_mqa.weight"), [72, 6144]);
    assert_eq!(shape("blk.0.indexer.attn_k.weight"), [16, 6144]);
    assert_eq!(shape("blk.0.indexer.attn_q_b.weight"), [4 * 128, 2048]);
    assert_eq!(shape("blk.0.indexer.proj.weight"), [4, 6144]);
    assert_eq!(shape("blk.0.attn_q_a_norm.weight"), [2048]);
    assert!(
        shards.weight("blk.3.indexer.proj.weight").is_none(),
        "a shared layer has no indexer"
    );
}

#[test]
fn idle_ranks_hold_nothing_and_the_rest_is_still_the_whole() {
    let model = PaperModel::glm5();
    let shards = Shards::new(model.heads, model.weights(mix("Q4_K_M")), 16, &IDLE).unwrap();
    let down = shards.weight("blk.3.ffn_down_exps.weight").unwrap();
    assert_eq!(down.shape(0).unwrap(), [256, 6144, 0]);
    assert_eq!(down.runs(0).unwrap().count(), 0);
    assert_eq!(down.shape(1).unwrap(), [256, 6144, 256]);
    assert_eq!(
        shards
            .weight("blk.3.ffn_gate_exps.weight")
            .unwrap()
            .shape(0)
            .unwrap(),
        [256, 0, 6144]
    );
    assert_eq!(
        (0..16).map(|rank| share(8, rank, 16).len()).sum::<usize>(),
        8
    );
    shards.check().unwrap();
}

/// Published figures: 15.7, 671 and 29.9 billion, the trunk alone; and what the MTP block of V3 adds to it.
#[test]
fn the_shape_lists_have_as_many_parameters_as_published() {
    let count = |model: &PaperModel, mtp_from: usize| -> [u64; 2] {
        let (mtp, trunk): (Vec<_>, Vec<_>) = model
            .tensors
            .iter()
            .partition(|spec| spec.layer >= Some(mtp_from));
        [trunk, mtp].map(|specs| specs.into_iter().map(TensorSpec::elements).sum())
    };
    assert_eq!(
        count(&PaperModel::deepseek_v2_lite(), 27),
        [15_706_484_224, 0]
    );
    assert_eq!(count(&PaperModel::deepseek_v3(), 61)[0], 671_026_419_200);
    assert_eq!(count(&PaperModel::glm47_flash(), 47)[0] / 10_000_000, 2994);
}

#[test]
fn lists_that_are_no_model_are_refused() {
    let model = PaperModel::glm47_flash();
    let weights = model.weights(mix("Q8_0"));
    let refusal = |change: &dyn Fn(&mut Vec<glim_model::shard::Weight>)| {
        let mut weights = weights.clone();
        change(&mut weights);
        Shards::new(model.heads, weights, 2, &Options::default())
            .unwrap_err()
            .to_string()
    };
    let at = |weights: &[glim_model::shard::Weight], name: &str| {
        weights.iter().position(|w| w.name == name).unwrap()
    };
    assert_eq!(
        refusal(&|w| w.retain(|w| w.name != "blk.0.ffn_down.weight")),
        "tensor `blk.0.ffn_gate.weight` cannot be cut: there is no down matrix beside it"
    );
    assert_eq!(
        refusal(&|w| w.push(w[0].clone())),
        "tensor `token_embd.weight` is listed twice; expected each name once"
    );
    assert_eq!(
        refusal(&|w| {
            let i = at(w, "blk.0.ffn_up.weight");
            w[i].shape[0] = 10_208
        }),
        "tensor `blk.0.ffn_up.weight` has shape [10208, 2048]; expected 10240 along axis 0, as the columns of \
         `blk.0.ffn_down.weight`"
    );
    assert_eq!(
        refusal(&|w| {
            let i = at(w, "blk.0.attn_q_b.weight");
            w[i].shape[0] += 1
        }),
        "tensor `blk.0.attn_q_b.weight` has shape [5121, 768]; expected a multiple of its 20 heads along axis 0"
    );
    assert_eq!(
        refusal(&|w| {
            let i = at(w, "blk.0.attn_v_b.weight");
            w[i].shape = vec![20 * 256, 512]
        }),
        "tensor `blk.0.attn_v_b.weight` has shape [5120, 512]; expected 3 axes"
    );
    assert_eq!(
        refusal(&|w| {
            let i = at(w, "blk.0.attn_q_b.weight");
            w[i].ty = GgmlType::IQ2_S;
            w[i].shape[1] = 100
        }),
        "tensor `blk.0.attn_q_b.weight` of shape [5120, 100] and type IQ2_S does not lie in whole blocks and countable bytes"
    );
    assert!(refusal(&|w| w[0].shape = vec![usize::MAX / 2, 2048]).contains("countable bytes"));
    assert!(refusal(&|w| w[0].shape[0] = 0).ends_with("expected no axis of length 0"));
    let mut none = model.heads;
    none.attention = 0;
    assert!(matches!(
        Shards::new(none, weights.clone(), 2, &Options::default()),
        Err(ShardError::Shape { .. })
    ));
}

#[test]
fn a_fault_says_what_is_dealt_out() {
    let fault = ShardFault::Disagree {
        tensor: "up".into(),
        other: "gate".into(),
        rank: 1,
        family: Family::Routed,
        found: vec![0..2, 4..6],
        expected: vec![],
    };
    assert_eq!(
        fault.to_string(),
        "rank 1 holds inner blocks 0..2 and 4..6 of tensor `up`, but none of `gate`; expected the same of both"
    );
}
