//! Schemas made at random: each is refused, or whatever is drawn under it satisfies it by an independent validator.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::validate::validate;
use common::{Random, grammar, text_of, try_walk};
use glim_grammar::{GrammarError, Rule};
use glim_text::{GlmParser, Piece, TokenId};
use serde_json::{Map, Value as Json, json};

const NAMES: [&str; 5] = ["a", "b", "c", "key \"q\"", "é"];
const PATTERNS: [&str; 6] = [
    "^[a-c]{1,3}$",
    "^a|^b",
    "^(x|yz)*$",
    "^[^a]",
    "^\\d+(\\.\\d)?$",
    "^.{2,5}$",
];
const FORMATS: [&str; 5] = ["date", "time", "uuid", "ipv4", "email"];

/// A schema with keywords that fit each other more often than not.
fn schema(random: &mut Random, depth: usize) -> Json {
    let mut map = Map::new();
    let kinds = if depth == 0 { 6 } else { 13 };
    match random.below(kinds) {
        0 => return json!({"type": "boolean"}),
        1 => integer(random, &mut map),
        2 => number(random, &mut map),
        3 | 4 => string(random, &mut map),
        5 => values(random, &mut map),
        6 | 7 => array(random, &mut map, depth),
        8 | 9 => object(random, &mut map, depth),
        10 => {
            let parts: Vec<Json> = (0..1 + random.below(3))
                .map(|_| schema(random, depth - 1))
                .collect();
            let keyword = ["anyOf", "oneOf", "allOf"][random.below(3)];
            map.insert(keyword.to_owned(), Json::Array(parts));
            if random.chance(30) {
                object(random, &mut map, depth);
            }
        }
        11 => {
            let target = ["#", "#/$defs/x", "#/$defs/y"][random.below(3)];
            map.insert("$ref".to_owned(), target.into());
        }
        _ => {
            map.insert("type".to_owned(), json!(["string", "integer", "null"]));
            map.insert("maxLength".to_owned(), 4.into());
            map.insert("minimum".to_owned(), 7.into());
        }
    }
    if random.chance(8) {
        map.insert("nullable".to_owned(), true.into());
    }
    if random.chance(20) {
        map.insert("description".to_owned(), "not a constraint".into());
    }
    Json::Object(map)
}

fn integer(random: &mut Random, map: &mut Map<String, Json>) {
    map.insert("type".to_owned(), "integer".into());
    let low = i64::try_from(random.below(2000)).unwrap() - 1000;
    let keyword = ["minimum", "exclusiveMinimum", "default"][random.below(3)];
    map.insert(keyword.to_owned(), low.into());
    let keyword = ["maximum", "exclusiveMaximum", "default"][random.below(3)];
    let high = low + i64::try_from(random.below(300)).unwrap() - 5;
    map.insert(keyword.to_owned(), high.into());
    if random.chance(25) {
        map.insert("multipleOf".to_owned(), (1 + random.below(20)).into());
    }
}

fn number(random: &mut Random, map: &mut Map<String, Json>) {
    map.insert("type".to_owned(), "number".into());
    let tenths = |n: usize| f64::from(u32::try_from(n).unwrap()) / 10.0;
    let low = tenths(random.below(400)) - 20.0;
    let keyword = ["minimum", "exclusiveMinimum"][random.below(2)];
    map.insert(keyword.to_owned(), low.into());
    if random.chance(70) {
        let keyword = ["maximum", "exclusiveMaximum"][random.below(2)];
        map.insert(keyword.to_owned(), (low + tenths(random.below(100))).into());
    }
}

fn string(random: &mut Random, map: &mut Map<String, Json>) {
    map.insert("type".to_owned(), "string".into());
    if random.chance(40) {
        map.insert("minLength".to_owned(), random.below(4).into());
    }
    if random.chance(40) {
        map.insert("maxLength".to_owned(), (1 + random.below(6)).into());
    }
    if random.chance(40) {
        map.insert(
            "pattern".to_owned(),
            PATTERNS[random.below(PATTERNS.len())].into(),
        );
    }
    if random.chance(15) {
        map.insert(
            "format".to_owned(),
            FORMATS[random.below(FORMATS.len())].into(),
        );
    }
}

fn values(random: &mut Random, map: &mut Map<String, Json>) {
    let all = [
        json!(1),
        json!(-2.5),
        json!("a"),
        json!("b\n\"\\"),
        json!(null),
        json!(true),
        json!([1, "a"]),
        json!({"a": {}}),
    ];
    let some: Vec<Json> = all.into_iter().filter(|_| random.chance(50)).collect();
    match some.len() {
        1 => map.insert("const".to_owned(), some[0].clone()),
        _ => map.insert("enum".to_owned(), Json::Array(some)),
    };
    if random.chance(30) {
        map.insert("type".to_owned(), json!(["string", "number", "object"]));
    }
}

fn array(random: &mut Random, map: &mut Map<String, Json>, depth: usize) {
    map.insert("type".to_owned(), "array".into());
    if random.chance(80) {
        map.insert("items".to_owned(), schema(random, depth - 1));
    }
    if random.chance(30) {
        let prefix: Vec<Json> = (0..1 + random.below(2))
            .map(|_| schema(random, depth - 1))
            .collect();
        map.insert("prefixItems".to_owned(), Json::Array(prefix));
    }
    if random.chance(40) {
        map.insert("minItems".to_owned(), random.below(3).into());
    }
    if random.chance(50) {
        map.insert("maxItems".to_owned(), random.below(5).into());
    }
}

fn object(random: &mut Random, map: &mut Map<String, Json>, depth: usize) {
    map.insert("type".to_owned(), "object".into());
    let mut properties = Map::new();
    for _ in 0..random.below(4) {
        let name = NAMES[random.below(NAMES.len())];
        properties.insert(name.to_owned(), schema(random, depth - 1));
    }
    let required: Vec<&str> = NAMES.into_iter().filter(|_| random.chance(20)).collect();
    map.insert("properties".to_owned(), Json::Object(properties));
    map.insert("required".to_owned(), json!(required));
    match random.below(4) {
        0 | 1 => drop(map.insert("additionalProperties".to_owned(), false.into())),
        2 => drop(map.insert("additionalProperties".to_owned(), schema(random, depth - 1))),
        _ => {}
    }
    if random.chance(15) {
        map.insert(
            "patternProperties".to_owned(),
            json!({"^x": schema(random, depth - 1)}),
        );
    }
    if random.chance(15) {
        map.insert("minProperties".to_owned(), random.below(3).into());
    }
    if random.chance(15) {
        map.insert("maxProperties".to_owned(), random.below(5).into());
    }
}

#[test]
fn random_schemas_are_refused_or_enforced() {
    const SCHEMAS: u64 = 250;
    let long = regex::Regex::new(r"\d\.\d{13,}").unwrap();
    let mut enforced = 0;
    let mut faults = Vec::new();
    for seed in 0..SCHEMAS {
        let mut random = Random(seed);
        let mut root = schema(&mut random, 3);
        root["$defs"] = json!({"x": schema(&mut random, 2), "y": schema(&mut random, 1)});
        let grammar = match grammar(&Rule::JsonSchema(root.clone())) {
            Ok(grammar) => grammar,
            Err(error) => {
                let placed = error.to_string().contains('#');
                assert!(
                    placed || matches!(error, GrammarError::TooLarge { .. }),
                    "{error}"
                );
                continue;
            }
        };
        enforced += 1;
        for walk_seed in 0..4 {
            let text = match try_walk(&grammar, walk_seed) {
                Ok(ids) => text_of(&ids),
                Err(ids) => {
                    let text: String = text_of(&ids).chars().take(80).collect();
                    faults.push(format!("seed {seed}: does not end: {text}\n{root}"));
                    continue;
                }
            };
            // Bounds are those of the number as it is written; so many digits are rounded when they are read.
            if long.is_match(&text) {
                continue;
            }
            let value: Json = match serde_json::from_str(&text) {
                Ok(value) => value,
                // A number that is JSON, but larger than what is read.
                Err(error) if error.to_string().contains("out of range") => continue,
                Err(error) => panic!("{error}: {text}"),
            };
            if let Err(error) = validate(&value, &root, &root) {
                faults.push(format!("seed {seed}: {error}\n{text}\n{root}"));
            }
        }
    }
    assert!(
        faults.is_empty(),
        "{} faults\n{}",
        faults.len(),
        faults[..faults.len().min(6)].join("\n\n")
    );
    assert!(enforced > SCHEMAS / 2, "{enforced} of {SCHEMAS}");
}

/// The arguments of the one call that the parser finds.
fn arguments(tools: &[Json], ids: &[TokenId]) -> Json {
    let mut parser = GlmParser::new(common::tokenizer(), false, Some(tools));
    let mut pieces: Vec<Piece> = ids.iter().flat_map(|id| parser.push(*id)).collect();
    pieces.extend(parser.finish());
    match pieces.pop() {
        Some(Piece::CallEnd { name, arguments }) if name == "f" => Json::Object(arguments),
        other => panic!("{other:?}"),
    }
}

#[test]
fn random_tools_are_refused_or_called_as_they_are_declared() {
    const TOOLS: u64 = 200;
    // What serde_json does not read as it is written.
    let odd = regex::Regex::new(r"\d\.\d{13,}|[eE][+-]?\d{3}").unwrap();
    let mut enforced = 0;
    let mut faults = Vec::new();
    for seed in 0..TOOLS {
        let mut random = Random(seed);
        let mut parameters = Map::new();
        object(&mut random, &mut parameters, 2);
        parameters.retain(|keyword, _| {
            !keyword.ends_with("Properties") || keyword == "additionalProperties"
        });
        let declared: Vec<String> = parameters["properties"]
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect();
        let required = parameters["required"].as_array_mut().unwrap();
        required.retain(|name| declared.iter().any(|known| name == known));
        parameters.insert(
            "$defs".to_owned(),
            json!({"x": schema(&mut random, 1), "y": schema(&mut random, 0)}),
        );
        let parameters = Json::Object(parameters);
        let tools =
            [json!({"type": "function", "function": {"name": "f", "parameters": parameters}})];
        let rule = Rule::ToolCalls {
            tools: tools.to_vec(),
            only: None,
            parallel: false,
        };
        let grammar = match grammar(&rule) {
            Ok(grammar) => grammar,
            Err(error) => {
                assert!(error.to_string().contains("tools[0]"), "{error}");
                continue;
            }
        };
        enforced += 1;
        for walk_seed in 0..4 {
            let ids = match try_walk(&grammar, walk_seed) {
                Ok(ids) => ids,
                Err(_) => {
                    faults.push(format!("seed {seed}: does not end\n{parameters}"));
                    continue;
                }
            };
            let text = text_of(&ids);
            if odd.is_match(&text) {
                continue;
            }
            let value = arguments(&tools, &ids);
            if let Err(error) = validate(&value, &parameters, &parameters) {
                faults.push(format!("seed {seed}: {error}\n{text}\n{parameters}"));
            }
        }
    }
    assert!(
        faults.is_empty(),
        "{} faults\n{}",
        faults.len(),
        faults[..faults.len().min(6)].join("\n\n")
    );
    assert!(enforced > TOOLS / 2, "{enforced} of {TOOLS}");
}
