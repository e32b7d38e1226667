//! Answers under a JSON schema: whatever is drawn satisfies it, and nothing else can be drawn.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::validate::validate;
use common::{accepts, grammar, text_of, walk};
use glim_grammar::Rule;
use serde_json::{Value as Json, json};

/// Schemas, each with texts that satisfy it and texts that do not.
fn cases() -> Vec<(Json, Vec<&'static str>, Vec<&'static str>)> {
    vec![
        (
            json!(true),
            vec!["1", "{}", "[[], null]", "\"x\""],
            vec!["", "{", "nul", "01", "[1,]"],
        ),
        (
            json!({"type": "null"}),
            vec!["null"],
            vec!["0", "nullnull", " null"],
        ),
        (
            json!({"type": "boolean"}),
            vec!["true", "false"],
            vec!["True", "\"true\""],
        ),
        (
            json!({"type": "integer"}),
            vec!["0", "-7", "12345678901234"],
            vec![
                "01",
                "1.0",
                "1e3",
                "--1",
                "+1",
                "9223372036854775808",
                "NaN",
            ],
        ),
        (
            json!({"type": "integer", "minimum": -3, "exclusiveMaximum": 12}),
            vec!["-3", "0", "11"],
            vec!["-4", "12", "100", "-"],
        ),
        (
            json!({"type": "integer", "minimum": 3, "exclusiveMinimum": true}),
            vec!["4", "300"],
            vec!["3", "-4"],
        ),
        (
            json!({"type": "integer", "maximum": 9223372036854775807i64}),
            vec!["5"],
            vec!["9223372036854775808"],
        ),
        (
            json!({"type": "integer", "multipleOf": 7, "maximum": 100}),
            vec!["14", "-21", "0"],
            vec!["15", "105"],
        ),
        (
            json!({"type": "number"}),
            vec!["0", "-1.5", "2e10", "1.25E-3"],
            vec![".5", "1.", "Infinity", "0x1", "1e"],
        ),
        (
            json!({"type": "number", "minimum": 0.5, "maximum": 2}),
            vec!["0.5", "1", "1.99", "2", "2.0"],
            vec!["0.4", "2.01", "-1", "3"],
        ),
        (
            json!({"type": "number", "exclusiveMinimum": 0}),
            vec!["0.1", "7"],
            vec!["0", "-1"],
        ),
        (
            json!({"type": "string"}),
            vec!["\"\"", "\"é 😀 \\n \\\" \\\\\"", "\"<think>\""],
            vec![
                "\"",
                "\"a\nb\"",
                "\"a\tb\"",
                "\"\\u0041\"",
                "'a'",
                "\"\\x\"",
            ],
        ),
        (
            json!({"type": "string", "minLength": 2, "maxLength": 3}),
            vec!["\"ab\"", "\"é😀x\"", "\"\\n\\n\""],
            vec!["\"a\"", "\"abcd\""],
        ),
        (
            json!({"type": "string", "maxLength": 10000}),
            vec!["\"hello\""],
            vec!["\"a", "a"],
        ),
        (
            json!({"type": "string", "minLength": 3, "maxLength": 2147483647}),
            vec!["\"hello\""],
            vec!["\"he\""],
        ),
        // Anchored, unanchored, alternatives, escapes within a string.
        (
            json!({"type": "string", "pattern": "^[a-z]{2}[0-9]+$"}),
            vec!["\"ab1\""],
            vec!["\"ab\"", "\"xab1\"", "\"ab1x\""],
        ),
        (
            json!({"type": "string", "pattern": "b+c", "maxLength": 9}),
            vec!["\"bc\"", "\"abbcd\""],
            vec!["\"b\"", "\"cb\""],
        ),
        (
            json!({"type": "string", "pattern": "^a|b$", "maxLength": 9}),
            vec!["\"ax\"", "\"xb\""],
            vec!["\"xa\"", "\"bx\""],
        ),
        (
            json!({"type": "string", "pattern": "^\\d\\w\\s?[\"\\\\]$"}),
            vec!["\"1a\\\"\"", "\"1a \\\\\""],
            vec!["\"1a\"", "\"1a\"\""],
        ),
        (
            json!({"type": "string", "pattern": "^[^\\n\\[]*$", "maxLength": 5}),
            vec!["\"ab]\""],
            vec!["\"a[\"", "\"a\\n\""],
        ),
        (
            json!({"type": "string", "format": "date"}),
            vec!["\"2024-02-29\"", "\"2000-02-29\""],
            vec![
                "\"2023-02-29\"",
                "\"1900-02-29\"",
                "\"2024-13-01\"",
                "\"2024-2-1\"",
            ],
        ),
        (
            json!({"type": "string", "format": "time"}),
            vec!["\"23:59:59Z\"", "\"00:00:00.5+01:30\""],
            vec!["\"24:00:00Z\"", "\"10:00:00\""],
        ),
        (
            json!({"type": "string", "format": "date-time"}),
            vec!["\"2024-02-29T10:00:00Z\""],
            vec!["\"2024-02-29\"", "\"2024-02-29 10:00:00Z\""],
        ),
        (
            json!({"type": "string", "format": "uuid"}),
            vec!["\"123e4567-e89b-12d3-a456-426614174000\""],
            vec!["\"123e4567\"", "\"123e4567-e89b-12d3-a456-42661417400g\""],
        ),
        (
            json!({"type": "string", "format": "ipv4"}),
            vec!["\"10.0.255.1\""],
            vec!["\"10.0.256.1\"", "\"1.2.3\""],
        ),
        (
            json!({"type": "string", "format": "ipv6"}),
            vec!["\"::1\"", "\"fe80::1:2\"", "\"1:2:3:4:5:6:7:8\"", "\"::\""],
            vec!["\"1::2::3\"", "\"1:2:3\""],
        ),
        (
            json!({"type": "string", "format": "email"}),
            vec!["\"a.b@c.de\""],
            vec!["\"a@\"", "\"a b@c.de\""],
        ),
        (
            json!({"type": "string", "format": "hostname"}),
            vec!["\"a-b.c\""],
            vec!["\"-a\"", "\"a..b\""],
        ),
        (
            json!({"type": "string", "format": "duration"}),
            vec!["\"P1D\"", "\"PT2H3M\"", "\"P3W\""],
            vec!["\"P\"", "\"PT\"", "\"1D\""],
        ),
        (
            json!({"type": "string", "format": "uri"}),
            vec!["\"https://a.b/c?d=e#f\"", "\"urn:isbn:1\""],
            vec!["\"a\"", "\"http://a b\""],
        ),
        (
            json!({"type": "string", "format": "date", "pattern": "^20"}),
            vec!["\"2024-01-01\""],
            vec!["\"1924-01-01\""],
        ),
        // Literals.
        (
            json!({"enum": ["a\"b", "a\\", "", 1, 1.5, null, true, [1, "x"], {"k": 2}]}),
            vec![
                "\"a\\\"b\"",
                "\"a\\\\\"",
                "\"\"",
                "1",
                "1.5",
                "null",
                "true",
                "[1, \"x\"]",
                "{\"k\":2}",
            ],
            vec!["\"a\"", "2", "false", "[1]", "{}"],
        ),
        (
            json!({"type": "string", "enum": ["red", "red wine", 5]}),
            vec!["\"red\"", "\"red wine\""],
            vec!["5", "\"red \""],
        ),
        (json!({"const": "x\ny"}), vec!["\"x\\ny\""], vec!["\"xy\""]),
        (
            json!({"const": {"a": [null]}}),
            vec!["{\"a\": [null]}"],
            vec!["{}"],
        ),
        // Objects.
        (
            json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a"], "additionalProperties": false}),
            vec!["{\"a\":1}", "{\"a\": 1, \"b\": \"\"}"],
            vec![
                "{}",
                "{\"b\":\"\",\"a\":1}",
                "{\"a\":1,\"c\":1}",
                "{\"a\" :1}",
                "{ \"a\":1}",
                "{\"a\":  1}",
                "{\"a\":1\n}",
                "{\"a\":1,}",
            ],
        ),
        (
            json!({"type": "object", "properties": {"z": {"type": "null"}, "a": {"type": "null"}, "m": {"type": "null"}}}),
            vec![
                "{}",
                "{\"z\":null, \"m\":null}",
                "{\"a\":null,\"other\":[1]}",
            ],
            vec![
                "{\"a\":null,\"z\":null}",
                "{\"a\":1}",
                "{\"\\u0061\":1}",
                "{\"other\":1,\"a\":null}",
            ],
        ),
        (
            json!({"type": "object", "additionalProperties": {"type": "integer"}}),
            vec!["{}", "{\"x\":1}"],
            vec!["{\"x\":\"1\"}", "{1:1}"],
        ),
        (
            json!({"type": "object", "patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": false}),
            vec!["{}", "{\"x1\": 5}"],
            vec!["{\"y\":5}", "{\"x\":null}"],
        ),
        (
            json!({"type": "object", "additionalProperties": {"type": "boolean"}, "minProperties": 1, "maxProperties": 2}),
            vec!["{\"a\":true}"],
            vec!["{}", "{\"a\":true,\"b\":true,\"c\":true}"],
        ),
        (
            json!({"type": "object", "required": ["k"], "properties": {"k": {"const": 1}, "quo\"te/~": {"const": 2}}, "additionalProperties": false}),
            vec!["{\"k\":1,\"quo\\\"te/~\":2}"],
            vec!["{\"quo\\\"te/~\":2}"],
        ),
        // Lists.
        (
            json!({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3}),
            vec!["[1]", "[1, 2,3]"],
            vec!["[]", "[1,2,3,4]", "[1,,2]", "[ 1]", "[1 ]"],
        ),
        (
            json!({"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": false}),
            vec!["[]", "[\"a\"]", "[\"a\",1]"],
            vec!["[1]", "[\"a\",1,2]"],
        ),
        (
            json!({"type": "array", "items": [{"type": "string"}], "additionalItems": {"type": "null"}}),
            vec!["[]", "[\"a\",null,null]"],
            vec!["[null]", "[\"a\",1]"],
        ),
        (
            json!({"type": "array", "maxItems": 100000, "items": {"type": "null"}}),
            vec!["[null,null]"],
            vec!["[null"],
        ),
        (
            json!({"type": "array", "items": {"type": "array", "items": {"type": "boolean"}}}),
            vec!["[[true],[]]"],
            vec!["[true]"],
        ),
        // Combinations.
        (
            json!({"type": ["integer", "null"]}),
            vec!["4", "null"],
            vec!["\"\"", "4.5"],
        ),
        (
            json!({"type": "string", "nullable": true}),
            vec!["null", "\"\""],
            vec!["4"],
        ),
        (
            json!({"anyOf": [{"type": "integer", "minimum": 5}, {"type": "string", "maxLength": 1}]}),
            vec!["5", "\"a\""],
            vec!["4", "\"ab\""],
        ),
        (
            json!({"oneOf": [
                {"type": "object", "properties": {"kind": {"const": "a"}, "n": {"type": "integer"}}, "required": ["kind", "n"], "additionalProperties": false},
                {"$ref": "#/$defs/b"},
            ], "$defs": {"b": {"type": "object", "properties": {"kind": {"enum": ["b", "c"]}}, "required": ["kind"], "additionalProperties": false}}}),
            vec!["{\"kind\":\"a\",\"n\":1}", "{\"kind\":\"c\"}"],
            vec!["{\"kind\":\"a\"}", "{\"kind\":\"b\",\"n\":1}"],
        ),
        (
            json!({"oneOf": [{"type": "integer"}, {"type": "string"}, {"const": null}]}),
            vec!["1", "\"\"", "null"],
            vec!["1.5"],
        ),
        (
            json!({"oneOf": [{"const": 1}, {"const": 2}]}),
            vec!["1", "2"],
            vec!["3"],
        ),
        (
            json!({"allOf": [
                {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
                {"properties": {"a": {"minimum": 3}, "b": {"type": "null"}}, "required": ["b"], "additionalProperties": false},
            ]}),
            vec!["{\"a\":3,\"b\":null}"],
            vec![
                "{\"a\":2,\"b\":null}",
                "{\"a\":3}",
                "{\"a\":3,\"b\":null,\"c\":1}",
            ],
        ),
        (
            json!({"type": "string", "allOf": [{"pattern": "a"}, {"pattern": "b"}, {"maxLength": 4}]}),
            vec!["\"ab\"", "\"xbxa\""],
            vec!["\"a\"", "\"abcde\""],
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}}, "additionalProperties": false, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}),
            vec!["{\"a\":null}", "{\"b\":null}", "{\"a\":null,\"b\":null}"],
            vec!["{}"],
        ),
        // Recursion.
        (
            json!({"type": "object", "properties": {"v": {"type": "integer"}, "next": {"$ref": "#"}}, "required": ["v"], "additionalProperties": false}),
            vec!["{\"v\":1}", "{\"v\":1,\"next\":{\"v\":2}}"],
            vec!["{}", "{\"v\":1,\"next\":{}}"],
        ),
        (
            json!({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}, "required": ["kids"], "additionalProperties": false}}}),
            vec!["{\"kids\":[]}", "{\"kids\":[{\"kids\":[]}]}"],
            vec!["{\"kids\":[1]}"],
        ),
        (
            json!({"$ref": "#/definitions/a~1b", "definitions": {"a/b": {"$ref": "#/definitions/c"}, "c": {"type": "boolean", "description": "C"}}}),
            vec!["true"],
            vec!["1"],
        ),
        (
            json!({"anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#"}}]}),
            vec!["1", "[[1],[]]"],
            vec!["[null]"],
        ),
        // What pydantic and OpenAPI write.
        (
            json!({"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Order", "description": "x", "type": "object",
                "properties": {
                    "id": {"title": "Id", "type": "integer", "format": "int64", "example": 3},
                    "tags": {"default": [], "items": {"type": "string"}, "title": "Tags", "type": "array", "uniqueItems": false},
                    "color": {"anyOf": [{"$ref": "#/$defs/Color"}, {"type": "null"}], "default": null},
                },
                "required": ["id"], "x-order": 1, "additionalProperties": false,
                "$defs": {"Color": {"enum": ["red", "green"], "title": "Color", "type": "string"}}}),
            vec![
                "{\"id\": 1, \"tags\": [\"a\"], \"color\": \"red\"}",
                "{\"id\":1}",
            ],
            vec!["{\"id\":1,\"color\":\"blue\"}"],
        ),
    ]
}

#[test]
fn right_texts_are_allowed_and_wrong_ones_are_not() {
    let mut faults = Vec::new();
    for (schema, right, wrong) in cases() {
        let grammar = match grammar(&Rule::JsonSchema(schema.clone())) {
            Ok(grammar) => grammar,
            Err(error) => {
                faults.push(format!("{error} in {schema}"));
                continue;
            }
        };
        for text in right {
            let value = serde_json::from_str(text).unwrap();
            validate(&value, &schema, &schema).unwrap();
            if !accepts(&grammar, text) {
                faults.push(format!("{text} is right by {schema}"));
            }
        }
        for text in wrong {
            if accepts(&grammar, text) {
                faults.push(format!("{text} is wrong by {schema}"));
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn whatever_is_drawn_satisfies_the_schema() {
    for (schema, _, _) in cases() {
        let grammar = grammar(&Rule::JsonSchema(schema.clone())).unwrap();
        for seed in 0..24 {
            let text = text_of(&walk(&grammar, seed));
            if is_beyond_f64(&text) {
                continue;
            }
            let value: Json = serde_json::from_str(&text)
                .unwrap_or_else(|error| panic!("{error}: {text} by {schema}"));
            validate(&value, &schema, &schema)
                .unwrap_or_else(|error| panic!("{error}\n{text}\n{schema}"));
            assert!(is_tight(&text), "{text}");
        }
    }
}

#[test]
fn a_json_object_is_an_object_of_any_kind() {
    let grammar = grammar(&Rule::JsonObject).unwrap();
    assert!(accepts(&grammar, "{\"a\": [1, {\"b\": null}]}"));
    for text in ["[]", "1", "\"{}\"", "{}{}", "{} ", "Here: {}"] {
        assert!(!accepts(&grammar, text), "{text}");
    }
    for seed in 0..50 {
        let text = text_of(&walk(&grammar, seed));
        if !is_beyond_f64(&text) {
            let value: Json = serde_json::from_str(&text).unwrap();
            assert!(value.is_object());
        }
    }
}

/// A number that is JSON, but larger than what serde_json reads.
fn is_beyond_f64(text: &str) -> bool {
    let far = regex::Regex::new("[eE][+-]?[0-9]{3,}|[0-9]{300,}").unwrap();
    far.is_match(text)
}

/// Whether blanks outside strings stand alone, after a `:` or a `,`.
fn is_tight(text: &str) -> bool {
    let strings = regex::Regex::new(r#""(\\.|[^"\\])*""#).unwrap();
    let bare = strings.replace_all(text, "s");
    !regex::Regex::new(r"\s")
        .unwrap()
        .is_match(&bare.replace(", ", ",").replace(": ", ":"))
}
