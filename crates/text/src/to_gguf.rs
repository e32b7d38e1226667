//! The `tokenizer.*` keys of a GGUF file, from the tokenizer of a Hugging Face folder: the way back from
//! [`from_gguf`](crate::from_gguf).
//!
//! As llama.cpp's converter writes them for the GLM family (`get_vocab_base`, `_set_vocab_glm`) with gguf-py's
//! `SpecialVocab`: special ids come from `tokenizer_config.json`, then from `config.json`, then from the texts that all
//! GLM tokenizers have. Not written: `add_bos_token` where it is false, which is what readers assume of `glm4`.

use glim_gguf::{Array, Metadata, Strings, Value};
use serde_json::Value as Json;

use crate::{TextError, TextSource, TokenKind, VocabToken};

/// Special tokens: name in Hugging Face files without `_token`, name in GGUF keys.
pub(crate) const SPECIAL: [(&str, &str); 7] = [
    ("bos", "bos"),
    ("eos", "eos"),
    ("unk", "unknown"),
    // The word is misspelt in the format itself.
    ("sep", "seperator"),
    ("pad", "padding"),
    ("cls", "cls"),
    ("mask", "mask"),
];

/// What GLM's special tokens are called, where no file says it.
pub(crate) const GLM: [(&str, &str); 5] = [
    ("bos", "[gMASK]"),
    ("eot", "<|user|>"),
    ("unknown", "<|endoftext|>"),
    ("eom", "<|observation|>"),
    ("eos", "<|endoftext|>"),
];

/// All keys about text. `config` is the folder's `config.json`, `vocab_size` the rows of the model's embedding table: ids
/// without a token become pads.
///
/// # Errors
/// More tokens than `vocab_size`; `origin`, the folder, is named.
pub fn metadata(
    text: &TextSource,
    config: &Json,
    vocab_size: usize,
    origin: &str,
) -> Result<Metadata, TextError> {
    let vocab = &text.vocab;
    if vocab.tokens.len() > vocab_size {
        return Err(TextError::Invalid {
            place: origin.to_owned(),
            key: "tokenizer.json".to_owned(),
            found: format!("a vocabulary of {} tokens", vocab.tokens.len()),
            expected: format!("at most {vocab_size}, `vocab_size` in config.json"),
        });
    }
    let mut metadata = Metadata::new();
    metadata.set("tokenizer.ggml.model", "gpt2");
    metadata.set("tokenizer.ggml.pre", vocab.pre_tokenizer.name);
    let (mut texts, mut types) = (Strings::default(), Vec::with_capacity(vocab_size));
    for id in 0..vocab_size {
        match vocab.tokens.get(id).filter(|t| t.kind != TokenKind::Unused) {
            Some(token) => {
                texts.push(&token.text);
                types.push(token_type(token));
            }
            None => {
                texts.push(&format!("[PAD{id}]"));
                types.push(UNUSED);
            }
        }
    }
    metadata.set("tokenizer.ggml.tokens", Value::Array(Array::String(texts)));
    metadata.set("tokenizer.ggml.token_type", Value::Array(Array::I32(types)));
    let merges: Strings = vocab.merges.iter().map(merge).collect();
    metadata.set("tokenizer.ggml.merges", Value::Array(Array::String(merges)));
    for (name, id) in special_ids(text, config) {
        metadata.set(format!("tokenizer.ggml.{name}_token_id"), id);
    }
    if vocab.add_bos {
        metadata.set("tokenizer.ggml.add_bos_token", true);
    }
    if let Some(template) = &text.chat_template {
        metadata.set("tokenizer.chat_template", template.as_str());
    }
    Ok(metadata)
}

const UNUSED: i32 = 5;

/// `LLAMA_TOKEN_TYPE`. Some added tokens are not marked special but look it.
fn token_type(token: &VocabToken) -> i32 {
    let looks_special = token.text.starts_with("<|") && token.text.ends_with("|>");
    match token.kind {
        TokenKind::Normal => 1,
        TokenKind::Unknown => 2,
        TokenKind::UserDefined if looks_special => 3,
        TokenKind::Control => 3,
        TokenKind::UserDefined => 4,
        TokenKind::Unused => UNUSED,
    }
}

/// `left right`. A space within a part would read as the end of it: it becomes what byte-level BPE writes for a space.
fn merge((left, right): &(String, String)) -> String {
    let part = |text: &str| text.replace(' ', "\u{120}");
    format!("{} {}", part(left), part(right))
}

/// Names in GGUF keys and ids, the more authoritative source first.
fn special_ids(text: &TextSource, config: &Json) -> Vec<(&'static str, u32)> {
    let id_of = |wanted: &str| {
        let tokens = (0u32..).zip(&text.vocab.tokens);
        let mut added = tokens.filter(|(_, token)| token.kind.is_added());
        added
            .find(|(_, token)| token.text == wanted)
            .map(|(id, _)| id)
    };
    let named = SPECIAL.iter().filter_map(|(theirs, ours)| {
        let key = format!("{theirs}_token");
        let (_, token) = text.special_tokens.iter().find(|(name, _)| *name == key)?;
        Some((*ours, id_of(token)?))
    });
    let numbered = SPECIAL.iter().filter_map(|(theirs, ours)| {
        let id = config.get(format!("{theirs}_token_id"))?;
        let id = u32::try_from(id.as_u64()?).ok()?;
        let exists = (id as usize) < text.vocab.tokens.len();
        exists.then_some((*ours, id))
    });
    let usual = GLM
        .iter()
        .filter_map(|(name, token)| Some((*name, id_of(token)?)));
    let mut ids: Vec<(&'static str, u32)> = Vec::new();
    for (name, id) in named.chain(numbered).chain(usual) {
        if ids.iter().all(|(known, _)| *known != name) {
            ids.push((name, id));
        }
    }
    ids
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merges_are_two_words() {
        let pair = |left: &str, right: &str| merge(&(left.to_owned(), right.to_owned()));
        assert_eq!(pair("h", "e"), "h e");
        assert_eq!(pair(" a", "b c"), "\u{120}a b\u{120}c");
    }

    #[test]
    fn added_tokens_that_look_special_are_control_tokens() {
        let ty = |text: &str, kind| {
            let text = text.to_owned();
            token_type(&VocabToken { text, kind })
        };
        assert_eq!(ty("<|code_prefix|>", TokenKind::UserDefined), 3);
        assert_eq!(ty("<think>", TokenKind::UserDefined), 4);
        assert_eq!(ty("<|x|>", TokenKind::Normal), 1);
    }
}
