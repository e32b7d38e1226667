//! The body of a request: JSON of a known type, or an error that names the field.

use axum::body::to_bytes;
use axum::extract::{FromRequest, Request};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value as Json};

use crate::error::{ApiError, ErrorKind};
use crate::state::AppState;

/// A request's body. Its content type is not looked at: curl says that it sends a form.
pub(crate) struct JsonBody<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<AppState> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        let config = state.config();
        let limit = config.max_body_bytes;
        let body = to_bytes(request.into_body(), limit);
        let Ok(body) = tokio::time::timeout(config.receive_timeout, body).await else {
            return Err(ApiError::new(
                ErrorKind::TooSlow,
                format!(
                    "the request's body did not arrive within {} s",
                    config.receive_timeout.as_secs()
                ),
            ));
        };
        // What else can go wrong is that the client has gone.
        let bytes = body.map_err(|_| {
            ApiError::new(
                ErrorKind::TooLarge,
                format!(
                    "the request's body is larger than {limit} bytes: shorten it, or raise --max-body"
                ),
            )
        })?;
        parse(&bytes).map(Self)
    }
}

/// Reads a JSON object.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let whole: Result<Json, _> = serde_path_to_error::deserialize(&mut reader);
    let object = match whole {
        Ok(Json::Object(object)) if reader.end().is_ok() => object,
        Ok(Json::Object(_)) => {
            return Err(malformed("there is text after the JSON object"));
        }
        Ok(_) => return Err(malformed("it is not a JSON object")),
        // The text of this error has places in it, but nothing of the body.
        Err(error) => return Err(malformed(&error.inner().to_string())),
    };
    serde_path_to_error::deserialize(Json::Object(object.clone())).map_err(|error| {
        let path = error.path().to_string();
        let param = match path.as_str() {
            // Fields that are shared by several requests lose their name on the way.
            "." | "?" => blame::<T>(&object),
            _ => Some(path),
        };
        let reason = brief(&error.inner().to_string());
        match param {
            Some(param) => ApiError::invalid(param.clone(), format!("{param}: {reason}")),
            None => ApiError::new(ErrorKind::Invalid, reason),
        }
    })
}

fn malformed(reason: &str) -> ApiError {
    ApiError::new(
        ErrorKind::Invalid,
        format!("the request's body is not what it should be: {reason}"),
    )
}

/// The field that cannot be read: the first that cannot even be read alone. Fields that are missing are no fault of it.
fn blame<T: DeserializeOwned>(object: &Map<String, Json>) -> Option<String> {
    let alone = |key: &String, value: Json| {
        let mut all = object.clone();
        all.retain(|_, value| !value.is_null());
        all.insert(key.clone(), value);
        serde_json::from_value::<T>(Json::Object(all)).is_ok()
    };
    object.keys().find(|key| alone(key, Json::Null)).cloned()
}

/// Values of the request in an error's text are cut short: they may be prompts.
fn brief(reason: &str) -> String {
    crate::state::shorten(reason)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::api::chat::request::ChatRequest;

    fn error(body: &str) -> (Option<String>, String) {
        let error = parse::<ChatRequest>(body.as_bytes()).unwrap_err();
        (error.param, error.message)
    }

    #[test]
    fn the_field_that_is_wrong_is_named() {
        for (body, param) in [
            (r#"{"messages": 5}"#, "messages"),
            (r#"{"messages": [], "temperature": "hot"}"#, "temperature"),
            (r#"{"messages": [], "max_tokens": 1.5}"#, "max_tokens"),
            (r#"{"messages": [], "stop": 5}"#, "stop"),
            (r#"{"messages": [], "tool_choice": "perhaps"}"#, "tool_choice"),
            (
                r#"{"messages": [], "guided_choice": "a", "temperature": 1}"#,
                "guided_choice",
            ),
        ] {
            let (found, message) = error(body);
            assert_eq!(found.as_deref(), Some(param), "{message}");
            assert!(message.contains(param), "{message}");
        }
    }

    #[test]
    fn what_is_no_object_is_told_without_its_text() {
        for body in ["", "[]", "{\"messages\": [", "{} {}", "secret prompt"] {
            let (param, message) = error(body);
            assert_eq!(param, None, "{message}");
            assert!(!message.contains("secret"), "{message}");
        }
        let deep = format!("{{\"messages\": {}{}}}", "[".repeat(500), "]".repeat(500));
        assert!(error(&deep).1.contains("recursion limit"));
    }
}
