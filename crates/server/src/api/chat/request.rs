//! The request of `/v1/chat/completions`: OpenAI's fields, and those that vLLM and llama.cpp added to them.
//!
//! The other protocols translate into this one. Fields that we do not know are ignored, as clients send extras of other vendors; they
//! are logged at debug level. Fields that we know and cannot serve are refused.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use utoipa::ToSchema;

use crate::api::fields::{
    GuidedFields, ReasoningEffort, ResponseFormat, SamplingFields, StreamOptions,
    StructuredOutputs, Thinking, ToolChoice,
};
use crate::api::openapi::shapes::{FunctionTool, InputMessage};

/// Request of `/v1/chat/completions`.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
pub(crate) struct ChatRequest {
    /// The served model's name; left out: the one there is.
    pub(crate) model: Option<String>,
    /// The conversation: objects with `role` (system, developer, user, assistant, tool) and `content`.
    #[schema(value_type = Vec<InputMessage>, required = true, min_items = 1, example = json!([{"role": "user", "content": "What is 27 + 58?"}]))]
    #[serde(default)]
    pub(crate) messages: Vec<Json>,
    /// Tokens to generate at most, reasoning included; left out: up to the end of the context.
    #[schema(minimum = 1)]
    pub(crate) max_completion_tokens: Option<i64>,
    /// The older name of `max_completion_tokens`.
    #[schema(minimum = 1)]
    pub(crate) max_tokens: Option<i64>,
    #[serde(flatten)]
    pub(crate) sampling: SamplingFields,
    /// Report the log-probability of each generated token, from the raw logits.
    pub(crate) logprobs: Option<bool>,
    /// And of so many likeliest tokens at each place.
    #[schema(minimum = 0, maximum = 20)]
    pub(crate) top_logprobs: Option<i64>,
    /// Not supported: refused unless 0 or left out.
    pub(crate) prompt_logprobs: Option<i64>,
    /// Send server-sent events.
    pub(crate) stream: Option<bool>,
    pub(crate) stream_options: Option<StreamOptions>,
    /// Functions that the model may call.
    #[schema(value_type = Option<Vec<FunctionTool>>)]
    pub(crate) tools: Option<Vec<Json>>,
    pub(crate) tool_choice: Option<ToolChoice>,
    /// false: the answer ends after its first call.
    pub(crate) parallel_tool_calls: Option<bool>,
    pub(crate) response_format: Option<ResponseFormat>,
    pub(crate) structured_outputs: Option<StructuredOutputs>,
    #[serde(flatten)]
    pub(crate) guided: GuidedFields,
    pub(crate) reasoning_effort: Option<ReasoningEffort>,
    /// Whether the model reasons before it answers: a variable of its template.
    pub(crate) enable_thinking: Option<bool>,
    /// The same in the form of Z.ai's API.
    pub(crate) thinking: Option<Thinking>,
    /// Tokens of reasoning after which it is ended.
    #[schema(minimum = 0)]
    pub(crate) thinking_token_budget: Option<i64>,
    /// false: the reasoning is generated and not returned.
    pub(crate) include_reasoning: Option<bool>,
    /// Variables of the chat template.
    #[schema(value_type = Option<Object>)]
    pub(crate) chat_template_kwargs: Option<Map<String, Json>>,
    /// Whether the prompt ends where the assistant shall speak.
    pub(crate) add_generation_prompt: Option<bool>,
    /// Go on with the last message instead of answering it.
    pub(crate) continue_final_message: Option<bool>,
    /// With `continue_final_message`: the answer begins with what was there.
    pub(crate) echo: Option<bool>,
    /// Cut the prompt to so many tokens instead of refusing it.
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

/// What is cut from a prompt that is too long.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TruncationSide {
    /// Its beginning.
    #[default]
    Left,
    /// Its end.
    Right,
}
