//! The pieces of an answer as blocks: at once, or as the events of a stream.
//!
//! The order of events is that of Anthropic's API: `message_start`, `ping`, then for each block its start, its deltas and its stop, one
//! block after the other, then `message_delta` with the reason and the usage, and `message_stop`.

use glim_text::Piece;
use serde_json::Map;

use super::reply::{
    AssistantRole, BlockDelta, Message, MessageEnd, MessageKind, ReplyBlock, SIGNATURE, StopReason,
    StreamEvent, Usage,
};

/// How the generation ended, as far as this protocol cares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ending {
    /// By its own end, or with calls.
    Whole,
    /// By `max_tokens` or the context.
    Cut,
    /// By one of `stop_sequences`.
    StopSequence(String),
}

/// The reason that is reported: calls are one only if there is a call.
fn end(ending: Ending, calls: usize) -> MessageEnd {
    let (stop_reason, stop_sequence) = match ending {
        Ending::Cut => (StopReason::MaxTokens, None),
        _ if calls > 0 => (StopReason::ToolUse, None),
        Ending::StopSequence(text) => (StopReason::StopSequence, Some(text)),
        Ending::Whole => (StopReason::EndTurn, None),
    };
    MessageEnd {
        stop_reason,
        stop_sequence,
    }
}

/// A message before anything was generated.
pub(super) fn empty_message(id: String, model: String, prompt_tokens: usize) -> Message {
    Message {
        id,
        kind: MessageKind::Message,
        role: AssistantRole::Assistant,
        content: Vec::new(),
        model,
        stop_reason: None,
        stop_sequence: None,
        usage: Usage {
            input_tokens: prompt_tokens,
            ..Usage::default()
        },
    }
}

/// Makes ids of calls.
pub(super) type CallIds = Box<dyn FnMut() -> String + Send>;

/// Gathers a whole message.
pub(super) struct Collector {
    message: Message,
    ids: CallIds,
    calls: usize,
    /// The next piece of text begins a block of its own.
    parted: bool,
}

impl Collector {
    pub(super) fn new(message: Message, ids: CallIds) -> Self {
        Self {
            message,
            ids,
            calls: 0,
            parted: false,
        }
    }

    /// Takes the next piece. A call counts when it is whole.
    pub(super) fn push(&mut self, piece: Piece) {
        let content = &mut self.message.content;
        match piece {
            Piece::Reasoning(text) | Piece::Content(text) if text.is_empty() => {}
            Piece::Reasoning(more) => match content.last_mut() {
                Some(ReplyBlock::Thinking { thinking, .. }) if !self.parted => {
                    thinking.push_str(&more);
                }
                _ => {
                    self.parted = false;
                    content.push(ReplyBlock::Thinking {
                        thinking: more,
                        signature: SIGNATURE.to_owned(),
                    });
                }
            },
            Piece::Content(more) => match content.last_mut() {
                Some(ReplyBlock::Text { text }) if !self.parted => text.push_str(&more),
                _ => {
                    self.parted = false;
                    content.push(ReplyBlock::Text { text: more });
                }
            },
            Piece::CallStart { .. } => self.parted = true,
            Piece::CallArguments(_) => {}
            Piece::CallEnd { name, arguments } => {
                self.calls += 1;
                content.push(ReplyBlock::ToolUse {
                    id: (self.ids)(),
                    name,
                    input: arguments,
                });
            }
        }
    }

    /// The message.
    pub(super) fn finish(mut self, ending: Ending, usage: Usage) -> Message {
        let end = end(ending, self.calls);
        self.message.stop_reason = Some(end.stop_reason);
        self.message.stop_sequence = end.stop_sequence;
        self.message.usage = usage;
        self.message
    }
}

/// The block that is open in a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    Text,
    Thinking,
    Call,
}

/// Turns pieces into events.
pub(super) struct Events {
    ids: CallIds,
    /// Blocks begun so far.
    blocks: usize,
    open: Option<Open>,
    /// Whole calls so far.
    calls: usize,
}

impl Events {
    /// A stream, and what it begins with.
    pub(super) fn new(message: Message, ids: CallIds) -> (Self, [StreamEvent; 2]) {
        let this = Self {
            ids,
            blocks: 0,
            open: None,
            calls: 0,
        };
        (
            this,
            [StreamEvent::MessageStart { message }, StreamEvent::Ping {}],
        )
    }

    /// The events of the next piece.
    pub(super) fn push(&mut self, piece: Piece) -> Vec<StreamEvent> {
        let mut out = Vec::new();
        match piece {
            Piece::Reasoning(text) | Piece::Content(text) if text.is_empty() => {}
            Piece::Reasoning(thinking) => {
                if self.open != Some(Open::Thinking) {
                    let block = ReplyBlock::Thinking {
                        thinking: String::new(),
                        signature: String::new(),
                    };
                    self.start(Open::Thinking, block, &mut out);
                }
                self.delta(BlockDelta::Thinking { thinking }, &mut out);
            }
            Piece::Content(text) => {
                if self.open != Some(Open::Text) {
                    let block = ReplyBlock::Text {
                        text: String::new(),
                    };
                    self.start(Open::Text, block, &mut out);
                }
                self.delta(BlockDelta::Text { text }, &mut out);
            }
            Piece::CallStart { name } => {
                let block = ReplyBlock::ToolUse {
                    id: (self.ids)(),
                    name,
                    input: Map::new(),
                };
                self.start(Open::Call, block, &mut out);
            }
            Piece::CallArguments(partial_json) => {
                if !partial_json.is_empty() {
                    self.delta(BlockDelta::InputJson { partial_json }, &mut out);
                }
            }
            Piece::CallEnd { .. } => {
                self.calls += 1;
                self.stop(&mut out);
            }
        }
        out
    }

    /// The last events.
    pub(super) fn finish(mut self, ending: Ending, usage: Usage) -> Vec<StreamEvent> {
        let mut out = Vec::new();
        self.stop(&mut out);
        out.push(StreamEvent::MessageDelta {
            delta: end(ending, self.calls),
            usage,
        });
        out.push(StreamEvent::MessageStop {});
        out
    }

    fn start(&mut self, open: Open, content_block: ReplyBlock, out: &mut Vec<StreamEvent>) {
        self.stop(out);
        out.push(StreamEvent::ContentBlockStart {
            index: self.blocks,
            content_block,
        });
        self.blocks += 1;
        self.open = Some(open);
    }

    fn delta(&self, delta: BlockDelta, out: &mut Vec<StreamEvent>) {
        // Within a block, so there has been one.
        let index = self.blocks.saturating_sub(1);
        out.push(StreamEvent::ContentBlockDelta { index, delta });
    }

    fn stop(&mut self, out: &mut Vec<StreamEvent>) {
        let Some(open) = self.open.take() else { return };
        if open == Open::Thinking {
            let signature = SIGNATURE.to_owned();
            self.delta(BlockDelta::Signature { signature }, out);
        }
        out.push(StreamEvent::ContentBlockStop {
            index: self.blocks.saturating_sub(1),
        });
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;

    fn counted(prefix: &'static str) -> CallIds {
        let mut count = 0;
        Box::new(move || {
            count += 1;
            format!("{prefix}{count}")
        })
    }

    fn message() -> Message {
        empty_message("msg_1".to_owned(), "tiny".to_owned(), 7)
    }

    const USAGE: Usage = Usage {
        input_tokens: 3,
        cache_read_input_tokens: 4,
        cache_creation_input_tokens: 0,
        output_tokens: 9,
        output_tokens_details: super::super::reply::OutputTokensDetails { thinking_tokens: 2 },
    };

    fn reasoning(text: &str) -> Piece {
        Piece::Reasoning(text.to_owned())
    }

    fn content(text: &str) -> Piece {
        Piece::Content(text.to_owned())
    }

    /// A call whose arguments come in these parts.
    fn call(name: &str, parts: &[&str]) -> Vec<Piece> {
        let mut pieces = cut_call(name, parts);
        pieces.push(Piece::CallEnd {
            name: name.to_owned(),
            arguments: serde_json::from_str(&parts.concat()).unwrap(),
        });
        pieces
    }

    /// The same, ended before its end.
    fn cut_call(name: &str, parts: &[&str]) -> Vec<Piece> {
        let mut pieces = vec![Piece::CallStart {
            name: name.to_owned(),
        }];
        pieces.extend(
            parts
                .iter()
                .map(|part| Piece::CallArguments((*part).to_owned())),
        );
        pieces
    }

    fn stream(pieces: Vec<Piece>, ending: Ending) -> Vec<Json> {
        let (mut events, first) = Events::new(message(), counted("toolu_"));
        let mut all = first.to_vec();
        for piece in pieces {
            all.extend(events.push(piece));
        }
        all.extend(events.finish(ending, USAGE));
        all.iter()
            .map(|event| {
                let json = serde_json::to_value(event).unwrap();
                assert_eq!(json["type"], event.name());
                json
            })
            .collect()
    }

    fn collect(pieces: Vec<Piece>, ending: Ending) -> Json {
        let mut collector = Collector::new(message(), counted("toolu_"));
        for piece in pieces {
            collector.push(piece);
        }
        serde_json::to_value(collector.finish(ending, USAGE)).unwrap()
    }

    /// What a client makes of the events: `accumulate_event` of Anthropic's Python client, and blocks that were cut dropped.
    fn join(events: &[Json]) -> Json {
        let mut message = Json::Null;
        let mut arguments = String::new();
        let append = |block: &mut Json, key: &str, more: &Json| {
            let joined = format!("{}{}", block[key].as_str().unwrap(), more.as_str().unwrap());
            block[key] = Json::from(joined);
        };
        for event in events {
            match event["type"].as_str().unwrap() {
                "message_start" => message = event["message"].clone(),
                "content_block_start" => {
                    let blocks = message["content"].as_array_mut().unwrap();
                    assert_eq!(event["index"], blocks.len());
                    blocks.push(event["content_block"].clone());
                    arguments.clear();
                }
                "content_block_delta" => {
                    let index = usize::try_from(event["index"].as_u64().unwrap()).unwrap();
                    let block = &mut message["content"][index];
                    let delta = &event["delta"];
                    match delta["type"].as_str().unwrap() {
                        "text_delta" => append(block, "text", &delta["text"]),
                        "thinking_delta" => append(block, "thinking", &delta["thinking"]),
                        "signature_delta" => append(block, "signature", &delta["signature"]),
                        "input_json_delta" => {
                            arguments.push_str(delta["partial_json"].as_str().unwrap())
                        }
                        other => panic!("{other}"),
                    }
                }
                "content_block_stop" => {
                    let block = message["content"]
                        .as_array_mut()
                        .unwrap()
                        .last_mut()
                        .unwrap();
                    if block["type"] == "tool_use" {
                        block["input"] = serde_json::from_str(&arguments).unwrap_or(Json::Null);
                    }
                }
                "message_delta" => {
                    for key in ["stop_reason", "stop_sequence"] {
                        message[key] = event["delta"][key].clone();
                    }
                    message["usage"] = event["usage"].clone();
                }
                "ping" | "message_stop" => {}
                other => panic!("{other}"),
            }
        }
        let blocks = message["content"].as_array_mut().unwrap();
        blocks.retain(|block| block["type"] != "tool_use" || !block["input"].is_null());
        message
    }

    #[test]
    fn events_come_in_the_order_of_the_protocol() {
        let mut pieces = vec![
            reasoning("Hm"),
            reasoning("."),
            content("Let"),
            content(" me see."),
        ];
        pieces.extend(call("weather", &["{\"city\":", "\"Rome\"}"]));
        let usage = json!({
            "input_tokens": 3, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 0, "output_tokens": 9,
            "output_tokens_details": {"thinking_tokens": 2}
        });
        let at_start = json!({
            "input_tokens": 7, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0, "output_tokens": 0,
            "output_tokens_details": {"thinking_tokens": 0}
        });
        assert_eq!(
            stream(pieces, Ending::Whole),
            [
                json!({"type": "message_start", "message": {
                    "id": "msg_1", "type": "message", "role": "assistant", "content": [], "model": "tiny",
                    "stop_reason": null, "stop_sequence": null, "usage": at_start}}),
                json!({"type": "ping"}),
                json!({"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": "", "signature": ""}}),
                json!({"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "Hm"}}),
                json!({"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "."}}),
                json!({"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": SIGNATURE}}),
                json!({"type": "content_block_stop", "index": 0}),
                json!({"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}}),
                json!({"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "Let"}}),
                json!({"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": " me see."}}),
                json!({"type": "content_block_stop", "index": 1}),
                json!({"type": "content_block_start", "index": 2, "content_block": {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}}}),
                json!({"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": "{\"city\":"}}),
                json!({"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": "\"Rome\"}"}}),
                json!({"type": "content_block_stop", "index": 2}),
                json!({"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": null}, "usage": usage}),
                json!({"type": "message_stop"}),
            ]
        );
    }

    #[test]
    fn joined_events_are_the_whole_message() {
        let answers = [
            vec![],
            vec![content(""), reasoning("")],
            vec![
                reasoning("a"),
                content("b"),
                reasoning("c"),
                content("d"),
                content("e"),
            ],
            [call("f", &["{}"]), call("g", &["{\"a\":1", "", "}"])].concat(),
            [vec![content("x")], call("f", &["{}"]), vec![content("y")]].concat(),
            [vec![content("x")], cut_call("f", &["{\"a\": \"b"])].concat(),
            [vec![content("x")], cut_call("f", &[]), vec![content("y")]].concat(),
        ];
        for pieces in answers {
            for ending in [
                Ending::Whole,
                Ending::Cut,
                Ending::StopSequence("END".to_owned()),
            ] {
                assert_eq!(
                    join(&stream(pieces.clone(), ending.clone())),
                    collect(pieces.clone(), ending.clone()),
                    "{pieces:?} {ending:?}"
                );
            }
        }
    }

    #[test]
    fn the_reason_is_tools_only_with_a_whole_call() {
        let stopped = || Ending::StopSequence("END".to_owned());
        for (pieces, ending, reason, sequence) in [
            (vec![content("a")], Ending::Whole, "end_turn", Json::Null),
            (vec![content("a")], Ending::Cut, "max_tokens", Json::Null),
            (vec![content("a")], stopped(), "stop_sequence", json!("END")),
            (call("f", &["{}"]), Ending::Whole, "tool_use", Json::Null),
            (call("f", &["{}"]), Ending::Cut, "max_tokens", Json::Null),
            (
                cut_call("f", &["{\"a"]),
                Ending::Whole,
                "end_turn",
                Json::Null,
            ),
            (
                cut_call("f", &["{\"a"]),
                Ending::Cut,
                "max_tokens",
                Json::Null,
            ),
        ] {
            let message = collect(pieces.clone(), ending.clone());
            assert_eq!(message["stop_reason"], reason, "{pieces:?} {ending:?}");
            assert_eq!(message["stop_sequence"], sequence);
            let streamed = stream(pieces, ending);
            let delta = streamed
                .iter()
                .find(|event| event["type"] == "message_delta");
            assert_eq!(delta.unwrap()["delta"]["stop_reason"], reason);
        }
    }
}
