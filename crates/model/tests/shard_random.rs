//! Shards of random configurations: cut exactly where they can be, proven, and block by block where a second description of
//! the rule says.
#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(
    clippy::single_range_in_vec_init,
    reason = "a list of one range is meant"
)]

use glim_model::Config;
use glim_model::catalogue::{Role, TensorSpec, catalogue, mtp_catalogue};
use glim_model::config::IndexerKind;
use glim_model::shard::{
    HeadCounts, Latents, Options, ShardError, ShardedWeight, Shards, TokenEmbd, Weight,
};
use glim_quant::GgmlType;
use proptest::prelude::*;
use proptest::sample::select;

const TYPES: [GgmlType; 8] = [
    GgmlType::F32,
    GgmlType::BF16,
    GgmlType::Q8_0,
    GgmlType::Q4_0,
    GgmlType::Q4_K,
    GgmlType::Q6_K,
    GgmlType::IQ4_XS,
    GgmlType::NVFP4,
];

/// Widths that are sometimes whole super-blocks, sometimes blocks, sometimes neither.
fn width() -> impl Strategy<Value = usize> {
    prop_oneof![
        (1usize..5).prop_map(|n| n * 256),
        (1usize..13).prop_map(|n| n * 32),
        1usize..70
    ]
}

fn config() -> impl Strategy<Value = Config> {
    let heads = (
        prop_oneof![1usize..=16, select(vec![20, 24, 48])],
        1usize..=16,
    );
    let head_dims = (
        prop_oneof![1usize..40, select(vec![64, 128, 256])],
        1usize..9,
        prop_oneof![1usize..40, select(vec![64, 128, 256])],
    );
    let widths = [width(), width(), width()];
    let moe = (1usize..4, 1usize..3);
    (
        heads,
        head_dims,
        widths,
        moe,
        any::<[bool; 3]>(),
        17usize..60,
        select(vec![32usize, 64, 256]),
    )
        .prop_map(
            |(
                (n_heads, index_heads),
                (nope, rope, v),
                [dense, inner, latent],
                (experts, shared),
                full,
                vocab,
                hidden,
            )| {
                let mut config = Config::glm5();
                (config.n_layers, config.n_mtp_layers) = (3, 1);
                (config.hidden_size, config.vocab_size) = (hidden, vocab);
                (config.n_heads, config.q_lora_rank, config.kv_lora_rank) = (n_heads, latent, 32);
                (
                    config.qk_nope_head_dim,
                    config.qk_rope_head_dim,
                    config.v_head_dim,
                ) = (nope, 2 * rope, v);
                config.intermediate_size = dense;
                config.moe.first_dense_layers = 1;
                config.moe.n_routed_experts = experts;
                config.moe.n_shared_experts = shared;
                config.moe.moe_intermediate_size = inner;
                (config.indexer.n_heads, config.indexer.head_dim) = (index_heads, 2 * rope);
                config.indexer.kinds = full
                    .map(|full| {
                        if full {
                            IndexerKind::Full
                        } else {
                            IndexerKind::Shared
                        }
                    })
                    .to_vec();
                config
            },
        )
}

fn options() -> impl Strategy<Value = Options> {
    any::<[bool; 3]>().prop_map(|[vocab, rows, allow_idle_ranks]| Options {
        token_embd: if vocab {
            TokenEmbd::VocabRows
        } else {
            TokenEmbd::Replicated
        },
        latents: if rows {
            Latents::Rows
        } else {
            Latents::Replicated
        },
        allow_idle_ranks,
    })
}

/// A type for each role and layer, as mixes have them; the next that fits where rows are not whole blocks.
fn weights(config: &Config, seed: u64) -> Vec<Weight> {
    let ty = |spec: &TensorSpec| {
        let pick = seed
            .wrapping_mul(spec.role as u64 * 2 + 3)
            .wrapping_add(spec.layer.map_or(0, |l| l as u64 + 1))
            >> 7;
        let fits = |ty: &GgmlType| ty.row_bytes(*spec.shape.last().unwrap()).is_some();
        TYPES
            .into_iter()
            .cycle()
            .skip(pick as usize % TYPES.len())
            .find(fits)
            .unwrap()
    };
    let specs = catalogue(config).into_iter().chain(mtp_catalogue(config));
    specs
        .map(|spec| Weight::on_paper(&spec, ty(&spec)))
        .collect()
}

/// Where an index of `n` consecutive units belongs: the rank whose share of the line 0..1 it begins in.
fn owner(unit: usize, units: usize, ranks: usize) -> usize {
    (0..ranks)
        .find(|rank| unit < (rank + 1) * units / ranks)
        .unwrap()
}

/// The rule once more, element by element: which rank holds the element at `at`; `None` if every rank does.
fn rank_of(
    config: &Config,
    options: &Options,
    weights: &[Weight],
    weight: &Weight,
    at: &[usize],
    ranks: usize,
) -> Option<usize> {
    let block_of = |down: Role| {
        let down = weights
            .iter()
            .find(|w| w.role == down && w.layer == weight.layer)
            .unwrap();
        down.ty.block_elems()
    };
    let inner = |index: usize, down: Role, width: usize| {
        let block = block_of(down);
        Some(owner(index / block, width / block, ranks))
    };
    let head = |head: usize| Some(head / (config.n_heads / ranks));
    let moe = &config.moe;
    let (expert, shared) = (
        moe.moe_intermediate_size,
        moe.moe_intermediate_size * moe.n_shared_experts,
    );
    let rows = options.latents == Latents::Rows;
    match weight.role {
        Role::TokenEmbd if options.token_embd == TokenEmbd::VocabRows => {
            Some(owner(at[0], config.vocab_size, ranks))
        }
        Role::Output => Some(owner(at[0], config.vocab_size, ranks)),
        Role::AttnQB => head(at[0] / config.qk_head_dim()),
        Role::AttnKB | Role::AttnVB => head(at[0]),
        Role::AttnOutput => head(at[1] / config.v_head_dim),
        Role::FfnGate | Role::FfnUp => inner(at[0], Role::FfnDown, config.intermediate_size),
        Role::FfnDown => inner(at[1], Role::FfnDown, config.intermediate_size),
        Role::FfnGateExps | Role::FfnUpExps => inner(at[1], Role::FfnDownExps, expert),
        Role::FfnDownExps => inner(at[2], Role::FfnDownExps, expert),
        Role::FfnGateShexp | Role::FfnUpShexp => inner(at[0], Role::FfnDownShexp, shared),
        Role::FfnDownShexp => inner(at[1], Role::FfnDownShexp, shared),
        Role::AttnQA | Role::AttnKvAMqa | Role::IndexerAttnK if rows => {
            Some(owner(at[0], weight.shape[0], ranks))
        }
        Role::IndexerAttnQB if rows => Some(owner(
            at[0] / config.indexer.head_dim,
            config.indexer.n_heads,
            ranks,
        )),
        Role::IndexerProj if rows => Some(owner(at[0], config.indexer.n_heads, ranks)),
        _ => None,
    }
}

/// Whether `ranks` can cut the model, from first principles.
fn can_be_cut(config: &Config, options: &Options, weights: &[Weight], ranks: usize) -> bool {
    if !config.n_heads.is_multiple_of(ranks) {
        return false;
    }
    let columns = config.n_heads / ranks * config.v_head_dim;
    let whole_heads = weights
        .iter()
        .filter(|w| w.role == Role::AttnOutput)
        .all(|w| columns.is_multiple_of(w.ty.block_elems()));
    let mut widths: Vec<usize> = (weights.iter())
        .filter(|w| {
            matches!(
                w.role,
                Role::FfnDown | Role::FfnDownExps | Role::FfnDownShexp
            )
        })
        .map(|w| w.shape.last().unwrap() / w.ty.block_elems())
        .collect();
    widths.push(config.vocab_size);
    if options.latents == Latents::Rows {
        let of = |role: Role| weights.iter().filter(move |w| w.role == role);
        widths.extend(
            [Role::AttnQA, Role::AttnKvAMqa, Role::IndexerAttnK]
                .into_iter()
                .flat_map(of)
                .map(|w| w.shape[0]),
        );
    }
    whole_heads && (options.allow_idle_ranks || widths.iter().all(|&units| units >= ranks))
}

/// Every block is on the rank that the second description says, once; gathered, they are in order.
fn check_blocks(sharded: &ShardedWeight, owner_of: impl Fn(&[usize]) -> Option<usize>) {
    let weight = sharded.weight();
    let (elems, bytes) = (weight.ty.block_elems(), weight.ty.block_bytes());
    let blocks = weight.shape.iter().product::<usize>() / elems;
    let ranks = sharded.slices().len();
    let held: Vec<Vec<usize>> = (0..ranks)
        .map(|rank| {
            let runs = sharded.runs(rank).unwrap();
            let of_run = |run: std::ops::Range<usize>| {
                assert!(run.start.is_multiple_of(bytes) && run.end.is_multiple_of(bytes));
                run.start / bytes..run.end / bytes
            };
            runs.flat_map(of_run).collect()
        })
        .collect();
    let mut expected: Vec<Vec<usize>> = vec![Vec::new(); ranks];
    for block in 0..blocks {
        let (mut at, mut rest) = (vec![0; weight.shape.len()], block * elems);
        for (index, n) in at.iter_mut().zip(&weight.shape).rev() {
            (*index, rest) = (rest % n, rest / n);
        }
        match owner_of(&at) {
            Some(rank) => expected[rank].push(block),
            None => expected.iter_mut().for_each(|held| held.push(block)),
        }
    }
    assert_eq!(held, expected, "{}", weight.name);
    for (rank, held) in held.iter().enumerate() {
        assert_eq!(
            sharded.byte_len(rank).unwrap(),
            held.len() * bytes,
            "{}",
            weight.name
        );
    }
    let gathered: Vec<usize> = (sharded.gather_runs().unwrap())
        .flat_map(|(rank, run)| held[rank][run.start / bytes..run.end / bytes].to_vec())
        .collect();
    assert!(gathered.iter().copied().eq(0..blocks), "{}", weight.name);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn shards_are_where_the_rule_says_or_are_refused(
        config in config(), options in options(), seed in any::<u64>(), ranks in 1usize..=16,
    ) {
        let weights = weights(&config, seed);
        // Half of the cases with a number of ranks that the heads allow.
        let ranks = if seed % 2 == 0 { (1..=ranks).rev().find(|&n| config.n_heads.is_multiple_of(n)).unwrap() } else { ranks };
        let shards = match Shards::new(HeadCounts::from(&config), weights.clone(), ranks, &options) {
            Ok(shards) => shards,
            Err(error) => {
                let is_named = matches!(
                    error, ShardError::Heads { .. } | ShardError::HeadBlocks { .. } | ShardError::IdleRanks { .. }
                );
                prop_assert!(is_named, "{error}");
                prop_assert!(!can_be_cut(&config, &options, &weights, ranks), "{error}");
                return Ok(());
            }
        };
        prop_assert!(can_be_cut(&config, &options, &weights, ranks));
        shards.check().unwrap();
        for sharded in shards.weights() {
            check_blocks(sharded, |at| rank_of(&config, &options, &weights, sharded.weight(), at, ranks));
        }
    }

    /// Any one slice moved, grown or dropped is found.
    #[test]
    fn no_changed_list_passes(config in config(), seed in any::<u64>(), which in any::<prop::sample::Index>(), change in 0usize..4) {
        let weights = weights(&config, seed);
        let divisors: Vec<usize> = (2..=16).filter(|&n| config.n_heads.is_multiple_of(n)).collect();
        prop_assume!(!divisors.is_empty());
        let ranks = divisors[seed as usize % divisors.len()];
        let options = Options { allow_idle_ranks: true, ..Options::default() };
        let Ok(mut shards) = Shards::new(HeadCounts::from(&config), weights, ranks, &options) else { return Ok(()) };
        let sharded = &shards.weights()[which.index(shards.weights().len())];
        let name = sharded.weight().name.clone();
        let mut slices = sharded.slices().to_vec();
        let sound = slices.clone();
        let rank = seed as usize / 16 % ranks;
        match change {
            0 => slices[rank].clear(),
            1 => slices.reverse(),
            2 => slices.rotate_left(1),
            _ => slices[rank] = sound[(rank + 1) % ranks].clone(),
        }
        // Ranks without elements may be listed either way.
        let trimmed = |slices: &[Vec<glim_model::shard::Slice>]| -> Vec<Vec<glim_model::shard::Slice>> {
            slices.iter().map(|s| s.iter().filter(|s| !s.is_empty()).cloned().collect()).collect()
        };
        let is_same = trimmed(&slices) == trimmed(&sound);
        shards.set_slices(&name, slices).unwrap();
        prop_assert_eq!(shards.check().is_ok(), is_same, "{} {}", name, change);
    }
}
