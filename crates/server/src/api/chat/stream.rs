//! The response of a chat that streams: chunks of deltas, joined they are the response that does not.

use glim_text::Piece;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::response::{ChatLogprobs, call_id, chat_logprobs, ids, response_id, stop_reason};
use crate::api::fields::StreamOptions;
use crate::api::usage::{Timings, UsageJson};
use crate::generation::Generation;
use crate::generation::update::{Delta, Finish, Update};
use crate::http::sse::{Printer, data};
use crate::state::AppState;

/// A chunk of a chat's stream.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatChunk {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    system_fingerprint: String,
    choices: Vec<ChunkChoice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<UsageJson>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<Timings>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_text: Option<String>,
}

/// More of one answer.
#[derive(Debug, Serialize, ToSchema)]
struct ChunkChoice {
    index: u32,
    delta: ChunkDelta,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
}

/// What is new.
#[derive(Debug, Default, Serialize, ToSchema)]
struct ChunkDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<CallDelta>,
}

/// A call begins, or more of its arguments.
#[derive(Debug, Serialize, ToSchema)]
struct CallDelta {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    function: FunctionDelta,
}

#[derive(Debug, Serialize, ToSchema)]
struct FunctionDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    arguments: String,
}

/// Prints a chat's stream.
pub(super) struct ChatStream {
    state: AppState,
    options: StreamOptions,
    /// By choice: calls that have begun.
    calls: Vec<usize>,
}

impl ChatStream {
    pub(super) fn new(state: &AppState, options: StreamOptions) -> Self {
        Self {
            state: state.clone(),
            options,
            calls: Vec::new(),
        }
    }

    fn chunk(&self, generation: &Generation, choices: Vec<ChunkChoice>) -> ChatChunk {
        let running = self.options.continuous_usage_stats == Some(true);
        let wanted = self.options.include_usage == Some(true);
        let usage = running.then(|| Some(generation.usage().into()));
        let model = self.state.loaded_model();
        ChatChunk {
            id: response_id(generation),
            object: "chat.completion.chunk",
            created: generation.created,
            model: generation.model.clone(),
            system_fingerprint: model
                .map(|model| model.fingerprint.clone())
                .unwrap_or_default(),
            choices,
            usage: usage.or_else(|| wanted.then_some(None)),
            timings: None,
            prompt_token_ids: None,
            prompt_text: None,
        }
    }

    fn delta(&mut self, delta: Delta, generation: &Generation, out: &mut String) {
        let index = delta.choice;
        let model = self.state.loaded_model();
        let mut logprobs =
            model.and_then(|model| chat_logprobs(&delta.logprobs, generation, model));
        // A chunk without tokens has none to speak of.
        logprobs = logprobs.filter(|_| !delta.logprobs.is_empty());
        let tokens = generation.spec.return_token_ids && !delta.token_ids.is_empty();
        let mut token_ids = tokens.then(|| ids(&delta.token_ids));
        let mut deltas: Vec<ChunkDelta> = delta
            .pieces
            .into_iter()
            .filter_map(|piece| self.piece(index, piece))
            .collect();
        if deltas.is_empty() && (logprobs.is_some() || token_ids.is_some()) {
            deltas.push(ChunkDelta::default());
        }
        for delta in deltas {
            let choice = ChunkChoice {
                index,
                delta,
                logprobs: logprobs.take(),
                finish_reason: None,
                stop_reason: None,
                token_ids: token_ids.take(),
            };
            data(&self.chunk(generation, vec![choice]), out);
        }
    }

    fn piece(&mut self, choice: u32, piece: Piece) -> Option<ChunkDelta> {
        let delta = ChunkDelta::default();
        Some(match piece {
            Piece::Content(text) => ChunkDelta {
                content: Some(text),
                ..delta
            },
            Piece::Reasoning(text) => ChunkDelta {
                reasoning_content: Some(text.clone()),
                reasoning: Some(text),
                ..delta
            },
            Piece::CallStart { name } => {
                let calls = self.calls.get_mut(choice as usize)?;
                *calls += 1;
                let call = CallDelta {
                    index: *calls - 1,
                    id: Some(call_id()),
                    kind: Some("function"),
                    function: FunctionDelta {
                        name: Some(name),
                        arguments: String::new(),
                    },
                };
                ChunkDelta {
                    tool_calls: vec![call],
                    ..delta
                }
            }
            Piece::CallArguments(arguments) => {
                let calls = self.calls.get(choice as usize)?;
                let call = CallDelta {
                    index: calls.checked_sub(1)?,
                    id: None,
                    kind: None,
                    function: FunctionDelta {
                        name: None,
                        arguments,
                    },
                };
                ChunkDelta {
                    tool_calls: vec![call],
                    ..delta
                }
            }
            Piece::CallEnd { .. } => return None,
        })
    }

    fn finish(&self, choice: u32, finish: &Finish, generation: &Generation, out: &mut String) {
        let last = ChunkChoice {
            index: choice,
            delta: ChunkDelta::default(),
            logprobs: None,
            finish_reason: Some(finish.reason.as_str()),
            stop_reason: Some(stop_reason(finish.stop.as_ref())),
            token_ids: None,
        };
        let mut chunk = self.chunk(generation, vec![last]);
        chunk.timings = generation.spec.timings.then(|| Timings::of(generation));
        data(&chunk, out);
    }
}

impl Printer for ChatStream {
    fn begin(&mut self, generation: &Generation, out: &mut String) {
        let spec = &generation.spec;
        self.calls = vec![0; spec.n as usize];
        for index in 0..spec.n {
            let delta = ChunkDelta {
                role: Some("assistant"),
                content: Some(spec.echo.clone().unwrap_or_default()),
                ..ChunkDelta::default()
            };
            let choice = ChunkChoice {
                index,
                delta,
                logprobs: None,
                finish_reason: None,
                stop_reason: None,
                token_ids: None,
            };
            let mut chunk = self.chunk(generation, vec![choice]);
            if index == 0 {
                chunk.prompt_token_ids = spec.return_token_ids.then(|| ids(spec.prompt()));
                chunk.prompt_text = spec.prompt_text.clone();
            }
            data(&chunk, out);
        }
    }

    fn update(&mut self, update: Update, generation: &Generation, out: &mut String) {
        match update {
            Update::Delta(delta) => self.delta(delta, generation, out),
            Update::Finished { choice, finish } => self.finish(choice, &finish, generation, out),
            Update::Failed(error) => data(&error.body(), out),
        }
    }

    fn end(&mut self, generation: &Generation, out: &mut String) {
        if self.options.include_usage == Some(true) {
            let mut chunk = self.chunk(generation, Vec::new());
            chunk.usage = Some(Some(generation.usage().into()));
            data(&chunk, out);
        }
        out.push_str("data: [DONE]\n\n");
    }
}
