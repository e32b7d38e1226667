//! Text to token ids and back, for one model.

use std::borrow::Cow;
use std::path::Path;

use glim_gguf::Gguf;

use crate::bpe::Bpe;
use crate::taint::is_trusted;
use crate::template::Rendered;
use crate::vocab::{TokenKind, Vocab};
use crate::{AddedTokens, TextError, TokenId, bytes, from_gguf, from_hf};

/// Whose text is being encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Special {
    /// A user's text: `<|user|>` is eight characters.
    Text,
    /// Text of the template or of the operator: added tokens are matched first, leftmost and longest.
    Template,
}

/// A byte-level BPE tokenizer. Cheap to share behind an `Arc`; encoding needs only `&self`.
pub struct Tokenizer {
    vocab: Vocab,
    /// The bytes of all tokens, one after the other; `byte_ends[id]` is where token `id` ends.
    token_bytes: Vec<u8>,
    byte_ends: Vec<usize>,
    bpe: Bpe,
    added: AddedTokens,
}

impl Tokenizer {
    /// From the `tokenizer.ggml.*` metadata of a GGUF file.
    ///
    /// # Errors
    /// Missing or ill-typed keys, an unknown pre-tokenizer, merges that name unknown tokens.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, TextError> {
        Self::new(from_gguf::read(gguf)?.vocab)
    }

    /// From `tokenizer.json` and its companions in a Hugging Face folder.
    ///
    /// # Errors
    /// Unreadable files, and any part of `tokenizer.json` that is not byte-level BPE of a known kind.
    pub fn from_hf(folder: &Path) -> Result<Self, TextError> {
        Self::new(from_hf::read(folder)?.vocab)
    }

    /// From a vocabulary already read.
    ///
    /// # Errors
    /// Normal tokens outside the byte alphabet, visible characters of ASCII without a token, merges that name unknown tokens.
    pub fn new(vocab: Vocab) -> Result<Self, TextError> {
        let mut token_bytes = Vec::new();
        let mut byte_ends = Vec::with_capacity(vocab.tokens.len());
        for (id, token) in vocab.tokens.iter().enumerate() {
            if token.kind == TokenKind::Normal {
                let decoded = bytes::decode(&token.text).ok_or_else(|| TextError::Invalid {
                    place: "tokenizer".to_owned(),
                    key: format!("token {id}"),
                    found: format!("{:?}", token.text),
                    expected: "a string in the byte alphabet, since it is a normal token"
                        .to_owned(),
                })?;
                token_bytes.extend(decoded);
            } else {
                token_bytes.extend(token.text.bytes());
            }
            byte_ends.push(token_bytes.len());
        }
        let added = AddedTokens::new(
            (0u32..)
                .zip(&vocab.tokens)
                .filter(|(_, token)| token.kind.is_added())
                .map(|(id, token)| (token.text.clone(), TokenId(id))),
        );
        let bpe = Bpe::new(&vocab)?;
        Ok(Self {
            vocab,
            token_bytes,
            byte_ends,
            bpe,
            added,
        })
    }

    /// Token ids of a text. `bos` is put in front only if the file asks for it (`add_bos`); GLM files do not.
    ///
    /// # Errors
    /// [`TextError::BlankRun`] for absurd runs of blanks; [`TextError::ByteWithoutToken`] for a character that the
    /// vocabulary cannot express (GLM's can express all).
    pub fn encode(&self, text: &str, special: Special) -> Result<Vec<TokenId>, TextError> {
        let mut ids = Vec::new();
        if self.vocab.add_bos {
            ids.extend(self.vocab.bos);
        }
        match special {
            Special::Text => self.bpe.encode(text, &mut ids)?,
            Special::Template => self.encode_with_added(text, &[], &mut ids)?,
        }
        Ok(ids)
    }

    /// Token ids of a rendered conversation: added tokens are matched only in what the template wrote itself. `bos`
    /// is never put in front: templates write their own.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_rendered(&self, rendered: &Rendered) -> Result<Vec<TokenId>, TextError> {
        let mut ids = Vec::new();
        self.encode_with_added(rendered.text(), rendered.untrusted(), &mut ids)?;
        Ok(ids)
    }

    fn encode_with_added(
        &self,
        text: &str,
        untrusted: &[std::ops::Range<usize>],
        ids: &mut Vec<TokenId>,
    ) -> Result<(), TextError> {
        let mut done = 0;
        while let Some((range, id)) = self
            .added
            .find(text, done, |range| is_trusted(range, untrusted))
        {
            self.bpe.encode(&text[done..range.start], ids)?;
            ids.push(id);
            done = range.end;
        }
        self.bpe.encode(&text[done..], ids)
    }

    /// The raw bytes of a token, perhaps not whole characters; `None` outside the vocabulary.
    pub fn token_bytes(&self, id: TokenId) -> Option<&[u8]> {
        let index = usize::try_from(id.0).ok()?;
        let end = *self.byte_ends.get(index)?;
        let start = match index.checked_sub(1) {
            Some(before) => *self.byte_ends.get(before)?,
            None => 0,
        };
        self.token_bytes.get(start..end)
    }

    /// The text of a token, with U+FFFD for incomplete characters; `None` outside the vocabulary.
    pub fn token_text(&self, id: TokenId) -> Option<Cow<'_, str>> {
        self.token_bytes(id).map(String::from_utf8_lossy)
    }

    /// The one token with exactly this text: an added token if there is one, else a normal one.
    pub fn id_of(&self, text: &str) -> Option<TokenId> {
        self.added.id_of(text).or_else(|| {
            let mut alphabet_text = String::new();
            bytes::encode_into(text, &mut alphabet_text);
            self.bpe.id_of(&alphabet_text)
        })
    }

    /// What a token is for; `None` outside the vocabulary.
    pub fn kind(&self, id: TokenId) -> Option<TokenKind> {
        self.vocab
            .tokens
            .get(usize::try_from(id.0).ok()?)
            .map(|token| token.kind)
    }

    /// True for control tokens such as `<|user|>`, which are not shown to readers. `<think>` and the tool tags are
    /// not: they are "user defined".
    pub fn is_special(&self, id: TokenId) -> bool {
        matches!(self.kind(id), Some(TokenKind::Control | TokenKind::Unknown))
    }

    /// Ids that end a turn, sorted.
    pub fn stop_ids(&self) -> &[TokenId] {
        &self.vocab.stop
    }

    /// Number of tokens known, pads included. The model's logits may have more columns.
    pub fn vocab_size(&self) -> usize {
        self.vocab.tokens.len()
    }

    /// The beginning-of-sequence token, if the file names one.
    pub fn bos(&self) -> Option<TokenId> {
        self.vocab.bos
    }

    /// The added tokens: what [`ChatTemplate::render`](crate::ChatTemplate::render) must guard.
    pub fn added_tokens(&self) -> &AddedTokens {
        &self.added
    }

    /// The vocabulary as data.
    pub fn vocab(&self) -> &Vocab {
        &self.vocab
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size())
            .field("pre_tokenizer", &self.vocab.pre_tokenizer.name)
            .field("stop", &self.vocab.stop)
            .finish_non_exhaustive()
    }
}
