//! Streams: joined, they are what the same request gives whole.

use serde_json::{Value, json};

use crate::harness::{parse_events, question, shared, weather_tool, with};

/// The message, log-probabilities and token ids that a stream's deltas of a choice make.
fn join(events: &[Value], index: u64) -> (Value, Value) {
    let mut message = json!({"role": "assistant"});
    let mut content = String::new();
    let mut reasoning = String::new();
    let mut calls: Vec<Value> = Vec::new();
    let (mut logprobs, mut ids) = (Vec::new(), Vec::new());
    let mut end = Value::Null;
    let choices = events
        .iter()
        .filter_map(|event| event["choices"].as_array())
        .flatten()
        .filter(|choice| choice["index"] == index);
    for choice in choices {
        assert_eq!(end, Value::Null, "nothing follows the end");
        let delta = &choice["delta"];
        content += delta["content"].as_str().unwrap_or_default();
        reasoning += delta["reasoning_content"].as_str().unwrap_or_default();
        assert_eq!(delta.get("reasoning"), delta.get("reasoning_content"));
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let at = call["index"].as_u64().unwrap() as usize;
            if at == calls.len() {
                assert_eq!(call["type"], "function");
                assert_eq!(call["function"]["arguments"], "");
                calls.push(call.clone());
            } else {
                // The name comes once, and whole.
                assert!(call.get("id").is_none() && call["function"].get("name").is_none());
                let arguments = calls[at]["function"]["arguments"].as_str().unwrap();
                let more = call["function"]["arguments"].as_str().unwrap();
                calls[at]["function"]["arguments"] = (arguments.to_owned() + more).into();
            }
        }
        logprobs.extend(choice["logprobs"]["content"].as_array().cloned().unwrap_or_default());
        ids.extend(choice["token_ids"].as_array().cloned().unwrap_or_default());
        if !choice["finish_reason"].is_null() {
            end = json!([choice["finish_reason"], choice["stop_reason"]]);
        }
    }
    for call in &mut calls {
        let call = call.as_object_mut().unwrap();
        call.remove("id");
        call.remove("index");
    }
    if !reasoning.is_empty() {
        message["reasoning_content"] = reasoning.clone().into();
        message["reasoning"] = reasoning.into();
    }
    message["content"] = match content.is_empty() && !calls.is_empty() {
        true => Value::Null,
        false => content.into(),
    };
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    (message, json!([end, logprobs, ids]))
}

/// The same of a whole response.
fn whole(choice: &Value) -> (Value, Value) {
    let mut message = choice["message"].clone();
    for call in message["tool_calls"].as_array_mut().into_iter().flatten() {
        call.as_object_mut().unwrap().remove("id");
    }
    let logprobs = choice["logprobs"]["content"].as_array().cloned();
    let ids = choice["token_ids"].as_array().cloned();
    let end = json!([choice["finish_reason"], choice["stop_reason"]]);
    let rest = json!([end, logprobs.unwrap_or_default(), ids.unwrap_or_default()]);
    (message, rest)
}

async fn check(body: Value) {
    let service = shared().await;
    let answer = service.chat(body.clone()).await;
    let streamed = with(body.clone(), json!({"stream_options": {"include_usage": true}}));
    let events = service.events("/v1/chat/completions", streamed).await;
    assert_eq!(events.last().unwrap(), "[DONE]");
    for choice in answer["choices"].as_array().unwrap() {
        let index = choice["index"].as_u64().unwrap();
        assert_eq!(join(&events, index), whole(choice), "{body}");
    }
    // Usage is the last chunk's, which has no choices; all before have a null.
    let chunks = &events[..events.len() - 1];
    let (last, before) = chunks.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    for name in ["prompt_tokens", "completion_tokens", "total_tokens"] {
        assert_eq!(last["usage"][name], answer["usage"][name], "{body}");
    }
    assert!(before.iter().all(|chunk| chunk["usage"].is_null()));
    for chunk in chunks {
        assert_eq!(chunk["id"], chunks[0]["id"]);
        assert_eq!(chunk["created"], chunks[0]["created"]);
        assert_eq!(chunk["object"], "chat.completion.chunk");
    }
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
}

#[tokio::test]
async fn joined_they_are_the_whole_for_eight_seeds() {
    for seed in 0..8 {
        check(with(
            question("Tell me a story."),
            json!({"temperature": 1.2, "seed": seed, "max_tokens": 40, "logprobs": true,
                   "top_logprobs": 2, "return_token_ids": true}),
        ))
        .await;
    }
}

#[tokio::test]
async fn reasoning_calls_choices_and_stops_join_too() {
    let reasoned = question("What is 27 + 58?");
    let call = with(question("What is the weather in Oslo?"), json!({"tools": weather_tool()}));
    let story = with(
        question("Tell me a story."),
        json!({"temperature": 1.0, "seed": 3, "max_tokens": 40}),
    );
    for body in [
        reasoned.clone(),
        with(reasoned.clone(), json!({"include_reasoning": false})),
        with(reasoned.clone(), json!({"max_tokens": 5})),
        call.clone(),
        with(call.clone(), json!({"tool_choice": "required"})),
        with(call.clone(), json!({"tool_choice": {"type": "function", "function": {"name": "get_weather"}}})),
        with(story.clone(), json!({"n": 3})),
        with(story.clone(), json!({"stop": ["the", " a "]})),
        with(story.clone(), json!({"stop": " was", "include_stop_str_in_output": true})),
        with(story, json!({"guided_regex": "[a-z]{3,9} é[0-9]+ 😀!"})),
    ] {
        check(body).await;
    }
}

#[tokio::test]
async fn usage_can_stand_in_every_chunk() {
    let service = shared().await;
    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    let body = with(question("What is 27 + 58?"), json!({"stream_options": options}));
    let events = service.events("/v1/chat/completions", body).await;
    let counts: Vec<u64> = events[..events.len() - 1]
        .iter()
        .map(|chunk| chunk["usage"]["completion_tokens"].as_u64().unwrap())
        .collect();
    assert!(counts.is_sorted() && counts[0] == 0 && *counts.last().unwrap() > 5, "{counts:?}");
}

#[tokio::test]
async fn options_of_a_stream_need_one() {
    let body = with(question("x"), json!({"stream_options": {"include_usage": true}}));
    let (param, _) = shared().await.refused("/v1/chat/completions", body).await;
    assert_eq!(param, "stream_options");
}

#[test]
fn comments_are_no_events() {
    assert_eq!(parse_events(": ping\n\ndata: {}\n\n"), [json!({})]);
}
