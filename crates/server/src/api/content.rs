//! Contents of messages, as the protocols that are not the chat's have them: read, and put together as messages of a chat.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::SeqAccessDeserializer;
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json, json};
use utoipa::ToSchema;

/// A text, or a list of blocks.
///
/// Read by the JSON type that stands there, so that an error inside a block says what is wrong with the block.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum TextOrBlocks<T> {
    Text(String),
    Blocks(Vec<T>),
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for TextOrBlocks<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ByType<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for ByType<T> {
            type Value = TextOrBlocks<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a list of parts")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(TextOrBlocks::Text(text.to_owned()))
            }

            fn visit_string<E: de::Error>(self, text: String) -> Result<Self::Value, E> {
                Ok(TextOrBlocks::Text(text))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, blocks: A) -> Result<Self::Value, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(blocks)).map(TextOrBlocks::Blocks)
            }
        }

        deserializer.deserialize_any(ByType(PhantomData))
    }
}

/// Texts as the content of a chat's message: one is a string, several stay parts, none is the empty string.
pub(crate) fn parts(mut texts: Vec<String>) -> Json {
    match texts.len() {
        0 => Json::from(""),
        1 => texts.pop().map_or(Json::Null, Json::from),
        _ => {
            let part = |text| json!({"type": "text", "text": text});
            Json::Array(texts.into_iter().map(part).collect())
        }
    }
}

/// An assistant's message of a chat while its parts come.
///
/// A chat's message has one place each for reasoning, text and calls, in this order. What comes out of it begins a message of its own.
#[derive(Debug, Default)]
pub(crate) struct AssistantMessage {
    reasoning: Option<String>,
    texts: Vec<String>,
    calls: Vec<Json>,
}

impl AssistantMessage {
    /// More reasoning.
    pub(crate) fn reason(&mut self, text: &str, messages: &mut Vec<Json>) {
        if !self.texts.is_empty() || !self.calls.is_empty() {
            self.flush(messages);
        }
        self.reasoning.get_or_insert_default().push_str(text);
    }

    /// More text.
    pub(crate) fn say(&mut self, text: String, messages: &mut Vec<Json>) {
        if !self.calls.is_empty() {
            self.flush(messages);
        }
        self.texts.push(text);
    }

    /// Whether it has text.
    pub(crate) fn has_text(&self) -> bool {
        !self.texts.is_empty()
    }

    /// A call.
    pub(crate) fn call(&mut self, id: &str, name: &str, arguments: Map<String, Json>) {
        self.calls.push(json!({
            "id": id,
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }));
    }

    /// Ends the message, if there is anything of it.
    pub(crate) fn flush(&mut self, messages: &mut Vec<Json>) {
        let Self {
            reasoning,
            texts,
            calls,
        } = std::mem::take(self);
        if reasoning.is_none() && texts.is_empty() && calls.is_empty() {
            return;
        }
        let mut message = Map::new();
        message.insert("role".to_owned(), Json::from("assistant"));
        let content = if texts.is_empty() {
            Json::Null
        } else {
            parts(texts)
        };
        message.insert("content".to_owned(), content);
        if let Some(reasoning) = reasoning {
            message.insert("reasoning_content".to_owned(), Json::from(reasoning));
        }
        if !calls.is_empty() {
            message.insert("tool_calls".to_owned(), Json::Array(calls));
        }
        messages.push(Json::Object(message));
    }
}
