//! What an operator decides about the server.

use std::net::SocketAddr;
use std::time::Duration;

use subtle::{Choice, ConstantTimeEq};

/// What an operator decides.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Where to listen; port 0: any free one.
    pub address: SocketAddr,
    /// Names that requests may call the model by; the first is the one that responses use. There is one at least.
    pub model_names: Vec<String>,
    /// Keys, one of which a request must bring; none: no key is needed.
    pub api_keys: ApiKeys,
    /// Origins whose pages may read answers (CORS); empty: none but our own.
    pub cors_origins: Vec<String>,
    /// Bytes of a request's body.
    pub max_body_bytes: usize,
    /// Connections at a time; more wait to be accepted.
    pub max_connections: usize,
    /// Time for a request to arrive whole.
    pub receive_timeout: Duration,
    /// Time from a request's arrival to the end of its answer.
    pub request_timeout: Duration,
    /// Time for which a client of a stream may read nothing.
    pub stall_timeout: Duration,
    /// Silence after which a stream sends a comment, so that nobody on the way gives it up.
    pub ping_interval: Duration,
    /// Time that requests get to finish after SIGTERM.
    pub drain_timeout: Duration,
    /// Time that one step of the engine may take before `/health` says that it is stuck.
    pub step_timeout: Duration,
    /// Waiting requests from which on `/ready` sends traffic elsewhere; `None`: the queue has no limit.
    pub max_queue: Option<usize>,
    /// What requests leave open.
    pub defaults: SamplingDefaults,
    /// Publish what the prefix cache holds.
    pub kv_events: Option<crate::kv_events::KvEventsConfig>,
    /// Serve the page at `/`.
    pub web_page: bool,
}

/// What requests leave open, the server decides; what it leaves open too is as in the OpenAI API.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SamplingDefaults {
    /// Temperature.
    pub temperature: Option<f32>,
    /// Top-p.
    pub top_p: Option<f32>,
    /// Top-k.
    pub top_k: Option<u32>,
    /// Min-p.
    pub min_p: Option<f32>,
    /// Repetition penalty.
    pub repetition_penalty: Option<f32>,
    /// Tokens of an answer.
    pub max_tokens: Option<usize>,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            address: SocketAddr::from(([127, 0, 0, 1], 8000)),
            model_names: vec!["default".to_owned()],
            api_keys: ApiKeys::default(),
            cors_origins: Vec::new(),
            max_body_bytes: 50 << 20,
            max_connections: 4096,
            receive_timeout: Duration::from_secs(60),
            request_timeout: Duration::from_secs(3600),
            stall_timeout: Duration::from_secs(120),
            ping_interval: Duration::from_secs(15),
            drain_timeout: Duration::from_secs(60),
            step_timeout: Duration::from_secs(120),
            max_queue: None,
            defaults: SamplingDefaults::default(),
            kv_events: None,
            web_page: true,
        }
    }
}

/// The keys that open the server. Only their hashes are kept.
#[derive(Clone, Default)]
pub struct ApiKeys(Vec<blake3::Hash>);

/// Why a list of keys is refused.
#[derive(Debug, thiserror::Error)]
pub enum ApiKeysError {
    /// Not a key.
    #[error(
        "line {line} is not a key: expected {MIN_KEY} to {MAX_KEY} visible characters of ASCII, one key on each line; lines that begin with # are comments"
    )]
    BadKey {
        /// Line, from 1.
        line: usize,
    },
    /// No key at all.
    #[error("there is no key in it: expected one on each line")]
    Empty,
}

/// Shortest key, in characters: what is shorter can be guessed.
const MIN_KEY: usize = 8;
/// Longest key, in characters.
const MAX_KEY: usize = 512;

impl ApiKeys {
    /// From a text with one key on each line. Blank lines and lines that begin with `#` count for nothing.
    ///
    /// # Errors
    /// A line that is no key, by its number; or no key at all.
    pub fn parse(text: &str) -> Result<Self, ApiKeysError> {
        let mut keys = Vec::new();
        for (line, key) in (1..).zip(text.lines().map(str::trim)) {
            if key.is_empty() || key.starts_with('#') {
                continue;
            }
            let fits = (MIN_KEY..=MAX_KEY).contains(&key.len());
            if !fits || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(ApiKeysError::BadKey { line });
            }
            keys.push(blake3::hash(key.as_bytes()));
        }
        match keys.is_empty() {
            true => Err(ApiKeysError::Empty),
            false => Ok(Self(keys)),
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none: then no key is needed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a request that brings this key may pass. The time does not depend on which key is compared with, nor on where they
    /// differ: hashes of the same length are compared, all of them, in constant time.
    pub(crate) fn admit(&self, key: &str) -> bool {
        let found = blake3::hash(key.as_bytes());
        let mut any = Choice::from(0);
        for known in &self.0 {
            any |= known.as_bytes().ct_eq(found.as_bytes());
        }
        any.into()
    }
}

impl std::fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ApiKeys({} keys)", self.0.len())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_a_key_or_a_comment() {
        let keys = ApiKeys::parse("# team a\nsk-aaaaaaaa\n\n  sk-bbbbbbbb  \n").unwrap();
        assert_eq!(keys.len(), 2);
        assert!(keys.admit("sk-aaaaaaaa") && keys.admit("sk-bbbbbbbb"));
        for wrong in ["", "sk-aaaaaaa", "sk-aaaaaaaab", "# team a"] {
            assert!(!keys.admit(wrong), "{wrong}");
        }
    }

    #[test]
    fn what_is_no_key_is_named_by_its_line_and_never_printed() {
        let error = ApiKeys::parse("sk-aaaaaaaa\nshort\n")
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("line 2 "), "{error}");
        assert!(!error.contains("short"));
        assert!(ApiKeys::parse("sk with blanks").is_err());
        assert!(ApiKeys::parse("# none\n").is_err());
        let keys = ApiKeys::parse("sk-aaaaaaaa").unwrap();
        assert_eq!(format!("{keys:?}"), "ApiKeys(1 keys)");
    }
}
