//! A validator of JSON schema that shares nothing with the code under test: value by value, straight from the specification.

use regex::Regex;
use serde_json::{Map, Value as Json};

/// Why a value does not satisfy a schema.
pub fn validate(value: &Json, schema: &Json, root: &Json) -> Result<(), String> {
    let map = match schema {
        Json::Bool(true) => return Ok(()),
        Json::Object(map) => map,
        _ => return Err("false".to_owned()),
    };
    if map.get("nullable") == Some(&Json::Bool(true)) && value.is_null() {
        return Ok(());
    }
    let list = |keyword: &str| map.get(keyword).and_then(Json::as_array);
    let number = |keyword: &str| map.get(keyword).and_then(Json::as_f64);
    let fail = |keyword: &str| Err(format!("{keyword}: {value} against {schema}"));
    let valid = |value: &Json, schema: &Json| validate(value, schema, root).is_ok();

    if let Some(reference) = map.get("$ref").and_then(Json::as_str) {
        validate(value, root.pointer(&reference[1..]).unwrap(), root)?;
    }
    match map.get("type") {
        Some(Json::String(name)) if !is(value, name) => return fail("type"),
        Some(Json::Array(names)) if !names.iter().any(|name| is(value, name.as_str().unwrap())) => {
            return fail("type");
        }
        _ => {}
    }
    if map.get("const").is_some_and(|wanted| !same(wanted, value)) {
        return fail("const");
    }
    if list("enum").is_some_and(|list| !list.iter().any(|wanted| same(wanted, value))) {
        return fail("enum");
    }
    if let Some(parts) = list("allOf") {
        for part in parts {
            validate(value, part, root)?;
        }
    }
    if list("anyOf").is_some_and(|list| !list.iter().any(|part| valid(value, part))) {
        return fail("anyOf");
    }
    if list("oneOf").is_some_and(|list| list.iter().filter(|part| valid(value, part)).count() != 1)
    {
        return fail("oneOf");
    }
    match value {
        Json::Number(found) => {
            let found = found.as_f64().unwrap();
            let bad = number("minimum").is_some_and(|bound| found < bound)
                || number("maximum").is_some_and(|bound| found > bound)
                || number("exclusiveMinimum").is_some_and(|bound| found <= bound)
                || number("exclusiveMaximum").is_some_and(|bound| found >= bound)
                || number("multipleOf").is_some_and(|step| {
                    let quotient = found / step;
                    (quotient - quotient.round()).abs() > 1e-9 * quotient.abs().max(1.0)
                });
            if bad { fail("a bound") } else { Ok(()) }
        }
        Json::String(text) => {
            let length = text.chars().count() as f64;
            if number("minLength").is_some_and(|least| length < least)
                || number("maxLength").is_some_and(|most| length > most)
            {
                return fail("length");
            }
            let pattern = map.get("pattern").and_then(Json::as_str);
            if pattern.is_some_and(|pattern| !Regex::new(pattern).unwrap().is_match(text)) {
                return fail("pattern");
            }
            match map.get("format").and_then(Json::as_str) {
                Some(format) if !has_format(text, format) => fail("format"),
                _ => Ok(()),
            }
        }
        Json::Array(items) => array(items, map, root),
        Json::Object(found) => object(found, map, root),
        Json::Null | Json::Bool(_) => Ok(()),
    }
}

fn is(value: &Json, name: &str) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "number" => value.is_number(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => false,
    }
}

fn same(a: &Json, b: &Json) -> bool {
    match (a, b) {
        (Json::Number(a), Json::Number(b)) => a.as_f64() == b.as_f64(),
        (Json::Array(a), Json::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        (Json::Object(a), Json::Object(b)) => {
            a.len() == b.len()
                && a.iter()
                    .all(|(name, a)| b.get(name).is_some_and(|b| same(a, b)))
        }
        (a, b) => a == b,
    }
}

fn array(items: &[Json], map: &Map<String, Json>, root: &Json) -> Result<(), String> {
    let number = |keyword: &str| map.get(keyword).and_then(Json::as_u64);
    let count = items.len() as u64;
    if number("minItems").is_some_and(|least| count < least)
        || number("maxItems").is_some_and(|most| count > most)
    {
        return Err(format!("number of items: {count}"));
    }
    let (prefix, rest) = match map.get("items") {
        Some(Json::Array(prefix)) => (Some(prefix), map.get("additionalItems")),
        rest => (map.get("prefixItems").and_then(Json::as_array), rest),
    };
    let prefix = prefix.map_or(&[][..], Vec::as_slice);
    for (index, item) in items.iter().enumerate() {
        if let Some(schema) = prefix.get(index).or(rest) {
            validate(item, schema, root)?;
        }
    }
    Ok(())
}

fn object(found: &Map<String, Json>, map: &Map<String, Json>, root: &Json) -> Result<(), String> {
    let number = |keyword: &str| map.get(keyword).and_then(Json::as_u64);
    let count = found.len() as u64;
    if number("minProperties").is_some_and(|least| count < least)
        || number("maxProperties").is_some_and(|most| count > most)
    {
        return Err(format!("number of properties: {count}"));
    }
    for name in map
        .get("required")
        .and_then(Json::as_array)
        .into_iter()
        .flatten()
    {
        if !found.contains_key(name.as_str().unwrap()) {
            return Err(format!("{name} is missing"));
        }
    }
    let of = |keyword: &str| map.get(keyword).and_then(Json::as_object);
    for (name, value) in found {
        let mut known = false;
        if let Some(schema) = of("properties").and_then(|map| map.get(name)) {
            validate(value, schema, root)?;
            known = true;
        }
        for (pattern, schema) in of("patternProperties").into_iter().flatten() {
            if Regex::new(pattern).unwrap().is_match(name) {
                validate(value, schema, root)?;
                known = true;
            }
        }
        if let (false, Some(schema)) = (known, map.get("additionalProperties")) {
            validate(value, schema, root).map_err(|error| format!("{name}: {error}"))?;
        }
    }
    // Declared properties come in the order of the schema.
    let declared: Vec<&String> = of("properties").into_iter().flat_map(Map::keys).collect();
    let order: Vec<usize> = found
        .keys()
        .filter_map(|name| declared.iter().position(|known| *known == name))
        .collect();
    match order.is_sorted() {
        true => Ok(()),
        false => Err(format!("order of {:?}", found.keys())),
    }
}

fn has_format(text: &str, format: &str) -> bool {
    match format {
        "date" => is_date(text),
        "time" => is_time(text),
        "date-time" => text
            .split_once('T')
            .is_some_and(|(date, time)| is_date(date) && is_time(time)),
        "uuid" => {
            let lengths: Vec<usize> = text.split('-').map(str::len).collect();
            lengths == [8, 4, 4, 4, 12] && text.chars().all(|c| c == '-' || c.is_ascii_hexdigit())
        }
        "ipv4" => text.parse::<std::net::Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<std::net::Ipv6Addr>().is_ok(),
        "hostname" => text.split('.').all(|label| {
            (1..=63).contains(&label.len()) && !label.starts_with('-') && !label.ends_with('-')
        }),
        "email" => text
            .split_once('@')
            .is_some_and(|(name, host)| !name.is_empty() && has_format(host, "hostname")),
        "uri" => text.split_once(':').is_some_and(|(scheme, rest)| {
            scheme
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
                && !rest.contains([' ', '"', '<', '>', '\\'])
        }),
        "duration" => text.starts_with('P') && text.len() > 2 && !text.ends_with('T'),
        other => panic!("{other}"),
    }
}

fn is_date(text: &str) -> bool {
    let parts: Vec<u32> = text
        .split('-')
        .map(|part| part.parse().unwrap_or(99))
        .collect();
    let [year, month, day] = parts[..] else {
        return false;
    };
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        2 => 28 + u32::from(leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return false,
    };
    text.len() == 10 && (1..=days).contains(&day)
}

fn is_time(text: &str) -> bool {
    let shape = Regex::new(r"^(\d\d):(\d\d):(\d\d)(\.\d+)?(Z|[+-](\d\d):(\d\d))$").unwrap();
    shape.captures(text).is_some_and(|parts| {
        let below = |index: usize, most: u32| {
            parts
                .get(index)
                .is_none_or(|part| part.as_str().parse::<u32>().unwrap() < most)
        };
        below(1, 24) && below(2, 60) && below(3, 60) && below(6, 24) && below(7, 60)
    })
}
