//! Output tokens as text and tags.
//!
//! Tags are recognised by token id wherever the vocabulary has them as added tokens, so text that merely looks like a
//! tag is not one. Only tags that are no token are looked for in the text; then a suffix that may be the start of one is
//! held back.

use std::sync::Arc;

use crate::{ControlTokens, Detokenizer, TokenId, Tokenizer};

/// The tags of GLM's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tag {
    Think,
    ThinkEnd,
    ToolCall,
    ToolCallEnd,
    ArgKey,
    ArgKeyEnd,
    ArgValue,
    ArgValueEnd,
}

impl Tag {
    const ALL: [Self; 8] = [
        Self::Think,
        Self::ThinkEnd,
        Self::ToolCall,
        Self::ToolCallEnd,
        Self::ArgKey,
        Self::ArgKeyEnd,
        Self::ArgValue,
        Self::ArgValueEnd,
    ];

    /// How the tag is written.
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Think => "<think>",
            Self::ThinkEnd => "</think>",
            Self::ToolCall => "<tool_call>",
            Self::ToolCallEnd => "</tool_call>",
            Self::ArgKey => "<arg_key>",
            Self::ArgKeyEnd => "</arg_key>",
            Self::ArgValue => "<arg_value>",
            Self::ArgValueEnd => "</arg_value>",
        }
    }
}

/// What the token stream says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    Text(String),
    Tag(Tag),
}

impl Event {
    /// What the model wrote.
    pub(super) fn text(&self) -> &str {
        match self {
            Self::Text(text) => text,
            Self::Tag(tag) => tag.text(),
        }
    }
}

/// Turns token ids into events.
#[derive(Debug)]
pub(super) struct Tags {
    detokenizer: Detokenizer,
    by_id: Vec<(TokenId, Tag)>,
    /// Tags that are no token.
    in_text: Vec<Tag>,
    /// Text that may be the beginning of one of `in_text`.
    held: String,
}

impl Tags {
    pub(super) fn new(tokenizer: Arc<Tokenizer>) -> Self {
        let mut by_id = Vec::new();
        let mut in_text = Vec::new();
        for tag in Tag::ALL {
            match tokenizer.added_tokens().id_of(tag.text()) {
                Some(id) => by_id.push((id, tag)),
                None => in_text.push(tag),
            }
        }
        Self {
            detokenizer: Detokenizer::new(tokenizer, ControlTokens::Skip),
            by_id,
            in_text,
            held: String::new(),
        }
    }

    pub(super) fn push(&mut self, id: TokenId) -> Vec<Event> {
        let mut events = Vec::new();
        match self.by_id.iter().find(|(tag_id, _)| *tag_id == id) {
            Some((_, tag)) => {
                let tag = *tag;
                self.flush(&mut events);
                events.push(Event::Tag(tag));
            }
            None => {
                let text = self.detokenizer.push(id);
                self.scan(&text, &mut events);
            }
        }
        events
    }

    pub(super) fn finish(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        self.flush(&mut events);
        events
    }

    /// Everything held comes out: nothing that follows can belong to it.
    fn flush(&mut self, events: &mut Vec<Event>) {
        let text = self.detokenizer.finish();
        self.scan(&text, events);
        push_text(&std::mem::take(&mut self.held), events);
    }

    fn scan(&mut self, text: &str, events: &mut Vec<Event>) {
        if self.in_text.is_empty() {
            push_text(text, events);
            return;
        }
        let mut rest = std::mem::take(&mut self.held) + text;
        // Several tags may have come at once.
        while let Some((at, tag)) = self
            .in_text
            .iter()
            .filter_map(|tag| Some((rest.find(tag.text())?, *tag)))
            .min_by_key(|(at, _)| *at)
        {
            push_text(&rest[..at], events);
            events.push(Event::Tag(tag));
            rest.drain(..at + tag.text().len());
        }
        let held = self.longest_tag_start(&rest);
        self.held = rest.split_off(rest.len() - held);
        push_text(&rest, events);
    }

    /// Length of the longest suffix of `text` that is a proper beginning of a tag looked for in text.
    fn longest_tag_start(&self, text: &str) -> usize {
        let start = |tag: &Tag| {
            (1..tag.text().len())
                .rev()
                .find(|length| text.ends_with(&tag.text()[..*length]))
        };
        self.in_text.iter().filter_map(start).max().unwrap_or(0)
    }
}

fn push_text(text: &str, events: &mut Vec<Event>) {
    if !text.is_empty() {
        events.push(Event::Text(text.to_owned()));
    }
}
