//! The protocols that translate into a chat, and what stands beside them: a real server on a real socket, with the built-in model.
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../service/harness.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod harness;

mod messages;
mod openapi;
mod responses;
mod text;

use serde_json::Value;

/// What the model was taught about a sum.
const SUM: &str = "What is 27 + 58?";
const SUM_REASONING: &str = "27 + 58: 20 + 50 = 70, 7 + 8 = 15, so 85.";
const SUM_ANSWER: &str = "85";

/// The events of a stream that names them; the names must be the types.
async fn named_events(service: &harness::Service, path: &str, mut body: Value) -> Vec<Value> {
    body["stream"] = true.into();
    let response = service.post(path, &body).send().await.unwrap();
    assert_eq!(response.status(), 200);
    let text = response.text().await.unwrap();
    let events = text.split("\n\n").filter(|event| !event.is_empty());
    let parse = |event: &str| {
        let (name, data) = event.split_once('\n').expect(event);
        let json: Value = serde_json::from_str(data.strip_prefix("data: ").expect(event)).unwrap();
        assert_eq!(name.strip_prefix("event: "), json["type"].as_str());
        json
    };
    events.map(parse).collect()
}

/// Puts `more` after the text that stands there.
fn append(text: &mut Value, more: &Value) {
    let joined = format!("{}{}", text.as_str().unwrap(), more.as_str().unwrap());
    *text = Value::from(joined);
}
