//! Engines on the repository's models.
#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod serve;

use std::path::Path;

use glim_engine::eval::Reference;
use glim_engine::{Engine, EngineOptions};
use glim_model::{Checkpoint, Inventory};
use glim_plan::WeightSource;
use glim_plan::reference::{ReferenceBackend, ReferenceOptions};

/// A reference with its near-ties, which lie beside it.
pub(crate) fn reference(path: &Path) -> Reference {
    let ties = path.with_extension("ties.safetensors");
    let files = [path, &ties].map(|path| std::fs::read(path).unwrap());
    Reference::parse(&[&files[0], &files[1]]).unwrap()
}

/// An engine whose context is `context`.
pub(crate) fn engine(checkpoint: &Checkpoint, context: usize) -> Engine {
    let options = EngineOptions {
        context: Some(context),
        ..EngineOptions::default()
    };
    engine_of(
        Inventory::of(checkpoint),
        checkpoint,
        ReferenceOptions::default(),
        options,
    )
}

/// An engine of parts.
pub(crate) fn engine_of(
    inventory: Inventory,
    weights: &dyn WeightSource,
    reference: ReferenceOptions,
    options: EngineOptions,
) -> Engine {
    Engine::new(
        inventory,
        weights,
        Box::new(ReferenceBackend::new(reference)),
        options,
    )
    .unwrap()
}
