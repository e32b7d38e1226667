//! The tokenizer against the `tokenizers` library: identical ids, from the GGUF file and from the Hugging Face folder.
//! Goldens: `xtask/py/golden_text.py encode`.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::Instant;

use common::{GGUF, HF, golden, ids};
use glim_testkit::assets;
use glim_text::{MAX_BLANK_RUN, Special, TextError, TokenId, TokenKind, Tokenizer};

fn check_golden(kind: &str, special: Special) {
    let golden = golden("encode.json");
    let cases = golden[kind].as_array().unwrap();
    assert!(!cases.is_empty());
    for case in cases {
        let text = case["text"].as_str().unwrap();
        let expected: Vec<u32> = case["ids"]
            .as_array()
            .unwrap()
            .iter()
            .map(|id| id.as_u64().unwrap() as u32)
            .collect();
        for (source, model) in [("gguf", &GGUF), ("hf", &HF)] {
            assert_eq!(
                model.tokenizer.encode(text, special).unwrap(),
                ids(&expected),
                "{source}: {text:?}"
            );
        }
    }
}

#[test]
fn plain_text_gives_the_ids_of_the_reference() {
    check_golden("text", Special::Text);
}

#[test]
fn template_text_gives_the_ids_of_the_reference() {
    check_golden("template", Special::Template);
}

#[test]
fn held_out_text_gives_the_ids_of_the_evaluation() {
    let text = std::fs::read_to_string(assets::heldout_text()).unwrap();
    let eval: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(assets::eval_json()).unwrap()).unwrap();
    for model in [&GGUF, &HF] {
        let ids = model.tokenizer.encode(&text, Special::Text).unwrap();
        assert_eq!(ids.len() as u64, eval["heldout_tokens"].as_u64().unwrap());
        // The evaluation's checksum is over the ids as little-endian u16.
        let bytes: Vec<u8> = ids
            .iter()
            .flat_map(|id| u16::try_from(id.0).unwrap().to_le_bytes())
            .collect();
        assert_eq!(
            u64::from(crc32(&bytes)),
            eval["heldout_ids_crc32"].as_u64().unwrap()
        );
    }
}

/// CRC-32 as in zlib.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0xEDB8_8320 & (crc & 1).wrapping_neg())
        })
    })
}

#[test]
fn both_sources_tell_the_same_about_tokens() {
    let (gguf, hf) = (&GGUF.tokenizer, &HF.tokenizer);
    // The GGUF file has pad entries up to the model's number of logits.
    assert_eq!((gguf.vocab_size(), hf.vocab_size()), (4096, 4085));
    for id in (0..4085).map(TokenId) {
        assert_eq!(gguf.token_bytes(id), hf.token_bytes(id), "{id:?}");
        assert_eq!(gguf.kind(id), hf.kind(id), "{id:?}");
        assert_eq!(gguf.is_special(id), hf.is_special(id), "{id:?}");
    }
    assert_eq!(gguf.kind(TokenId(4085)), Some(TokenKind::Unused));
    assert_eq!(gguf.kind(TokenId(4096)), None);
    for tokenizer in [gguf, hf] {
        assert_eq!(tokenizer.stop_ids(), ids(&[4064, 4071, 4073]));
        assert_eq!(tokenizer.id_of("<|user|>"), Some(TokenId(4071)));
        assert_eq!(
            tokenizer.token_text(TokenId(4071)).as_deref(),
            Some("<|user|>")
        );
        assert_eq!(tokenizer.token_bytes(TokenId(9999)), None);
    }
    assert_eq!(gguf.bos(), Some(TokenId(4066)));
}

#[test]
fn every_token_is_found_by_its_text() {
    let tokenizer = &GGUF.tokenizer;
    for id in (0..4085).map(TokenId) {
        if let Ok(text) = std::str::from_utf8(tokenizer.token_bytes(id).unwrap()) {
            assert_eq!(tokenizer.id_of(text), Some(id), "{text:?}");
        }
    }
    assert_eq!(tokenizer.id_of("no such token at all"), None);
}

#[test]
fn user_text_never_holds_added_tokens() {
    let tokenizer = &GGUF.tokenizer;
    for (text, _) in tokenizer.added_tokens().iter() {
        for id in tokenizer.encode(text, Special::Text).unwrap() {
            assert_eq!(tokenizer.kind(id), Some(TokenKind::Normal), "{text}");
        }
    }
}

#[test]
fn a_bos_token_is_added_only_where_the_file_asks_for_it() {
    let mut vocab = GGUF.tokenizer.vocab().clone();
    let plain = GGUF.tokenizer.encode("a", Special::Text).unwrap();
    vocab.add_bos = true;
    let with_bos = Tokenizer::new(vocab)
        .unwrap()
        .encode("a", Special::Text)
        .unwrap();
    assert_eq!(with_bos, [vec![TokenId(4066)], plain].concat());
}

#[test]
fn ignore_merges_takes_a_whole_piece_that_is_a_token() {
    let mut vocab = GGUF.tokenizer.vocab().clone();
    let whole = TokenId(vocab.tokens.len() as u32);
    vocab.tokens.push(glim_text::VocabToken {
        text: "qqqqq".to_owned(),
        kind: TokenKind::Normal,
    });
    for ignore_merges in [true, false] {
        vocab.ignore_merges = ignore_merges;
        let ids = Tokenizer::new(vocab.clone())
            .unwrap()
            .encode("qqqqq", Special::Text)
            .unwrap();
        assert_eq!(ids == [whole], ignore_merges, "{ids:?}");
    }
}

/// The tokenizer of the built-in model without the token of a byte, given in the byte alphabet.
fn without(byte: &str) -> Result<Tokenizer, TextError> {
    let mut vocab = GGUF.tokenizer.vocab().clone();
    let slot = vocab
        .tokens
        .iter()
        .position(|token| token.text == byte)
        .unwrap();
    vocab.tokens[slot].kind = TokenKind::Unused;
    Tokenizer::new(vocab)
}

#[test]
fn a_vocabulary_without_the_characters_of_ascii_is_refused() {
    for (byte, words) in [("!", "byte 0x21"), ("~", "byte 0x7e"), ("Ċ", "byte 0x0a")] {
        let error = without(byte).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn a_text_with_a_byte_that_has_no_token_is_refused() {
    // 0xf1 begins the characters from U+40000 on.
    let tokenizer = without("ñ").unwrap();
    let error = tokenizer.encode("ab\u{40000}", Special::Text).unwrap_err();
    assert!(
        matches!(error, TextError::ByteWithoutToken { byte: 0xf1, at: 2 }),
        "{error}"
    );
    let text = "ab\u{3ffff}ñ";
    assert_eq!(
        tokenizer.encode(text, Special::Text).unwrap(),
        GGUF.tokenizer.encode(text, Special::Text).unwrap()
    );
}

#[test]
fn merges_that_make_no_token_are_refused() {
    let longest = GGUF
        .tokenizer
        .vocab()
        .tokens
        .iter()
        .filter(|t| t.kind == TokenKind::Normal)
        .max_by_key(|t| t.text.len())
        .unwrap();
    for (left, right) in [
        (longest.text.as_str(), longest.text.as_str()),
        ("!", "!!!!!"),
        ("\u{4e00}", "!"),
    ] {
        let mut vocab = GGUF.tokenizer.vocab().clone();
        vocab.merges.push((left.to_owned(), right.to_owned()));
        let error = Tokenizer::new(vocab).unwrap_err().to_string();
        assert!(error.contains("`merges` is unusable"), "{error}");
    }
}

#[test]
fn absurd_runs_of_blanks_are_refused_and_long_ones_are_not() {
    let tokenizer = &GGUF.tokenizer;
    let long = " ".repeat(MAX_BLANK_RUN - 1);
    let ids = tokenizer.encode(&format!("{long}\n{long}"), Special::Text);
    assert!(
        matches!(ids, Err(TextError::BlankRun { at: 0, .. })),
        "{ids:?}"
    );
    let ids = tokenizer
        .encode(&format!("x{long} y{long}"), Special::Text)
        .unwrap();
    let bytes: usize = ids
        .iter()
        .map(|id| tokenizer.token_bytes(*id).unwrap().len())
        .sum();
    assert_eq!(bytes, 2 * long.len() + 3);
}

#[test]
fn a_tokenizer_of_real_size_is_built_quickly() {
    // About as many tokens and merges as GLM-5 has: two letters, three, …, each made of its beginning and its last
    // letter, and of its first letter and its end.
    const TOKENS: usize = 154_880;
    let mut vocab = GGUF.tokenizer.vocab().clone();
    vocab
        .tokens
        .retain(|token| token.kind == TokenKind::Normal && token.text.chars().count() == 1);
    vocab.merges.clear();
    vocab.stop.clear();
    let letters: Vec<String> = ('A'..='z')
        .filter(char::is_ascii_alphabetic)
        .map(String::from)
        .collect();
    let mut texts = letters.clone();
    for n in 0.. {
        let left = texts[n].clone();
        for right in &letters {
            vocab.merges.push((left.clone(), right.clone()));
            if left.len() > 1 {
                vocab
                    .merges
                    .push((left[..1].to_owned(), left[1..].to_owned() + right));
            }
            texts.push(left.clone() + right);
        }
        if texts.len() >= TOKENS {
            break;
        }
    }
    let normal = |text: &String| glim_text::VocabToken {
        text: text.clone(),
        kind: TokenKind::Normal,
    };
    vocab
        .tokens
        .extend(texts[letters.len()..].iter().map(normal));
    let (tokens, merges) = (vocab.tokens.len(), vocab.merges.len());
    assert!(tokens >= TOKENS && merges >= 300_000);
    let start = Instant::now();
    Tokenizer::new(vocab).unwrap();
    let seconds = start.elapsed().as_secs_f64();
    println!("{tokens} tokens, {merges} merges: built in {seconds:.2} s");
    // Below a second on a quiet machine; the test must hold on a busy one.
    assert!(seconds < 10.0, "{seconds}");
}
