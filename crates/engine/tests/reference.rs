//! The proof of the whole path: the repository's models against what transformers computed in float32.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::path::Path;

use glim_engine::eval::{Bounds, against};
use glim_model::Checkpoint;
use glim_testkit::assets;

/// Every prompt keeps to the bounds of exact arithmetic; `ties` is the number of near-ties that were verified on the way.
fn agrees(model: &Path, reference: &Path, prompts: usize, ties: usize) {
    let checkpoint = Checkpoint::open(model).unwrap();
    let reference = common::reference(reference);
    let mut engine = common::engine(&checkpoint, reference.context());
    let reports = against(&mut engine, &reference).unwrap();
    for report in &reports {
        assert_eq!(report.outside(&Bounds::EXACT), [], "{report:#?}");
        assert!(report.index_rows_compared > 0, "{report:#?}");
    }
    assert_eq!(reports.len(), prompts);
    assert_eq!(reports.iter().map(|r| r.near_ties).sum::<usize>(), ties);
}

#[test]
fn built_in_model_agrees_with_transformers() {
    agrees(&assets::tiny_glm5(), &assets::tiny_glm5_reference(), 4, 111);
}

#[test]
fn odd_model_agrees_with_transformers() {
    agrees(&assets::odd_glm52(), &assets::odd_glm52_reference(), 2, 4);
}
