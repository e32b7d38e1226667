//! HTTP itself: keys, paths, bodies, ids, probes.

use std::time::Duration;

use glim_server::{ApiKeys, ServerConfig};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::{Service, client, config, options, question, shared, with};

#[tokio::test]
async fn keys_open_the_server_by_either_header_and_probes_need_none() {
    let keys = ApiKeys::parse("# a\nsk-first-key\nsk-second-key\n").unwrap();
    let service = Service::start(ServerConfig { api_keys: keys, ..config() }, options()).await;
    let models = || client().get(format!("{}/v1/models", service.url));
    for key in ["sk-first-key", "sk-second-key"] {
        assert_eq!(models().bearer_auth(key).send().await.unwrap().status(), 200);
        assert_eq!(models().header("x-api-key", key).send().await.unwrap().status(), 200);
    }
    for request in [models(), models().bearer_auth("sk-first-ke"), models().header("x-api-key", "")] {
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 401);
        assert_eq!(response.headers()["www-authenticate"], "Bearer");
        let body: Value = response.json().await.unwrap();
        assert_eq!(body["error"]["type"], "authentication_error");
        assert!(!body.to_string().contains("sk-"), "{body}");
    }
    for path in ["/health", "/ready", "/startup", "/metrics", "/livez"] {
        let status = client().get(format!("{}{path}", service.url)).send().await.unwrap().status();
        assert_eq!(status, 200, "{path}");
    }
    let chat = service.post("/v1/chat/completions", &question("x")).send().await.unwrap();
    assert_eq!(chat.status(), 401);
}

#[tokio::test]
async fn what_is_not_there_says_so_in_json() {
    let service = shared().await;
    let get = |path: &str| client().get(format!("{}{path}", service.url)).send();
    for (response, status, kind) in [
        (get("/v1/nothing").await, 404, "not_found_error"),
        (get("/v1/embeddings").await, 404, "not_found_error"),
        (get("/v1/chat/completions").await, 405, "invalid_request_error"),
        (get("/v1/models/nobody").await, 404, "not_found_error"),
    ] {
        let response = response.unwrap();
        assert_eq!(response.status(), status);
        let body: Value = response.json().await.unwrap();
        assert_eq!(body["error"]["type"], kind);
    }
    let (status, body) = service
        .ask("/v1/chat/completions", &with(question("x"), json!({"model": "gpt-4"})))
        .await;
    assert_eq!((status, &body["error"]["code"]), (404, &json!("model_not_found")));
    let model: Value = get("/v1/models/other/name").await.unwrap().json().await.unwrap();
    assert_eq!((&model["root"], &model["max_model_len"]), (&json!("tiny"), &json!(2048)));
}

#[tokio::test]
async fn bodies_are_bounded_and_malformed_ones_are_not_repeated() {
    let config = ServerConfig { max_body_bytes: 10_000, ..config() };
    let service = Service::start(config, options()).await;
    let (status, body) = service.ask("/v1/chat/completions", &question(&"x".repeat(20_000))).await;
    assert_eq!((status, &body["error"]["type"]), (413, &json!("invalid_request_error")));
    let url = format!("{}/v1/chat/completions", service.url);
    for text in ["", "{", "secret", "[1]", "{\"messages\": 7, \"x\": \"secret\"}"] {
        let response = client().post(&url).body(text).send().await.unwrap();
        assert_eq!(response.status(), 400, "{text}");
        assert!(!response.text().await.unwrap().contains("secret"));
    }
}

#[tokio::test]
async fn a_request_id_goes_around_and_a_bad_one_is_replaced() {
    let service = shared().await;
    let get = |id: &str| client().get(format!("{}/health", service.url)).header("x-request-id", id).send();
    assert_eq!(get("my-id.1").await.unwrap().headers()["x-request-id"], "my-id.1");
    let long = "x".repeat(500);
    for bad in ["has blanks", &long] {
        let given = get(bad).await.unwrap().headers()["x-request-id"].clone();
        assert!(given.len() == 32 && given != bad);
    }
}

#[tokio::test]
async fn pages_of_other_origins_are_not_let_in_unless_they_are_named() {
    let ask = |service: &Service| {
        let request = client().get(format!("{}/v1/models", service.url));
        request.header("origin", "https://chat.example.org").send()
    };
    let response = ask(shared().await).await.unwrap();
    assert!(response.headers().get("access-control-allow-origin").is_none());
    let cors_origins = vec!["https://chat.example.org".to_owned()];
    let service = Service::start(ServerConfig { cors_origins, ..config() }, options()).await;
    let response = ask(&service).await.unwrap();
    assert_eq!(response.headers()["access-control-allow-origin"], "https://chat.example.org");
}

#[tokio::test]
async fn the_head_of_a_request_is_bounded() {
    let service = shared().await;
    let mut stream = TcpStream::connect(service.url.trim_start_matches("http://")).await.unwrap();
    let head = format!("GET /health HTTP/1.1\r\nhost: x\r\nx-long: {}\r\n", "y".repeat(100_000));
    // The server may close before all is written.
    let _ = stream.write_all(head.as_bytes()).await;
    let mut answer = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut answer)).await;
    assert!(read.is_ok(), "the connection is kept");
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
}
