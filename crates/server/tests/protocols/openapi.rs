//! `/openapi.json`: whether it tells the truth.

use std::collections::BTreeSet;

use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{NAME, client, shared};

async fn document() -> Value {
    let url = format!("{}/openapi.json", shared().await.url);
    client()
        .get(url)
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap()
}

fn references(json: &Value, found: &mut BTreeSet<String>) {
    match json {
        Value::Object(fields) => {
            for (key, value) in fields {
                match value {
                    Value::String(target) if key == "$ref" => drop(found.insert(target.clone())),
                    value => references(value, found),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}

/// JSON with a line for each member down to a depth: a diff shows which operation or field changed, at half of the bytes.
fn lines(json: &Value, depth: usize) -> String {
    let (ends, members): (_, Vec<String>) = match json {
        Value::Object(fields) if depth > 0 && !fields.is_empty() => {
            let member = |(key, value)| format!("{}:{}", json!(key), lines(value, depth - 1));
            (["{", "}"], fields.iter().map(member).collect())
        }
        Value::Array(values) if depth > 0 && !values.is_empty() => {
            let member = |value| lines(value, depth - 1);
            (["[", "]"], values.iter().map(member).collect())
        }
        json => return json.to_string(),
    };
    format!("{}\n{}\n{}", ends[0], members.join(",\n"), ends[1])
}

#[tokio::test]
async fn it_is_as_it_was() {
    insta::assert_snapshot!("openapi", lines(&document().await, 4));
}

#[tokio::test]
async fn every_reference_leads_somewhere() {
    let document = document().await;
    let mut found = BTreeSet::new();
    references(&document, &mut found);
    assert!(found.len() > 50, "{found:?}");
    for target in found {
        let pointer = target.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{target}");
    }
}

#[tokio::test]
async fn every_path_is_there_and_errors_are_those_described() {
    let service = shared().await;
    let document = document().await;
    let mut operations = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            operations += 1;
            let url = format!(
                "{}{}",
                service.url,
                path.replace("{id}", "x").replace("{model}", NAME)
            );
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            let answer = client()
                .request(method, url)
                .body("{}")
                .send()
                .await
                .unwrap();
            let status = answer.status().as_u16();
            let described = &operation["responses"][status.to_string()];
            assert!(described.is_object(), "{path} answers {status}");
            let kind = answer.headers()["content-type"].to_str().unwrap();
            let kind = kind.split(';').next().unwrap();
            // The document itself stands for Prometheus' own type as text.
            let content = described["content"].as_object().unwrap();
            let is_known = content.contains_key(kind) || path == "/metrics";
            assert!(is_known, "{path} answers {kind}");
        }
    }
    assert!(operations > 25, "{operations}");
}

#[tokio::test]
async fn requests_name_the_served_model() {
    let document = document().await;
    for name in [
        "ChatRequest",
        "CompletionRequest",
        "MessagesRequest",
        "ResponsesRequest",
    ] {
        let schema = &document["components"]["schemas"][name];
        let direct = &schema["properties"]["model"]["enum"];
        let parts = schema["allOf"].as_array().into_iter().flatten();
        let mut all = parts
            .map(|part| &part["properties"]["model"]["enum"])
            .chain([direct]);
        assert!(
            all.any(|names| *names == json!([NAME, "other/name", null])),
            "{name}"
        );
    }
}
