//! The exposition against a strict parser of the format, and all names, types and labels as a snapshot.
#![allow(clippy::unwrap_used, reason = "tests")]

mod parser;

use std::collections::BTreeSet;
use std::time::Duration;

use glim_engine::StepSize;

use super::*;
use parser::{Exposition, Kind, parse};

const MODEL: &str = "glm-5 \"tiny\"\\\n";

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn stats(last_step: StepSize) -> EngineStats {
    EngineStats {
        running: 3,
        waiting: 1,
        blocks_total: 200,
        blocks_used: 50,
        blocks_cached: 30,
        block_size: 64,
        prefix_queries: 1000,
        prefix_hits: 250,
        preemptions: 4,
        steps: 77,
        last_step,
        cache_misses: [
            ("cold", 5),
            ("evicted", 1),
            ("salt", 0),
            ("short", 2),
            ("disabled", 0),
        ],
    }
}

/// A server's metrics after one of everything.
fn busy() -> Metrics {
    let metrics = Metrics::new(MODEL);
    metrics.loaded(200, 64, ms(1500));

    metrics.request_received(2, 100, Some(16));
    metrics.scheduled(ms(400));
    metrics.first_token(ms(900), ms(500));
    metrics.inter_token(ms(20));
    let times = RequestTimes {
        e2e: ms(1000),
        queue: ms(400),
        prefill: ms(500),
        decode: ms(20),
        answers: vec![2],
    };
    metrics.finished(&times, "tool_calls");
    metrics.finished(&times, "length");

    metrics.cancelled(CancelState::Queued);
    metrics.finished(&times, "abort");
    let answers = vec![1, 2, 0];
    metrics.finished(&RequestTimes { answers, ..times }, "error");
    for status in [429, 429, 503, 400, 500] {
        metrics.rejected(status);
    }
    metrics.corrupted();
    metrics.selftest_failed();
    let step = |prefill_tokens, decode_rows| {
        stats(StepSize {
            prefill_tokens,
            decode_rows,
        })
    };
    metrics.step(&step(64, 0), ms(30));
    metrics.step(&step(0, 8), ms(3));
    metrics.step(&step(16, 8), ms(9));
    metrics.kv_events().published.inc_by(12);
    metrics.kv_events().dropped.inc_by(3);
    metrics.http("/v1/chat/completions", "POST", 200, ms(1000));
    metrics.http("none", "BREW", 404, ms(1));
    metrics
}

fn value(exposition: &Exposition, name: &str, labels: &[(&str, &str)]) -> f64 {
    exposition
        .value(name, labels)
        .unwrap_or_else(|| panic!("no sample {name}{labels:?}"))
}

#[test]
fn every_line_is_of_the_format() {
    for metrics in [Metrics::new(MODEL), busy()] {
        parse(&metrics.render()).unwrap();
    }
}

#[test]
fn names_types_and_labels() {
    let exposition = parse(&busy().render()).unwrap();
    let mut lines = BTreeSet::new();
    for family in exposition.families() {
        let labels: BTreeSet<&str> = family
            .samples
            .iter()
            .flat_map(|sample| sample.labels.iter())
            .map(|(name, _)| name.as_str())
            .collect();
        let labels = labels.into_iter().collect::<Vec<_>>().join(", ");
        lines.insert(format!(
            "{} {} {{{labels}}}",
            family.name,
            family.kind.as_str()
        ));
    }
    insta::assert_snapshot!(lines.into_iter().collect::<Vec<_>>().join("\n"));
}

#[test]
fn what_routers_read_is_there_before_the_first_request_and_before_the_model() {
    let exposition = parse(&Metrics::new("m").render()).unwrap();
    for gauge in [
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",
        "vllm:gpu_prefix_cache_hit_rate",
    ] {
        assert_eq!(
            value(&exposition, gauge, &[("model_name", "m"), ("engine", "0")]),
            0.0
        );
    }
    for reason in ["stop", "length", "abort", "error"] {
        let labels = [("finished_reason", reason)];
        assert_eq!(
            value(&exposition, "vllm:request_success_total", &labels),
            0.0
        );
    }
}

#[test]
fn values_of_a_busy_server() {
    let metrics = busy();
    let exposition = parse(&metrics.render()).unwrap();
    let check = |name: &str, labels: &[(&str, &str)], expected: f64| {
        let found = value(&exposition, name, labels);
        assert_eq!(found, expected, "{name}{labels:?}");
    };
    let rejected = "vllm:admission_rejections_total";
    let success = "vllm:request_success_total";
    let first = "vllm:time_to_first_token_seconds_bucket";
    let route = [
        ("handler", "/v1/chat/completions"),
        ("method", "POST"),
        ("status", "2xx"),
    ];
    let unknown = [("handler", "none"), ("method", "other"), ("status", "4xx")];

    check("vllm:num_requests_running", &[("model_name", MODEL)], 3.0);
    check("vllm:num_requests_waiting", &[], 1.0);
    check("vllm:kv_cache_usage_perc", &[], 0.25);
    check("vllm:gpu_cache_usage_perc", &[], 0.25);
    check("vllm:cache_config_info", &[("block_size", "64")], 1.0);
    check("vllm:cache_config_info", &[("num_gpu_blocks", "200")], 1.0);
    check("vllm:prefix_cache_queries_total", &[], 1000.0);
    check("vllm:gpu_prefix_cache_hits_total", &[], 250.0);
    check("vllm:gpu_prefix_cache_hit_rate", &[], 0.25);
    check("vllm:num_preemptions_total", &[], 4.0);
    check("vllm:prompt_tokens_total", &[], 1000.0);
    check("vllm:generation_tokens_total", &[], 2.0);
    check(success, &[("finished_reason", "stop")], 1.0);
    check(success, &[("finished_reason", "length")], 1.0);
    check(success, &[("finished_reason", "abort")], 1.0);
    check(success, &[("finished_reason", "error")], 3.0);
    check("vllm:iteration_tokens_total_count", &[], 3.0);
    check("vllm:iteration_tokens_total_sum", &[], 96.0);
    check("vllm:time_to_first_token_seconds_sum", &[], 0.9);
    check(first, &[("le", "0.75")], 0.0);
    check(first, &[("le", "1")], 1.0);
    check("vllm:inter_token_latency_seconds_sum", &[], 0.02);
    check("vllm:time_per_output_token_seconds_sum", &[], 0.02);
    check("vllm:request_queue_time_seconds_sum", &[], 0.4);
    check("vllm:request_prefill_time_seconds_sum", &[], 0.5);
    // The two that came to their end; not the cancelled and not the failed one.
    check("vllm:request_inference_time_seconds_sum", &[], 1.04);
    check("vllm:e2e_request_latency_seconds_count", &[], 2.0);
    check("vllm:request_generation_tokens_sum", &[], 4.0);
    check("vllm:request_max_num_generation_tokens_count", &[], 2.0);
    check("vllm:corrupted_requests_total", &[], 1.0);
    check(rejected, &[("reason", "max_num_queued_reqs")], 2.0);
    check(rejected, &[("reason", "unavailable")], 1.0);
    check(rejected, &[("reason", "does_not_fit")], 1.0);
    check("glim:kv_blocks", &[("state", "free")], 120.0);
    check("glim:cache_miss_total", &[("reason", "cold")], 5.0);
    check("glim:cancelled_total", &[("state", "queued")], 1.0);
    check("glim:load_seconds", &[], 1.5);
    check("glim:step_seconds_count", &[("phase", "decode")], 1.0);
    check("glim:step_seconds_count", &[("phase", "mixed")], 1.0);
    check("glim:kv_event_batches_total", &[], 12.0);
    check("glim:kv_events_dropped_total", &[], 3.0);
    check("http_requests_total", &route, 1.0);
    check("http_requests_total", &unknown, 1.0);
    assert_eq!(metrics.waiting(), 1);
}

#[test]
fn a_new_size_of_the_cache_replaces_the_old_series() {
    let metrics = busy();
    metrics.loaded(100, 16, ms(1));
    let exposition = parse(&metrics.render()).unwrap();
    let family = exposition.family("vllm:cache_config_info");
    assert_eq!(family.samples.len(), 1);
}

#[test]
#[cfg(target_os = "linux")]
fn the_process_tells_of_itself() {
    let exposition = parse(&Metrics::new("m").render()).unwrap();
    for name in [
        "process_resident_memory_bytes",
        "process_virtual_memory_bytes",
        "process_open_fds",
        "process_max_fds",
        "process_threads",
    ] {
        assert!(value(&exposition, name, &[]) > 0.0, "{name}");
    }
    let start = value(&exposition, "process_start_time_seconds", &[]);
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_secs_f64();
    assert!((0.0..86_400.0).contains(&(now - start)), "{start} {now}");
    assert_eq!(
        exposition.family("process_cpu_seconds_total").kind,
        Kind::Counter
    );
}

#[test]
fn the_parser_sees_faults() {
    for (fault, text) in [
        ("no type", "a 1\n"),
        ("no end of line", "# TYPE a gauge\na 1"),
        ("two types", "# TYPE a gauge\n# TYPE a gauge\na 1\n"),
        ("a name that is none", "# TYPE a-b gauge\na-b 1\n"),
        ("a label that is open", "# TYPE a gauge\na{b=\"c} 1\n"),
        ("twice the same sample", "# TYPE a gauge\na 1\na 1\n"),
        ("a counter without total", "# TYPE a counter\na 1\n"),
        (
            "a counter that is negative",
            "# TYPE a_total counter\na_total -1\n",
        ),
        ("a value that is none", "# TYPE a gauge\na one\n"),
        (
            "a family in two parts",
            "# TYPE a gauge\na{x=\"1\"} 1\n# TYPE b gauge\nb 1\na{x=\"2\"} 1\n",
        ),
        (
            "buckets that fall",
            "# TYPE h histogram\nh_bucket{le=\"1\"} 2\nh_bucket{le=\"+Inf\"} 1\nh_sum 1\nh_count 1\n",
        ),
        (
            "no last bucket",
            "# TYPE h histogram\nh_bucket{le=\"1\"} 1\nh_sum 1\nh_count 1\n",
        ),
        (
            "a count that is not the last bucket",
            "# TYPE h histogram\nh_bucket{le=\"+Inf\"} 1\nh_sum 1\nh_count 2\n",
        ),
    ] {
        assert!(parse(text).is_err(), "{fault}");
    }
}
