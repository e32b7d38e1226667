//! The filter `tojson`: Python's `json.dumps`, byte for byte.
//!
//! transformers replaces Jinja2's own filter (which escapes HTML) by
//! `json.dumps(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`. The marks of
//! [`taint`](crate::taint) pass through unescaped in either setting of `ensure_ascii`.

use std::fmt::Write as _;

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

use super::python::float_repr;
use super::{MAX_DEPTH, pay};
use crate::taint::is_mark;

/// `value | tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`
pub(super) fn tojson(
    state: &State,
    value: &Value,
    args: Rest<Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    const NAMES: [&str; 4] = ["ensure_ascii", "indent", "separators", "sort_keys"];
    if args.len() > NAMES.len() {
        return Err(Error::new(
            ErrorKind::TooManyArguments,
            "tojson takes at most four arguments",
        ));
    }
    let option = |position: usize| -> Result<Option<Value>, Error> {
        let by_name: Option<Value> = kwargs.get(NAMES[position])?;
        Ok(args
            .get(position)
            .cloned()
            .or(by_name)
            .filter(|value| !value.is_none() && !value.is_undefined()))
    };
    let flag = |position| option(position).map(|value| value.is_some_and(|value| value.is_true()));
    let indent = match option(1)? {
        None => None,
        Some(text) if text.as_str().is_some() => text.as_str().map(str::to_owned),
        Some(count) => {
            Some(" ".repeat(usize::try_from(i64::try_from(count)?.clamp(0, 64)).unwrap_or(0)))
        }
    };
    let separators = match option(2)? {
        None => None,
        Some(pair) => Some((
            pair.get_item_by_index(0)?.to_string(),
            pair.get_item_by_index(1)?.to_string(),
        )),
    };
    let comma = if indent.is_some() { "," } else { ", " };
    let (item_separator, key_separator) =
        separators.unwrap_or_else(|| (comma.to_owned(), ": ".to_owned()));
    let mut writer = Writer {
        state,
        out: String::new(),
        ensure_ascii: flag(0)?,
        sort_keys: flag(3)?,
        indent,
        item_separator,
        key_separator,
    };
    kwargs.assert_all_used()?;
    writer.value(value, 0)?;
    Ok(Value::from(writer.out))
}

struct Writer<'a> {
    /// Pays for each value before it is written: one that holds itself twice, and so on, would be written without end.
    state: &'a State<'a, 'a>,
    out: String,
    ensure_ascii: bool,
    sort_keys: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(Error::new(
                ErrorKind::BadSerialization,
                format!("tojson: nested deeper than {MAX_DEPTH} levels"),
            ));
        }
        let indent = self.indent.as_ref().map_or(0, |text| text.len() * depth);
        let separators = self.item_separator.len() + self.key_separator.len();
        pay(self.state, indent + separators)?;
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self
                .out
                .push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.out.push_str(&number(value)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default())?,
            ValueKind::Seq => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.container(['[', ']'], &items, depth, |writer, item| {
                    writer.value(item, depth + 1)
                })?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.container(['{', '}'], &keys, depth, |writer, key| {
                    writer.key(key)?;
                    writer.out.push_str(&writer.key_separator);
                    writer.value(&value.get_item(key)?, depth + 1)
                })?;
            }
            kind => {
                return Err(Error::new(
                    ErrorKind::BadSerialization,
                    format!("tojson: a value of type {kind} is not JSON"),
                ));
            }
        }
        Ok(())
    }

    fn container(
        &mut self,
        [open, close]: [char; 2],
        items: &[Value],
        depth: usize,
        mut write: impl FnMut(&mut Self, &Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(open);
        for (n, item) in items.iter().enumerate() {
            if n > 0 {
                self.out.push_str(&self.item_separator);
            }
            self.newline(depth + 1);
            write(self, item)?;
        }
        if !items.is_empty() {
            self.newline(depth);
        }
        self.out.push(close);
        Ok(())
    }

    fn newline(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            (0..depth).for_each(|_| self.out.push_str(indent));
        }
    }

    fn key(&mut self, key: &Value) -> Result<(), Error> {
        match key.kind() {
            ValueKind::String => self.string(key.as_str().unwrap_or_default())?,
            ValueKind::None => self.string("null")?,
            ValueKind::Bool => self.string(if key.is_true() { "true" } else { "false" })?,
            ValueKind::Number => self.string(&number(key))?,
            kind => {
                return Err(Error::new(
                    ErrorKind::BadSerialization,
                    format!("tojson: a key of type {kind} is not JSON"),
                ));
            }
        }
        Ok(())
    }

    fn string(&mut self, text: &str) -> Result<(), Error> {
        pay(self.state, text.len())?;
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                '\0'..='\x1f' => self.escape(c),
                // Python's `ESCAPE_ASCII` leaves space to tilde; its `ESCAPE` leaves DEL as well.
                '\x7f'.. if self.ensure_ascii && !is_mark(c) => self.escape(c),
                c => self.out.push(c),
            }
        }
        self.out.push('"');
        Ok(())
    }

    /// `\uHHHH`, as a surrogate pair beyond the basic plane.
    fn escape(&mut self, c: char) {
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Writing to a string cannot fail.
            let _ = write!(self.out, "\\u{unit:04x}");
        }
    }
}

fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    match f64::try_from(value.clone()) {
        Ok(number) if number.is_nan() => "NaN".to_owned(),
        Ok(number) if number.is_infinite() => if number > 0.0 {
            "Infinity"
        } else {
            "-Infinity"
        }
        .to_owned(),
        Ok(number) => float_repr(number),
        Err(_) => value.to_string(),
    }
}
