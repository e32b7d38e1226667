//! What a request gets is the same alone, among others, from cached rows and after a preemption: token for token, greedy and seeded,
//! drawn in the step or on the host, on the reference and on the CPU, in exact and in fast math, within and beyond index_topk.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::serve::{serve, tokens};
use glim_cpu::{CpuBackend, CpuOptions, Math};
use glim_engine::{Engine, EngineOptions, GenerateRequest, SamplingParams};
use glim_model::{Checkpoint, Inventory};
use glim_plan::Backend;
use glim_plan::reference::{ReferenceBackend, ReferenceOptions};
use glim_testkit::assets;
use glim_text::TokenId;

const CONTEXT: usize = 300;
const BLOCK_SIZE: usize = 16;
/// Tokens of each answer.
const ANSWER: usize = 26;

#[derive(Debug, Clone, Copy)]
enum On {
    Reference,
    Cpu(Math),
}

impl On {
    fn backend(self) -> Box<dyn Backend> {
        match self {
            Self::Reference => Box::new(ReferenceBackend::new(ReferenceOptions::default())),
            Self::Cpu(math) => Box::new(CpuBackend::new(CpuOptions {
                math,
                ..CpuOptions::default()
            })),
        }
    }

    fn engine(self, checkpoint: &Checkpoint, options: EngineOptions) -> Engine {
        let options = EngineOptions {
            context: Some(CONTEXT),
            block_size: BLOCK_SIZE,
            max_chunk: 64,
            ..options
        };
        let inventory = Inventory::of(checkpoint);
        Engine::new(inventory, checkpoint, self.backend(), options).unwrap()
    }
}

fn prompt(n: usize, salt: u32) -> Vec<TokenId> {
    let token = |i: u32| TokenId((i * 131 + salt * 977 + 5) % 4000);
    (0..n as u32).map(token).collect()
}

/// Greedy, seeded, and with what needs the logits on the host; three reach beyond an index_topk of 128, one does not.
fn probes() -> Vec<GenerateRequest> {
    let seeded = SamplingParams {
        temperature: 0.8,
        top_p: 0.95,
        seed: 41,
        ..SamplingParams::GREEDY
    };
    let on_host = SamplingParams {
        repetition_penalty: 1.1,
        frequency_penalty: 0.1,
        logprobs: Some(1),
        ..seeded.clone()
    };
    let probes = [
        (140, SamplingParams::GREEDY),
        (142, seeded),
        (139, on_host),
        (33, SamplingParams::GREEDY),
    ];
    let request = |(i, (n, sampling)): (usize, (usize, SamplingParams))| GenerateRequest {
        sampling,
        max_tokens: Some(ANSWER),
        ..GenerateRequest::new(prompt(n, i as u32))
    };
    probes.into_iter().enumerate().map(request).collect()
}

/// Sixteen others.
fn company() -> Vec<GenerateRequest> {
    let request = |i: u32| GenerateRequest {
        max_tokens: Some(4 + i as usize),
        ..GenerateRequest::new(prompt(5 + 3 * i as usize, 100 + i))
    };
    (0..16).map(request).collect()
}

fn tokens_are_the_same_however_they_come_about(on: On, checkpoint: &Checkpoint) {
    let probes = probes();
    // One after the other, every row computed.
    let plain = EngineOptions {
        prefix_cache: false,
        ..EngineOptions::default()
    };
    let mut engine = on.engine(checkpoint, plain);
    let one = |probe: &GenerateRequest| serve(&mut engine, vec![probe.clone()]).remove(0);
    let alone: Vec<_> = probes.iter().map(one).collect();
    let expected = tokens(&alone);
    assert!(expected.iter().all(|tokens| tokens.len() == ANSWER));
    assert_eq!(engine.stats().prefix_hits, 0);

    // Among others.
    let wide = EngineOptions {
        max_num_seqs: 20,
        ..EngineOptions::default()
    };
    let mut engine = on.engine(checkpoint, wide);
    let mut all = company();
    all.splice(7..7, probes.clone());
    let found = serve(&mut engine, all);
    assert_eq!(tokens(&found[7..11]), expected, "{on:?}, among others");
    assert!(found[7..11].iter().all(|o| o.cached == Some(0)));

    // From cached rows: all whole blocks before the last token.
    let found = serve(&mut engine, probes.clone());
    assert_eq!(tokens(&found), expected, "{on:?}, on a hit");
    let cached: Vec<_> = found.iter().map(|o| o.cached.unwrap()).collect();
    assert_eq!(cached, [128, 128, 128, 32]);

    // A second turn goes on from blocks that decode steps have filled, and says what it says without.
    let second = probes.iter().zip(&expected).map(|(probe, answer)| {
        let mut turn = probe.clone();
        turn.prompt.extend(answer);
        turn.prompt.extend(prompt(9, 55));
        turn
    });
    let second: Vec<GenerateRequest> = second.collect();
    let found = serve(&mut engine, second.clone());
    assert!(found[0].cached >= Some(160), "{:?}", found[0].cached);
    engine.clear_prefix_cache();
    let fresh = serve(&mut engine, second);
    assert!(fresh.iter().all(|o| o.cached == Some(0)));
    assert_eq!(tokens(&found), tokens(&fresh), "{on:?}, second turn");

    // With room for little more than one: the later ones give way, and go on.
    let tight = EngineOptions {
        max_num_seqs: 4,
        cache_tokens: Some(CONTEXT),
        ..EngineOptions::default()
    };
    let mut engine = on.engine(checkpoint, tight);
    let found = serve(&mut engine, probes.clone());
    assert_eq!(tokens(&found), expected, "{on:?}, preempted");
    let preempted: usize = found.iter().map(|o| o.preempted).sum();
    assert!(preempted > 0, "there was a preemption");
    assert_eq!(engine.stats().preemptions, preempted as u64);
    // The same where nothing of it is found again: all rows are computed a second time.
    let forgetful = EngineOptions {
        max_num_seqs: 4,
        cache_tokens: Some(CONTEXT),
        prefix_cache: false,
        ..EngineOptions::default()
    };
    let mut engine = on.engine(checkpoint, forgetful);
    let found = serve(&mut engine, probes);
    assert_eq!(tokens(&found), expected, "{on:?}, recomputed");
    assert!(engine.stats().preemptions > 0);
}

#[test]
fn on_the_reference() {
    let checkpoint = Checkpoint::open(&assets::odd_glm52()).unwrap();
    tokens_are_the_same_however_they_come_about(On::Reference, &checkpoint);
}

#[test]
fn on_the_cpu_in_exact_math() {
    let checkpoint = Checkpoint::open(&assets::tiny_glm5()).unwrap();
    tokens_are_the_same_however_they_come_about(On::Cpu(Math::Exact), &checkpoint);
}

#[test]
fn on_the_cpu_in_fast_math() {
    let checkpoint = Checkpoint::open(&assets::tiny_glm5()).unwrap();
    tokens_are_the_same_however_they_come_about(On::Cpu(Math::Fast), &checkpoint);
    let checkpoint = Checkpoint::open(&assets::odd_glm52()).unwrap();
    tokens_are_the_same_however_they_come_about(On::Cpu(Math::Fast), &checkpoint);
}

#[test]
fn blocks_are_shared_under_equal_salts_only_and_a_miss_has_its_reason() {
    let checkpoint = Checkpoint::open(&assets::odd_glm52()).unwrap();
    let mut engine = On::Cpu(Math::Exact).engine(&checkpoint, EngineOptions::default());
    let mut ask = |salt: Option<&str>| {
        let request = GenerateRequest {
            max_tokens: Some(2),
            cache_salt: salt.map(str::to_owned),
            ..GenerateRequest::new(prompt(50, 3))
        };
        let outcome = serve(&mut engine, vec![request]).remove(0);
        let stats = engine.stats();
        let seen = stats.cache_misses.iter().filter(|(_, tokens)| *tokens > 0);
        let seen: Vec<(&str, u64)> = seen.copied().collect();
        (outcome.cached.unwrap(), outcome.tokens, seen)
    };
    let (cached, first, misses) = ask(None);
    assert_eq!((cached, misses), (0, vec![("cold", 48), ("short", 2)]));
    let (cached, tokens, misses) = ask(Some("a"));
    assert_eq!((cached, &tokens), (0, &first));
    assert_eq!(misses, [("cold", 48), ("salt", 48), ("short", 4)]);
    assert_eq!(ask(Some("b")).0, 0);
    for salt in [None, Some("a"), Some("b")] {
        let (cached, tokens, _) = ask(salt);
        assert_eq!((cached, &tokens), (48, &first), "{salt:?}");
    }
    let stats = engine.stats();
    let missed: u64 = stats.cache_misses.iter().map(|(_, tokens)| tokens).sum();
    assert_eq!((stats.prefix_queries, stats.prefix_hits), (300, 144));
    assert_eq!(missed, 156);
}

#[test]
fn an_engine_without_a_prefix_cache_hits_nothing() {
    let checkpoint = Checkpoint::open(&assets::odd_glm52()).unwrap();
    let options = EngineOptions {
        prefix_cache: false,
        ..EngineOptions::default()
    };
    let mut engine = On::Cpu(Math::Exact).engine(&checkpoint, options);
    for _ in 0..2 {
        let request = GenerateRequest {
            max_tokens: Some(2),
            ..GenerateRequest::new(prompt(50, 3))
        };
        assert_eq!(serve(&mut engine, vec![request])[0].cached, Some(0));
    }
    let stats = engine.stats();
    assert_eq!((stats.prefix_queries, stats.blocks_cached), (100, 0));
    assert!(stats.cache_misses.contains(&("disabled", 100)));
}
