//! The detokenizer: increments joined and the whole decoded are the same text, whatever the ids.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{GGUF, template_ids, tokenizer};
use glim_text::{ControlTokens, Detokenizer, Special, TokenId};
use proptest::prelude::*;

fn increments(ids: &[TokenId], control: ControlTokens) -> Vec<String> {
    let mut detokenizer = Detokenizer::new(tokenizer(), control);
    let mut texts: Vec<String> = ids.iter().map(|id| detokenizer.push(*id)).collect();
    texts.push(detokenizer.finish());
    texts
}

#[test]
fn a_character_comes_when_its_last_byte_has_come() {
    let ids = tokenizer().encode("a😀b", Special::Text).unwrap();
    let texts = increments(&ids, ControlTokens::Show);
    assert!(
        ids.len() > 3,
        "the emoji must be several tokens for this test"
    );
    assert_eq!(texts.concat(), "a😀b");
    assert_eq!(texts.iter().filter(|text| text.contains('😀')).count(), 1);
    assert!(texts.iter().all(|text| !text.contains('\u{FFFD}')));
}

#[test]
fn a_character_cut_off_at_the_end_becomes_one_replacement() {
    let ids = tokenizer().encode("a😀", Special::Text).unwrap();
    let texts = increments(&ids[..ids.len() - 1], ControlTokens::Show);
    assert_eq!(texts.last().map(String::as_str), Some("\u{FFFD}"));
    assert_eq!(texts.concat(), "a\u{FFFD}");
}

#[test]
fn control_tokens_are_skipped_on_request_and_tags_never() {
    let ids = template_ids("<think>a</think><tool_call>b<|user|>c<|endoftext|>");
    assert_eq!(
        increments(&ids, ControlTokens::Skip).concat(),
        "<think>a</think><tool_call>bc"
    );
    assert_eq!(
        increments(&ids, ControlTokens::Show).concat(),
        "<think>a</think><tool_call>b<|user|>c<|endoftext|>"
    );
}

#[test]
fn ids_outside_the_vocabulary_yield_nothing() {
    assert_eq!(
        increments(&[TokenId(4096), TokenId(u32::MAX)], ControlTokens::Show).concat(),
        ""
    );
}

proptest! {
    #[test]
    fn text_comes_back(text in any::<String>()) {
        let ids = tokenizer().encode(&text, Special::Text).unwrap();
        prop_assert_eq!(increments(&ids, ControlTokens::Skip).concat(), text);
    }

    #[test]
    fn template_text_comes_back(parts in prop::collection::vec(prop::sample::select(vec!["<|user|>", "<think>", "a", " ", "\n", "é", "😀", "<", "|>"]), 0..20)) {
        let text = parts.concat();
        prop_assert_eq!(increments(&template_ids(&text), ControlTokens::Show).concat(), text);
    }

    #[test]
    fn increments_join_to_the_whole(ids in prop::collection::vec((0u32..4100).prop_map(TokenId), 0..60)) {
        let bytes: Vec<u8> = ids.iter().filter_map(|id| GGUF.tokenizer.token_bytes(*id)).flatten().copied().collect();
        prop_assert_eq!(increments(&ids, ControlTokens::Show).concat(), String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn single_bytes_join_to_the_whole(bytes in prop::collection::vec(prop_oneof![any::<u8>(), 0xE0u8..=0xF4, 0x80u8..=0xBF], 0..40)) {
        // The token of each byte alone.
        let by_byte = |byte: &u8| (0..256).map(TokenId).find(|id| GGUF.tokenizer.token_bytes(*id) == Some(&[*byte]));
        let ids: Vec<TokenId> = bytes.iter().filter_map(by_byte).collect();
        prop_assert_eq!(ids.len(), bytes.len());
        prop_assert_eq!(increments(&ids, ControlTokens::Show).concat(), String::from_utf8_lossy(&bytes));
    }
}
