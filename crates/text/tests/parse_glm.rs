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
            "s": {"type": "string"}, "n": {"type": "integer"}, "m": {"type": ["string", "null"]}, "o": {"type": "object"}}}}}),
        json!({"name": "ping"}),
    ]
}

fn run(parser: &mut GlmParser, ids: &[glim_text::TokenId]) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = ids.iter().flat_map(|id| parser.push(*id)).collect();
    pieces.extend(parser.finish());
    joined(pieces)
}

/// Neighbours of a kind as one piece, and a whole call as its end alone: the parts of its arguments are what serde_json prints
/// of them. A call without an end keeps its pieces.
fn joined(pieces: Vec<Piece>) -> Vec<Piece> {
    let mut out: Vec<Piece> = Vec::new();
    for piece in pieces {
        match (out.as_mut_slice(), piece) {
            ([.., Piece::Content(text)], Piece::Content(more))
            | ([.., Piece::Reasoning(text)], Piece::Reasoning(more))
            | ([.., Piece::CallArguments(text)], Piece::CallArguments(more)) => {
                text.push_str(&more);
            }
            (
                [
                    ..,
                    Piece::CallStart { name: start },
                    Piece::CallArguments(text),
                ],
                Piece::CallEnd { name, arguments },
            ) => {
                assert_eq!(*start, name);
                assert_eq!(*text, serde_json::to_string(&arguments).unwrap());
                out.truncate(out.len() - 2);
                out.push(Piece::CallEnd { name, arguments });
            }
            (before, piece) => {
                let within = matches!(
                    before.last(),
                    Some(Piece::CallStart { .. } | Piece::CallArguments(_))
                );
                assert!(
                    !within || matches!(piece, Piece::CallArguments(_)),
                    "{piece:?} within a call"
                );
                out.push(piece);
            }
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
    Piece::CallEnd {
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
        // Of a key that comes twice, the first value holds.
        (
            false,
            "<tool_call>f<arg_key>s</arg_key><arg_value>a</arg_value><arg_key>n</arg_key><arg_value>1</arg_value><arg_key>s</arg_key><arg_value>b</arg_value></tool_call>",
            vec![call("f", json!({"s": "a", "n": 1}))],
        ),
        // Everything that JSON escapes, in keys and values; nothing at all.
        (
            false,
            "<tool_call>f<arg_key>s</arg_key><arg_value>\"\\/\u{1}\u{7f}\u{2028}\t</arg_value><arg_key>\"q\"</arg_key><arg_value></arg_value></tool_call>",
            vec![call(
                "f",
                json!({"s": "\"\\/\u{1}\u{7f}\u{2028}\t", "\"q\"": ""}),
            )],
        ),
        // Null where it is admitted, and what only begins like it.
        (
            false,
            "<tool_call>f<arg_key>m</arg_key><arg_value> null\n</arg_value></tool_call>",
            vec![call("f", json!({"m": null}))],
        ),
        (
            false,
            "<tool_call>f<arg_key>m</arg_key><arg_value> nul</arg_value></tool_call>",
            vec![call("f", json!({"m": " nul"}))],
        ),
        (
            false,
            "<tool_call>f<arg_key>m</arg_key><arg_value>null and void</arg_value></tool_call>",
            vec![call("f", json!({"m": "null and void"}))],
        ),
        // No such tool; the text after it.
        (
            false,
            "<tool_call>g</tool_call>",
            vec![content("<tool_call>g</tool_call>")],
        ),
        (
            false,
            "a<tool_call>g<arg_key>s</arg_key><arg_value></tool_call></arg_value></tool_call> b<tool_call>ping</tool_call>",
            vec![
                content(
                    "a<tool_call>g<arg_key>s</arg_key><arg_value></tool_call></arg_value></tool_call> b",
                ),
                call("ping", json!({})),
            ],
        ),
        // Calls that the end cuts off: before the name is whole, and after.
        (
            false,
            "a<tool_call>f",
            vec![content("a"), content("<tool_call>f")],
        ),
        (
            false,
            "a<tool_call>f<arg_key>s</arg_key><arg_value>b",
            vec![
                content("a"),
                Piece::CallStart {
                    name: "f".to_owned(),
                },
                Piece::CallArguments("{\"s\":\"b".to_owned()),
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

#[test]
fn string_arguments_stream_and_others_come_whole() {
    let mut parser = GlmParser::new(tokenizer(), false, Some(&tools()));
    let ids = template_ids(
        "<tool_call>f<arg_key>s</arg_key><arg_value>one two three four</arg_value><arg_key>n</arg_key><arg_value>123456</arg_value></tool_call>",
    );
    let pieces: Vec<Piece> = ids.iter().flat_map(|id| parser.push(*id)).collect();
    assert_eq!(
        pieces[0],
        Piece::CallStart {
            name: "f".to_owned()
        }
    );
    let parts: Vec<&str> = pieces
        .iter()
        .filter_map(|piece| match piece {
            Piece::CallArguments(part) => Some(part.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(parts[0], "{\"s\":\"");
    assert!(parts.len() > 6, "the string streams: {parts:?}");
    assert!(parts.contains(&",\"n\":123456"), "{parts:?}");
    assert_eq!(parts.last(), Some(&"}"));
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

    /// However the model cuts its text into tokens, even within characters, the pieces join to the same.
    #[test]
    fn any_cut_into_tokens_joins_to_the_same(
        values in prop::collection::vec(("[smno]", "\\PC{0,6}|null|-?[0-9]{1,4}|\"[a\\\\]\"|😀é𝄞"), 0..4),
        around in "[a-z ]{0,4}",
        cuts in prop::collection::vec(any::<bool>(), 0..256),
    ) {
        let mut text = around.clone() + "<tool_call>f";
        for (key, value) in &values {
            text += &format!("<arg_key>{key}</arg_key><arg_value>{value}</arg_value>");
        }
        text += "</tool_call>";
        text += &around;
        let whole = parse(false, &text);
        // Each token that is no tag, byte by byte where `cuts` says so.
        let mut cuts = cuts.into_iter().chain(std::iter::repeat(true));
        let mut ids = Vec::new();
        for id in template_ids(&text) {
            let bytes = tokenizer().token_bytes(id).unwrap().to_vec();
            let is_tag = tokenizer().kind(id) != Some(TokenKind::Normal);
            if is_tag || !cuts.next().unwrap() {
                ids.push(id);
            } else {
                ids.extend(bytes.iter().map(|byte| byte_token(*byte)));
            }
        }
        prop_assert_eq!(run(&mut GlmParser::new(tokenizer(), false, Some(&tools())), &ids), whole);
    }
}

/// The token of one byte.
fn byte_token(byte: u8) -> glim_text::TokenId {
    (0..u32::try_from(tokenizer().vocab_size()).unwrap())
        .map(glim_text::TokenId)
        .find(|id| {
            tokenizer().kind(*id) == Some(TokenKind::Normal)
                && tokenizer().token_bytes(*id) == Some(&[byte])
        })
        .unwrap()
}
