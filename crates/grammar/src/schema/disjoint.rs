//! `oneOf`: exactly one alternative holds. An automaton can say that one holds; that no two do must follow from the
//! alternatives themselves.
//!
//! Two schemas exclude each other if they have no type in common, list no value in common, or are objects that differ for sure
//! in a property: one requires it and the other forbids it, or it must be there and its schemas exclude each other (a
//! `const` that says which kind it is).

use serde_json::{Map, Value as Json};

use super::Normal;
use crate::error::GrammarError;

/// Deepest nesting that is looked at, references included.
const MAX_DEPTH: usize = 8;

/// Most pairs of schemas that are compared for one schema.
const MAX_PAIRS: usize = 100_000;

/// A `oneOf` that was found, rewritten.
#[derive(Debug)]
pub(super) struct OneOf {
    pub(super) path: String,
    pub(super) alternatives: Vec<Json>,
}

/// Refuses a `oneOf` of which two alternatives might both hold.
pub(super) fn check(one_of: &OneOf, normal: &Normal) -> Result<(), GrammarError> {
    let mut fuel = MAX_PAIRS;
    for (index, a) in one_of.alternatives.iter().enumerate() {
        for (other, b) in one_of.alternatives.iter().enumerate().skip(index + 1) {
            if !disjoint(a, b, normal, MAX_DEPTH, &mut fuel) {
                return Err(GrammarError::Keyword {
                    path: one_of.path.clone(),
                    keyword: "oneOf".to_owned(),
                    reason: format!("has alternatives {index} and {other}, which might both hold"),
                    advice: "use `anyOf`, or give each a required property with a `const` of its own",
                });
            }
        }
    }
    Ok(())
}

fn disjoint(a: &Json, b: &Json, normal: &Normal, depth: usize, fuel: &mut usize) -> bool {
    let Some(depth) = depth.checked_sub(1) else {
        return false;
    };
    *fuel = fuel.saturating_sub(1);
    if *fuel == 0 {
        return false;
    }
    for (one, other) in [(a, b), (b, a)] {
        if *one == Json::Bool(false) {
            return true;
        }
        let Some(map) = one.as_object() else {
            continue;
        };
        let reference = map.get("$ref").and_then(Json::as_str);
        if let Some(target) = reference.and_then(|name| normal.definition(name))
            && disjoint(target, other, normal, depth, fuel)
        {
            return true;
        }
        let list = |keyword: &str| map.get(keyword).and_then(Json::as_array);
        if list("anyOf").is_some_and(|list| {
            list.iter()
                .all(|part| disjoint(part, other, normal, depth, fuel))
        }) || list("allOf").is_some_and(|list| {
            list.iter()
                .any(|part| disjoint(part, other, normal, depth, fuel))
        }) {
            return true;
        }
    }
    let (Some(a), Some(b)) = (a.as_object(), b.as_object()) else {
        return false;
    };
    if let (Some(ours), Some(theirs)) = (values(a), values(b)) {
        return !ours
            .iter()
            .any(|value| theirs.iter().any(|other| equal(value, other)));
    }
    match common_types(a, b).as_slice() {
        [] => true,
        ["object"] => objects_differ(a, b, normal, depth, fuel),
        _ => false,
    }
}

/// The values that a schema lists.
fn values(schema: &Map<String, Json>) -> Option<Vec<&Json>> {
    match (schema.get("const"), schema.get("enum")) {
        (Some(value), _) => Some(vec![value]),
        (None, Some(Json::Array(values))) => Some(values.iter().collect()),
        _ => None,
    }
}

/// Equality as JSON schema has it: `1` and `1.0` are the same number.
fn equal(a: &Json, b: &Json) -> bool {
    match (a, b) {
        (Json::Number(a), Json::Number(b)) => a.as_f64() == b.as_f64(),
        // What lies within lists might be such numbers.
        (Json::Array(_), Json::Array(_)) | (Json::Object(_), Json::Object(_)) => true,
        (a, b) => a == b,
    }
}

fn common_types(a: &Map<String, Json>, b: &Map<String, Json>) -> Vec<&'static str> {
    ["null", "boolean", "number", "string", "array", "object"]
        .into_iter()
        .filter(|name| admits(a, name) && admits(b, name))
        .collect()
}

/// Whether a schema admits values of a type; `integer` is a kind of number.
fn admits(schema: &Map<String, Json>, name: &str) -> bool {
    let is = |found: &str| found == name || (found == "integer" && name == "number");
    if let Some(values) = values(schema) {
        return values.iter().any(|value| {
            is(match value {
                Json::Null => "null",
                Json::Bool(_) => "boolean",
                Json::Number(_) => "number",
                Json::String(_) => "string",
                Json::Array(_) => "array",
                Json::Object(_) => "object",
            })
        });
    }
    match schema.get("type") {
        Some(Json::String(found)) => is(found),
        Some(Json::Array(types)) => types.iter().filter_map(Json::as_str).any(is),
        _ => true,
    }
}

fn objects_differ(
    a: &Map<String, Json>,
    b: &Map<String, Json>,
    normal: &Normal,
    depth: usize,
    fuel: &mut usize,
) -> bool {
    let required = |schema: &Map<String, Json>| -> Vec<String> {
        let names = schema.get("required").and_then(Json::as_array);
        let names = names.into_iter().flatten().filter_map(Json::as_str);
        names.map(str::to_owned).collect()
    };
    let closed = |schema: &Map<String, Json>| {
        schema.get("additionalProperties") == Some(&Json::Bool(false))
            && !schema.contains_key("patternProperties")
    };
    required(a).into_iter().chain(required(b)).any(|name| {
        let property =
            |schema: &'_ Map<String, Json>| schema.get("properties")?.get(&name).cloned();
        match (property(a), property(b)) {
            (Some(ours), Some(theirs)) => disjoint(&ours, &theirs, normal, depth, fuel),
            (None, Some(_)) => closed(a),
            (Some(_), None) => closed(b),
            (None, None) => closed(a) || closed(b),
        }
    })
}
