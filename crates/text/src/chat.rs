//! What a chat needs, together: tokenizer, template, and where the answer starts.

use std::path::Path;
use std::sync::Arc;

use glim_gguf::Gguf;

use crate::vocab::{TextOptions, TextSource};
use crate::{ChatTemplate, Rendered, TextError, Tokenizer, from_gguf, from_hf, taint};

/// Tokenizer and chat template of one model.
#[derive(Debug)]
pub struct TextModel {
    /// The tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// The model's own template, if it has one.
    pub template: Option<ChatTemplate>,
    /// Variables such as `bos_token` that templates may print: (name, text).
    pub special_tokens: Vec<(String, String)>,
}

impl TextModel {
    /// From a GGUF file's metadata.
    ///
    /// # Errors
    /// As [`Tokenizer::from_gguf`] and [`ChatTemplate::new`].
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, TextError> {
        Self::from_gguf_with(gguf, TextOptions::default())
    }

    /// As [`from_gguf`](Self::from_gguf), with the user's options.
    ///
    /// # Errors
    /// As [`from_gguf::read_with`] and [`TextModel::new`].
    pub fn from_gguf_with(gguf: &Gguf, options: TextOptions<'_>) -> Result<Self, TextError> {
        Self::new(from_gguf::read_with(gguf, options)?)
    }

    /// From a Hugging Face folder.
    ///
    /// # Errors
    /// As [`Tokenizer::from_hf`] and [`ChatTemplate::new`].
    pub fn from_hf(folder: &Path) -> Result<Self, TextError> {
        Self::from_hf_with(folder, TextOptions::default())
    }

    /// As [`from_hf`](Self::from_hf), with the user's options.
    ///
    /// # Errors
    /// As [`from_hf::read_with`] and [`TextModel::new`].
    pub fn from_hf_with(folder: &Path, options: TextOptions<'_>) -> Result<Self, TextError> {
        Self::new(from_hf::read_with(folder, options)?)
    }

    /// From data already read.
    ///
    /// # Errors
    /// As [`Tokenizer::new`] and [`ChatTemplate::new`].
    pub fn new(source: TextSource) -> Result<Self, TextError> {
        let TextSource {
            vocab,
            chat_template,
            special_tokens,
        } = source;
        let model = Self {
            tokenizer: Arc::new(Tokenizer::new(vocab)?),
            template: None,
            special_tokens,
        };
        match chat_template {
            Some(template) => model.with_template(&template),
            None => Ok(model),
        }
    }

    /// The same model with another template.
    ///
    /// # Errors
    /// As [`ChatTemplate::new`].
    pub fn with_template(mut self, source: &str) -> Result<Self, TextError> {
        self.template =
            Some(ChatTemplate::new(source)?.with_special_tokens(self.special_tokens.clone()));
        Ok(self)
    }
}

/// True if the prompt ends inside `<think>`, so that the first output token is reasoning already and no opening tag will
/// come. Decided by the tail of the prompt, and only by a tag that the template wrote.
pub fn starts_in_reasoning(prompt: &Rendered) -> bool {
    const OPEN: &str = "<think>";
    let tail = prompt.text().trim_end();
    tail.strip_suffix(OPEN)
        .is_some_and(|before| taint::is_trusted(&(before.len()..tail.len()), prompt.untrusted()))
}
