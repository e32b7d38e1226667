//! Fields that several requests share.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use utoipa::ToSchema;

/// One value, or a list of them.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected one value, or a list of such")]
pub(crate) enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

impl<T> OneOrMany<T> {
    pub(crate) fn into_vec(self) -> Vec<T> {
        match self {
            Self::One(value) => vec![value],
            Self::Many(values) => values,
        }
    }
}

/// How tokens are drawn, when the answer ends, and what goes with every request for an answer.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
pub(crate) struct SamplingFields {
    /// 0: the likeliest token.
    #[schema(minimum = 0, maximum = 2)]
    pub(crate) temperature: Option<f64>,
    /// Draw among the likeliest tokens that together reach this probability.
    #[schema(exclusive_minimum = 0, maximum = 1)]
    pub(crate) top_p: Option<f64>,
    /// Draw among so many likeliest tokens; 0 and −1: all.
    #[schema(minimum = -1)]
    pub(crate) top_k: Option<i64>,
    /// Cut tokens below this share of the likeliest one's probability.
    #[schema(minimum = 0, maximum = 1)]
    pub(crate) min_p: Option<f64>,
    /// Over prompt and answer; 1: off.
    #[schema(exclusive_minimum = 0)]
    pub(crate) repetition_penalty: Option<f64>,
    /// Over the answer; 0: off.
    #[schema(minimum = -2, maximum = 2)]
    pub(crate) presence_penalty: Option<f64>,
    /// Over the answer, for each time; 0: off.
    #[schema(minimum = -2, maximum = 2)]
    pub(crate) frequency_penalty: Option<f64>,
    /// Added to logits: token id → −100 to 100.
    #[schema(value_type = Option<Object>)]
    pub(crate) logit_bias: Option<BTreeMap<String, f64>>,
    /// Equal seeds give equal answers.
    pub(crate) seed: Option<i64>,
    /// Answers to give.
    #[schema(minimum = 1, maximum = 128)]
    pub(crate) n: Option<i64>,
    /// Texts that end the answer and are not part of it.
    #[schema(value_type = Option<Vec<String>>)]
    pub(crate) stop: Option<OneOrMany<String>>,
    /// Tokens that end the answer, beside the model's own.
    pub(crate) stop_token_ids: Option<Vec<u32>>,
    /// The text that ended the answer is part of it.
    pub(crate) include_stop_str_in_output: Option<bool>,
    /// Do not stop at the model's own end tokens.
    pub(crate) ignore_eos: Option<bool>,
    /// Do not end before so many tokens.
    #[schema(minimum = 0)]
    pub(crate) min_tokens: Option<i64>,
    /// Leave control tokens out of the text.
    pub(crate) skip_special_tokens: Option<bool>,
    /// DRY, against repetitions (as in llama.cpp): strength, 0: off.
    #[schema(minimum = 0)]
    pub(crate) dry_multiplier: Option<f64>,
    /// Growth of the DRY penalty with each repeated token.
    #[schema(minimum = 1)]
    pub(crate) dry_base: Option<f64>,
    /// Longest repetition that DRY leaves alone.
    #[schema(minimum = 0)]
    pub(crate) dry_allowed_length: Option<i64>,
    /// Tokens that DRY looks back; 0 and −1: all.
    #[schema(minimum = -1)]
    pub(crate) dry_penalty_last_n: Option<i64>,
    /// XTC, which removes the likeliest tokens now and then: how often, 0: off.
    #[schema(minimum = 0, maximum = 1)]
    pub(crate) xtc_probability: Option<f64>,
    /// Least probability of a token that XTC may remove.
    #[schema(minimum = 0, maximum = 1)]
    pub(crate) xtc_threshold: Option<f64>,
    /// Smaller runs sooner; 0.
    pub(crate) priority: Option<i64>,
    /// Cached prompts are shared only among requests with the same salt.
    #[schema(min_length = 1, max_length = 1024)]
    pub(crate) cache_salt: Option<String>,
    /// The request's name in the log and the response's id.
    pub(crate) request_id: Option<String>,
    /// Add `token_ids` to choices and `prompt_token_ids` to the response.
    pub(crate) return_token_ids: Option<bool>,
    /// Add `prompt_text`, the prompt as the template renders it.
    pub(crate) return_prompt_text: Option<bool>,
    /// Name tokens as `token_id:N` in log-probabilities.
    pub(crate) return_tokens_as_token_ids: Option<bool>,
}

/// What a stream has besides text.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
pub(crate) struct StreamOptions {
    /// One more chunk at the end, with `usage`.
    pub(crate) include_usage: Option<bool>,
    /// `usage` in every chunk.
    pub(crate) continuous_usage_stats: Option<bool>,
}

/// Which tools the model may or must call.
#[derive(Debug, Clone, PartialEq, Deserialize, ToSchema)]
#[serde(
    untagged,
    expecting = "expected \"none\", \"auto\", \"required\", or {\"type\": \"function\", \"function\": {\"name\": …}}"
)]
pub(crate) enum ToolChoice {
    Mode(ToolMode),
    Named(NamedTool),
}

/// Whether the model calls tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ToolMode {
    /// It does not.
    None,
    /// It decides.
    Auto,
    /// It must.
    Required,
}

/// `{"type": "function", "function": {"name": …}}`.
#[derive(Debug, Clone, PartialEq, Deserialize, ToSchema)]
pub(crate) struct NamedTool {
    #[serde(rename = "type")]
    pub(crate) kind: NamedToolKind,
    pub(crate) function: FunctionName,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum NamedToolKind {
    Function,
}

/// A function by its name.
#[derive(Debug, Clone, PartialEq, Deserialize, ToSchema)]
pub(crate) struct FunctionName {
    pub(crate) name: String,
}

/// What form the answer has.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum ResponseFormat {
    /// Any.
    Text,
    /// A JSON object; with `schema` (as llama.cpp has it) one of this schema.
    JsonObject {
        #[serde(default)]
        #[schema(value_type = Option<Object>)]
        schema: Option<Json>,
    },
    /// JSON of a schema.
    JsonSchema { json_schema: JsonSchemaFormat },
}

/// A named schema.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub(crate) struct JsonSchemaFormat {
    /// Its name; of no effect.
    #[serde(default)]
    #[allow(dead_code, reason = "part of the protocol")]
    pub(crate) name: Option<String>,
    /// The schema.
    #[schema(value_type = Object)]
    pub(crate) schema: Json,
}

/// What the answer must be, in vLLM's form: one of these.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
pub(crate) struct StructuredOutputs {
    /// A JSON schema, or its text.
    #[schema(value_type = Option<Object>)]
    pub(crate) json: Option<Json>,
    /// Any JSON object.
    pub(crate) json_object: Option<bool>,
    /// A regular expression.
    pub(crate) regex: Option<String>,
    /// One of these texts.
    pub(crate) choice: Option<Vec<String>>,
    /// A grammar in llguidance's dialect of Lark.
    pub(crate) grammar: Option<String>,
}

/// The older names of `structured_outputs`.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
pub(crate) struct GuidedFields {
    #[schema(value_type = Option<Object>)]
    pub(crate) guided_json: Option<Json>,
    pub(crate) guided_regex: Option<String>,
    pub(crate) guided_choice: Option<Vec<String>>,
    pub(crate) guided_grammar: Option<String>,
}

/// How much the model reasons.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ReasoningEffort {
    None,
    Minimal,
    Low,
    Medium,
    High,
    Xhigh,
    Max,
}

/// `{"type": "enabled"}` or `{"type": "disabled"}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
pub(crate) struct Thinking {
    #[serde(rename = "type")]
    pub(crate) mode: ThinkingMode,
}

/// Whether the model reasons.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ThinkingMode {
    Enabled,
    Disabled,
}
