//! The parser of GLM's output.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::sync::Arc;

use common::{GGUF, template_ids, tokenizer};
use glim_text::{GlmParser, Piece, Special, TokenKind, Tokenizer};
use proptest::prelude::*;
use serde_json::{Value, json};

fn tools() -> Vec<Value> {
    vec![
        json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {
            "s": {"type": "string"}, "n": {"type": "integer"}, "o": {"type": "object"}}}}}),
        json!({"name": "ping"}),
    ]
}

fn run(parser: &mut GlmParser, ids: &[glim_text::TokenId]) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = ids.iter().flat_map(|id| parser.push(*id)).collect();
    pieces.extend(parser.finish());
    joined(pieces)
}

/// Neighbours of a kind as one piece.
fn joined(pieces: Vec<Piece>) -> Vec<Piece> {
    let mut out: Vec<Piece> = Vec::new();
    for piece in pieces {
        match (out.last_mut(), piece) {
            (Some(Piece::Content(text)), Piece::Content(more))
            | (Some(Piece::Reasoning(text)), Piece::Reasoning(more)) => {
                text.push_str(&more);
            }
            (_, piece) => out.push(piece),
        }
    }
    out
}

fn parse(starts_in_reasoning: bool, text: &str) -> Vec<Piece> {
    run(
        &mut GlmParser::new(tokenizer(), starts_in_reasoning, Some(&tools())),
        &template_ids(text),
    )
}

fn reasoning(text: &str) -> Piece {
    Piece::Reasoning(text.to_owned())
}

fn content(text: &str) -> Piece {
    Piece::Content(text.to_owned())
}

fn call(name: &str, arguments: Value) -> Piece {
    Piece::ToolCall {
        name: name.to_owned(),
        arguments: arguments.as_object().unwrap().clone(),
    }
}

#[test]
fn answers_are_split_into_their_parts() {
    let cases: Vec<(bool, &str, Vec<Piece>)> = vec![
        (false, "Hello\n there. ", vec![content("Hello\n there. ")]),
        (
            true,
            "Hm.</think>Hello",
            vec![reasoning("Hm."), content("Hello")],
        ),
        (true, "Hm.", vec![reasoning("Hm.")]),
        (true, "\n</think>\nHello", vec![content("\nHello")]),
        // A model that opens its thought itself, opens it twice, or closes one that was not open.
        (
            false,
            "<think>Hm.</think>Hello",
            vec![reasoning("Hm."), content("Hello")],
        ),
        (
            true,
            "<think>Hm.</think>Hello",
            vec![reasoning("Hm."), content("Hello")],
        ),
        (false, "<think></think>Hello", vec![content("Hello")]),
        (false, "</think>Hello", vec![content("Hello")]),
        (
            false,
            "Say <think> and </think>",
            vec![content("Say <think> and </think>")],
        ),
        // Calls.
        (
            false,
            "<tool_call>ping</tool_call>",
            vec![call("ping", json!({}))],
        ),
        (
            false,
            "<tool_call>ping</arg_value></tool_call>",
            vec![call("ping", json!({}))],
        ),
        (
            true,
            "I call.\n</think>\n<tool_call>f<arg_key>s</arg_key><arg_value>12</arg_value><arg_key>n</arg_key><arg_value>12</arg_value></tool_call>",
            vec![
                reasoning("I call.\n"),
                call("f", json!({"s": "12", "n": 12})),
            ],
        ),
        // Reasoning ends at a call.
        (
            true,
            "I call.<tool_call>ping</tool_call>",
            vec![reasoning("I call."), call("ping", json!({}))],
        ),
        // As 4.5 and 4.6 write it; two calls; text before and after.
        (
            false,
            "Wait.\n<tool_call>f\n<arg_key>o</arg_key>\n<arg_value>{\"a\": [1]}</arg_value>\n</tool_call>\n<tool_call>ping\n</tool_call>\nDone.",
            vec![
                content("Wait.\n"),
                call("f", json!({"o": {"a": [1]}})),
                call("ping", json!({})),
                content("\nDone."),
            ],
        ),
        // Values are verbatim, blanks, tags and all.
        (
            false,
            "<tool_call>f<arg_key>s</arg_key><arg_value>\n <arg_key></think>é\n</arg_value></tool_call>",
            vec![call("f", json!({"s": "\n <arg_key></think>é\n"}))],
        ),
        // Keys that the schema does not know; a key without its end tag; a key without a value.
        (
            false,
            "<tool_call>f<arg_key>x</arg_key><arg_value>[1]</arg_value></tool_call>",
            vec![call("f", json!({"x": [1]}))],
        ),
        (
            false,
            "<tool_call>f<arg_key>n<arg_value>1</arg_value></tool_call>",
            vec![call("f", json!({"n": 1}))],
        ),
        (
            false,
            "<tool_call>f<arg_key>n</arg_key></tool_call>",
            vec![call("f", json!({}))],
        ),
        // No such tool, and a call that the end cuts off.
        (
            false,
            "<tool_call>g</tool_call>",
            vec![content("<tool_call>g</tool_call>")],
        ),
        (
            false,
            "a<tool_call>f<arg_key>s</arg_key><arg_value>b",
            vec![
                content("a"),
                content("<tool_call>f<arg_key>s</arg_key><arg_value>b"),
            ],
        ),
    ];
    for (starts_in_reasoning, text, expected) in cases {
        assert_eq!(parse(starts_in_reasoning, text), joined(expected), "{text}");
    }
}

#[test]
fn without_tools_the_tags_of_calls_are_content() {
    let text = "a<tool_call>f<arg_key>s</arg_key></tool_call>";
    for tools in [None, Some([].as_slice())] {
        assert_eq!(
            run(
                &mut GlmParser::new(tokenizer(), false, tools),
                &template_ids(text)
            ),
            [content(text)]
        );
    }
}

#[test]
fn text_that_looks_like_a_tag_is_none() {
    let ids = tokenizer()
        .encode("Hm.</think>Hello", Special::Text)
        .unwrap();
    assert_eq!(
        run(&mut GlmParser::new(tokenizer(), true, Some(&tools())), &ids),
        [reasoning("Hm.</think>Hello")]
    );
}

#[test]
fn reasoning_and_content_stream_token_by_token() {
    let mut parser = GlmParser::new(tokenizer(), true, None);
    let ids = template_ids("One two three.</think>Four five six.");
    let steps: Vec<Vec<Piece>> = ids.iter().map(|id| parser.push(*id)).collect();
    let silent = steps.iter().filter(|pieces| pieces.is_empty()).count();
    assert_eq!(silent, 1, "only the tag itself yields nothing: {steps:?}");
    assert!(!parser.in_reasoning());
}

/// A tokenizer in which the tags are no tokens.
fn without_tags() -> Arc<Tokenizer> {
    let mut vocab = GGUF.tokenizer.vocab().clone();
    for token in &mut vocab.tokens {
        if token.kind == TokenKind::UserDefined {
            token.kind = TokenKind::Unused;
        }
    }
    Arc::new(Tokenizer::new(vocab).unwrap())
}

#[test]
fn tags_that_are_no_tokens_are_found_in_the_text() {
    let tokenizer = without_tags();
    let text = "a < b <thi</think>c<tool_call>f<arg_key>n</arg_key><arg_value>7</arg_value></tool_call>d</tool";
    let ids = tokenizer.encode(text, Special::Template).unwrap();
    let expected = [
        reasoning("a < b <thi"),
        content("c"),
        call("f", json!({"n": 7})),
        content("d</tool"),
    ];
    assert_eq!(
        run(
            &mut GlmParser::new(Arc::clone(&tokenizer), true, Some(&tools())),
            &ids
        ),
        expected
    );
}

const PARTS: [&str; 16] = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "f",
    "s",
    "ping",
    " ",
    "\n",
    "12",
    "é",
    "<",
];

proptest! {
    /// Nothing panics, and tags as tokens and tags as text mean the same.
    #[test]
    fn any_order_of_tags_is_survived(parts in prop::collection::vec(prop::sample::select(PARTS.to_vec()), 0..24), inside in any::<bool>()) {
        let text = parts.concat();
        let plain = without_tags();
        let ids = plain.encode(&text, Special::Template).unwrap();
        let as_text = run(&mut GlmParser::new(plain, inside, Some(&tools())), &ids);
        prop_assert_eq!(parse(inside, &text), as_text);
    }
}
