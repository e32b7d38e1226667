//! An answer on its way to the user: tokens in, text out as it comes, and all of it kept for `--json` and for the history.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use glim_text::{ControlTokens, Detokenizer, GlmParser, Piece, TokenId, Tokenizer};
use serde_json::{Map, Value as Json, json};

use crate::exit::Failure;
use crate::ui::Ui;

const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";

/// What of the answer is printed while it comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Show {
    /// Nothing: the caller prints it.
    Nothing,
    /// The answer's content, without its reasoning.
    Content,
    /// Reasoning within `<think>` tags, then content.
    Tagged,
    /// Reasoning dimmed, then content.
    Dimmed,
}

/// From tokens to pieces of the answer.
pub(crate) enum Decoder {
    /// Everything is content, control tokens included.
    Raw(Detokenizer),
    /// Reasoning, content and tool calls.
    Chat(Box<GlmParser>),
}

impl Decoder {
    /// Text as the model says it.
    pub(crate) fn raw(tokenizer: Arc<Tokenizer>) -> Self {
        Self::Raw(Detokenizer::new(tokenizer, ControlTokens::Show))
    }

    /// The parts of a chat's answer.
    pub(crate) fn chat(parser: GlmParser) -> Self {
        Self::Chat(Box::new(parser))
    }

    fn push(&mut self, id: TokenId) -> Vec<Piece> {
        match self {
            Self::Raw(detokenizer) => vec![Piece::Content(detokenizer.push(id))],
            Self::Chat(parser) => parser.push(id),
        }
    }

    fn finish(&mut self) -> Vec<Piece> {
        match self {
            Self::Raw(detokenizer) => vec![Piece::Content(detokenizer.finish())],
            Self::Chat(parser) => parser.finish(),
        }
    }
}

/// A call that the model wants made.
#[derive(Debug, Clone)]
pub(crate) struct ToolCall {
    id: String,
    name: String,
    arguments: Map<String, Json>,
}

impl ToolCall {
    /// As in the OpenAI API: the arguments are a string that holds JSON.
    pub(crate) fn to_json(&self) -> Json {
        let arguments = Json::Object(self.arguments.clone()).to_string();
        json!({ "id": self.id, "type": "function", "function": { "name": self.name, "arguments": arguments } })
    }
}

/// An answer so far.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) text: String,
    pub(crate) reasoning: String,
    pub(crate) tool_calls: Vec<ToolCall>,
}

impl Answer {
    /// The answer as a message of the conversation.
    pub(crate) fn to_message(&self) -> Json {
        let mut message = Map::new();
        message.insert("role".to_owned(), "assistant".into());
        if !self.reasoning.is_empty() {
            message.insert(
                "reasoning_content".to_owned(),
                self.reasoning.clone().into(),
            );
        }
        message.insert("content".to_owned(), self.text.clone().into());
        if !self.tool_calls.is_empty() {
            message.insert(
                "tool_calls".to_owned(),
                self.tool_calls.iter().map(ToolCall::to_json).collect(),
            );
        }
        Json::Object(message)
    }
}

/// Where the printed text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Section {
    Start,
    Reasoning,
    Content,
}

/// Prints an answer while it comes, and keeps it.
pub(crate) struct Printer<'a> {
    ui: &'a Ui,
    show: Show,
    decoder: Decoder,
    answer: Answer,
    section: Section,
    ends_line: bool,
}

impl<'a> Printer<'a> {
    pub(crate) fn new(ui: &'a Ui, show: Show, decoder: Decoder) -> Self {
        Self {
            ui,
            show,
            decoder,
            answer: Answer::default(),
            section: Section::Start,
            ends_line: true,
        }
    }

    /// Takes one token.
    pub(crate) fn push(&mut self, id: TokenId) -> Result<(), Failure> {
        let pieces = self.decoder.push(id);
        self.pieces(pieces)
    }

    /// Ends the answer. A chat's answer ends its line; raw text is left as it is unless a terminal's prompt would follow it.
    pub(crate) fn finish(mut self) -> Result<Answer, Failure> {
        let pieces = self.decoder.finish();
        self.pieces(pieces)?;
        self.enter(Section::Content)?;
        let verbatim = matches!(self.decoder, Decoder::Raw(_)) && !self.ui.is_terminal();
        if self.show != Show::Nothing && !self.ends_line && !verbatim {
            self.print("\n")?;
        }
        Ok(std::mem::take(&mut self.answer))
    }

    fn pieces(&mut self, pieces: Vec<Piece>) -> Result<(), Failure> {
        for piece in pieces {
            match piece {
                Piece::Reasoning(text) => {
                    self.answer.reasoning += &text;
                    if matches!(self.show, Show::Tagged | Show::Dimmed) {
                        self.enter(Section::Reasoning)?;
                        self.print(&text)?;
                    }
                }
                Piece::Content(text) => {
                    self.answer.text += &text;
                    if self.show != Show::Nothing && !text.is_empty() {
                        self.enter(Section::Content)?;
                        self.print(&text)?;
                    }
                }
                Piece::CallStart { name } => self.call_starts(&name)?,
                Piece::CallArguments(part) => {
                    if self.show != Show::Nothing {
                        self.print(&part)?;
                    }
                }
                Piece::CallEnd { name, arguments } => self.call_ends(name, arguments)?,
            }
        }
        Ok(())
    }

    /// A call has a line of its own, on which its arguments appear as they come.
    fn call_starts(&mut self, name: &str) -> Result<(), Failure> {
        if self.show != Show::Nothing {
            self.enter(Section::Content)?;
            let line_end = if self.ends_line { "" } else { "\n" };
            self.print(&format!("{line_end}[tool call] {name} "))?;
        }
        Ok(())
    }

    fn call_ends(&mut self, name: String, arguments: Map<String, Json>) -> Result<(), Failure> {
        if self.show != Show::Nothing {
            self.print("\n")?;
        }
        self.answer.tool_calls.push(ToolCall {
            id: call_id(),
            name,
            arguments,
        });
        Ok(())
    }

    /// Begins and ends the reasoning as it is shown.
    fn enter(&mut self, section: Section) -> Result<(), Failure> {
        let text = match (self.show, self.section, section) {
            (Show::Tagged, Section::Start | Section::Content, Section::Reasoning) => "<think>",
            (Show::Tagged, Section::Reasoning, Section::Content) => "</think>\n",
            (Show::Dimmed, Section::Start | Section::Content, Section::Reasoning) => DIM,
            (Show::Dimmed, Section::Reasoning, Section::Content) => "\x1b[0m\n",
            _ => "",
        };
        self.section = section;
        self.print(text)
    }

    fn print(&mut self, text: &str) -> Result<(), Failure> {
        if !text.is_empty() {
            self.ends_line = text.ends_with('\n') || text == DIM;
            self.ui.print(text)?;
        }
        Ok(())
    }
}

/// An answer that is broken off must not leave the terminal dim.
impl Drop for Printer<'_> {
    fn drop(&mut self) {
        if self.show == Show::Dimmed && self.section == Section::Reasoning {
            let _ = self.ui.print(PLAIN);
        }
    }
}

/// `call_` and 24 hexadecimal digits, unlike any other. The standard library's hash keys are the randomness.
fn call_id() -> String {
    let random = || RandomState::new().build_hasher().finish();
    format!("call_{:016x}{:08x}", random(), random() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_ids_are_unlike_each_other() {
        let (a, b) = (call_id(), call_id());
        assert_ne!(a, b);
        assert_eq!(a.len(), "call_".len() + 24);
    }

    #[test]
    fn arguments_travel_as_a_string_of_json() {
        let arguments = Map::from_iter([("city".to_owned(), Json::from("Oslo"))]);
        let call = ToolCall {
            id: "call_1".into(),
            name: "get_weather".into(),
            arguments,
        };
        assert_eq!(
            call.to_json()["function"]["arguments"],
            "{\"city\":\"Oslo\"}"
        );
        let answer = Answer {
            tool_calls: vec![call],
            ..Answer::default()
        };
        assert_eq!(
            answer.to_message()["tool_calls"][0]["function"]["name"],
            "get_weather"
        );
    }
}
