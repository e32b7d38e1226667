//! What vLLM has no name for, under `glim:`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use glim_engine::{EngineStats, StepSize};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::KvEventCounters;
use super::request::CancelState;
use super::vllm::gauge;

/// Buckets of one step, in seconds.
const STEP_SECONDS: [f64; 15] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
];

/// What a step did.
const STEP_PHASES: [&str; 3] = ["prefill", "decode", "mixed"];

/// What a block of the cache is doing.
const BLOCK_STATES: [&str; 3] = ["used", "cached", "free"];

type Label = [(&'static str, &'static str); 1];

/// Handles of everything under `glim:`.
#[derive(Debug)]
pub(super) struct Own {
    build_info: Family<Label, Gauge>,
    cache_miss: Family<Label, Counter>,
    kv_blocks: Family<Label, Gauge>,
    cancelled: Family<Label, Counter>,
    steps: Counter,
    step_seconds: Family<Label, Histogram, fn() -> Histogram>,
    pub(super) load_seconds: Gauge<f64, AtomicU64>,
    pub(super) selftest_failures: Counter,
    pub(super) kv_events: KvEventCounters,
}

impl Own {
    /// Registers every name. The registry has the labels that all share.
    pub(super) fn register(registry: &mut Registry) -> Self {
        let own = Self {
            build_info: Family::default(),
            cache_miss: Family::default(),
            kv_blocks: Family::default(),
            cancelled: Family::default(),
            steps: Counter::default(),
            step_seconds: Family::new_with_constructor(|| Histogram::new(STEP_SECONDS)),
            load_seconds: Gauge::default(),
            selftest_failures: Counter::default(),
            kv_events: KvEventCounters::default(),
        };
        own.build_info
            .get_or_create(&[("version", env!("CARGO_PKG_VERSION"))])
            .set(1);
        for state in CancelState::ALL {
            own.cancelled(state);
        }
        for phase in STEP_PHASES {
            own.step_seconds.get_or_create_owned(&[("phase", phase)]);
        }
        for state in BLOCK_STATES {
            own.kv_blocks.get_or_create_owned(&[("state", state)]);
        }
        own.enter(registry);
        own
    }

    fn enter(&self, registry: &mut Registry) {
        macro_rules! enter {
            ($($name:literal, $help:literal, $metric:expr;)*) => {
                $(registry.register(concat!("glim:", $name), $help, $metric.clone());)*
            };
        }
        enter! {
            "build_info", "The version of glim; the value is 1", self.build_info;
            "cache_miss", "Prompt tokens that were not found in the prefix cache, by reason", self.cache_miss;
            "kv_blocks", "Blocks of the cache that sequences hold, that can be reused, and that are empty", self.kv_blocks;
            "cancelled", "Requests whose client went away, by where they were", self.cancelled;
            "steps", "Steps of the engine", self.steps;
            "step_seconds", "Time of one step of the engine", self.step_seconds;
            "load_seconds", "How long loading the model took; 0 until it is there", self.load_seconds;
            "selftest_failures", "Self-tests that the model did not pass", self.selftest_failures;
            "kv_event_batches", "Batches of events of the cache that were published", self.kv_events.published;
            "kv_events_dropped", "Batches of events of the cache that a subscriber did not get, being too slow", self.kv_events.dropped;
        }
    }

    pub(super) fn cancelled(&self, state: CancelState) -> Counter {
        self.cancelled
            .get_or_create_owned(&[("state", state.as_str())])
    }

    pub(super) fn engine(&self, stats: &EngineStats) {
        let blocks_empty = stats
            .blocks_total
            .saturating_sub(stats.blocks_used)
            .saturating_sub(stats.blocks_cached);
        let counts = [stats.blocks_used, stats.blocks_cached, blocks_empty];
        for (state, count) in BLOCK_STATES.into_iter().zip(counts) {
            self.kv_blocks
                .get_or_create(&[("state", state)])
                .set(gauge(count));
        }
        self.steps.inner().store(stats.steps, Ordering::Relaxed);
        for (reason, count) in stats.cache_misses {
            self.cache_miss
                .get_or_create(&[("reason", reason)])
                .inner()
                .store(count, Ordering::Relaxed);
        }
    }

    pub(super) fn step(&self, size: StepSize, took: Duration) {
        let [prefill, decode, mixed] = STEP_PHASES;
        let phase = match (size.prefill_tokens, size.decode_rows) {
            (_, 0) => prefill,
            (0, _) => decode,
            _ => mixed,
        };
        self.step_seconds
            .get_or_create(&[("phase", phase)])
            .observe(took.as_secs_f64());
    }
}
