//! What a watched step says of its time: in the engine's own steps, on one rank and on two.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::time::Duration;

use glim_cpu::{CpuBackend, CpuOptions, RankGroup};
use glim_engine::bench::{Explained, Size, explain};
use glim_engine::{Engine, EngineOptions, EnginePlan, Rank};
use glim_model::shard::Options;
use glim_model::{Checkpoint, Inventory};
use glim_plan::Backend;
use glim_plan::reference::{ReferenceBackend, ReferenceOptions};
use glim_testkit::assets;

const RUNS: usize = 20;

fn options() -> EngineOptions {
    EngineOptions {
        context: Some(256),
        max_num_seqs: 4,
        max_chunk: 16,
        ..EngineOptions::default()
    }
}

fn engine(checkpoint: &Checkpoint, backend: Box<dyn Backend>) -> Engine {
    Engine::new(Inventory::of(checkpoint), checkpoint, backend, options()).unwrap()
}

fn cpu() -> Box<dyn Backend> {
    Box::new(CpuBackend::new(CpuOptions {
        threads: Some(1),
        ..CpuOptions::default()
    }))
}

/// Each rank's stamps are in order and inside of the step.
fn check(explained: &Explained) {
    for profile in &explained.profiles {
        assert_eq!(profile.ops.len(), explained.ops.len());
        let mut last = 0;
        for op in &profile.ops {
            assert!(
                last <= op.start_ns && op.start_ns <= op.end_ns,
                "{profile:?}"
            );
            last = op.end_ns;
        }
        assert!(last <= profile.step_ns, "{profile:?}");
        assert_eq!(profile.accounted_ns(), last);
    }
    assert!(explained.step > 0.0 && explained.unwatched > 0.0);
}

/// What is left of a step lies after its last operation: results are copied. A busy machine may stop the thread just there, so that
/// one of several attempts must show it.
fn adds_up(engine: &mut Engine, size: Size) -> Explained {
    let mut shares = Vec::new();
    for _ in 0..10 {
        let explained = explain(engine, size, RUNS).unwrap();
        check(&explained);
        shares.push(explained.accounted());
        if (0.95..1.000_001).contains(&explained.accounted()) {
            return explained;
        }
    }
    panic!("operations and gaps are {shares:?} of the step");
}

#[test]
fn operations_and_gaps_add_up_to_the_step() {
    let checkpoint = Checkpoint::open(&assets::tiny_glm5()).unwrap();
    let mut engine = engine(&checkpoint, cpu());
    let (rows, context) = (4, 100);
    let decode = adds_up(&mut engine, Size::Decode { rows, context });
    assert_eq!(decode.profiles.len(), 1);
    assert_eq!(decode.collective_share(), 0.0);
    let (tokens, context) = (16, 0);
    let prefill = adds_up(&mut engine, Size::Prefill { tokens, context });
    assert_eq!(prefill.ops[0].kind, "Embed");
    assert!(prefill.ops.iter().any(|op| op.label == "blk.3.experts"));
    // Blocks are free again: the largest step has room.
    let (rows, context) = (4, 255);
    explain(&mut engine, Size::Decode { rows, context }, 1).unwrap();
}

#[test]
fn ranks_are_watched_side_by_side() {
    let checkpoint = Checkpoint::open(&assets::tiny_glm5()).unwrap();
    let inventory = Inventory::of(&checkpoint)
        .over(2, &Options::default())
        .unwrap();
    let shards = inventory.shards().unwrap();
    let sources = [0, 1].map(|rank| shards.rank(&checkpoint, rank).unwrap());
    let group = RankGroup::new(2, Duration::from_secs(120));
    let rank = |rank: usize| Rank {
        backend: Box::new(CpuBackend::new(CpuOptions {
            threads: Some(1),
            ranks: Some(group.rank(rank)),
            ..CpuOptions::default()
        })),
        weights: &sources[rank],
    };
    let ranks = vec![rank(0), rank(1)];
    let plan = EnginePlan::new(inventory.clone(), &ranks[0].backend.caps(), options()).unwrap();
    let mut engine = Engine::load_ranks(plan, ranks, Some(Arc::new(group.clone()))).unwrap();
    let (rows, context) = (1, 30);
    let explained = explain(&mut engine, Size::Decode { rows, context }, RUNS).unwrap();
    check(&explained);
    assert_eq!(explained.profiles.len(), 2);
    let collectives = explained.ops.iter().filter(|op| op.is_collective).count();
    // After attention and after the MLP of six layers, and of candidates at the end.
    assert_eq!(collectives, 13);
    assert!(explained.collective_share() > 0.0);
}

#[test]
fn a_backend_without_a_clock_says_so() {
    let checkpoint = Checkpoint::open(&assets::odd_glm52()).unwrap();
    let backend = Box::new(ReferenceBackend::new(ReferenceOptions::default()));
    let mut engine = engine(&checkpoint, backend);
    let (rows, context) = (1, 0);
    let refused = explain(&mut engine, Size::Decode { rows, context }, 1).unwrap_err();
    let refused = refused.to_string();
    assert!(refused.contains("cannot time the operations"), "{refused}");
}
