//! `/v1/chat/completions`.

pub(crate) mod prepare;
pub(crate) mod request;
pub(crate) mod response;
pub(crate) mod stream;

use axum::Extension;
use axum::extract::State;
use axum::response::{IntoResponse, Response};

use self::request::ChatRequest;
use crate::api::fields::StreamOptions;
use crate::error::ApiError;
use crate::generation;
use crate::http::body::JsonBody;
use crate::http::observe::Arrived;
use crate::http::sse;
use crate::state::AppState;

/// Answers a conversation.
pub(crate) async fn complete(
    State(state): State<AppState>,
    Extension(Arrived(arrived)): Extension<Arrived>,
    JsonBody(request): JsonBody<ChatRequest>,
) -> Result<Response, ApiError> {
    let streams = request.stream == Some(true);
    let options = stream_options(streams, request.stream_options)?;
    let spec = prepare::spec(&state, request).await?;
    let mut generation = generation::start(&state, spec, arrived).await?;
    if streams {
        let printer = stream::ChatStream::new(&state, options);
        return Ok(sse::respond(&state, generation, printer));
    }
    let answers = generation.finish().await?;
    let model = state.model()?;
    Ok(response::print(&generation, answers, model).into_response())
}

/// What a stream has besides text; these options mean nothing without one.
pub(crate) fn stream_options(
    streams: bool,
    options: Option<StreamOptions>,
) -> Result<StreamOptions, ApiError> {
    match options {
        Some(_) if !streams => Err(ApiError::invalid(
            "stream_options",
            "stream_options is set but stream is not: leave it out, or set stream to true",
        )),
        options => Ok(options.unwrap_or_default()),
    }
}
