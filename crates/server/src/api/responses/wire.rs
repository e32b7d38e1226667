//! The request of `/v1/responses`: OpenAI's Responses API, the part of it that a text model without storage can serve.
//!
//! Field names and item types are those of the API's reference and of the types in OpenAI's Python client. Fields that are not here are
//! ignored; item, part and tool types that are not here are refused by name.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use utoipa::ToSchema;

use crate::api::content::TextOrBlocks;
use crate::api::fields::{ReasoningEffort, ToolMode};

/// Request of `/v1/responses`.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[schema(example = json!({"model": "glim", "input": "What is 27 + 58?", "max_output_tokens": 64}))]
pub(crate) struct ResponsesRequest {
    /// The served model's name; left out: the one there is.
    pub(crate) model: Option<String>,
    /// A user's text, or the items of a conversation: with no storage here, all of it.
    #[schema(value_type = TextOrBlocks<Item>, required = true)]
    pub(crate) input: Option<TextOrBlocks<InputItem>>,
    /// Instructions, before the conversation.
    pub(crate) instructions: Option<String>,
    /// Functions that the model may call.
    pub(crate) tools: Option<Vec<Tool>>,
    pub(crate) tool_choice: Option<ToolChoice>,
    /// false: the answer ends after its first call.
    pub(crate) parallel_tool_calls: Option<bool>,
    /// Tokens to generate at most, reasoning included; left out: up to the end of the context.
    #[schema(minimum = 1)]
    pub(crate) max_output_tokens: Option<i64>,
    /// 0: the likeliest token.
    #[schema(minimum = 0, maximum = 2)]
    pub(crate) temperature: Option<f64>,
    /// Draw among the likeliest tokens that together reach this probability.
    #[schema(exclusive_minimum = 0, maximum = 1)]
    pub(crate) top_p: Option<f64>,
    /// Send server-sent events.
    pub(crate) stream: Option<bool>,
    pub(crate) reasoning: Option<Reasoning>,
    pub(crate) text: Option<TextConfig>,
    /// `reasoning.encrypted_content`: reasoning items carry their text also in this field, for clients that send back nothing else of
    /// them. It is not encrypted. `message.output_text.logprobs` is refused.
    pub(crate) include: Option<Vec<String>>,
    /// Not supported: refused unless 0 or left out.
    #[schema(minimum = 0, maximum = 0)]
    pub(crate) top_logprobs: Option<i64>,
    /// Returned as they are.
    pub(crate) metadata: Option<BTreeMap<String, String>>,
    /// Accepted, of no effect: nothing is stored, and the response says `false`.
    #[allow(dead_code, reason = "part of the protocol")]
    pub(crate) store: Option<bool>,
    /// Accepted, of no effect: a prompt that is too long is refused, never cut.
    #[allow(dead_code, reason = "part of the protocol")]
    pub(crate) truncation: Option<Truncation>,
    /// Refused: nothing is stored.
    #[schema(value_type = Option<String>, max_length = 0)]
    pub(crate) previous_response_id: Option<Json>,
    /// Refused if true: nothing is stored.
    pub(crate) background: Option<bool>,
    /// Refused: nothing is stored.
    #[schema(ignore)]
    pub(crate) conversation: Option<Json>,
    /// Refused: nothing is stored.
    #[schema(ignore)]
    pub(crate) prompt: Option<Json>,
    /// Returned as it is.
    pub(crate) user: Option<String>,
}

/// An item of the conversation; without a type it is a message.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "Map<String, Json>")]
pub(crate) struct InputItem(pub(crate) Item);

impl TryFrom<Map<String, Json>> for InputItem {
    type Error = serde_json::Error;

    fn try_from(mut fields: Map<String, Json>) -> Result<Self, Self::Error> {
        fields
            .entry("type")
            .or_insert_with(|| Json::from("message"));
        serde_json::from_value(Json::Object(fields)).map(Self)
    }
}

/// An item of the conversation.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = ResponsesItem)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Item {
    /// What somebody says; the one type that may be left out.
    Message {
        role: Role,
        content: TextOrBlocks<Part>,
    },
    /// A call that the assistant made.
    FunctionCall {
        call_id: String,
        name: String,
        /// Its arguments: a JSON object in a string.
        #[schema(example = "{\"city\": \"Rome\"}")]
        arguments: String,
    },
    /// What a call gave.
    FunctionCallOutput {
        /// That of the call.
        call_id: String,
        output: TextOrBlocks<Part>,
    },
    /// What the assistant thought before the item that follows.
    Reasoning {
        content: Option<Vec<ReasoningPart>>,
        /// Taken if there is no `content`.
        encrypted_content: Option<String>,
        /// Taken if there is neither.
        summary: Option<Vec<ReasoningPart>>,
    },
    /// Refused: nothing is stored.
    #[serde(rename = "item_reference")]
    Reference {},
}

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[schema(as = ResponsesRole)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    User,
    Assistant,
    System,
    /// The same as `system`, where the template does not know it.
    Developer,
}

/// A part of a message.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = ResponsesPart)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Part {
    /// Text of others than the assistant.
    InputText { text: String },
    /// Text of the assistant.
    OutputText { text: String },
    /// Text of the assistant, when it refused.
    Refusal { refusal: String },
    /// Refused: the model reads text only.
    InputImage {},
    /// Refused: the model reads text only.
    InputFile {},
}

/// A part of reasoning or of its summary.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = ResponsesReasoningPart)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum ReasoningPart {
    /// Of the reasoning.
    ReasoningText { text: String },
    /// Of a summary.
    SummaryText { text: String },
}

/// A function that the model may call.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, ToSchema)]
#[schema(as = ResponsesTool)]
pub(crate) struct Tool {
    /// `function`: tools that run on OpenAI's servers are refused.
    #[serde(rename = "type")]
    #[schema(value_type = FunctionKind)]
    pub(crate) kind: String,
    #[serde(default)]
    #[schema(min_length = 1, max_length = 128)]
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    /// JSON schema of the arguments.
    #[schema(value_type = Option<Object>)]
    pub(crate) parameters: Option<Json>,
    /// Accepted: arguments always have the types of the schema.
    pub(crate) strict: Option<bool>,
}

/// Always `function`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[schema(as = ResponsesFunctionKind)]
#[serde(rename_all = "lowercase")]
pub(crate) enum FunctionKind {
    Function,
}

/// Which tools the model may or must call.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, ToSchema)]
#[schema(as = ResponsesToolChoice)]
#[serde(
    untagged,
    expecting = "expected none, auto, required, {\"type\": \"function\", \"name\": …} or {\"type\": \"allowed_tools\", \"mode\": …, \"tools\": […]}"
)]
pub(crate) enum ToolChoice {
    Mode(ToolMode),
    Allowed(AllowedTools),
    Named(NamedTool),
}

/// It must call this one.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, ToSchema)]
#[schema(as = ResponsesNamedTool)]
pub(crate) struct NamedTool {
    #[serde(rename = "type")]
    pub(crate) kind: FunctionKind,
    pub(crate) name: String,
}

/// It may, or must, call one of these; the others are not shown to it.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, ToSchema)]
#[schema(as = ResponsesAllowedTools)]
pub(crate) struct AllowedTools {
    #[serde(rename = "type")]
    pub(crate) kind: AllowedToolsKind,
    /// `auto` or `required`.
    pub(crate) mode: ToolMode,
    pub(crate) tools: Vec<NamedTool>,
}

/// Always `allowed_tools`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[schema(as = ResponsesAllowedToolsKind)]
#[serde(rename_all = "snake_case")]
pub(crate) enum AllowedToolsKind {
    AllowedTools,
}

/// How much the model reasons.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize, ToSchema)]
#[schema(as = ResponsesReasoning)]
pub(crate) struct Reasoning {
    pub(crate) effort: Option<ReasoningEffort>,
    /// Accepted, of no effect: the reasoning is returned whole.
    pub(crate) summary: Option<String>,
}

/// How the text of the answer is.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize, ToSchema)]
#[schema(as = ResponsesTextConfig)]
pub(crate) struct TextConfig {
    #[serde(default)]
    pub(crate) format: TextFormat,
}

/// What form the answer has.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize, ToSchema)]
#[schema(as = ResponsesTextFormat)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum TextFormat {
    /// Any.
    #[default]
    Text,
    /// A JSON object.
    JsonObject,
    /// JSON of a schema; reasoning stays free.
    JsonSchema {
        name: Option<String>,
        #[schema(value_type = Object)]
        schema: Json,
        description: Option<String>,
        /// Accepted: the schema always binds.
        strict: Option<bool>,
    },
}

/// What is done with a prompt that is too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[schema(as = ResponsesTruncation)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Truncation {
    Auto,
    Disabled,
}

/// Response of `/v1/responses/input_tokens`.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = ResponsesInputTokens)]
pub(crate) struct InputTokens {
    #[schema(value_type = String, example = "response.input_tokens")]
    pub(crate) object: &'static str,
    /// Tokens of the prompt as the model would read it, instructions and tools included.
    pub(crate) input_tokens: usize,
}
