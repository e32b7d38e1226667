//! From the model's output to reasoning, content and tool calls.

mod call;
pub(crate) mod glm;
pub(crate) mod schema;
mod tags;

/// A piece of an answer, in order. Joined, all `Content` pieces are the content, all `Reasoning` pieces the reasoning.
///
/// A call is a [`CallStart`](Self::CallStart), any number of [`CallArguments`](Self::CallArguments) and a
/// [`CallEnd`](Self::CallEnd); nothing else comes between them. A call that the answer's end cuts off has no `CallEnd`, and
/// what came of it must not be taken for a call.
#[derive(Debug, Clone, PartialEq)]
pub enum Piece {
    /// Text of the thought.
    Reasoning(String),
    /// Text of the answer.
    Content(String),
    /// A call begins.
    CallStart {
        /// The tool's whole name, one of those declared.
        name: String,
    },
    /// The next part of the arguments' JSON text. All parts of one call, joined, are what serde_json prints of the
    /// arguments in its [`CallEnd`](Self::CallEnd): one object, without blanks between its tokens.
    CallArguments(String),
    /// A call is whole.
    CallEnd {
        /// The tool's name again.
        name: String,
        /// The arguments in the order in which the model gave them, typed by the tool's schema. Of a key that comes twice,
        /// the first value holds: it is on its way to the reader when the second comes.
        arguments: serde_json::Map<String, serde_json::Value>,
    },
}
