//! Engines on a GPU.

use std::sync::Arc;
use std::time::Duration;

use glim_cuda::cache::Cache;
use glim_cuda::{CudaBackend, CudaOptions, GpuGroup, Transport, libraries};
use glim_engine::{Engine, EngineOptions, EnginePlan, Rank};
use glim_model::shard::Options;
use glim_model::{Checkpoint, Inventory};
use glim_plan::Backend;
use glim_testkit::device;

/// How long a rank waits for another. Before the first step that may be until all kernels are compiled, by a C++ compiler for the emulator.
const PATIENT: Duration = Duration::from_secs(600);

/// Options for a test.
pub(crate) fn options() -> CudaOptions {
    if let Some(folder) = device::emulator() {
        libraries::preload(&folder);
    }
    CudaOptions {
        cache: Cache {
            folder: device::kernel_cache(),
            prebuilt: None,
        },
        apart: device::apart(),
        ..CudaOptions::default()
    }
}

/// A context of so many tokens.
pub(crate) fn context(tokens: usize) -> EngineOptions {
    EngineOptions {
        context: Some(tokens),
        ..EngineOptions::default()
    }
}

/// An engine on one GPU.
pub(crate) fn engine(checkpoint: &Checkpoint, cuda: CudaOptions, options: EngineOptions) -> Engine {
    let backend = Box::new(CudaBackend::new(cuda).unwrap());
    engine_on(checkpoint, backend, options)
}

/// An engine on a backend that stands around one of a GPU.
pub(crate) fn engine_on(
    checkpoint: &Checkpoint,
    backend: Box<dyn Backend>,
    options: EngineOptions,
) -> Engine {
    Engine::new(Inventory::of(checkpoint), checkpoint, backend, options).unwrap()
}

/// An engine of several ranks on one GPU, each with a stream of its own, that meet by the kernels that pull.
pub(crate) fn engine_of_ranks(
    checkpoint: &Checkpoint,
    world_size: usize,
    cuda: &CudaOptions,
    options: EngineOptions,
) -> Engine {
    let group = GpuGroup::new(&vec![cuda.gpu; world_size], Transport::Pull, PATIENT).unwrap();
    let inventory = Inventory::of(checkpoint);
    let inventory = inventory.over(world_size, &Options::default()).unwrap();
    let shards = inventory.shards().unwrap();
    let backend = |rank| {
        CudaBackend::new(CudaOptions {
            ranks: group.rank(rank),
            ..cuda.clone()
        })
    };
    let weights: Vec<_> = (0..world_size)
        .map(|rank| shards.rank(checkpoint, rank).unwrap())
        .collect();
    let ranks: Vec<Rank<'_>> = weights
        .iter()
        .enumerate()
        .map(|(rank, weights)| Rank {
            backend: Box::new(backend(rank).unwrap()),
            weights,
        })
        .collect();
    let plan = EnginePlan::new(inventory.clone(), &ranks[0].backend.caps(), options).unwrap();
    Engine::load_ranks(plan, ranks, Some(Arc::new(group))).unwrap()
}
