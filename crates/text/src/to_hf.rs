//! The tokenizer files of a Hugging Face folder, from the tokenizer of a GGUF file: the way back from
//! [`from_hf`](crate::from_hf).
//!
//! `tokenizer.json` in the form of the `tokenizers` library: byte-level BPE, cut by the regular expressions of the
//! pre-tokenizer that the file names. `tokenizer_config.json` with the special tokens, `chat_template.jinja`, and the ids
//! for `config.json` and `generation_config.json`. Special tokens that a converter to GGUF gives every GLM file
//! (`[gMASK]` as bos, `<|endoftext|>` as unk; see [`to_gguf`](crate::to_gguf)) are left out, as in published folders, where
//! they would say more than the model's authors did.
//!
//! Not kept, since there is no place for it: the texts of unused tokens.

use std::collections::HashMap;

use serde_json::{Map, Value as Json, json};

use crate::pretok::{DIGIT, GPT2, PreTokenizer, Split};
use crate::to_gguf::{GLM, SPECIAL};
use crate::{TextError, TextSource, TokenKind, Vocab, VocabToken};

/// What a model's text adds to a Hugging Face folder.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HfText {
    /// Names and contents of whole files.
    pub files: Vec<(&'static str, String)>,
    /// `bos_token_id`, `eos_token_id` and `pad_token_id`, for `config.json` and `generation_config.json`.
    pub token_ids: Map<String, Json>,
}

/// All of it. `max_context` is the longest sequence in tokens; `origin`, the GGUF file, is named in errors.
///
/// # Errors
/// Two tokens with one text, which a `tokenizer.json` cannot hold.
pub fn files(text: &TextSource, max_context: usize, origin: &str) -> Result<HfText, TextError> {
    let special = special_tokens(text);
    let mut files = vec![
        ("tokenizer.json", printed(&tokenizer(&text.vocab, origin)?)),
        (
            "tokenizer_config.json",
            printed(&tokenizer_config(&text.vocab, &special, max_context)),
        ),
    ];
    if let Some(template) = &text.chat_template {
        files.push(("chat_template.jinja", template.clone()));
    }
    let names_bos = special.iter().any(|(name, _)| *name == "bos_token");
    Ok(HfText {
        files,
        token_ids: token_ids(&text.vocab, names_bos),
    })
}

fn printed(json: &Json) -> String {
    format!("{json:#}\n")
}

/// Names as in `tokenizer_config.json`, and texts; without those that every GLM file gets.
fn special_tokens(text: &TextSource) -> Vec<(&str, &str)> {
    let is_usual = |name: &str, token: &str| {
        let name = name.strip_suffix("_token").unwrap_or(name);
        let gguf = SPECIAL.iter().find(|(hf, _)| *hf == name);
        // The end of a text is what generation stops at: it is always said.
        name != "eos" && gguf.is_some_and(|(_, gguf)| GLM.contains(&(gguf, token)))
    };
    let tokens = text.special_tokens.iter();
    let tokens = tokens.map(|(name, token)| (name.as_str(), token.as_str()));
    tokens
        .filter(|(name, token)| !is_usual(name, token))
        .collect()
}

fn token_ids(vocab: &Vocab, names_bos: bool) -> Map<String, Json> {
    let stop: Vec<u32> = vocab.stop.iter().map(|id| id.0).collect();
    let stop = match stop.as_slice() {
        [] => Json::Null,
        [one] => json!(one),
        many => json!(many),
    };
    let id = |id: Option<crate::TokenId>| id.map_or(Json::Null, |id| json!(id.0));
    // Null says that there is none; without the key, transformers would take a default of its own.
    Map::from_iter([
        (
            "bos_token_id".to_owned(),
            id(vocab.bos.filter(|_| names_bos)),
        ),
        ("eos_token_id".to_owned(), stop),
        ("pad_token_id".to_owned(), id(vocab.pad)),
    ])
}

fn tokenizer_config(vocab: &Vocab, special: &[(&str, &str)], max_context: usize) -> Json {
    let mut config = Map::new();
    if vocab.add_bos {
        config.insert("add_bos_token".to_owned(), json!(true));
    }
    config.insert("clean_up_tokenization_spaces".to_owned(), json!(false));
    for (name, token) in special {
        config.insert((*name).to_owned(), json!(token));
    }
    config.insert(
        "model_input_names".to_owned(),
        json!(["input_ids", "attention_mask"]),
    );
    config.insert("model_max_length".to_owned(), json!(max_context));
    config.insert("padding_side".to_owned(), json!("left"));
    config.insert(
        "tokenizer_class".to_owned(),
        json!("PreTrainedTokenizerFast"),
    );
    Json::Object(config)
}

fn tokenizer(vocab: &Vocab, origin: &str) -> Result<Json, TextError> {
    check_texts(vocab, origin)?;
    let tokens = || (0u32..).zip(&vocab.tokens);
    let added: Vec<(u32, &VocabToken)> = tokens()
        .filter(|(_, token)| token.kind.is_added())
        .collect();
    let model_vocab = tokens().filter(|(_, token)| token.kind == TokenKind::Normal);
    let mut model_vocab: Vec<(u32, &VocabToken)> = model_vocab.collect();
    if !follow_on(&model_vocab, &added) {
        // The library numbers added tokens on from the model's vocabulary, but for those that stand in it.
        model_vocab.extend(&added);
        model_vocab.sort_by_key(|(id, _)| *id);
    }
    let model_vocab = model_vocab
        .into_iter()
        .map(|(id, token)| (token.text.clone(), json!(id)));
    let merges = vocab
        .merges
        .iter()
        .map(|(left, right)| json!([left, right]));
    let added_token = |(id, token): (u32, &VocabToken)| {
        json!({
            "id": id,
            "content": token.text,
            "single_word": false,
            "lstrip": false,
            "rstrip": false,
            "normalized": false,
            "special": token.kind != TokenKind::UserDefined,
        })
    };
    Ok(json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added.into_iter().map(added_token).collect::<Vec<_>>(),
        "normalizer": null,
        "pre_tokenizer": pre_tokenizer(vocab.pre_tokenizer),
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": vocab.ignore_merges,
            "vocab": Map::from_iter(model_vocab),
            "merges": merges.collect::<Vec<_>>(),
        },
    }))
}

/// Whether the model's tokens have the ids from 0 on and the added ones those behind them, without a gap.
fn follow_on(model: &[(u32, &VocabToken)], added: &[(u32, &VocabToken)]) -> bool {
    (0u32..)
        .zip(model.iter().chain(added))
        .all(|(expected, (id, _))| *id == expected)
}

/// In a `tokenizer.json` a text leads to one id.
fn check_texts(vocab: &Vocab, origin: &str) -> Result<(), TextError> {
    let mut seen: HashMap<&str, usize> = HashMap::with_capacity(vocab.tokens.len());
    let used = vocab
        .tokens
        .iter()
        .enumerate()
        .filter(|(_, token)| token.kind != TokenKind::Unused);
    for (id, token) in used {
        if let Some(first) = seen.insert(&token.text, id) {
            return Err(TextError::Invalid {
                place: origin.to_owned(),
                key: "tokenizer.ggml.tokens".to_owned(),
                found: format!("{:?} for token {first} and for token {id}", token.text),
                expected: "each text once, since a tokenizer.json goes from texts to ids"
                    .to_owned(),
            });
        }
    }
    Ok(())
}

/// The cuts as parts of the library, then the byte alphabet.
fn pre_tokenizer(pre: &PreTokenizer) -> Json {
    let (cuts, byte_level_cuts) = match pre.splits.split_last() {
        Some((last, cuts)) if **last == GPT2 => (cuts, true),
        _ => (pre.splits, false),
    };
    let cut = |split: &&Split| {
        if **split == DIGIT {
            return json!({"type": "Digits", "individual_digits": true});
        }
        let pattern = json!({"Regex": split.pattern});
        json!({"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": false})
    };
    let byte_level = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": byte_level_cuts,
    });
    if cuts.is_empty() {
        return byte_level;
    }
    let parts: Vec<Json> = cuts.iter().map(cut).chain([byte_level]).collect();
    json!({"type": "Sequence", "pretokenizers": parts})
}
