//! Events of the prefix cache for routers (llm-d-kv-cache, Dynamo, kthena): which blocks are here, over ZeroMQ.
//!
//! The wire is vLLM's (`vllm/distributed/kv_events.py`): a PUB socket sends batches of three frames, *topic*, *sequence number* (8
//! bytes, big-endian, from 0) and *payload* (msgpack, [`encode`]); a ROUTER socket sends them again to who missed some.
//!
//! ```text
//! engine thread ── publish() ──▶ queue ──▶ thread glim-kv-events: encode ──▶ ring of the last batches
//!                  never waits   bounded,                                      │            │
//!                                drops the oldest                     each subscriber   each replay
//!                                                                     at its own pace   from the number asked for
//! ```
//!
//! A batch has its number before it enters the queue, so that a loss shows as a gap. A subscriber that falls behind by more than the
//! ring holds loses the oldest ones; it holds up nobody else, and memory does not depend on the number of subscribers.
//!
//! ZMTP is spoken here ([`zmtp`]) and not by a crate: the sockets are open to the network without a password, so what a peer may make
//! us allocate has to have a bound, and a connecting PUB has to connect again.

mod buffer;
mod encode;
mod endpoint;
mod peers;
mod publisher;
mod queue;
#[cfg(test)]
mod tests;
mod zmtp;

pub use encode::{KvEncoding, KvHashes};
pub(crate) use publisher::KvPublisher;

/// Batches that can be replayed, and by which a subscriber may be behind; vLLM's `buffer_steps`.
pub const BUFFER_BATCHES: usize = 10_000;

/// How the events of the cache are published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvEventsConfig {
    /// Where to publish: `tcp://*:5557` listens on all addresses, `tcp://host:5557` connects to a subscriber that listens. vLLM's rule:
    /// an address with `*` or `::`, and `ipc://PATH`, is listened on; any other is connected to.
    pub endpoint: String,
    /// Where replays are served, always by listening; `None`: nowhere.
    pub replay_endpoint: Option<String>,
    /// The first frame of each message. llm-d wants `kv@POD_IP:PORT@MODEL`, Dynamo nothing.
    pub topic: String,
    /// How events are written.
    pub encoding: KvEncoding,
    /// How the hashes of blocks are written.
    pub hashes: KvHashes,
    /// Batches that can be replayed ([`BUFFER_BATCHES`]); at least 1.
    pub buffer_batches: usize,
    /// The third field of each batch; also added to the ports, so that ranks on one machine do not collide.
    pub data_parallel_rank: u16,
}

impl Default for KvEventsConfig {
    fn default() -> Self {
        Self {
            endpoint: "tcp://*:5557".to_owned(),
            replay_endpoint: None,
            topic: String::new(),
            encoding: KvEncoding::default(),
            hashes: KvHashes::default(),
            buffer_batches: BUFFER_BATCHES,
            data_parallel_rank: 0,
        }
    }
}

/// Why events cannot be published.
#[derive(Debug, thiserror::Error)]
pub enum KvEventsError {
    /// An address that is none.
    #[error(
        "kv events: {endpoint:?} is no address ({reason}); expected tcp://HOST:PORT, tcp://*:PORT or ipc://PATH"
    )]
    Endpoint {
        /// The address as given.
        endpoint: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A topic that llm-d would read wrongly.
    #[error(
        "kv events: the topic {topic:?} has {found} '@' and llm-d splits it at two; expected kv@POD_IP:PORT@MODEL with a model name without '@'"
    )]
    Topic {
        /// The topic as given.
        topic: String,
        /// How many there are.
        found: usize,
    },
    /// The address cannot be listened on.
    #[error("kv events: {endpoint} cannot be listened on: {source}; is another server running?")]
    Listen {
        /// The address.
        endpoint: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// No thread or no runtime.
    #[error("kv events: the publisher cannot start: {source}")]
    Thread {
        /// What the system says.
        source: std::io::Error,
    },
}
