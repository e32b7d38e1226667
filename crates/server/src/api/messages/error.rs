//! Errors in Anthropic's form.

use axum::response::{IntoResponse, Response};

use crate::error::ApiError;

/// The response.
pub(crate) fn respond(error: &ApiError) -> Response {
    error.clone().into_response()
}
