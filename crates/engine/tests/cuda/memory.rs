//! The memory that an engine plans is the memory that its backends have.

use glim_cuda::CudaOptions;
use glim_engine::Engine;
use glim_model::Checkpoint;
use glim_plan::Allocated;
use glim_testkit::assets;

use crate::gpu;

/// Of the rank that holds most.
fn allocated(engine: &Engine) -> Allocated {
    let ranks = engine.allocated().iter().flatten();
    *ranks.max_by_key(|allocated| allocated.total()).unwrap()
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn what_is_planned_is_allocated_before_the_first_step() {
    let checkpoint = Checkpoint::open(&assets::tiny_glm5()).unwrap();
    let options = CudaOptions {
        apart: false,
        ..gpu::options()
    };
    let one = gpu::engine(&checkpoint, options.clone(), gpu::context(256));
    let two = gpu::engine_of_ranks(&checkpoint, 2, &options, gpu::context(256));
    for (engine, ranks) in [(one, 1), (two, 2)] {
        assert_eq!(engine.allocated().iter().flatten().count(), ranks);
        let (planned, found) = (engine.budget(), allocated(&engine));
        // Weights and caches begin at multiples of 256 bytes; tokens that are carried take a few more.
        let near = |found: u64, planned: u64| (planned..planned + (64 << 10)).contains(&found);
        assert!(
            near(found.weights, planned.weights),
            "{planned:?} {found:?}"
        );
        let caches = planned.latent_cache + planned.index_cache;
        assert!(near(found.states, caches), "{planned:?} {found:?}");
        assert_eq!(found.arena, planned.arena);
        assert!(found.pinned > 0);
    }
}
