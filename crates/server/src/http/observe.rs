//! Around every request: its id, its span, a line of the log, and the metrics of HTTP.

use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use tracing::Instrument;

use crate::state::AppState;

/// Names a request, in both directions.
const REQUEST_ID: &str = "x-request-id";
/// Longest id that is taken over.
const MAX_ID: usize = 128;

/// When a request arrived.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrived(pub(crate) Instant);

/// Wraps a request.
pub(crate) async fn observe(
    State(state): State<AppState>,
    mut request: Request,
    next: Next,
) -> Response {
    let arrived = Instant::now();
    let id = given_id(request.headers()).unwrap_or_else(new_id);
    let method = request.method().clone();
    let path = request.extensions().get::<MatchedPath>().cloned();
    let path = path.map_or_else(|| "none".to_owned(), |path| path.as_str().to_owned());
    let span = tracing::info_span!("request", request_id = id, %method, path);
    crate::otel::continue_trace(&span, request.headers());
    request.extensions_mut().insert(Arrived(arrived));

    let mut response = next.run(request).instrument(span.clone()).await;

    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    let status = response.status().as_u16();
    let took = arrived.elapsed();
    state.metrics().http(&path, method.as_str(), status, took);
    let _in_span = span.enter();
    let ms = took.as_micros() as f64 / 1e3;
    match is_probe(&path) {
        true => tracing::debug!(status, ms, "response"),
        false => tracing::info!(status, ms, "response"),
    }
    response
}

/// What is asked every few seconds is not worth a line each time.
fn is_probe(path: &str) -> bool {
    let probes = [
        "/health",
        "/livez",
        "/ready",
        "/readyz",
        "/health/ready",
        "/startup",
        "/metrics",
    ];
    probes.contains(&path)
}

/// An id that the client has given, if it can stand in a header and a log.
fn given_id(headers: &HeaderMap) -> Option<String> {
    let id = headers.get(REQUEST_ID)?.to_str().ok()?;
    let fits = (1..=MAX_ID).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic());
    fits.then(|| id.to_owned())
}

/// A new name of a part of an answer: this prefix and 24 hexadecimal digits, as OpenAI's and Anthropic's are.
pub(crate) fn part_id(prefix: &str) -> String {
    let mut digits = uuid::Uuid::new_v4().simple().to_string();
    digits.truncate(24);
    format!("{prefix}{digits}")
}

/// A new id; later ones sort after earlier ones.
pub(crate) fn new_id() -> String {
    uuid::Uuid::now_v7().simple().to_string()
}
