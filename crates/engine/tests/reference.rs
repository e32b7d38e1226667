//! The proof of the whole path: the built-in model and the odd one against what transformers computed in float32.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;

use glim_engine::eval::{Bounds, Reference, against};
use glim_engine::{Engine, EngineOptions};
use glim_model::{Checkpoint, Inventory};
use glim_plan::reference::{ReferenceBackend, ReferenceOptions};

fn hold(model: &Path, reference: &Path, eps: Option<f32>) {
    let mut checkpoint = Checkpoint::open(model).unwrap();
    if let Some(eps) = eps {
        checkpoint.set_latent_norm_eps(eps);
    }
    let ties = reference.with_extension("ties.safetensors");
    let files = [reference, &ties].map(|path| std::fs::read(path).unwrap());
    let reference = Reference::parse(&[&files[0], &files[1]]).unwrap();
    let backend = Box::new(ReferenceBackend::new(ReferenceOptions::default()));
    let options = EngineOptions {
        context: Some(reference.context()),
        ..EngineOptions::default()
    };
    let mut engine =
        Engine::new(Inventory::of(&checkpoint), &checkpoint, backend, options).unwrap();
    for report in against(&mut engine, &reference).unwrap() {
        println!("{report:#?}");
        assert_eq!(report.outside(&Bounds::EXACT), [], "{report:#?}");
    }
}

fn asset(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../assets")
        .join(name)
}

#[test]
fn built_in_model_agrees_with_transformers() {
    hold(
        &asset("tiny-glm5/tiny-glm5-q8_0.gguf"),
        &asset("tiny-glm5/reference.safetensors"),
        None,
    );
}

#[test]
fn odd_model_agrees_with_transformers() {
    hold(
        &asset("odd-glm52"),
        &asset("odd-glm52/reference.safetensors"),
        None,
    );
}
