//! `/v1/messages`.

use glim_server::{ApiKeys, ServerConfig};
use serde_json::{Value, json};

use crate::harness::{NAME, Service, config, options, shared, with};
use crate::{SUM, SUM_ANSWER, SUM_REASONING, append, named_events};

const PATH: &str = "/v1/messages";

fn ask(text: &str) -> Value {
    json!({"model": NAME, "max_tokens": 200, "temperature": 0, "messages": [{"role": "user", "content": text}]})
}

fn thinking(body: Value) -> Value {
    with(body, json!({"thinking": {"type": "enabled", "budget_tokens": 1024}}))
}

fn weather() -> Value {
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    with(
        ask("What is the weather in Oslo?"),
        json!({"tools": [{"name": "get_weather", "description": "The weather in a city", "input_schema": schema}]}),
    )
}

async fn message(service: &Service, body: Value) -> Value {
    let (status, message) = service.ask(PATH, &body).await;
    assert_eq!(status, 200, "{message}");
    message
}

/// The message that a client makes of the events.
fn join(events: &[Value]) -> Value {
    let mut message = Value::Null;
    let mut arguments = String::new();
    for event in events {
        let index = event["index"].as_u64().map(|index| usize::try_from(index).unwrap());
        match event["type"].as_str().unwrap() {
            "message_start" => message = event["message"].clone(),
            "content_block_start" => {
                let blocks = message["content"].as_array_mut().unwrap();
                assert_eq!(index, Some(blocks.len()));
                blocks.push(event["content_block"].clone());
                arguments.clear();
            }
            "content_block_delta" => {
                let block = &mut message["content"][index.unwrap()];
                let delta = &event["delta"];
                match delta["type"].as_str().unwrap() {
                    "text_delta" => append(&mut block["text"], &delta["text"]),
                    "thinking_delta" => append(&mut block["thinking"], &delta["thinking"]),
                    "signature_delta" => append(&mut block["signature"], &delta["signature"]),
                    "input_json_delta" => arguments += delta["partial_json"].as_str().unwrap(),
                    other => panic!("{other}"),
                }
            }
            "content_block_stop" => {
                let block = &mut message["content"][index.unwrap()];
                if block["type"] == "tool_use" {
                    block["input"] = serde_json::from_str(&arguments).unwrap();
                }
            }
            "message_delta" => {
                message["stop_reason"] = event["delta"]["stop_reason"].clone();
                message["stop_sequence"] = event["delta"]["stop_sequence"].clone();
                message["usage"] = event["usage"].clone();
            }
            "ping" | "message_stop" => {}
            other => panic!("{other}"),
        }
    }
    message
}

/// Without what differs from request to request.
fn comparable(mut message: Value) -> Value {
    message["id"] = Value::Null;
    for block in message["content"].as_array_mut().unwrap() {
        if block["type"] == "tool_use" {
            block["id"] = Value::Null;
        }
    }
    // The second request finds the prompt of the first.
    let usage = &mut message["usage"];
    let prompt = usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap();
    usage["input_tokens"] = prompt.into();
    usage["cache_read_input_tokens"] = 0.into();
    message
}

#[tokio::test]
async fn thinking_comes_before_the_answer_if_it_is_asked_for() {
    let service = shared().await;
    let answer = message(service, thinking(ask(SUM))).await;
    assert_eq!(answer["type"], "message");
    assert_eq!(answer["role"], "assistant");
    assert_eq!(answer["model"], NAME);
    assert!(answer["id"].as_str().unwrap().starts_with("msg_"));
    let content = answer["content"].as_array().unwrap();
    assert_eq!(content[0]["thinking"], SUM_REASONING);
    assert!(!content[0]["signature"].as_str().unwrap().is_empty());
    assert_eq!(content[1], json!({"type": "text", "text": SUM_ANSWER}));
    assert_eq!(answer["stop_reason"], "end_turn");
    assert!(answer["usage"]["output_tokens_details"]["thinking_tokens"].as_u64().unwrap() > 0);

    let plain = message(service, ask(SUM)).await;
    assert_eq!(plain["content"], json!([{"type": "text", "text": SUM_ANSWER}]));
    let omitted = with(ask(SUM), json!({"thinking": {"type": "adaptive", "display": "omitted"}}));
    let omitted = message(service, omitted).await;
    assert_eq!(omitted["content"], plain["content"]);
    assert!(omitted["usage"]["output_tokens"].as_u64() > plain["usage"]["output_tokens"].as_u64());
}

#[tokio::test]
async fn a_stream_joins_to_the_whole_message() {
    let service = shared().await;
    for body in [
        thinking(ask(SUM)),
        ask("Write a short poem."),
        weather(),
        with(thinking(ask(SUM)), json!({"max_tokens": 5})),
        with(ask("Write a short poem."), json!({"temperature": 1.0, "top_k": 1})),
    ] {
        let whole = message(service, body.clone()).await;
        let events = named_events(service, PATH, body.clone()).await;
        assert_eq!(events[0]["type"], "message_start");
        assert_eq!(events.last().unwrap()["type"], "message_stop");
        assert_eq!(comparable(join(&events)), comparable(whole), "{body}");
    }
}

#[tokio::test]
async fn a_tool_is_used_and_its_result_too() {
    let service = shared().await;
    let answer = message(service, weather()).await;
    assert_eq!(answer["stop_reason"], "tool_use");
    let content = answer["content"].as_array().unwrap();
    let call = content.iter().find(|block| block["type"] == "tool_use").unwrap();
    assert_eq!(call["name"], "get_weather");
    assert_eq!(call["input"], json!({"city": "Oslo"}));
    let mut body = weather();
    let turns = body["messages"].as_array_mut().unwrap();
    turns.push(json!({"role": "assistant", "content": content}));
    let result = json!({"type": "tool_result", "tool_use_id": call["id"], "content": "{\"weather\": \"rain\"}"});
    turns.push(json!({"role": "user", "content": [result]}));
    let after = message(service, body).await;
    assert_eq!(after["stop_reason"], "end_turn");
    let text = after["content"][0]["text"].as_str().unwrap();
    assert!(text.contains("Oslo"), "{text}");

    let forced = with(weather(), json!({"tool_choice": {"type": "tool", "name": "get_weather"}}));
    let forced = message(service, forced).await;
    assert_eq!(forced["stop_reason"], "tool_use");
    let none = with(weather(), json!({"tool_choice": {"type": "none"}}));
    assert_ne!(message(service, none).await["stop_reason"], "tool_use");
}

#[tokio::test]
async fn an_answer_that_was_begun_goes_on_from_there() {
    let service = shared().await;
    let mut body = ask(SUM);
    let begun = json!({"role": "assistant", "content": "8"});
    body["messages"].as_array_mut().unwrap().push(begun);
    let answer = message(service, body).await;
    assert_eq!(answer["content"], json!([{"type": "text", "text": "5"}]));
}

#[tokio::test]
async fn it_ends_at_a_stop_sequence_or_its_length() {
    let service = shared().await;
    let whole = message(service, ask("Write a short poem.")).await;
    let text = whole["content"][0]["text"].as_str().unwrap();
    let word = text.split_whitespace().nth(3).unwrap();
    let stopped = with(ask("Write a short poem."), json!({"stop_sequences": [word]}));
    let stopped = message(service, stopped).await;
    assert_eq!(stopped["stop_reason"], "stop_sequence");
    assert_eq!(stopped["stop_sequence"], word);
    let kept = stopped["content"][0]["text"].as_str().unwrap();
    assert_eq!(kept, &text[..text.find(word).unwrap()]);
    let short = with(ask("Write a short poem."), json!({"max_tokens": 3}));
    let short = message(service, short).await;
    assert_eq!(short["stop_reason"], "max_tokens");
    assert_eq!(short["usage"]["output_tokens"], 3);
}

#[tokio::test]
async fn the_answer_has_the_form_of_a_schema() {
    let service = shared().await;
    let schema = json!({"type": "object", "properties": {"warm": {"type": "boolean"}}, "required": ["warm"], "additionalProperties": false});
    let format = json!({"output_config": {"format": {"type": "json_schema", "schema": schema}}});
    let answer = message(service, with(thinking(ask("Name a colour.")), format)).await;
    let content = answer["content"].as_array().unwrap();
    let text = content.last().unwrap()["text"].as_str().unwrap();
    let json: Value = serde_json::from_str(text).unwrap();
    assert!(json["warm"].is_boolean(), "{text}");
}

#[tokio::test]
async fn tokens_are_counted_as_they_are_used() {
    let service = shared().await;
    let body = with(weather(), json!({"system": "Be brief."}));
    let (status, count) = service.ask("/v1/messages/count_tokens", &body).await;
    assert_eq!(status, 200, "{count}");
    let usage = &message(service, body).await["usage"];
    let used = usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap();
    assert_eq!(count["input_tokens"], used);
}

#[tokio::test]
async fn errors_have_the_protocols_form() {
    let service = shared().await;
    let missing = json!({"messages": [{"role": "user", "content": "a"}]});
    let image = json!([{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}]}]);
    for (body, status, kind, words) in [
        (missing, 400, "invalid_request_error", "max_tokens"),
        (with(ask("a"), json!({"messages": []})), 400, "invalid_request_error", "messages"),
        (with(ask("a"), json!({"messages": image})), 400, "invalid_request_error", "messages[0].content[0]"),
        (with(ask("a"), json!({"temperature": 3})), 400, "invalid_request_error", "temperature"),
        (with(ask("a"), json!({"max_tokens": 100_000})), 400, "invalid_request_error", "context"),
        (with(ask("a"), json!({"model": "claude"})), 404, "not_found_error", "claude"),
    ] {
        let (found, answer) = service.ask(PATH, &body).await;
        assert_eq!(found, status, "{answer}");
        assert_eq!(answer["type"], "error");
        assert_eq!(answer["error"]["type"], kind);
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains(words), "{message}");
    }
    let wrong = crate::harness::client().get(format!("{}{PATH}", service.url)).send().await.unwrap();
    assert_eq!(wrong.status(), 405);
    assert_eq!(wrong.json::<Value>().await.unwrap()["type"], "error");
}

#[tokio::test]
async fn a_key_is_taken_from_the_protocols_header() {
    let config = ServerConfig {
        api_keys: ApiKeys::parse("sk-aaaaaaaa").unwrap(),
        ..config()
    };
    let service = Service::start(config, options()).await;
    let (status, answer) = service.ask(PATH, &ask("a")).await;
    assert_eq!(status, 401);
    assert_eq!(answer["type"], "error");
    assert_eq!(answer["error"]["type"], "authentication_error");
    let body = with(ask("a"), json!({"max_tokens": 1}));
    let admitted = service.post(PATH, &body).header("x-api-key", "sk-aaaaaaaa");
    assert_eq!(admitted.send().await.unwrap().status(), 200);
}
