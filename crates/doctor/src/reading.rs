//! A value that was read, or why it could not be.

use serde::{Deserialize, Serialize};

/// What was read, or why there is nothing. In JSON a known value is itself, and an unknown one is `{"unknown": "why"}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Reading<T> {
    /// Not read. (First, so that JSON of it is never taken for a `T` whose fields are all optional.)
    Unknown {
        /// Why.
        unknown: Unread,
    },
    /// Read.
    Known(T),
}

/// Why something was not read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Unread {
    /// It is not there. Often an answer in itself.
    Absent,
    /// It is there, for root only.
    NeedsRoot,
    /// The driver or device does not say.
    Unsupported,
    /// Anything else, in words.
    Other(String),
}

const ABSENT: &str = "absent";
const NEEDS_ROOT: &str = "needs root";
const UNSUPPORTED: &str = "not supported";

impl From<String> for Unread {
    fn from(text: String) -> Self {
        match text.as_str() {
            ABSENT => Self::Absent,
            NEEDS_ROOT => Self::NeedsRoot,
            UNSUPPORTED => Self::Unsupported,
            _ => Self::Other(text),
        }
    }
}

impl From<Unread> for String {
    fn from(why: Unread) -> Self {
        why.to_string()
    }
}

impl std::fmt::Display for Unread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Absent => ABSENT,
            Self::NeedsRoot => NEEDS_ROOT,
            Self::Unsupported => UNSUPPORTED,
            Self::Other(text) => text,
        })
    }
}

impl From<&std::io::Error> for Unread {
    fn from(error: &std::io::Error) -> Self {
        use std::io::ErrorKind;
        match error.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => Self::Absent,
            ErrorKind::PermissionDenied => Self::NeedsRoot,
            _ => Self::Other(error.to_string()),
        }
    }
}

impl<T> From<std::io::Result<T>> for Reading<T> {
    fn from(result: std::io::Result<T>) -> Self {
        match result {
            Ok(value) => Self::Known(value),
            Err(error) => Unread::from(&error).into(),
        }
    }
}

impl<T> From<Unread> for Reading<T> {
    fn from(unknown: Unread) -> Self {
        Self::Unknown { unknown }
    }
}

impl<T> Reading<T> {
    /// Unknown for a reason in words.
    pub fn unclear(why: impl Into<String>) -> Self {
        Unread::Other(why.into()).into()
    }

    /// The value, if it is known.
    pub fn known(&self) -> Option<&T> {
        match self {
            Self::Known(value) => Some(value),
            Self::Unknown { .. } => None,
        }
    }

    /// The value, or why there is none.
    pub fn as_result(&self) -> Result<&T, &Unread> {
        match self {
            Self::Known(value) => Ok(value),
            Self::Unknown { unknown } => Err(unknown),
        }
    }

    /// The reason, if it is not known.
    pub fn why(&self) -> Option<&Unread> {
        self.as_result().err()
    }

    /// Whether it was looked for and is not there.
    pub fn is_absent(&self) -> bool {
        self.why() == Some(&Unread::Absent)
    }

    /// Makes something of the value.
    pub fn map<U>(self, make: impl FnOnce(T) -> U) -> Reading<U> {
        self.and_then(|value| Reading::Known(make(value)))
    }

    /// Makes something of the value, if it can be made.
    pub fn and_then<U>(self, make: impl FnOnce(T) -> Reading<U>) -> Reading<U> {
        match self {
            Self::Known(value) => make(value),
            Self::Unknown { unknown } => unknown.into(),
        }
    }
}

impl<T: Copy> Reading<T> {
    /// The value, if it is known.
    pub fn get(&self) -> Option<T> {
        self.known().copied()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn json_keeps_values_and_reasons_apart() {
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        struct AllOptional {
            a: Option<u32>,
        }
        for (reading, json) in [
            (Reading::Known(AllOptional { a: Some(1) }), r#"{"a":1}"#),
            (Unread::NeedsRoot.into(), r#"{"unknown":"needs root"}"#),
            (Unread::Absent.into(), r#"{"unknown":"absent"}"#),
            (Reading::unclear("it burns"), r#"{"unknown":"it burns"}"#),
        ] {
            assert_eq!(serde_json::to_string(&reading).unwrap(), json);
            assert_eq!(
                serde_json::from_str::<Reading<AllOptional>>(json).unwrap(),
                reading
            );
        }
    }

    #[test]
    fn what_the_system_refuses_is_told_apart_from_what_is_not_there() {
        let of = |kind: std::io::ErrorKind| Unread::from(&std::io::Error::from(kind));
        assert_eq!(of(std::io::ErrorKind::NotFound), Unread::Absent);
        assert_eq!(of(std::io::ErrorKind::PermissionDenied), Unread::NeedsRoot);
        assert!(matches!(of(std::io::ErrorKind::TimedOut), Unread::Other(_)));
    }
}
