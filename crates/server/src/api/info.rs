//! `/version` and `/info`: what runs here, and how.

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use serde::Serialize;
use utoipa::ToSchema;

use crate::error::ApiError;
use crate::model::ModelInfo;
use crate::state::AppState;

/// The endpoints.
pub(crate) fn routes() -> Router<AppState> {
    Router::new()
        .route("/version", get(version))
        .route("/info", get(info))
}

/// Response of `/version`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Version {
    /// Version of the program.
    #[schema(value_type = String)]
    version: &'static str,
}

/// Response of `/info`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Info {
    /// Names that requests may call the model by; the first is its own.
    names: Vec<String>,
    #[serde(flatten)]
    model: ModelInfo,
    /// SHA-256 of the chat template's source, in hexadecimal; null if there is none.
    #[schema(required = true)]
    template_sha256: Option<String>,
    /// Whether the template has a variable that turns reasoning on and off, and one for its degree.
    template_knows: TemplateKnows,
    /// Longest sequence, prompt and answer, in tokens.
    max_model_len: usize,
    /// Rows of the head.
    vocab_size: usize,
    /// Tokens in a block of the cache.
    block_size: usize,
    /// Blocks of the cache.
    blocks: usize,
    /// Unix time at which the server started, in seconds.
    started: u64,
}

/// Variables of the chat template that fields of requests set.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TemplateKnows {
    enable_thinking: bool,
    reasoning_effort: bool,
}

async fn version() -> Json<Version> {
    Json(Version {
        version: env!("CARGO_PKG_VERSION"),
    })
}

async fn info(State(state): State<AppState>) -> Result<Json<Info>, ApiError> {
    let model = state.model()?;
    Ok(Json(Info {
        names: state.config().model_names.clone(),
        model: model.info.clone(),
        template_sha256: model.template_hash.clone(),
        template_knows: TemplateKnows {
            enable_thinking: model.knows_enable_thinking,
            reasoning_effort: model.knows_reasoning_effort,
        },
        max_model_len: model.context,
        vocab_size: model.vocab_size,
        block_size: model.block_size,
        blocks: model.blocks,
        started: state.started_unix(),
    }))
}
