//! Generation: the same request gives the same tokens however it is run, and what cannot run is refused by name.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::ops::ControlFlow;

use glim_engine::{EngineError, EngineOptions, FinishReason, GenerateRequest, SamplingParams};
use glim_model::{Checkpoint, Inventory};
use glim_plan::reference::ReferenceOptions;
use glim_testkit::assets;
use glim_text::TokenId;

fn prompt(n: u32) -> Vec<TokenId> {
    (0..n).map(|i| TokenId((i * 37 + 11) % 4000)).collect()
}

fn seeded(seed: u64) -> GenerateRequest {
    GenerateRequest {
        sampling: SamplingParams {
            temperature: 0.9,
            top_k: 50,
            top_p: 0.95,
            seed,
            ..SamplingParams::GREEDY
        },
        max_tokens: Some(12),
        ..GenerateRequest::new(prompt(130))
    }
}

fn run(engine: &mut glim_engine::Engine, request: &GenerateRequest) -> Vec<TokenId> {
    engine
        .generate(request, |_| ControlFlow::Continue(()))
        .unwrap()
        .tokens
}

#[test]
fn chunk_and_block_size_do_not_change_the_tokens() {
    let checkpoint = Checkpoint::open(&assets::odd_glm52()).unwrap();
    let greedy = GenerateRequest {
        max_tokens: Some(12),
        ..GenerateRequest::new(prompt(130))
    };
    let mut seen = Vec::new();
    for (max_chunk, block_size) in [(7, 16), (64, 64), (256, 32), (1, 5)] {
        let options = EngineOptions {
            context: Some(200),
            block_size,
            max_chunk,
            ..EngineOptions::default()
        };
        let mut engine = common::engine_of(
            Inventory::of(&checkpoint),
            &checkpoint,
            ReferenceOptions::default(),
            options,
        );
        seen.push((run(&mut engine, &greedy), run(&mut engine, &seeded(7))));
    }
    assert!(seen.iter().all(|s| *s == seen[0]), "{seen:?}");
}

#[test]
fn a_seed_is_a_stream_and_requests_leave_no_trace() {
    let checkpoint = Checkpoint::open(&assets::odd_glm52()).unwrap();
    let mut engine = common::engine(&checkpoint, 200);
    let first = run(&mut engine, &seeded(1));
    let other = run(&mut engine, &seeded(2));
    assert_eq!(run(&mut engine, &seeded(1)), first);
    assert_ne!(first, other);
}

#[test]
fn generation_ends_at_stop_tokens_limits_and_the_callers_word() {
    let checkpoint = Checkpoint::open(&assets::odd_glm52()).unwrap();
    let mut engine = common::engine(&checkpoint, 140);
    let greedy = GenerateRequest::new(prompt(130));

    let whole = engine
        .generate(&greedy, |_| ControlFlow::Continue(()))
        .unwrap();
    assert_eq!(
        (whole.tokens.len(), whole.finish_reason),
        (10, FinishReason::Length)
    );
    assert_eq!((whole.prompt_tokens, whole.decode_steps), (130, 9));

    let stop = GenerateRequest {
        stop_tokens: vec![whole.tokens[3]],
        ..greedy.clone()
    };
    let stopped = engine
        .generate(&stop, |_| ControlFlow::Continue(()))
        .unwrap();
    assert_eq!(
        (stopped.tokens, stopped.finish_reason),
        (whole.tokens[..3].to_vec(), FinishReason::Stop)
    );

    let mut n = 0;
    let cancelled = engine.generate(&greedy, |_| {
        n += 1;
        if n == 2 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    let cancelled = cancelled.unwrap();
    assert_eq!(
        (cancelled.tokens.len(), cancelled.finish_reason),
        (2, FinishReason::Cancelled)
    );

    let none = GenerateRequest {
        max_tokens: Some(0),
        ..greedy
    };
    assert_eq!(
        engine
            .generate(&none, |_| ControlFlow::Continue(()))
            .unwrap()
            .tokens,
        []
    );
}

#[test]
fn tokens_beyond_the_limit_of_the_vocabulary_are_never_drawn() {
    let checkpoint = Checkpoint::open(&assets::odd_glm52()).unwrap();
    let mut engine = common::engine(&checkpoint, 200);
    let request = GenerateRequest {
        sampling: SamplingParams {
            temperature: 50.0,
            seed: 3,
            ..SamplingParams::GREEDY
        },
        vocab_limit: Some(37),
        ..seeded(3)
    };
    let tokens = run(&mut engine, &request);
    assert!(tokens.iter().all(|t| t.0 < 37), "{tokens:?}");
    assert!(tokens.iter().any(|t| *t != tokens[0]), "{tokens:?}");
}

#[test]
fn what_cannot_run_is_refused_by_name() {
    let checkpoint = Checkpoint::open(&assets::odd_glm52()).unwrap();
    let mut engine = common::engine(&checkpoint, 100);
    let mut refuse = |request: GenerateRequest| {
        engine
            .generate(&request, |_| ControlFlow::Continue(()))
            .unwrap_err()
            .to_string()
    };
    let base = GenerateRequest::new(prompt(20));
    let sampling = |temperature, top_p| GenerateRequest {
        sampling: SamplingParams {
            temperature,
            top_p,
            ..SamplingParams::GREEDY
        },
        ..base.clone()
    };
    assert!(refuse(GenerateRequest::new(vec![])).contains("the prompt is empty"));
    assert!(
        refuse(GenerateRequest::new(vec![TokenId(4096)]))
            .contains("token id 4096 at position 0 lies outside the model's vocabulary of 4096")
    );
    assert!(
        refuse(GenerateRequest {
            max_tokens: Some(81),
            ..base.clone()
        })
        .contains("needs 101 tokens of context, but the engine was started with 100")
    );
    assert!(refuse(GenerateRequest::new(prompt(100))).contains("needs 101 tokens"));
    assert!(refuse(sampling(-1.0, 1.0)).contains("temperature is -1"));
    assert!(refuse(sampling(f32::NAN, 1.0)).contains("temperature is NaN"));
    assert!(refuse(sampling(1.0, 0.0)).contains("top_p is 0"));
    let penalty = SamplingParams {
        repetition_penalty: 0.0,
        ..SamplingParams::GREEDY
    };
    let refused = refuse(GenerateRequest {
        sampling: penalty,
        ..base.clone()
    });
    assert!(refused.contains("repetition_penalty is 0: expected a finite number above 0"));
    // After all that, every block is free again.
    let whole = GenerateRequest {
        max_tokens: Some(80),
        ..base.clone()
    };
    assert_eq!(run(&mut engine, &whole).len(), 80);
}

#[test]
fn a_context_beyond_the_models_is_refused() {
    let checkpoint = Checkpoint::open(&assets::odd_glm52()).unwrap();
    let backend = glim_plan::reference::ReferenceBackend::new(ReferenceOptions::default());
    let options = EngineOptions {
        context: Some(8193),
        ..EngineOptions::default()
    };
    let refused = glim_engine::Engine::new(
        Inventory::of(&checkpoint),
        &checkpoint,
        Box::new(backend),
        options,
    );
    match refused.err().unwrap() {
        EngineError::BadContext {
            found: 8193,
            max: 8192,
        } => {}
        other => panic!("{other}"),
    }
}
