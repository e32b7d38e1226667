//! Byte-level BPE on plain text: the only file that knows the `tokenizers` crate (its 1.0 renames much of what is
//! used here).
//!
//! Text is cut by the pre-tokenizer's regular expression, each piece is written in the byte alphabet and merged.
//! Nothing is normalised, no space is put in front, added tokens are not looked for.

use tokenizers::Model as _;
use tokenizers::models::bpe::{BPE, Vocab as EngineVocab};
use tokenizers::utils::SysRegex;

use crate::vocab::{TokenKind, Vocab};
use crate::{TextError, TokenId, bytes};

/// Longest run of blanks that is encoded, in characters. The expression's `\s*[\r\n]+` backs up through such a run,
/// and the engine aborts a search after ten million steps.
pub const MAX_BLANK_RUN: usize = 1 << 20;

/// The merge engine of one vocabulary.
pub(crate) struct Bpe {
    engine: BPE,
    pieces: SysRegex,
}

impl Bpe {
    /// Builds the engine from the normal tokens and the merges.
    pub(crate) fn new(vocab: &Vocab) -> Result<Self, TextError> {
        let normal: EngineVocab = (0u32..)
            .zip(&vocab.tokens)
            .filter(|(_, token)| token.kind == TokenKind::Normal)
            .map(|(id, token)| (token.text.clone(), id))
            .collect();
        // The engine drops what it has no token for; with all 256 bytes present that cannot happen.
        if let Some(byte) = (0..=255u8)
            .find(|byte| !normal.contains_key(bytes::to_char(*byte).encode_utf8(&mut [0; 4])))
        {
            return Err(invalid(
                "vocabulary",
                format!("without a token for byte 0x{byte:02x}"),
                "a token for each of the 256 bytes",
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
        let pieces = SysRegex::new(vocab.pre_tokenizer.pattern).map_err(|error| {
            invalid(
                "pre-tokenizer",
                format!("unusable ({error})"),
                "a regular expression",
            )
        })?;
        Ok(Self { engine, pieces })
    }

    /// Appends the ids of `text`.
    pub(crate) fn encode(&self, text: &str, ids: &mut Vec<TokenId>) -> Result<(), TextError> {
        check_blank_runs(text)?;
        let mut word = String::new();
        let mut done = 0;
        for (start, end) in self.pieces.find_iter(text) {
            // The known expressions match everywhere; a gap would be a piece of its own.
            self.encode_piece(&text[done..start], &mut word, ids)?;
            self.encode_piece(&text[start..end], &mut word, ids)?;
            done = end;
        }
        self.encode_piece(&text[done..], &mut word, ids)
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
        if piece.is_empty() {
            return Ok(());
        }
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

fn check_blank_runs(text: &str) -> Result<(), TextError> {
    if text.len() <= MAX_BLANK_RUN {
        return Ok(());
    }
    let (mut run, mut start) = (0usize, 0usize);
    for (at, c) in text.char_indices() {
        if !c.is_whitespace() {
            run = 0;
            continue;
        }
        if run == 0 {
            start = at;
        }
        run += 1;
        if run > MAX_BLANK_RUN {
            return Err(TextError::BlankRun {
                limit: MAX_BLANK_RUN,
                at: start,
            });
        }
    }
    Ok(())
}

fn invalid(key: &str, found: String, expected: &str) -> TextError {
    TextError::Invalid {
        place: "tokenizer".to_owned(),
        key: key.to_owned(),
        found,
        expected: expected.to_owned(),
    }
}
