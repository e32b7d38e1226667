//! Who may ask: one of the operator's keys, as `Authorization: Bearer KEY` or `x-api-key: KEY`.
//!
//! Probes, metrics, the page and the description of the API are open: they hold nothing of any request, and who reads them (a
//! kubelet, Prometheus) has no key.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::api::messages;
use crate::error::{ApiError, ErrorKind};
use crate::state::AppState;

/// Paths that need no key.
const OPEN: &[&str] = &[
    "/",
    "/health",
    "/livez",
    "/ready",
    "/readyz",
    "/health/ready",
    "/startup",
    "/metrics",
    "/openapi.json",
    "/favicon.ico",
];
/// The page's files.
const OPEN_PREFIX: &str = "/web/";

/// Refuses requests without a key.
pub(crate) async fn check(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let keys = &state.config().api_keys;
    let path = request.uri().path();
    let is_open = keys.is_empty() || OPEN.contains(&path) || path.starts_with(OPEN_PREFIX);
    if is_open || key(request.headers()).is_some_and(|key| keys.admit(key)) {
        return next.run(request).await;
    }
    let message = match key(request.headers()) {
        None => "no API key: expected `Authorization: Bearer KEY` or `x-api-key: KEY`",
        Some(_) => "the API key is not one of this server's",
    };
    let error = ApiError::new(ErrorKind::Unauthorized, message).with_code("invalid_api_key");
    match path.starts_with(messages::PATH) {
        true => messages::error::respond(&error),
        false => error.into_response(),
    }
}

fn key(headers: &HeaderMap) -> Option<&str> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.to_str().ok()?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())
    });
    bearer.or_else(|| headers.get("x-api-key")?.to_str().ok())
}
