//! `format`, filter (`"%s" | format(x)`) and method (`"{}".format(x)`): the engine's, behind a look at the format string.
//!
//! minijinja 3.1.0 walks the keys of a format string byte by byte (`parse_till` in `formatting.rs`) and panics inside a
//! character that has several; and what the method is asked to pad is made before it is paid for.

use minijinja::value::{Rest, ValueOrKwargs};
use minijinja::{Error, ErrorKind, State, Value};

use super::pay;

/// The filter, in the style of C's printf.
pub(super) fn filter(
    state: &mut State,
    format: &Value,
    args: Rest<ValueOrKwargs>,
) -> Result<Value, Error> {
    let mut rest = format.as_str().unwrap_or_default();
    while let Some(at) = rest.find('%') {
        rest = &rest[at + 1..];
        if let Some(key) = rest.strip_prefix('(') {
            refuse_foreign_key(key, ')')?;
        } else if let Some(after) = rest.strip_prefix('%') {
            rest = after;
        }
    }
    minijinja::filters::format(state, format, args)
}

/// Looks at the format string of the method, in the style of Python's `str.format`: refuses keys, pays for widths.
pub(super) fn check_method(state: &State, format: &str) -> Result<(), Error> {
    let mut rest = format;
    while let Some(at) = rest.find('{') {
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('{') {
            rest = after;
            continue;
        }
        let end = rest.find('}').unwrap_or(rest.len());
        for (open, _) in rest[..end].match_indices('[') {
            refuse_foreign_key(&rest[open + 1..], ']')?;
        }
        for number in rest[..end].split(|c: char| !c.is_ascii_digit()) {
            // Too long for a number: more than anybody can pay.
            let width = number
                .parse()
                .unwrap_or(usize::from(!number.is_empty()) * usize::MAX);
            pay(state, width)?;
        }
        rest = &rest[end..];
    }
    Ok(())
}

fn refuse_foreign_key(rest: &str, end: char) -> Result<(), Error> {
    let key = rest.split(end).next().unwrap_or_default();
    if key.is_ascii() {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::InvalidOperation,
        "format: expected a key of ASCII characters",
    ))
}
