//! The engine's numbers under vLLM's names, types and buckets (`vllm/v1/metrics/loggers.py`).
//!
//! Where vLLM renamed a metric, the old name is given too, since some routers still read it: `vllm:gpu_cache_usage_perc`,
//! `vllm:gpu_prefix_cache_*`, `vllm:time_per_output_token_seconds`. Both names show one and the same number.

use std::sync::atomic::{AtomicU64, Ordering};

use glim_engine::EngineStats;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::request::{Ending, RequestTimes};

/// Buckets of whole requests, in seconds.
const REQUEST_SECONDS: [f64; 21] = [
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
];

/// Buckets of the time to the first token, in seconds.
const FIRST_TOKEN_SECONDS: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];

/// Buckets of the time between tokens, in seconds.
const NEXT_TOKEN_SECONDS: [f64; 19] = [
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
];

/// Buckets of tokens in a step.
const STEP_TOKENS: [f64; 13] = [
    1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0,
];

/// Buckets of answers to one request.
const ANSWERS: [f64; 5] = [1.0, 2.0, 5.0, 10.0, 20.0];

/// Buckets of tokens in a request. vLLM's run in the same steps up to the model's longest context; these run past any, so that the
/// series do not depend on the model, which may still be loading.
const REQUEST_TOKENS: [f64; 19] = [
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5,
    5e5, 1e6,
];

/// Why requests are turned away. The full queue has vLLM's name (its pull request 55812).
const REJECTIONS: [&str; 4] = [
    "max_num_queued_reqs",
    "unavailable",
    "does_not_fit",
    "internal",
];

type Labels = Vec<(&'static str, String)>;
type FloatGauge = Gauge<f64, AtomicU64>;

/// Handles of everything under `vllm:`.
#[derive(Debug)]
pub(super) struct Vllm {
    num_requests_running: Gauge,
    pub(super) num_requests_waiting: Gauge,
    kv_cache_usage: FloatGauge,
    cache_config_info: Family<Labels, Gauge>,
    prefix_cache_queries: Counter,
    prefix_cache_hits: Counter,
    prefix_cache_hit_rate: FloatGauge,
    num_preemptions: Counter,
    prompt_tokens: Counter,
    pub(super) generation_tokens: Counter,
    request_success: Family<Labels, Counter>,
    pub(super) corrupted_requests: Counter,
    admission_rejections: Family<Labels, Counter>,
    pub(super) iteration_tokens: Histogram,
    pub(super) time_to_first_token: Histogram,
    pub(super) inter_token_latency: Histogram,
    request_time_per_output_token: Histogram,
    e2e_request_latency: Histogram,
    pub(super) request_queue_time: Histogram,
    pub(super) request_prefill_time: Histogram,
    request_decode_time: Histogram,
    request_inference_time: Histogram,
    pub(super) request_prompt_tokens: Histogram,
    request_generation_tokens: Histogram,
    request_max_num_generation_tokens: Histogram,
    pub(super) request_params_n: Histogram,
    pub(super) request_params_max_tokens: Histogram,
}

impl Vllm {
    /// Registers every name. The registry has the labels that all share.
    pub(super) fn register(registry: &mut Registry) -> Self {
        let vllm = Self {
            num_requests_running: Gauge::default(),
            num_requests_waiting: Gauge::default(),
            kv_cache_usage: FloatGauge::default(),
            cache_config_info: Family::default(),
            prefix_cache_queries: Counter::default(),
            prefix_cache_hits: Counter::default(),
            prefix_cache_hit_rate: FloatGauge::default(),
            num_preemptions: Counter::default(),
            prompt_tokens: Counter::default(),
            generation_tokens: Counter::default(),
            request_success: Family::default(),
            corrupted_requests: Counter::default(),
            admission_rejections: Family::default(),
            iteration_tokens: Histogram::new(STEP_TOKENS),
            time_to_first_token: Histogram::new(FIRST_TOKEN_SECONDS),
            inter_token_latency: Histogram::new(NEXT_TOKEN_SECONDS),
            request_time_per_output_token: Histogram::new(NEXT_TOKEN_SECONDS),
            e2e_request_latency: Histogram::new(REQUEST_SECONDS),
            request_queue_time: Histogram::new(REQUEST_SECONDS),
            request_prefill_time: Histogram::new(REQUEST_SECONDS),
            request_decode_time: Histogram::new(REQUEST_SECONDS),
            request_inference_time: Histogram::new(REQUEST_SECONDS),
            request_prompt_tokens: Histogram::new(REQUEST_TOKENS),
            request_generation_tokens: Histogram::new(REQUEST_TOKENS),
            request_max_num_generation_tokens: Histogram::new(REQUEST_TOKENS),
            request_params_n: Histogram::new(ANSWERS),
            request_params_max_tokens: Histogram::new(REQUEST_TOKENS),
        };
        for ending in Ending::ALL {
            vllm.request_success(ending);
        }
        for reason in REJECTIONS {
            vllm.admission_rejections
                .get_or_create_owned(&labels("reason", reason));
        }
        vllm.enter(registry);
        vllm
    }

    /// Enters the handles: a name, what it means, the metric. The encoder puts `_total` behind a counter's name and a full stop
    /// behind its meaning.
    fn enter(&self, registry: &mut Registry) {
        macro_rules! enter {
            ($($name:literal, $help:literal, $metric:ident;)*) => {
                $(registry.register(concat!("vllm:", $name), $help, self.$metric.clone());)*
            };
        }
        enter! {
            "num_requests_running", "Sequences in the running batch", num_requests_running;
            "num_requests_waiting", "Sequences that wait for their first step, or again after a preemption", num_requests_waiting;
            "kv_cache_usage_perc", "Share of the cache's blocks that running sequences hold, 0 to 1", kv_cache_usage;
            "gpu_cache_usage_perc", "Old name of vllm:kv_cache_usage_perc", kv_cache_usage;
            "cache_config_info", "Block size and number of blocks of the cache; the value is 1", cache_config_info;
            "prefix_cache_queries", "Prompt tokens that were looked up in the prefix cache", prefix_cache_queries;
            "prefix_cache_hits", "Prompt tokens that were found in the prefix cache", prefix_cache_hits;
            "gpu_prefix_cache_queries", "Old name of vllm:prefix_cache_queries", prefix_cache_queries;
            "gpu_prefix_cache_hits", "Old name of vllm:prefix_cache_hits", prefix_cache_hits;
            "gpu_prefix_cache_hit_rate", "Hits over queries since the start, 0 to 1", prefix_cache_hit_rate;
            "num_preemptions", "Sequences that lost their blocks to others and were computed again", num_preemptions;
            "prompt_tokens", "Tokens of prompts that were started, found in the cache or not", prompt_tokens;
            "generation_tokens", "Tokens generated", generation_tokens;
            "request_success", "Sequences that ended, by reason", request_success;
            "corrupted_requests", "Sequences that failed since the model gave values that are not numbers", corrupted_requests;
            "admission_rejections", "Requests turned away before the engine saw them, by reason", admission_rejections;
            "iteration_tokens_total", "Tokens in a step of the engine", iteration_tokens;
            "time_to_first_token_seconds", "Arrival to the first token", time_to_first_token;
            "inter_token_latency_seconds", "One token to the next of a sequence", inter_token_latency;
            "time_per_output_token_seconds", "Old name of vllm:inter_token_latency_seconds", inter_token_latency;
            "request_time_per_output_token_seconds", "Mean time between the tokens of a sequence", request_time_per_output_token;
            "e2e_request_latency_seconds", "Arrival to the end", e2e_request_latency;
            "request_queue_time_seconds", "Arrival to the first step", request_queue_time;
            "request_prefill_time_seconds", "First step to the first token", request_prefill_time;
            "request_decode_time_seconds", "First token to the last", request_decode_time;
            "request_inference_time_seconds", "First step to the last token", request_inference_time;
            "request_prompt_tokens", "Tokens of the prompt", request_prompt_tokens;
            "request_generation_tokens", "Tokens of the answer", request_generation_tokens;
            "request_max_num_generation_tokens", "Tokens of a request's longest answer", request_max_num_generation_tokens;
            "request_params_n", "The parameter n", request_params_n;
            "request_params_max_tokens", "The parameter max_tokens", request_params_max_tokens;
        }
    }

    pub(super) fn request_success(&self, ending: Ending) -> Counter {
        self.request_success
            .get_or_create_owned(&labels("finished_reason", ending.as_str()))
    }

    pub(super) fn rejections(&self, status: u16) -> Counter {
        let [queue_full, unavailable, does_not_fit, internal] = REJECTIONS;
        let reason = match status {
            429 => queue_full,
            503 => unavailable,
            400..500 => does_not_fit,
            _ => internal,
        };
        self.admission_rejections
            .get_or_create_owned(&labels("reason", reason))
    }

    /// A request that came to its end.
    pub(super) fn observe_times(&self, times: &RequestTimes) {
        self.e2e_request_latency.observe(times.e2e.as_secs_f64());
        self.request_decode_time.observe(times.decode.as_secs_f64());
        self.request_inference_time
            .observe(times.inference().as_secs_f64());
        if let Some(mean) = times.per_output_token() {
            self.request_time_per_output_token
                .observe(mean.as_secs_f64());
        }
        for tokens in &times.answers {
            self.request_generation_tokens.observe(*tokens as f64);
        }
        self.request_max_num_generation_tokens
            .observe(times.longest() as f64);
    }

    /// The engine counts for itself; its sums are taken over as they are.
    pub(super) fn engine(&self, stats: &EngineStats) {
        self.num_requests_running.set(gauge(stats.running));
        self.num_requests_waiting.set(gauge(stats.waiting));
        self.kv_cache_usage
            .set(ratio(stats.blocks_used as u64, stats.blocks_total as u64));
        let store = |counter: &Counter, sum: u64| counter.inner().store(sum, Ordering::Relaxed);
        store(&self.prefix_cache_queries, stats.prefix_queries);
        store(&self.prefix_cache_hits, stats.prefix_hits);
        // A prompt is looked up once, when it is started.
        store(&self.prompt_tokens, stats.prefix_queries);
        self.prefix_cache_hit_rate
            .set(ratio(stats.prefix_hits, stats.prefix_queries));
        store(&self.num_preemptions, stats.preemptions);
        self.cache_config(stats.blocks_total, stats.block_size);
    }

    /// How large the cache is; told once the model is there.
    pub(super) fn cache_config(&self, blocks: usize, block_size: usize) {
        let cache = vec![
            ("block_size", block_size.to_string()),
            ("num_gpu_blocks", blocks.to_string()),
        ];
        if self.cache_config_info.get(&cache).is_none() {
            self.cache_config_info.clear();
            self.cache_config_info.get_or_create(&cache).set(1);
        }
    }
}

fn labels(name: &'static str, value: &str) -> Labels {
    vec![(name, value.to_owned())]
}

/// A count as a gauge holds it.
pub(super) fn gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Part over whole; nothing of nothing is 0.
fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}
