//! Token ids to text, one by one, never splitting a character.
//!
//! A token may end in the middle of a UTF-8 sequence; those bytes are held until the rest comes. Bytes that can never
//! become a character turn into U+FFFD, one for each maximal broken sequence, exactly as
//! [`String::from_utf8_lossy`] does for the whole: increments joined and the whole decoded are the same text.

use std::sync::Arc;

use crate::{TokenId, Tokenizer};

/// Whether control tokens such as `<|user|>` appear in the text. `<think>` and the tool tags are no control tokens and
/// always appear.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlTokens {
    /// They are text like any other.
    Show,
    /// They yield nothing.
    Skip,
}

/// Turns a stream of token ids into a stream of whole characters.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    control: ControlTokens,
    held: Vec<u8>,
}

impl Detokenizer {
    /// A decoder at the start of a text.
    pub fn new(tokenizer: Arc<Tokenizer>, control: ControlTokens) -> Self {
        Self {
            tokenizer,
            control,
            held: Vec::new(),
        }
    }

    /// Takes one token and returns the text that is complete now, perhaps none. Ids outside the vocabulary (a model's
    /// logits may have pad columns) yield nothing.
    pub fn push(&mut self, id: TokenId) -> String {
        let hidden = self.control == ControlTokens::Skip && self.tokenizer.is_special(id);
        if let (false, Some(bytes)) = (hidden, self.tokenizer.token_bytes(id)) {
            self.held.extend_from_slice(bytes);
        }
        take_complete(&mut self.held)
    }

    /// Ends the text: bytes still held come out as one U+FFFD.
    pub fn finish(&mut self) -> String {
        let rest = String::from_utf8_lossy(&self.held).into_owned();
        self.held.clear();
        rest
    }
}

/// Removes from `held` all that is decided and returns it as text; what may still become a character stays.
fn take_complete(held: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut done = 0;
    let mut chunks = held.utf8_chunks().peekable();
    while let Some(chunk) = chunks.next() {
        text.push_str(chunk.valid());
        done += chunk.valid().len();
        let broken = chunk.invalid();
        let undecided = chunks.peek().is_none() && may_continue(broken);
        if !broken.is_empty() && !undecided {
            text.push(char::REPLACEMENT_CHARACTER);
            done += broken.len();
        }
    }
    held.drain(..done);
    text
}

/// True if these bytes are the beginning of a character.
fn may_continue(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_held_until_the_character_is_whole() {
        let mut held = Vec::new();
        let steps: [(&[u8], &str); 5] = [
            (b"a\xF0\x9F", "a"),
            (b"\x98", ""),
            (b"\x80b\xE2", "\u{1F600}b"),
            (b"x", "\u{FFFD}x"),
            (b"\xFF\x80", "\u{FFFD}\u{FFFD}"),
        ];
        for (bytes, text) in steps {
            held.extend_from_slice(bytes);
            assert_eq!(take_complete(&mut held), text);
        }
        assert!(held.is_empty());
    }
}
