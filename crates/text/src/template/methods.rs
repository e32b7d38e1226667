//! Python's methods on strings and dictionaries, seeing through the marks of [`taint`](crate::taint).
//!
//! The methods that look at contents (`split`, `strip`, `startswith`, …) work on the text without marks and give
//! marked pieces back. Where a method neither cuts nor compares, minijinja-contrib's `pycompat` is used as it is.

use minijinja::value::{Kwargs, Rest, Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

use super::pay;
use crate::taint::{Marked, is_mark};

/// The callback for methods that the engine does not have itself.
pub(super) fn call(
    state: &mut State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let Some(text) = value.as_str() else {
        return pycompat::unknown_method_callback(state, value, method, args);
    };
    // All of these look at the whole text, whatever they return.
    let args_len = args.iter().filter_map(Value::as_str).map(str::len);
    pay(state, text.len() + args_len.sum::<usize>())?;
    match method {
        "split" | "rsplit" => split(&Marked::parse(text), method == "rsplit", args),
        "strip" => strip(&Marked::parse(text), [true, true], args),
        "lstrip" => strip(&Marked::parse(text), [true, false], args),
        "rstrip" => strip(&Marked::parse(text), [false, true], args),
        "startswith" => affix(state, text, |text, affix| text.starts_with(affix), args),
        "endswith" => affix(state, text, |text, affix| text.ends_with(affix), args),
        "removeprefix" | "removesuffix" => {
            remove_affix(&Marked::parse(text), method == "removeprefix", args)
        }
        "format" => {
            super::format::check_method(state, text)?;
            pycompat::unknown_method_callback(state, value, method, args)
        }
        "partition" | "rpartition" => partition(&Marked::parse(text), method == "rpartition", args),
        "splitlines" => split_lines(&Marked::parse(text), args),
        "find" | "rfind" | "count" | "isalnum" | "isalpha" | "isascii" | "isdigit" | "islower"
        | "isnumeric" | "isspace" | "isupper" => {
            let args: Vec<Value> = args
                .iter()
                .map(|arg| {
                    arg.as_str()
                        .map_or_else(|| arg.clone(), |s| Value::from(unmarked(s)))
                })
                .collect();
            pycompat::unknown_method_callback(state, &Value::from(unmarked(text)), method, &args)
        }
        _ => pycompat::unknown_method_callback(state, value, method, args),
    }
}

/// The filter `trim`: `str.strip`.
pub(super) fn trim(state: &State, value: &Value, args: Rest<Value>) -> Result<Value, Error> {
    let text = super::python::to_str(state, value)?;
    pay(state, text.len())?;
    strip(&Marked::parse(&text), [true, true], &args)
}

fn unmarked(text: &str) -> String {
    text.chars().filter(|c| !is_mark(*c)).collect()
}

/// What `str.isspace` accepts: Unicode white space and the four information separators.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

fn strip(text: &Marked, [left, right]: [bool; 2], args: &[Value]) -> Result<Value, Error> {
    let (chars,): (Option<String>,) = from_args(args)?;
    let goes = |c: char| {
        chars
            .as_ref()
            .map_or_else(|| is_space(c), |chars| chars.contains(c))
    };
    let plain = text.plain.as_str();
    let start = if left {
        plain.len() - plain.trim_start_matches(goes).len()
    } else {
        0
    };
    let end = if right {
        plain.trim_end_matches(goes).len().max(start)
    } else {
        plain.len()
    };
    Ok(Value::from(text.slice(start..end)))
}

/// `split(sep=None, maxsplit=-1)` and `rsplit`.
fn split(text: &Marked, from_right: bool, args: &[Value]) -> Result<Value, Error> {
    let (separator, limit, kwargs): (Option<Value>, Option<i64>, Kwargs) = from_args(args)?;
    let separator = separator
        .or(kwargs.get("sep")?)
        .filter(|value| !value.is_none());
    let limit = limit.or(kwargs.get("maxsplit")?).unwrap_or(-1);
    kwargs.assert_all_used()?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    // The gaps between the pieces, in order.
    let mut gaps = match &separator {
        None => blank_gaps(&text.plain),
        Some(separator) => {
            let separator = unmarked(
                separator
                    .as_str()
                    .ok_or_else(|| wrong("split", "a string or none", separator))?,
            );
            if separator.is_empty() {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    "split: empty separator",
                ));
            }
            let found: Vec<_> = if from_right {
                let mut found: Vec<_> = text.plain.rmatch_indices(&separator).collect();
                found.reverse();
                found
            } else {
                text.plain.match_indices(&separator).collect()
            };
            found
                .iter()
                .map(|(at, part)| *at..at + part.len())
                .collect()
        }
    };
    let (mut first, mut last) = (0, text.plain.len());
    if separator.is_none() {
        // Blanks at the ends are no gaps between pieces; with a limit reached, those at the far end stay.
        let begins = gaps.first().filter(|gap| gap.start == 0).cloned();
        if let Some(gap) = begins {
            first = gap.end;
            gaps.remove(0);
        }
        let ends = gaps.last().filter(|gap| gap.end == last).cloned();
        if let Some(gap) = ends {
            gaps.pop();
            last = gap.start;
        }
        if first >= text.plain.len() {
            return Ok(Value::from(Vec::<Value>::new()));
        }
    }
    // Once the limit is reached the rest stays as it is, blanks at its far end included.
    if gaps.len() >= limit {
        let surplus = gaps.len() - limit;
        if from_right {
            gaps.drain(..surplus);
            first = 0;
        } else {
            gaps.truncate(limit);
            last = text.plain.len();
        }
    }
    let mut pieces = Vec::with_capacity(gaps.len() + 1);
    for gap in gaps {
        pieces.push(Value::from(text.slice(first..gap.start)));
        first = gap.end;
    }
    pieces.push(Value::from(text.slice(first..last)));
    Ok(Value::from(pieces))
}

/// Maximal runs of blanks.
fn blank_gaps(plain: &str) -> Vec<std::ops::Range<usize>> {
    let mut gaps: Vec<std::ops::Range<usize>> = Vec::new();
    for (at, c) in plain.char_indices().filter(|(_, c)| is_space(*c)) {
        match gaps.last_mut() {
            Some(gap) if gap.end == at => gap.end += c.len_utf8(),
            _ => gaps.push(at..at + c.len_utf8()),
        }
    }
    gaps
}

fn partition(text: &Marked, from_right: bool, args: &[Value]) -> Result<Value, Error> {
    let (separator,): (String,) = from_args(args)?;
    let separator = unmarked(&separator);
    let at = if from_right {
        text.plain.rfind(&separator)
    } else {
        text.plain.find(&separator)
    };
    let parts = match at {
        Some(at) => {
            let end = at + separator.len();
            [
                text.slice(0..at),
                text.slice(at..end),
                text.slice(end..text.plain.len()),
            ]
        }
        None if from_right => [String::new(), String::new(), text.render()],
        None => [text.render(), String::new(), String::new()],
    };
    Ok(Value::from(Tuple::from(parts.map(Value::from))))
}

/// `splitlines(keepends=False)`; Python knows more line ends than `\n`.
fn split_lines(text: &Marked, args: &[Value]) -> Result<Value, Error> {
    let (keep, kwargs): (Option<bool>, Kwargs) = from_args(args)?;
    let keep = keep.or(kwargs.get("keepends")?).unwrap_or(false);
    kwargs.assert_all_used()?;
    const LINE_ENDS: [char; 10] = [
        '\n', '\r', '\x0b', '\x0c', '\x1c', '\x1d', '\x1e', '\u{85}', '\u{2028}', '\u{2029}',
    ];
    let plain = text.plain.as_str();
    let mut lines = Vec::new();
    let mut start = 0;
    while let Some(length) = plain[start..].find(LINE_ENDS) {
        let at = start + length;
        let end_length = if plain[at..].starts_with("\r\n") {
            2
        } else {
            plain[at..].chars().next().map_or(1, char::len_utf8)
        };
        lines.push(Value::from(
            text.slice(start..if keep { at + end_length } else { at }),
        ));
        start = at + end_length;
    }
    if start < plain.len() {
        lines.push(Value::from(text.slice(start..plain.len())));
    }
    Ok(Value::from(lines))
}

/// `startswith` and `endswith`, with one string or several.
fn affix(
    state: &State,
    text: &str,
    test: fn(&str, &str) -> bool,
    args: &[Value],
) -> Result<Value, Error> {
    let (affixes,): (&Value,) = from_args(args)?;
    let plain = unmarked(text);
    let candidates: Vec<Value> = match affixes.kind() {
        ValueKind::Seq | ValueKind::Iterable => affixes.try_iter()?.collect(),
        _ => vec![affixes.clone()],
    };
    for candidate in &candidates {
        let affix = candidate
            .as_str()
            .ok_or_else(|| wrong("startswith/endswith", "a string or several", candidate))?;
        pay(state, affix.len())?;
        if test(&plain, &unmarked(affix)) {
            return Ok(Value::from(true));
        }
    }
    Ok(Value::from(false))
}

fn remove_affix(text: &Marked, prefix: bool, args: &[Value]) -> Result<Value, Error> {
    let (affix,): (String,) = from_args(args)?;
    let affix = unmarked(&affix);
    let length = text.plain.len();
    let kept = if prefix && text.plain.starts_with(&affix) {
        affix.len()..length
    } else if !prefix && text.plain.ends_with(&affix) {
        0..length - affix.len()
    } else {
        0..length
    };
    Ok(Value::from(text.slice(kept)))
}

fn wrong(method: &str, expected: &str, found: &Value) -> Error {
    Error::new(
        ErrorKind::InvalidOperation,
        format!("{method}: expected {expected}, found {}", found.kind()),
    )
}
