//! Byte-level BPE on plain text. This file and `split.rs` are the only ones that know the `tokenizers` crate (its 1.0
//! renames much of what is used here).
//!
//! Text is cut by the pre-tokenizer's regular expressions, each piece is written in the byte alphabet and merged.
//! Nothing is normalised, no space is put in front, added tokens are not looked for.

use tokenizers::Model as _;
use tokenizers::models::bpe::{BPE, Vocab as EngineVocab};

use crate::split::Splitter;
use crate::vocab::{TokenKind, Vocab};
use crate::{TextError, TokenId, bytes};

/// The merge engine of one vocabulary.
pub(crate) struct Bpe {
    engine: BPE,
    splitter: Splitter,
    /// The bytes that no token stands for.
    without_token: [bool; 256],
}

impl Bpe {
    /// Builds the engine from the normal tokens and the merges.
    pub(crate) fn new(vocab: &Vocab) -> Result<Self, TextError> {
        let normal: EngineVocab = (0u32..)
            .zip(&vocab.tokens)
            .filter(|(_, token)| token.kind == TokenKind::Normal)
            .map(|(id, token)| (token.text.clone(), id))
            .collect();
        let without_token: [bool; 256] = std::array::from_fn(|byte| {
            let byte = bytes::to_char(byte as u8);
            !normal.contains_key(byte.encode_utf8(&mut [0; 4]))
        });
        // Some vocabularies leave out bytes that their training text did not hold: control characters, far planes of
        // Unicode. Without these it is no vocabulary of text.
        if let Some(byte) = (b' '..=b'~')
            .chain([b'\n'])
            .find(|byte| without_token[usize::from(*byte)])
        {
            return Err(invalid(
                "vocabulary",
                format!("without a token for byte 0x{byte:02x}"),
                "a token for each visible character of ASCII, the blank and the newline",
            ));
        }
        // The engine reports a merge of unknown parts or result, but indexes out of bounds if the result is longer than
        // every token.
        let longest = normal.keys().map(String::len).max().unwrap_or(0);
        if let Some(rank) = vocab
            .merges
            .iter()
            .position(|(left, right)| left.len().saturating_add(right.len()) > longest)
        {
            return Err(invalid(
                "merges",
                format!("unusable (number {rank} makes no token)"),
                "pairs whose parts and result are tokens",
            ));
        }
        let engine = BPE::builder()
            .vocab_and_merges(normal, vocab.merges.clone())
            .ignore_merges(vocab.ignore_merges)
            .build()
            .map_err(|error| {
                invalid(
                    "merges",
                    format!("unusable ({error})"),
                    "pairs whose parts and result are tokens",
                )
            })?;
        Ok(Self {
            engine,
            splitter: Splitter::new(vocab.pre_tokenizer)?,
            without_token,
        })
    }

    /// Appends the ids of `text`.
    pub(crate) fn encode(&self, text: &str, ids: &mut Vec<TokenId>) -> Result<(), TextError> {
        // The engine would drop them without a word.
        if let Some((at, byte)) = text
            .bytes()
            .enumerate()
            .find(|(_, byte)| self.without_token[usize::from(*byte)])
        {
            return Err(TextError::ByteWithoutToken { byte, at });
        }
        let mut word = String::new();
        self.splitter
            .for_each(text, &mut |piece| self.encode_piece(piece, &mut word, ids))
    }

    /// The id of a normal token by its string in the byte alphabet.
    pub(crate) fn id_of(&self, alphabet_text: &str) -> Option<TokenId> {
        self.engine.token_to_id(alphabet_text).map(TokenId)
    }

    fn encode_piece(
        &self,
        piece: &str,
        word: &mut String,
        ids: &mut Vec<TokenId>,
    ) -> Result<(), TextError> {
        word.clear();
        bytes::encode_into(piece, word);
        let tokens = self
            .engine
            .tokenize(word)
            .map_err(|error| TextError::Encode {
                reason: error.to_string(),
            })?;
        ids.extend(tokens.iter().map(|token| TokenId(token.id)));
        Ok(())
    }
}

fn invalid(key: &str, found: String, expected: &str) -> TextError {
    TextError::Invalid {
        place: "tokenizer".to_owned(),
        key: key.to_owned(),
        found,
        expected: expected.to_owned(),
    }
}
