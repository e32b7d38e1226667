//! Where answers end: stop strings, stop tokens, limits.

use serde_json::{Value, json};

use crate::harness::{question, shared, with};

/// A seeded story, and its content without any stop.
async fn story(more: Value) -> Value {
    let body = with(
        question("Tell me a story."),
        json!({"temperature": 0.7, "seed": 11, "max_tokens": 60, "enable_thinking": false}),
    );
    shared().await.chat(with(body, more)).await["choices"][0].clone()
}

fn content(choice: &Value) -> &str {
    choice["message"]["content"].as_str().unwrap()
}

#[tokio::test]
async fn a_stop_string_cuts_just_before_itself_wherever_its_tokens_end() {
    let all = story(json!({})).await;
    let text = content(&all).to_owned();
    assert!(text.len() > 60, "{text}");
    // Any piece of the text, also across tokens and within them.
    for start in [3, 10, 25, 40] {
        let stop: String = text.chars().skip(start).take(7).collect();
        let before = &text[..text.find(&stop).unwrap()];
        let cut = story(json!({"stop": stop})).await;
        assert_eq!(content(&cut), before, "{stop:?}");
        assert_eq!(cut["finish_reason"], "stop");
        assert_eq!(cut["stop_reason"], stop.as_str());
        let kept = story(json!({"stop": [stop], "include_stop_str_in_output": true})).await;
        assert_eq!(content(&kept), format!("{before}{stop}"));
    }
}

#[tokio::test]
async fn of_stops_that_begin_alike_the_shorter_wins_and_what_never_comes_holds_nothing_back() {
    let text = content(&story(json!({})).await).to_owned();
    let long: String = text.chars().skip(20).take(9).collect();
    let short: String = long.chars().take(4).collect();
    let cut = story(json!({"stop": [long, short]})).await;
    assert_eq!(content(&cut), &text[..text.find(&short).unwrap()]);
    let never = story(json!({"stop": ["zzzz", "the quick brown fox that never came"]})).await;
    assert_eq!(content(&never), text);
}

#[tokio::test]
async fn a_stop_token_ends_the_answer_and_is_named() {
    let all = story(json!({"return_token_ids": true})).await;
    let ids: Vec<u64> = serde_json::from_value(all["token_ids"].clone()).unwrap();
    let stop = ids[12];
    let at = ids.iter().position(|id| *id == stop).unwrap();
    let cut = story(json!({"stop_token_ids": [stop], "return_token_ids": true})).await;
    assert_eq!(cut["token_ids"].as_array().unwrap().len(), at);
    assert_eq!(cut["finish_reason"], "stop");
    assert_eq!(cut["stop_reason"], stop);
    // It is not drawn before the least number of tokens.
    let later = story(json!({"stop_token_ids": [stop], "min_tokens": 30, "return_token_ids": true})).await;
    let ids: Vec<u64> = serde_json::from_value(later["token_ids"].clone()).unwrap();
    assert!(ids.len() >= 30 && !ids[..30].contains(&stop), "{ids:?}");
}

#[tokio::test]
async fn a_stop_string_neither_cuts_reasoning_nor_calls() {
    let service = shared().await;
    let body = with(question("What is 27 + 58?"), json!({"stop": ["58"]}));
    let message = service.chat(body).await["choices"][0]["message"].clone();
    assert!(message["reasoning"].as_str().unwrap().contains("58"), "{message}");
    assert!(message["content"].as_str().unwrap().contains("85"), "{message}");
}

#[tokio::test]
async fn the_limit_may_fall_within_a_character() {
    let service = shared().await;
    let emoji = "😀😀😀😀";
    let answer = |max: u64| {
        let body = with(
            question("x"),
            json!({"guided_choice": [emoji], "enable_thinking": false, "max_tokens": max}),
        );
        async move {
            let whole = service.chat(body.clone()).await;
            let events = service.events("/v1/chat/completions", body).await;
            let text: String = events
                .iter()
                .filter_map(|event| event["choices"][0]["delta"]["content"].as_str())
                .collect();
            let choice = whole["choices"][0].clone();
            assert_eq!(content(&choice), text, "whole and streamed");
            (text, choice["finish_reason"].clone())
        }
    };
    let (all, reason) = answer(64).await;
    assert_eq!((all.as_str(), reason), (emoji, json!("stop")));
    let mut cut = 0;
    for max in 1..8 {
        let (text, reason) = answer(max).await;
        if reason == "length" {
            let whole: String = text.chars().filter(|c| *c != '\u{FFFD}').collect();
            assert!(emoji.starts_with(&whole), "{text:?}");
            cut += usize::from(text.contains('\u{FFFD}'));
        }
    }
    assert!(cut > 0, "no limit fell within a character");
}

#[tokio::test]
async fn without_end_tokens_an_answer_goes_on_to_its_limit() {
    let service = shared().await;
    let body = with(question("What is 27 + 58?"), json!({"ignore_eos": true, "max_tokens": 80}));
    let answer = service.chat(body).await;
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["usage"]["completion_tokens"], 80);
}
