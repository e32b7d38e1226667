//! The type of a tool argument: GLM writes values as bare text, the declared JSON schema says what they are.
//!
//! `type` says it, or else `anyOf`, `oneOf`, `enum`, `const`, `$ref` (within the tool's parameters) or `allOf`, the first that there is.

use serde_json::{Map, Value as Json};

/// Deepest nesting of `anyOf`, `oneOf`, `allOf` and `$ref` that is followed.
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

/// How the text of an argument becomes its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArgumentText {
    /// It is the value as it stands, a string.
    Verbatim,
    /// So too, unless all of it is `null` but for blanks.
    VerbatimOrNull,
    /// It is JSON of the declared types; if it is not, a string.
    Json,
    /// The schema does not say: it is JSON of any type but a string, or else a string.
    Unknown,
}

/// How the text of argument `key` of a tool becomes its value. The tool is as in a chat request.
pub fn argument_text(tool: &Json, key: &str) -> ArgumentText {
    let function = tool.get("function").unwrap_or(tool);
    text_of(argument_types(function.get("parameters"), key))
}

fn text_of(types: Option<Types>) -> ArgumentText {
    match types {
        Some(types) if types.string && types.null => ArgumentText::VerbatimOrNull,
        Some(types) if types.string => ArgumentText::Verbatim,
        Some(_) => ArgumentText::Json,
        None => ArgumentText::Unknown,
    }
}

/// What a tool's parameters say of an argument; `None` if they do not say. `additionalProperties` says it of arguments that
/// are not declared.
fn argument_types(parameters: Option<&Json>, key: &str) -> Option<Types> {
    let parameters = parameters?;
    let declared = parameters.get("properties").and_then(|map| map.get(key));
    let schema = declared.or_else(|| parameters.get("additionalProperties"))?;
    types(schema, parameters, 0)
}

/// As [`argument_text`], for a tool by name.
pub(super) fn text_by_name(tools: &[Json], name: &str, key: &str) -> ArgumentText {
    text_of(argument_types(parameters(tools, name).flatten(), key))
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
            .map(without_negative_zero)
            .filter(|json| !is_inexact_integer(json, text))
    };
    let value = match argument_types(parameters(tools, name).flatten(), key) {
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

/// `-0` is an integer, and has no sign.
fn without_negative_zero(json: Json) -> Json {
    let is_zero = json.as_f64() == Some(0.0) && json.is_f64();
    if is_zero { Json::from(0) } else { json }
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

    fn intersection(self, other: Self) -> Self {
        Self {
            string: self.string && other.string,
            // An integer is a number.
            integer: (self.integer || self.number) && (other.integer || other.number),
            number: self.number && other.number,
            boolean: self.boolean && other.boolean,
            null: self.null && other.null,
            array: self.array && other.array,
            object: self.object && other.object,
        }
    }
}

/// What a schema admits; `None` if it does not say, or says it by means not followed here. `root` is what `$ref` points into.
fn types(schema: &Json, root: &Json, depth: usize) -> Option<Types> {
    let schema: &Map<String, Json> = schema.as_object().filter(|_| depth <= MAX_DEPTH)?;
    let list = |keyword: &str| schema.get(keyword).and_then(Json::as_array);
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
            if let Some(alternatives) = list("anyOf").or_else(|| list("oneOf")) {
                for alternative in alternatives {
                    found = found.union(types(alternative, root, depth + 1)?);
                }
            } else if let Some(values) = list("enum") {
                values.iter().for_each(|value| found.add_value(value));
            } else if let Some(value) = schema.get("const") {
                found.add_value(value);
            } else if let Some(reference) = schema.get("$ref").and_then(Json::as_str) {
                found = types(root.pointer(reference.strip_prefix('#')?)?, root, depth + 1)?;
            } else {
                let parts = list("allOf")?.iter();
                let said = parts.filter_map(|part| types(part, root, depth + 1));
                found = said.reduce(Types::intersection)?;
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
            "lost": {"$ref": "#/$defs/lost"},
            "loop": {"$ref": "#/$defs/loop"},
            "all": {"allOf": [{"minimum": 1}, {"type": ["number", "null"]}, {"type": ["integer", "string"]}]},
            "odd": {"type": "date"},
        });
        let tools = [
            json!({"type": "function", "function": {"name": "f", "parameters": {
                "properties": properties,
                "$defs": {"x": {"enum": ["a", "b"]}, "loop": {"$ref": "#/$defs/loop"}},
            }}}),
            json!({"name": "map", "parameters": {"additionalProperties": {"type": "string"}}}),
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
            ("ref", "[1]", json!("[1]")),
            ("lost", "[1]", json!([1])),
            ("loop", "[1]", json!([1])),
            ("all", "1", json!(1)),
            ("all", "1.5", json!("1.5")),
            ("all", "x", json!("x")),
            ("i", "-0", json!(0)),
            ("n", "-0", json!(0)),
            ("odd", "7", json!(7)),
            ("unknown", "7", json!(7)),
            ("unknown", "\"7\"", json!("\"7\"")),
            ("unknown", "seven", json!("seven")),
        ] {
            assert_eq!(typed(&tools, "f", key, text), value, "{key}: {text}");
        }
        assert_eq!(typed(&tools, "other", "s", "12"), json!(12));
        assert_eq!(typed(&tools, "map", "any", "12"), json!("12"));
    }
}
