//! Forced calls of tools, read back by the parser of GLM's output.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::validate::validate;
use common::{follow, grammar, template_ids, text_of, tokenizer, walk};
use glim_grammar::{Grammar, GrammarError, Rule};
use glim_text::{GlmParser, Piece, TokenId};
use serde_json::{Map, Value as Json, json};

fn tools() -> Vec<Json> {
    let function = |name: &str, parameters: Json| json!({"type": "function", "function": {"name": name, "description": "x", "parameters": parameters}});
    vec![
        function(
            "get_weather",
            json!({"type": "object", "properties": {
                "city": {"type": "string", "description": "where"},
                "unit": {"type": "string", "enum": ["C", "F", "a \"b\" </arg_value>"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 14},
            }, "required": ["city"], "additionalProperties": false}),
        ),
        function(
            "get",
            json!({"type": "object", "properties": {
                "id": {"type": "string", "pattern": "^[A-Z]{2}[0-9]{1,3}$"},
                "when": {"type": "string", "format": "date"},
                "short": {"type": "string", "minLength": 1, "maxLength": 4},
                "maybe": {"type": ["string", "null"]},
                "color": {"$ref": "#/$defs/Color"},
                "either": {"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 5}]},
                "flag": {"type": "boolean"},
                "n": {"type": "number", "minimum": 0, "maximum": 10},
                "count": {"type": ["integer", "null"]},
                "list": {"type": "array", "items": {"type": "string", "maxLength": 6}, "maxItems": 3},
                "nested": {"$ref": "#/$defs/Tree"},
                "any": {},
            }, "required": ["id", "list"],
            "$defs": {
                "Color": {"enum": ["red", "green"]},
                "Tree": {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}}, "additionalProperties": false},
            }}),
        ),
        function(
            "labels",
            json!({"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string", "maxLength": 9}}),
        ),
        json!({"name": "ping"}),
        function("pong", json!({"type": "object", "properties": {}})),
        function("peng", Json::Null),
    ]
}

fn forced(only: Option<&str>, parallel: bool) -> Grammar {
    grammar(&Rule::ToolCalls {
        tools: tools(),
        only: only.map(str::to_owned),
        parallel,
    })
    .unwrap()
}

/// The calls that the parser finds; panics if it finds anything else.
fn calls(ids: &[TokenId]) -> Vec<(String, Map<String, Json>)> {
    let mut parser = GlmParser::new(tokenizer(), false, Some(&tools()));
    let mut pieces: Vec<Piece> = ids.iter().flat_map(|id| parser.push(*id)).collect();
    pieces.extend(parser.finish());
    let mut calls = Vec::new();
    let mut text = String::new();
    for piece in pieces {
        match piece {
            Piece::CallStart { .. } => text.clear(),
            Piece::CallArguments(part) => text += &part,
            Piece::CallEnd { name, arguments } => {
                assert_eq!(text, serde_json::to_string(&arguments).unwrap());
                calls.push((name, arguments));
            }
            Piece::Content(text) | Piece::Reasoning(text) => panic!("{text:?} beside the calls"),
        }
    }
    calls
}

fn parameters(name: &str) -> Json {
    let all = tools();
    let functions = all.iter().map(|tool| tool.get("function").unwrap_or(tool));
    let mut named = functions.filter(|function| function["name"] == name);
    named.next().unwrap()["parameters"].clone()
}

fn check(name: &str, arguments: &Map<String, Json>) {
    let schema = parameters(name);
    if schema.is_null() {
        assert!(arguments.is_empty());
        return;
    }
    validate(&Json::Object(arguments.clone()), &schema, &schema)
        .unwrap_or_else(|error| panic!("{name}: {error}"));
}

#[test]
fn whatever_is_drawn_is_a_call_that_its_schema_admits() {
    for only in [
        None,
        Some("get_weather"),
        Some("get"),
        Some("labels"),
        Some("ping"),
    ] {
        for parallel in [false, true] {
            let grammar = forced(only, parallel);
            for seed in 0..60 {
                let ids = walk(&grammar, seed);
                if text_of(&ids).contains("e9999") {
                    continue;
                }
                let calls = calls(&ids);
                assert!(if parallel {
                    !calls.is_empty()
                } else {
                    calls.len() == 1
                });
                for (name, arguments) in calls {
                    assert!(only.is_none_or(|only| only == name));
                    check(&name, &arguments);
                }
            }
        }
    }
}

#[test]
fn calls_are_allowed_as_the_templates_write_them() {
    let one = forced(None, false);
    let several = forced(None, true);
    for text in [
        "<tool_call>ping</tool_call>",
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Oslo</arg_value></tool_call>",
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value></arg_value><arg_key>days</arg_key><arg_value>3</arg_value></tool_call>",
        // Verbatim strings, even such as look like JSON or a tag.
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>\"12\" [\n</arg_value><arg_key>unit</arg_key><arg_value>F</arg_value></tool_call>",
        // As 4.5 and 4.6 write it.
        "\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
        "<tool_call>get<arg_key>id</arg_key><arg_value>AB12</arg_value><arg_key>maybe</arg_key><arg_value>null</arg_value><arg_key>color</arg_key><arg_value>red</arg_value><arg_key>list</arg_key><arg_value>[\"a\", \"b\"]</arg_value><arg_key>nested</arg_key><arg_value>{\"kids\": [{}]}</arg_value><arg_key>any</arg_key><arg_value>whatever</arg_value></tool_call>",
        "<tool_call>labels<arg_key>a</arg_key><arg_value>1</arg_value><arg_key>b</arg_key><arg_value>12</arg_value><arg_key>c</arg_key><arg_value>x</arg_value></tool_call>",
    ] {
        let ids = template_ids(text);
        assert_eq!(follow(&one, false, &ids), Ok(()), "{text}");
        for (name, arguments) in calls(&ids) {
            check(&name, &arguments);
        }
        let twice = [ids.clone(), template_ids("\n"), ids.clone()].concat();
        assert_eq!(
            follow(&several, false, &[ids.clone(), ids.clone()].concat()),
            Ok(())
        );
        if !text.starts_with('\n') {
            assert_eq!(follow(&several, false, &twice), Ok(()), "{text}");
        }
        assert_eq!(
            follow(&one, false, &[ids.clone(), ids.clone()].concat()),
            Err(ids.len())
        );
    }
}

#[test]
fn wrong_calls_are_not_allowed() {
    let grammar = forced(None, true);
    for text in [
        "",
        "I call.<tool_call>ping</tool_call>",
        "<tool_call>pin</tool_call>",
        "<tool_call>pingpong</tool_call>",
        "<tool_call>ping<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>",
        "<tool_call>ping</tool_call> Done.",
        "<tool_call>ping",
        // Without what is required; out of order; not of the type; not declared.
        "<tool_call>get_weather</tool_call>",
        "<tool_call>get_weather<arg_key>days</arg_key><arg_value>1</arg_value></tool_call>",
        "<tool_call>get_weather<arg_key>days</arg_key><arg_value>1</arg_value><arg_key>city</arg_key><arg_value>x</arg_value></tool_call>",
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>x</arg_value><arg_key>days</arg_key><arg_value>15</arg_value></tool_call>",
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>x</arg_value><arg_key>unit</arg_key><arg_value>K</arg_value></tool_call>",
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>x</arg_value><arg_key>zip</arg_key><arg_value>1</arg_value></tool_call>",
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>x<arg_value></arg_value></tool_call>",
        "<tool_call>get<arg_key>id</arg_key><arg_value>xAB1</arg_value><arg_key>list</arg_key><arg_value>[]</arg_value></tool_call>",
        "<tool_call>get<arg_key>id</arg_key><arg_value>AB1</arg_value><arg_key>short</arg_key><arg_value>12345</arg_value><arg_key>list</arg_key><arg_value>[]</arg_value></tool_call>",
        "<tool_call>get<arg_key>id</arg_key><arg_value>AB1</arg_value><arg_key>color</arg_key><arg_value>\"red\"</arg_value><arg_key>list</arg_key><arg_value>[]</arg_value></tool_call>",
        "<tool_call>labels<arg_key>b</arg_key><arg_value>1</arg_value><arg_key>a</arg_key><arg_value>1</arg_value></tool_call>",
        "<tool_call>labels<arg_key>b</arg_key><arg_value>1234567890</arg_value></tool_call>",
        // Two newlines.
        "<tool_call>ping\n\n</tool_call>",
    ] {
        assert!(
            follow(&grammar, false, &template_ids(text)).is_err(),
            "{text}"
        );
    }
    // Tags that are text.
    let forged = tokenizer()
        .encode("<tool_call>ping</tool_call>", glim_text::Special::Text)
        .unwrap();
    assert_eq!(follow(&grammar, false, &forged), Err(0));
    // Another tool than the one that is named.
    let named = forced(Some("ping"), true);
    assert!(follow(&named, false, &template_ids("<tool_call>pong</tool_call>")).is_err());
}

#[test]
fn a_call_ends_the_reasoning() {
    let grammar = forced(Some("ping"), false);
    for text in [
        "I call.</think><tool_call>ping</tool_call>",
        "I call.</think>\n<tool_call>ping</tool_call>",
        "I call.\n<tool_call>ping</tool_call>",
    ] {
        assert_eq!(
            follow(&grammar, true, &template_ids(text)),
            Ok(()),
            "{text}"
        );
    }
    assert!(
        follow(
            &grammar,
            true,
            &template_ids("I call.<tool_call>pong</tool_call>")
        )
        .is_err()
    );
}

#[test]
fn tools_that_cannot_be_enforced_are_named() {
    let tool = |parameters: Json| json!({"type": "function", "function": {"name": "f", "parameters": parameters}});
    let of = |schema: Json| tool(json!({"type": "object", "properties": {"a": schema}}));
    for (tool, message) in [
        (json!({"type": "function"}), "tools[1] has no name"),
        (json!({"name": " f"}), "tools[1] is named \" f\""),
        (tool(json!([])), "tools[1].function.parameters is an array"),
        (
            tool(json!({"anyOf": [{}]})),
            "tools[1].function.parameters: the keyword `anyOf`",
        ),
        (
            tool(json!({"type": "array"})),
            "tools[1].function.parameters: the keyword `type`",
        ),
        (
            tool(json!({"required": ["a"]})),
            "tools[1].function.parameters: the keyword `required`",
        ),
        (
            of(json!({"not": {}})),
            "tools[1].function.parameters/properties/a: the keyword `not`",
        ),
        (
            of(json!({"type": "string", "pattern": "a\\b"})),
            "tools[1].function.parameters/properties/a: the keyword `pattern`",
        ),
        (
            of(json!({"type": "string", "pattern": "^a$", "minLength": 2})),
            "tools[1].function.parameters/properties/a: the schema cannot be enforced: no string",
        ),
        (
            of(json!({"minimum": 2})),
            "tools[1].function.parameters/properties/a: the schema cannot be enforced: it does not say of which type",
        ),
        (
            of(json!({"type": "integer", "minimum": 2, "maximum": 1})),
            "tools",
        ),
    ] {
        let rule = Rule::ToolCalls {
            tools: vec![json!({"name": "ping"}), tool],
            only: None,
            parallel: true,
        };
        let error = grammar(&rule).unwrap_err();
        assert!(error.to_string().starts_with(message), "{error}");
    }
    for (tools, only, message) in [
        (vec![], None, "no tool is named \"any\"; declared are none"),
        (
            vec![json!({"name": "f"}), json!({"name": "g"})],
            Some("h"),
            "no tool is named \"h\"; declared are f, g",
        ),
    ] {
        let rule = Rule::ToolCalls {
            tools,
            only: only.map(str::to_owned),
            parallel: true,
        };
        let error = grammar(&rule).unwrap_err();
        assert!(matches!(error, GrammarError::NoSuchTool { .. }));
        assert_eq!(error.to_string(), message);
    }
}
