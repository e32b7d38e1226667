//! The CUDA backend through the engine, on a GPU or on the emulator: what it computes is what the reference computed, whichever way its
//! kernels are launched.
//!
//! `GLIM_CUDA_LIBRARIES` names the emulator's folder (`cargo xtask emulate` sets it), `GLIM_CUDA_CACHE` one for compiled kernels,
//! `GLIM_CUDA_PROMPTS` the reference's prompts that are run (all of them on a GPU).
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::path::{Path, PathBuf};

use glim_cuda::cache::Cache;
use glim_cuda::{CudaBackend, CudaOptions, Math, libraries};
use glim_engine::eval::{Bounds, PromptReport, Reference, against};
use glim_engine::{Engine, EngineOptions};
use glim_model::{Checkpoint, Inventory};
use glim_testkit::assets;

fn options() -> CudaOptions {
    if let Some(folder) = std::env::var_os("GLIM_CUDA_LIBRARIES") {
        libraries::preload(&PathBuf::from(folder));
    }
    CudaOptions {
        cache: Cache {
            folder: std::env::var_os("GLIM_CUDA_CACHE").map(PathBuf::from),
            prebuilt: None,
        },
        ..CudaOptions::default()
    }
}

fn chosen(mut reference: Reference) -> Reference {
    let names = std::env::var("GLIM_CUDA_PROMPTS").unwrap_or_default();
    if !names.is_empty() {
        let names: Vec<&str> = names.split(',').collect();
        reference
            .prompts
            .retain(|p| names.contains(&p.name.as_str()));
    }
    reference
}

fn reports(model: &Path, reference: &Reference, options: CudaOptions) -> Vec<PromptReport> {
    let checkpoint = Checkpoint::open(model).unwrap();
    let backend = Box::new(CudaBackend::new(options).unwrap());
    let options = EngineOptions {
        context: Some(reference.context()),
        ..EngineOptions::default()
    };
    let mut engine =
        Engine::new(Inventory::of(&checkpoint), &checkpoint, backend, options).unwrap();
    against(&mut engine, reference).unwrap()
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn exact_math_agrees_with_transformers() {
    for (model, reference) in [
        (assets::odd_glm52(), assets::odd_glm52_reference()),
        (assets::tiny_glm5(), assets::tiny_glm5_reference()),
    ] {
        let reference = chosen(common::reference(&reference));
        let exact = CudaOptions {
            math: Math::Exact,
            ..options()
        };
        for report in reports(&model, &reference, exact) {
            assert_eq!(report.outside(&Bounds::EXACT), [], "{report:#?}");
        }
    }
}

/// The bounds of the CPU's fast math.
#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn fast_math_stays_close_and_replays_to_the_bit() {
    let reference = chosen(common::reference(&assets::tiny_glm5_reference()));
    let run = |options| reports(&assets::tiny_glm5(), &reference, options);
    let replayed = run(options());
    for report in &replayed {
        assert!(report.mean_kl <= 1e-3, "{report:#?}");
        assert!(
            report.top1_agreement >= 0.9 && report.greedy_match,
            "{report:#?}"
        );
    }
    let eager = run(CudaOptions {
        graphs: false,
        ..options()
    });
    assert_eq!(eager, replayed, "graphs change bits");
    let poisoned = run(CudaOptions {
        poison: true,
        ..options()
    });
    assert_eq!(poisoned, replayed, "poison changes bits");
}
