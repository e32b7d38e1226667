//! Regular expressions, choices, grammars; where reasoning ends; stop tokens; the vocabulary's edges.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::sync::Arc;

use common::{
    PAD_ROWS, VOCABULARY, accepts, allowed, follow, grammar, id, stop, template_ids, text_of,
    tokenizer, walk,
};
use glim_grammar::{Grammar, GrammarError, MatchError, Matcher, Rule, Vocabulary};
use glim_text::{TokenId, TokenKind, Tokenizer};
use serde_json::json;

fn regex(expression: &str) -> Rule {
    Rule::Regex(expression.to_owned())
}

fn choice(choices: &[&str]) -> Rule {
    Rule::Choice(choices.iter().map(|text| (*text).to_owned()).collect())
}

#[test]
fn a_regular_expression_matches_the_whole_answer() {
    for (expression, right, wrong) in [
        ("[a-c]+", vec!["a", "cab"], vec!["", "d", "ad"]),
        ("^[a-c]+$", vec!["a"], vec!["^a$", ""]),
        ("a|bc", vec!["a", "bc"], vec!["ac", "b"]),
        ("(?i)yes|no", vec!["YES", "No"], vec!["yesno"]),
        ("a*", vec!["", "aaa"], vec!["b"]),
        (r"\d{3}-/\p{Lu}", vec!["123-/É"], vec!["123-/é"]),
        ("😀+\n?", vec!["😀", "😀😀\n"], vec!["\n"]),
    ] {
        let grammar = grammar(&regex(expression)).unwrap();
        for text in right {
            assert!(accepts(&grammar, text), "{text:?} by {expression}");
        }
        for text in wrong {
            assert!(!accepts(&grammar, text), "{text:?} by {expression}");
        }
        let exact = regex::Regex::new(&format!("^(?:{expression})$")).unwrap();
        for seed in 0..20 {
            let text = text_of(&walk(&grammar, seed));
            assert!(exact.is_match(&text), "{text:?} by {expression}");
        }
    }
}

#[test]
fn a_regular_expression_that_is_none_says_why() {
    for (expression, reason) in [
        ("", "empty"),
        ("(a", "unclosed group"),
        ("a(?=b)", "look-around"),
        (r"\bfoo", "lookarounds"),
        (r"(a)\1", "backreferences"),
        ("a&&[b", "unclosed character class"),
    ] {
        let error = grammar(&regex(expression)).unwrap_err();
        assert!(matches!(error, GrammarError::Regex { .. }), "{error:?}");
        assert!(error.to_string().contains(reason), "{error}");
    }
}

#[test]
fn a_choice_is_one_of_its_texts() {
    let texts = ["yes", "yes, please", "no\"\\\n", "é", "\u{7f}", "<think>"];
    let grammar = grammar(&choice(&texts)).unwrap();
    for text in texts {
        assert!(accepts(&grammar, text), "{text:?}");
    }
    for text in ["", "ye", "yes,", "yes, please!", "maybe"] {
        assert!(!accepts(&grammar, text), "{text:?}");
    }
    for seed in 0..20 {
        assert!(texts.contains(&text_of(&walk(&grammar, seed)).as_str()));
    }
    assert_eq!(
        common::grammar(&choice(&[])).unwrap_err(),
        GrammarError::NoChoice
    );
    let empty = common::grammar(&choice(&["", "a"])).unwrap();
    assert!(accepts(&empty, "") && accepts(&empty, "a") && !accepts(&empty, "aa"));
}

#[test]
fn a_grammar_in_lark_is_followed() {
    let text =
        "start: expr\nexpr: NUMBER | \"(\" expr (\"+\" | \"*\") expr \")\"\nNUMBER: /[0-9]+/\n";
    let grammar = grammar(&Rule::Lark(text.to_owned())).unwrap();
    for text in ["1", "(1+2)", "((1*2)+(3+4))"] {
        assert!(accepts(&grammar, text), "{text}");
    }
    for text in ["", "(1+2", "1+2", "()"] {
        assert!(!accepts(&grammar, text), "{text}");
    }
}

#[test]
fn a_grammar_that_is_none_says_why() {
    for (text, reason) in [
        ("root ::= \"a\"", "GBNF"),
        ("rule: \"a\"", "no start rule"),
        ("start: other", "other"),
        ("start: \"a", "lexer error"),
        ("start: %json {}", "%json"),
        (
            "start: /a/\n%llguidance {\"allow_invalid_utf8\": true}",
            "allow_invalid_utf8",
        ),
        ("", ""),
    ] {
        let error = grammar(&Rule::Lark(text.to_owned())).unwrap_err();
        assert!(matches!(error, GrammarError::Grammar { .. }), "{error:?}");
        assert!(error.to_string().contains(reason), "{error}");
        assert!(!error.to_string().contains('\n'), "{error}");
    }
}

#[test]
fn a_grammar_that_nothing_matches_is_refused() {
    for text in [
        "start: A\nA: /a/ & /b/",
        "start: start \"a\"",
        "start: start",
    ] {
        let result = grammar(&Rule::Lark(text.to_owned()));
        assert!(result.is_err(), "{text}");
    }
}

#[test]
fn reasoning_is_free_and_the_answer_is_bound_from_its_first_token() {
    let grammar = grammar(&choice(&["yes", "no"])).unwrap();
    let ids = |text: &str| template_ids(text);
    assert_eq!(
        follow(&grammar, true, &ids("Well, yes or no?\n{\"</think>yes")),
        Ok(())
    );
    assert_eq!(follow(&grammar, true, &ids("</think>no")), Ok(()));
    // A blank after the tag is not the answer.
    let spaced = ids("Hm.</think>\nno");
    assert!(follow(&grammar, true, &spaced).is_err());
    // Text that looks like the tag does not end the reasoning.
    let mut forged = tokenizer()
        .encode("</think>maybe", glim_text::Special::Text)
        .unwrap();
    forged.extend(ids("</think>yes"));
    assert_eq!(follow(&grammar, true, &forged), Ok(()));
    // Bound at once, but for a thought that the model opens itself.
    assert_eq!(follow(&grammar, false, &ids("yes")), Ok(()));
    assert_eq!(
        follow(&grammar, false, &ids("<think>maybe</think>yes")),
        Ok(())
    );
    assert_eq!(
        follow(&grammar, false, &ids("yes<think>")),
        Err(ids("yes").len())
    );
    assert!(follow(&grammar, false, &ids("maybe")).is_err());
}

#[test]
fn reasoning_does_not_end_without_the_answer() {
    let grammar = grammar(&choice(&["yes"])).unwrap();
    let mut matcher = Matcher::new(&grammar, true);
    let free = allowed(&mut matcher);
    let forbidden = VOCABULARY.mask_words() * 32 - free.len();
    assert_eq!(forbidden, tokenizer().stop_ids().len() + 1);
    assert!(!free.contains(&stop()) && !free.contains(&id("<tool_call>")));
    assert!(free.contains(&id("</think>")) && free.contains(&id("<think>")));
    assert_eq!(
        matcher.accept(stop()),
        Err(MatchError::Forbidden { token: stop().0 })
    );
    matcher.accept(id("</think>")).unwrap();
    assert!(!allowed(&mut matcher).contains(&id("<think>")));
}

#[test]
fn stop_tokens_are_allowed_just_where_the_grammar_accepts() {
    let grammar = grammar(&regex("ab?")).unwrap();
    let mut matcher = Matcher::new(&grammar, false);
    let [a, b] = ["a", "b"].map(|text| tokenizer().id_of(text).unwrap());
    let stops = tokenizer().stop_ids().to_vec();
    let may_stop = |matcher: &mut Matcher| {
        let ids = allowed(matcher);
        let some = stops.iter().any(|id| ids.contains(id));
        assert_eq!(
            some,
            stops.iter().all(|id| ids.contains(id)),
            "all of them or none"
        );
        some
    };
    assert!(!may_stop(&mut matcher));
    assert!(matcher.clone().accept(stop()).is_err());
    matcher.accept(a).unwrap();
    assert!(may_stop(&mut matcher) && allowed(&mut matcher).contains(&b));
    matcher.accept(b).unwrap();
    assert_eq!(allowed(&mut matcher), stops);
    assert!(matcher.accept(a).is_err());
    // Nothing comes after a stop token, and a refused token changed nothing.
    matcher.accept(stop()).unwrap();
    assert_eq!(allowed(&mut matcher), stops);
    assert!(matcher.accept(a).is_err());
}

#[test]
fn clones_go_their_own_ways() {
    let grammar = grammar(&choice(&["ab", "ac"])).unwrap();
    let mut one = Matcher::new(&grammar, false);
    let [a, b, c] = ["a", "b", "c"].map(|text| tokenizer().id_of(text).unwrap());
    one.accept(a).unwrap();
    let mut other = one.clone();
    one.accept(b).unwrap();
    assert!(allowed(&mut other).contains(&c));
    other.accept(c).unwrap();
    one.accept(stop()).unwrap();
    other.accept(stop()).unwrap();
    let is_send = |_: &(dyn std::any::Any + Send)| {};
    is_send(&one);
    fn is_shared<T: Send + Sync>(_: &T) {}
    is_shared(&grammar);
    is_shared(&*VOCABULARY);
}

#[test]
fn no_text_makes_a_special_token_and_no_pad_row_is_drawn() {
    let grammar = grammar(&regex("(?s:.*)")).unwrap();
    let mut matcher = Matcher::new(&grammar, false);
    let known = tokenizer().vocab_size();
    assert_eq!(VOCABULARY.size(), known + PAD_ROWS);
    for token in allowed(&mut matcher) {
        let is_stop = tokenizer().stop_ids().contains(&token);
        let is_text = tokenizer().kind(token) == Some(TokenKind::Normal);
        assert!(is_stop || is_text || token == id("<think>"), "{token:?}");
        assert!((token.0 as usize) < known);
    }
    let mut long = vec![u32::MAX; VOCABULARY.mask_words() + 2];
    matcher.restrict(&mut long).unwrap();
    assert_eq!(long[VOCABULARY.mask_words()..], [0, 0]);
    let strings = common::grammar(&Rule::JsonSchema(json!({"type": "string"}))).unwrap();
    let mut matcher = Matcher::new(&strings, false);
    matcher.accept(tokenizer().id_of("\"").unwrap()).unwrap();
    for special in ["<think>", "</think>", "<tool_call>", "<|user|>"] {
        assert!(matcher.accept(id(special)).is_err(), "{special}");
    }
}

#[test]
fn a_character_may_span_tokens() {
    let grammar = grammar(&regex("é")).unwrap();
    let byte = |byte: u8| {
        let ids = 0..u32::try_from(tokenizer().vocab_size()).unwrap();
        ids.map(TokenId)
            .find(|id| {
                tokenizer().kind(*id) == Some(TokenKind::Normal)
                    && tokenizer().token_bytes(*id) == Some(&[byte])
            })
            .unwrap()
    };
    assert_eq!(follow(&grammar, false, &[byte(0xC3), byte(0xA9)]), Ok(()));
    assert_eq!(follow(&grammar, false, &[byte(0xC3), byte(0xA8)]), Err(1));
    assert_eq!(follow(&grammar, false, &[byte(0xC3)]), Err(1));
}

#[test]
fn a_head_smaller_than_the_tokenizer_and_one_without_end_tokens() {
    let small = Vocabulary::new(&tokenizer(), tokenizer().vocab_size() - 1).unwrap();
    let grammar = Grammar::new(&small, &regex("a")).unwrap();
    let mut mask = vec![u32::MAX; small.mask_words()];
    Matcher::new(&grammar, false).restrict(&mut mask).unwrap();

    let mut vocab = tokenizer().vocab().clone();
    vocab.stop.clear();
    let endless = Arc::new(Tokenizer::new(vocab).unwrap());
    for (tokenizer, rows) in [(endless, 1000), (tokenizer(), 0), (tokenizer(), usize::MAX)] {
        let error = Vocabulary::new(&tokenizer, rows).unwrap_err();
        assert!(matches!(error, GrammarError::Vocabulary { .. }), "{error}");
    }
}
