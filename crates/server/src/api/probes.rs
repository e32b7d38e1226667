//! Probes, from memory: whether the process can make progress, and whether traffic should come here.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::lifecycle::Phase;
use crate::state::AppState;

/// What a probe says.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct Probe {
    /// ok, loading, draining, failed, stuck or full.
    status: &'static str,
    /// What is being done while the model loads.
    #[serde(skip_serializing_if = "Option::is_none")]
    phase: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_done: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_total: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    eta_s: Option<f64>,
    /// How long the engine's step has been running.
    #[serde(skip_serializing_if = "Option::is_none")]
    step_s: Option<f64>,
}

impl Probe {
    fn status(status: &'static str) -> Self {
        Self {
            status,
            ..Self::default()
        }
    }

    fn respond(self, code: StatusCode) -> Response {
        let mut response = (code, Json(self)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }
}

/// 200 while the process can make progress: it loads, the engine is idle, or its step does not take longer than it may.
pub(crate) async fn health(State(state): State<AppState>) -> Response {
    if state.lifecycle().phase() == Phase::Failed {
        return Probe::status("failed").respond(StatusCode::SERVICE_UNAVAILABLE);
    }
    let runs = state.lifecycle().step_runs();
    if let Some(runs) = runs.filter(|runs| *runs > state.config().step_timeout) {
        let probe = Probe {
            step_s: Some(runs.as_secs_f64()),
            ..Probe::status("stuck")
        };
        return probe.respond(StatusCode::SERVICE_UNAVAILABLE);
    }
    Probe::status("ok").respond(StatusCode::OK)
}

/// 200 if requests should come here.
pub(crate) async fn ready(State(state): State<AppState>) -> Response {
    let unready = |probe: Probe| probe.respond(StatusCode::SERVICE_UNAVAILABLE);
    match state.lifecycle().phase() {
        Phase::Loading(phase) => unready(loading(&state, phase)),
        Phase::Draining => unready(Probe::status("draining")),
        Phase::Failed => unready(Probe::status("failed")),
        Phase::Ready => {
            let full = state.config().max_queue;
            if full.is_some_and(|full| state.metrics().waiting() >= full) {
                return unready(Probe::status("full"));
            }
            Probe::status("ok").respond(StatusCode::OK)
        }
    }
}

/// 200 once requests were served: it stays so.
pub(crate) async fn startup(State(state): State<AppState>) -> Response {
    match (state.lifecycle().was_ready(), state.lifecycle().phase()) {
        (false, Phase::Loading(phase)) => {
            loading(&state, phase).respond(StatusCode::SERVICE_UNAVAILABLE)
        }
        (false, _) => Probe::status("failed").respond(StatusCode::SERVICE_UNAVAILABLE),
        (true, _) => Probe::status("ok").respond(StatusCode::OK),
    }
}

fn loading(state: &AppState, phase: &'static str) -> Probe {
    let progress = state.lifecycle().progress();
    Probe {
        phase: Some(phase),
        bytes_done: Some(progress.bytes_done),
        bytes_total: Some(progress.bytes_total),
        eta_s: progress.eta.map(|eta| eta.as_secs_f64()),
        ..Probe::status("loading")
    }
}

/// Metrics in Prometheus' text format.
pub(crate) async fn metrics(State(state): State<AppState>) -> Response {
    let text = state.metrics().render();
    let mut response = text.into_response();
    let kind = HeaderValue::from_static(crate::metrics::CONTENT_TYPE);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
