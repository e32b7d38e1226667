//! Against transformers: what is computed, whichever way the kernels are launched.

use std::path::Path;

use glim_cuda::{CudaOptions, Math};
use glim_engine::eval::{Bounds, PromptReport, Reference, against};
use glim_model::Checkpoint;
use glim_testkit::assets;

use super::common;
use super::gpu::{self, options};

/// The prompts that are run.
fn chosen(path: &Path) -> Reference {
    let mut reference = common::reference(path);
    reference
        .prompts
        .retain(|p| glim_testkit::device::runs_prompt(&p.name));
    reference
}

fn reports(model: &Path, reference: &Reference, options: CudaOptions) -> Vec<PromptReport> {
    let checkpoint = Checkpoint::open(model).unwrap();
    let mut engine = gpu::engine(&checkpoint, options, gpu::context(reference.context()));
    against(&mut engine, reference).unwrap()
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn exact_math_agrees_with_transformers() {
    for (model, reference) in [
        (assets::odd_glm52(), assets::odd_glm52_reference()),
        (assets::tiny_glm5(), assets::tiny_glm5_reference()),
    ] {
        let reference = chosen(&reference);
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
    let reference = chosen(&assets::tiny_glm5_reference());
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
