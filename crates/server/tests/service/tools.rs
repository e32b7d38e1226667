//! Calls of tools.

use serde_json::{Value, json};

use crate::harness::{question, shared, weather_tool, with};

fn asked() -> Value {
    with(question("What is the weather in Oslo?"), json!({"tools": weather_tool()}))
}

fn calls(answer: &Value) -> Vec<(String, Value)> {
    let calls = answer["choices"][0]["message"]["tool_calls"].as_array();
    let one = |call: &Value| {
        assert!(call["id"].as_str().unwrap().starts_with("call_"));
        let arguments = call["function"]["arguments"].as_str().unwrap();
        let name = call["function"]["name"].as_str().unwrap().to_owned();
        (name, serde_json::from_str(arguments).unwrap())
    };
    calls.into_iter().flatten().map(one).collect()
}

#[tokio::test]
async fn a_model_that_may_calls_and_the_result_goes_back() {
    let service = shared().await;
    let answer = service.chat(asked()).await;
    let expected = [("get_weather".to_owned(), json!({"city": "Oslo"}))];
    assert_eq!(calls(&answer), expected);
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(choice["message"]["content"], Value::Null);

    let mut body = asked();
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(choice["message"].clone());
    let id = &choice["message"]["tool_calls"][0]["id"];
    messages.push(json!({"role": "tool", "tool_call_id": id, "content": "{\"temp\": 7}"}));
    let answer = service.chat(body).await;
    assert_eq!(calls(&answer), []);
    assert!(!answer["choices"][0]["message"]["content"].as_str().unwrap().is_empty());
}

#[tokio::test]
async fn a_model_that_may_not_does_not() {
    let answer = shared().await.chat(with(asked(), json!({"tool_choice": "none"}))).await;
    assert_eq!(calls(&answer), []);
    assert_ne!(answer["choices"][0]["finish_reason"], "tool_calls");
}

#[tokio::test]
async fn a_model_that_must_calls_what_it_must() {
    let service = shared().await;
    // A question that no tool is for.
    let mut body = with(question("What is the capital of France?"), json!({"tools": weather_tool()}));
    body["tools"].as_array_mut().unwrap().push(json!({"type": "function", "function": {
        "name": "book", "parameters": {"type": "object", "properties": {
            "nights": {"type": "integer"}, "class": {"enum": ["a", "b"]}, "vip": {"type": "boolean"}},
            "required": ["nights", "class", "vip"], "additionalProperties": false}}}));
    let required = service.chat(with(body.clone(), json!({"tool_choice": "required", "parallel_tool_calls": false}))).await;
    assert_eq!(calls(&required).len(), 1);
    assert_eq!(required["choices"][0]["finish_reason"], "tool_calls");
    let named = json!({"tool_choice": {"type": "function", "function": {"name": "book"}}});
    let named = service.chat(with(body, named)).await;
    let (name, arguments) = calls(&named).remove(0);
    assert_eq!(name, "book");
    assert!(arguments["nights"].is_i64() && arguments["vip"].is_boolean(), "{arguments}");
    assert!(["a", "b"].contains(&arguments["class"].as_str().unwrap()), "{arguments}");
    assert_eq!(named["choices"][0]["finish_reason"], "stop", "the caller chose it");
}

#[tokio::test]
async fn what_cannot_be_called_is_refused_by_name() {
    let service = shared().await;
    let named = json!({"type": "function", "function": {"name": "nobody"}});
    for (more, param) in [
        (json!({"tools": [], "tool_choice": "required"}), "tool_choice"),
        (json!({"tool_choice": named}), "tool_choice"),
        (json!({"tool_choice": "perhaps"}), "tool_choice"),
        (json!({"tools": [{"type": "function"}]}), "tools[0]"),
        (json!({"tools": [{"type": "retrieval", "function": {"name": "a"}}]}), "tools[0]"),
        (json!({"tools": [weather_tool()[0], weather_tool()[0]]}), "tools[1]"),
    ] {
        let (found, message) = service.refused("/v1/chat/completions", with(asked(), more)).await;
        assert_eq!(found, param, "{message}");
    }
}

#[tokio::test]
async fn past_calls_must_be_json() {
    let body = json!({"messages": [
        {"role": "user", "content": "x"},
        {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{not json"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "y"}
    ]});
    let (param, message) = shared().await.refused("/v1/chat/completions", body).await;
    assert_eq!(param, "messages");
    assert!(message.contains("messages[1]"), "{message}");
}
