//! The invariance rule: what a request gets does not depend on who else is served, nor on how its prompt was cut.
//!
//! The same requests, greedy and seeded, with and without what needs logits on the host: alone, in a batch of nine, and with
//! chunks of 7, 64 and 256 tokens; in exact and in fast math; identical tokens throughout.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;

use glim_cpu::{CpuBackend, CpuOptions, Math};
use glim_engine::{
    Engine, EngineOptions, EnginePlan, Event, FinishReason, GenerateRequest, RequestId,
    SamplingParams,
};
use glim_model::{Checkpoint, Inventory};
use glim_plan::Backend;
use glim_testkit::assets;
use glim_text::TokenId;

fn engine(checkpoint: &Checkpoint, math: Math, max_chunk: usize, max_num_seqs: usize) -> Engine {
    let backend = CpuBackend::new(CpuOptions {
        math,
        ..CpuOptions::default()
    });
    let options = EngineOptions {
        context: Some(400),
        block_size: 16,
        max_chunk,
        max_num_seqs,
        ..EngineOptions::default()
    };
    Engine::new(
        Inventory::of(checkpoint),
        checkpoint,
        Box::new(backend),
        options,
    )
    .unwrap()
}

/// Nine requests of different lengths; the long ones reach beyond the tiny model's index_topk of 128.
fn requests() -> Vec<GenerateRequest> {
    let prompt = |n: u32, salt: u32| {
        (0..n)
            .map(|i| TokenId((i * 131 + salt * 977) % 4000))
            .collect()
    };
    let lengths = [3, 150, 17, 64, 1, 200, 33, 7, 129];
    let requests = lengths.iter().enumerate().map(|(i, n)| {
        let mut sampling = SamplingParams::GREEDY;
        if i % 3 != 0 {
            sampling.temperature = 0.8;
            sampling.top_p = 0.9;
            sampling.seed = 77;
            sampling.choice = i as u32;
        }
        if i % 4 == 1 {
            sampling.repetition_penalty = 1.2;
            sampling.logprobs = Some(2);
        }
        let max_tokens = Some(6 + 2 * i);
        GenerateRequest {
            sampling,
            max_tokens,
            ..GenerateRequest::new(prompt(*n, i as u32))
        }
    });
    requests.collect()
}

/// Runs all requests at a time, submitted at different ticks.
fn together(engine: &mut Engine, requests: &[GenerateRequest]) -> Vec<Vec<TokenId>> {
    let mut tokens: BTreeMap<RequestId, Vec<TokenId>> = BTreeMap::new();
    let mut waiting = requests.iter();
    let mut most = 0;
    loop {
        for request in waiting.by_ref().take(2) {
            tokens.insert(engine.submit(request.clone()).unwrap(), Vec::new());
        }
        if engine.is_idle() {
            break;
        }
        for event in engine.step().unwrap() {
            match event {
                Event::Token { id, token, .. } => tokens.get_mut(&id).unwrap().push(token),
                Event::Finished { reason, .. } => assert_eq!(reason, FinishReason::Length),
                Event::Failed { error, .. } => panic!("{error}"),
                Event::Started { .. } | Event::Preempted { .. } => {}
            }
        }
        most = most.max(engine.counts().1);
    }
    assert!(most > 4, "the requests ran beside each other: {most}");
    tokens.into_values().collect()
}

fn alone(engine: &mut Engine, requests: &[GenerateRequest]) -> Vec<Vec<TokenId>> {
    let run = |r| {
        engine
            .generate(r, |_| std::ops::ControlFlow::Continue(()))
            .unwrap()
            .tokens
    };
    requests.iter().map(run).collect()
}

fn tokens_do_not_depend_on_company(math: Math) {
    let checkpoint = Checkpoint::open(&assets::tiny_glm5()).unwrap();
    let requests = requests();
    let expected = alone(&mut engine(&checkpoint, math, 256, 1), &requests);
    let limits: Vec<usize> = requests.iter().map(|r| r.max_tokens.unwrap()).collect();
    assert_eq!(expected.iter().map(Vec::len).collect::<Vec<_>>(), limits);
    for max_chunk in [7, 64, 256] {
        let mut engine = engine(&checkpoint, math, max_chunk, 9);
        assert_eq!(
            together(&mut engine, &requests),
            expected,
            "chunks of {max_chunk}"
        );
        assert_eq!(
            alone(&mut engine, &requests),
            expected,
            "alone, chunks of {max_chunk}"
        );
    }
}

#[test]
fn exact_tokens_do_not_depend_on_company() {
    tokens_do_not_depend_on_company(Math::Exact);
}

#[test]
fn fast_tokens_do_not_depend_on_company() {
    tokens_do_not_depend_on_company(Math::Fast);
}

#[test]
fn requests_wait_for_memory_and_cancelling_frees_it() {
    let checkpoint = Checkpoint::open(&assets::odd_glm52()).unwrap();
    let backend = CpuBackend::new(CpuOptions::default());
    let options = EngineOptions {
        context: Some(128),
        block_size: 16,
        max_num_seqs: 4,
        ..EngineOptions::default()
    };
    // Memory for one context and a little more: nine blocks.
    let inventory = Inventory::of(&checkpoint);
    let whole = EnginePlan::new(inventory.clone(), &backend.caps(), options.clone()).unwrap();
    let per_block = (whole.budget().latent_cache + whole.budget().index_cache) / 32;
    let memory = whole.budget().weights + whole.budget().arena + 9 * per_block;
    let plan = EnginePlan::new(
        inventory,
        &backend.caps(),
        EngineOptions {
            memory: Some(memory),
            ..options
        },
    );
    let plan = plan.unwrap();
    assert_eq!(plan.budget().blocks, 9);
    assert!(plan.budget().total() <= memory);
    let mut engine = Engine::load(plan, &checkpoint, Box::new(backend)).unwrap();
    let request = |n: u32| GenerateRequest {
        max_tokens: Some(20),
        ..GenerateRequest::new((0..n).map(|i| TokenId(i * 7 + n)).collect())
    };
    let ids: Vec<RequestId> = [44, 60, 63]
        .map(|n| engine.submit(request(n)).unwrap())
        .to_vec();
    // Three blocks and four, and one in reserve for the first: the third needs four and two in reserve.
    engine.step().unwrap();
    assert_eq!(engine.counts(), (1, 2));
    // What could never fit is refused at once, with both numbers.
    let refused = engine.submit(request(120)).unwrap_err().to_string();
    assert!(
        refused.contains("needs 140 tokens") && refused.contains("128"),
        "{refused}"
    );
    assert!(engine.cancel(ids[0]) && !engine.cancel(ids[0]));
    engine.step().unwrap();
    assert_eq!(engine.counts(), (0, 2));
    assert!(engine.cancel(ids[1]) && engine.cancel(ids[2]));
    assert!(engine.is_idle());
    assert_eq!(engine.stats().blocks_used, 0);
}

#[test]
fn memory_that_holds_no_context_is_refused_with_both_numbers() {
    let checkpoint = Checkpoint::open(&assets::odd_glm52()).unwrap();
    let caps = CpuBackend::new(CpuOptions::default()).caps();
    let options = EngineOptions {
        memory: Some(1_000_000),
        ..EngineOptions::default()
    };
    let refused = EnginePlan::new(Inventory::of(&checkpoint), &caps, options)
        .err()
        .unwrap();
    let message = refused.to_string();
    assert!(message.contains("but 1000000 are allowed"), "{message}");
}

/// `min_tokens` holds stop tokens back, and only until it is reached.
#[test]
fn stop_tokens_wait_for_min_tokens() {
    let checkpoint = Checkpoint::open(&assets::odd_glm52()).unwrap();
    let mut engine = engine(&checkpoint, Math::Exact, 64, 1);
    let run = |engine: &mut Engine, min_tokens, stop_tokens: Vec<TokenId>| {
        let sampling = SamplingParams {
            min_tokens,
            ..SamplingParams::GREEDY
        };
        let prompt = (5..40).map(TokenId).collect();
        let request = GenerateRequest {
            sampling,
            stop_tokens,
            max_tokens: Some(8),
            ..GenerateRequest::new(prompt)
        };
        engine
            .generate(&request, |_| std::ops::ControlFlow::Continue(()))
            .unwrap()
    };
    let free = run(&mut engine, 0, vec![]).tokens;
    let stopped = run(&mut engine, 0, vec![free[0]]);
    assert_eq!(
        (stopped.tokens.len(), stopped.finish_reason),
        (0, FinishReason::Stop)
    );
    let held = run(&mut engine, 3, vec![free[0]]).tokens;
    assert!(held.len() >= 3 && !held[..3].contains(&free[0]), "{held:?}");
}
