//! Text of a model: tokenizer, detokenizer, chat template, and the parsing of what the model says.
//!
//! Knows the `tokenizer.*` keys of GGUF files and the tokenizer files of Hugging Face folders; does not know what a
//! model, a request or a server is. The way of a chat: [`ChatTemplate::render`] prints the conversation with the
//! model's own Jinja template; [`Tokenizer::encode_rendered`] turns that into ids, matching role tokens only where
//! the template wrote them; the model answers in ids; [`GlmParser`] splits them into reasoning, content and tool
//! calls, and [`Detokenizer`] turns them into text that never breaks a character.
//!
//! ```no_run
//! # fn main() -> Result<(), glim_text::TextError> {
//! use glim_text::{ChatRequest, ChatTemplate, Special, TextModel};
//!
//! let model = TextModel::from_hf("path/to/checkpoint".as_ref())?;
//! let ids = model.tokenizer.encode("Hello", Special::Text)?;
//! if let Some(template) = &model.template {
//!     let request = ChatRequest::new(vec![serde_json::json!({"role": "user", "content": "Hello"})]);
//!     let prompt = template.render(&request, model.tokenizer.added_tokens())?;
//!     let ids = model.tokenizer.encode_rendered(&prompt)?;
//! }
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod added;
mod bpe;
mod bytes;
mod chat;
mod detok;
mod error;
pub mod from_gguf;
pub mod from_hf;
mod parse;
pub mod pretok;
mod split;
mod stop;
mod taint;
mod template;
pub mod to_gguf;
pub mod to_hf;
mod tokenizer;
mod vocab;

pub use added::AddedTokens;
pub use chat::{TextModel, starts_in_reasoning};
pub use detok::{ControlTokens, Detokenizer};
pub use error::TextError;
pub use parse::Piece;
pub use parse::glm::GlmParser;
pub use parse::schema::{ArgumentText, argument_text};
pub use split::{MAX_BLANK_RUN, Splitter};
pub use stop::{StopStrings, Stopped};
pub use template::{ChatRequest, ChatTemplate, Rendered};
pub use tokenizer::{Special, Tokenizer};
pub use vocab::{STOP_TEXTS, TextOptions, TextSource, TokenKind, Vocab, VocabToken};

/// A token of the model's vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenId(pub u32);
