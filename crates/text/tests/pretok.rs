//! The table of pre-tokenizers: how each row cuts, against the `tokenizers` library with the published expressions.
//! Goldens: `xtask/py/golden_text.py pretok`. The same rows with whole vocabularies: `vocabs.rs`.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::Instant;

use common::golden;
use glim_text::pretok::{self, PRE_TOKENIZERS};
use glim_text::{MAX_BLANK_RUN, Splitter, TextError};
use proptest::prelude::*;

/// The rows of a golden, by the name under which it stands there.
fn golden_name(name: &str) -> &str {
    match name {
        "glm4" | "chatglm-bpe" => "llama-bpe",
        other => other,
    }
}

#[test]
fn every_row_cuts_as_the_reference_does() {
    let golden = golden("pretok.json");
    let cut = golden["cut"].as_str().unwrap();
    for row in PRE_TOKENIZERS {
        let splitter = Splitter::new(row).unwrap();
        let texts = golden["texts"][golden_name(row.name)].as_array().unwrap();
        assert!(texts.len() >= 60, "{}", row.name);
        for expected in texts {
            let expected = expected.as_str().unwrap();
            let pieces = splitter
                .pieces(&expected.replace(cut, ""))
                .unwrap()
                .join(cut);
            assert_eq!(pieces, expected, "{}", row.name);
        }
    }
}

#[test]
fn rows_differ_where_the_models_do() {
    let cases: [(&str, &str, &[&str]); 12] = [
        ("llama-bpe", "12345", &["123", "45"]),
        ("qwen2", "12345", &["1", "2", "3", "4", "5"]),
        ("gpt-2", "x 12345", &["x", " 12345"]),
        ("smollm", "x 12345", &["x", " ", "1", "2", "3", "4", "5"]),
        ("deepseek-llm", "x12345", &["x", "12345"]),
        ("deepseek-v3", "x12345", &["x", "123", "45"]),
        ("gpt-2", "I'M", &["I", "'", "M"]),
        ("qwen2", "I'M", &["I", "'M"]),
        ("deepseek-llm", "中文 abc", &["中文", " abc"]),
        ("deepseek-v3", "中文abc", &["中文", "abc"]),
        ("qwen2", "中文abc", &["中文abc"]),
        ("deepseek-v3", "#include", &["#include"]),
    ];
    for (name, text, pieces) in cases {
        let splitter = Splitter::new(pretok::by_name(name).unwrap()).unwrap();
        assert_eq!(splitter.pieces(text).unwrap(), pieces, "{name}");
    }
}

#[test]
fn names_and_expressions_lead_back_to_their_row() {
    let mut names = Vec::new();
    for row in PRE_TOKENIZERS {
        for name in row.aliases.iter().chain([&row.name]) {
            assert_eq!(pretok::by_name(name), Some(row));
            assert!(pretok::known_names().contains(name));
            names.push(*name);
        }
        // Each place in turn in each of its spellings. Rows may share expressions.
        let patterns: Vec<&str> = row.splits.iter().map(|split| split.pattern).collect();
        for (n, split) in row.splits.iter().enumerate() {
            for spelling in split.spellings.iter().chain([&split.pattern]) {
                let mut patterns = patterns.clone();
                patterns[n] = spelling;
                let found = pretok::by_patterns(&patterns).unwrap();
                assert_eq!(found.splits, row.splits, "{}", row.name);
            }
        }
        let longer = [patterns.as_slice(), &[r"\w+"]].concat();
        assert_eq!(pretok::by_patterns(&longer), None);
    }
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count, "a name stands for two rows");
    assert_eq!(pretok::by_patterns(&[]), None);
    assert_eq!(pretok::by_name("default"), None);
    assert_eq!(pretok::by_name(""), None);
}

#[test]
fn long_runs_are_cut_in_linear_time() {
    // Quadratic time would be hours for the blanks, minutes for the rest.
    let (blanks, n) = (MAX_BLANK_RUN, MAX_BLANK_RUN / 8);
    let texts = [
        format!("{}中", " ".repeat(blanks)),
        format!("a{}b", "\u{3000}".repeat(blanks)),
        format!("{}\n", "\t".repeat(blanks - 1)),
        format!("{}!", "x".repeat(n)),
        "9".repeat(n),
        format!("{}a", "\u{301}".repeat(n)),
        format!("{}\u{0}", "!".repeat(n)),
        "中".repeat(n),
        "\r\n".repeat(n),
        " \u{1}".repeat(n),
    ];
    for row in PRE_TOKENIZERS {
        let splitter = Splitter::new(row).unwrap();
        for text in &texts {
            let start = Instant::now();
            let pieces = splitter.pieces(text).unwrap();
            assert_eq!(pieces.concat().len(), text.len());
            let seconds = start.elapsed().as_secs_f64();
            let shown: String = text.chars().take(4).collect();
            assert!(seconds < 20.0, "{}: {shown:?}… took {seconds} s", row.name);
        }
        let absurd = " ".repeat(blanks + 1);
        let absurd = splitter.pieces(&absurd);
        assert!(matches!(absurd, Err(TextError::BlankRun { at: 0, .. })));
    }
}

proptest! {
    #[test]
    fn pieces_are_the_text_and_none_is_empty(
        text in r"([ \t\r\n\x{A0}\x{3000}]{0,3}|[a-zA-ZéΩǅʔ]{1,4}|[0-9²]{1,5}|[!'#.。—]{1,3}|[中あ한]{1,3}|\PC|.){0,12}",
        row in 0..PRE_TOKENIZERS.len(),
    ) {
        let splitter = Splitter::new(&PRE_TOKENIZERS[row]).unwrap();
        let pieces = splitter.pieces(&text).unwrap();
        prop_assert_eq!(pieces.concat(), text.as_str());
        prop_assert!(pieces.iter().all(|piece| !piece.is_empty()));
    }
}
