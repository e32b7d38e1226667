//! What `/v1/messages` answers: a message, or the events of a stream, in the form of Anthropic's Messages API.

use serde::Serialize;
use serde_json::{Map, Value as Json};
use utoipa::ToSchema;

/// What stands where Anthropic's service puts a signature of the thinking. Nothing is signed here: the text that comes back is taken as
/// it is, with whatever signature.
pub(super) const SIGNATURE: &str = "glim-unsigned-v1";

/// Response of `/v1/messages`.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = Message)]
pub(crate) struct Message {
    #[schema(example = "msg_0123456789abcdef01234567")]
    pub(crate) id: String,
    #[serde(rename = "type")]
    pub(crate) kind: MessageKind,
    pub(crate) role: AssistantRole,
    /// What the model answered, in its order.
    pub(crate) content: Vec<ReplyBlock>,
    /// The served model's name.
    pub(crate) model: String,
    /// Why it ended; null at the start of a stream.
    #[schema(required = true)]
    pub(crate) stop_reason: Option<StopReason>,
    /// The one of `stop_sequences` that ended it.
    #[schema(required = true)]
    pub(crate) stop_sequence: Option<String>,
    pub(crate) usage: Usage,
}

/// Always `message`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = MessagesMessageKind)]
#[serde(rename_all = "lowercase")]
pub(crate) enum MessageKind {
    Message,
}

/// Always `assistant`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = MessagesAssistantRole)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AssistantRole {
    Assistant,
}

/// A part of an answer.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = MessagesReplyBlock)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum ReplyBlock {
    /// Text.
    Text { text: String },
    /// What the model thought.
    Thinking {
        thinking: String,
        /// A constant: nothing is signed here.
        signature: String,
    },
    /// A call of a tool.
    ToolUse {
        id: String,
        /// One of the declared tools.
        name: String,
        /// Its arguments, typed by the tool's schema.
        #[schema(value_type = Object)]
        input: Map<String, Json>,
    },
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = MessagesStopReason)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StopReason {
    /// The model ended it.
    EndTurn,
    /// `max_tokens`, or the end of the context.
    MaxTokens,
    /// One of `stop_sequences`.
    StopSequence,
    /// The model calls tools: there is at least one `tool_use` block.
    ToolUse,
}

/// Tokens of a request. `input_tokens` and `cache_read_input_tokens` together are the prompt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = MessagesUsage)]
pub(crate) struct Usage {
    /// Tokens of the prompt that were not in the cache. In `message_start` all of them, since the cache is not yet known to hold any.
    pub(crate) input_tokens: usize,
    /// Tokens of the prompt that the cache held.
    pub(crate) cache_read_input_tokens: usize,
    /// Always 0: prompts are cached on their own, at no cost.
    pub(crate) cache_creation_input_tokens: usize,
    /// Generated tokens, those of thinking included.
    pub(crate) output_tokens: usize,
    pub(crate) output_tokens_details: OutputTokensDetails,
}

/// Generated tokens by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = MessagesOutputTokensDetails)]
pub(crate) struct OutputTokensDetails {
    /// Those of thinking.
    pub(crate) thinking_tokens: usize,
}

/// One event of a stream; its `type` is also the event's name.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = MessagesStreamEvent)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum StreamEvent {
    /// First: the message, still empty.
    MessageStart { message: Message },
    /// A block begins.
    ContentBlockStart {
        index: usize,
        content_block: ReplyBlock,
    },
    /// The next part of the block.
    ContentBlockDelta { index: usize, delta: BlockDelta },
    /// The block is whole.
    ContentBlockStop { index: usize },
    /// Why the answer ended, and what it took.
    MessageDelta { delta: MessageEnd, usage: Usage },
    /// Last.
    MessageStop {},
    /// A sign of life.
    Ping {},
    /// Last, instead of `message_stop`: the answer is not whole.
    Error {
        #[schema(inline)]
        error: super::error::MessagesErrorObject,
    },
}

impl StreamEvent {
    /// The event's name.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::MessageStart { .. } => "message_start",
            Self::ContentBlockStart { .. } => "content_block_start",
            Self::ContentBlockDelta { .. } => "content_block_delta",
            Self::ContentBlockStop { .. } => "content_block_stop",
            Self::MessageDelta { .. } => "message_delta",
            Self::MessageStop {} => "message_stop",
            Self::Ping {} => "ping",
            Self::Error { .. } => "error",
        }
    }
}

/// The next part of a block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = MessagesBlockDelta)]
#[serde(tag = "type")]
pub(crate) enum BlockDelta {
    /// Of a text.
    #[serde(rename = "text_delta")]
    Text { text: String },
    /// Of thinking.
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: String },
    /// Of a call's arguments: joined, the parts are one JSON object.
    #[serde(rename = "input_json_delta")]
    InputJson { partial_json: String },
    /// Of thinking, last.
    #[serde(rename = "signature_delta")]
    Signature { signature: String },
}

/// How a message ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = MessagesMessageEnd)]
pub(crate) struct MessageEnd {
    pub(crate) stop_reason: StopReason,
    #[schema(required = true)]
    pub(crate) stop_sequence: Option<String>,
}
