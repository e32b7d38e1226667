//! `glim serve` through Rust's OpenAI client, `async-openai`, whose types are stricter than most: a field of another type than
//! OpenAI's is an error there. Clients in other languages: `tests/clients/`.
#![allow(clippy::unwrap_used, reason = "tests")]

mod serving;

use async_openai::error::{ApiErrorResponse, OpenAIError};
use async_openai::types::chat::{
    ChatCompletionMessageToolCalls, ChatCompletionRequestMessage, CreateChatCompletionRequest, FinishReason,
};
use async_openai::types::completions::CreateCompletionRequest;
use futures_util::TryStreamExt;
use serde_json::{Value as Json, json};

use serving::Serving;

/// A request from its JSON, with the model and greedy sampling.
fn chat(mut request: Json) -> CreateChatCompletionRequest {
    request["model"] = "tiny-glm5".into();
    request["temperature"] = 0.into();
    serde_json::from_value(request).unwrap()
}

fn sum() -> Json {
    json!([{"role": "user", "content": "What is 27 + 58?"}])
}

fn weather() -> Json {
    json!({
        "messages": [{"role": "user", "content": "What is the weather in Oslo?"}],
        "tools": [{
            "type": "function",
            "function": {
                "name": "get_weather",
                "description": "The weather in a city",
                "parameters": {
                    "type": "object",
                    "properties": {"city": {"type": "string"}},
                    "required": ["city"],
                },
            },
        }],
    })
}

#[tokio::test]
async fn a_sum_is_answered_whole_and_as_a_stream() {
    let serving = Serving::start();
    let client = serving.client();
    let request = chat(json!({"messages": sum(), "stream_options": null}));
    let answer = client.chat().create(request.clone()).await.unwrap();
    assert_eq!(answer.choices[0].message.content.as_deref(), Some("85"));
    assert_eq!(answer.choices[0].finish_reason, Some(FinishReason::Stop));
    let usage = answer.usage.unwrap();
    assert_eq!(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens);
    assert!(usage.completion_tokens_details.unwrap().reasoning_tokens > Some(0));

    let stream = client.chat().create_stream(request).await.unwrap();
    let chunks: Vec<_> = stream.try_collect().await.unwrap();
    let text: String = chunks
        .iter()
        .flat_map(|chunk| &chunk.choices)
        .filter_map(|choice| choice.delta.content.as_deref())
        .collect();
    assert_eq!(text, "85");
    assert!(chunks.iter().all(|chunk| chunk.id == chunks[0].id));
    let ends: Vec<_> = chunks
        .iter()
        .flat_map(|chunk| &chunk.choices)
        .filter_map(|choice| choice.finish_reason)
        .collect();
    assert_eq!(ends, [FinishReason::Stop]);
}

#[tokio::test]
async fn a_tool_is_called_and_its_result_is_used() {
    let serving = Serving::start();
    let client = serving.client();
    let mut request = chat(weather());
    let answer = client.chat().create(request.clone()).await.unwrap();
    let choice = &answer.choices[0];
    assert_eq!(choice.finish_reason, Some(FinishReason::ToolCalls));
    let calls = choice.message.tool_calls.clone().unwrap();
    let [ChatCompletionMessageToolCalls::Function(call)] = &calls[..] else {
        panic!("{calls:?}");
    };
    assert_eq!(call.function.name, "get_weather");
    let arguments: Json = serde_json::from_str(&call.function.arguments).unwrap();
    assert_eq!(arguments, json!({"city": "Oslo"}));

    let stream = client.chat().create_stream(request.clone()).await.unwrap();
    let chunks: Vec<_> = stream.try_collect().await.unwrap();
    let joined: String = chunks
        .iter()
        .flat_map(|chunk| &chunk.choices)
        .flat_map(|choice| choice.delta.tool_calls.iter().flatten())
        .filter_map(|call| call.function.as_ref()?.arguments.as_deref())
        .collect();
    assert_eq!(joined, call.function.arguments);

    let turns: Vec<ChatCompletionRequestMessage> = serde_json::from_value(json!([
        {"role": "assistant", "tool_calls": calls},
        {"role": "tool", "tool_call_id": call.id, "content": "{\"weather\": \"rain\"}"},
    ]))
    .unwrap();
    request.messages.extend(turns);
    let after = client.chat().create(request).await.unwrap();
    let text = after.choices[0].message.content.clone().unwrap();
    assert!(text.contains("Oslo"), "{text}");
}

#[tokio::test]
async fn an_answer_has_the_form_of_a_schema() {
    let serving = Serving::start();
    let request = chat(json!({
        "messages": sum(),
        "response_format": {
            "type": "json_schema",
            "json_schema": {
                "name": "sum",
                "strict": true,
                "schema": {
                    "type": "object",
                    "properties": {"value": {"type": "integer"}},
                    "required": ["value"],
                    "additionalProperties": false,
                },
            },
        },
    }));
    let answer = serving.client().chat().create(request).await.unwrap();
    let text = answer.choices[0].message.content.as_deref().unwrap();
    let value: Json = serde_json::from_str(text).unwrap();
    assert!(value["value"].is_i64(), "{value}");
}

#[tokio::test]
async fn a_text_goes_on() {
    let serving = Serving::start();
    let request: CreateCompletionRequest = serde_json::from_value(json!({
        "model": "tiny-glm5", "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0, "logprobs": 2,
    }))
    .unwrap();
    let client = serving.client();
    let answer = client.completions().create(request.clone()).await.unwrap();
    assert!(answer.choices[0].text.starts_with(", a "), "{answer:?}");
    assert_eq!(answer.choices[0].logprobs.as_ref().unwrap().tokens.len(), 12);

    let stream = client.completions().create_stream(request).await.unwrap();
    let chunks: Vec<_> = stream.try_collect().await.unwrap();
    let text: String = chunks
        .iter()
        .flat_map(|chunk| &chunk.choices)
        .map(|choice| choice.text.as_str())
        .collect();
    assert_eq!(text, answer.choices[0].text);
}

#[tokio::test]
async fn errors_have_the_form_that_the_client_reads() {
    let serving = Serving::start();
    let client = serving.client();
    let refused = async |request: Json| -> ApiErrorResponse {
        let request = serde_json::from_value(request).unwrap();
        match client.chat().create(request).await {
            Err(OpenAIError::ApiError(error)) => error,
            other => panic!("{other:?}"),
        }
    };

    let hot = refused(json!({"model": "tiny-glm5", "messages": sum(), "temperature": 2.5})).await;
    assert_eq!(hot.status_code.as_u16(), 400);
    assert_eq!(hot.api_error.r#type.as_deref(), Some("invalid_request_error"));
    assert_eq!(hot.api_error.param.as_deref(), Some("temperature"));

    let unknown = refused(json!({"model": "gpt-4", "messages": sum()})).await;
    assert_eq!(unknown.status_code.as_u16(), 404);
    assert_eq!(unknown.api_error.code.as_deref(), Some("model_not_found"));
}
