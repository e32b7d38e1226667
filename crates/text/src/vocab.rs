//! A tokenizer as plain data, whichever file it came from.
//!
//! [`from_gguf`](crate::from_gguf) and [`from_hf`](crate::from_hf) fill this; [`Tokenizer`](crate::Tokenizer) is
//! built from it. Nothing here encodes or decodes.

use crate::TokenId;
use crate::pretok::PreTokenizer;

/// What a vocabulary entry is for. The numbers of GGUF's `tokenizer.ggml.token_type` are in brackets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenKind {
    /// Ordinary text in the byte alphabet (1).
    Normal,
    /// The token for what cannot be encoded (2); matched like a control token.
    Unknown,
    /// A control token such as `<|user|>` (3): never shown to users.
    Control,
    /// An added token that is text to its reader, such as `<think>` or `<tool_call>` (4): shown.
    UserDefined,
    /// A pad entry that no text maps to (5).
    Unused,
}

impl TokenKind {
    /// True for tokens that are matched as a whole in template text, and whose text stands literally in the file.
    pub fn is_added(self) -> bool {
        matches!(self, Self::Unknown | Self::Control | Self::UserDefined)
    }
}

/// One vocabulary entry; its id is its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VocabToken {
    /// Normal tokens: the text in the 256-character byte alphabet. All others: the text itself.
    pub text: String,
    /// What the entry is for.
    pub kind: TokenKind,
}

/// A byte-level BPE vocabulary with everything needed to encode and decode.
#[derive(Debug, Clone)]
pub struct Vocab {
    /// The tokens; the index is the id.
    pub tokens: Vec<VocabToken>,
    /// Merge rules in rank order: (left, right), in the byte alphabet.
    pub merges: Vec<(String, String)>,
    /// How text is cut into pieces before merging.
    pub pre_tokenizer: &'static PreTokenizer,
    /// Whether a piece that is itself a token is emitted without merging.
    pub ignore_merges: bool,
    /// Beginning-of-sequence token, if the file names one. Not added unless `add_bos`.
    pub bos: Option<TokenId>,
    /// Padding token, if the file names one.
    pub pad: Option<TokenId>,
    /// Whether plain prompts start with `bos`.
    pub add_bos: bool,
    /// Ids that end a turn, sorted, no doubles: every eos, eot and eom id that the files name, and the ids of
    /// [`STOP_TEXTS`].
    pub stop: Vec<TokenId>,
}

/// Added tokens that end a turn even where the file's keys forget them (early GLM-4.7-Flash files list only the first).
pub const STOP_TEXTS: [&str; 3] = ["<|endoftext|>", "<|user|>", "<|observation|>"];

impl Vocab {
    /// Adds to `stop` the ids of [`STOP_TEXTS`] that are added tokens, then sorts and removes doubles.
    pub(crate) fn complete_stop_set(&mut self) {
        for (id, token) in (0u32..).zip(&self.tokens) {
            if token.kind.is_added() && STOP_TEXTS.contains(&token.text.as_str()) {
                self.stop.push(TokenId(id));
            }
        }
        self.stop.sort_unstable();
        self.stop.dedup();
    }
}

/// What the user decides about a model's text, against what its files say.
#[derive(Debug, Clone, Copy, Default)]
pub struct TextOptions<'a> {
    /// The pre-tokenizer, by a name of the table in [`pretok`](crate::pretok), whatever the file says (`--pre NAME`).
    pub pre: Option<&'a str>,
}

/// Everything about text that a model's files hold.
#[derive(Debug, Clone)]
pub struct TextSource {
    /// The tokenizer as data.
    pub vocab: Vocab,
    /// The model's own Jinja chat template, if it has one.
    pub chat_template: Option<String>,
    /// Variables such as `bos_token` that templates may print: (name, text).
    pub special_tokens: Vec<(String, String)>,
}
