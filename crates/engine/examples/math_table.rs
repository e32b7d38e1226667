//! What fast math costs, type by type: the built-in model requantised on the way into the backend, the same text through exact
//! and fast math. Prints the table of docs/performance.md.
//!
//! `cargo run --release -p glim-engine --example math_table`
#![allow(clippy::unwrap_used, reason = "a measurement, not a program")]

use std::borrow::Cow;

use glim_cpu::{CpuBackend, CpuOptions, Math};
use glim_engine::eval::divergence;
use glim_engine::{Engine, EngineOptions};
use glim_gguf::Gguf;
use glim_model::{Checkpoint, Inventory};
use glim_plan::{BackendError, GgmlType, WeightData, WeightSource};
use glim_quant::{dequantize, quantize};
use glim_testkit::assets;
use glim_text::{Special, TextModel};

const WINDOW: usize = 512;
const WINDOWS: usize = 8;

/// A checkpoint whose matrices come in another type.
struct Requantised<'a> {
    checkpoint: &'a Checkpoint,
    ty: GgmlType,
}

/// Vectors, the router and rows that are no whole number of blocks stay as they are.
fn applies(shape: &[usize], name: &str, ty: GgmlType) -> bool {
    shape.len() > 1
        && !name.contains("ffn_gate_inp")
        && shape.last().is_some_and(|k| ty.row_bytes(*k).is_some())
}

impl WeightSource for Requantised<'_> {
    fn weight(&self, name: &str) -> Result<WeightData<'_>, BackendError> {
        let sound = self.checkpoint.weight(name)?;
        if !applies(&sound.shape, name, self.ty) {
            return Ok(sound);
        }
        let elements: usize = sound.shape.iter().product();
        let mut values = vec![0.0; elements];
        dequantize(sound.ty, &sound.bytes, &mut values).unwrap();
        let mut bytes = vec![0; self.ty.row_bytes(elements).unwrap()];
        quantize(self.ty, &values, &mut bytes).unwrap();
        Ok(WeightData {
            ty: self.ty,
            shape: sound.shape,
            bytes: Cow::Owned(bytes),
        })
    }
}

fn main() {
    let checkpoint = Checkpoint::open(&assets::tiny_glm5()).unwrap();
    let text = TextModel::from_gguf(&Gguf::open(&assets::tiny_glm5()).unwrap()).unwrap();
    let heldout = std::fs::read_to_string(assets::heldout_text()).unwrap();
    let ids = text.tokenizer.encode(&heldout, Special::Text).unwrap();
    println!(
        "| type | perplexity exact | fast | mean KL | largest KL | likeliest token the same |"
    );
    println!("| --- | --- | --- | --- | --- | --- |");
    for ty in GgmlType::ALL
        .iter()
        .copied()
        .filter(|ty| ty.can_encode() && ty.can_decode())
    {
        let weights = Requantised {
            checkpoint: &checkpoint,
            ty,
        };
        let rule = |spec: &glim_model::catalogue::TensorSpec| {
            let stored = checkpoint.tensor(&spec.name).unwrap();
            if applies(&stored.shape, &spec.name, ty) {
                ty
            } else {
                stored.ty
            }
        };
        let engine = |math| {
            let inventory = Inventory::on_paper(checkpoint.config(), rule);
            let backend = Box::new(CpuBackend::new(CpuOptions {
                math,
                ..CpuOptions::default()
            }));
            let options = EngineOptions {
                context: Some(WINDOW),
                ..EngineOptions::default()
            };
            Engine::new(inventory, &weights, backend, options).unwrap()
        };
        let (mut exact, mut fast) = (engine(Math::Exact), engine(Math::Fast));
        let d = divergence(&mut exact, &mut fast, &ids, WINDOW, WINDOWS, |_, _| {}).unwrap();
        println!(
            "| {ty} | {:.4} | {:.4} | {:.1e} | {:.1e} | {:.2} % |",
            d.perplexity,
            d.perplexity_other,
            d.mean_kl,
            d.max_kl,
            d.top1_agreement * 100.0
        );
    }
}
