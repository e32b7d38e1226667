//! The type of a tool argument: GLM writes values as bare text, the declared JSON schema says what they are.

use serde_json::{Map, Value as Json};

/// Deepest nesting of `anyOf` and `oneOf` that is followed.
const MAX_DEPTH: usize = 16;

/// The JSON types that a schema admits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Types {
    string: bool,
    integer: bool,
    number: bool,
    boolean: bool,
    null: bool,
    array: bool,
    object: bool,
}

/// `function.parameters` of the declared tool with this name; `Some(None)` for a tool without parameters.
fn parameters<'a>(tools: &'a [Json], name: &str) -> Option<Option<&'a Json>> {
    tools
        .iter()
        .map(|tool| tool.get("function").unwrap_or(tool))
        .find(|function| function.get("name").and_then(Json::as_str) == Some(name))
        .map(|function| function.get("parameters"))
}

/// True if a tool of this name is declared.
pub(super) fn is_declared(tools: &[Json], name: &str) -> bool {
    parameters(tools, name).is_some()
}

/// Whether an argument's text is its value as it stands, a string.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verbatim {
    Always,
    /// Unless all of it is `null`, which is admitted too.
    UnlessNull,
    /// Its type depends on the whole text.
    No,
}

/// What the schema says of argument `key` of tool `name`; `None` if it does not say.
fn declared_types(tools: &[Json], name: &str, key: &str) -> Option<Types> {
    let schema = parameters(tools, name)??.get("properties")?.get(key)?;
    types(schema, 0)
}

/// Whether argument `key` of tool `name` is taken verbatim, whatever it will be.
pub(super) fn verbatim(tools: &[Json], name: &str, key: &str) -> Verbatim {
    match declared_types(tools, name, key) {
        Some(types) if types.string && types.null => Verbatim::UnlessNull,
        Some(types) if types.string => Verbatim::Always,
        _ => Verbatim::No,
    }
}

/// The value that `text` stands for as argument `key` of tool `name`.
///
/// A string type takes the text verbatim, except `null` where null is admitted too. Other types take it if it is JSON of
/// that type (no NaN, no hex, no leading zeros). Without a schema it is JSON if it is any but a string. All else is
/// the text as a string: an integer too big to be kept exactly as well.
pub(super) fn typed(tools: &[Json], name: &str, key: &str, text: &str) -> Json {
    let json = || {
        serde_json::from_str::<Json>(text)
            .ok()
            .filter(|json| !is_inexact_integer(json, text))
    };
    let value = match declared_types(tools, name, key) {
        None => json().filter(|json| !json.is_string()),
        Some(types) if types.string => (types.null && text.trim() == "null").then_some(Json::Null),
        Some(types) => json().filter(|json| types.admit(json)),
    };
    value.unwrap_or_else(|| Json::from(text))
}

/// An integer literal that only fits a float.
fn is_inexact_integer(json: &Json, text: &str) -> bool {
    json.is_f64() && !text.contains(['.', 'e', 'E'])
}

impl Types {
    fn admit(self, json: &Json) -> bool {
        match json {
            Json::Null => self.null,
            Json::Bool(_) => self.boolean,
            Json::Number(number) => self.number || (self.integer && !number.is_f64()),
            Json::String(_) => self.string,
            Json::Array(_) => self.array,
            Json::Object(_) => self.object,
        }
    }

    /// Adds a type by its name in JSON schema; false if there is no such type.
    fn add(&mut self, name: &str) -> bool {
        match name {
            "string" => self.string = true,
            "integer" => self.integer = true,
            "number" => self.number = true,
            "boolean" => self.boolean = true,
            "null" => self.null = true,
            "array" => self.array = true,
            "object" => self.object = true,
            _ => return false,
        }
        true
    }

    fn add_value(&mut self, value: &Json) {
        self.add(match value {
            Json::Null => "null",
            Json::Bool(_) => "boolean",
            Json::Number(_) => "number",
            Json::String(_) => "string",
            Json::Array(_) => "array",
            Json::Object(_) => "object",
        });
    }

    fn union(self, other: Self) -> Self {
        Self {
            string: self.string || other.string,
            integer: self.integer || other.integer,
            number: self.number || other.number,
            boolean: self.boolean || other.boolean,
            null: self.null || other.null,
            array: self.array || other.array,
            object: self.object || other.object,
        }
    }
}

/// What a schema admits; `None` if it does not say (or says it by means not followed here, such as `$ref`).
fn types(schema: &Json, depth: usize) -> Option<Types> {
    let schema: &Map<String, Json> = schema.as_object().filter(|_| depth <= MAX_DEPTH)?;
    let mut found = Types::default();
    let mut known = true;
    match schema.get("type") {
        Some(Json::String(name)) => known = found.add(name),
        Some(Json::Array(names)) => {
            known = names
                .iter()
                .all(|name| name.as_str().is_some_and(|name| found.add(name)))
        }
        _ => {
            if let Some(alternatives) = schema
                .get("anyOf")
                .or_else(|| schema.get("oneOf"))
                .and_then(Json::as_array)
            {
                for alternative in alternatives {
                    found = found.union(types(alternative, depth + 1)?);
                }
            } else if let Some(values) = schema.get("enum").and_then(Json::as_array) {
                values.iter().for_each(|value| found.add_value(value));
            } else {
                found.add_value(schema.get("const")?);
            }
        }
    }
    if schema.get("nullable").and_then(Json::as_bool) == Some(true) {
        found.null = true;
    }
    (known && found != Types::default()).then_some(found)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_follow_the_declared_type() {
        let properties = json!({
            "s": {"type": "string"},
            "i": {"type": "integer"},
            "n": {"type": "number"},
            "b": {"type": "boolean"},
            "a": {"type": "array"},
            "o": {"type": "object"},
            "s?": {"type": ["string", "null"]},
            "i?": {"type": "integer", "nullable": true},
            "any": {"anyOf": [{"type": "integer"}, {"type": "array"}]},
            "mixed": {"oneOf": [{"type": "integer"}, {"type": "string"}]},
            "enum": {"enum": ["1", "2"]},
            "ref": {"$ref": "#/$defs/x"},
            "odd": {"type": "date"},
        });
        let tools = [
            json!({"type": "function", "function": {"name": "f", "parameters": {"properties": properties}}}),
        ];
        for (key, text, value) in [
            ("s", "12", json!("12")),
            ("s", " {\"a\": 1}\n", json!(" {\"a\": 1}\n")),
            ("s", "null", json!("null")),
            ("s?", "null", json!(null)),
            ("s?", "nul", json!("nul")),
            ("i", "12", json!(12)),
            ("i", "\n-3 ", json!(-3)),
            ("i", "1.5", json!("1.5")),
            ("i", "012", json!("012")),
            ("i", "0x10", json!("0x10")),
            ("i", "18446744073709551615", json!(u64::MAX)),
            (
                "i",
                "123456789012345678901234567890",
                json!("123456789012345678901234567890"),
            ),
            ("i?", "null", json!(null)),
            ("n", "1.5", json!(1.5)),
            ("n", "2", json!(2)),
            ("n", "NaN", json!("NaN")),
            ("b", "true", json!(true)),
            ("b", "True", json!("True")),
            ("a", "[1, \"x\"]", json!([1, "x"])),
            ("o", "{\"k\": null}", json!({"k": null})),
            ("o", "[1]", json!("[1]")),
            ("any", "[2]", json!([2])),
            ("any", "x", json!("x")),
            ("mixed", "3", json!("3")),
            ("enum", "1", json!("1")),
            ("ref", "[1]", json!([1])),
            ("odd", "7", json!(7)),
            ("unknown", "7", json!(7)),
            ("unknown", "\"7\"", json!("\"7\"")),
            ("unknown", "seven", json!("seven")),
        ] {
            assert_eq!(typed(&tools, "f", key, text), value, "{key}: {text}");
        }
        assert_eq!(typed(&tools, "other", "s", "12"), json!(12));
    }
}
