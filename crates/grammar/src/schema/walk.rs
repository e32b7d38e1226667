//! The rewriting: one pass over the schema, then over each definition that is referred to.

use std::collections::HashMap;

use serde_json::{Map, Value as Json};

use super::disjoint::OneOf;
use super::keywords::{escaped, instead, is_annotation};
use super::{Normal, bounds, formats, pattern};
use crate::error::{GrammarError, kind};
use crate::grammar::limit;
use crate::limits::{MAX_ALTERNATIVES, MAX_SCHEMA_DEPTH, MAX_SCHEMA_NODES, MAX_TEXT_BYTES};

/// The names of types.
const TYPES: [&str; 7] = [
    "null", "boolean", "integer", "number", "string", "array", "object",
];

struct Walk<'a> {
    root: &'a Json,
    path: &'a str,
    nodes: &'a mut usize,
    text_bytes: usize,
    /// New names of definitions, by the pointer at which they stand.
    names: HashMap<String, String>,
    /// Definitions that are yet to be rewritten: new name and pointer.
    pending: Vec<(String, String)>,
    one_ofs: Vec<OneOf>,
}

type Out = Map<String, Json>;

pub(super) fn run(
    root: &Json,
    path: &str,
    nodes: &mut usize,
) -> Result<(Normal, Vec<OneOf>), GrammarError> {
    let mut walk = Walk {
        root,
        path,
        nodes,
        text_bytes: 0,
        names: HashMap::new(),
        pending: Vec::new(),
        one_ofs: Vec::new(),
    };
    let schema = walk.schema(root, path, 0)?;
    let mut definitions = Map::new();
    let mut origins = HashMap::new();
    while let Some((name, pointer)) = walk.pending.pop() {
        let at = format!("{path}{pointer}");
        let target = target(root, &pointer).ok_or_else(|| GrammarError::Schema {
            path: at.clone(),
            found: "not there".to_owned(),
            expected: "the schema that a `$ref` names",
        })?;
        definitions.insert(name.clone(), walk.schema(target, &at, 0)?);
        origins.insert(name, at);
    }
    let mut schema = match schema {
        Json::Object(map) => map,
        other => Map::from_iter([("allOf".to_owned(), Json::from(vec![other]))]),
    };
    if !definitions.is_empty() {
        schema.insert("$defs".to_owned(), Json::Object(definitions));
    }
    let normal = Normal {
        schema: Json::Object(schema),
        path: path.to_owned(),
        origins,
    };
    Ok((normal, walk.one_ofs))
}

/// What a JSON pointer names, its escapes included.
fn target<'a>(root: &'a Json, pointer: &str) -> Option<&'a Json> {
    root.pointer(pointer)
}

impl Walk<'_> {
    fn schema(&mut self, schema: &Json, path: &str, depth: usize) -> Result<Json, GrammarError> {
        *self.nodes += 1;
        limit("the number of sub-schemas", *self.nodes, MAX_SCHEMA_NODES)?;
        limit("the nesting of the schema", depth, MAX_SCHEMA_DEPTH)?;
        let map = match schema {
            Json::Bool(_) => return Ok(schema.clone()),
            Json::Object(map) => map,
            other => return Err(wrong(path, other, "a schema: an object or a boolean")),
        };
        let mut out = Out::new();
        // Constraints that cannot stand under their own keyword, since it is there already.
        let mut more: Vec<Json> = Vec::new();
        for (keyword, value) in map {
            let at = format!("{path}/{}", escaped(keyword));
            self.keyword(keyword, value, &at, depth, &mut out, &mut more)?;
        }
        self.items(map, path, depth, &mut out)?;
        bounds::numbers(map, path, &mut out)?;
        if let Some(format) = map.get("format") {
            self.format(format, map, path, &mut out, &mut more)?;
        }
        if !more.is_empty() {
            match out.get_mut("allOf") {
                Some(Json::Array(list)) => list.extend(more),
                _ => {
                    out.insert("allOf".to_owned(), Json::Array(more));
                }
            }
        }
        bounds::properties(&out, path)?;
        if map.get("nullable") == Some(&Json::Bool(true)) {
            let either = vec![Json::Object(out), serde_json::json!({"type": "null"})];
            out = Out::from_iter([("anyOf".to_owned(), Json::Array(either))]);
        }
        Ok(Json::Object(out))
    }

    fn keyword(
        &mut self,
        keyword: &str,
        value: &Json,
        at: &str,
        depth: usize,
        out: &mut Out,
        more: &mut Vec<Json>,
    ) -> Result<(), GrammarError> {
        let depth = depth + 1;
        let new = match keyword {
            "type" => types(value, at)?,
            "$ref" => self.reference(value, at)?,
            "properties" => self.map_of_schemas(value, at, depth)?,
            "patternProperties" => {
                let schemas = self.map_of_schemas(value, at, depth)?;
                translated_names(schemas, at)?
            }
            "required" => {
                let names = list(value, at, "a list of names")?;
                if let Some(other) = names.iter().find(|name| !name.is_string()) {
                    return Err(wrong(at, other, "a list of names"));
                }
                self.count_text(value)?;
                value.clone()
            }
            "additionalProperties" => self.schema(value, at, depth)?,
            "allOf" | "anyOf" => Json::Array(self.list_of_schemas(value, at, depth)?),
            "oneOf" => {
                let alternatives = self.list_of_schemas(value, at, depth)?;
                self.one_ofs.push(OneOf {
                    path: at.to_owned(),
                    alternatives: alternatives.clone(),
                });
                more.push(serde_json::json!({ "anyOf": alternatives }));
                return Ok(());
            }
            "enum" => {
                let values = list(value, at, "a list of at least one value")?;
                limit(
                    "the number of values of an enum",
                    values.len(),
                    MAX_ALTERNATIVES,
                )?;
                self.count_text(value)?;
                values
                    .iter()
                    .try_for_each(|value| bounds::constant(value, at))?;
                value.clone()
            }
            "const" => {
                self.count_text(value)?;
                bounds::constant(value, at)?;
                value.clone()
            }
            "minItems" | "maxItems" | "minLength" | "maxLength" | "minProperties"
            | "maxProperties" => bounds::count(keyword, value, at)?,
            "pattern" => Json::from(translated(value, at)?),
            "uniqueItems" if *value == Json::Bool(false) => return Ok(()),
            "nullable" if value.is_boolean() => return Ok(()),
            // Several keywords together: see `items`, `bounds::numbers` and `format`.
            "items" | "prefixItems" | "additionalItems" | "minimum" | "maximum"
            | "exclusiveMinimum" | "exclusiveMaximum" | "multipleOf" | "format" => return Ok(()),
            _ if is_annotation(keyword) => return Ok(()),
            _ => {
                let known = instead(keyword);
                return Err(GrammarError::Keyword {
                    path: parent(at),
                    keyword: crate::error::shortened(keyword),
                    reason: match known {
                        Some(_) => "is not supported".to_owned(),
                        None => "is not one of JSON schema".to_owned(),
                    },
                    advice: known.unwrap_or("correct it or leave it out"),
                });
            }
        };
        out.insert(keyword.to_owned(), new);
        Ok(())
    }

    fn map_of_schemas(
        &mut self,
        value: &Json,
        at: &str,
        depth: usize,
    ) -> Result<Json, GrammarError> {
        let map = value
            .as_object()
            .ok_or_else(|| wrong(at, value, "an object of schemas"))?;
        let mut out = Out::new();
        for (name, schema) in map {
            self.text_bytes += name.len();
            let at = format!("{at}/{}", escaped(name));
            out.insert(name.clone(), self.schema(schema, &at, depth)?);
        }
        limit("the text of the schema", self.text_bytes, MAX_TEXT_BYTES)?;
        Ok(Json::Object(out))
    }

    fn list_of_schemas(
        &mut self,
        value: &Json,
        at: &str,
        depth: usize,
    ) -> Result<Vec<Json>, GrammarError> {
        let schemas = list(value, at, "a list of at least one schema")?;
        let indexed = schemas.iter().enumerate();
        indexed
            .map(|(index, schema)| self.schema(schema, &format!("{at}/{index}"), depth))
            .collect()
    }

    /// `prefixItems` and `items`, or what the older drafts call so.
    fn items(
        &mut self,
        map: &Map<String, Json>,
        path: &str,
        depth: usize,
        out: &mut Out,
    ) -> Result<(), GrammarError> {
        let depth = depth + 1;
        let (prefix, rest) = match map.get("items") {
            Some(Json::Array(_)) => ("items", "additionalItems"),
            _ => ("prefixItems", "items"),
        };
        let at = |keyword: &str| format!("{path}/{keyword}");
        if let Some(value) = map.get(prefix) {
            let schemas = self.list_of_schemas(value, &at(prefix), depth)?;
            out.insert("prefixItems".to_owned(), Json::Array(schemas));
        }
        if let Some(value) = map.get(rest) {
            let schema = self.schema(value, &at(rest), depth)?;
            out.insert("items".to_owned(), schema);
        }
        Ok(())
    }

    /// A format binds strings only; it becomes a pattern.
    fn format(
        &mut self,
        format: &Json,
        map: &Map<String, Json>,
        path: &str,
        out: &mut Out,
        more: &mut Vec<Json>,
    ) -> Result<(), GrammarError> {
        let at = format!("{path}/format");
        let name = format
            .as_str()
            .ok_or_else(|| wrong(&at, format, "the name of a format"))?;
        let strings = match map.get("type") {
            None => true,
            Some(Json::Array(types)) => types.iter().any(|name| name == "string"),
            Some(one) => one == "string",
        };
        if !strings {
            return Ok(());
        }
        let Some(pattern) = formats::pattern(name) else {
            return Err(GrammarError::Keyword {
                path: path.to_owned(),
                keyword: "format".to_owned(),
                reason: format!(
                    "names {:?}, which is not supported",
                    crate::error::shortened(name)
                ),
                advice: "use `pattern`, or one of date, time, date-time, duration, email, hostname, ipv4, ipv6, uri, uuid",
            });
        };
        if out.contains_key("pattern") {
            more.push(serde_json::json!({ "pattern": pattern }));
        } else {
            out.insert("pattern".to_owned(), Json::from(pattern));
        }
        Ok(())
    }

    fn reference(&mut self, value: &Json, at: &str) -> Result<Json, GrammarError> {
        let expected = "`#`, or a JSON pointer within the schema (`#/$defs/name`)";
        let text = value.as_str().ok_or_else(|| wrong(at, value, expected))?;
        let pointer = text
            .strip_prefix('#')
            .filter(|pointer| pointer.is_empty() || pointer.starts_with('/'))
            .filter(|pointer| !pointer.contains('%'));
        let found = pointer.filter(|pointer| target(self.root, pointer).is_some());
        let Some(pointer) = found else {
            return Err(GrammarError::Schema {
                path: at.to_owned(),
                found: format!(
                    "{:?}, which names nothing here",
                    crate::error::shortened(text)
                ),
                expected,
            });
        };
        let name = match self.names.get(pointer) {
            Some(name) => name.clone(),
            None => {
                let name = format!("d{}", self.names.len());
                self.names.insert(pointer.to_owned(), name.clone());
                self.pending.push((name.clone(), pointer.to_owned()));
                name
            }
        };
        Ok(Json::from(format!("#/$defs/{name}")))
    }

    fn count_text(&mut self, value: &Json) -> Result<(), GrammarError> {
        self.text_bytes = self.text_bytes.saturating_add(value.to_string().len());
        limit(
            &format!("the text of the schema at {}", self.path),
            self.text_bytes,
            MAX_TEXT_BYTES,
        )
    }
}

fn types(value: &Json, at: &str) -> Result<Json, GrammarError> {
    let expected =
        "a type or a list of types: null, boolean, integer, number, string, array, object";
    let is_type = |name: &Json| name.as_str().is_some_and(|name| TYPES.contains(&name));
    let fits = match value {
        Json::Array(names) => !names.is_empty() && names.iter().all(is_type),
        name => is_type(name),
    };
    if fits {
        return Ok(value.clone());
    }
    let found = match value {
        Json::String(name) => format!("{:?}", crate::error::shortened(name)),
        other => kind(other),
    };
    Err(GrammarError::Schema {
        path: at.to_owned(),
        found,
        expected,
    })
}

fn translated(value: &Json, at: &str) -> Result<String, GrammarError> {
    let text = value
        .as_str()
        .ok_or_else(|| wrong(at, value, "a regular expression"))?;
    pattern::translate(text).map_err(|reason| GrammarError::Keyword {
        path: parent(at),
        keyword: "pattern".to_owned(),
        reason: format!("holds {:?}: {reason}", crate::error::shortened(text)),
        advice: "write it without that",
    })
}

/// The names of `patternProperties` are patterns.
fn translated_names(schemas: Json, at: &str) -> Result<Json, GrammarError> {
    let Json::Object(map) = schemas else {
        return Ok(schemas);
    };
    let mut out = Out::new();
    for (name, schema) in map {
        let at = format!("{at}/pattern");
        out.insert(translated(&Json::from(name), &at)?, schema);
    }
    Ok(Json::Object(out))
}

fn list<'a>(
    value: &'a Json,
    at: &str,
    expected: &'static str,
) -> Result<&'a Vec<Json>, GrammarError> {
    let list = value.as_array();
    // `required` alone may be empty.
    list.filter(|list| !list.is_empty() || at.ends_with("/required"))
        .ok_or_else(|| match list {
            Some(_) => GrammarError::Schema {
                path: at.to_owned(),
                found: "an empty list".to_owned(),
                expected,
            },
            None => wrong(at, value, expected),
        })
}

pub(super) fn wrong(path: &str, value: &Json, expected: &'static str) -> GrammarError {
    GrammarError::Schema {
        path: path.to_owned(),
        found: kind(value),
        expected,
    }
}

/// The schema that a keyword stands in.
fn parent(at: &str) -> String {
    at.rsplit_once('/')
        .map_or(at, |(parent, _)| parent)
        .to_owned()
}
