//! A tool call while it is being read: from GLM's tags to a name and JSON text.
//!
//! The name comes out once it is whole. Then the arguments come out as JSON text while they are written: a value that the
//! schema makes a string streams as it comes, escaped; any other value comes when it is whole, since only then is its type
//! known. JSON escapes a string character by character, so parts that are escaped on their own join to the whole. The parts of
//! a call, joined, are what serde_json prints of its arguments: it is one text, made in one way.

use serde_json::{Map, Value as Json};

use super::Piece;
use super::schema::{self, ArgumentText};
use super::tags::{Event, Tag};

/// Where the machine is within a call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Name,
    /// After the name or an argument.
    BetweenArguments,
    Key,
    /// After `</arg_key>`.
    AfterKey,
    Value,
}

/// What becomes of the value being read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Fate {
    /// Its type is known when it is whole.
    #[default]
    Whole,
    /// It is a string, and all of it so far is out.
    Streamed,
    /// It is a string unless it turns out to be `null`.
    StringOrNull,
    /// Its key has a value already.
    Dropped,
}

/// A call being read.
#[derive(Debug)]
pub(super) struct Call {
    state: State,
    /// All of it as written, until the tool is known: it may turn out to be no call.
    raw: String,
    name: String,
    /// Whether the name is whole, and is that of a declared tool.
    declared: Option<bool>,
    key: String,
    value: String,
    fate: Fate,
    arguments: Map<String, Json>,
}

/// What an event of a call gave.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// What is certain now.
    pub(super) pieces: Vec<Piece>,
    /// What was taken for a call and is content: no such tool is declared.
    pub(super) content: String,
    /// Whether the call is over.
    pub(super) ended: bool,
}

impl Call {
    /// A call at its opening tag.
    pub(super) fn new() -> Self {
        Self {
            state: State::Name,
            raw: Tag::ToolCall.text().to_owned(),
            name: String::new(),
            declared: None,
            key: String::new(),
            value: String::new(),
            fate: Fate::Whole,
            arguments: Map::new(),
        }
    }

    /// What is content after all, if the answer ends here: all of a call without a whole name.
    pub(super) fn cut_off(&mut self) -> String {
        std::mem::take(&mut self.raw)
    }

    /// Takes the next event.
    pub(super) fn push(&mut self, event: Event, tools: &[Json]) -> Progress {
        use State::{AfterKey, BetweenArguments, Key, Name, Value};
        let mut progress = Progress::default();
        self.raw.push_str(event.text());
        let named_by = matches!(
            event,
            Event::Tag(Tag::ArgKey | Tag::ArgValueEnd | Tag::ToolCallEnd)
        );
        if self.state == Name && named_by {
            self.name_is_whole(tools, &mut progress.pieces);
        }
        self.state = match (self.state, event) {
            // A value is over at its own end tag only: it may hold anything else.
            (Value, Event::Tag(Tag::ArgValueEnd)) => {
                self.value_ends(tools, &mut progress.pieces);
                BetweenArguments
            }
            (Value, event) => {
                self.value_goes_on(event.text(), &mut progress.pieces);
                Value
            }
            (state, Event::Tag(Tag::ToolCallEnd)) => {
                progress.ended = true;
                self.ends(&mut progress.pieces);
                state
            }
            (Name | BetweenArguments | AfterKey, Event::Tag(Tag::ArgKey)) => {
                self.key.clear();
                Key
            }
            // Seen in calls without arguments.
            (Name, Event::Tag(Tag::ArgValueEnd)) => BetweenArguments,
            (Name, Event::Text(text)) => {
                self.name.push_str(&text);
                Name
            }
            (Key, Event::Text(text)) => {
                self.key.push_str(&text);
                Key
            }
            (Key, Event::Tag(Tag::ArgKeyEnd)) => AfterKey,
            (Key | AfterKey, Event::Tag(Tag::ArgValue)) => {
                self.value_begins(tools, &mut progress.pieces);
                Value
            }
            (state, _) => state,
        };
        match self.declared {
            None => {}
            Some(true) => self.raw.clear(),
            Some(false) => {
                progress.content = std::mem::take(&mut self.raw);
                progress.pieces.clear();
            }
        }
        progress
    }

    fn name_is_whole(&mut self, tools: &[Json], pieces: &mut Vec<Piece>) {
        self.name = self.name.trim().to_owned();
        self.declared = Some(schema::is_declared(tools, &self.name));
        pieces.push(Piece::CallStart {
            name: self.name.clone(),
        });
    }

    fn value_begins(&mut self, tools: &[Json], pieces: &mut Vec<Piece>) {
        self.key = self.key.trim().to_owned();
        self.value.clear();
        self.fate = if self.arguments.contains_key(&self.key) {
            Fate::Dropped
        } else {
            match schema::text_by_name(tools, &self.name, &self.key) {
                ArgumentText::Verbatim => Fate::Streamed,
                ArgumentText::VerbatimOrNull => Fate::StringOrNull,
                ArgumentText::Json | ArgumentText::Unknown => Fate::Whole,
            }
        };
        if self.fate == Fate::Streamed {
            pieces.push(Piece::CallArguments(self.opening() + "\""));
        }
    }

    fn value_goes_on(&mut self, text: &str, pieces: &mut Vec<Piece>) {
        self.value.push_str(text);
        match self.fate {
            Fate::Whole | Fate::Dropped => {}
            Fate::Streamed => pieces.push(Piece::CallArguments(escaped(text))),
            Fate::StringOrNull if "null".starts_with(self.value.trim()) => {}
            Fate::StringOrNull => {
                self.fate = Fate::Streamed;
                let text = self.opening() + "\"" + &escaped(&self.value);
                pieces.push(Piece::CallArguments(text));
            }
        }
    }

    fn value_ends(&mut self, tools: &[Json], pieces: &mut Vec<Piece>) {
        let (key, text) = (&self.key, &self.value);
        let value = match self.fate {
            Fate::Dropped => return,
            Fate::Streamed => {
                pieces.push(Piece::CallArguments("\"".to_owned()));
                Json::from(text.as_str())
            }
            Fate::Whole | Fate::StringOrNull => {
                let value = schema::typed(tools, &self.name, key, text);
                pieces.push(Piece::CallArguments(self.opening() + &value.to_string()));
                value
            }
        };
        self.arguments.insert(std::mem::take(&mut self.key), value);
    }

    /// What stands in front of the value of `key`.
    fn opening(&self) -> String {
        let before = if self.arguments.is_empty() { '{' } else { ',' };
        format!("{before}{}:", Json::from(self.key.as_str()))
    }

    fn ends(&mut self, pieces: &mut Vec<Piece>) {
        let arguments = std::mem::take(&mut self.arguments);
        let closing = if arguments.is_empty() { "{}" } else { "}" };
        pieces.push(Piece::CallArguments(closing.to_owned()));
        pieces.push(Piece::CallEnd {
            name: std::mem::take(&mut self.name),
            arguments,
        });
    }
}

/// The text as it stands within a JSON string, without the quotes.
fn escaped(text: &str) -> String {
    let quoted = Json::from(text).to_string();
    quoted
        .strip_prefix('"')
        .and_then(|text| text.strip_suffix('"'))
        .unwrap_or_default()
        .to_owned()
}
