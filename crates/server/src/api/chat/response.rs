//! The response of a chat that does not stream.

use axum::Json;
use glim_text::{Piece, TokenId};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::api::logprobs::{self, LogprobJson, Names};
use crate::api::usage::{Timings, UsageJson};
use crate::generation::Generation;
use crate::generation::update::{Delta, Finish, StopReason, TokenLogprob};
use crate::http::observe::part_id;
use crate::model::Model;

/// Response of `/v1/chat/completions`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatResponse {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    system_fingerprint: String,
    choices: Vec<ChatChoice>,
    usage: UsageJson,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<Timings>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_text: Option<String>,
}

/// An answer.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatChoice {
    index: u32,
    message: ChatMessage,
    logprobs: Option<ChatLogprobs>,
    finish_reason: &'static str,
    stop_reason: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
}

/// What the assistant says.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct ChatMessage {
    role: &'static str,
    /// Null if only tools are called.
    content: Option<String>,
    /// The reasoning, under the name that most clients read.
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    /// The same, under vLLM's newer name.
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToolCall>,
}

/// A call that the model wants made.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ToolCall {
    pub(crate) id: String,
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    pub(crate) function: FunctionCall,
}

/// The function, and its arguments as JSON in a string.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct FunctionCall {
    pub(crate) name: String,
    pub(crate) arguments: String,
}

/// Log-probabilities of all tokens of the answer, in order; reasoning and tags are tokens too.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatLogprobs {
    content: Vec<LogprobJson>,
}

/// A new id of a call.
pub(crate) fn call_id() -> String {
    part_id("call_")
}

/// The id of a chat's response.
pub(crate) fn response_id(generation: &Generation) -> String {
    format!("chatcmpl-{}", generation.id)
}

pub(crate) fn stop_reason(stop: Option<&StopReason>) -> Value {
    match stop {
        None => Value::Null,
        Some(StopReason::Text(text)) => Value::from(text.as_str()),
        Some(StopReason::Token(id)) => Value::from(id.0),
    }
}

pub(crate) fn ids(tokens: &[TokenId]) -> Vec<u32> {
    tokens.iter().map(|token| token.0).collect()
}

/// Log-probabilities, if they were asked for.
pub(crate) fn chat_logprobs(
    found: &[TokenLogprob],
    generation: &Generation,
    model: &Model,
) -> Option<ChatLogprobs> {
    if !generation.spec.logprobs() {
        return None;
    }
    let names = Names {
        model,
        as_ids: generation.spec.tokens_as_ids,
    };
    Some(ChatLogprobs {
        content: logprobs::chat(found, names),
    })
}

/// Prints whole answers.
pub(super) fn print(
    generation: &Generation,
    answers: Vec<(Delta, Finish)>,
    model: &Model,
) -> Json<ChatResponse> {
    let spec = &generation.spec;
    let choices = answers.into_iter().map(|(delta, finish)| ChatChoice {
        index: delta.choice,
        logprobs: chat_logprobs(&delta.logprobs, generation, model),
        finish_reason: finish.reason.as_str(),
        stop_reason: stop_reason(finish.stop.as_ref()),
        token_ids: spec.return_token_ids.then(|| ids(&delta.token_ids)),
        message: message(delta.pieces, spec.echo.as_deref()),
    });
    Json(ChatResponse {
        id: response_id(generation),
        object: "chat.completion",
        created: generation.created,
        model: generation.model.clone(),
        system_fingerprint: model.fingerprint.clone(),
        choices: choices.collect(),
        usage: generation.usage().into(),
        timings: spec.timings.then(|| Timings::of(generation)),
        prompt_token_ids: spec.return_token_ids.then(|| ids(spec.prompt())),
        prompt_text: spec.prompt_text.clone(),
    })
}

fn message(pieces: Vec<Piece>, echo: Option<&str>) -> ChatMessage {
    let mut content = echo.unwrap_or_default().to_owned();
    let mut reasoning = String::new();
    let mut tool_calls = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Content(text) => content += &text,
            Piece::Reasoning(text) => reasoning += &text,
            // A call that was cut off is none.
            Piece::CallStart { .. } | Piece::CallArguments(_) => {}
            Piece::CallEnd { name, arguments } => tool_calls.push(ToolCall {
                id: call_id(),
                kind: "function",
                function: FunctionCall {
                    name,
                    arguments: Value::Object(arguments).to_string(),
                },
            }),
        }
    }
    let reasoning = (!reasoning.is_empty()).then_some(reasoning);
    ChatMessage {
        role: "assistant",
        content: (!content.is_empty() || tool_calls.is_empty()).then_some(content),
        reasoning_content: reasoning.clone(),
        reasoning,
        tool_calls,
    }
}
