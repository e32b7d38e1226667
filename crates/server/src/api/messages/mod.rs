//! `/v1/messages` and `/v1/messages/count_tokens`: Anthropic's Messages API over the chat's way of doing things.
//!
//! A request is translated into the chat request that it means ([`translate`]); what comes of it is printed as a message or as named
//! events ([`stream`]). Headers `anthropic-version` and `anthropic-beta` are accepted and of no effect. What the API has and this server
//! has not (images, tools that run on the service, stored files) is refused by its place in the request.

pub(crate) mod error;
pub(crate) mod reply;
mod stream;
mod translate;
pub(crate) mod wire;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Extension, Json, Router};

use self::error::MessagesError;
use self::reply::{OutputTokensDetails, StreamEvent, Usage};
use self::stream::{CallIds, Collector, Ending, Events, empty_message};
use self::wire::{MessagesRequest, TokenCount};
use crate::api::chat::prepare;
use crate::error::{ApiError, ErrorKind};
use crate::generation::update::{Finish, FinishReason, StopReason, Update};
use crate::generation::{self, Generation};
use crate::http::body::JsonBody;
use crate::http::observe::{Arrived, part_id};
use crate::http::sse::{self, Printer};
use crate::state::AppState;

/// Where the protocol's endpoints are.
pub(crate) const PATH: &str = "/v1/messages";

/// The protocol's endpoints.
pub(crate) fn routes() -> Router<AppState> {
    Router::new()
        .route(PATH, post(create).fallback(wrong_method))
        .route(
            "/v1/messages/count_tokens",
            post(count_tokens).fallback(wrong_method),
        )
}

/// Answers a conversation.
async fn create(
    State(state): State<AppState>,
    Extension(Arrived(arrived)): Extension<Arrived>,
    body: Result<JsonBody<MessagesRequest>, ApiError>,
) -> Result<Response, MessagesError> {
    let JsonBody(request) = body?;
    if request.max_tokens.is_none() {
        let message = "max_tokens is missing: expected the most tokens that the answer may take";
        return Err(ApiError::invalid("max_tokens", message).into());
    }
    let streams = request.stream == Some(true);
    let spec = prepare::spec(&state, translate::chat_request(request)?).await?;
    let mut generation = generation::start(&state, spec, arrived).await?;
    if streams {
        return Ok(sse::respond(&state, generation, MessageStream::default()));
    }
    let answers = generation.finish().await?;
    // There is one: the protocol has no `n`.
    let (delta, finish) = answers
        .into_iter()
        .next()
        .ok_or_else(ApiError::engine_down)?;
    let mut collector = Collector::new(message(&generation), call_ids());
    for piece in delta.pieces {
        collector.push(piece);
    }
    Ok(Json(collector.finish(ending(finish), usage(&generation))).into_response())
}

/// Counts the tokens of a prompt as the model would read it.
async fn count_tokens(
    State(state): State<AppState>,
    body: Result<JsonBody<MessagesRequest>, ApiError>,
) -> Result<Json<TokenCount>, MessagesError> {
    let JsonBody(request) = body?;
    let request = translate::chat_request(request)?;
    state.model()?;
    let count = state.work(move |state| {
        state.check_model_name(request.model.as_deref())?;
        let prompt = prepare::prompt(state.model()?, &request)?;
        Ok(prompt.tokens.len())
    });
    Ok(Json(TokenCount {
        input_tokens: count.await?,
    }))
}

async fn wrong_method() -> MessagesError {
    let message = "this path is asked by POST: /openapi.json says how";
    ApiError::new(ErrorKind::WrongMethod, message).into()
}

fn message(generation: &Generation) -> reply::Message {
    empty_message(
        format!("msg_{}", generation.id),
        generation.model.clone(),
        generation.usage().prompt_tokens,
    )
}

/// Ids of calls: `toolu_` and 24 hexadecimal digits.
fn call_ids() -> CallIds {
    Box::new(|| part_id("toolu_"))
}

fn ending(finish: Finish) -> Ending {
    match (finish.reason, finish.stop) {
        (FinishReason::Length, _) => Ending::Cut,
        (_, Some(StopReason::Text(text))) => Ending::StopSequence(text),
        _ => Ending::Whole,
    }
}

fn usage(generation: &Generation) -> Usage {
    let usage = generation.usage();
    Usage {
        input_tokens: usage.prompt_tokens.saturating_sub(usage.cached_tokens),
        cache_read_input_tokens: usage.cached_tokens,
        cache_creation_input_tokens: 0,
        output_tokens: usage.completion_tokens,
        output_tokens_details: OutputTokensDetails {
            thinking_tokens: usage.reasoning_tokens,
        },
    }
}

/// Prints a stream.
#[derive(Default)]
struct MessageStream {
    events: Option<Events>,
    ending: Option<Ending>,
}

fn print(events: impl IntoIterator<Item = StreamEvent>, out: &mut String) {
    for event in events {
        sse::event(event.name(), &event, out);
    }
}

impl Printer for MessageStream {
    fn begin(&mut self, generation: &Generation, out: &mut String) {
        let (events, first) = Events::new(message(generation), call_ids());
        self.events = Some(events);
        print(first, out);
    }

    fn update(&mut self, update: Update, _: &Generation, out: &mut String) {
        match update {
            Update::Delta(delta) => {
                let Some(events) = &mut self.events else {
                    return;
                };
                for piece in delta.pieces {
                    print(events.push(piece), out);
                }
            }
            Update::Finished { finish, .. } => self.ending = Some(ending(finish)),
            Update::Failed(error) => {
                let error = MessagesError(error).object();
                print([StreamEvent::Error { error }], out);
            }
        }
    }

    fn end(&mut self, generation: &Generation, out: &mut String) {
        if let (Some(events), Some(ending)) = (self.events.take(), self.ending.take()) {
            print(events.finish(ending, usage(generation)), out);
        }
    }

    fn ping(&mut self, out: &mut String) {
        print([StreamEvent::Ping {}], out);
    }
}
