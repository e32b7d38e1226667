//! Paths of the repository's models and reference files.

use std::path::PathBuf;

/// `GLIM_ASSETS` names the folder for tests that run on another machine than the one that built them.
fn asset(path: &str) -> PathBuf {
    let built = || concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets").into();
    let folder = std::env::var_os("GLIM_ASSETS").unwrap_or_else(built);
    PathBuf::from(folder).join(path)
}

/// The built-in model: tiny-glm5 as Q8_0, written by llama.cpp's converter.
pub fn tiny_glm5() -> PathBuf {
    asset("tiny-glm5/tiny-glm5-q8_0.gguf")
}

/// What an exact engine must get from [`tiny_glm5`]: transformers in float32 on the dequantised weights.
pub fn tiny_glm5_reference() -> PathBuf {
    asset("tiny-glm5/reference.safetensors")
}

/// Text that tiny-glm5 was not trained on.
pub fn heldout_text() -> PathBuf {
    asset("tiny-glm5/heldout.txt")
}

/// tiny-glm5's perplexities on [`heldout_text`].
pub fn eval_json() -> PathBuf {
    asset("tiny-glm5/eval.json")
}

/// A Hugging Face folder: random weights, full and shared indexer layers, every size different from every other.
pub fn odd_glm52() -> PathBuf {
    asset("odd-glm52")
}

/// What an exact engine must get from [`odd_glm52`]: transformers in float32.
pub fn odd_glm52_reference() -> PathBuf {
    asset("odd-glm52/reference.safetensors")
}
