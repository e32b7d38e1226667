//! Server-sent events: a generation printed as it comes.
//!
//! A task of its own drives each stream. It waits for the client only at a bounded channel, and for no longer than the stall timeout;
//! meanwhile what the engine does piles up as plain events and is joined when there is room again, so a slow reader never holds the
//! engine up. When the client goes, the channel closes, the task ends, and with it the generation.

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use futures_util::stream;
use tokio::sync::mpsc;
use tracing::Instrument;

use crate::generation::Generation;
use crate::generation::update::Update;
use crate::state::AppState;

/// Events that wait for the client.
const BUFFERED: usize = 16;

/// Prints a generation in the form of one protocol. What is printed is whole events.
pub(crate) trait Printer: Send + 'static {
    /// The request has been accepted.
    fn begin(&mut self, generation: &Generation, out: &mut String);
    /// Something happened.
    fn update(&mut self, update: Update, generation: &Generation, out: &mut String);
    /// All answers are whole.
    fn end(&mut self, generation: &Generation, out: &mut String);
    /// Nothing has happened for a while.
    fn ping(&mut self, out: &mut String) {
        // A comment: clients pass over it.
        out.push_str(": ping\n\n");
    }
}

/// Writes an event without a name.
pub(crate) fn data(json: &impl serde::Serialize, out: &mut String) {
    out.push_str("data: ");
    push_json(json, out);
    out.push_str("\n\n");
}

/// Writes an event with a name.
pub(crate) fn event(name: &str, json: &impl serde::Serialize, out: &mut String) {
    out.push_str("event: ");
    out.push_str(name);
    out.push('\n');
    data(json, out);
}

fn push_json(json: &impl serde::Serialize, out: &mut String) {
    match serde_json::to_string(json) {
        Ok(text) => out.push_str(&text),
        // Our own types have string keys only.
        Err(error) => tracing::error!(%error, "an event could not be printed"),
    }
}

/// The response that carries a generation.
pub(crate) fn respond(state: &AppState, generation: Generation, printer: impl Printer) -> Response {
    let (sender, receiver) = mpsc::channel(BUFFERED);
    let drive = drive(state.clone(), generation, printer, sender);
    tokio::spawn(drive.in_current_span());
    let events = stream::unfold(receiver, |mut receiver| async {
        let bytes = receiver.recv().await?;
        Some((Ok::<Bytes, Infallible>(bytes), receiver))
    });
    let mut response = Response::new(Body::from_stream(events));
    let headers = response.headers_mut();
    let mut set = |name, value| headers.insert(name, HeaderValue::from_static(value));
    set(header::CONTENT_TYPE, "text/event-stream; charset=utf-8");
    set(header::CACHE_CONTROL, "no-cache");
    // nginx would keep events back.
    set(header::HeaderName::from_static("x-accel-buffering"), "no");
    response
}

async fn drive(
    state: AppState,
    mut generation: Generation,
    mut printer: impl Printer,
    sender: mpsc::Sender<Bytes>,
) {
    let config = state.config();
    let mut out = String::new();
    printer.begin(&generation, &mut out);
    let mut is_over = false;
    loop {
        if !out.is_empty() {
            let room = tokio::time::timeout(config.stall_timeout, sender.reserve()).await;
            match room {
                Ok(Ok(room)) => room.send(Bytes::from(std::mem::take(&mut out))),
                // The client has gone.
                Ok(Err(_)) => return,
                Err(_) => {
                    tracing::warn!("the client has stopped reading: its request is cancelled");
                    return;
                }
            }
        }
        if is_over {
            return;
        }
        tokio::select! {
            updates = generation.next() => match updates {
                Some(updates) => for update in updates {
                    // After an error the stream just ends, so that nobody takes it for whole.
                    is_over |= matches!(update, Update::Failed(_));
                    printer.update(update, &generation, &mut out);
                },
                None => {
                    printer.end(&generation, &mut out);
                    is_over = true;
                }
            },
            () = sender.closed() => return,
            () = tokio::time::sleep(config.ping_interval) => printer.ping(&mut out),
        }
    }
}
