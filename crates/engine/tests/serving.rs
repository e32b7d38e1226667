//! The queue's front door and what ends a request: constraints, deadlines, cancelling in every state, a full queue.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::serve::{note, serve, tokens};
use glim_engine::{
    ConstraintError, Engine, EngineError, EngineOptions, FinishReason, GenerateRequest, KvEvent,
    SamplingParams, TokenConstraint,
};
use glim_model::{Checkpoint, Inventory};
use glim_plan::reference::ReferenceOptions;
use glim_testkit::assets;
use glim_text::TokenId;

fn engine(options: EngineOptions) -> Engine {
    let checkpoint = Checkpoint::open(&assets::odd_glm52()).unwrap();
    let options = EngineOptions {
        context: Some(128),
        block_size: 16,
        max_chunk: 32,
        ..options
    };
    let inventory = Inventory::of(&checkpoint);
    common::engine_of(inventory, &checkpoint, ReferenceOptions::default(), options)
}

fn several(max_num_seqs: usize) -> EngineOptions {
    EngineOptions {
        max_num_seqs,
        ..EngineOptions::default()
    }
}

fn request(n: u32, salt: u32, max_tokens: usize) -> GenerateRequest {
    GenerateRequest {
        max_tokens: Some(max_tokens),
        ..GenerateRequest::new(
            (0..n)
                .map(|i| TokenId((i * 31 + salt * 500 + 1) % 4000))
                .collect(),
        )
    }
}

/// Lets exactly these tokens through, one after the other, and writes down what it is told.
#[derive(Debug, Clone)]
struct Script {
    tokens: Vec<TokenId>,
    accepted: Arc<Mutex<Vec<TokenId>>>,
    at: usize,
}

impl Script {
    fn new(tokens: &[u32]) -> Self {
        Self {
            tokens: tokens.iter().map(|t| TokenId(*t)).collect(),
            accepted: Arc::default(),
            at: 0,
        }
    }
}

impl TokenConstraint for Script {
    fn restrict(&mut self, mask: &mut [u32]) -> Result<(), ConstraintError> {
        let Some(next) = self.tokens.get(self.at) else {
            return Err(ConstraintError {
                reason: "the script is over".into(),
            });
        };
        let (word, bit) = (next.0 as usize / 32, 1 << (next.0 % 32));
        for (i, m) in mask.iter_mut().enumerate() {
            *m &= if i == word { bit } else { 0 };
        }
        Ok(())
    }

    fn accept(&mut self, token: TokenId) -> Result<(), ConstraintError> {
        self.accepted.lock().unwrap().push(token);
        self.at += 1;
        Ok(())
    }

    fn clone_box(&self) -> Box<dyn TokenConstraint> {
        Box::new(self.clone())
    }
}

fn bound(request: GenerateRequest, script: &Script) -> GenerateRequest {
    GenerateRequest {
        constraint: Some(Box::new(script.clone())),
        ..request
    }
}

/// Ids that a model would hardly say in this order.
fn lines(n: usize, salt: u32) -> Vec<u32> {
    (0..n as u32)
        .map(|i| (i * i * 7 + salt * 13 + 3) % 4000)
        .collect()
}

#[test]
fn a_constraint_binds_every_token_wherever_it_is_drawn() {
    let on_host = SamplingParams {
        logprobs: Some(0),
        temperature: 0.7,
        ..SamplingParams::GREEDY
    };
    // In memory for one and a half: the later ones are preempted in the middle of their scripts.
    let options = EngineOptions {
        cache_tokens: Some(128),
        ..several(4)
    };
    let mut engine = engine(options);
    let scripts: Vec<Script> = (0..3).map(|i| Script::new(&lines(40, i))).collect();
    let free = request(40, 9, 40);
    let mut requests: Vec<GenerateRequest> = scripts
        .iter()
        .enumerate()
        .map(|(i, script)| bound(request(40, i as u32, 40), script))
        .collect();
    requests[1].sampling = on_host;
    requests.push(free.clone());
    let found = serve(&mut engine, requests);
    for (script, outcome) in scripts.iter().zip(&found) {
        assert_eq!(outcome.tokens, script.tokens);
        assert_eq!(*script.accepted.lock().unwrap(), script.tokens);
    }
    let preempted = found.iter().filter(|o| o.preempted > 0).count();
    assert!(preempted > 1, "{preempted} were preempted");
    // Who is not bound says what it says alone.
    assert_eq!(found[3].tokens, serve(&mut engine, vec![free])[0].tokens);
}

#[test]
fn a_stop_token_is_accepted_and_named_and_not_part_of_the_answer() {
    let mut engine = engine(several(1));
    let script = Script::new(&[5, 6, 77]);
    let request = GenerateRequest {
        stop_tokens: vec![TokenId(77)],
        ..bound(request(10, 0, 40), &script)
    };
    let found = serve(&mut engine, vec![request]).remove(0);
    assert_eq!(found.tokens, [TokenId(5), TokenId(6)]);
    assert_eq!(
        found.finished,
        Some((FinishReason::Stop, Some(TokenId(77))))
    );
    assert_eq!(*script.accepted.lock().unwrap(), script.tokens);
}

#[test]
fn a_constraint_that_fails_ends_its_request_alone() {
    let mut engine = engine(several(3));
    let free = request(20, 9, 12);
    let expected = tokens(&serve(&mut engine, vec![free.clone()]));
    let short = Script::new(&[1, 2, 3]);
    let dead = Script::new(&[1, 1_000_000]);
    let found = serve(
        &mut engine,
        vec![
            bound(request(30, 0, 12), &short),
            free,
            bound(request(30, 1, 12), &dead),
        ],
    );
    assert_eq!(found[0].tokens, [1, 2, 3].map(TokenId));
    assert_eq!(
        found[0].error.as_deref(),
        Some("the constraint of the answer failed: the script is over")
    );
    assert_eq!(tokens(&found[1..2]), expected);
    // Nothing is allowed any more: an error, and never a token of chance.
    assert_eq!(found[2].tokens, [TokenId(1)]);
    assert_eq!(
        found[2].error.as_deref(),
        Some("no token is allowed at position 31")
    );
}

#[test]
fn a_deadline_ends_a_request_in_every_state() {
    let mut engine = engine(several(2));
    let now = Instant::now();
    let after = |ms| Some(now + Duration::from_millis(ms));
    let with = |request, deadline| GenerateRequest {
        deadline,
        ..request
    };
    let decodes = engine.submit(with(request(3, 0, 100), after(10))).unwrap();
    let prefills = engine.submit(with(request(120, 1, 4), after(20))).unwrap();
    let waits = engine.submit(with(request(3, 2, 4), after(5))).unwrap();
    let mut outcomes = BTreeMap::new();
    let mut at = |engine: &mut Engine, ms| {
        note(
            &mut outcomes,
            engine.step_at(now + Duration::from_millis(ms)).unwrap(),
        );
        let over = outcomes.iter().filter(|(_, o)| o.finished.is_some());
        over.map(|(id, o)| (*id, o.finished.unwrap(), o.tokens.len()))
            .collect::<Vec<_>>()
    };
    let late = (FinishReason::Deadline, None);
    assert_eq!(at(&mut engine, 0), []);
    assert_eq!(at(&mut engine, 5), [(waits, late, 0)]);
    let over = at(&mut engine, 10);
    assert_eq!(over[0], (decodes, late, 2));
    assert_eq!(at(&mut engine, 20)[1], (prefills, late, 0));
    assert!(engine.is_idle());
    assert_eq!(engine.stats().blocks_used, 0);
    assert_eq!(FinishReason::Deadline.as_str(), "deadline");
}

#[test]
fn cancelling_frees_blocks_in_every_state() {
    let mut engine = engine(several(2));
    let decodes = engine.submit(request(3, 0, 100)).unwrap();
    let prefills = engine.submit(request(120, 1, 4)).unwrap();
    let waits = engine.submit(request(3, 2, 4)).unwrap();
    engine.step().unwrap();
    engine.step().unwrap();
    assert_eq!(engine.counts(), (1, 2));
    // Eight blocks of a prompt that is being computed, one of a decode.
    assert_eq!(engine.stats().blocks_used, 9);
    assert!(engine.cancel(waits) && !engine.cancel(waits));
    assert!(engine.cancel(prefills));
    let stats = engine.stats();
    assert_eq!((stats.blocks_used, stats.running, stats.waiting), (1, 1, 0));
    assert!(stats.blocks_cached > 0, "its whole blocks can still be hit");
    assert!(engine.cancel(decodes));
    assert!(engine.is_idle());
    assert_eq!(engine.stats().blocks_used, 0);
    // What was cancelled is hit, and says the same as ever.
    let again = serve(&mut engine, vec![request(120, 1, 4)]).remove(0);
    assert!(again.cached > Some(0));
    engine.clear_prefix_cache();
    let fresh = serve(&mut engine, vec![request(120, 1, 4)]).remove(0);
    assert_eq!((fresh.cached, &fresh.tokens), (Some(0), &again.tokens));
}

#[test]
fn a_full_queue_takes_all_choices_or_none() {
    let options = EngineOptions {
        max_queue: Some(1),
        ..several(2)
    };
    let mut engine = engine(options);
    let choices = |n: u32| (0..n).map(|i| request(5, i, 3)).collect::<Vec<_>>();
    let refused = engine.submit_all(choices(4)).unwrap_err();
    assert!(matches!(
        refused,
        EngineError::QueueFull { waiting: 0, max: 1 }
    ));
    assert!(engine.is_idle());
    // One that can never run is refused as such, and takes the others with it.
    let mut bad = choices(2);
    bad.push(request(127, 0, 30));
    let refused = engine.submit_all(bad).unwrap_err();
    assert!(matches!(refused, EngineError::ContextExceeded { .. }));
    assert!(engine.is_idle());
    assert_eq!(engine.submit_all(choices(3)).unwrap().len(), 3);
    engine.step().unwrap();
    assert_eq!(engine.counts(), (1, 2));
    let refused = engine.submit(request(5, 0, 3)).unwrap_err();
    assert!(matches!(
        refused,
        EngineError::QueueFull { waiting: 1, max: 1 }
    ));
    while !engine.is_idle() {
        engine.step().unwrap();
    }
    assert!(engine.submit(request(5, 0, 3)).is_ok());
}

#[test]
fn the_more_urgent_run_first() {
    let mut engine = engine(several(1));
    let with = |priority, request| GenerateRequest {
        priority,
        ..request
    };
    let ids: Vec<_> = [(5, 0), (0, 1), (-3, 2), (0, 3)]
        .map(|(priority, salt)| engine.submit(with(priority, request(6, salt, 3))).unwrap())
        .to_vec();
    let mut order = Vec::new();
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            if let glim_engine::Event::Finished { id, .. } = event {
                order.push(id);
            }
        }
    }
    assert_eq!(order, [ids[2], ids[1], ids[3], ids[0]]);
}

#[test]
fn events_say_what_can_be_hit() {
    let options = EngineOptions {
        kv_events: true,
        ..several(1)
    };
    let mut engine = engine(options);
    assert_eq!(engine.take_kv_events(), [KvEvent::AllBlocksCleared]);
    let asked = request(40, 0, 3);
    serve(&mut engine, vec![asked.clone()]);
    let events = engine.take_kv_events();
    let [
        KvEvent::BlockStored {
            hashes,
            parent: None,
            token_ids,
            block_size: 16,
        },
    ] = events.as_slice()
    else {
        panic!("{events:?}");
    };
    let ids: Vec<u32> = asked.prompt.iter().map(|t| t.0).collect();
    assert_eq!((hashes.len(), token_ids.as_slice()), (2, &ids[..32]));
    engine.clear_prefix_cache();
    assert_eq!(engine.take_kv_events(), [KvEvent::AllBlocksCleared]);
    assert_eq!(engine.stats().blocks_cached, 0);
}

#[test]
fn stats_say_what_a_tick_ran() {
    let mut engine = engine(several(2));
    engine.submit(request(3, 0, 100)).unwrap();
    engine.submit(request(100, 1, 4)).unwrap();
    engine.step().unwrap();
    engine.step().unwrap();
    let stats = engine.stats();
    assert_eq!((stats.steps, stats.running, stats.waiting), (2, 2, 0));
    assert_eq!(stats.last_step.prefill_tokens, 32);
    assert_eq!(stats.last_step.decode_rows, 1);
    assert_eq!((stats.block_size, stats.blocks_total), (16, 16));
}

/// A cache that does not hold one context could never run what the engine allows.
#[test]
fn a_cache_below_one_context_is_refused() {
    let checkpoint = Checkpoint::open(&assets::odd_glm52()).unwrap();
    let options = EngineOptions {
        context: Some(128),
        cache_tokens: Some(64),
        ..EngineOptions::default()
    };
    let caps = glim_plan::Backend::caps(&glim_plan::reference::ReferenceBackend::new(
        ReferenceOptions::default(),
    ));
    let refused = glim_engine::EnginePlan::new(Inventory::of(&checkpoint), &caps, options);
    assert_eq!(
        refused.err().unwrap().to_string(),
        "a cache of 64 tokens does not hold one whole context, which takes 128: lower --context, or allow more"
    );
}
