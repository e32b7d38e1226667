//! The request of `/v1/completions`.

use serde::Deserialize;
use serde_json::{Map, Value as Json};
use utoipa::ToSchema;

use crate::api::chat::request::TruncationSide;
use crate::api::fields::{
    GuidedFields, ResponseFormat, SamplingFields, StreamOptions, StructuredOutputs,
};

/// Request of `/v1/completions`.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
pub(crate) struct CompletionRequest {
    /// The served model's name; left out: the one there is.
    pub(crate) model: Option<String>,
    /// What is gone on with. Added tokens that stand in a text count: it is the caller's own prompt.
    #[schema(value_type = String, example = "Once upon a time")]
    pub(crate) prompt: Option<Prompts>,
    /// Tokens to generate at most.
    #[schema(minimum = 1, default = 16)]
    pub(crate) max_tokens: Option<i64>,
    #[serde(flatten)]
    pub(crate) sampling: SamplingFields,
    /// Report log-probabilities, and those of so many likeliest tokens.
    #[schema(minimum = 0, maximum = 20)]
    pub(crate) logprobs: Option<i64>,
    /// The answer begins with the prompt.
    pub(crate) echo: Option<bool>,
    /// Not supported.
    pub(crate) suffix: Option<String>,
    /// Not supported, unless it is `n`.
    pub(crate) best_of: Option<i64>,
    /// Send server-sent events.
    pub(crate) stream: Option<bool>,
    pub(crate) stream_options: Option<StreamOptions>,
    pub(crate) response_format: Option<ResponseFormat>,
    pub(crate) structured_outputs: Option<StructuredOutputs>,
    #[serde(flatten)]
    pub(crate) guided: GuidedFields,
    /// Cut prompts to so many tokens instead of refusing them.
    #[schema(minimum = 1)]
    pub(crate) truncate_prompt_tokens: Option<i64>,
    pub(crate) truncation_side: Option<TruncationSide>,
    /// Add `timings` to the response.
    pub(crate) timings_per_token: Option<bool>,
    /// Fields that we do not know.
    #[serde(flatten)]
    #[schema(ignore)]
    pub(crate) unknown: Map<String, Json>,
}

/// One prompt or several, as text or token ids.
#[derive(Debug, Clone, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a string, a list of token ids, or a list of either"
)]
pub(crate) enum Prompts {
    Text(String),
    Tokens(Vec<u32>),
    Texts(Vec<String>),
    TokenLists(Vec<Vec<u32>>),
}
