//! An export arrives at a sink that knows HTTP and nothing of OpenTelemetry: names and ids stand in protobuf as they are.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};

use axum::http::HeaderMap;
use tracing_subscriber::layer::SubscriberExt;

use super::*;

const TRACE: [u8; 16] = [
    0x0a, 0xf7, 0x65, 0x19, 0x16, 0xcd, 0x43, 0xdd, 0x84, 0x48, 0xeb, 0x21, 0x1c, 0x80, 0x31, 0x9c,
];
const PARENT: [u8; 8] = [0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31];

/// Answers one POST; returns its first line and its body.
fn sink(listener: &TcpListener) -> (String, Vec<u8>) {
    let (stream, _) = listener.accept().unwrap();
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    reader.read_line(&mut first).unwrap();
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let line = line.trim().to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    reader
        .get_mut()
        .write_all(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n",
        )
        .unwrap();
    (first.trim().to_owned(), body)
}

fn count(body: &[u8], wanted: &[u8]) -> usize {
    body.windows(wanted.len())
        .filter(|window| *window == wanted)
        .count()
}

#[test]
fn a_request_is_exported_with_its_phases_in_the_trace_of_its_client() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}/", listener.local_addr().unwrap());
    let sink = std::thread::spawn(move || sink(&listener));

    let otel = Otel::start(&endpoint).unwrap();
    let subscriber = tracing_subscriber::registry().with(otel.layer());
    tracing::subscriber::with_default(subscriber, || {
        let mut headers = HeaderMap::new();
        let traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        headers.insert("traceparent", traceparent.parse().unwrap());
        let span = tracing::info_span!(
            "request",
            request_id = "r-17",
            path = "/v1/chat/completions"
        );
        continue_trace(&span, &headers);
        let _inner = span.in_scope(|| tracing::info_span!("not exported").entered());
        let arrived = Instant::now();
        let at = |ms| Some(arrived + Duration::from_millis(ms));
        let trace = GenerationTrace {
            id: "chatcmpl-1",
            model: "glm-5",
            finish_reason: "stop",
            prompt_tokens: 7,
            cached_tokens: 0,
            completion_tokens: 3,
            arrived,
            started: at(1),
            first_token: at(2),
            last_token: at(3),
        };
        span.in_scope(|| generation(&span, &trace));
    });
    drop(otel);

    let (first, body) = sink.join().unwrap();
    assert_eq!(first, "POST /v1/traces HTTP/1.1");
    // The request and its three phases are of the client's trace; the request alone is the client's child.
    assert_eq!(count(&body, &TRACE), 4);
    assert_eq!(count(&body, &PARENT), 1);
    for name in [
        "glim",
        "request",
        "queued",
        "prefill",
        "decode",
        "r-17",
        "/v1/chat/completions",
        "gen_ai.usage.input_tokens",
        "gen_ai.response.finish_reasons",
        "chatcmpl-1",
    ] {
        assert!(count(&body, name.as_bytes()) > 0, "{name}");
    }
    assert_eq!(count(&body, b"not exported"), 0);
}

#[test]
fn an_endpoint_that_needs_tls_is_told() {
    let error = Otel::start("https://collector:4318").unwrap_err();
    assert!(
        error.to_string().contains("expected http://HOST:PORT"),
        "{error}"
    );
}
