//! What the tests of this crate share.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test file uses a part of it"
)]

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use glim_gguf::Gguf;
use glim_testkit::assets;
use glim_text::{Special, TextModel, TokenId, Tokenizer};
use serde_json::Value;

/// tokenizer and template of the built-in GGUF file.
pub static GGUF: LazyLock<TextModel> =
    LazyLock::new(|| TextModel::from_gguf(&Gguf::open(&assets::tiny_glm5()).unwrap()).unwrap());

/// The same from a Hugging Face folder.
pub static HF: LazyLock<TextModel> =
    LazyLock::new(|| TextModel::from_hf(&assets::odd_glm52()).unwrap());

pub fn tokenizer() -> Arc<Tokenizer> {
    Arc::clone(&GGUF.tokenizer)
}

pub fn golden(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name);
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// The folder of the GLM templates, which are not in the repository; `None` if nobody fetched them.
pub fn template_folder() -> Option<PathBuf> {
    let folder = match std::env::var_os("GLIM_TEMPLATE_DIR") {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/templates"),
    };
    folder.is_dir().then_some(folder)
}

/// The folder of llama.cpp's vocabularies, which are not in the repository; `None`, with a word about it, if nobody
/// fetched them.
pub fn vocab_folder() -> Option<PathBuf> {
    let folder = match std::env::var_os("GLIM_VOCAB_DIR") {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/vocabs"),
    };
    if !folder.is_dir() {
        println!(
            "skipped: no vocabularies in {}; fetch them with `python xtask/py/golden_text.py fetch-vocabs target/vocabs`",
            folder.display()
        );
        return None;
    }
    Some(folder)
}

pub fn ids(values: &[u32]) -> Vec<TokenId> {
    values.iter().copied().map(TokenId).collect()
}

/// Ids of text in which added tokens count.
pub fn template_ids(text: &str) -> Vec<TokenId> {
    GGUF.tokenizer.encode(text, Special::Template).unwrap()
}
