//! `/v1/responses`, without storage.

use serde_json::{Value, json};

use crate::harness::{NAME, Service, client, shared, with};
use crate::{SUM, SUM_ANSWER, SUM_REASONING, append, named_events};

const PATH: &str = "/v1/responses";

fn ask(input: impl Into<Value>) -> Value {
    json!({"model": NAME, "temperature": 0, "max_output_tokens": 200, "input": input.into()})
}

fn weather() -> Value {
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    with(
        ask("What is the weather in Oslo?"),
        json!({"tools": [{"type": "function", "name": "get_weather", "description": "The weather in a city", "parameters": schema}]}),
    )
}

async fn response(service: &Service, body: Value) -> Value {
    let (status, response) = service.ask(PATH, &body).await;
    assert_eq!(status, 200, "{response}");
    response
}

/// The text of the answer.
fn text_of(response: &Value) -> String {
    let output = response["output"].as_array().unwrap();
    let messages = output.iter().filter(|item| item["type"] == "message");
    messages
        .map(|item| item["content"][0]["text"].as_str().unwrap())
        .collect()
}

/// The output that the deltas add up to.
fn join(events: &[Value]) -> Value {
    let mut output = Vec::new();
    for event in events {
        let index = event["output_index"].as_u64().map(|index| usize::try_from(index).unwrap());
        match event["type"].as_str().unwrap() {
            "response.output_item.added" => output.push(event["item"].clone()),
            "response.content_part.added" => {
                let content = output[index.unwrap()]["content"].as_array_mut().unwrap();
                content.push(event["part"].clone());
            }
            "response.output_text.delta" | "response.reasoning_text.delta" => {
                append(&mut output[index.unwrap()]["content"][0]["text"], &event["delta"]);
            }
            "response.function_call_arguments.delta" => {
                append(&mut output[index.unwrap()]["arguments"], &event["delta"]);
            }
            "response.output_item.done" => {
                output[index.unwrap()]["status"] = event["item"]["status"].clone();
            }
            _ => {}
        }
    }
    Value::from(output)
}

/// Without ids.
fn comparable(mut output: Value) -> Value {
    for item in output.as_array_mut().unwrap() {
        item["id"] = Value::Null;
        if item["type"] == "function_call" {
            item["call_id"] = Value::Null;
        }
    }
    output
}

#[tokio::test]
async fn a_text_is_answered_with_its_reasoning_before_it() {
    let service = shared().await;
    let body = with(ask(SUM), json!({"instructions": null, "metadata": {"a": "b"}, "store": true, "user": "u"}));
    let answer = response(service, body).await;
    assert_eq!(answer["object"], "response");
    assert_eq!(answer["status"], "completed");
    assert_eq!(answer["model"], NAME);
    assert_eq!(answer["store"], false);
    assert_eq!(answer["metadata"], json!({"a": "b"}));
    assert_eq!(answer["output"][0]["type"], "reasoning");
    assert_eq!(answer["output"][0]["content"][0]["text"], SUM_REASONING);
    assert_eq!(text_of(&answer), SUM_ANSWER);
    let usage = &answer["usage"];
    let count = |name: &str| usage[name].as_u64().unwrap();
    assert_eq!(count("total_tokens"), count("input_tokens") + count("output_tokens"));
    assert!(usage["output_tokens_details"]["reasoning_tokens"].as_u64().unwrap() > 0);

    let without = with(ask(SUM), json!({"reasoning": {"effort": "none"}}));
    let without = response(service, without).await;
    assert_eq!(without["output"].as_array().unwrap().len(), 1);
    assert_eq!(text_of(&without), SUM_ANSWER);
}

#[tokio::test]
async fn a_stream_joins_to_the_whole_response() {
    let service = shared().await;
    for body in [
        ask(SUM),
        weather(),
        with(ask(SUM), json!({"max_output_tokens": 5})),
        with(ask("Write a short poem."), json!({"reasoning": {"effort": "none"}})),
    ] {
        let whole = response(service, body.clone()).await;
        let events = named_events(service, PATH, body.clone()).await;
        let numbers: Vec<u64> = events.iter().map(|event| event["sequence_number"].as_u64().unwrap()).collect();
        let expected: Vec<u64> = (0..).take(events.len()).collect();
        assert_eq!(numbers, expected);
        let last = &events.last().unwrap();
        assert_eq!(last["type"], format!("response.{}", whole["status"].as_str().unwrap()));
        let streamed = &last["response"];
        assert_eq!(join(&events), streamed["output"], "{body}");
        assert_eq!(
            comparable(streamed["output"].clone()),
            comparable(whole["output"].clone()),
            "{body}"
        );
        assert_eq!(streamed["usage"]["output_tokens"], whole["usage"]["output_tokens"]);
    }
}

#[tokio::test]
async fn a_function_is_called_and_its_output_is_used() {
    let service = shared().await;
    let answer = response(service, weather()).await;
    let output = answer["output"].as_array().unwrap();
    let call = output.iter().find(|item| item["type"] == "function_call").unwrap();
    assert_eq!(call["name"], "get_weather");
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments, json!({"city": "Oslo"}));
    let mut input = vec![json!({"role": "user", "content": "What is the weather in Oslo?"})];
    input.extend(output.iter().cloned());
    input.push(json!({"type": "function_call_output", "call_id": call["call_id"], "output": "{\"weather\": \"rain\"}"}));
    let after = response(service, with(weather(), json!({"input": input}))).await;
    assert!(text_of(&after).contains("Oslo"), "{after}");

    for choice in [
        json!("required"),
        json!({"type": "function", "name": "get_weather"}),
        json!({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_weather"}]}),
    ] {
        let forced = response(service, with(weather(), json!({"tool_choice": choice}))).await;
        let output = forced["output"].as_array().unwrap();
        assert!(output.iter().any(|item| item["type"] == "function_call"), "{choice}");
        assert_eq!(forced["tool_choice"], choice);
    }
}

#[tokio::test]
async fn a_schema_binds_the_answer_and_not_the_reasoning() {
    let service = shared().await;
    let schema = json!({"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"], "additionalProperties": false});
    let format = json!({"text": {"format": {"type": "json_schema", "name": "sum", "schema": schema, "strict": true}}});
    let answer = response(service, with(ask(SUM), format)).await;
    assert_eq!(answer["output"][0]["content"][0]["text"], SUM_REASONING);
    let json: Value = serde_json::from_str(&text_of(&answer)).unwrap();
    assert!(json["sum"].is_i64(), "{json}");
    let impossible = json!({"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "nothing"}}}});
    let (param, _) = service.refused(PATH, with(ask(SUM), impossible)).await;
    assert_eq!(param, "text.format");
}

#[tokio::test]
async fn what_is_cut_says_why() {
    let service = shared().await;
    let answer = response(service, with(ask(SUM), json!({"max_output_tokens": 3}))).await;
    assert_eq!(answer["status"], "incomplete");
    assert_eq!(answer["incomplete_details"], json!({"reason": "max_output_tokens"}));
    assert_eq!(answer["usage"]["output_tokens"], 3);
}

#[tokio::test]
async fn what_needs_storage_is_refused_with_the_reason() {
    let service = shared().await;
    for (field, value) in [("previous_response_id", json!("resp_1")), ("background", json!(true))] {
        let (param, message) = service.refused(PATH, with(ask("a"), json!({field: value}))).await;
        assert_eq!(param, field);
        assert!(message.contains("stateless"), "{message}");
    }
    let url = format!("{}{PATH}/resp_1", service.url);
    for request in [
        client().get(&url),
        client().delete(&url),
        client().get(format!("{url}/input_items")),
        client().post(format!("{url}/cancel")),
    ] {
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), 404);
        let error = answer.json::<Value>().await.unwrap();
        assert!(error["error"]["message"].as_str().unwrap().contains("stateless"));
    }
}

#[tokio::test]
async fn errors_speak_of_this_protocols_fields() {
    let service = shared().await;
    for (fields, param) in [
        (json!({"max_output_tokens": 0}), "max_output_tokens"),
        (json!({"max_output_tokens": 100_000}), "input"),
        (json!({"top_p": 0}), "top_p"),
        (json!({"input": 5}), "input"),
        (json!({"tool_choice": "required"}), "tool_choice"),
    ] {
        let (found, message) = service.refused(PATH, with(ask("a"), fields)).await;
        assert_eq!(found, param, "{message}");
    }
}

#[tokio::test]
async fn tokens_are_counted_as_they_are_used() {
    let service = shared().await;
    let (status, count) = service.ask("/v1/responses/input_tokens", &weather()).await;
    assert_eq!(status, 200, "{count}");
    let answer = response(service, weather()).await;
    assert_eq!(count["input_tokens"], answer["usage"]["input_tokens"]);
}
