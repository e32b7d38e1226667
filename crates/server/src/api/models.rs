//! `/v1/models`: what is served. While the model loads this is 503, since routers take an answer for readiness.

use axum::Json;
use axum::extract::{Path, State};
use serde::Serialize;
use utoipa::ToSchema;

use crate::error::ApiError;
use crate::state::AppState;

/// Response of `/v1/models`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelList {
    object: &'static str,
    data: Vec<ModelCard>,
}

/// A served model, by one of its names.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelCard {
    id: String,
    object: &'static str,
    /// Unix time at which the server started, in seconds.
    created: u64,
    owned_by: &'static str,
    /// The name that it is another name for.
    root: String,
    parent: Option<String>,
    /// Longest sequence, prompt and answer, in tokens.
    max_model_len: usize,
    status: &'static str,
}

fn cards(state: &AppState) -> Result<Vec<ModelCard>, ApiError> {
    let model = state.model()?;
    let names = &state.config().model_names;
    let root = names.first().cloned().unwrap_or_default();
    let card = |id: &String| ModelCard {
        id: id.clone(),
        object: "model",
        created: state.started_unix(),
        owned_by: "glim",
        root: root.clone(),
        parent: (*id != root).then(|| root.clone()),
        max_model_len: model.context,
        status: "loaded",
    };
    Ok(names.iter().map(card).collect())
}

/// All names.
pub(crate) async fn list(State(state): State<AppState>) -> Result<Json<ModelList>, ApiError> {
    let data = cards(&state)?;
    Ok(Json(ModelList {
        object: "list",
        data,
    }))
}

/// One of them. Names may hold slashes.
pub(crate) async fn one(
    State(state): State<AppState>,
    Path(name): Path<String>,
) -> Result<Json<ModelCard>, ApiError> {
    state.model()?;
    let name = state.check_model_name(Some(&name))?;
    let card = cards(&state)?.into_iter().find(|card| card.id == name);
    card.map(Json).ok_or_else(ApiError::loading)
}
