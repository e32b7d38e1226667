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
    }))
}

#[test]
fn exact_math_is_the_reference_bit_for_bit() {
    for (model, path) in [
        (assets::tiny_glm5(), assets::tiny_glm5_reference()),
        (assets::odd_glm52(), assets::odd_glm52_reference()),
    ] {
        let reference = common::reference(&path);
        let scalar = Box::new(ReferenceBackend::new(ReferenceOptions::default()));
        let expected = reports(&model, &reference, scalar);
        for isa in Isa::available() {
            let found = reports(&model, &reference, cpu(Math::Exact, isa));
            assert_eq!(found, expected, "{isa}");
            assert!(found.iter().all(|r| r.outside(&Bounds::EXACT).is_empty()));
        }
    }
}

#[test]
fn fast_math_stays_close() {
    let reference = common::reference(&assets::tiny_glm5_reference());
    for isa in Isa::available() {
        for report in reports(&assets::tiny_glm5(), &reference, cpu(Math::Fast, isa)) {
            println!("{isa} {report:#?}");
            assert!(report.mean_kl <= 1e-3, "{report:#?}");
        }
    }
}
