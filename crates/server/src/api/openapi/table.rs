//! The endpoints, as a table.

use utoipa::openapi::path::HttpMethod;
use utoipa::openapi::{RefOr, Schema};

use super::{Schemas, refer, text};
use crate::api::chat::request::ChatRequest;
use crate::api::chat::response::ChatResponse;
use crate::api::chat::stream::ChatChunk;
use crate::api::completions::request::CompletionRequest;
use crate::api::completions::response::CompletionResponse;
use crate::api::info::{Info, Version};
use crate::api::messages::error::MessagesErrorBody;
use crate::api::messages::reply::{Message, StreamEvent};
use crate::api::messages::wire::{MessagesRequest, TokenCount};
use crate::api::models::{ModelCard, ModelList};
use crate::api::probes::Probe;
use crate::api::responses::reply::{ResponseEvent, ResponseObject};
use crate::api::responses::wire::{InputTokens, ResponsesRequest};
use crate::api::tokenize::{
    DetokenizeRequest, Detokenized, RenderedPrompt, TokenizeRequest, Tokenized,
};
use crate::error::ErrorBody;

/// Schemas of requests that name a model.
pub(super) const REQUESTS: &[&str] = &[
    "ChatRequest",
    "CompletionRequest",
    "DetokenizeRequest",
    "MessagesRequest",
    "ResponsesRequest",
];

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";
const PLAIN: &str = "text/plain";

/// What a status says.
type Case = (u16, &'static str);

const MALFORMED: Case = (
    400,
    "The request is not what it should be: `param` names the field.",
);
const NO_KEY: Case = (401, "The key is missing, or none of the server's.");
const UNKNOWN_MODEL: Case = (404, "The model is not served here.");
const TOO_SLOW: Case = (408, "The body did not arrive in time.");
const TOO_LARGE: Case = (413, "The body is larger than the server accepts.");
const QUEUE_FULL: Case = (
    429,
    "The queue is full: `Retry-After` says when to try again.",
);
const INTERNAL: Case = (500, "A fault of the server: its log says more.");
const UNAVAILABLE: Case = (503, "The model is loading, or the server is going down.");
const OVERLOADED: Case = (529, "The model is loading, or the server is going down.");
const TIMEOUT: Case = (504, "The request took longer than the server allows.");

/// Errors of what generates.
const GENERATING: &[Case] = &[
    MALFORMED,
    NO_KEY,
    UNKNOWN_MODEL,
    TOO_SLOW,
    TOO_LARGE,
    QUEUE_FULL,
    INTERNAL,
    UNAVAILABLE,
    TIMEOUT,
];
/// The same with Anthropic's status.
const GENERATING_MESSAGES: &[Case] = &[
    MALFORMED,
    NO_KEY,
    UNKNOWN_MODEL,
    TOO_SLOW,
    TOO_LARGE,
    QUEUE_FULL,
    INTERNAL,
    TIMEOUT,
    OVERLOADED,
];
/// Errors of what only reads its request.
const READING: &[Case] = &[
    MALFORMED,
    NO_KEY,
    UNKNOWN_MODEL,
    TOO_SLOW,
    TOO_LARGE,
    INTERNAL,
    UNAVAILABLE,
];
const READING_MESSAGES: &[Case] = &[
    MALFORMED,
    NO_KEY,
    UNKNOWN_MODEL,
    TOO_SLOW,
    TOO_LARGE,
    INTERNAL,
    OVERLOADED,
];
/// Errors of what has no request.
const LOOKING: &[Case] = &[NO_KEY, UNAVAILABLE];
const LOOKING_UP: &[Case] = &[NO_KEY, UNKNOWN_MODEL, UNAVAILABLE];
const NOT_STORED: &[Case] = &[NO_KEY, (404, "Always: nothing is stored here.")];

/// What is said when something goes wrong.
pub(super) struct Errors {
    /// The form of the body.
    pub(super) schema: RefOr<Schema>,
    pub(super) cases: &'static [Case],
}

/// Content types and their schemas.
type Contents = Vec<(&'static str, RefOr<Schema>)>;

/// One method of one path.
pub(super) struct Endpoint {
    pub(super) method: HttpMethod,
    pub(super) path: &'static str,
    pub(super) id: &'static str,
    pub(super) tag: &'static str,
    pub(super) summary: &'static str,
    pub(super) description: Option<&'static str>,
    /// Of the path: its name, and what it is.
    pub(super) parameter: Option<(&'static str, &'static str)>,
    pub(super) request: Option<RefOr<Schema>>,
    pub(super) answers: Vec<(u16, &'static str, Contents)>,
    pub(super) errors: Errors,
    pub(super) needs_key: bool,
}

/// Makes endpoints that look alike.
struct Table<'a> {
    schemas: &'a mut Schemas,
    rows: Vec<Endpoint>,
}

impl Table<'_> {
    fn add(
        &mut self,
        method: HttpMethod,
        path: &'static str,
        id: &'static str,
        tag: &'static str,
        summary: &'static str,
        cases: &'static [Case],
    ) -> &mut Endpoint {
        let schema = match path.starts_with(crate::api::messages::PATH) {
            true => refer::<MessagesErrorBody>(self.schemas),
            false => refer::<ErrorBody>(self.schemas),
        };
        self.rows.push(Endpoint {
            method,
            path,
            id,
            tag,
            summary,
            description: None,
            parameter: None,
            request: None,
            answers: Vec::new(),
            errors: Errors { schema, cases },
            needs_key: true,
        });
        let last = self.rows.len() - 1;
        &mut self.rows[last]
    }

    /// A path that answers a body with a body.
    fn post<Request: utoipa::ToSchema, Answer: utoipa::ToSchema>(
        &mut self,
        path: &'static str,
        id: &'static str,
        tag: &'static str,
        summary: &'static str,
        cases: &'static [Case],
    ) -> &mut Endpoint {
        let request = refer::<Request>(self.schemas);
        let answer = refer::<Answer>(self.schemas);
        let row = self.add(HttpMethod::Post, path, id, tag, summary, cases);
        row.request = Some(request);
        row.answers.push((200, "The answer.", vec![(JSON, answer)]));
        row
    }

    /// The same, and with `stream` it answers with events.
    fn stream<Request: utoipa::ToSchema, Answer: utoipa::ToSchema, Event: utoipa::ToSchema>(
        &mut self,
        path: &'static str,
        id: &'static str,
        tag: &'static str,
        summary: &'static str,
        cases: &'static [Case],
    ) -> &mut Endpoint {
        let event = refer::<Event>(self.schemas);
        let row = self.post::<Request, Answer>(path, id, tag, summary, cases);
        for (_, description, contents) in &mut row.answers {
            *description = "The answer; with `stream`, events that carry the schema shown.";
            contents.push((EVENTS, event.clone()));
        }
        row
    }

    /// A path that is only looked at.
    fn get<Answer: utoipa::ToSchema>(
        &mut self,
        path: &'static str,
        id: &'static str,
        tag: &'static str,
        summary: &'static str,
        cases: &'static [Case],
    ) -> &mut Endpoint {
        let answer = refer::<Answer>(self.schemas);
        let row = self.add(HttpMethod::Get, path, id, tag, summary, cases);
        row.answers.push((200, "The answer.", vec![(JSON, answer)]));
        row
    }

    /// A probe: it answers the same with both statuses, and needs no key.
    fn probe(&mut self, path: &'static str, id: &'static str, summary: &'static str) {
        let row = self.get::<Probe>(path, id, "probes", summary, &[]);
        row.needs_key = false;
        let contents = row
            .answers
            .iter()
            .flat_map(|(.., contents)| contents.clone());
        let no = (503, "No.", contents.collect());
        row.answers.push(no);
    }

    /// A path that would need storage.
    fn not_stored(&mut self, method: HttpMethod, path: &'static str, id: &'static str) {
        let summary = "Not here: nothing is stored";
        let row = self.add(method, path, id, "openai", summary, NOT_STORED);
        row.parameter = Some(("id", "That of a response."));
    }
}

/// All endpoints; the schemas that they refer to are put into `schemas`.
pub(super) fn endpoints(schemas: &mut Schemas) -> Vec<Endpoint> {
    let mut table = Table {
        schemas,
        rows: Vec::new(),
    };
    openai(&mut table);
    anthropic(&mut table);
    text_endpoints(&mut table);
    server(&mut table);
    table.rows
}

fn openai(table: &mut Table<'_>) {
    const TAG: &str = "openai";
    table.stream::<ChatRequest, ChatResponse, ChatChunk>(
        "/v1/chat/completions",
        "chat",
        TAG,
        "Answers a conversation",
        GENERATING,
    );
    table.stream::<CompletionRequest, CompletionResponse, CompletionResponse>(
        "/v1/completions",
        "complete",
        TAG,
        "Goes on with a text",
        GENERATING,
    );
    table.get::<ModelList>("/v1/models", "models", TAG, "What is served", LOOKING);
    table
        .get::<ModelCard>(
            "/v1/models/{model}",
            "model",
            TAG,
            "One served model",
            LOOKING_UP,
        )
        .parameter = Some(("model", "Its name."));
    table
        .stream::<ResponsesRequest, ResponseObject, ResponseEvent>(
            "/v1/responses",
            "respond",
            TAG,
            "Answers a conversation, in the form of the Responses API",
            GENERATING,
        )
        .description =
        Some("Stateless: nothing is stored, the whole conversation is sent each time.");
    table.post::<ResponsesRequest, InputTokens>(
        "/v1/responses/input_tokens",
        "count_input_tokens",
        TAG,
        "Counts the tokens of a prompt",
        READING,
    );
    table.not_stored(HttpMethod::Get, "/v1/responses/{id}", "response");
    table.not_stored(HttpMethod::Delete, "/v1/responses/{id}", "delete_response");
    table.not_stored(
        HttpMethod::Get,
        "/v1/responses/{id}/input_items",
        "response_input",
    );
    table.not_stored(
        HttpMethod::Post,
        "/v1/responses/{id}/cancel",
        "cancel_response",
    );
}

fn anthropic(table: &mut Table<'_>) {
    const TAG: &str = "anthropic";
    table.stream::<MessagesRequest, Message, StreamEvent>(
        "/v1/messages",
        "message",
        TAG,
        "Answers a conversation, in the form of the Messages API",
        GENERATING_MESSAGES,
    );
    table.post::<MessagesRequest, TokenCount>(
        "/v1/messages/count_tokens",
        "count_message_tokens",
        TAG,
        "Counts the tokens of a prompt",
        READING_MESSAGES,
    );
}

fn text_endpoints(table: &mut Table<'_>) {
    const TAG: &str = "text";
    table.post::<TokenizeRequest, Tokenized>(
        "/tokenize",
        "tokenize",
        TAG,
        "Token ids of a text or a conversation",
        READING,
    );
    table.post::<DetokenizeRequest, Detokenized>(
        "/detokenize",
        "detokenize",
        TAG,
        "The text of token ids",
        READING,
    );
    table.post::<ChatRequest, RenderedPrompt>(
        "/apply-template",
        "apply_template",
        TAG,
        "A conversation as the model reads it",
        READING,
    );
    table.post::<ChatRequest, RenderedPrompt>(
        "/v1/chat/completions/render",
        "render",
        TAG,
        "The same under vLLM's path",
        READING,
    );
}

fn server(table: &mut Table<'_>) {
    const TAG: &str = "server";
    table.get::<Version>(
        "/version",
        "version",
        TAG,
        "Version of the program",
        &[NO_KEY],
    );
    table.get::<Info>(
        "/info",
        "info",
        TAG,
        "What is served, and on which path it runs",
        LOOKING,
    );
    table.probe("/health", "health", "Whether the process can make progress");
    table.probe("/livez", "livez", "The same under Kubernetes' name");
    table.probe("/ready", "ready", "Whether requests should come here");
    table.probe("/readyz", "readyz", "The same under Kubernetes' name");
    table.probe(
        "/health/ready",
        "health_ready",
        "The same under another name",
    );
    table.probe("/startup", "startup", "Whether requests were ever served");
    let row = table.add(
        HttpMethod::Get,
        "/metrics",
        "metrics",
        TAG,
        "Metrics for Prometheus",
        &[],
    );
    row.needs_key = false;
    row.answers
        .push((200, "Prometheus' text format.", vec![(PLAIN, text())]));
    let object = utoipa::openapi::ObjectBuilder::new().build();
    let row = table.add(
        HttpMethod::Get,
        "/openapi.json",
        "openapi",
        TAG,
        "This document",
        &[],
    );
    row.needs_key = false;
    row.answers
        .push((200, "The document.", vec![(JSON, object.into())]));
}
