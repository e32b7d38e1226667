//! Anthropic's Messages.

pub(crate) mod error;

/// Where the protocol's endpoints are.
pub(crate) const PATH: &str = "/v1/messages";
