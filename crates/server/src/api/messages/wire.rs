//! The request of `/v1/messages` and `/v1/messages/count_tokens`: Anthropic's Messages API (version 2023-06-01), the part of it that a
//! text model can serve.
//!
//! Field names and block types are those of the API's reference and of the types in Anthropic's Python client. Fields that are not
//! here are ignored; block and tool types that are not here are refused by name, since leaving them out would change the conversation.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use utoipa::ToSchema;

use crate::api::content::TextOrBlocks;
use crate::api::fields::ReasoningEffort;

/// Request of `/v1/messages`.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(example = json!({
    "model": "glim",
    "max_tokens": 64,
    "system": "Answer in one word.",
    "messages": [{"role": "user", "content": "What is the capital of France?"}]
}))]
pub(crate) struct MessagesRequest {
    /// The served model's name; left out: the one there is.
    pub(crate) model: Option<String>,
    /// Tokens to generate at most, thinking included. Required, except to count.
    #[schema(minimum = 1)]
    pub(crate) max_tokens: Option<i64>,
    /// The conversation. If its last turn is the assistant's, the answer goes on from there.
    #[schema(min_items = 1)]
    pub(crate) messages: Vec<Turn>,
    /// Instructions, before the conversation: their order and text are kept as they are.
    pub(crate) system: Option<TextOrBlocks<TextBlock>>,
    /// 0: the likeliest token. Anthropic's own models end at 1.
    #[schema(minimum = 0, maximum = 2)]
    pub(crate) temperature: Option<f64>,
    /// Draw among the likeliest tokens that together reach this probability.
    #[schema(exclusive_minimum = 0, maximum = 1)]
    pub(crate) top_p: Option<f64>,
    /// Draw among so many likeliest tokens; 0: all.
    #[schema(minimum = 0)]
    pub(crate) top_k: Option<i64>,
    /// Texts that end the answer and are not part of it.
    pub(crate) stop_sequences: Option<Vec<String>>,
    /// Send server-sent events.
    pub(crate) stream: Option<bool>,
    /// Functions that the model may call.
    pub(crate) tools: Option<Vec<Tool>>,
    pub(crate) tool_choice: Option<ToolChoice>,
    /// Whether the model thinks before it answers. Left out: it does not, as in Anthropic's API, unless `output_config.effort` asks for
    /// it.
    pub(crate) thinking: Option<Thinking>,
    pub(crate) output_config: Option<OutputConfig>,
    /// The older place of `output_config.format`.
    pub(crate) output_format: Option<OutputFormat>,
    /// Refused unless empty: the server connects to nothing.
    #[schema(value_type = Option<Vec<Object>>, max_items = 0)]
    pub(crate) mcp_servers: Option<Vec<Json>>,
}

/// A turn of the conversation.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = MessagesTurn)]
pub(crate) struct Turn {
    pub(crate) role: Role,
    pub(crate) content: TextOrBlocks<Block>,
}

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[schema(as = MessagesRole)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    User,
    Assistant,
    /// Instructions between turns.
    System,
}

/// A block that can only be text.
#[derive(Debug, Clone, PartialEq, Deserialize, ToSchema)]
#[schema(as = MessagesTextBlock)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum TextBlock {
    /// Text.
    Text { text: String },
}

/// A part of a turn.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = MessagesBlock)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Block {
    /// Text.
    Text { text: String },
    /// What the assistant thought. Whatever signature comes back is accepted: the text is taken as it is.
    Thinking { thinking: String },
    /// Thoughts that another service has hidden; they cannot be read and are left out.
    RedactedThinking {},
    /// A call that the assistant made.
    ToolUse {
        id: String,
        name: String,
        /// Its arguments.
        #[schema(value_type = Object)]
        input: Map<String, Json>,
    },
    /// What a call gave.
    ToolResult {
        /// The `id` of the call.
        tool_use_id: String,
        /// Left out: nothing.
        content: Option<TextOrBlocks<ResultBlock>>,
        /// The template has no place for it: the model reads what `content` says.
        #[allow(dead_code, reason = "part of the protocol")]
        is_error: Option<bool>,
    },
    /// Refused: the model reads text only.
    Image {},
    /// Refused unless its source is text.
    Document {
        source: DocumentSource,
        title: Option<String>,
    },
}

/// A part of what a tool gave.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = MessagesResultBlock)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum ResultBlock {
    /// Text.
    Text { text: String },
    /// Refused: the model reads text only.
    Image {},
}

/// Where a document comes from.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = MessagesDocumentSource)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum DocumentSource {
    /// The text itself.
    Text { data: String },
    /// Refused.
    Base64 {},
    /// Refused: the server fetches nothing.
    Url {},
    /// Refused: the server stores nothing.
    File {},
}

/// A function that the model may call.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = MessagesTool)]
pub(crate) struct Tool {
    /// `custom`, or left out. Tools that run on Anthropic's servers are refused.
    #[serde(rename = "type")]
    #[schema(value_type = Option<CustomTool>)]
    pub(crate) kind: Option<String>,
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    /// JSON schema of the arguments.
    #[schema(value_type = Object, required = true, example = json!({"type": "object", "properties": {"city": {"type": "string"}}}))]
    pub(crate) input_schema: Option<Map<String, Json>>,
    /// Accepted: arguments always have the types of the schema.
    #[allow(dead_code, reason = "part of the protocol")]
    pub(crate) strict: Option<bool>,
}

/// The one type of tools that there is here.
#[derive(ToSchema)]
#[schema(as = MessagesCustomTool)]
#[allow(dead_code, reason = "a schema")]
#[schema(rename_all = "lowercase")]
pub(crate) enum CustomTool {
    Custom,
}

/// Which tools the model may or must call.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = MessagesToolChoice)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(crate) enum ToolChoice {
    /// It decides.
    Auto {
        /// At most one call.
        disable_parallel_tool_use: Option<bool>,
    },
    /// It must call one of them.
    Any {
        /// At most one call.
        disable_parallel_tool_use: Option<bool>,
    },
    /// It must call this one.
    Tool {
        name: String,
        /// At most one call.
        disable_parallel_tool_use: Option<bool>,
    },
    /// It calls none.
    None {},
}

/// Whether the model thinks before it answers.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[schema(as = MessagesThinking)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(crate) enum Thinking {
    /// It does.
    Enabled {
        /// Tokens of thinking after which it is ended; left out: no limit but `max_tokens`.
        #[schema(minimum = 0)]
        budget_tokens: Option<i64>,
        display: Option<ThinkingDisplay>,
    },
    /// It decides: here the same as `enabled` without a budget.
    Adaptive { display: Option<ThinkingDisplay> },
    /// It does not, where its template knows how to say so.
    Disabled {},
}

/// What is shown of the thinking.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[schema(as = MessagesThinkingDisplay)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ThinkingDisplay {
    /// All of it: nothing is summarized here.
    Summarized,
    /// Nothing: it is generated and not returned.
    Omitted,
}

/// How the model shall answer.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[schema(as = MessagesOutputConfig)]
pub(crate) struct OutputConfig {
    /// How much it thinks, where its template knows degrees.
    pub(crate) effort: Option<ReasoningEffort>,
    /// What form the answer has.
    pub(crate) format: Option<OutputFormat>,
}

/// What form the answer has.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = MessagesOutputFormat)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum OutputFormat {
    /// JSON of this schema; thinking stays free.
    JsonSchema {
        #[schema(value_type = Object)]
        schema: Json,
    },
}

/// Response of `/v1/messages/count_tokens`.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = MessagesTokenCount)]
pub(crate) struct TokenCount {
    /// Tokens of the prompt as the model would read it, system and tools included.
    pub(crate) input_tokens: usize,
}
