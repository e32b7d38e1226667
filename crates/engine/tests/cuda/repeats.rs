//! The same again, to the bit: engines of one rank and of two that share a GPU, run after run.
//!
//! A run is several requests: two beside each other, whose tokens the GPU draws itself (the one greedily, the other at random with a seed);
//! and one that brings the log-probabilities of all tokens, and with them the bits of every logit.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::ops::ControlFlow;

use glim_engine::{Engine, EngineOptions, GenerateRequest};
use glim_model::Checkpoint;
use glim_testkit::{assets, device};
use glim_text::TokenId;

use super::common;
use super::common::serve::{serve, tokens};
use super::gpu::{self, options};

/// Tokens of an answer.
fn answer() -> usize {
    device::sized(24, 6)
}

/// What came of one run: all tokens, and a hash of all log-probabilities.
type Outcome = (Vec<Vec<TokenId>>, u64);

fn run(engine: &mut Engine, prompts: &[Vec<TokenId>]) -> Outcome {
    let mut requests: Vec<GenerateRequest> = Vec::new();
    for prompt in prompts {
        let mut greedy = GenerateRequest::new(prompt.clone());
        greedy.max_tokens = Some(answer());
        let mut random = greedy.clone();
        random.sampling.temperature = 1.0;
        random.sampling.seed = 11;
        requests.extend([greedy, random]);
    }
    let mut all = tokens(&serve(engine, requests));
    let mut bits = DefaultHasher::new();
    for prompt in prompts {
        let mut request = GenerateRequest::new(prompt.clone());
        request.max_tokens = Some(answer() / 3);
        request.sampling.logprobs = Some(usize::MAX);
        let out = engine.generate(&request, |_| ControlFlow::Continue(()));
        let out = out.unwrap();
        for step in &out.logprobs {
            assert!(step.top.len() > 1000, "of all tokens");
            for (token, logprob) in &step.top {
                (token.0, logprob.to_bits()).hash(&mut bits);
            }
        }
        all.push(out.tokens);
    }
    (all, bits.finish())
}

/// Runs the engine as often as is asked for, and once more an engine that is made anew.
fn repeats_itself(make: &dyn Fn(&Checkpoint, EngineOptions) -> Engine) {
    let checkpoint = Checkpoint::open(&assets::tiny_glm5()).unwrap();
    let reference = common::reference(&assets::tiny_glm5_reference());
    let prompts: Vec<Vec<TokenId>> = reference
        .prompts
        .iter()
        // Long enough that the indexer chooses; the longest would show no more.
        .filter(|prompt| device::runs_prompt(&prompt.name) && prompt.name != "long1500")
        .map(|prompt| prompt.input_ids.clone())
        .collect();
    assert!(!prompts.is_empty(), "no prompt is run");
    let options = EngineOptions {
        context: Some(1024),
        max_num_seqs: 2 * prompts.len(),
        // Each run computes all of it.
        prefix_cache: false,
        ..EngineOptions::default()
    };
    let mut engine = make(&checkpoint, options.clone());
    let first = run(&mut engine, &prompts);
    for turn in 1..device::repeats() {
        assert_eq!(run(&mut engine, &prompts), first, "run {turn}");
    }
    drop(engine);
    let mut again = make(&checkpoint, options);
    assert_eq!(run(&mut again, &prompts), first, "made anew");
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn one_rank_gives_the_same_bits_in_every_run() {
    repeats_itself(&|checkpoint, options| gpu::engine(checkpoint, self::options(), options));
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn two_ranks_on_one_gpu_give_the_same_bits_in_every_run() {
    repeats_itself(&|checkpoint, options| {
        gpu::engine_of_ranks(checkpoint, 2, &self::options(), options)
    });
}
