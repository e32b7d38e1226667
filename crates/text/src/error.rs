//! The one error type of this crate. Each message says what, where, what was found and what was expected.

use std::path::PathBuf;

use crate::TokenId;

/// What can go wrong between a file's tokenizer, a request's messages and token ids.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// The GGUF metadata could not be read as asked (wrong type of a key).
    #[error(transparent)]
    Gguf(#[from] glim_gguf::GgufError),

    /// A metadata key or JSON field that the tokenizer needs is absent.
    #[error("{place}: `{key}` is missing, so there is no tokenizer to build; {hint}")]
    Missing {
        /// The file or metadata block looked at.
        place: String,
        /// The absent key.
        key: String,
        /// What the reader can do.
        hint: &'static str,
    },

    /// A key or field holds a value that cannot be used.
    #[error("{place}: `{key}` is {found}, expected {expected}")]
    Invalid {
        /// The file or metadata block looked at.
        place: String,
        /// The key or field.
        key: String,
        /// What stands there.
        found: String,
        /// What was expected.
        expected: String,
    },

    /// The tokenizer uses something that this crate does not do; encoding anyway would give wrong ids.
    #[error(
        "{place}: `{key}` is {found}, which is not supported (supported: {supported}); encoding anyway would give wrong token ids"
    )]
    Unsupported {
        /// The file or metadata block looked at.
        place: String,
        /// The key or field.
        key: String,
        /// What stands there.
        found: String,
        /// The values that work.
        supported: String,
    },

    /// The file cuts text into pieces in a way that is not in the table of [`pretok`](crate::pretok).
    #[error(
        "{place}: `{key}` is {found}, which is no pre-tokenizer known here, and any other would give wrong token ids (known: \
         {known}); if you know which one the model was trained with, name it with `--pre NAME`"
    )]
    UnknownPreTokenizer {
        /// The file or metadata block looked at.
        place: String,
        /// The key or field.
        key: String,
        /// What stands there.
        found: String,
        /// The known names.
        known: String,
    },

    /// The user names a pre-tokenizer that is not in the table.
    #[error("`--pre {name}`: no pre-tokenizer has this name; known are {known}")]
    NoSuchPreTokenizer {
        /// The name given.
        name: String,
        /// The known names.
        known: String,
    },

    /// A file of a Hugging Face folder could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        source: std::io::Error,
    },

    /// A file of a Hugging Face folder is not JSON.
    #[error("{} is not valid JSON: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },

    /// The text holds a run of blanks too long for the pre-tokenizer's regular expression.
    #[error("the text holds a run of more than {limit} blank characters at byte {at}; shorten it")]
    BlankRun {
        /// The longest run that is accepted, in characters.
        limit: usize,
        /// Byte offset of the run in the piece of text that was being encoded.
        at: usize,
    },

    /// The text holds a byte that the vocabulary cannot express.
    #[error(
        "the model's vocabulary has no token for byte 0x{byte:02x}, which the text holds at byte {at}; take that character out"
    )]
    ByteWithoutToken {
        /// The byte, of the text in UTF-8.
        byte: u8,
        /// Its offset in the piece of text that was being encoded.
        at: usize,
    },

    /// The tokenizer engine refused a piece of text.
    #[error("the tokenizer failed on a piece of text: {reason}")]
    Encode {
        /// The engine's own words.
        reason: String,
    },

    /// A token id outside the vocabulary was handed in.
    #[error("token id {} is outside the vocabulary of {vocab_size} tokens", id.0)]
    UnknownToken {
        /// The id.
        id: TokenId,
        /// Number of tokens known.
        vocab_size: usize,
    },

    /// The chat template is not valid Jinja (as this crate understands it).
    #[error("the chat template does not compile, line {line}: {reason}")]
    TemplateSyntax {
        /// Line in the template source, 1 for the first, 0 if unknown.
        line: usize,
        /// What was wrong.
        reason: String,
    },

    /// The chat template failed while rendering.
    #[error("the chat template failed, line {line}: {reason}")]
    TemplateFailed {
        /// Line in the template source, 1 for the first, 0 if unknown.
        line: usize,
        /// What was wrong.
        reason: String,
    },

    /// The chat template itself refused the conversation with `raise_exception`.
    #[error("the chat template refuses this conversation: {message}")]
    TemplateRaised {
        /// The template's own message.
        message: String,
    },

    /// The template changes the contents in a way that hides which tokens are its own.
    #[error(
        "message contents hold token texts of this model ({tokens}) and the chat template inspects or rewrites them, so its own \
         tokens cannot be told from those in the contents; remove these texts from the messages"
    )]
    Untraceable {
        /// The added tokens (or beginnings of them at the end of a string) found in the contents.
        tokens: String,
    },

    /// A message is not a JSON object.
    #[error("messages[{index}] is {found}, expected an object with `role` and `content`")]
    Message {
        /// Position in the conversation, 0 for the first.
        index: usize,
        /// The JSON type found.
        found: &'static str,
    },

    /// The arguments of a past tool call are not a JSON object.
    #[error(
        "messages[{message}].tool_calls[{call}]: `arguments` {reason}; expected a JSON object, or a string that holds one"
    )]
    ToolArguments {
        /// Position of the message, 0 for the first.
        message: usize,
        /// Position of the call in the message, 0 for the first.
        call: usize,
        /// What is wrong.
        reason: String,
    },
}

/// The name of a JSON value's type, for messages.
pub(crate) fn json_kind(value: &serde_json::Value) -> &'static str {
    use serde_json::Value::{Array, Bool, Null, Number, Object, String};
    match value {
        Null => "null",
        Bool(_) => "a boolean",
        Number(_) => "a number",
        String(_) => "a string",
        Array(_) => "an array",
        Object(_) => "an object",
    }
}
