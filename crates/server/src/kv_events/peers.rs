//! One connection each: a subscriber, or a client that asks for a replay.

use std::sync::Arc;

use super::buffer::{Batch, Buffer};
use super::zmtp::{Connection, Incoming, SocketType, Stream, ZmtpError, message};

/// Wishes that one subscriber may have at a time.
const MAX_SUBSCRIPTIONS: usize = 64;

/// What ends a replay instead of a sequence number: -1.
const END_OF_REPLAY: [u8; 8] = [0xFF; 8];

/// Serves a subscriber until it goes, or until the last batch.
pub(super) async fn subscriber(
    stream: Box<dyn Stream>,
    buffer: Arc<Buffer>,
    topic: Arc<[u8]>,
) -> Result<(), ZmtpError> {
    let mut connection = Connection::open(stream, SocketType::Pub).await?;
    let mut reader = buffer.reader();
    let mut subscriptions: Vec<Vec<u8>> = Vec::new();
    loop {
        tokio::select! {
            biased;
            incoming = connection.receive() => match incoming? {
                Incoming::Subscribe(_) if subscriptions.len() == MAX_SUBSCRIPTIONS => {
                    return Err(ZmtpError::Frame("too many subscriptions"));
                }
                Incoming::Subscribe(prefix) => subscriptions.push(prefix),
                // One wish of several equal ones.
                Incoming::Cancel(prefix) => {
                    if let Some(at) = subscriptions.iter().position(|other| *other == prefix) {
                        subscriptions.swap_remove(at);
                    }
                }
                Incoming::Message(_) => {}
            },
            batch = reader.next() => {
                let Some(batch) = batch else { return Ok(()) };
                if subscriptions.iter().any(|prefix| topic.starts_with(prefix)) {
                    let number = batch.sequence.to_be_bytes();
                    connection.send(&message(&[&topic, &number, &batch.payload])).await?;
                }
            }
        }
    }
}

/// Answers requests for replays until the client goes: `["", first number]` is answered by `["", number, payload]` for each batch that is
/// still here, then `["", -1, ""]`.
pub(super) async fn replay(stream: Box<dyn Stream>, buffer: Arc<Buffer>) -> Result<(), ZmtpError> {
    let mut connection = Connection::open(stream, SocketType::Router).await?;
    loop {
        let Incoming::Message(frames) = connection.receive().await? else {
            continue;
        };
        let Some(first) = first_wanted(&frames) else {
            tracing::debug!("a request for a replay is not an empty frame and eight bytes");
            continue;
        };
        for batch in buffer.since(first) {
            let Batch { sequence, payload } = &*batch;
            connection
                .send(&message(&[b"", &sequence.to_be_bytes(), payload]))
                .await?;
        }
        connection
            .send(&message(&[b"", &END_OF_REPLAY, b""]))
            .await?;
    }
}

fn first_wanted(frames: &[Vec<u8>]) -> Option<u64> {
    match frames {
        [delimiter, first] if delimiter.is_empty() => {
            Some(u64::from_be_bytes(first.as_slice().try_into().ok()?))
        }
        _ => None,
    }
}
