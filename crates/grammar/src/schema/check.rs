//! Two questions about a normalised schema as a whole: how much work is it, and has it a value at all?

use std::collections::HashMap;

use serde_json::{Map, Value as Json};

use super::Normal;
use super::keywords::escaped;
use crate::error::GrammarError;
use crate::grammar::limit;
use crate::limits::MAX_EXPANDED_NODES;

/// How large a schema is once its parts that hold together are merged.
#[derive(Debug, Clone, Copy)]
struct Size {
    nodes: u64,
    /// Whether there are alternatives in it: they are multiplied out when it is merged with another.
    branches: bool,
    /// Whether it says `multipleOf`.
    multiples: bool,
}

const ONE: Size = Size {
    nodes: 1,
    branches: false,
    multiples: false,
};

struct Sizes<'a> {
    normal: &'a Normal,
    /// Of each definition; [`ONE`] while it is being measured.
    definitions: HashMap<&'a str, Size>,
}

/// Refuses a schema whose merged form would be huge: `allOf` of several `anyOf` is their product.
pub(super) fn size(normal: &Normal) -> Result<(), GrammarError> {
    let mut sizes = Sizes {
        normal,
        definitions: HashMap::new(),
    };
    let mut total = sizes.of(&normal.schema, &normal.path, false)?.nodes;
    for (name, schema) in normal.definitions().into_iter().flatten() {
        let at = normal.origins.get(name).map_or("#", String::as_str);
        total = total.saturating_add(sizes.of(schema, at, false)?.nodes);
    }
    within(total, &normal.path)
}

fn within(nodes: u64, at: &str) -> Result<(), GrammarError> {
    let nodes = usize::try_from(nodes).unwrap_or(usize::MAX);
    limit(
        &format!("the size of the schema at {at}, with `allOf` and `anyOf` multiplied out,"),
        nodes,
        MAX_EXPANDED_NODES,
    )
}

impl<'a> Sizes<'a> {
    /// `merged` says that the schema holds together with another, so that what it refers to is written out.
    fn of(&mut self, schema: &'a Json, at: &str, merged: bool) -> Result<Size, GrammarError> {
        let Some(map) = schema.as_object() else {
            return Ok(ONE);
        };
        let all = map
            .get("allOf")
            .and_then(Json::as_array)
            .map_or(0, Vec::len);
        let others = map
            .keys()
            .filter(|keyword| !["$defs", "allOf"].contains(&keyword.as_str()));
        let merged = merged || all + others.count() > 1;
        // What must hold together.
        let mut parts = Vec::new();
        let mut own = ONE;
        own.multiples = map.contains_key("multipleOf");
        let mut has_own = false;
        for (keyword, value) in map {
            match (keyword.as_str(), value) {
                ("$defs" | "$ref", _) => {}
                ("allOf", Json::Array(list)) => {
                    for (index, part) in list.iter().enumerate() {
                        let at = format!("{at}/allOf/{index}");
                        parts.push(self.of(part, &at, merged)?);
                    }
                }
                ("anyOf", Json::Array(list)) => {
                    let mut sum = Size { nodes: 0, ..ONE };
                    for (index, part) in list.iter().enumerate() {
                        let at = format!("{at}/anyOf/{index}");
                        sum = add(sum, self.of(part, &at, merged)?);
                    }
                    sum.branches = true;
                    parts.push(sum);
                }
                ("enum", Json::Array(list)) => parts.push(Size {
                    nodes: list.len() as u64,
                    branches: list.len() > 1,
                    multiples: false,
                }),
                ("properties" | "patternProperties", Json::Object(map)) => {
                    has_own = true;
                    for (name, part) in map {
                        let at = format!("{at}/{keyword}/{}", escaped(name));
                        own = add(own, self.of(part, &at, false)?);
                    }
                }
                ("prefixItems", Json::Array(list)) => {
                    has_own = true;
                    for (index, part) in list.iter().enumerate() {
                        let at = format!("{at}/prefixItems/{index}");
                        own = add(own, self.of(part, &at, false)?);
                    }
                }
                ("items" | "additionalProperties", part) => {
                    has_own = true;
                    own = add(own, self.of(part, &format!("{at}/{keyword}"), false)?);
                }
                _ => has_own = true,
            }
        }
        if has_own {
            parts.push(own);
        }
        if let Some(reference) = map.get("$ref").and_then(Json::as_str) {
            // Alone, it stays a reference.
            parts.push(match merged {
                false => ONE,
                true => self.definition(reference, at)?,
            });
        }
        let mut together: Option<Size> = None;
        for part in parts {
            together = Some(match together {
                None => part,
                Some(before) => merge(before, part, at)?,
            });
        }
        let size = together.unwrap_or(ONE);
        within(size.nodes, at)?;
        Ok(size)
    }

    fn definition(&mut self, reference: &'a str, at: &str) -> Result<Size, GrammarError> {
        let Some(schema) = self.normal.definition(reference) else {
            return Ok(ONE);
        };
        if let Some(size) = self.definitions.get(reference) {
            return Ok(*size);
        }
        self.definitions.insert(reference, ONE);
        let size = self.of(schema, at, true)?;
        self.definitions.insert(reference, size);
        Ok(size)
    }
}

fn add(a: Size, b: Size) -> Size {
    Size {
        nodes: a.nodes.saturating_add(b.nodes),
        branches: a.branches || b.branches,
        multiples: a.multiples || b.multiples,
    }
}

fn merge(a: Size, b: Size, at: &str) -> Result<Size, GrammarError> {
    if a.multiples && b.multiples {
        // llguidance takes the least common multiple in 32 bits, unchecked.
        return Err(GrammarError::Keyword {
            path: at.to_owned(),
            keyword: "multipleOf".to_owned(),
            reason: "stands in several schemas that hold together".to_owned(),
            advice: "say it once",
        });
    }
    let mut merged = add(a, b);
    if merged.branches {
        merged.nodes = a.nodes.saturating_mul(b.nodes);
    }
    Ok(merged)
}

/// Refuses a schema that only an endless value would satisfy, such as an object that must hold an object of its own kind.
///
/// The least fixed point: a definition has a finite value if it has one that uses only definitions that are known to have one.
pub(super) fn is_finite(normal: &Normal) -> Result<(), GrammarError> {
    let mut finite: HashMap<&str, bool> = HashMap::new();
    loop {
        let mut changed = false;
        for (name, schema) in normal.definitions().into_iter().flatten() {
            if !finite.contains_key(name.as_str()) && has_value(schema, &finite) {
                finite.insert(name, true);
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    // What has no value whatever the references mean is for llguidance to find: it says more.
    let anyway = normal.definitions().into_iter().flatten();
    let anyway = anyway.map(|(name, _)| (name.as_str(), true)).collect();
    if has_value(&normal.schema, &finite) || !has_value(&normal.schema, &anyway) {
        return Ok(());
    }
    let endless = normal
        .definitions()
        .into_iter()
        .flatten()
        .find(|(name, _)| !finite.contains_key(name.as_str()));
    let path = endless.and_then(|(name, _)| normal.origins.get(name));
    Err(GrammarError::Unenforceable {
        path: path.unwrap_or(&normal.path).clone(),
        reason: "only a value without an end would satisfy it: let a property be optional, or a list be empty"
            .to_owned(),
    })
}

/// Whether a schema has a value, as far as references and what must be present go.
fn has_value(schema: &Json, finite: &HashMap<&str, bool>) -> bool {
    let map = match schema {
        Json::Bool(value) => return *value,
        Json::Object(map) => map,
        _ => return false,
    };
    let list = |keyword: &str| map.get(keyword).and_then(Json::as_array);
    let reference = map.get("$ref").and_then(Json::as_str);
    let referred = reference.and_then(|reference| reference.strip_prefix("#/$defs/"));
    reference.is_none_or(|_| referred.is_some_and(|name| finite.contains_key(name)))
        && list("anyOf").is_none_or(|list| list.iter().any(|part| has_value(part, finite)))
        && list("allOf").is_none_or(|list| list.iter().all(|part| has_value(part, finite)))
        && own_value(map, finite)
}

fn own_value(map: &Map<String, Json>, finite: &HashMap<&str, bool>) -> bool {
    if map.contains_key("enum") || map.contains_key("const") {
        return true;
    }
    let allows = |name: &str| match map.get("type") {
        None => true,
        Some(Json::Array(types)) => types.iter().any(|found| found == name),
        Some(found) => found == name,
    };
    let scalar = ["null", "boolean", "integer", "number", "string"];
    if scalar.iter().any(|name| allows(name)) {
        return true;
    }
    let object = || {
        let required = map.get("required").and_then(Json::as_array);
        required.into_iter().flatten().all(|name| {
            let declared = name
                .as_str()
                .and_then(|name| map.get("properties")?.get(name));
            declared.is_none_or(|part| has_value(part, finite))
        })
    };
    let array = || {
        let least = map.get("minItems").and_then(Json::as_u64).unwrap_or(0);
        let least = usize::try_from(least).unwrap_or(usize::MAX);
        let prefix = map.get("prefixItems").and_then(Json::as_array);
        let prefix = prefix.map_or(&[][..], Vec::as_slice);
        prefix
            .iter()
            .take(least)
            .all(|part| has_value(part, finite))
            && (least <= prefix.len()
                || map.get("items").is_none_or(|part| has_value(part, finite)))
    };
    (allows("object") && object()) || (allows("array") && array())
}
