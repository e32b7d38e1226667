//! The `tokenizer.*` keys of a synthetic model: the built-in model's, with unused tokens up to the wanted vocabulary.

use glim_gguf::{Array, Metadata, Strings, Value};

use crate::builtin;
use crate::exit::Failure;

const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
/// `LLAMA_TOKEN_TYPE_UNUSED`.
const UNUSED: i32 = 5;

/// All keys about text.
///
/// # Errors
/// A vocabulary that is smaller than the tokenizer; a glim that was built without its model.
pub(super) fn keys(vocab_size: usize) -> Result<Metadata, Failure> {
    let model = builtin::open()?;
    let all = model.metadata();
    let known = all.strings(TOKENS)?;
    let known = known.ok_or_else(|| all.missing(TOKENS, "an array of strings"))?;
    let types = all.uint_array(TYPES)?;
    let types = types.ok_or_else(|| all.missing(TYPES, "an array of integers"))?;
    if vocab_size < known.len() {
        return Err(Failure::usage(format!(
            "vocab {vocab_size}: expected at least {}, the tokens of the built-in tokenizer",
            known.len()
        )));
    }
    let mut tokens: Strings = known.iter().collect();
    // The types of tokens are small numbers.
    let mut types: Vec<i32> = types.iter().map(|&ty| ty as i32).collect();
    for id in known.len()..vocab_size {
        tokens.push(&format!("[PAD{id}]"));
        types.push(UNUSED);
    }
    let mut metadata = Metadata::new();
    for (key, value) in all.iter().filter(|(key, _)| key.starts_with("tokenizer.")) {
        let value = match key {
            TOKENS => Value::Array(Array::String(std::mem::take(&mut tokens))),
            TYPES => Value::Array(Array::I32(std::mem::take(&mut types))),
            _ => value.clone(),
        };
        metadata.set(key, value);
    }
    Ok(metadata)
}
