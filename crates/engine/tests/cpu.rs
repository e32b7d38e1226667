//! The CPU backend through the engine: exact math gives the reference's bits, fast math stays close.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;

use glim_cpu::{CpuBackend, CpuOptions, Isa, Math};
use glim_engine::eval::{Bounds, PromptReport, Reference, against};
use glim_engine::{Engine, EngineOptions};
use glim_model::{Checkpoint, Inventory};
use glim_plan::Backend;
use glim_plan::reference::{ReferenceBackend, ReferenceOptions};
use glim_testkit::assets;

mod common;

fn reports(model: &Path, reference: &Reference, backend: Box<dyn Backend>) -> Vec<PromptReport> {
    let checkpoint = Checkpoint::open(model).unwrap();
    let options = EngineOptions {
        context: Some(reference.context()),
        ..EngineOptions::default()
    };
    let mut engine =
        Engine::new(Inventory::of(&checkpoint), &checkpoint, backend, options).unwrap();
    against(&mut engine, reference).unwrap()
}

fn cpu(math: Math, isa: Isa) -> Box<dyn Backend> {
    Box::new(CpuBackend::new(CpuOptions {
        math,
        isa: Some(isa),
        threads: Some(2),
        poison: true,
        ..CpuOptions::default()
    }))
}

/// The prompts of the built-in model that are short enough for every kernel set in a debug build.
fn tiny(prompts: &[&str]) -> Reference {
    let mut reference = common::reference(&assets::tiny_glm5_reference());
    reference
        .prompts
        .retain(|p| prompts.contains(&p.name.as_str()));
    reference
}

#[test]
fn what_is_planned_is_allocated_before_the_first_step() {
    let checkpoint = Checkpoint::open(&assets::tiny_glm5()).unwrap();
    let options = EngineOptions {
        context: Some(256),
        ..EngineOptions::default()
    };
    let backend = cpu(Math::Fast, Isa::detect());
    let engine = Engine::new(Inventory::of(&checkpoint), &checkpoint, backend, options).unwrap();
    let (planned, found) = (engine.budget(), engine.allocated());
    let [Some(found)] = found else {
        panic!("{found:?}");
    };
    assert_eq!(found.weights, planned.weights);
    assert_eq!(found.arena, planned.arena);
    // With the tokens that are carried, a word for each sequence.
    let caches = planned.latent_cache + planned.index_cache;
    assert!(
        (caches..caches + 1024).contains(&found.states),
        "{planned:?} {found:?}"
    );
}

#[test]
fn exact_math_is_the_reference_bit_for_bit() {
    let odd = common::reference(&assets::odd_glm52_reference());
    for (model, reference) in [
        (assets::tiny_glm5(), tiny(&["short", "chat"])),
        (assets::odd_glm52(), odd),
    ] {
        let scalar = Box::new(ReferenceBackend::new(ReferenceOptions::default()));
        let expected = reports(&model, &reference, scalar);
        for isa in Isa::available() {
            let found = reports(&model, &reference, cpu(Math::Exact, isa));
            assert_eq!(found, expected, "{isa}");
            assert!(found.iter().all(|r| r.outside(&Bounds::EXACT).is_empty()));
        }
    }
}

/// Mean KL to the float32 reference at Q8_0, bound and all: 1e-3; long prompts, where the indexer chooses, on the best kernels.
#[test]
fn fast_math_stays_close() {
    for isa in Isa::available() {
        let prompts: &[&str] = match isa == Isa::detect() {
            true => &["short", "chat", "long700"],
            false => &["short", "chat"],
        };
        for report in reports(&assets::tiny_glm5(), &tiny(prompts), cpu(Math::Fast, isa)) {
            assert!(report.mean_kl <= 1e-3, "{isa}: {report:#?}");
            assert!(
                report.top1_agreement >= 0.9 && report.greedy_match,
                "{isa}: {report:#?}"
            );
        }
    }
}
