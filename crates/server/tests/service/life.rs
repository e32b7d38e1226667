//! Load, overload, going away, the end.

use std::sync::mpsc::channel;
use std::time::Duration;

use glim_cpu::Math;
use glim_engine::EngineOptions;
use glim_server::{ServeError, ServerConfig};
use serde_json::{Value, json};

use crate::harness::{Service, config, load, options, parse_events, question, with};

/// A request that takes its time.
fn long() -> Value {
    with(
        question("Tell me a story."),
        json!({"max_tokens": 1500, "ignore_eos": true}),
    )
}

/// Waits for something that will happen.
async fn until<F: Future<Output = bool>>(mut is_so: impl FnMut() -> F) {
    while !is_so().await {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn status(service: &Service, path: &str) -> u16 {
    let response = reqwest::get(format!("{}{path}", service.url))
        .await
        .unwrap();
    response.status().as_u16()
}

#[tokio::test]
async fn while_the_model_loads_probes_say_so() {
    let (go, wait) = channel::<()>();
    let service = Service::launch(config(), move |lifecycle| {
        lifecycle.loading("weights");
        lifecycle.expect_bytes(1000);
        lifecycle.loaded_bytes(250);
        wait.recv().unwrap();
        Ok(load(options(), Math::Fast))
    });
    until(|| async {
        let ready = reqwest::get(format!("{}/ready", service.url))
            .await
            .unwrap();
        assert_eq!(ready.status(), 503);
        let ready: Value = ready.json().await.unwrap();
        ready["phase"] == "weights" && ready["bytes_done"] == 250 && ready["bytes_total"] == 1000
    })
    .await;
    assert_eq!(status(&service, "/health").await, 200);
    for path in ["/startup", "/v1/models", "/ready"] {
        assert_eq!(status(&service, path).await, 503, "{path}");
    }
    let response = service
        .post("/v1/chat/completions", &question("x"))
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), 503);
    assert!(response.headers().contains_key("retry-after"));
    go.send(()).unwrap();
    service.wait_ready().await;
    assert_eq!(status(&service, "/startup").await, 200);
}

#[tokio::test]
async fn a_model_that_cannot_be_loaded_ends_the_server_with_its_reason() {
    let service = Service::launch(config(), |_| Err("no such file".to_owned()));
    let error = service.join().await.unwrap_err();
    assert!(
        matches!(&error, ServeError::Load(reason) if reason == "no such file"),
        "{error}"
    );
}

#[tokio::test]
async fn a_server_that_is_told_to_end_while_it_loads_ends() {
    let (go, wait) = channel::<()>();
    let service = Service::launch(config(), move |_| {
        let _ = wait.recv();
        Err("too late".to_owned())
    });
    service.stopper().stop();
    service.join().await.unwrap();
    drop(go);
}

#[tokio::test]
async fn a_full_queue_is_429_and_a_try_later_succeeds() {
    let engine = EngineOptions {
        max_num_seqs: 1,
        max_queue: Some(1),
        ..options()
    };
    let config = ServerConfig {
        max_queue: Some(1),
        ..config()
    };
    let service = Service::start(config, engine).await;
    let stream = |body| {
        service
            .post("/v1/chat/completions", &with(body, json!({"stream": true})))
            .send()
    };
    let running = stream(long()).await.unwrap();
    until(|| async { service.metric("vllm:num_requests_running").await == 1.0 }).await;
    let waiting = stream(long()).await.unwrap();
    until(|| async { service.metric("vllm:num_requests_waiting").await == 1.0 }).await;
    assert_eq!(
        status(&service, "/ready").await,
        503,
        "traffic goes elsewhere"
    );
    let refused = stream(long()).await.unwrap();
    assert_eq!(refused.status(), 429);
    assert!(refused.headers().contains_key("retry-after"));
    let body: Value = refused.json().await.unwrap();
    assert_eq!(body["error"]["code"], "rate_limit_exceeded");
    // n counts as n.
    let two = with(long(), json!({"n": 2}));
    assert_eq!(stream(two).await.unwrap().status(), 429);
    drop((running, waiting));
    service.quiet().await;
    assert_eq!(status(&service, "/ready").await, 200);
    service.chat(question("x")).await;
}

#[tokio::test]
async fn a_client_that_goes_away_frees_its_place_in_every_state() {
    let engine = EngineOptions {
        max_num_seqs: 1,
        max_chunk: 16,
        ..options()
    };
    let service = Service::start(config(), engine).await;
    let cancelled = || service.metric("glim:cancelled_total");
    let used = || service.metric("vllm:kv_cache_usage_perc");
    // Decode, as a stream.
    let mut stream = service
        .post(
            "/v1/chat/completions",
            &with(long(), json!({"stream": true})),
        )
        .send()
        .await
        .unwrap();
    stream.chunk().await.unwrap();
    until(|| async { used().await > 0.0 }).await;
    // Queued behind it, as a stream and not.
    let behind = tokio::spawn(service.post("/v1/chat/completions", &long()).send());
    until(|| async { service.metric("vllm:num_requests_waiting").await == 1.0 }).await;
    behind.abort();
    until(|| async { service.metric("vllm:num_requests_waiting").await == 0.0 }).await;
    drop(stream);
    service.quiet().await;
    assert_eq!(used().await, 0.0);
    until(|| async { cancelled().await == 2.0 }).await;
    // Prefill: a long prompt in small chunks, without a stream.
    let prompt = with(question(&"word ".repeat(900)), json!({"max_tokens": 4}));
    let prefill = tokio::spawn(service.post("/v1/chat/completions", &prompt).send());
    until(|| async { service.metric("vllm:num_requests_running").await == 1.0 }).await;
    prefill.abort();
    service.quiet().await;
    // Decode, not as a stream.
    let decode = tokio::spawn(service.post("/v1/chat/completions", &long()).send());
    until(|| async { used().await > 0.0 }).await;
    decode.abort();
    service.quiet().await;
    assert_eq!(used().await, 0.0);
    service.chat(question("x")).await;
}

#[tokio::test]
async fn a_drain_finishes_what_is_there_and_takes_nothing_new() {
    let service = Service::start(config(), options()).await;
    let body = with(long(), json!({"stream": true, "max_tokens": 200}));
    let mut stream = service
        .post("/v1/chat/completions", &body)
        .send()
        .await
        .unwrap();
    let first = stream.chunk().await.unwrap().unwrap();
    service.stopper().stop();
    until(|| async { status(&service, "/ready").await == 503 }).await;
    let refused = service
        .post("/v1/chat/completions", &question("x"))
        .send()
        .await
        .unwrap();
    assert_eq!(refused.status(), 503);
    assert!(refused.headers().contains_key("retry-after"));
    assert_eq!(status(&service, "/health").await, 200);
    let mut text = String::from_utf8(first.to_vec()).unwrap();
    text += &stream.text().await.unwrap();
    assert_eq!(parse_events(&text).last().unwrap(), "[DONE]");
    service.join().await.unwrap();
}

#[tokio::test]
async fn a_drain_has_a_limit_after_which_answers_end_with_an_error() {
    let config = ServerConfig {
        drain_timeout: Duration::from_millis(50),
        ..config()
    };
    let service = Service::start(config, options()).await;
    let body = with(long(), json!({"stream": true}));
    let stream = service
        .post("/v1/chat/completions", &body)
        .send()
        .await
        .unwrap();
    service.stopper().stop();
    let events = parse_events(&stream.text().await.unwrap());
    assert_eq!(
        events.last().unwrap()["error"]["type"],
        "unavailable_error",
        "no [DONE]"
    );
    service.join().await.unwrap();
}

#[tokio::test]
async fn a_second_call_ends_at_once() {
    let service = Service::start(config(), options()).await;
    let body = with(long(), json!({"stream": true}));
    let stream = service
        .post("/v1/chat/completions", &body)
        .send()
        .await
        .unwrap();
    let stopper = service.stopper();
    stopper.stop();
    stopper.stop();
    service.join().await.unwrap();
    let text = stream.text().await.unwrap_or_default();
    assert!(!text.contains("[DONE]"));
}

#[tokio::test]
async fn a_request_that_takes_too_long_is_ended() {
    let config = ServerConfig {
        request_timeout: Duration::from_millis(100),
        ..config()
    };
    let service = Service::start(config, options()).await;
    let (status, body) = service.ask("/v1/chat/completions", &long()).await;
    assert_eq!(
        (status, &body["error"]["type"]),
        (504, &json!("timeout_error"))
    );
    let events = service.events("/v1/chat/completions", long()).await;
    assert_eq!(events.last().unwrap()["error"]["type"], "timeout_error");
    service.quiet().await;
}

#[tokio::test]
async fn a_step_that_takes_too_long_shows_in_health_and_silence_is_filled_with_pings() {
    let config = ServerConfig {
        step_timeout: Duration::ZERO,
        ping_interval: Duration::from_millis(1),
        ..config()
    };
    let service = Service::start(config, options()).await;
    let body = with(
        question(&"word ".repeat(900)),
        json!({"stream": true, "max_tokens": 500, "ignore_eos": true}),
    );
    let stream = service
        .post("/v1/chat/completions", &body)
        .send()
        .await
        .unwrap();
    until(|| async { status(&service, "/health").await == 503 }).await;
    assert!(stream.text().await.unwrap().contains(": ping\n\n"));
    service.quiet().await;
    assert_eq!(status(&service, "/health").await, 200, "idle is healthy");
}
