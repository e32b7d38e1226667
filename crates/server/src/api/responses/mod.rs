//! `/v1/responses`: OpenAI's Responses API over the chat's way of doing things, without storage.
//!
//! A request is translated into the chat request that it means ([`translate`]); what comes of it is printed as a response or as named
//! events ([`stream`]). `store` is accepted and answered with `false`; what needs storage (`previous_response_id`, `background`,
//! conversations, asking for a response again) is refused, with the reason.

pub(crate) mod reply;
mod stream;
mod translate;
pub(crate) mod wire;

use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};

use self::reply::{
    InputDetails, ObjectKind, OutputDetails, ResponseError, ResponseObject, ResponseUsage, Status,
};
use self::stream::{Ending, Events, Ids};
use self::wire::{InputTokens, ResponsesRequest, ToolChoice, Truncation};
use crate::api::chat::prepare;
use crate::api::fields::ToolMode;
use crate::error::{ApiError, ErrorKind};
use crate::generation::update::{FinishReason, Update};
use crate::generation::{self, Generation};
use crate::http::body::JsonBody;
use crate::http::observe::{Arrived, part_id};
use crate::http::sse::{self, Printer};
use crate::state::AppState;

/// The protocol's endpoints.
pub(crate) fn routes() -> Router<AppState> {
    Router::new()
        .route("/v1/responses", post(create))
        .route("/v1/responses/input_tokens", post(input_tokens))
        .route("/v1/responses/{id}", get(not_stored).delete(not_stored))
        .route("/v1/responses/{id}/input_items", get(not_stored))
        .route("/v1/responses/{id}/cancel", post(not_stored))
}

/// Answers a conversation.
async fn create(
    State(state): State<AppState>,
    Extension(Arrived(arrived)): Extension<Arrived>,
    JsonBody(request): JsonBody<ResponsesRequest>,
) -> Result<Response, ApiError> {
    let streams = request.stream == Some(true);
    let encrypted = translate::includes_encrypted(&request);
    let chat = translate::chat_request(&request)?;
    let spec = prepare::spec(&state, chat)
        .await
        .map_err(translate::rename)?;
    let mut generation = generation::start(&state, spec, arrived)
        .await
        .map_err(translate::rename)?;
    let response = empty_response(
        format!("resp_{}", generation.id),
        generation.created,
        generation.model.clone(),
        request,
    );
    let mut events = Events::new(response, encrypted, ids());
    if streams {
        let printer = ResponseStream {
            events,
            ending: None,
        };
        return Ok(sse::respond(&state, generation, printer));
    }
    let answers = generation.finish().await?;
    // There is one: the protocol has no `n`.
    let (delta, finish) = answers
        .into_iter()
        .next()
        .ok_or_else(ApiError::engine_down)?;
    for piece in delta.pieces {
        events.push(piece);
    }
    events.finish(ending(finish.reason), usage(&generation), now());
    Ok(Json(events.into_response()).into_response())
}

/// Counts the tokens of a prompt as the model would read it.
async fn input_tokens(
    State(state): State<AppState>,
    JsonBody(request): JsonBody<ResponsesRequest>,
) -> Result<Json<InputTokens>, ApiError> {
    let request = translate::chat_request(&request)?;
    state.model()?;
    let count = state.work(move |state| {
        state.check_model_name(request.model.as_deref())?;
        let prompt = prepare::prompt(state.model()?, &request)?;
        Ok(prompt.tokens.len())
    });
    Ok(Json(InputTokens {
        object: "response.input_tokens",
        input_tokens: count.await.map_err(translate::rename)?,
    }))
}

async fn not_stored() -> ApiError {
    ApiError::new(
        ErrorKind::NotFound,
        "this server is stateless and stores no responses: keep what it answers, and send the whole conversation each time",
    )
}

/// A response before anything was generated: what was asked, as it is repeated.
fn empty_response(
    id: String,
    created_at: u64,
    model: String,
    request: ResponsesRequest,
) -> ResponseObject {
    ResponseObject {
        id,
        object: ObjectKind::Response,
        created_at,
        completed_at: None,
        status: Status::InProgress,
        background: false,
        error: None,
        incomplete_details: None,
        instructions: request.instructions,
        max_output_tokens: request.max_output_tokens,
        metadata: request.metadata.unwrap_or_default(),
        model,
        output: Vec::new(),
        parallel_tool_calls: request.parallel_tool_calls != Some(false),
        previous_response_id: None,
        reasoning: request.reasoning.unwrap_or_default(),
        service_tier: "default",
        store: false,
        temperature: request.temperature,
        text: request.text.unwrap_or_default(),
        tool_choice: request
            .tool_choice
            .unwrap_or(ToolChoice::Mode(ToolMode::Auto)),
        tools: request.tools.unwrap_or_default(),
        top_p: request.top_p,
        truncation: Truncation::Disabled,
        usage: None,
        user: request.user,
    }
}

/// Ids of items and calls: a prefix and 24 hexadecimal digits.
fn ids() -> Ids {
    Box::new(|kind| part_id(&format!("{kind}_")))
}

fn ending(reason: FinishReason) -> Ending {
    match reason {
        FinishReason::Length => Ending::Cut,
        FinishReason::Stop | FinishReason::ToolCalls => Ending::Whole,
    }
}

fn usage(generation: &Generation) -> ResponseUsage {
    let usage = generation.usage();
    ResponseUsage {
        input_tokens: usage.prompt_tokens,
        input_tokens_details: InputDetails {
            cached_tokens: usage.cached_tokens,
            cache_write_tokens: 0,
        },
        output_tokens: usage.completion_tokens,
        output_tokens_details: OutputDetails {
            reasoning_tokens: usage.reasoning_tokens,
        },
        total_tokens: usage.prompt_tokens + usage.completion_tokens,
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Prints a stream.
struct ResponseStream {
    events: Events,
    ending: Option<Ending>,
}

impl ResponseStream {
    fn print(&mut self, out: &mut String) {
        for event in self.events.take() {
            sse::event(event.what.name(), &event, out);
        }
    }
}

impl Printer for ResponseStream {
    fn begin(&mut self, _: &Generation, out: &mut String) {
        self.print(out);
    }

    fn update(&mut self, update: Update, _: &Generation, out: &mut String) {
        match update {
            Update::Delta(delta) => delta
                .pieces
                .into_iter()
                .for_each(|piece| self.events.push(piece)),
            Update::Finished { finish, .. } => self.ending = Some(ending(finish.reason)),
            Update::Failed(error) => self.events.fail(ResponseError {
                code: error_code(error.kind),
                message: error.message,
            }),
        }
        self.print(out);
    }

    fn end(&mut self, generation: &Generation, out: &mut String) {
        if let Some(ending) = self.ending.take() {
            self.events.finish(ending, usage(generation), now());
            self.print(out);
        }
    }
}

/// The protocol's codes: they are few.
fn error_code(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Invalid => "invalid_prompt",
        ErrorKind::QueueFull => "rate_limit_exceeded",
        _ => "server_error",
    }
}
