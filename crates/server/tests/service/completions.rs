//! `/v1/completions`.

use serde_json::{Value, json};

use crate::harness::{shared, with};

async fn complete(body: Value) -> Value {
    let (status, answer) = shared().await.ask("/v1/completions", &body).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

fn greedy(prompt: Value) -> Value {
    json!({"prompt": prompt, "temperature": 0, "max_tokens": 12})
}

#[tokio::test]
async fn text_goes_on_from_text_and_from_tokens() {
    let text = complete(greedy(json!("Once upon a time"))).await;
    assert_eq!(text["object"], "text_completion");
    assert_eq!(text["usage"]["completion_tokens"], 12);
    let ids = complete(with(greedy(json!("Once upon a time")), json!({"return_token_ids": true}))).await;
    let ids = &ids["choices"][0]["prompt_token_ids"];
    let tokens = complete(greedy(ids.clone())).await;
    assert_eq!(tokens["choices"][0]["text"], text["choices"][0]["text"]);
    let default = complete(json!({"prompt": "Once upon a time", "temperature": 0, "ignore_eos": true})).await;
    assert_eq!(default["usage"]["completion_tokens"], 16);
}

#[tokio::test]
async fn several_prompts_are_several_choices() {
    let both = complete(with(greedy(json!(["Once upon", "In the beginning"])), json!({"n": 2}))).await;
    let texts: Vec<&Value> = both["choices"].as_array().unwrap().iter().map(|c| &c["text"]).collect();
    assert_eq!(texts.len(), 4);
    for (prompt, found) in [("Once upon", texts[0]), ("In the beginning", texts[2])] {
        let alone = complete(greedy(json!(prompt))).await;
        assert_eq!(&alone["choices"][0]["text"], found);
    }
    assert_eq!(texts[0], texts[1], "greedy");
}

#[tokio::test]
async fn a_stream_joined_is_the_whole() {
    let service = shared().await;
    let body = with(greedy(json!("Once upon a time")), json!({"logprobs": 2, "echo": false, "n": 2, "temperature": 1.0, "seed": 9}));
    let whole = complete(body.clone()).await;
    let events = service.events("/v1/completions", body).await;
    for (index, choice) in whole["choices"].as_array().unwrap().iter().enumerate() {
        let own = events.iter().filter_map(|e| e["choices"].as_array()).flatten();
        let own: Vec<&Value> = own.filter(|c| c["index"] == index).collect();
        let text: String = own.iter().map(|c| c["text"].as_str().unwrap()).collect();
        assert_eq!(choice["text"], text);
        for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
            let joined: Vec<Value> = own
                .iter()
                .flat_map(|c| c["logprobs"][list].as_array().cloned().unwrap_or_default())
                .collect();
            assert_eq!(choice["logprobs"][list], Value::from(joined), "{list}");
        }
        assert_eq!(own.last().unwrap()["finish_reason"], choice["finish_reason"]);
    }
}

#[tokio::test]
async fn an_echo_begins_with_the_prompt() {
    let plain = complete(greedy(json!("Once upon a time"))).await;
    let echo = complete(with(greedy(json!("Once upon a time")), json!({"echo": true}))).await;
    let text = plain["choices"][0]["text"].as_str().unwrap();
    assert_eq!(echo["choices"][0]["text"], format!("Once upon a time{text}"));
}

#[tokio::test]
async fn what_is_not_supported_is_refused_by_name() {
    let service = shared().await;
    for (more, param) in [
        (json!({"prompt": null}), "prompt"),
        (json!({"prompt": ""}), "prompt"),
        (json!({"prompt": []}), "prompt"),
        (json!({"prompt": [1_000_000]}), "prompt"),
        (json!({"prompt": {"a": 1}}), "prompt"),
        (json!({"suffix": "x"}), "suffix"),
        (json!({"best_of": 4}), "best_of"),
        (json!({"echo": true, "logprobs": 1}), "echo"),
        (json!({"logprobs": 21}), "logprobs"),
    ] {
        let body = with(greedy(json!("x")), more.clone());
        let (found, message) = service.refused("/v1/completions", body).await;
        assert_eq!(found, param, "{more}: {message}");
    }
}
