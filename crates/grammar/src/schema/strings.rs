//! The strings of a schema as they stand, without the quotes of JSON: GLM writes string arguments of tools so.

use llguidance::derivre::{RegexAst, RegexBuilder};
use serde_json::{Map, Value as Json};

use super::{Normal, whole_pattern};
use crate::lark::{literal, regex};
use crate::limits::MAX_ALTERNATIVES;

/// Deepest nesting that is followed, references included.
const MAX_DEPTH: usize = 16;

/// Work of finding out whether any text satisfies several patterns.
const EMPTINESS_FUEL: u64 = 20_000;

/// Strings that satisfy all of this.
#[derive(Debug, Clone, Default)]
struct Text {
    literal: Option<String>,
    min: u64,
    max: Option<u64>,
    /// Expressions in Rust's syntax, for the whole text.
    patterns: Vec<String>,
}

/// The body of a Lark terminal for the strings that a schema admits, or why there is none.
pub(crate) fn terminal(schema: &Json, normal: &Normal, or_null: bool) -> Result<String, String> {
    let mut texts = texts(schema, normal, MAX_DEPTH)?;
    texts.retain(|text| {
        text.literal
            .as_ref()
            .is_none_or(|literal| fits(literal, text))
    });
    let mut terms = Vec::new();
    for text in &texts {
        if is_possible(text)? {
            terms.push(term(text));
        }
    }
    if or_null {
        terms.push(literal("null"));
    }
    if terms.is_empty() {
        return Err("no string satisfies it".to_owned());
    }
    Ok(terms.join(" | "))
}

fn texts(schema: &Json, normal: &Normal, depth: usize) -> Result<Vec<Text>, String> {
    let depth = depth
        .checked_sub(1)
        .ok_or("it is nested too deeply, or refers to itself")?;
    let map = match schema {
        Json::Bool(true) => return Ok(vec![Text::default()]),
        Json::Object(map) => map,
        _ => return Ok(Vec::new()),
    };
    if !admits_strings(map) {
        return Ok(Vec::new());
    }
    let list = |keyword: &str| map.get(keyword).and_then(Json::as_array);
    let mut found = vec![own(map)?];
    let literals = |values: &[Json]| -> Vec<Text> {
        let strings = values.iter().filter_map(Json::as_str);
        strings
            .map(|text| Text {
                literal: Some(text.to_owned()),
                ..Text::default()
            })
            .collect()
    };
    if let Some(values) = list("enum") {
        found = both(&found, &literals(values))?;
    }
    if let Some(value) = map.get("const") {
        found = both(&found, &literals(std::slice::from_ref(value)))?;
    }
    if let Some(reference) = map.get("$ref").and_then(Json::as_str) {
        let target = normal.definition(reference).ok_or("a `$ref` is lost")?;
        found = both(&found, &texts(target, normal, depth)?)?;
    }
    for part in list("allOf").into_iter().flatten() {
        found = both(&found, &texts(part, normal, depth)?)?;
    }
    if let Some(parts) = list("anyOf") {
        let mut any = Vec::new();
        for part in parts {
            any.extend(texts(part, normal, depth)?);
        }
        found = both(&found, &any)?;
    }
    Ok(found)
}

fn admits_strings(map: &Map<String, Json>) -> bool {
    match map.get("type") {
        None => true,
        Some(Json::Array(types)) => types.iter().any(|name| name == "string"),
        Some(name) => name == "string",
    }
}

/// What the schema says of strings by itself.
fn own(map: &Map<String, Json>) -> Result<Text, String> {
    let pattern = map.get("pattern").and_then(Json::as_str);
    Ok(Text {
        literal: None,
        min: map.get("minLength").and_then(Json::as_u64).unwrap_or(0),
        max: map.get("maxLength").and_then(Json::as_u64),
        patterns: pattern
            .map(whole_pattern)
            .transpose()?
            .into_iter()
            .collect(),
    })
}

/// Strings that are among both.
fn both(a: &[Text], b: &[Text]) -> Result<Vec<Text>, String> {
    if a.len().saturating_mul(b.len()) > MAX_ALTERNATIVES {
        return Err(format!("it has more than {MAX_ALTERNATIVES} alternatives"));
    }
    let pairs = a.iter().flat_map(|a| b.iter().map(move |b| (a, b)));
    Ok(pairs.filter_map(|(a, b)| merged(a, b)).collect())
}

fn merged(a: &Text, b: &Text) -> Option<Text> {
    let literal = match (&a.literal, &b.literal) {
        (Some(a), Some(b)) if a != b => return None,
        (Some(text), _) | (None, Some(text)) => Some(text.clone()),
        (None, None) => None,
    };
    let max = match (a.max, b.max) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (max, other) => max.or(other),
    };
    Some(Text {
        literal,
        min: a.min.max(b.min),
        max,
        patterns: a.patterns.iter().chain(&b.patterns).cloned().collect(),
    })
}

fn fits(literal: &str, text: &Text) -> bool {
    let length = literal.chars().count() as u64;
    length >= text.min && text.max.is_none_or(|max| length <= max)
}

fn length_regex(text: &Text) -> Option<String> {
    let max = text.max.map_or(String::new(), |max| max.to_string());
    (text.min > 0 || text.max.is_some()).then(|| format!("(?s:.{{{},{max}}})", text.min))
}

fn term(text: &Text) -> String {
    let mut parts: Vec<String> = text.patterns.iter().map(|rx| regex(rx, "dw")).collect();
    match &text.literal {
        Some(text) => parts.insert(0, literal(text)),
        None => parts.extend(length_regex(text).map(|rx| regex(&rx, ""))),
    }
    if parts.is_empty() {
        return regex("(?s:.*)", "");
    }
    parts.join(" & ")
}

/// Whether any string satisfies a text's patterns and lengths together.
fn is_possible(text: &Text) -> Result<bool, String> {
    if text.max.is_some_and(|max| text.min > max) {
        return Ok(false);
    }
    if text.patterns.is_empty() {
        return Ok(true);
    }
    let as_regex = |rx: &String| RegexAst::Regex(llguidance::regex_to_lark(rx, "dw"));
    let mut parts: Vec<RegexAst> = text.patterns.iter().map(as_regex).collect();
    match &text.literal {
        Some(literal) => parts.push(RegexAst::Literal(literal.clone())),
        None => parts.extend(length_regex(text).map(RegexAst::Regex)),
    }
    let mut builder = RegexBuilder::new();
    let plain = |error: &dyn std::fmt::Display| crate::compile::one_line(&error.to_string());
    let together = builder
        .mk(&RegexAst::And(parts))
        .map_err(|error| plain(&error))?;
    let mut automaton = builder
        .to_regex_limited(together, EMPTINESS_FUEL)
        .map_err(|_| "it is too complex to tell whether any string satisfies it".to_owned())?;
    Ok(!automaton.always_empty())
}
