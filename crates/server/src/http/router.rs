//! Which path leads where.

use axum::Router;
use axum::http::{HeaderName, HeaderValue, Method, header};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::Response;
use axum::routing::{get, post};
use tower_http::cors::{AllowOrigin, CorsLayer};

use super::{auth, observe};
use crate::api::{chat, completions, info, messages, models, openapi, probes, responses, tokenize};
use crate::error::{ApiError, ErrorKind};
use crate::state::AppState;

/// All routes, with what goes around every request.
pub(crate) fn router(state: AppState) -> Router {
    let config = state.config();
    let mut routes = Router::new()
        .route("/v1/chat/completions", post(chat::complete))
        .route("/v1/completions", post(completions::complete))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*model}", get(models::one))
        .route("/health", get(probes::health))
        .route("/livez", get(probes::health))
        .route("/ready", get(probes::ready))
        .route("/readyz", get(probes::ready))
        .route("/health/ready", get(probes::ready))
        .route("/startup", get(probes::startup))
        .route("/metrics", get(probes::metrics))
        .route("/openapi.json", get(openapi::serve))
        .merge(messages::routes())
        .merge(responses::routes())
        .merge(tokenize::routes())
        .merge(info::routes());
    if config.web_page {
        routes = routes.merge(crate::web::routes());
    }
    let cors = cors(&config.cors_origins);
    let routes = routes
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(state.clone(), auth::check));
    let routes = match cors {
        Some(cors) => routes.layer(cors),
        None => routes,
    };
    routes
        .layer(from_fn(safe_headers))
        .layer(from_fn_with_state(state.clone(), observe::observe))
        .with_state(state)
}

async fn unknown_path() -> ApiError {
    ApiError::new(
        ErrorKind::NotFound,
        "there is nothing at this path: /openapi.json lists what there is",
    )
}

async fn wrong_method() -> ApiError {
    ApiError::new(
        ErrorKind::WrongMethod,
        "this path is not asked by this method: /openapi.json says how",
    )
}

/// Browsers shall not guess what a response is.
async fn safe_headers(request: axum::extract::Request, next: axum::middleware::Next) -> Response {
    let mut response = next.run(request).await;
    response.headers_mut().insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    response
}

/// Pages of these origins may ask and read answers; none if there are none.
fn cors(origins: &[String]) -> Option<CorsLayer> {
    let allowed = match origins {
        [] => return None,
        [any] if any == "*" => AllowOrigin::any(),
        origins => AllowOrigin::list(
            origins
                .iter()
                .filter_map(|origin| HeaderValue::from_str(origin).ok()),
        ),
    };
    let headers = [
        header::AUTHORIZATION,
        header::CONTENT_TYPE,
        HeaderName::from_static("x-api-key"),
        HeaderName::from_static("x-request-id"),
        HeaderName::from_static("anthropic-version"),
        HeaderName::from_static("anthropic-beta"),
    ];
    let layer = CorsLayer::new()
        .allow_origin(allowed)
        .allow_methods([Method::GET, Method::POST])
        .allow_headers(headers)
        .expose_headers([HeaderName::from_static("x-request-id"), header::RETRY_AFTER]);
    Some(layer)
}
