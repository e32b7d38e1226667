//! Classic faults of this model class, made on purpose: each must make a named check fail.
//!
//! The model is the odd one: every size differs from every other, its router bias is large, and its long prompt reaches far
//! beyond `index_topk`, which an indexer fault needs to show.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::borrow::Cow;

use glim_engine::eval::{Bounds, Measure, against};
use glim_engine::{EngineError, EngineOptions, GenerateRequest};
use glim_model::config::RopeStyle;
use glim_model::{Checkpoint, Inventory};
use glim_plan::reference::ReferenceOptions;
use glim_plan::{BackendError, WeightData, WeightSource};
use glim_testkit::assets;
use glim_text::TokenId;

type Change = fn(&Checkpoint, &str, WeightData<'_>) -> Option<WeightData<'static>>;

/// A checkpoint whose weights are changed on the way into the backend.
struct Faulty<'a> {
    checkpoint: &'a Checkpoint,
    change: Change,
}

impl WeightSource for Faulty<'_> {
    fn weight(&self, name: &str) -> Result<WeightData<'_>, BackendError> {
        let sound = self.checkpoint.weight(name)?;
        let changed = (self.change)(self.checkpoint, name, sound.clone());
        Ok(changed.unwrap_or(sound))
    }
}

/// Measures that leave the bounds on any prompt.
fn failures(inventory: Inventory, weights: &dyn WeightSource) -> Vec<Measure> {
    let reference = common::reference(&assets::odd_glm52_reference());
    let options = EngineOptions {
        context: Some(reference.context()),
        ..EngineOptions::default()
    };
    let mut engine = common::engine_of(inventory, weights, ReferenceOptions::default(), options);
    let reports = against(&mut engine, &reference).unwrap();
    let mut failed: Vec<Measure> = reports
        .iter()
        .flat_map(|r| r.outside(&Bounds::EXACT))
        .collect();
    failed.sort_by_key(|m| m.name());
    failed.dedup();
    failed
}

fn failures_of_weights(change: Change) -> Vec<Measure> {
    let checkpoint = Checkpoint::open(&assets::odd_glm52()).unwrap();
    failures(
        Inventory::of(&checkpoint),
        &Faulty {
            checkpoint: &checkpoint,
            change,
        },
    )
}

fn owned(data: &WeightData<'_>, bytes: Vec<u8>) -> Option<WeightData<'static>> {
    Some(WeightData {
        ty: data.ty,
        shape: data.shape.clone(),
        bytes: Cow::Owned(bytes),
    })
}

#[test]
fn the_sound_model_fails_nothing() {
    assert_eq!(failures_of_weights(|_, _, _| None), []);
}

#[test]
fn half_split_rope_in_the_indexer_fails_index_topk() {
    let checkpoint = Checkpoint::open(&assets::odd_glm52()).unwrap();
    let mut inventory = Inventory::of(&checkpoint);
    inventory.config_mut().indexer.rope_style = RopeStyle::HalfSplit;
    assert!(failures(inventory, &checkpoint).contains(&Measure::IndexTopk));
}

#[test]
fn k_b_not_transposed_fails_hidden() {
    // The bytes of [head][nope][latent] where [head][latent][nope] belongs; two-byte elements.
    let failed = failures_of_weights(|_, name, data| {
        if !name.ends_with("attn_k_b.weight") {
            return None;
        }
        let (latent, nope) = (data.shape[1], data.shape[2]);
        let mut bytes = Vec::with_capacity(data.bytes.len());
        for head in data.bytes.chunks_exact(2 * latent * nope) {
            for d in 0..nope {
                for r in 0..latent {
                    bytes.extend_from_slice(&head[2 * (r * nope + d)..][..2]);
                }
            }
        }
        owned(&data, bytes)
    });
    assert!(failed.contains(&Measure::Hidden), "{failed:?}");
}

#[test]
fn a_dropped_router_bias_fails_router() {
    let failed = failures_of_weights(|_, name, data| {
        name.ends_with("exp_probs_b.bias")
            .then(|| owned(&data, vec![0; data.bytes.len()]))?
    });
    assert!(failed.contains(&Measure::Router), "{failed:?}");
}

#[test]
fn exchanged_gate_and_up_fail_hidden() {
    let failed = failures_of_weights(|checkpoint, name, data| {
        let other = match name {
            n if n.contains("ffn_gate_exps") => n.replace("ffn_gate", "ffn_up"),
            n if n.contains("ffn_up_exps") => n.replace("ffn_up", "ffn_gate"),
            _ => return None,
        };
        owned(&data, checkpoint.weight(&other).unwrap().bytes.into_owned())
    });
    assert!(failed.contains(&Measure::Hidden), "{failed:?}");
}

/// The phantom output: an operation that does not write what it should. With poison the operation itself is named.
#[test]
fn nan_left_by_a_skipped_operation_is_named() {
    let checkpoint = Checkpoint::open(&assets::odd_glm52()).unwrap();
    let run = |skip: Option<&str>| {
        let reference = ReferenceOptions {
            poison: true,
            skip: skip.map(str::to_owned),
            ..ReferenceOptions::default()
        };
        let options = EngineOptions {
            context: Some(128),
            ..EngineOptions::default()
        };
        let mut engine =
            common::engine_of(Inventory::of(&checkpoint), &checkpoint, reference, options);
        let mut request = GenerateRequest::new((1..60).map(TokenId).collect());
        request.max_tokens = Some(2);
        engine.generate(&request, |_| std::ops::ControlFlow::Continue(()))
    };
    run(None).unwrap();
    for label in [
        "blk.2.attn_v_b",
        "blk.3.experts",
        "blk.0.indexer.select",
        "output",
    ] {
        match run(Some(label)).unwrap_err() {
            EngineError::Backend(BackendError::Poison { op, .. }) => assert_eq!(op, label),
            other => panic!("{label}: {other}"),
        }
    }
}

/// A request whose logits are broken may have broken rows: nobody goes on from them.
#[test]
fn rows_of_a_request_with_broken_logits_are_not_used_again() {
    let checkpoint = Checkpoint::open(&assets::odd_glm52()).unwrap();
    let cached = |change: Change| {
        let weights = Faulty {
            checkpoint: &checkpoint,
            change,
        };
        let options = EngineOptions {
            context: Some(128),
            block_size: 16,
            ..EngineOptions::default()
        };
        let inventory = Inventory::of(&checkpoint);
        let mut engine =
            common::engine_of(inventory, &weights, ReferenceOptions::default(), options);
        let mut request = GenerateRequest::new((1..60).map(TokenId).collect());
        request.max_tokens = Some(2);
        let result = engine.generate(&request, |_| std::ops::ControlFlow::Continue(()));
        let stats = engine.stats();
        assert_eq!(stats.blocks_used, 0);
        (result.map(|out| out.tokens.len()), stats.blocks_cached)
    };
    assert!(matches!(cached(|_, _, _| None), (Ok(2), 3)));
    let broken: Change = |_, name, data| {
        let nan = f32::NAN.to_le_bytes().repeat(data.bytes.len() / 4);
        (name == "output_norm.weight").then(|| owned(&data, nan))?
    };
    match cached(broken) {
        (Err(EngineError::CorruptLogits { position: 59 }), 0) => {}
        other => panic!("{other:?}"),
    }
}
