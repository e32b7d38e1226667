//! What a rank of a real model must read for a token: the figures that its speed is held against, from the plans themselves.
#![allow(clippy::unwrap_used, reason = "tests")]

use glim_engine::{EngineOptions, EnginePlan};
use glim_model::shard::Options;
use glim_model::synth::{Changes, Classes, Shape};
use glim_model::{Config, Inventory};
use glim_plan::reference::{ReferenceBackend, ReferenceOptions};
use glim_plan::{Backend, Cost, GgmlType};

fn cost(
    shape: Shape,
    layers: Option<usize>,
    dense: GgmlType,
    rows: usize,
    context: usize,
) -> (Cost, Config) {
    let changes = Changes {
        layers,
        no_mtp: true,
        ..Changes::default()
    };
    let config = shape.config(changes).unwrap();
    let classes = Classes {
        dense,
        experts: GgmlType::Q4_K,
        router: GgmlType::F32,
    };
    let inventory = Inventory::on_paper(&config, |spec| classes.type_of(spec));
    let inventory = inventory.over(8, &Options::default()).unwrap();
    let options = EngineOptions {
        context: Some(context + 1),
        max_num_seqs: rows,
        max_chunk: 16,
        lone_rank: Some(0),
        ..EngineOptions::default()
    };
    let caps = ReferenceBackend::new(ReferenceOptions::default()).caps();
    let plan = EnginePlan::new(inventory, &caps, options).unwrap();
    assert_eq!(plan.rank_budgets().len(), 1);
    let costs = plan.decode_cost(rows, context).unwrap();
    assert_eq!(costs.len(), 1);
    (costs[0], config)
}

/// The minimal bytes of a token on a rank of eight, in GB: each weight once, 8 of 256 experts, and what little the caches hold.
#[test]
fn a_token_reads_what_was_worked_out_by_hand() {
    for (shape, dense, expected) in [
        (Shape::Glm5, GgmlType::Q8_0, 6.36),
        (Shape::Glm5, GgmlType::Q4_K, 4.38),
        (Shape::Glm52, GgmlType::Q8_0, 5.76),
        (Shape::Glm52, GgmlType::Q4_K, 4.05),
    ] {
        let (cost, _) = cost(shape, None, dense, 1, 0);
        let found = (cost.weight_bytes + cost.state_bytes) / 1e9;
        let off = (found / expected - 1.0).abs();
        assert!(
            off < 0.005,
            "{} with {dense}: {found} GB, expected {expected}",
            shape.name()
        );
    }
}

#[test]
fn rows_touch_distinct_experts_by_expectation_and_each_reads_its_caches() {
    let layers = Some(4);
    let (one, config) = cost(Shape::Glm5, layers, GgmlType::Q8_0, 1, 4096);
    let (eight, _) = cost(Shape::Glm5, layers, GgmlType::Q8_0, 8, 4096);
    assert_eq!(config.n_layers - config.moe.first_dense_layers, 1);
    // 8 of 256 experts, of 3 × 6144 × 2048 weights, a rank's eighth, 4.5 bits each; 8 rows touch 256 · (1 − (1 − 1/32)^8).
    let expert = 3.0 * 6144.0 * 2048.0 / 8.0 * 4.5 / 8.0;
    let touched = 256.0 * (1.0 - (1.0f64 - 8.0 / 256.0).powi(8));
    let embedding = 7.0 * 6144.0 / 32.0 * 34.0;
    let expected = expert * (touched - 8.0) + embedding;
    let found = eight.weight_bytes - one.weight_bytes;
    assert!((found / expected - 1.0).abs() < 1e-6, "{found} {expected}");
    // In each layer: 4097 index keys of 128, 2048 latent rows of 576, and one of both is appended; all of four bytes.
    let layer = 4.0 * (4098.0 * 128.0 + 2049.0 * 576.0);
    assert_eq!(one.state_bytes, 4.0 * layer);
    assert_eq!(eight.state_bytes, 8.0 * one.state_bytes);
}
