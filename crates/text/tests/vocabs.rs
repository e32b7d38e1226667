//! Whole vocabularies against llama.cpp's test vectors: the ids that the models' own tokenizers give.
//!
//! The files are large and not in the repository: `xtask/py/golden_text.py fetch-vocabs target/vocabs` fetches them;
//! `GLIM_VOCAB_DIR` names another folder.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::path::Path;

use common::{ids, vocab_folder};
use glim_gguf::Gguf;
use glim_text::{Special, TokenId, Tokenizer, from_gguf};

/// Between the texts of a `.inp` file.
const NEXT: &str = "\n__ggml_vocab_test__\n";

/// File, row of the table that its name leads to.
const VOCABS: [(&str, &str); 6] = [
    ("llama-bpe", "llama-bpe"),
    ("qwen2", "qwen2"),
    ("deepseek-llm", "deepseek-llm"),
    ("gpt-2", "gpt-2"),
    ("starcoder", "smollm"),
    ("refact", "smollm"),
];

fn open(folder: &Path, name: &str) -> Gguf {
    Gguf::open(&folder.join(format!("ggml-vocab-{name}.gguf"))).unwrap()
}

/// (text, ids) of a vocabulary.
fn vectors(folder: &Path, name: &str) -> Vec<(String, Vec<TokenId>)> {
    let texts = std::fs::read_to_string(folder.join("ggml-vocab-gpt-2.gguf.inp")).unwrap();
    let outs = folder.join(format!("ggml-vocab-{name}.gguf.out"));
    let outs = std::fs::read_to_string(outs).unwrap();
    let parse = |line: &str| {
        let values: Vec<u32> = line
            .split_whitespace()
            .map(|id| id.parse().unwrap())
            .collect();
        ids(&values)
    };
    let texts: Vec<&str> = texts.strip_suffix(NEXT).unwrap().split(NEXT).collect();
    let outs: Vec<_> = outs.lines().map(parse).collect();
    assert!(texts.len() > 40, "{name}: {} texts", texts.len());
    assert_eq!(texts.len(), outs.len(), "{name}");
    texts.into_iter().map(str::to_owned).zip(outs).collect()
}

#[test]
fn vocabularies_give_the_ids_of_the_test_vectors() {
    let Some(folder) = vocab_folder() else { return };
    for (name, row) in VOCABS {
        let source = from_gguf::read(&open(&folder, name)).unwrap();
        let mut vocab = source.vocab;
        assert_eq!(vocab.pre_tokenizer.name, row, "{name}");
        // The vectors are without it.
        vocab.add_bos = false;
        let tokenizer = Tokenizer::new(vocab).unwrap();
        for (text, expected) in vectors(&folder, name) {
            let found = tokenizer.encode(&text, Special::Text).unwrap();
            assert_eq!(found, expected, "{name}: {text:?}");
        }
    }
}
