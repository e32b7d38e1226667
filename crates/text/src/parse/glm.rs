//! The output of GLM-4.5 to 5.x: reasoning, content and tool calls.
//!
//! ```text
//! reasoning</think>content<tool_call>NAME<arg_key>K</arg_key><arg_value>V</arg_value>…</tool_call>
//! ```
//! Blanks and newlines between the tags (4.5 and 4.6 write them) mean nothing. Reasoning ends at `</think>` or at a call,
//! whichever is first. Where reasoning or content is nothing but blanks it is dropped; otherwise it is given verbatim.
//! A call to a tool that was not declared, and a call that the answer's end cuts off, are given back as the content
//! that they are made of: never as a call.

use std::sync::Arc;

use serde_json::{Map, Value as Json};

use super::tags::{Event, Tag, Tags};
use super::{Piece, schema};
use crate::{TokenId, Tokenizer};

/// Where the machine is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Reasoning,
    Content,
    Call(CallState),
}

/// Where it is within a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallState {
    Name,
    /// After the name or an argument.
    BetweenArguments,
    Key,
    /// After `</arg_key>`.
    AfterKey,
    Value,
}

/// A call being read.
#[derive(Debug, Default)]
struct Call {
    /// All of it as written, should it turn out to be none.
    raw: String,
    name: String,
    key: String,
    value: String,
    arguments: Vec<(String, String)>,
}

/// Splits output tokens into [`Piece`]s as they come.
#[derive(Debug)]
pub struct GlmParser {
    tags: Tags,
    /// The declared tools; `None` if calls are not looked for.
    tools: Option<Vec<Json>>,
    state: State,
    call: Call,
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
            call: Call::default(),
            held_blanks: String::new(),
            any_text: false,
        }
    }

    /// True while the answer is inside its reasoning.
    pub fn in_reasoning(&self) -> bool {
        self.state == State::Reasoning
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
        if let State::Call(_) = self.state {
            let call = std::mem::take(&mut self.call);
            self.state = State::Content;
            self.text(&call.raw, &mut pieces);
        }
        self.held_blanks.clear();
        pieces
    }

    fn event(&mut self, event: Event, pieces: &mut Vec<Piece>) {
        match (self.state, event) {
            (State::Call(state), event) => self.call_event(state, event, pieces),
            (_, Event::Text(text)) => self.text(&text, pieces),
            (_, Event::Tag(Tag::ToolCall)) if self.tools.is_some() => {
                self.held_blanks.clear();
                self.call = Call {
                    raw: Tag::ToolCall.text().to_owned(),
                    ..Call::default()
                };
                self.enter(State::Call(CallState::Name));
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
        if !self.any_text && text.trim().is_empty() {
            self.held_blanks.push_str(text);
            return;
        }
        self.any_text = true;
        let piece = if self.state == State::Reasoning {
            Piece::Reasoning
        } else {
            Piece::Content
        };
        pieces.push(piece(std::mem::take(&mut self.held_blanks) + text));
    }

    fn call_event(&mut self, state: CallState, event: Event, pieces: &mut Vec<Piece>) {
        use CallState::{AfterKey, BetweenArguments, Key, Name, Value};
        self.call.raw.push_str(match &event {
            Event::Text(text) => text,
            Event::Tag(tag) => tag.text(),
        });
        let next = match (state, event) {
            // A value is over at its own end tag only: it may hold anything else.
            (Value, Event::Tag(Tag::ArgValueEnd)) => {
                self.call.arguments.push((
                    std::mem::take(&mut self.call.key),
                    std::mem::take(&mut self.call.value),
                ));
                BetweenArguments
            }
            (Value, Event::Text(text)) => {
                self.call.value.push_str(&text);
                Value
            }
            (Value, Event::Tag(tag)) => {
                self.call.value.push_str(tag.text());
                Value
            }
            (_, Event::Tag(Tag::ToolCallEnd)) => {
                self.finish_call(pieces);
                return;
            }
            (Name | BetweenArguments | AfterKey, Event::Tag(Tag::ArgKey)) => {
                self.call.key.clear();
                Key
            }
            // Seen in calls without arguments.
            (Name, Event::Tag(Tag::ArgValueEnd)) => BetweenArguments,
            (Name, Event::Text(text)) => {
                self.call.name.push_str(&text);
                Name
            }
            (Key, Event::Text(text)) => {
                self.call.key.push_str(&text);
                Key
            }
            (Key, Event::Tag(Tag::ArgKeyEnd)) => AfterKey,
            (Key | AfterKey, Event::Tag(Tag::ArgValue)) => {
                self.call.key = self.call.key.trim().to_owned();
                Value
            }
            (state, _) => state,
        };
        self.state = State::Call(next);
    }

    fn finish_call(&mut self, pieces: &mut Vec<Piece>) {
        let call = std::mem::take(&mut self.call);
        self.enter(State::Content);
        let name = call.name.trim();
        let tools = self.tools.as_deref().unwrap_or_default();
        if !schema::is_declared(tools, name) {
            self.text(&call.raw, pieces);
            return;
        }
        let typed = |(key, text): (String, String)| {
            let value = schema::typed(tools, name, &key, &text);
            (key, value)
        };
        let arguments: Map<String, Json> = call.arguments.into_iter().map(typed).collect();
        pieces.push(Piece::ToolCall {
            name: name.to_owned(),
            arguments,
        });
    }
}
