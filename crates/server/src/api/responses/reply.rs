//! What `/v1/responses` answers: a response, or the events of a stream, in the form of OpenAI's Responses API.

use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;

use super::wire::{Reasoning, TextConfig, Tool, ToolChoice, Truncation};

/// Response of `/v1/responses`.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = ResponseObject)]
pub(crate) struct ResponseObject {
    #[schema(example = "resp_0123456789abcdef")]
    pub(crate) id: String,
    pub(crate) object: ObjectKind,
    /// Unix time, in seconds.
    pub(crate) created_at: u64,
    /// Unix time, in seconds; only of completed ones.
    pub(crate) completed_at: Option<u64>,
    pub(crate) status: Status,
    /// Always false.
    pub(crate) background: bool,
    pub(crate) error: Option<ResponseError>,
    pub(crate) incomplete_details: Option<IncompleteDetails>,
    pub(crate) instructions: Option<String>,
    pub(crate) max_output_tokens: Option<i64>,
    pub(crate) metadata: BTreeMap<String, String>,
    /// The served model's name.
    pub(crate) model: String,
    /// What the model answered, in its order.
    pub(crate) output: Vec<OutputItem>,
    pub(crate) parallel_tool_calls: bool,
    /// Always null: nothing is stored.
    pub(crate) previous_response_id: Option<String>,
    pub(crate) reasoning: Reasoning,
    /// Always `default`.
    #[schema(value_type = String, example = "default")]
    pub(crate) service_tier: &'static str,
    /// Always false: nothing is stored.
    pub(crate) store: bool,
    pub(crate) temperature: Option<f64>,
    pub(crate) text: TextConfig,
    pub(crate) tool_choice: ToolChoice,
    pub(crate) tools: Vec<Tool>,
    pub(crate) top_p: Option<f64>,
    pub(crate) truncation: Truncation,
    /// Null until the response is whole.
    pub(crate) usage: Option<ResponseUsage>,
    pub(crate) user: Option<String>,
}

/// Always `response`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = ResponsesObjectKind)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ObjectKind {
    Response,
}

/// How far something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = ResponsesStatus)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    InProgress,
    Completed,
    /// Cut at the limit of tokens.
    Incomplete,
    Failed,
}

/// Why a response failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = ResponseError)]
pub(crate) struct ResponseError {
    #[schema(value_type = String, example = "server_error")]
    pub(crate) code: &'static str,
    /// One sentence for people.
    pub(crate) message: String,
}

/// Why a response is not whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = ResponsesIncompleteDetails)]
pub(crate) struct IncompleteDetails {
    pub(crate) reason: IncompleteReason,
}

/// The one reason that there is here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = ResponsesIncompleteReason)]
#[serde(rename_all = "snake_case")]
pub(crate) enum IncompleteReason {
    /// `max_output_tokens`, or the end of the context.
    MaxOutputTokens,
}

/// An item of the answer.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = ResponsesOutputItem)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum OutputItem {
    /// What the model thought.
    Reasoning {
        id: String,
        /// Always empty: `content` has all of it.
        #[schema(value_type = Vec<Object>, max_items = 0)]
        summary: [(); 0],
        content: Vec<OutputPart>,
        /// The text again, not encrypted, if `include` asks for it.
        encrypted_content: Option<String>,
        status: Status,
    },
    /// What it says.
    Message {
        id: String,
        role: AssistantRole,
        content: Vec<OutputPart>,
        status: Status,
    },
    /// A call that it wants made.
    FunctionCall {
        id: String,
        /// Goes with what the call gives.
        call_id: String,
        /// One of the declared tools.
        name: String,
        /// Its arguments, typed by the tool's schema: a JSON object in a string.
        arguments: String,
        status: Status,
    },
}

/// Always `assistant`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = ResponsesAssistantRole)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AssistantRole {
    Assistant,
}

/// A part of an item.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = ResponsesOutputPart)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum OutputPart {
    /// Of a message.
    OutputText {
        text: String,
        /// Always empty.
        #[schema(value_type = Vec<Object>, max_items = 0)]
        annotations: [(); 0],
        /// Always empty.
        #[schema(value_type = Vec<Object>, max_items = 0)]
        logprobs: [(); 0],
    },
    /// Of reasoning.
    ReasoningText { text: String },
}

/// Tokens of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = ResponseUsage)]
pub(crate) struct ResponseUsage {
    pub(crate) input_tokens: usize,
    pub(crate) input_tokens_details: InputDetails,
    /// Generated tokens, those of reasoning included.
    pub(crate) output_tokens: usize,
    pub(crate) output_tokens_details: OutputDetails,
    pub(crate) total_tokens: usize,
}

/// Tokens of the prompt by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = ResponsesInputDetails)]
pub(crate) struct InputDetails {
    /// Those that were in the prefix cache already.
    pub(crate) cached_tokens: usize,
    /// Always 0: prompts are cached on their own, at no cost.
    pub(crate) cache_write_tokens: usize,
}

/// Generated tokens by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = ResponsesOutputDetails)]
pub(crate) struct OutputDetails {
    /// Those of reasoning.
    pub(crate) reasoning_tokens: usize,
}

/// An event of a stream; its `type` is also the event's name.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = ResponseEvent)]
pub(crate) struct ResponseEvent {
    #[serde(flatten)]
    pub(crate) what: What,
    /// 0, 1, 2, …
    pub(crate) sequence_number: u64,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = ResponseEventKind)]
#[serde(tag = "type")]
pub(crate) enum What {
    /// First.
    #[serde(rename = "response.created")]
    Created { response: ResponseObject },
    #[serde(rename = "response.in_progress")]
    InProgress { response: ResponseObject },
    /// An item begins.
    #[serde(rename = "response.output_item.added")]
    ItemAdded {
        output_index: usize,
        item: OutputItem,
    },
    /// A part of an item begins.
    #[serde(rename = "response.content_part.added")]
    PartAdded {
        item_id: String,
        output_index: usize,
        content_index: usize,
        part: OutputPart,
    },
    /// More of a message.
    #[serde(rename = "response.output_text.delta")]
    TextDelta {
        item_id: String,
        output_index: usize,
        content_index: usize,
        delta: String,
        #[schema(value_type = Vec<Object>, max_items = 0)]
        logprobs: [(); 0],
    },
    /// A message's text is whole.
    #[serde(rename = "response.output_text.done")]
    TextDone {
        item_id: String,
        output_index: usize,
        content_index: usize,
        text: String,
        #[schema(value_type = Vec<Object>, max_items = 0)]
        logprobs: [(); 0],
    },
    /// More of reasoning.
    #[serde(rename = "response.reasoning_text.delta")]
    ReasoningDelta {
        item_id: String,
        output_index: usize,
        content_index: usize,
        delta: String,
    },
    /// The reasoning is whole.
    #[serde(rename = "response.reasoning_text.done")]
    ReasoningDone {
        item_id: String,
        output_index: usize,
        content_index: usize,
        text: String,
    },
    /// A part is whole.
    #[serde(rename = "response.content_part.done")]
    PartDone {
        item_id: String,
        output_index: usize,
        content_index: usize,
        part: OutputPart,
    },
    /// More of a call's arguments.
    #[serde(rename = "response.function_call_arguments.delta")]
    ArgumentsDelta {
        item_id: String,
        output_index: usize,
        delta: String,
    },
    /// A call's arguments are whole.
    #[serde(rename = "response.function_call_arguments.done")]
    ArgumentsDone {
        item_id: String,
        output_index: usize,
        name: String,
        arguments: String,
    },
    /// An item is whole; or cut, as its status says.
    #[serde(rename = "response.output_item.done")]
    ItemDone {
        output_index: usize,
        item: OutputItem,
    },
    /// Last.
    #[serde(rename = "response.completed")]
    Completed { response: ResponseObject },
    /// Last, if the answer was cut.
    #[serde(rename = "response.incomplete")]
    Incomplete { response: ResponseObject },
    /// Last, if the generation failed.
    #[serde(rename = "response.failed")]
    Failed { response: ResponseObject },
}

impl What {
    /// The event's name.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Created { .. } => "response.created",
            Self::InProgress { .. } => "response.in_progress",
            Self::ItemAdded { .. } => "response.output_item.added",
            Self::PartAdded { .. } => "response.content_part.added",
            Self::TextDelta { .. } => "response.output_text.delta",
            Self::TextDone { .. } => "response.output_text.done",
            Self::ReasoningDelta { .. } => "response.reasoning_text.delta",
            Self::ReasoningDone { .. } => "response.reasoning_text.done",
            Self::PartDone { .. } => "response.content_part.done",
            Self::ArgumentsDelta { .. } => "response.function_call_arguments.delta",
            Self::ArgumentsDone { .. } => "response.function_call_arguments.done",
            Self::ItemDone { .. } => "response.output_item.done",
            Self::Completed { .. } => "response.completed",
            Self::Incomplete { .. } => "response.incomplete",
            Self::Failed { .. } => "response.failed",
        }
    }
}
