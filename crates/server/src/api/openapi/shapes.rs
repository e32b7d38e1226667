//! Shapes that requests have but no type of ours: messages and tools of a chat go to the template as they come. These say what is
//! accepted of them.

#![allow(dead_code, reason = "schemas")]

use utoipa::ToSchema;

use crate::api::content::TextOrBlocks;

/// A message of a chat. Other fields are handed to the template as they are.
#[derive(ToSchema)]
#[serde(tag = "role", rename_all = "lowercase")]
#[derive(serde::Serialize)]
pub(crate) enum InputMessage {
    /// Instructions.
    System { content: TextOrBlocks<TextPart> },
    /// The same as `system`, where the template does not know it.
    Developer { content: TextOrBlocks<TextPart> },
    /// What the user says.
    User { content: TextOrBlocks<TextPart> },
    /// What the assistant said.
    Assistant {
        content: Option<TextOrBlocks<TextPart>>,
        /// What it thought before.
        reasoning_content: Option<String>,
        /// The same under another name.
        reasoning: Option<String>,
        /// The calls that it made.
        #[schema(required = false)]
        tool_calls: Vec<InputCall>,
    },
    /// What a call gave.
    Tool {
        /// The `id` of the call.
        tool_call_id: Option<String>,
        content: TextOrBlocks<TextPart>,
    },
}

/// A part of a message.
#[derive(ToSchema, serde::Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(crate) enum TextPart {
    /// Text; the model reads nothing else.
    Text { text: String },
}

/// A call that the assistant made.
#[derive(ToSchema, serde::Serialize)]
pub(crate) struct InputCall {
    id: String,
    #[serde(rename = "type")]
    kind: FunctionTag,
    function: InputFunctionCall,
}

/// Always `function`.
#[derive(ToSchema, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum FunctionTag {
    Function,
}

/// The function, and its arguments as JSON in a string.
#[derive(ToSchema, serde::Serialize)]
pub(crate) struct InputFunctionCall {
    name: String,
    /// A JSON object.
    #[schema(pattern = r"^\{\}$", example = "{}")]
    arguments: String,
}

/// A function that the model may call.
#[derive(ToSchema, serde::Serialize)]
pub(crate) struct FunctionTool {
    #[serde(rename = "type")]
    kind: FunctionTag,
    function: FunctionDeclaration,
}

/// What the model is told of a function.
#[derive(ToSchema, serde::Serialize)]
pub(crate) struct FunctionDeclaration {
    #[schema(min_length = 1, max_length = 128, pattern = "^[A-Za-z0-9_.:-]+$")]
    name: String,
    description: Option<String>,
    /// JSON schema of the arguments.
    #[schema(value_type = Option<Object>, example = json!({"type": "object", "properties": {"city": {"type": "string"}}}))]
    parameters: Option<serde_json::Value>,
}
