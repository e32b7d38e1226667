//! What an answer is does not depend on who else is served, nor on what the cache holds.

use glim_cpu::Math;
use serde_json::{Value, json};

use crate::harness::{Service, config, load, options, question, with};

/// Requests that differ, greedy and seeded; the last is longer than what attention looks at.
fn requests() -> Vec<Value> {
    let mut requests: Vec<Value> = (0..6)
        .map(|n| {
            with(
                question(&format!("Tell me a story about the number {n}.")),
                json!({"temperature": 0.9, "seed": n, "max_tokens": 24, "logprobs": n % 2 == 0}),
            )
        })
        .collect();
    requests.push(question("What is 27 + 58?"));
    let rooms: String = (0..60)
        .map(|n| format!("In room {} lives {}. ", 300 + n, ["Ada", "Ben", "Cid", "Dan"][n % 4]))
        .collect();
    requests.push(with(question(&format!("{rooms}Who lives in room 317?")), json!({"max_tokens": 16})));
    requests
}

async fn check(math: Math) {
    let service = Service::launch(config(), move |_| Ok(load(options(), math)));
    service.wait_ready().await;
    let service = &service;
    let requests = requests();
    let ask = |body: Value| async move { service.chat(body).await["choices"].clone() };
    // Each alone, with a cache of its own.
    let mut alone = Vec::new();
    for (n, body) in requests.iter().enumerate() {
        let body = with(body.clone(), json!({"cache_salt": format!("alone {n}")}));
        alone.push(ask(body).await);
    }
    // All at once, twice over: 16 beside each other, none of which finds anything.
    let together = (0..2).flat_map(|round| {
        let salted = move |body: &Value| {
            with(body.clone(), json!({"cache_salt": format!("together {round}")}))
        };
        requests.iter().map(salted).collect::<Vec<_>>()
    });
    let together = futures_util::future::join_all(together.map(ask)).await;
    for (n, found) in together.iter().enumerate() {
        assert_eq!(found, &alone[n % requests.len()], "among others, request {n}");
    }
    // Once more: every prompt is in the cache.
    for (body, alone) in requests.iter().zip(&alone) {
        let body = with(body.clone(), json!({"cache_salt": "together 0"}));
        let answer = service.chat(body).await;
        let usage = &answer["usage"];
        let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        assert!(cached > 0 || usage["prompt_tokens"].as_u64().unwrap() <= 16, "{answer}");
        assert_eq!(&answer["choices"], alone, "on a hit");
    }
}

#[tokio::test]
async fn fast_answers_are_the_same_alone_among_others_and_on_a_hit() {
    check(Math::Fast).await;
}

#[tokio::test]
async fn exact_answers_are_the_same_alone_among_others_and_on_a_hit() {
    check(Math::Exact).await;
}
