//! Added tokens: texts such as `<|user|>` that are one token as a whole, found in raw text.
//!
//! They are matched before the pre-tokenizer, leftmost first and longest first at each place, and only in text that
//! the chat template wrote: see [`taint`](crate::taint).

use std::ops::Range;

use crate::TokenId;

/// The added tokens of a vocabulary, ready to be looked for.
///
/// `AddedTokens::default()` is the empty set.
#[derive(Debug, Clone, Default)]
pub struct AddedTokens {
    /// Longest first, so that the first hit at a place is the longest.
    tokens: Vec<(String, TokenId)>,
    /// For each possible first byte the indices into `tokens`, longest first. Empty if there are no tokens.
    by_first_byte: Vec<Vec<u32>>,
}

impl AddedTokens {
    /// From (text, id); empty texts are left out.
    pub fn new(tokens: impl IntoIterator<Item = (String, TokenId)>) -> Self {
        let mut tokens: Vec<_> = tokens
            .into_iter()
            .filter(|(text, _)| !text.is_empty())
            .collect();
        tokens.sort_by(|a, b| b.0.len().cmp(&a.0.len()).then_with(|| a.cmp(b)));
        tokens.dedup_by(|a, b| a.0 == b.0);
        let mut by_first_byte = vec![Vec::new(); if tokens.is_empty() { 0 } else { 256 }];
        for (index, (text, _)) in (0u32..).zip(&tokens) {
            by_first_byte[usize::from(text.as_bytes()[0])].push(index);
        }
        Self {
            tokens,
            by_first_byte,
        }
    }

    /// All tokens, longest first.
    pub fn iter(&self) -> impl Iterator<Item = (&str, TokenId)> {
        self.tokens.iter().map(|(text, id)| (text.as_str(), *id))
    }

    /// The id of an added token by its exact text.
    pub fn id_of(&self, text: &str) -> Option<TokenId> {
        self.starting_at(text.as_bytes())
            .find(|(found, _)| *found == text)
            .map(|(_, id)| id)
    }

    /// Tokens that `rest` starts with, longest first.
    fn starting_at<'a>(&'a self, rest: &'a [u8]) -> impl Iterator<Item = (&'a str, TokenId)> {
        rest.first()
            .and_then(|byte| self.by_first_byte.get(usize::from(*byte)))
            .into_iter()
            .flatten()
            .filter_map(|&index| self.tokens.get(index as usize))
            .filter(move |(text, _)| rest.starts_with(text.as_bytes()))
            .map(|(text, id)| (text.as_str(), *id))
    }

    /// The leftmost token at or after `from`, longest first, that `allowed` accepts: (byte range, id).
    pub(crate) fn find(
        &self,
        text: &str,
        from: usize,
        allowed: impl Fn(&Range<usize>) -> bool,
    ) -> Option<(Range<usize>, TokenId)> {
        let bytes = text.as_bytes();
        (from..bytes.len()).find_map(|at| {
            self.starting_at(&bytes[at..])
                .map(|(found, id)| (at..at + found.len(), id))
                .find(|(range, _)| allowed(range))
        })
    }

    /// Every place where any token's text stands, overlapping ones merged, in order.
    pub(crate) fn occurrences(&self, text: &str) -> Vec<Range<usize>> {
        let bytes = text.as_bytes();
        let mut found: Vec<Range<usize>> = Vec::new();
        for at in 0..bytes.len() {
            // The longest one covers all shorter ones that start at the same place.
            let Some((token, _)) = self.starting_at(&bytes[at..]).next() else {
                continue;
            };
            let end = at + token.len();
            match found.last_mut() {
                Some(last) if at < last.end => last.end = last.end.max(end),
                _ => found.push(at..end),
            }
        }
        found
    }

    /// The longest end of `text` that is the beginning of a token, so that what follows could complete it.
    pub(crate) fn unfinished_end<'a>(&self, text: &'a str) -> Option<&'a str> {
        let longest = |token: &str| {
            (1..token.len()).rev().find(|cut| {
                token
                    .get(..*cut)
                    .is_some_and(|beginning| text.ends_with(beginning))
            })
        };
        self.tokens
            .iter()
            .filter_map(|(token, _)| longest(token))
            .max()
            .map(|length| &text[text.len() - length..])
    }
}
