//! The output of GLM-4.5 to 5.x: reasoning, content and tool calls.
//!
//! ```text
//! reasoning</think>content<tool_call>NAME<arg_key>K</arg_key><arg_value>V</arg_value>…</tool_call>
//! ```
//! Blanks and newlines between the tags (4.5 and 4.6 write them) mean nothing. Reasoning ends at `</think>` or at a call,
//! whichever is first. Where reasoning or content is nothing but blanks it is dropped; otherwise it is given verbatim.
//! A call to a tool that was not declared, and a call that the answer's end cuts off before its name is whole, are given
//! back as the content that they are made of: never as a call.

use std::sync::Arc;

use serde_json::Value as Json;

use super::Piece;
use super::call::Call;
use super::tags::{Event, Tag, Tags};
use crate::{TokenId, Tokenizer};

/// Where the machine is.
#[derive(Debug)]
enum State {
    Reasoning,
    Content,
    Call(Box<Call>),
}

/// Splits output tokens into [`Piece`]s as they come.
#[derive(Debug)]
pub struct GlmParser {
    tags: Tags,
    /// The declared tools; `None` if calls are not looked for.
    tools: Option<Vec<Json>>,
    state: State,
    /// Leading blanks, which count only if more than blanks follows.
    held_blanks: String,
    /// Whether reasoning or content other than blanks has come in the current state.
    any_text: bool,
}

impl GlmParser {
    /// A parser at the start of an answer. `starts_in_reasoning` says whether the prompt ended inside `<think>`
    /// ([`starts_in_reasoning`](crate::starts_in_reasoning)). Without `tools`, or with none declared, the tags of calls
    /// are content like any other text.
    pub fn new(
        tokenizer: Arc<Tokenizer>,
        starts_in_reasoning: bool,
        tools: Option<&[Json]>,
    ) -> Self {
        Self {
            tags: Tags::new(tokenizer),
            tools: tools
                .filter(|tools| !tools.is_empty())
                .map(<[Json]>::to_vec),
            state: if starts_in_reasoning {
                State::Reasoning
            } else {
                State::Content
            },
            held_blanks: String::new(),
            any_text: false,
        }
    }

    /// True while the answer is inside its reasoning.
    pub fn in_reasoning(&self) -> bool {
        matches!(self.state, State::Reasoning)
    }

    /// Takes one output token (stop tokens left out) and returns what is certain now.
    pub fn push(&mut self, id: TokenId) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for event in self.tags.push(id) {
            self.event(event, &mut pieces);
        }
        pieces
    }

    /// Ends the answer: what was held back comes out.
    pub fn finish(&mut self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for event in self.tags.finish() {
            self.event(event, &mut pieces);
        }
        if let State::Call(call) = &mut self.state {
            let content = call.cut_off();
            self.state = State::Content;
            self.text(&content, &mut pieces);
        }
        self.held_blanks.clear();
        pieces
    }

    fn event(&mut self, event: Event, pieces: &mut Vec<Piece>) {
        match (&mut self.state, event) {
            (State::Call(call), event) => {
                let tools = self.tools.as_deref().unwrap_or_default();
                let progress = call.push(event, tools);
                if progress.ended {
                    self.state = State::Content;
                }
                self.text(&progress.content, pieces);
                pieces.extend(progress.pieces);
            }
            (_, Event::Text(text)) => self.text(&text, pieces),
            (_, Event::Tag(Tag::ToolCall)) if self.tools.is_some() => {
                self.held_blanks.clear();
                self.enter(State::Call(Box::new(Call::new())));
            }
            (State::Reasoning, Event::Tag(Tag::ThinkEnd)) => {
                self.held_blanks.clear();
                self.enter(State::Content);
            }
            // A model that opens its thought itself; or says so again right at the start of it.
            (State::Reasoning | State::Content, Event::Tag(Tag::Think)) if !self.any_text => {
                self.enter(State::Reasoning)
            }
            (State::Content, Event::Tag(Tag::ThinkEnd)) if !self.any_text => {
                self.held_blanks.clear()
            }
            (_, Event::Tag(tag)) => self.text(tag.text(), pieces),
        }
    }

    fn enter(&mut self, state: State) {
        self.state = state;
        self.any_text = false;
    }

    /// Text of the reasoning or the content. Leading blanks are held until it is known that more than blanks follows.
    fn text(&mut self, text: &str, pieces: &mut Vec<Piece>) {
        if text.is_empty() {
            return;
        }
        if !self.any_text && text.trim().is_empty() {
            self.held_blanks.push_str(text);
            return;
        }
        self.any_text = true;
        let piece = if self.in_reasoning() {
            Piece::Reasoning
        } else {
            Piece::Content
        };
        pieces.push(piece(std::mem::take(&mut self.held_blanks) + text));
    }
}
