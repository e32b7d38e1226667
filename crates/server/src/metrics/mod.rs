//! What `/metrics` says, in the Prometheus text format 0.0.4.
//!
//! Routers and dashboards look for vLLM's names, so the engine's numbers are given under them ([`vllm`]), with the labels
//! `model_name` and `engine="0"`; what vLLM has no name for is under `glim:` ([`own`]); requests over HTTP and the process have the
//! names that everybody uses ([`http`], [`process`]). Sources: `vllm/v1/metrics/loggers.py`, and for HTTP the Python package
//! prometheus-fastapi-instrumentator, which vLLM mounts.
//!
//! Absent, since there is nothing to tell: `vllm:lora_requests_info` (no LoRA), `vllm:spec_decode_*` (no speculation) and the sampled
//! `vllm:kv_block_*_seconds`. A zero would say that the thing is there and idle.
//!
//! Recording is a few atomic additions; histograms take a short lock of their own. Every label has a known, small set of values: no
//! client can add series.

mod http;
mod own;
mod process;
mod request;
#[cfg(test)]
mod tests;
mod vllm;

use std::time::Duration;

use glim_engine::EngineStats;
use prometheus_client::encoding::prometheus_text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;

use http::Http;
use own::Own;
use process::Process;
use request::Ending;
pub(crate) use request::{CancelState, RequestTimes};
use vllm::Vllm;

/// The `Content-Type` of [`Metrics::render`].
pub(crate) const CONTENT_TYPE: &str = prometheus_text::CONTENT_TYPE;

/// All metrics of one server. Every method may be called from any thread.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    vllm: Vllm,
    own: Own,
    http: Http,
}

impl Metrics {
    /// All counters at zero. `model_name` is the name under which the model is served.
    pub(crate) fn new(model_name: &str) -> Self {
        let mut registry = Registry::default();
        let labels = [("model_name", model_name), ("engine", "0")]
            .map(|(name, value)| (name.into(), value.to_owned().into()));
        let engine = registry.sub_registry_with_labels(labels.into_iter());
        let vllm = Vllm::register(engine);
        let own = Own::register(engine);
        let http = Http::register(&mut registry);
        registry.register_collector(Box::new(Process));
        Self {
            registry,
            vllm,
            own,
            http,
        }
    }

    /// The engine took a prompt, for `n` answers of at most `max_tokens` each where the client said so.
    pub(crate) fn request_received(
        &self,
        n: usize,
        prompt_tokens: usize,
        max_tokens: Option<usize>,
    ) {
        let vllm = &self.vllm;
        vllm.request_params_n.observe(n as f64);
        vllm.request_prompt_tokens.observe(prompt_tokens as f64);
        if let Some(max_tokens) = max_tokens {
            vllm.request_params_max_tokens.observe(max_tokens as f64);
        }
    }

    /// A request was turned away with this status before it came to anything.
    pub(crate) fn rejected(&self, status: u16) {
        self.vllm.rejections(status).inc();
    }

    /// A request left the queue for its first step.
    pub(crate) fn scheduled(&self, queued: Duration) {
        self.vllm.request_queue_time.observe(queued.as_secs_f64());
    }

    /// An answer's first token is there, so long after the request arrived and after its first step.
    pub(crate) fn first_token(&self, ttft: Duration, prefill: Duration) {
        let vllm = &self.vllm;
        vllm.generation_tokens.inc();
        vllm.time_to_first_token.observe(ttft.as_secs_f64());
        vllm.request_prefill_time.observe(prefill.as_secs_f64());
    }

    /// An answer's next token is there, so long after the one before.
    pub(crate) fn inter_token(&self, since_last: Duration) {
        self.vllm.generation_tokens.inc();
        self.vllm
            .inter_token_latency
            .observe(since_last.as_secs_f64());
    }

    /// A request's client went away.
    pub(crate) fn cancelled(&self, state: CancelState) {
        self.own.cancelled(state).inc();
    }

    /// A request ended: `reason` is its `finish_reason`, `abort` or `error`. The times of those that were cut off by their client, or
    /// failed, are not counted: they would make the service look faster than it is.
    pub(crate) fn finished(&self, times: &RequestTimes, reason: &str) {
        let ending = Ending::of(reason);
        let answers = times.answers.len() as u64;
        self.vllm.request_success(ending).inc_by(answers);
        if matches!(ending, Ending::Stop | Ending::Length) {
            self.vllm.observe_times(times);
        }
    }

    /// The model gave numbers that are not numbers, and a request failed for it.
    pub(crate) fn corrupted(&self) {
        self.vllm.corrupted_requests.inc();
    }

    /// What the engine says of itself when it is not stepping.
    pub(crate) fn engine(&self, stats: &EngineStats) {
        self.vllm.engine(stats);
        self.own.engine(stats);
    }

    /// The engine made a step, which took this long.
    pub(crate) fn step(&self, stats: &EngineStats, took: Duration) {
        self.engine(stats);
        let size = stats.last_step;
        self.vllm
            .iteration_tokens
            .observe(size.prefill_tokens as f64 + size.decode_rows as f64);
        self.own.step(size, took);
    }

    /// Sequences that waited when the engine was last asked.
    pub(crate) fn waiting(&self) -> usize {
        usize::try_from(self.vllm.num_requests_waiting.get()).unwrap_or(0)
    }

    /// The model is loaded: a cache of so many blocks of so many tokens, after so long.
    pub(crate) fn loaded(&self, blocks: usize, block_size: usize, took: Duration) {
        self.vllm.cache_config(blocks, block_size);
        self.own.load_seconds.set(took.as_secs_f64());
    }

    /// The model did not pass its self-test.
    pub(crate) fn selftest_failed(&self) {
        self.own.selftest_failures.inc();
    }

    /// Counters that the publisher of the cache's events keeps.
    pub(crate) fn kv_events(&self) -> KvEventCounters {
        self.own.kv_events.clone()
    }

    /// A request over HTTP was answered. `handler` is the route as it is written in the router, or `none`.
    pub(crate) fn http(&self, handler: &str, method: &str, status: u16, took: Duration) {
        self.http.answered(handler, method, status, took);
    }

    /// The whole exposition.
    pub(crate) fn render(&self) -> String {
        let mut text = String::new();
        prometheus_text::encode(&mut text, &self.registry)
            .expect("writing to a String does not fail, and no metric is a native histogram");
        text
    }
}

/// What became of batches of the cache's events.
#[derive(Clone, Debug, Default)]
pub(crate) struct KvEventCounters {
    /// Batches that were encoded and offered to all subscribers.
    pub(crate) published: Counter,
    /// Batches that one subscriber lost by being slow, or all since the publisher had no time.
    pub(crate) dropped: Counter,
}
