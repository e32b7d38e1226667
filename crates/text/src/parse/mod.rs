//! From the model's output to reasoning, content and tool calls.

pub(crate) mod glm;
mod schema;
mod tags;

/// A piece of an answer, in order. Joined, all `Content` pieces are the content, all `Reasoning` pieces the reasoning.
#[derive(Debug, Clone, PartialEq)]
pub enum Piece {
    /// Text of the thought.
    Reasoning(String),
    /// Text of the answer.
    Content(String),
    /// One finished call.
    ToolCall {
        /// The tool's name, one of those declared.
        name: String,
        /// The arguments in the order in which the model gave them, typed by the tool's schema.
        arguments: serde_json::Map<String, serde_json::Value>,
    },
}
