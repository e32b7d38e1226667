//! Schemas that cannot be enforced are errors that say where and why, and never free text.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::grammar;
use glim_grammar::{GrammarError, Rule};
use serde_json::{Value as Json, json};

fn error(schema: &Json) -> GrammarError {
    match grammar(&Rule::JsonSchema(schema.clone())) {
        Err(error) => error,
        Ok(_) => panic!("{schema} compiles"),
    }
}

#[test]
fn what_is_not_followed_is_named_with_its_place() {
    let within = |schema: Json| json!({"type": "object", "properties": {"a/b": {"type": "array", "items": schema}}});
    let at = "#/properties/a~1b/items";
    for (schema, keyword) in [
        (json!({"not": {"type": "null"}}), "not"),
        (json!({"if": {}, "then": {}}), "if"),
        (json!({"type": "array", "uniqueItems": true}), "uniqueItems"),
        (
            json!({"type": "array", "contains": {"const": 1}}),
            "contains",
        ),
        (
            json!({"type": "object", "propertyNames": {"maxLength": 3}}),
            "propertyNames",
        ),
        (
            json!({"type": "object", "dependentRequired": {"a": ["b"]}}),
            "dependentRequired",
        ),
        (
            json!({"type": "object", "unevaluatedProperties": false}),
            "unevaluatedProperties",
        ),
        (json!({"type": "string", "maxLenght": 3}), "maxLenght"),
        (json!({"type": "string", "format": "shoe-size"}), "format"),
        (json!({"type": "string", "pattern": "a(?=b)"}), "pattern"),
        (json!({"type": "string", "pattern": "(a)\\1"}), "pattern"),
        (
            json!({"type": "string", "pattern": "\\bword\\b"}),
            "pattern",
        ),
        (json!({"type": "string", "pattern": "[a"}), "pattern"),
        (
            json!({"type": "integer", "minimum": 9007199254740993i64}),
            "minimum",
        ),
        (json!({"type": "number", "maximum": 1e-300}), "maximum"),
        (json!({"const": 9007199254740993i64}), "9007199254740993"),
        (json!({"enum": ["a", "\u{1}"]}), "\"\\u0001\""),
        (
            json!({"allOf": [{"multipleOf": 3}, {"multipleOf": 4}]}),
            "multipleOf",
        ),
        (
            json!({"type": "object", "minProperties": 3}),
            "minProperties",
        ),
    ] {
        let error = error(&within(schema.clone()));
        let GrammarError::Keyword {
            path,
            keyword: found,
            ..
        } = &error
        else {
            panic!("{error:?}");
        };
        assert!(path.starts_with(at), "{path} for {schema}");
        assert_eq!(found, keyword);
        assert!(error.to_string().contains(keyword) && error.to_string().contains(at));
    }
}

#[test]
fn what_is_no_schema_is_named_with_its_place() {
    for (schema, place) in [
        (json!(3), "# is the number 3"),
        (json!({"type": "strin"}), "#/type is \"strin\""),
        (json!({"type": []}), "#/type is an array"),
        (
            json!({"properties": {"a": 1}}),
            "#/properties/a is the number 1",
        ),
        (json!({"properties": []}), "#/properties is an array"),
        (json!({"required": "a"}), "#/required is a string"),
        (json!({"required": [1]}), "#/required is the number 1"),
        (json!({"anyOf": []}), "#/anyOf is an empty list"),
        (json!({"enum": []}), "#/enum is an empty list"),
        (json!({"maxLength": -1}), "#/maxLength is the number -1"),
        (json!({"minItems": 1.5}), "#/minItems is the number 1.5"),
        (json!({"minimum": "3"}), "#/minimum is a string"),
        (json!({"multipleOf": 0}), "#/multipleOf is the number 0"),
        (json!({"pattern": 5}), "#/pattern is the number 5"),
        (
            json!({"$ref": "#/$defs/gone"}),
            "#/$ref is \"#/$defs/gone\"",
        ),
        (
            json!({"$ref": "https://example.org/s"}),
            "#/$ref is \"https://example.org/s\"",
        ),
        (
            json!({"$ref": "#/$defs/a", "$defs": {"a": 1}}),
            "#/$defs/a is the number 1",
        ),
    ] {
        let message = error(&schema).to_string();
        assert!(message.starts_with(place), "{message}");
    }
}

#[test]
fn what_no_value_satisfies_is_named_with_its_place() {
    let a =
        |schema: Json| json!({"type": "object", "properties": {"a": schema}, "required": ["a"]});
    for (schema, place) in [
        (json!(false), "#"),
        (a(json!(false)), "#/properties/a"),
        (
            a(json!({"type": "integer", "minimum": 3, "maximum": 2})),
            "#/properties/a",
        ),
        (
            a(json!({"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 4})),
            "#/properties/a",
        ),
        (
            a(json!({"type": "string", "minLength": 3, "maxLength": 2})),
            "#/properties/a",
        ),
        (
            a(json!({"type": "string", "pattern": "^a$", "minLength": 2})),
            "#/properties/a",
        ),
        (a(json!({"type": "string", "const": 1})), "#/properties/a"),
        (
            a(json!({"allOf": [{"type": "string"}, {"type": "integer"}]})),
            "#/properties/a",
        ),
        (
            a(json!({"type": "array", "minItems": 2, "maxItems": 1})),
            "#/properties/a",
        ),
        (
            a(json!({"type": "array", "minItems": 1, "items": false})),
            "#/properties/a",
        ),
        (
            json!({"type": "object", "required": ["x"], "additionalProperties": false}),
            "#",
        ),
        (
            a(json!({"$ref": "#/$defs/no", "type": "integer"})),
            "#/properties/a",
        ),
        // Only an endless value would do.
        (
            json!({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}),
            "#",
        ),
        (
            json!({"type": "array", "items": {"$ref": "#"}, "minItems": 1}),
            "#",
        ),
        (json!({"$ref": "#"}), "#"),
    ] {
        let mut schema = schema;
        if let Json::Object(map) = &mut schema {
            map.insert("$defs".to_owned(), json!({"no": {"type": "string"}}));
        }
        let error = error(&schema);
        let GrammarError::Unenforceable { path, reason } = &error else {
            panic!("{error:?} for {schema}");
        };
        assert_eq!(path, place, "{schema}: {reason}");
        assert!(!reason.is_empty() && !reason.contains('\n'), "{reason}");
    }
}

#[test]
fn alternatives_of_one_of_must_exclude_each_other() {
    for alternatives in [
        json!([{"type": "integer"}, {"type": "number"}]),
        json!([{"type": "string"}, {"const": "a"}]),
        json!([{"enum": [1, 2]}, {"enum": [2.0, 3]}]),
        json!([{"type": "object", "properties": {"a": {"const": 1}}}, {"type": "object", "properties": {"a": {"const": 2}}}]),
        json!([{"type": "array"}, {"type": "array", "maxItems": 1}]),
    ] {
        let error = error(&json!({"items": {"oneOf": alternatives}}));
        assert!(
            error
                .to_string()
                .starts_with("#/items/oneOf: the keyword `oneOf` has alternatives 0 and 1"),
            "{error}"
        );
    }
}
