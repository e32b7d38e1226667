//! The seeds are sound: a fuzzer that starts from a file which the first check refuses finds little.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::{Path, PathBuf};

use glim_gguf::Gguf;
use glim_model::Checkpoint;
use glim_text::{ChatTemplate, TextModel};

fn seed(target: &str, name: &str) -> PathBuf {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    corpus.join(target).join(name)
}

#[test]
fn gguf_seeds_are_checkpoints_in_several_forms() {
    for name in ["tiny", "tiny-kv_b", "tiny-fused"] {
        let checkpoint = Checkpoint::from_gguf(Gguf::open(&seed("gguf", name)).unwrap()).unwrap();
        assert_eq!(checkpoint.config().n_layers, 2, "{name}");
        assert!(!checkpoint.mtp_tensors().is_empty(), "{name}");
    }
    Gguf::open(&seed("gguf", "tiny-values")).unwrap();
}

#[test]
fn the_seeds_of_a_folder_make_a_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let copy = |target: &str, name: &str, to: &str| {
        std::fs::copy(seed(target, name), dir.path().join(to)).unwrap();
    };
    copy("hf_config", "tiny.json", "config.json");
    copy("tokenizer_json", "tiny.json", "tokenizer.json");
    for name in ["tiny", "tiny-fp8"] {
        copy("safetensors", name, "model.safetensors");
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        assert_eq!(checkpoint.config().n_layers, 2, "{name}");
    }
    TextModel::from_hf(dir.path()).unwrap();
}

#[test]
fn the_seed_of_a_schema_is_a_schema_of_a_tool() {
    let text = std::fs::read_to_string(seed("schema", "tiny.json")).unwrap();
    let schema: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(schema["properties"]["root"].is_object());
}

#[test]
fn text_seeds_are_whole() {
    let model = TextModel::from_gguf(&Gguf::open(&seed("tokenizer_gguf", "tiny")).unwrap());
    assert!(model.unwrap().template.is_some());
    let source = std::fs::read_to_string(seed("chat_template", "tiny-glm")).unwrap();
    ChatTemplate::new(&source).unwrap();
}
