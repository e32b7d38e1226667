//! What a request is refused with, or fails with: one type, printed as OpenAI's error object.
//!
//! Messages never hold a path, a prompt or a key. What went wrong inside is in the log, under the request's id.

use std::time::Duration;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use glim_engine::EngineError;
use glim_text::TextError;
use serde::Serialize;
use utoipa::ToSchema;

/// Seconds after which a refused client may try again.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// The same while the model loads.
const RETRY_AFTER_LOADING: Duration = Duration::from_secs(5);

/// What kind of error it is: decides the status and the `type` of the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ErrorKind {
    /// The request cannot be served as it is: 400.
    Invalid,
    /// A missing or wrong key: 401.
    Unauthorized,
    /// An unknown path or model: 404.
    NotFound,
    /// A known path, but not by this method: 405.
    WrongMethod,
    /// The client took too long to send its request: 408.
    TooSlow,
    /// The body is beyond the limit: 413.
    TooLarge,
    /// The queue is full: 429.
    QueueFull,
    /// A bug, or a model that is broken: 500.
    Internal,
    /// Loading, draining, or the engine is down: 503.
    Unavailable,
    /// A limit of time of ours: 504.
    Timeout,
}

impl ErrorKind {
    /// HTTP status.
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::Invalid => StatusCode::BAD_REQUEST,
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::WrongMethod => StatusCode::METHOD_NOT_ALLOWED,
            Self::TooSlow => StatusCode::REQUEST_TIMEOUT,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::QueueFull => StatusCode::TOO_MANY_REQUESTS,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::Timeout => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    /// `type` of the body.
    fn name(self) -> &'static str {
        match self {
            Self::Invalid | Self::WrongMethod | Self::TooLarge => "invalid_request_error",
            Self::Unauthorized => "authentication_error",
            Self::NotFound => "not_found_error",
            Self::TooSlow | Self::Timeout => "timeout_error",
            Self::QueueFull => "rate_limit_error",
            Self::Internal => "server_error",
            Self::Unavailable => "unavailable_error",
        }
    }
}

/// Why a request got no answer, or not a whole one.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub(crate) struct ApiError {
    pub(crate) kind: ErrorKind,
    /// For people: what was found, what was expected, what to do.
    pub(crate) message: String,
    /// The field of the request that it is about.
    pub(crate) param: Option<String>,
    /// For programs.
    pub(crate) code: Option<&'static str>,
    /// When to try again.
    pub(crate) retry_after: Option<Duration>,
}

/// The body of an error.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ErrorBody {
    error: ErrorObject,
}

/// What went wrong.
#[derive(Debug, Serialize, ToSchema)]
struct ErrorObject {
    /// One sentence for people.
    message: String,
    /// Kind of error, such as `invalid_request_error`.
    #[serde(rename = "type")]
    kind: &'static str,
    /// The field of the request that it is about.
    param: Option<String>,
    /// For programs: a name such as `context_length_exceeded`. Never a number, as vLLM has it: strict clients read OpenAI's type.
    code: Option<&'static str>,
}

impl ApiError {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            param: None,
            code: None,
            retry_after: None,
        }
    }

    /// A request that cannot be served, because of the value of `param`.
    pub(crate) fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            param: Some(param.into()),
            ..Self::new(ErrorKind::Invalid, message)
        }
    }

    /// The model is not there yet.
    pub(crate) fn loading() -> Self {
        Self {
            retry_after: Some(RETRY_AFTER_LOADING),
            ..Self::new(ErrorKind::Unavailable, "the model is being loaded")
        }
    }

    /// The server is going down.
    pub(crate) fn draining() -> Self {
        Self {
            retry_after: Some(RETRY_AFTER),
            ..Self::new(
                ErrorKind::Unavailable,
                "the server is shutting down and takes no new requests",
            )
        }
    }

    /// The engine is gone.
    pub(crate) fn engine_down() -> Self {
        Self::new(
            ErrorKind::Unavailable,
            "the engine has failed and the server is going down",
        )
    }

    /// A bug, or a broken model. The cause goes to the log.
    pub(crate) fn internal(cause: &dyn std::fmt::Display) -> Self {
        tracing::error!(%cause, "request failed");
        Self::new(
            ErrorKind::Internal,
            "the request failed inside the server: its log says more under the id of this request",
        )
    }

    /// The deadline has passed.
    pub(crate) fn deadline() -> Self {
        Self::new(
            ErrorKind::Timeout,
            "the request took longer than the server allows and was ended",
        )
    }

    /// For programs.
    pub(crate) fn with_code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    /// The body.
    pub(crate) fn body(&self) -> ErrorBody {
        ErrorBody {
            error: ErrorObject {
                message: self.message.clone(),
                kind: self.kind.name(),
                param: self.param.clone(),
                code: self.code,
            },
        }
    }

    /// Sets the headers that go with the error.
    pub(crate) fn decorate(&self, response: &mut Response) {
        if let Some(after) = self.retry_after {
            let seconds = HeaderValue::from(after.as_secs().max(1));
            response.headers_mut().insert(header::RETRY_AFTER, seconds);
        }
        if self.kind == ErrorKind::Unauthorized {
            let scheme = HeaderValue::from_static("Bearer");
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, scheme);
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.kind.status(), Json(self.body())).into_response();
        self.decorate(&mut response);
        response
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        let invalid = |param, code: Option<&'static str>| Self {
            code,
            ..Self::invalid(param, error.to_string())
        };
        match &error {
            EngineError::ContextExceeded { needed, available } => Self {
                message: format!(
                    "the request needs {needed} tokens of context, but the server has {available}: shorten the prompt or lower max_tokens"
                ),
                ..invalid("messages", Some("context_length_exceeded"))
            },
            EngineError::EmptyPrompt => invalid("prompt", None),
            EngineError::BadToken { .. } => invalid("prompt", None),
            EngineError::BadSampling { name, .. } => invalid(name, None),
            EngineError::QueueFull { .. } => Self {
                retry_after: Some(RETRY_AFTER),
                code: Some("rate_limit_exceeded"),
                ..Self::new(ErrorKind::QueueFull, error.to_string())
            },
            _ => Self::internal(&error),
        }
    }
}

impl From<TextError> for ApiError {
    fn from(error: TextError) -> Self {
        match &error {
            TextError::ToolArguments { .. } | TextError::Message { .. } => {
                Self::invalid("messages", error.to_string())
            }
            TextError::TemplateRaised { .. }
            | TextError::TemplateFailed { .. }
            | TextError::Untraceable { .. } => {
                Self::invalid("messages", error.to_string()).with_code("template_error")
            }
            TextError::BlankRun { .. } | TextError::ByteWithoutToken { .. } => {
                Self::invalid("prompt", error.to_string())
            }
            _ => Self::internal(&error),
        }
    }
}
