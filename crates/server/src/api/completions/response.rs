//! The response of completions, whole or as a stream.

use axum::Json;
use glim_text::Piece;
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::api::chat::response::{ids, stop_reason};
use crate::api::fields::StreamOptions;
use crate::api::logprobs::{Names, finite};
use crate::api::usage::{Timings, UsageJson};
use crate::generation::Generation;
use crate::generation::update::{Delta, Finish, TokenLogprob, Update};
use crate::http::sse::{Printer, data};
use crate::model::Model;
use crate::state::AppState;

/// Response of `/v1/completions`, and each event of its stream.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CompletionResponse {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    system_fingerprint: String,
    choices: Vec<CompletionChoice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<UsageJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<Timings>,
}

/// An answer, or more of one.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CompletionChoice {
    index: u32,
    text: String,
    logprobs: Option<CompletionLogprobs>,
    finish_reason: Option<&'static str>,
    stop_reason: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<u32>>,
}

/// Log-probabilities in the older form: lists of one length.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct CompletionLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<f32>,
    /// By place: token → log-probability.
    #[schema(value_type = Vec<Object>)]
    top_logprobs: Vec<Map<String, Value>>,
    /// Where each token begins in the text, in characters.
    text_offset: Vec<usize>,
}

/// The id of a completion's response.
fn response_id(generation: &Generation) -> String {
    format!("cmpl-{}", generation.id)
}

fn text_of(pieces: Vec<Piece>) -> String {
    let content = |piece| match piece {
        Piece::Content(text) => Some(text),
        _ => None,
    };
    pieces.into_iter().filter_map(content).collect()
}

/// `offset`: characters before these tokens; it moves on.
fn logprobs(
    found: &[TokenLogprob],
    generation: &Generation,
    model: &Model,
    offset: &mut usize,
) -> Option<CompletionLogprobs> {
    if !generation.spec.logprobs() {
        return None;
    }
    let names = Names {
        model,
        as_ids: generation.spec.tokens_as_ids,
    };
    let mut out = CompletionLogprobs::default();
    for logprob in found {
        out.tokens.push(names.name(logprob.token).0);
        out.token_logprobs.push(finite(logprob.logprob));
        let top = logprob.top.iter();
        let top = top.map(|(id, logprob)| (names.name(*id).0, finite(*logprob).into()));
        out.top_logprobs.push(top.collect());
        out.text_offset.push(*offset);
        *offset += model.token(logprob.token).0.chars().count();
    }
    Some(out)
}

fn envelope(
    generation: &Generation,
    model: Option<&Model>,
    choices: Vec<CompletionChoice>,
) -> CompletionResponse {
    CompletionResponse {
        id: response_id(generation),
        object: "text_completion",
        created: generation.created,
        model: generation.model.clone(),
        system_fingerprint: model
            .map(|model| model.fingerprint.clone())
            .unwrap_or_default(),
        choices,
        usage: None,
        timings: None,
    }
}

/// Token ids of the prompt that a choice answers, if they were asked for.
fn prompt_ids(generation: &Generation, choice: u32) -> Option<Vec<u32>> {
    let spec = &generation.spec;
    let prompt = spec.prompts.get((choice / spec.n) as usize)?;
    spec.return_token_ids.then(|| ids(&prompt.prompt))
}

/// Prints whole answers.
pub(super) fn print(
    generation: &Generation,
    answers: Vec<(Delta, Finish)>,
    echoed: &[String],
    model: &Model,
) -> Json<CompletionResponse> {
    let spec = &generation.spec;
    let choices = answers.into_iter().map(|(delta, finish)| {
        let echo = echoed.get((delta.choice / spec.n) as usize);
        let echo = echo.map(String::as_str).unwrap_or_default();
        let mut offset = echo.chars().count();
        CompletionChoice {
            index: delta.choice,
            logprobs: logprobs(&delta.logprobs, generation, model, &mut offset),
            text: format!("{echo}{}", text_of(delta.pieces)),
            finish_reason: Some(finish.reason.as_str()),
            stop_reason: stop_reason(finish.stop.as_ref()),
            token_ids: spec.return_token_ids.then(|| ids(&delta.token_ids)),
            prompt_token_ids: prompt_ids(generation, delta.choice),
        }
    });
    let mut response = envelope(generation, Some(model), choices.collect());
    response.usage = Some(generation.usage().into());
    response.timings = spec.timings.then(|| Timings::of(generation));
    Json(response)
}

/// Prints the stream of a completion.
pub(super) struct CompletionStream {
    state: AppState,
    options: StreamOptions,
    echoed: Vec<String>,
    /// By choice: characters so far.
    offsets: Vec<usize>,
}

impl CompletionStream {
    pub(super) fn new(state: &AppState, options: StreamOptions, echoed: Vec<String>) -> Self {
        Self {
            state: state.clone(),
            options,
            echoed,
            offsets: Vec::new(),
        }
    }

    fn send(&self, generation: &Generation, choice: CompletionChoice, out: &mut String) {
        let mut chunk = envelope(generation, self.state.loaded_model(), vec![choice]);
        if self.options.continuous_usage_stats == Some(true) {
            chunk.usage = Some(generation.usage().into());
        }
        let is_last = chunk.choices.iter().any(|c| c.finish_reason.is_some());
        if is_last && generation.spec.timings {
            chunk.timings = Some(Timings::of(generation));
        }
        data(&chunk, out);
    }
}

fn empty(index: u32) -> CompletionChoice {
    CompletionChoice {
        index,
        text: String::new(),
        logprobs: None,
        finish_reason: None,
        stop_reason: Value::Null,
        token_ids: None,
        prompt_token_ids: None,
    }
}

impl Printer for CompletionStream {
    fn begin(&mut self, generation: &Generation, out: &mut String) {
        let spec = &generation.spec;
        for choice in 0..spec.choices() {
            let echo = self.echoed.get((choice / spec.n) as usize);
            let echo = echo.cloned().unwrap_or_default();
            self.offsets.push(echo.chars().count());
            // It also tells the client that the request has been accepted.
            let chunk = CompletionChoice {
                text: echo,
                prompt_token_ids: prompt_ids(generation, choice),
                ..empty(choice)
            };
            self.send(generation, chunk, out);
        }
    }

    fn update(&mut self, update: Update, generation: &Generation, out: &mut String) {
        match update {
            Update::Delta(delta) => {
                let index = delta.choice;
                let model = self.state.loaded_model();
                let offset = self.offsets.get_mut(index as usize);
                let logprobs = model.zip(offset).and_then(|(model, offset)| {
                    logprobs(&delta.logprobs, generation, model, offset)
                });
                let token_ids = ids(&delta.token_ids);
                let text = text_of(delta.pieces);
                if text.is_empty() && token_ids.is_empty() {
                    return;
                }
                let shows_tokens = generation.spec.return_token_ids || logprobs.is_some();
                if text.is_empty() && !shows_tokens {
                    return;
                }
                let chunk = CompletionChoice {
                    text,
                    logprobs: logprobs.filter(|logprobs| !logprobs.tokens.is_empty()),
                    token_ids: generation.spec.return_token_ids.then_some(token_ids),
                    ..empty(index)
                };
                self.send(generation, chunk, out);
            }
            Update::Finished { choice, finish } => {
                let chunk = CompletionChoice {
                    finish_reason: Some(finish.reason.as_str()),
                    stop_reason: stop_reason(finish.stop.as_ref()),
                    ..empty(choice)
                };
                self.send(generation, chunk, out);
            }
            Update::Failed(error) => data(&error.body(), out),
        }
    }

    fn end(&mut self, generation: &Generation, out: &mut String) {
        if self.options.include_usage == Some(true) {
            let mut chunk = envelope(generation, self.state.loaded_model(), Vec::new());
            chunk.usage = Some(generation.usage().into());
            data(&chunk, out);
        }
        out.push_str("data: [DONE]\n\n");
    }
}
