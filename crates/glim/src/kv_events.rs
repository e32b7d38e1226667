//! Options of `glim serve` for the events of the prefix cache.

use clap::{Args, ValueEnum};
use glim_server::{KvEncoding, KvEventsConfig, KvHashes};

/// Where and how a server tells routers which blocks it has.
#[derive(Debug, Args)]
#[command(next_help_heading = "Events of the prefix cache (ZeroMQ, as vLLM's)")]
pub(crate) struct KvEventsArgs {
    /// Publish them: tcp://*:5557 and ipc://PATH are listened on, tcp://HOST:5557 is connected to [default: none]
    #[arg(long = "kv-events", value_name = "ENDPOINT")]
    endpoint: Option<String>,
    /// Replay past ones here, such as tcp://*:5558
    #[arg(
        long = "kv-events-replay",
        value_name = "ENDPOINT",
        requires = "endpoint"
    )]
    replay_endpoint: Option<String>,
    /// First frame of each message; llm-d expects kv@POD_IP:PORT@MODEL
    #[arg(
        long = "kv-events-topic",
        value_name = "TOPIC",
        default_value = "",
        hide_default_value = true
    )]
    topic: String,
    /// How events are written; arrays are for readers older than vLLM 0.26
    #[arg(
        long = "kv-events-encoding",
        value_name = "FORM",
        default_value = "maps"
    )]
    encoding: Encoding,
    /// How hashes of blocks are written; Dynamo needs integers
    #[arg(
        long = "kv-events-hashes",
        value_name = "FORM",
        default_value = "integers"
    )]
    hashes: Hashes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Encoding {
    Maps,
    Arrays,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Hashes {
    Integers,
    Bytes,
}

impl KvEventsArgs {
    /// Whether the engine has to make events at all.
    pub(crate) fn is_on(&self) -> bool {
        self.endpoint.is_some()
    }

    /// What the server is told.
    pub(crate) fn config(&self) -> Option<KvEventsConfig> {
        Some(KvEventsConfig {
            endpoint: self.endpoint.clone()?,
            replay_endpoint: self.replay_endpoint.clone(),
            topic: self.topic.clone(),
            encoding: match self.encoding {
                Encoding::Maps => KvEncoding::Maps,
                Encoding::Arrays => KvEncoding::Arrays,
            },
            hashes: match self.hashes {
                Hashes::Integers => KvHashes::Integers,
                Hashes::Bytes => KvHashes::Bytes,
            },
            ..KvEventsConfig::default()
        })
    }
}
