//! Tokenizers written as Hugging Face files: read back, they are the same; the `tokenizers` library makes the same ids of
//! them.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::path::Path;

use glim_gguf::Gguf;
use glim_testkit::assets;
use glim_text::pretok::PRE_TOKENIZERS;
use glim_text::{
    Special, TextSource, TokenKind, Tokenizer, VocabToken, from_gguf, from_hf, to_gguf, to_hf,
};
use serde_json::{Value, json};

const CONTEXT: usize = 4096;

const TEXTS: [&str; 5] = [
    "",
    "Hello, world! It's 12345 o'clock,\n\n  and all is well.\t\r\n ",
    "Ünïcödé Straße Ж中文字 かな 한국어 🙂 e\u{301}",
    "<|user|>What is 27 + 58?<|assistant|><think>eighty-five</think>85<|endoftext|>",
    "fn main() { println!(\"{:?}\", [0x7f; 3]); } // 1_000_000 -- …",
];

fn built_in() -> TextSource {
    from_gguf::read(&Gguf::open(&assets::tiny_glm5()).unwrap()).unwrap()
}

fn write(text: &TextSource, folder: &Path) {
    let text = to_hf::files(text, CONTEXT, "m.gguf").unwrap();
    for (name, content) in &text.files {
        std::fs::write(folder.join(name), content).unwrap();
    }
    let ids = Value::Object(text.token_ids);
    std::fs::write(folder.join("generation_config.json"), ids.to_string()).unwrap();
}

fn round_trip(text: &TextSource) -> TextSource {
    let folder = tempfile::tempdir().unwrap();
    write(text, folder.path());
    from_hf::read(folder.path()).unwrap()
}

/// All that encodes and decodes. Pads at the end are not kept, nor what unused tokens are called.
#[track_caller]
fn assert_same_vocab(found: &TextSource, expected: &TextSource) {
    let tokens = |text: &TextSource| -> Vec<VocabToken> {
        let named = |token: &VocabToken| match token.kind {
            TokenKind::Unused => VocabToken {
                text: String::new(),
                kind: TokenKind::Unused,
            },
            _ => token.clone(),
        };
        let mut tokens: Vec<VocabToken> = text.vocab.tokens.iter().map(named).collect();
        while tokens
            .last()
            .is_some_and(|token| token.kind == TokenKind::Unused)
        {
            tokens.pop();
        }
        tokens
    };
    assert_eq!(tokens(found), tokens(expected));
    let (found, expected) = (&found.vocab, &expected.vocab);
    assert!(found.merges == expected.merges, "merges");
    assert_eq!(found.pre_tokenizer.splits, expected.pre_tokenizer.splits);
    assert_eq!(found.ignore_merges, expected.ignore_merges);
    assert_eq!((found.pad, &found.stop), (expected.pad, &expected.stop));
}

/// Ids of the `tokenizers` library, by its own reading of `tokenizer.json`.
#[track_caller]
fn assert_library_agrees(text: &TextSource) {
    let files = to_hf::files(text, CONTEXT, "m.gguf").unwrap().files;
    let library = tokenizers::Tokenizer::from_bytes(&files[0].1).unwrap();
    let ours = Tokenizer::new(text.vocab.clone()).unwrap();
    for sample in TEXTS {
        let expected = library.encode_fast(sample, false).unwrap();
        let mut found: Vec<u32> = ours
            .encode(sample, Special::Template)
            .unwrap()
            .iter()
            .map(|id| id.0)
            .collect();
        if text.vocab.add_bos {
            found.drain(..usize::from(text.vocab.bos.is_some()));
        }
        assert_eq!(found, expected.get_ids(), "{sample:?}");
        assert_eq!(library.decode(&found, false).unwrap(), sample);
    }
}

#[test]
fn the_built_in_tokenizer_comes_back() {
    let text = built_in();
    let found = round_trip(&text);
    assert_same_vocab(&found, &text);
    assert_eq!(found.chat_template, text.chat_template);
    assert_library_agrees(&text);
}

#[test]
fn every_pre_tokenizer_of_the_table_can_be_written() {
    for pre in PRE_TOKENIZERS {
        let mut text = built_in();
        text.vocab.pre_tokenizer = pre;
        text.vocab.ignore_merges = pre.ignore_merges;
        text.vocab.add_bos = pre.add_bos;
        let found = round_trip(&text);
        assert_same_vocab(&found, &text);
        assert_eq!(found.vocab.add_bos, pre.add_bos, "{}", pre.name);
        assert_library_agrees(&text);
    }
}

#[test]
fn added_tokens_keep_their_ids_wherever_they_stand() {
    let swapped = |a: usize, b: usize| {
        let mut text = built_in();
        text.vocab.tokens.swap(a, b);
        text
    };
    let user = 4071;
    assert_eq!(built_in().vocab.tokens[user].text, "<|user|>");
    // Behind a gap, and among the model's own tokens.
    for mut text in [swapped(user, 4090), swapped(user, 3000)] {
        text.vocab.stop.clear();
        text.special_tokens.clear();
        assert_library_agrees(&text);
        let found = round_trip(&text);
        let place = |text: &TextSource| text.vocab.tokens.iter().position(|t| t.text == "<|user|>");
        assert_eq!(place(&found), place(&text));
    }
}

#[test]
fn two_tokens_of_one_text_are_refused() {
    let mut text = built_in();
    text.vocab.tokens[77].text = "<think>".to_owned();
    let error = to_hf::files(&text, CONTEXT, "m.gguf")
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "m.gguf: `tokenizer.ggml.tokens` is \"<think>\" for token 77 and for token 4074, expected each text once, since a \
         tokenizer.json goes from texts to ids"
    );
}

#[test]
fn special_tokens_are_those_of_published_folders() {
    let text = to_hf::files(&built_in(), CONTEXT, "m.gguf").unwrap();
    let expected =
        json!({"bos_token_id": null, "eos_token_id": [4064, 4071, 4073], "pad_token_id": 4064});
    assert_eq!(Value::Object(text.token_ids), expected);
    let config: Value = serde_json::from_str(&text.files[1].1).unwrap();
    assert_eq!(config["eos_token"], "<|endoftext|>");
    assert_eq!(config["pad_token"], "<|endoftext|>");
    for absent in ["bos_token", "unk_token", "add_bos_token"] {
        assert_eq!(config.get(absent), None, "{absent}");
    }

    let mut other = built_in();
    other.special_tokens[0] = ("bos_token".to_owned(), "<sop>".to_owned());
    other.vocab.bos = Some(glim_text::TokenId(4068));
    let text = to_hf::files(&other, CONTEXT, "m.gguf").unwrap();
    assert_eq!(text.token_ids["bos_token_id"], 4068);
}

/// The keys are llama.cpp's, and they survive the folder.
#[test]
fn keys_come_back_from_the_folder() {
    let gguf = Gguf::open(&assets::tiny_glm5()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    write(&built_in(), folder.path());
    let text = from_hf::read(folder.path()).unwrap();
    let vocab_size = 4096;
    let found = to_gguf::metadata(&text, &json!({}), vocab_size, "HF").unwrap();
    let expected = gguf
        .metadata()
        .iter()
        .filter(|(key, _)| key.starts_with("tokenizer."));
    let mut count = 0;
    for (key, value) in expected {
        assert_eq!(found.get(key), Some(value), "{key}");
        count += 1;
    }
    assert_eq!(found.len(), count);
}

#[test]
fn a_vocabulary_beyond_the_embedding_is_refused() {
    let text = from_hf::read(&assets::odd_glm52()).unwrap();
    let error = to_gguf::metadata(&text, &json!({}), 4000, "HF")
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "HF: `tokenizer.json` is a vocabulary of 4085 tokens, expected at most 4000, `vocab_size` in config.json"
    );
}
