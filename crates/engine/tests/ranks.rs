//! A model over several ranks says what it says on one: hidden states, experts, index choices and greedy tokens.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::path::Path;
use std::time::Duration;

use glim_cpu::{CpuBackend, CpuOptions, Math, RankGroup};
use glim_engine::eval::{Bounds, PromptReport, Reference, against};
use glim_engine::{Engine, EngineOptions, EnginePlan, Rank};
use glim_model::shard::{Latents, Options};
use glim_model::{Checkpoint, Inventory};
use glim_plan::Backend;
use glim_plan::reference::{ReferenceBackend, ReferenceOptions};
use glim_testkit::assets;

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

fn engine(
    checkpoint: &Checkpoint,
    world_size: usize,
    options: &Options,
    context: usize,
    make: MakeBackend<'_>,
) -> Engine {
    let group = RankGroup::new(world_size, PATIENT);
    let inventory = Inventory::of(checkpoint).over(world_size, options).unwrap();
    let shards = inventory.shards().cloned().unwrap();
    let backends: Vec<_> = (0..world_size).map(|rank| make(&group, rank)).collect();
    let options = EngineOptions {
        context: Some(context),
        ..EngineOptions::default()
    };
    let plan = EnginePlan::new(inventory, &backends[0].caps(), options).unwrap();
    let weights: Vec<_> = (0..world_size)
        .map(|rank| shards.rank(checkpoint, rank).unwrap())
        .collect();
    let ranks = backends.into_iter().zip(&weights);
    let ranks = ranks.map(|(backend, weights)| Rank { backend, weights });
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
