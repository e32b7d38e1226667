//! JSON schemas, before llguidance sees them.
//!
//! llguidance ignores keywords that it does not know, takes some numbers inexactly, follows references by recursion and says
//! little about where it fails. So a schema is rewritten first, to a form in which each of its keywords is one that is enforced
//! as written: annotations are gone, definitions have plain names, formats are patterns, patterns are in Rust's syntax,
//! alternatives of `oneOf` are shown to exclude each other and become `anyOf`. What has no such form is an error that names the
//! place and the keyword. A keyword that nobody knows is an error too: it may be a constraint, and `maxLenght` surely is.
//!
//! Source: JSON Schema 2020-12, Core and Validation; for `additionalItems`, `items` as a list, boolean `exclusiveMinimum` also
//! the drafts 4 to 2019-09; `nullable` from OpenAPI 3.0.

mod bounds;
mod check;
mod disjoint;
mod formats;
mod keywords;
mod pattern;
pub(crate) mod strings;
mod walk;

use std::collections::HashMap;

use serde_json::{Map, Value as Json};

use crate::GrammarError;

pub(crate) use pattern::whole as whole_pattern;

/// A schema in the form that llguidance enforces as written.
#[derive(Debug, Clone)]
pub(crate) struct Normal {
    /// The schema, with its `$defs`.
    pub(crate) schema: Json,
    /// Where the root stands, for messages.
    pub(crate) path: String,
    /// Where each definition stood, by its new name.
    origins: HashMap<String, String>,
}

/// Rewrites a schema. `path` is where it stands, for messages.
pub(crate) fn normalise(schema: &Json, path: &str) -> Result<Normal, GrammarError> {
    normalise_counting(schema, path, &mut 0)
}

/// As [`normalise`], with the sub-schemas of several schemas counted together.
pub(crate) fn normalise_counting(
    schema: &Json,
    path: &str,
    nodes: &mut usize,
) -> Result<Normal, GrammarError> {
    let (normal, one_ofs) = walk::run(schema, path, nodes)?;
    for one_of in &one_ofs {
        disjoint::check(one_of, &normal)?;
    }
    check::size(&normal)?;
    check::is_finite(&normal)?;
    Ok(normal)
}

impl Normal {
    /// The definition that `{"$ref": …}` names.
    pub(crate) fn definition(&self, reference: &str) -> Option<&Json> {
        let name = reference.strip_prefix("#/$defs/")?;
        self.schema.get("$defs")?.get(name)
    }

    /// All definitions.
    fn definitions(&self) -> Option<&Map<String, Json>> {
        self.schema.get("$defs")?.as_object()
    }

    /// A sub-schema, which stands at `path`, with all that it refers to.
    pub(crate) fn part(&self, schema: &Json, path: String) -> Self {
        Self {
            schema: self.alone(schema),
            path,
            origins: self.origins.clone(),
        }
    }

    /// A sub-schema as a schema of its own.
    pub(crate) fn alone(&self, part: &Json) -> Json {
        let mut schema = match part {
            Json::Object(map) => map.clone(),
            other => Map::from_iter([("allOf".to_owned(), Json::from(vec![other.clone()]))]),
        };
        schema.remove("$defs");
        let mut definitions = Map::new();
        self.gather(&Json::Object(schema.clone()), &mut definitions);
        if !definitions.is_empty() {
            schema.insert("$defs".to_owned(), Json::Object(definitions));
        }
        Json::Object(schema)
    }

    /// Adds the definitions that a schema uses.
    fn gather(&self, schema: &Json, into: &mut Map<String, Json>) {
        let mut todo = vec![schema];
        while let Some(schema) = todo.pop() {
            let reference = schema.get("$ref").and_then(Json::as_str);
            if let Some(reference) = reference
                && let Some(name) = reference.strip_prefix("#/$defs/")
                && !into.contains_key(name)
                && let Some(definition) = self.definition(reference)
            {
                into.insert(name.to_owned(), definition.clone());
                todo.push(definition);
            }
            match schema {
                Json::Object(map) => todo.extend(map.values()),
                Json::Array(list) => todo.extend(list),
                _ => {}
            }
        }
    }

    /// The sub-schemas right under `schema`, which stands at `path`: place and schema.
    pub(crate) fn parts<'a>(&'a self, path: &str, schema: &'a Json) -> Vec<(String, &'a Json)> {
        let mut parts = Vec::new();
        let Some(map) = schema.as_object() else {
            return parts;
        };
        for (keyword, value) in map {
            let at = |rest: &str| format!("{path}/{keyword}{rest}");
            match (keyword.as_str(), value) {
                ("properties" | "patternProperties", Json::Object(map)) => {
                    parts.extend(
                        map.iter().map(|(name, part)| {
                            (at(&format!("/{}", keywords::escaped(name))), part)
                        }),
                    );
                }
                ("anyOf" | "allOf" | "prefixItems", Json::Array(list)) => {
                    let schemas = list.iter().enumerate().filter(|(_, part)| part.is_object());
                    parts.extend(schemas.map(|(index, part)| (at(&format!("/{index}")), part)));
                }
                // `false` says that there are none, and is no fault.
                ("items" | "additionalProperties", Json::Object(_)) => parts.push((at(""), value)),
                ("$ref", Json::String(reference)) => {
                    let name = reference.strip_prefix("#/$defs/").unwrap_or_default();
                    let origin = self.origins.get(name);
                    // Not the schema again in which we are.
                    if let (Some(origin), Some(part)) = (origin, self.definition(reference))
                        && !path.starts_with(origin.as_str())
                    {
                        parts.push((origin.clone(), part));
                    }
                }
                _ => {}
            }
        }
        parts
    }
}
