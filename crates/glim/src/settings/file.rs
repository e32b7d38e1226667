//! The configuration file: TOML with one table, `[serve]`, whose keys are the options of `glim serve`.
//!
//! ```toml
//! [serve]
//! model = "/models/glm-5.gguf"
//! port = 8000
//! served-model-name = ["glm-5", "default"]
//! no-prefix-cache = false
//! ```

use std::ffi::OsString;
use std::path::Path;

use toml::{Table, Value};

use super::{CONFIG, closest};
use crate::exit::{Exit, Failure};

/// The only table there is.
const TABLE: &str = "serve";

/// A file that is TOML.
#[derive(Debug)]
pub(super) struct File {
    name: String,
    text: String,
    table: Table,
}

/// A key's values, as text, and where they stand.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) values: Vec<OsString>,
    pub(super) place: String,
}

impl File {
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        let text = std::fs::read_to_string(path).map_err(|error| Failure::read(path, &error))?;
        Self::parse(path.display().to_string(), text)
    }

    pub(super) fn parse(name: String, text: String) -> Result<Self, Failure> {
        let table = text.parse::<Table>().map_err(|error| {
            let line = error.span().map(|span| line_of(&text, span.start));
            let line = line.map_or_else(String::new, |line| format!(":{line}"));
            let message = format!("{name}{line}: is not TOML: {}", error.message());
            Failure::new(Exit::Config, message)
        })?;
        Ok(Self { name, text, table })
    }

    /// Refuses whatever is no option.
    pub(super) fn check_keys(&self, known: &[&str]) -> Result<(), Failure> {
        if let Some(key) = self.table.keys().find(|key| *key != TABLE) {
            let failure = self.refused(key, "is no part of a configuration");
            return Err(match known.contains(&key.as_str()) {
                true => failure.hint(format!("write it under [{TABLE}]")),
                false => failure.hint(format!("options of glim serve stand under [{TABLE}]")),
            });
        }
        let Some(own) = self.table.get(TABLE) else {
            return Ok(());
        };
        let Value::Table(own) = own else {
            return Err(self.refused(TABLE, "is a value: expected the table [serve]"));
        };
        for key in own.keys() {
            if key == CONFIG {
                return Err(self.refused(
                    key,
                    "names a file, and only the command line and the environment may",
                ));
            }
            if known.contains(&key.as_str()) {
                continue;
            }
            let failure = self.refused(key, "is no option of glim serve");
            return Err(match closest(key, known.iter().copied()) {
                Some(known) => failure.hint(format!("did you mean {known}?")),
                None => failure.hint("glim config shows all options"),
            });
        }
        Ok(())
    }

    /// What the file says of an option.
    pub(super) fn values(&self, key: &str) -> Result<Option<Found>, Failure> {
        let own = self.table.get(TABLE).and_then(Value::as_table);
        let Some(value) = own.and_then(|own| own.get(key)) else {
            return Ok(None);
        };
        let list = match value {
            Value::Array(list) => list.as_slice(),
            one => std::slice::from_ref(one),
        };
        let text = |value: &Value| {
            match value {
            Value::String(text) => Ok(text.into()),
            Value::Integer(number) => Ok(number.to_string().into()),
            Value::Float(number) => Ok(number.to_string().into()),
            Value::Boolean(is) => Ok(is.to_string().into()),
            Value::Datetime(_) | Value::Array(_) | Value::Table(_) => Err(self.refused(
                key,
                "has a value that no option takes: expected a text, a number, true, false, or a list of these",
            )),
        }
        };
        Ok(Some(Found {
            values: list.iter().map(text).collect::<Result<_, _>>()?,
            place: self.place(key),
        }))
    }

    fn refused(&self, key: &str, why: &str) -> Failure {
        Failure::new(Exit::Config, format!("{}: {key} {why}", self.place(key)))
    }

    /// The file and the line of a key. The table does not keep lines, and keys are plain words at the begin of one: the first such line
    /// is it, and where there is none (a dotted or quoted key) the file alone is named.
    fn place(&self, key: &str) -> String {
        let is_it = |line: &str| {
            let line = line.trim_start().trim_start_matches('[');
            let rest = line.strip_prefix(key);
            rest.is_some_and(|rest| rest.trim_start().starts_with(['=', ']', '.']))
        };
        match self.text.lines().position(is_it) {
            Some(at) => format!("{}:{}", self.name, at + 1),
            None => self.name.clone(),
        }
    }
}

fn line_of(text: &str, at: usize) -> usize {
    let before = text.as_bytes().get(..at).unwrap_or(text.as_bytes());
    before.iter().filter(|byte| **byte == b'\n').count() + 1
}
