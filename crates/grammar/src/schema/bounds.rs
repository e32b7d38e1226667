//! Numbers in a schema: llguidance holds bounds as f64 and i64, so those it would take inexactly are refused here.

use serde_json::{Map, Number, Value as Json};

use super::walk::wrong;
use crate::error::GrammarError;

/// Integers lie within ± this, a number that f64 and i64 hold exactly. So the digits of an integer end, too.
const INTEGER_MOST: i128 = 9_000_000_000_000_000_000;

/// Longest decimal form of a bound; its digits become parts of a regular expression.
const MAX_DECIMAL_CHARS: usize = 40;

type Out = Map<String, Json>;

/// `minItems` and its like: a whole number. A maximum beyond 32 bits is as good as the largest.
pub(super) fn count(keyword: &str, value: &Json, at: &str) -> Result<Json, GrammarError> {
    let expected = "a whole number that is not negative";
    // `3.0` is a whole number.
    let number = value.as_u64().or_else(|| {
        let float = value.as_f64()?;
        (float >= 0.0 && float.fract() == 0.0 && float <= f64::from(u32::MAX))
            .then_some(float as u64)
    });
    let number = number.ok_or_else(|| wrong(at, value, expected))?;
    let most = u64::from(u32::MAX);
    if number > most && !keyword.starts_with("max") {
        return Err(wrong(at, value, "a number below 2^32"));
    }
    Ok(Json::from(number.min(most)))
}

/// A value of `const` or `enum`: its numbers must be exact, its strings such that they can be written.
pub(super) fn constant(value: &Json, at: &str) -> Result<(), GrammarError> {
    let refused = |reason: &str| {
        Err(GrammarError::Keyword {
            path: at.to_owned(),
            keyword: crate::error::shortened(&value.to_string()),
            reason: reason.to_owned(),
            advice: "leave this value out",
        })
    };
    match value {
        Json::Number(number) => {
            if exact_integer(number).is_some_and(|number| !is_exact(number))
                || decimal_chars(number) > MAX_DECIMAL_CHARS
            {
                return refused("is a number that is not kept exactly");
            }
        }
        Json::String(text) => {
            // What a JSON string of ours holds: no control characters of ASCII but those with a short escape.
            let writable = |c: char| !c.is_ascii_control() || "\n\r\t\u{8}\u{c}".contains(c);
            if !text.chars().all(writable) {
                return refused("holds a control character");
            }
        }
        Json::Array(values) => values.iter().try_for_each(|value| constant(value, at))?,
        Json::Object(map) => map.values().try_for_each(|value| constant(value, at))?,
        Json::Null | Json::Bool(_) => {}
    }
    Ok(())
}

/// Bounds of numbers, and `multipleOf`.
pub(super) fn numbers(
    map: &Map<String, Json>,
    path: &str,
    out: &mut Out,
) -> Result<(), GrammarError> {
    if let Some(value) = map.get("multipleOf") {
        let at = format!("{path}/multipleOf");
        if !value.as_f64().is_some_and(|value| value > 0.0) {
            return Err(wrong(&at, value, "a number above zero"));
        }
        out.insert("multipleOf".to_owned(), value.clone());
    }
    let bound = |keyword: &str, exclusive: &str| side(map, path, keyword, exclusive);
    let (low, low_excluded) = bound("minimum", "exclusiveMinimum")?;
    let (high, high_excluded) = bound("maximum", "exclusiveMaximum")?;
    if !only_integers(map.get("type")) {
        for (keyword, value) in [
            ("minimum", low),
            ("exclusiveMinimum", low_excluded),
            ("maximum", high),
            ("exclusiveMaximum", high_excluded),
        ] {
            if let Some(value) = value {
                if decimal_chars(&value) > MAX_DECIMAL_CHARS
                    || exact_integer(&value).is_some_and(|value| !is_exact(value))
                {
                    return Err(inexact(path, keyword, &value));
                }
                out.insert(keyword.to_owned(), Json::Number(value));
            }
        }
        return Ok(());
    }
    let lowest = [
        low.map(|low| ceil(&low)),
        low_excluded.map(|low| floor(&low) + 1),
    ];
    let highest = [
        high.map(|high| floor(&high)),
        high_excluded.map(|high| ceil(&high) - 1),
    ];
    let lowest = lowest
        .into_iter()
        .flatten()
        .max()
        .unwrap_or(-INTEGER_MOST)
        .max(-INTEGER_MOST);
    let highest = highest
        .into_iter()
        .flatten()
        .min()
        .unwrap_or(INTEGER_MOST)
        .min(INTEGER_MOST);
    for (keyword, value) in [("minimum", lowest), ("maximum", highest)] {
        match i64::try_from(value) {
            Ok(value) if is_exact(value.into()) => {
                out.insert(keyword.to_owned(), Json::from(value));
            }
            _ => return Err(inexact(path, keyword, &value)),
        }
    }
    Ok(())
}

/// A bound and an exclusive bound of one side. In draft 4 the second is a flag of the first.
fn side(
    map: &Map<String, Json>,
    path: &str,
    keyword: &str,
    exclusive: &str,
) -> Result<(Option<Number>, Option<Number>), GrammarError> {
    let number = |keyword: &str| match map.get(keyword) {
        None | Some(Json::Bool(false)) => Ok(None),
        Some(Json::Number(number)) => Ok(Some(number.clone())),
        Some(other) => Err(wrong(&format!("{path}/{keyword}"), other, "a number")),
    };
    if map.get(exclusive) == Some(&Json::Bool(true)) {
        return Ok((None, number(keyword)?));
    }
    Ok((number(keyword)?, number(exclusive)?))
}

/// Whether a schema's numbers are integers by its `type`.
fn only_integers(types: Option<&Json>) -> bool {
    match types {
        Some(Json::Array(types)) => {
            types.iter().any(|name| name == "integer") && !types.iter().any(|name| name == "number")
        }
        Some(one) => one == "integer",
        None => false,
    }
}

fn inexact(path: &str, keyword: &str, value: &dyn std::fmt::Display) -> GrammarError {
    GrammarError::Keyword {
        path: path.to_owned(),
        keyword: keyword.to_owned(),
        reason: format!("is {value}, which is not kept exactly"),
        advice: "use a number of at most 15 digits",
    }
}

/// An integer literal's value.
fn exact_integer(number: &Number) -> Option<i128> {
    number
        .as_i64()
        .map(i128::from)
        .or_else(|| number.as_u64().map(i128::from))
}

/// Whether an f64 holds this number.
fn is_exact(number: i128) -> bool {
    (number as f64) as i128 == number && number.unsigned_abs() < 1 << 63
}

fn floor(number: &Number) -> i128 {
    rounded(number, f64::floor)
}

fn ceil(number: &Number) -> i128 {
    rounded(number, f64::ceil)
}

/// Far numbers saturate, and lie beyond [`INTEGER_MOST`] all the same.
fn rounded(number: &Number, round: fn(f64) -> f64) -> i128 {
    exact_integer(number).unwrap_or_else(|| {
        let value = round(number.as_f64().unwrap_or(0.0));
        value.clamp(-1e30, 1e30) as i128
    })
}

fn decimal_chars(number: &Number) -> usize {
    number.as_f64().map_or(0, |number| number.to_string().len())
}

/// An object may name a property twice, if the name is not declared: so a minimum above what is required, and above one more,
/// would count what a reader sees once.
pub(super) fn properties(out: &Out, path: &str) -> Result<(), GrammarError> {
    let least = out.get("minProperties").and_then(Json::as_u64).unwrap_or(0);
    let required = out.get("required").and_then(Json::as_array);
    let required = required.map_or(0, Vec::len) as u64;
    if least > required.saturating_add(1) {
        return Err(GrammarError::Keyword {
            path: path.to_owned(),
            keyword: "minProperties".to_owned(),
            reason: format!("is {least}, more than the {required} required properties and one"),
            advice: "name the properties in `required`",
        });
    }
    Ok(())
}
