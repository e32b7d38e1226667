//! A model over several ranks says what it says on one: hidden states, experts, index choices and greedy tokens.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use glim_cpu::{CpuBackend, CpuOptions, Math, RankGroup};
use glim_engine::eval::{
    Bounds, PromptReport, Reference, against, hidden_states, relative_difference,
};
use glim_engine::{Engine, EngineOptions, EnginePlan, GenerateRequest, Rank, SamplingParams};
use glim_model::shard::{Latents, Options};
use glim_model::{Checkpoint, Inventory};
use glim_plan::reference::{ReferenceBackend, ReferenceOptions};
use glim_plan::{Backend, GgmlType, WeightSource};
use glim_testkit::assets;
use glim_testkit::tiny::{Dims, Tiny};
use glim_text::TokenId;

const PATIENT: Duration = Duration::from_secs(120);

/// What a rank computes with, given its place in the group.
type MakeBackend<'a> = &'a dyn Fn(&RankGroup, usize) -> Box<dyn Backend>;

fn cpu(math: Math) -> impl Fn(&RankGroup, usize) -> Box<dyn Backend> {
    move |group, rank| {
        Box::new(CpuBackend::new(CpuOptions {
            math,
            threads: Some(1),
            poison: true,
            ranks: Some(group.rank(rank)),
            ..CpuOptions::default()
        }))
    }
}

/// `world_size` ranks; also one alone.
fn engine(
    checkpoint: &Checkpoint,
    world_size: usize,
    options: &Options,
    context: usize,
    make: MakeBackend<'_>,
) -> Engine {
    let group = RankGroup::new(world_size, PATIENT);
    let inventory = Inventory::of(checkpoint).over(world_size, options).unwrap();
    let backends: Vec<_> = (0..world_size).map(|rank| make(&group, rank)).collect();
    let options = EngineOptions {
        context: Some(context),
        ..EngineOptions::default()
    };
    let plan = EnginePlan::new(inventory.clone(), &backends[0].caps(), options).unwrap();
    let weights: Vec<Box<dyn WeightSource + '_>> = match inventory.shards() {
        None => vec![Box::new(checkpoint)],
        Some(shards) => (0..world_size)
            .map(|rank| Box::new(shards.rank(checkpoint, rank).unwrap()) as Box<dyn WeightSource>)
            .collect(),
    };
    let ranks = backends.into_iter().zip(&weights);
    let ranks = ranks.map(|(backend, weights)| Rank {
        backend,
        weights: &**weights,
    });
    Engine::load_ranks(plan, ranks.collect(), Some(std::sync::Arc::new(group))).unwrap()
}

fn reports(
    model: &Path,
    reference: &Reference,
    world_size: usize,
    options: &Options,
    make: MakeBackend<'_>,
) -> Vec<PromptReport> {
    let checkpoint = Checkpoint::open(model).unwrap();
    let mut engine = engine(&checkpoint, world_size, options, reference.context(), make);
    against(&mut engine, reference).unwrap()
}

/// f32 sums in another order: hidden states within 1e-4 of a row's largest value, all that is chosen the same.
fn agrees(found: &[PromptReport], what: &str) {
    for report in found {
        assert_eq!(report.outside(&Bounds::EXACT), [], "{what}: {report:#?}");
        assert!(report.hidden_max_rel <= 1e-4, "{what}: {report:#?}");
        assert!(report.greedy_match, "{what}: {report:#?}");
    }
}

fn tiny(prompts: &[&str]) -> Reference {
    let mut reference = common::reference(&assets::tiny_glm5_reference());
    reference
        .prompts
        .retain(|p| prompts.contains(&p.name.as_str()));
    reference
}

const ROWS: Options = Options {
    latents: Latents::Rows,
    token_embd: glim_model::shard::TokenEmbd::Replicated,
    allow_idle_ranks: false,
};

#[test]
fn the_built_in_model_agrees_with_transformers_over_any_ranks() {
    for world_size in [2, 4, 8] {
        let prompts: &[&str] = match world_size {
            2 => &["short", "chat", "long700"],
            _ => &["short", "chat"],
        };
        let found = reports(
            &assets::tiny_glm5(),
            &tiny(prompts),
            world_size,
            &Options::default(),
            &cpu(Math::Exact),
        );
        agrees(&found, &format!("{world_size} ranks"));
    }
}

#[test]
fn uneven_shares_agree_with_transformers() {
    let reference = common::reference(&assets::odd_glm52_reference());
    for world_size in [2, 3, 6] {
        for options in [Options::default(), ROWS] {
            let found = reports(
                &assets::odd_glm52(),
                &reference,
                world_size,
                &options,
                &cpu(Math::Exact),
            );
            agrees(&found, &format!("{world_size} ranks, {options:?}"));
        }
    }
}

/// The scalar executor takes the same plans, and the CPU backend gives its bits.
#[test]
fn the_reference_executor_runs_ranks_too() {
    let mut reference = common::reference(&assets::odd_glm52_reference());
    reference.prompts.retain(|p| p.name == "short");
    let scalar = |group: &RankGroup, rank: usize| -> Box<dyn Backend> {
        Box::new(ReferenceBackend::new(ReferenceOptions {
            poison: true,
            ranks: Some(group.rank(rank)),
            ..ReferenceOptions::default()
        }))
    };
    let run = |make: MakeBackend<'_>| reports(&assets::odd_glm52(), &reference, 3, &ROWS, make);
    let expected = run(&scalar);
    agrees(&expected, "scalar");
    assert_eq!(run(&cpu(Math::Exact)), expected);
}

/// Columns of K-quants: every cut of a down matrix falls between super-blocks.
#[test]
fn k_quants_agree_with_one_rank() {
    let file = Tiny::new(11)
        .dims(Dims::k_quants())
        .matrices(GgmlType::Q4_K)
        .ty("attn_k_b.weight", GgmlType::Q8_0)
        .ty("ffn_down_exps.weight", GgmlType::Q6_K)
        .build();
    let checkpoint = Checkpoint::from_gguf(file.gguf()).unwrap();
    let prompt: Vec<TokenId> = (3..43).map(|i| TokenId(i * 5)).collect();
    let mut request = GenerateRequest::new(prompt.clone());
    request.max_tokens = Some(24);
    let width = checkpoint.config().hidden_size;
    let run = |world_size, options: &Options, math| {
        let mut engine = engine(&checkpoint, world_size, options, 128, &cpu(math));
        let hidden = hidden_states(&mut engine, &prompt).unwrap();
        let out = engine
            .generate(&request, |_| ControlFlow::Continue(()))
            .unwrap();
        (hidden, out.tokens)
    };
    let (expected, tokens) = run(1, &Options::default(), Math::Exact);
    for world_size in [2, 4] {
        for options in [Options::default(), ROWS] {
            let (found, found_tokens) = run(world_size, &options, Math::Exact);
            assert_eq!(found_tokens, tokens, "{world_size} ranks");
            for (found, expected) in found.iter().zip(&expected) {
                let difference = relative_difference(&found.values, &expected.values, width);
                assert!(
                    difference <= 1e-4,
                    "{world_size} ranks, {}: {difference}",
                    found.name
                );
            }
        }
    }
    // The file can be cut no further: the experts' columns are four super-blocks.
    let refused = Inventory::of(&checkpoint)
        .over(8, &Options::default())
        .unwrap_err()
        .to_string();
    assert!(refused.contains("world sizes that would do"), "{refused}");
}

/// Each rank reads its own slices: all of them together what is cut once, and what is whole once for each.
#[test]
fn ranks_read_their_own_slices_only() {
    let checkpoint = Checkpoint::open(&assets::tiny_glm5()).unwrap();
    let file = std::fs::metadata(assets::tiny_glm5()).unwrap().len();
    for world_size in [2, 4, 8] {
        let inventory = Inventory::of(&checkpoint)
            .over(world_size, &Options::default())
            .unwrap();
        let shards = inventory.shards().unwrap();
        // Pages that several ranks read come from the disk once: count distinct bytes of the file.
        let mut ranges: Vec<(usize, usize)> = Vec::new();
        for rank in 0..world_size {
            let weights = shards.rank(&checkpoint, rank).unwrap();
            for weight in shards.weights() {
                let name = &weight.weight().name;
                let data = weights.load(name).unwrap();
                assert_eq!(data.bytes.len(), weight.byte_len(rank).unwrap(), "{name}");
                let start = checkpoint.data(checkpoint.tensor(name).unwrap()).unwrap();
                let start = start.as_ptr() as usize;
                ranges.extend(
                    weight
                        .runs(rank)
                        .unwrap()
                        .map(|r| (start + r.start, start + r.end)),
                );
            }
        }
        ranges.sort_unstable();
        let mut read = 0;
        let mut end = 0;
        for (start, stop) in ranges {
            read += stop.saturating_sub(start.max(end));
            end = end.max(stop);
        }
        assert!(
            read as f64 <= 1.05 * file as f64,
            "{world_size} ranks read {read} of {file} bytes"
        );
    }
}

/// A draw from a few candidates of each rank is the draw from all logits: the host draws from these when log-probabilities are
/// wanted. With top-p alone the step itself goes by all of them.
#[test]
fn ranks_draw_what_the_whole_vocabulary_would() {
    let checkpoint = Checkpoint::open(&assets::odd_glm52()).unwrap();
    let mut engine = engine(&checkpoint, 3, &Options::default(), 128, &cpu(Math::Exact));
    let plain = SamplingParams {
        temperature: 1.0,
        seed: 5,
        ..GenerateRequest::new(Vec::new()).sampling
    };
    let draws = [
        plain.clone(),
        SamplingParams {
            temperature: 0.0,
            ..plain.clone()
        },
        SamplingParams {
            top_k: 20,
            top_p: 0.8,
            min_p: 0.05,
            ..plain.clone()
        },
        SamplingParams {
            top_p: 0.8,
            ..plain.clone()
        },
        SamplingParams {
            top_k: 500,
            ..plain
        },
    ];
    for sampling in draws {
        let mut request = GenerateRequest::new((7..23).map(TokenId).collect());
        request.max_tokens = Some(40);
        request.sampling = sampling;
        let mut run = |request: &GenerateRequest| {
            let out = engine.generate(request, |_| ControlFlow::Continue(()));
            out.unwrap().tokens
        };
        let found = run(&request);
        request.sampling.logprobs = Some(0);
        assert_eq!(found, run(&request), "{:?}", request.sampling);
    }
}

/// All ranks have the same blocks, so a hit restores each one's rows: with poison, nothing that is read was never written.
#[test]
fn a_hit_over_ranks_gives_the_same_tokens() {
    let checkpoint = Checkpoint::open(&assets::tiny_glm5()).unwrap();
    let mut engine = engine(&checkpoint, 2, &Options::default(), 256, &cpu(Math::Fast));
    let mut request = GenerateRequest::new((0..150).map(|i| TokenId(i * 17 + 3)).collect());
    request.max_tokens = Some(10);
    request.sampling.temperature = 0.8;
    request.sampling.top_p = 0.9;
    let mut run = || {
        let out = engine
            .generate(&request, |_| ControlFlow::Continue(()))
            .unwrap();
        (out.cached_tokens, out.tokens)
    };
    let (first, second) = (run(), run());
    assert_eq!((first.0, second.0), (0, 128));
    assert_eq!(first.1, second.1);
}
