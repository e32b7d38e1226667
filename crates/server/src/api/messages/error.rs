//! Errors in the form of Anthropic's Messages API: `{"type": "error", "error": {"type", "message"}}`.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::error::{ApiError, ErrorKind};

/// Anthropic's status for a service that has no room now. Its clients try again after it, as after 429.
const OVERLOADED: u16 = 529;

/// The body of an error of `/v1/messages`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct MessagesErrorBody {
    #[serde(rename = "type")]
    kind: ErrorTag,
    error: MessagesErrorObject,
}

/// Always `error`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = MessagesErrorTag)]
#[serde(rename_all = "lowercase")]
enum ErrorTag {
    Error,
}

/// What went wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct MessagesErrorObject {
    #[serde(rename = "type")]
    kind: MessagesErrorKind,
    /// One sentence for people.
    message: String,
}

/// Kind of error: decides what a client does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum MessagesErrorKind {
    InvalidRequestError,
    AuthenticationError,
    NotFoundError,
    RequestTooLarge,
    RateLimitError,
    ApiError,
    OverloadedError,
    TimeoutError,
}

/// An [`ApiError`] that is printed in Anthropic's form.
#[derive(Debug)]
pub(crate) struct MessagesError(pub(crate) ApiError);

impl From<ApiError> for MessagesError {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl MessagesError {
    fn kind(&self) -> MessagesErrorKind {
        match self.0.kind {
            ErrorKind::Invalid | ErrorKind::WrongMethod => MessagesErrorKind::InvalidRequestError,
            ErrorKind::Unauthorized => MessagesErrorKind::AuthenticationError,
            ErrorKind::NotFound => MessagesErrorKind::NotFoundError,
            ErrorKind::TooLarge => MessagesErrorKind::RequestTooLarge,
            ErrorKind::QueueFull => MessagesErrorKind::RateLimitError,
            ErrorKind::Internal => MessagesErrorKind::ApiError,
            ErrorKind::Unavailable => MessagesErrorKind::OverloadedError,
            ErrorKind::TooSlow | ErrorKind::Timeout => MessagesErrorKind::TimeoutError,
        }
    }

    fn status(&self) -> StatusCode {
        match self.0.kind {
            ErrorKind::Unavailable => {
                StatusCode::from_u16(OVERLOADED).unwrap_or(StatusCode::SERVICE_UNAVAILABLE)
            }
            kind => kind.status(),
        }
    }

    /// The error, as it also stands in a stream.
    pub(super) fn object(&self) -> MessagesErrorObject {
        MessagesErrorObject {
            kind: self.kind(),
            message: self.0.message.clone(),
        }
    }

    /// The body.
    pub(crate) fn body(&self) -> MessagesErrorBody {
        MessagesErrorBody {
            kind: ErrorTag::Error,
            error: self.object(),
        }
    }
}

impl IntoResponse for MessagesError {
    fn into_response(self) -> Response {
        let mut response = (self.status(), Json(self.body())).into_response();
        self.0.decorate(&mut response);
        response
    }
}

/// The response, for errors that arise around the protocol's handlers.
pub(crate) fn respond(error: &ApiError) -> Response {
    MessagesError(error.clone()).into_response()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_kind_has_anthropics_status_and_name() {
        for (kind, status, name) in [
            (ErrorKind::Invalid, 400, "invalid_request_error"),
            (ErrorKind::Unauthorized, 401, "authentication_error"),
            (ErrorKind::NotFound, 404, "not_found_error"),
            (ErrorKind::WrongMethod, 405, "invalid_request_error"),
            (ErrorKind::TooLarge, 413, "request_too_large"),
            (ErrorKind::QueueFull, 429, "rate_limit_error"),
            (ErrorKind::Internal, 500, "api_error"),
            (ErrorKind::Timeout, 504, "timeout_error"),
            (ErrorKind::Unavailable, 529, "overloaded_error"),
        ] {
            let error = MessagesError(ApiError::new(kind, "why"));
            assert_eq!(error.status().as_u16(), status, "{kind:?}");
            assert_eq!(
                serde_json::to_value(error.body()).unwrap(),
                json!({"type": "error", "error": {"type": name, "message": "why"}}),
                "{kind:?}"
            );
        }
    }

    #[test]
    fn a_refused_client_is_told_when_to_try_again() {
        let response = MessagesError(ApiError::loading()).into_response();
        assert_eq!(response.status().as_u16(), 529);
        assert!(response.headers().contains_key("retry-after"));
    }
}
