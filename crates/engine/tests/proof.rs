//! The proof of what a model computes: sound models pass it, and each fault is seen by the check that should see it.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::borrow::Cow;

use glim_cpu::{CpuBackend, CpuOptions, Math};
use glim_engine::proof::{self, Arithmetic, Check, Level, Outcome, Probe};
use glim_engine::{Engine, EngineOptions};
use glim_model::{Checkpoint, Inventory};
use glim_plan::{
    Backend, BackendError, Caps, Op, Plan, ReadTarget, RopeStyle, StateDecl, StepId, StepInputs,
    StepResults, WeightData, WeightGroup, WeightSource,
};
use glim_testkit::assets;
use glim_text::{TextModel, TokenId};

/// Context of the engines: beyond what the models' indexers keep, and enough for the texts.
const CONTEXT: usize = 1024;

fn cpu(math: Math) -> Box<dyn Backend> {
    Box::new(CpuBackend::new(CpuOptions {
        math,
        threads: Some(2),
        ..CpuOptions::default()
    }))
}

fn engine(checkpoint: &Checkpoint, weights: &dyn WeightSource, backend: Box<dyn Backend>) -> Engine {
    let options = EngineOptions {
        context: Some(CONTEXT),
        ..EngineOptions::default()
    };
    Engine::new(Inventory::of(checkpoint), weights, backend, options).unwrap()
}

fn text_of(checkpoint: &Checkpoint) -> TextModel {
    match checkpoint.source() {
        glim_model::checkpoint::Source::Gguf(gguf) => TextModel::from_gguf(gguf).unwrap(),
        glim_model::checkpoint::Source::Hf(folder) => TextModel::from_hf(folder.path()).unwrap(),
    }
}

fn ids(text: &TextModel) -> Vec<TokenId> {
    let held_out = std::fs::read_to_string(assets::heldout_text()).unwrap();
    let excerpt: String = held_out.chars().skip(9000).take(3000).collect();
    text.tokenizer.encode(&excerpt, glim_text::Special::Text).unwrap()
}

/// Function and end to end of an engine, against the weights of `file`.
fn function(engine: &mut Engine, file: &dyn WeightSource, arithmetic: Arithmetic, ids: &[TokenId]) -> Vec<Check> {
    let probe = Probe {
        arithmetic,
        threads: 2,
        ids,
    };
    let mut checks = proof::function(engine, file, &probe, &mut |_, _| {});
    checks.push(proof::whole(engine, file, &probe, &mut |_, _| {}));
    checks
}

fn outcomes(checks: &[Check]) -> Vec<(&str, Outcome)> {
    checks.iter().map(|c| (c.name.as_str(), c.outcome)).collect()
}

fn say(checks: &[Check]) {
    for c in checks {
        println!("{} {} {:?}: {} | {} | {} bytes, {:.2} s", c.level, c.name, c.outcome, c.covered, c.detail, c.bytes, c.seconds);
    }
}

const SOUND: [(&str, Outcome); 3] = [
    ("prefill", Outcome::Passed),
    ("decode", Outcome::Passed),
    ("end to end", Outcome::Passed),
];

#[test]
fn exact_arithmetic_is_the_recomputation_bit_for_bit() {
    for path in [assets::tiny_glm5(), assets::odd_glm52()] {
        let checkpoint = Checkpoint::open(&path).unwrap();
        let ids = ids(&text_of(&checkpoint));
        let mut engine = engine(&checkpoint, &checkpoint, cpu(Math::Exact));
        let checks = function(&mut engine, &checkpoint, Arithmetic::Exact, &ids);
        say(&checks);
        assert_eq!(outcomes(&checks), SOUND);
        for check in &checks[..2] {
            assert!(check.detail.contains("bit for bit"), "{}", check.detail);
        }
    }
}

#[test]
fn fast_arithmetic_lies_within_its_bounds_and_uses_them() {
    for path in [assets::tiny_glm5(), assets::odd_glm52()] {
        let checkpoint = Checkpoint::open(&path).unwrap();
        let ids = ids(&text_of(&checkpoint));
        let mut engine = engine(&checkpoint, &checkpoint, cpu(Math::Fast));
        let checks = function(&mut engine, &checkpoint, Arithmetic::EightBit, &ids);
        say(&checks);
        assert_eq!(outcomes(&checks), SOUND);
        for check in &checks[..2] {
            assert!(check.detail.contains("% of its bound"), "{}", check.detail);
            assert!(check.bytes > 1 << 20);
        }
    }
}
