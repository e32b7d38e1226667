//! The pieces of an answer as items: as the events of a stream, at whose end stands the whole response.
//!
//! An answer that does not stream is made by the same events, of which nobody is told: so both are the same by construction.

use glim_text::Piece;

use super::reply::{
    AssistantRole, IncompleteDetails, IncompleteReason, OutputItem, OutputPart, ResponseError,
    ResponseEvent, ResponseObject, ResponseUsage, Status, What,
};
use super::translate::PLAIN;

/// The one part of an item.
const CONTENT_INDEX: usize = 0;

/// Makes ids of a kind: `rs`, `msg`, `fc`, `call`.
pub(super) type Ids = Box<dyn FnMut(&'static str) -> String + Send>;

/// The item that is open.
#[derive(Clone)]
enum Open {
    Reasoning { id: String, text: String },
    Message { id: String, text: String },
    Call(Call),
}

#[derive(Clone)]
struct Call {
    id: String,
    call_id: String,
    name: String,
    arguments: String,
}

impl Open {
    fn id(&self) -> String {
        match self {
            Self::Reasoning { id, .. } | Self::Message { id, .. } | Self::Call(Call { id, .. }) => {
                id.clone()
            }
        }
    }
}

/// How the generation ended, as far as this protocol cares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// By its own end, or with calls.
    Whole,
    /// By the limit of tokens or of the context.
    Cut,
}

/// Turns pieces into events.
pub(super) struct Events {
    /// As it is so far.
    response: ResponseObject,
    ids: Ids,
    /// Reasoning items carry their text in `encrypted_content` too.
    encrypted: bool,
    open: Option<Open>,
    /// Items begun so far.
    items: usize,
    sequence_number: u64,
    out: Vec<ResponseEvent>,
}

impl Events {
    /// A stream, of a response that is in progress and has no output.
    pub(super) fn new(response: ResponseObject, encrypted: bool, ids: Ids) -> Self {
        let mut this = Self {
            response,
            ids,
            encrypted,
            open: None,
            items: 0,
            sequence_number: 0,
            out: Vec::new(),
        };
        this.tell(What::Created {
            response: this.response.clone(),
        });
        this.tell(What::InProgress {
            response: this.response.clone(),
        });
        this
    }

    /// The events since the last call.
    pub(super) fn take(&mut self) -> Vec<ResponseEvent> {
        std::mem::take(&mut self.out)
    }

    /// The response as it is so far.
    pub(super) fn into_response(self) -> ResponseObject {
        self.response
    }

    /// The next piece.
    pub(super) fn push(&mut self, piece: Piece) {
        match piece {
            Piece::Reasoning(text) | Piece::Content(text) if text.is_empty() => {}
            Piece::Reasoning(delta) => {
                if !matches!(self.open, Some(Open::Reasoning { .. })) {
                    let id = (self.ids)("rs");
                    let text = String::new();
                    self.begin(Open::Reasoning { id, text });
                }
                self.more(delta);
            }
            Piece::Content(delta) => {
                if !matches!(self.open, Some(Open::Message { .. })) {
                    let id = (self.ids)("msg");
                    let text = String::new();
                    self.begin(Open::Message { id, text });
                }
                self.more(delta);
            }
            Piece::CallStart { name } => {
                let id = (self.ids)("fc");
                let call_id = (self.ids)("call");
                self.begin(Open::Call(Call {
                    id,
                    call_id,
                    name,
                    arguments: String::new(),
                }));
            }
            Piece::CallArguments(delta) => {
                if !delta.is_empty() {
                    self.more(delta);
                }
            }
            Piece::CallEnd { .. } => self.close(Status::Completed),
        }
    }

    /// All pieces have come.
    pub(super) fn finish(&mut self, ending: Ending, usage: ResponseUsage, now: u64) {
        match (&self.open, ending) {
            // A call without its end is none.
            (_, Ending::Cut) | (Some(Open::Call(_)), _) => self.close(Status::Incomplete),
            (_, Ending::Whole) => self.close(Status::Completed),
        }
        self.response.usage = Some(usage);
        match ending {
            Ending::Whole => {
                self.response.status = Status::Completed;
                self.response.completed_at = Some(now);
                self.tell(What::Completed {
                    response: self.response.clone(),
                });
            }
            Ending::Cut => {
                self.response.status = Status::Incomplete;
                self.response.incomplete_details = Some(IncompleteDetails {
                    reason: IncompleteReason::MaxOutputTokens,
                });
                self.tell(What::Incomplete {
                    response: self.response.clone(),
                });
            }
        }
    }

    /// The generation has failed: what is there stays as it is.
    pub(super) fn fail(&mut self, error: ResponseError) {
        self.response.status = Status::Failed;
        self.response.error = Some(error);
        self.tell(What::Failed {
            response: self.response.clone(),
        });
    }

    fn tell(&mut self, what: What) {
        self.out.push(ResponseEvent {
            what,
            sequence_number: self.sequence_number,
        });
        self.sequence_number += 1;
    }

    /// The index of the open item.
    fn index(&self) -> usize {
        self.items.saturating_sub(1)
    }

    fn begin(&mut self, open: Open) {
        self.close(Status::Completed);
        self.items += 1;
        let output_index = self.index();
        let item_id = open.id();
        let part = match &open {
            Open::Reasoning { .. } => Some(OutputPart::ReasoningText {
                text: String::new(),
            }),
            Open::Message { .. } => Some(output_text(String::new())),
            Open::Call(_) => None,
        };
        let item = self.item(open.clone(), Status::InProgress);
        self.open = Some(open);
        self.tell(What::ItemAdded { output_index, item });
        if let Some(part) = part {
            self.tell(What::PartAdded {
                item_id,
                output_index,
                content_index: CONTENT_INDEX,
                part,
            });
        }
    }

    /// More of the open item.
    fn more(&mut self, delta: String) {
        let output_index = self.index();
        let content_index = CONTENT_INDEX;
        let Some(open) = &mut self.open else { return };
        let item_id = open.id();
        let what = match open {
            Open::Reasoning { text, .. } => {
                text.push_str(&delta);
                What::ReasoningDelta {
                    item_id,
                    output_index,
                    content_index,
                    delta,
                }
            }
            Open::Message { text, .. } => {
                text.push_str(&delta);
                What::TextDelta {
                    item_id,
                    output_index,
                    content_index,
                    delta,
                    logprobs: [],
                }
            }
            Open::Call(call) => {
                call.arguments.push_str(&delta);
                What::ArgumentsDelta {
                    item_id,
                    output_index,
                    delta,
                }
            }
        };
        self.tell(what);
    }

    /// Ends the open item, if there is one.
    fn close(&mut self, status: Status) {
        let Some(open) = self.open.take() else { return };
        let output_index = self.index();
        let content_index = CONTENT_INDEX;
        let item_id = open.id();
        let part = match &open {
            Open::Reasoning { text, .. } => {
                let text = text.clone();
                self.tell(What::ReasoningDone {
                    item_id: item_id.clone(),
                    output_index,
                    content_index,
                    text: text.clone(),
                });
                Some(OutputPart::ReasoningText { text })
            }
            Open::Message { text, .. } => {
                let text = text.clone();
                self.tell(What::TextDone {
                    item_id: item_id.clone(),
                    output_index,
                    content_index,
                    text: text.clone(),
                    logprobs: [],
                });
                Some(output_text(text))
            }
            Open::Call(call) => {
                if status == Status::Completed {
                    let (name, arguments) = (call.name.clone(), call.arguments.clone());
                    self.tell(What::ArgumentsDone {
                        item_id: item_id.clone(),
                        output_index,
                        name,
                        arguments,
                    });
                }
                None
            }
        };
        if let Some(part) = part {
            self.tell(What::PartDone {
                item_id,
                output_index,
                content_index,
                part,
            });
        }
        let is_cut_call = matches!(open, Open::Call(_)) && status != Status::Completed;
        let item = self.item(open, status);
        self.tell(What::ItemDone {
            output_index,
            item: item.clone(),
        });
        if !is_cut_call {
            self.response.output.push(item);
        }
    }

    /// An item as it is printed. A new one has no parts: they are added by events of their own.
    fn item(&self, open: Open, status: Status) -> OutputItem {
        let is_new = status == Status::InProgress;
        match open {
            Open::Reasoning { id, text } => OutputItem::Reasoning {
                id,
                summary: [],
                encrypted_content: (self.encrypted && !is_new).then(|| format!("{PLAIN}{text}")),
                content: if is_new {
                    Vec::new()
                } else {
                    vec![OutputPart::ReasoningText { text }]
                },
                status,
            },
            Open::Message { id, text } => OutputItem::Message {
                id,
                role: AssistantRole::Assistant,
                content: if is_new {
                    Vec::new()
                } else {
                    vec![output_text(text)]
                },
                status,
            },
            Open::Call(Call {
                id,
                call_id,
                name,
                arguments,
            }) => OutputItem::FunctionCall {
                id,
                call_id,
                name,
                arguments,
                status,
            },
        }
    }
}

fn output_text(text: String) -> OutputPart {
    OutputPart::OutputText {
        text,
        annotations: [],
        logprobs: [],
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use serde_json::{Value as Json, json};

    use super::super::empty_response;
    use super::super::reply::{InputDetails, OutputDetails};
    use super::*;

    const USAGE: ResponseUsage = ResponseUsage {
        input_tokens: 7,
        input_tokens_details: InputDetails {
            cached_tokens: 4,
            cache_write_tokens: 0,
        },
        output_tokens: 9,
        output_tokens_details: OutputDetails {
            reasoning_tokens: 2,
        },
        total_tokens: 16,
    };

    fn events(encrypted: bool) -> Events {
        let request = serde_json::from_value(json!({"input": "a"})).unwrap();
        let response = empty_response("resp_1".to_owned(), 1000, "tiny".to_owned(), request);
        let mut count = 0;
        let ids = move |kind| {
            count += 1;
            format!("{kind}_{count}")
        };
        Events::new(response, encrypted, Box::new(ids))
    }

    fn reasoning(text: &str) -> Piece {
        Piece::Reasoning(text.to_owned())
    }

    fn content(text: &str) -> Piece {
        Piece::Content(text.to_owned())
    }

    fn call(name: &str, parts: &[&str]) -> Vec<Piece> {
        let mut pieces = cut_call(name, parts);
        pieces.push(Piece::CallEnd {
            name: name.to_owned(),
            arguments: serde_json::from_str(&parts.concat()).unwrap(),
        });
        pieces
    }

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
        let mut events = events(false);
        for piece in pieces {
            events.push(piece);
        }
        events.finish(ending, USAGE, 1001);
        let all = events.take();
        all.iter()
            .zip(0_u64..)
            .map(|(event, number)| {
                let json = serde_json::to_value(event).unwrap();
                assert_eq!(json["type"], event.what.name());
                assert_eq!(json["sequence_number"], number);
                json
            })
            .collect()
    }

    /// What a client makes of the events: the output that its deltas add up to, items that were cut off as calls dropped.
    fn join(events: &[Json]) -> Vec<Json> {
        let mut output: Vec<Json> = Vec::new();
        for event in events {
            let index = event["output_index"]
                .as_u64()
                .map(|index| usize::try_from(index).unwrap());
            let append = |text: &mut Json| {
                let joined = format!(
                    "{}{}",
                    text.as_str().unwrap(),
                    event["delta"].as_str().unwrap()
                );
                *text = Json::from(joined);
            };
            match event["type"].as_str().unwrap() {
                "response.output_item.added" => {
                    assert_eq!(index, Some(output.len()));
                    output.push(event["item"].clone());
                }
                "response.content_part.added" => {
                    let content = output[index.unwrap()]["content"].as_array_mut().unwrap();
                    assert_eq!(event["content_index"], content.len());
                    content.push(event["part"].clone());
                }
                "response.output_text.delta" | "response.reasoning_text.delta" => {
                    append(&mut output[index.unwrap()]["content"][0]["text"]);
                }
                "response.function_call_arguments.delta" => {
                    append(&mut output[index.unwrap()]["arguments"])
                }
                "response.output_text.done" | "response.reasoning_text.done" => {
                    assert_eq!(event["text"], output[index.unwrap()]["content"][0]["text"]);
                }
                "response.content_part.done" => {
                    assert_eq!(event["part"], output[index.unwrap()]["content"][0]);
                }
                "response.function_call_arguments.done" => {
                    assert_eq!(event["arguments"], output[index.unwrap()]["arguments"]);
                }
                "response.output_item.done" => {
                    let item = &mut output[index.unwrap()];
                    item["status"] = event["item"]["status"].clone();
                    assert_eq!(event["item"], *item);
                }
                "response.created"
                | "response.in_progress"
                | "response.completed"
                | "response.incomplete" => {}
                other => panic!("{other}"),
            }
        }
        output.retain(|item| item["type"] != "function_call" || item["status"] == "completed");
        output
    }

    #[test]
    fn events_come_in_the_order_of_the_protocol() {
        let mut pieces = vec![reasoning("Hm"), content("Let"), content(" me see.")];
        pieces.extend(call("weather", &["{\"city\":", "\"Rome\"}"]));
        let events = stream(pieces, Ending::Whole);
        let names: Vec<&str> = events
            .iter()
            .map(|event| event["type"].as_str().unwrap())
            .collect();
        assert_eq!(
            names,
            [
                "response.created",
                "response.in_progress",
                "response.output_item.added",
                "response.content_part.added",
                "response.reasoning_text.delta",
                "response.reasoning_text.done",
                "response.content_part.done",
                "response.output_item.done",
                "response.output_item.added",
                "response.content_part.added",
                "response.output_text.delta",
                "response.output_text.delta",
                "response.output_text.done",
                "response.content_part.done",
                "response.output_item.done",
                "response.output_item.added",
                "response.function_call_arguments.delta",
                "response.function_call_arguments.delta",
                "response.function_call_arguments.done",
                "response.output_item.done",
                "response.completed",
            ]
        );
        let last = events.last().unwrap();
        assert_eq!(last["response"]["status"], "completed");
        assert_eq!(last["response"]["completed_at"], 1001);
        assert_eq!(last["response"]["usage"]["total_tokens"], 16);
        assert_eq!(
            last["response"]["output"],
            json!([
                {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}],
                 "encrypted_content": null, "status": "completed"},
                {"type": "message", "id": "msg_2", "role": "assistant", "status": "completed",
                 "content": [{"type": "output_text", "text": "Let me see.", "annotations": [], "logprobs": []}]},
                {"type": "function_call", "id": "fc_3", "call_id": "call_4", "name": "weather", "arguments": "{\"city\":\"Rome\"}",
                 "status": "completed"}
            ])
        );
        assert_eq!(
            events[10],
            json!({"type": "response.output_text.delta", "item_id": "msg_2", "output_index": 1, "content_index": 0, "delta": "Let",
                   "logprobs": [], "sequence_number": 10})
        );
    }

    #[test]
    fn joined_events_are_the_whole_response() {
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
            [vec![content("x")], cut_call("f", &[])].concat(),
        ];
        for pieces in answers {
            for ending in [Ending::Whole, Ending::Cut] {
                let events = stream(pieces.clone(), ending);
                let whole = &events.last().unwrap()["response"]["output"];
                assert_eq!(Json::Array(join(&events)), *whole, "{pieces:?} {ending:?}");
            }
        }
    }

    #[test]
    fn what_is_cut_says_so_and_half_a_call_is_none() {
        let events = stream(vec![reasoning("a"), content("b")], Ending::Cut);
        let response = &events.last().unwrap()["response"];
        assert_eq!(events.last().unwrap()["type"], "response.incomplete");
        assert_eq!(response["status"], "incomplete");
        assert_eq!(
            response["incomplete_details"],
            json!({"reason": "max_output_tokens"})
        );
        assert_eq!(response["output"][0]["status"], "completed");
        assert_eq!(response["output"][1]["status"], "incomplete");

        let events = stream(cut_call("f", &["{\"a"]), Ending::Cut);
        let done = events
            .iter()
            .find(|event| event["type"] == "response.output_item.done");
        assert_eq!(done.unwrap()["item"]["status"], "incomplete");
        assert!(
            !events
                .iter()
                .any(|event| event["type"] == "response.function_call_arguments.done")
        );
        assert_eq!(events.last().unwrap()["response"]["output"], json!([]));
    }

    #[test]
    fn a_failure_is_the_last_event() {
        let mut events = events(false);
        events.push(content("a"));
        events.fail(ResponseError {
            code: "server_error",
            message: "why".to_owned(),
        });
        let last = serde_json::to_value(events.take().last().unwrap()).unwrap();
        assert_eq!(last["type"], "response.failed");
        assert_eq!(last["response"]["status"], "failed");
        assert_eq!(
            last["response"]["error"],
            json!({"code": "server_error", "message": "why"})
        );
    }

    #[test]
    fn encrypted_content_is_the_text_and_comes_back() {
        let mut events = events(true);
        events.push(reasoning("Hm."));
        events.finish(Ending::Whole, USAGE, 1001);
        let response = serde_json::to_value(events.into_response()).unwrap();
        let item = &response["output"][0];
        assert_eq!(item["encrypted_content"], "glim-plain-v1:Hm.");
        let again = json!({"input": [
            {"type": "reasoning", "id": item["id"], "summary": item["summary"], "encrypted_content": item["encrypted_content"]}
        ]});
        let chat = super::super::translate::chat_request(&serde_json::from_value(again).unwrap());
        assert_eq!(chat.unwrap().messages[0]["reasoning_content"], "Hm.");
    }
}
