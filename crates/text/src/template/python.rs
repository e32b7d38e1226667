//! Values as Python has and prints them: JSON in, `str()` and `repr()` out.

use std::fmt::Write as _;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Output, State, Value};
use serde_json::Value as Json;

use super::{MAX_DEPTH, pay};
use crate::taint::is_mark;

/// A JSON value as a template value, keys in order, each string and key passed through `string`.
pub(super) fn from_json(value: &Json, string: &mut dyn FnMut(&str) -> String) -> Value {
    match value {
        Json::Null => Value::from(()),
        Json::Bool(value) => Value::from(*value),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(integer), _) => Value::from(integer),
            (None, Some(integer)) => Value::from(integer),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(string(text)),
        Json::Array(items) => list(items, string),
        Json::Object(fields) => Value::from_pairs(
            fields
                .iter()
                .map(|(key, value)| (string(key), from_json(value, string)))
                .collect::<Vec<_>>(),
        ),
    }
}

/// A JSON array as a template value.
pub(super) fn list(items: &[Json], string: &mut dyn FnMut(&str) -> String) -> Value {
    Value::from(
        items
            .iter()
            .map(|item| from_json(item, string))
            .collect::<Vec<_>>(),
    )
}

/// Visits every string and key.
pub(super) fn visit_strings(value: &Json, visit: &mut dyn FnMut(&str)) {
    match value {
        Json::String(text) => visit(text),
        Json::Array(items) => items.iter().for_each(|item| visit_strings(item, visit)),
        Json::Object(fields) => fields.iter().for_each(|(key, value)| {
            visit(key);
            visit_strings(value, visit);
        }),
        Json::Null | Json::Bool(_) | Json::Number(_) => {}
    }
}

/// How `{{ value }}` prints: Python's `str()`, nothing for undefined values.
pub(super) fn formatter(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => out.write_str(text),
        None => out.write_str(&to_str(state, value)?),
    }
    .map_err(Error::from)
}

/// The filter `string`.
pub(super) fn string(state: &State, value: &Value) -> Result<String, Error> {
    to_str(state, value)
}

/// The test `iterable`: what Python's `iter()` takes. The engine would take `none` as well.
pub(super) fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// The test `sequence`: what has a length and items by index or key, so strings and mappings too.
pub(super) fn is_sequence(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::Undefined | ValueKind::String | ValueKind::Seq | ValueKind::Map
    )
}

/// Python's `str(value)`.
pub(super) fn to_str(state: &State, value: &Value) -> Result<String, Error> {
    match value.as_str() {
        Some(text) => Ok(text.to_owned()),
        None => {
            let mut out = String::new();
            write_repr(state, value, 0, &mut out)?;
            Ok(out)
        }
    }
}

/// Pays for each value before it is printed: one that holds itself twice, and so on, would print without end.
fn write_repr(state: &State, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("a value that is nested deeper than {MAX_DEPTH} levels cannot be printed"),
        ));
    }
    pay(state, value.as_str().map_or(0, str::len))?;
    let items = || value.try_iter().into_iter().flatten();
    match value.kind() {
        ValueKind::Undefined => {}
        ValueKind::String => write_str_repr(value.as_str().unwrap_or_default(), out),
        ValueKind::Number if !value.is_integer() => match f64::try_from(value.clone()) {
            Ok(number) => out.push_str(&float_repr(number)),
            Err(_) => out.push_str(&value.to_string()),
        },
        ValueKind::Map => {
            out.push('{');
            for (n, key) in items().enumerate() {
                out.push_str(if n > 0 { ", " } else { "" });
                write_repr(state, &key, depth + 1, out)?;
                out.push_str(": ");
                let item = value.get_item(&key).unwrap_or_default();
                write_repr(state, &item, depth + 1, out)?;
            }
            out.push('}');
        }
        ValueKind::Seq => {
            let tuple = value.is_tuple();
            out.push(if tuple { '(' } else { '[' });
            let mut count = 0;
            for item in items() {
                out.push_str(if count > 0 { ", " } else { "" });
                write_repr(state, &item, depth + 1, out)?;
                count += 1;
            }
            out.push_str(match (tuple, count) {
                (true, 1) => ",)",
                (true, _) => ")",
                (false, _) => "]",
            });
        }
        _ => out.push_str(&value.to_string()),
    }
    Ok(())
}

/// Python's `repr(str)`: single quotes unless the text has those and no double ones; what is not printable escaped.
/// Which characters count as printable is only approximated beyond ASCII (control, private use, unassigned are told
/// by Rust's `Debug`).
fn write_str_repr(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if is_mark(c) || c == '\'' || c == '"' => out.push(c),
            c if c.is_control() || is_escaped_by_debug(c) => {
                let code = u32::from(c);
                // Writing to a string cannot fail.
                let _ = match code {
                    0..=0xFF => write!(out, "\\x{code:02x}"),
                    0x100..=0xFFFF => write!(out, "\\u{code:04x}"),
                    _ => write!(out, "\\U{code:08x}"),
                };
            }
            c => out.push(c),
        }
    }
    out.push(quote);
}

fn is_escaped_by_debug(c: char) -> bool {
    // Combining marks are escaped by `Debug` (as grapheme extenders) but printable in Python.
    c != ' ' && c.escape_debug().len() > 1 && !is_combining(c) || (c != ' ' && c.is_whitespace())
}

fn is_combining(c: char) -> bool {
    // A combining mark after a letter is left alone by `str`'s `Debug`, so ask that.
    let pair: String = ['a', c].iter().collect();
    format!("{pair:?}").chars().nth(2) == Some(c)
}

/// Python's `repr(float)`: the shortest digits that read back the same, exponent form below 1e-4 and from 1e16.
pub(super) fn float_repr(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    // Rust's `{:e}` gives the same shortest digits: "-1.25e-7".
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = number.to_string();
        return if plain.contains('.') {
            plain
        } else {
            plain + ".0"
        };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn floats_print_as_in_python() {
        for (number, text) in [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (1e16, "1e+16"),
            (9_999_999_999_999_998.0, "9999999999999998.0"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (1e100, "1e+100"),
            (123.456, "123.456"),
        ] {
            assert_eq!(float_repr(number), text);
        }
    }

    #[test]
    fn containers_print_as_in_python() {
        let value = from_json(
            &json!({"a": [1, 2.5, null, true], "it's": "é\n\u{1}\u{a0}\"", "b'": {}}),
            &mut str::to_owned,
        );
        let env = minijinja::Environment::new();
        assert_eq!(
            to_str(&env.empty_state(), &value).unwrap(),
            r#"{'a': [1, 2.5, None, True], "it's": 'é\n\x01\xa0"', "b'": {}}"#
        );
    }
}
