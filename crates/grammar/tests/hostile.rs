//! Rules that are made to cost: each ends in an error that names a limit, or in a grammar whose masks are bounded.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{VOCABULARY, grammar, stop};
use glim_grammar::{
    GrammarError, MAX_ALTERNATIVES, MAX_REGEX_BYTES, MAX_SCHEMA_DEPTH, MAX_SCHEMA_NODES,
    MAX_TEXT_BYTES, MatchError, Matcher, Rule,
};
use serde_json::{Map, Value as Json, json};

fn too_large(rule: &Rule, limit: usize) {
    match grammar(rule) {
        Err(GrammarError::TooLarge { limit: found, .. }) => assert_eq!(found, limit),
        other => panic!("{other:?}"),
    }
}

#[test]
fn limits_have_names() {
    let many =
        |n: usize| -> Map<String, Json> { (0..n).map(|i| (format!("p{i}"), json!({}))).collect() };
    too_large(
        &Rule::JsonSchema(json!({"properties": many(MAX_SCHEMA_NODES)})),
        MAX_SCHEMA_NODES,
    );
    let deep = (0..=MAX_SCHEMA_DEPTH).fold(json!({}), |inner, _| json!({"items": inner}));
    too_large(&Rule::JsonSchema(deep), MAX_SCHEMA_DEPTH);
    let values: Vec<String> = (0..=MAX_ALTERNATIVES).map(|i| i.to_string()).collect();
    too_large(
        &Rule::JsonSchema(json!({ "enum": values })),
        MAX_ALTERNATIVES,
    );
    too_large(&Rule::Choice(values), MAX_ALTERNATIVES);
    too_large(
        &Rule::JsonSchema(json!({"const": "x".repeat(MAX_TEXT_BYTES)})),
        MAX_TEXT_BYTES,
    );
    too_large(
        &Rule::Choice(vec!["x".repeat(MAX_TEXT_BYTES + 1)]),
        MAX_TEXT_BYTES,
    );
    too_large(
        &Rule::Regex("x".repeat(MAX_REGEX_BYTES + 1)),
        MAX_REGEX_BYTES,
    );
    too_large(&Rule::Lark("x".repeat(MAX_TEXT_BYTES + 1)), MAX_TEXT_BYTES);
    let nested = format!("start: {}\"a\"{}", "(".repeat(1000), ")".repeat(1000));
    assert!(matches!(
        grammar(&Rule::Lark(nested)),
        Err(GrammarError::TooLarge { .. })
    ));
}

#[test]
fn products_of_alternatives_are_counted_before_they_are_made() {
    let any: Vec<Json> = (0..40)
        .map(|i| json!({"required": [format!("a{i}")]}))
        .collect();
    let all: Vec<Json> = (0..8).map(|_| json!({ "anyOf": any })).collect();
    assert!(matches!(
        grammar(&Rule::JsonSchema(json!({ "allOf": all }))),
        Err(GrammarError::TooLarge { .. })
    ));
    // The same through definitions, each the square of the next.
    let mut definitions = Map::new();
    for i in 0..30 {
        let next = json!({"$ref": format!("#/$defs/d{}", i + 1)});
        let twice =
            json!({"allOf": [next, next], "anyOf": [{"type": "string"}, {"type": "integer"}]});
        definitions.insert(format!("d{i}"), twice);
    }
    definitions.insert(
        "d30".to_owned(),
        json!({"anyOf": [{"type": "string"}, {"type": "null"}]}),
    );
    let schema = json!({"$ref": "#/$defs/d0", "$defs": definitions});
    let error = grammar(&Rule::JsonSchema(schema)).unwrap_err();
    assert!(matches!(error, GrammarError::TooLarge { .. }), "{error}");
}

/// A chain of references is followed by recursion: here it is as long as it can be, called from a thread of the usual size.
#[test]
fn a_long_chain_of_references_needs_no_stack_of_the_caller() {
    let n = MAX_SCHEMA_NODES - 2;
    let mut definitions = Map::new();
    for i in 0..n {
        definitions.insert(
            format!("d{i}"),
            json!({"$ref": format!("#/$defs/d{}", i + 1)}),
        );
    }
    definitions.insert(format!("d{n}"), json!({"type": "null"}));
    let schema = json!({"$ref": "#/$defs/d0", "$defs": definitions});
    let grammar = grammar(&Rule::JsonSchema(schema));
    if let Ok(grammar) = grammar {
        assert!(common::accepts(&grammar, "null"));
        assert!(!common::accepts(&grammar, "1"));
    } else {
        panic!("{grammar:?}");
    }
}

/// Follows any allowed tokens for a while: it goes on, ends, or is an error of a limit.
fn wander(rule: &Rule, steps: usize) -> Result<(), MatchError> {
    let Ok(grammar) = grammar(rule) else {
        return Ok(());
    };
    let mut random = common::Random(7);
    let mut matcher = Matcher::new(&grammar, false);
    for _ in 0..steps {
        let mut mask = vec![u32::MAX; VOCABULARY.mask_words()];
        matcher.restrict(&mut mask)?;
        let ids = common::bits(&mask);
        let next = ids[random.below(ids.len())];
        matcher.accept(next)?;
        if next == stop() {
            break;
        }
    }
    Ok(())
}

#[test]
fn hostile_rules_are_refused_or_followed_within_bounds() {
    let big = |n: usize| {
        (0..n)
            .map(|i| (format!("p{i}"), json!({"type": "string", "pattern": "a"})))
            .collect::<Map<String, Json>>()
    };
    let rules = [
        Rule::JsonSchema(json!({"type": "string", "maxLength": 4294967295u32})),
        Rule::JsonSchema(json!({"type": "string", "minLength": 100000, "maxLength": 100001})),
        Rule::JsonSchema(json!({"type": "string", "pattern": "(a{1,1000}){1,1000}"})),
        Rule::JsonSchema(json!({"type": "string", "pattern": "((((a*)*)*)*)*b"})),
        Rule::JsonSchema(json!({"type": "string", "pattern": "(.*a){30}", "maxLength": 500})),
        Rule::JsonSchema(json!({"type": "string", "pattern": "(a|b)*a(a|b){200}"})),
        Rule::JsonSchema(
            json!({"type": "string", "pattern": "^(?:(?:x+x+)+y)+$", "allOf": [{"pattern": "x.{50}x"}, {"pattern": "y.{50}y"}, {"pattern": "z"}]}),
        ),
        Rule::JsonSchema(json!({"type": "array", "minItems": 4000000000u32})),
        Rule::JsonSchema(
            json!({"type": "array", "minItems": 1000, "maxItems": 4000000000u32, "items": {"type": "array", "minItems": 1000}}),
        ),
        Rule::JsonSchema(json!({"type": "object", "properties": big(1000)})),
        Rule::JsonSchema(
            json!({"type": "object", "patternProperties": {"(a|b)*a(a|b){200}": true, "(a|c)*a(a|b){200}": true}, "properties": big(300)}),
        ),
        Rule::JsonSchema(
            json!({"anyOf": (0..400).map(|i| json!({"type": "object", "properties": {"k": {"type": "integer", "minimum": i}}})).collect::<Vec<_>>()}),
        ),
        Rule::JsonSchema(json!({"type": "integer", "multipleOf": 4294967295u32, "minimum": 1})),
        Rule::JsonSchema(json!({"type": "number", "multipleOf": 1e-9})),
        Rule::JsonSchema(json!({"x-guidance": {"whitespace_flexible": true}, "type": "array"})),
        Rule::Regex("(a|b)*a(a|b){3000}".to_owned()),
        Rule::Regex("(x{1000}){1000}".to_owned()),
        Rule::Regex(".{1000000}".to_owned()),
        Rule::Lark("start: a\na: a a | a a a | \"x\"".to_owned()),
        Rule::Lark("start: (\"a\"{0,100000}){0,100000}".to_owned()),
        Rule::Lark("start: start".to_owned()),
        Rule::Lark("start: A{1000000}\nA: /a?/".to_owned()),
        Rule::Lark("start: \"a\"".repeat(1000)),
    ];
    for rule in rules {
        if let Err(error) = wander(&rule, 60) {
            assert!(
                matches!(error, MatchError::Exhausted { .. }),
                "{error} {rule:?}"
            );
        }
    }
}
