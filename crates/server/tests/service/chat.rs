//! `/v1/chat/completions`, whole.

use serde_json::json;

use crate::harness::{NAME, question, shared, with};

#[tokio::test]
async fn an_answer_has_the_form_that_clients_expect() {
    let service = shared().await;
    let answer = service.chat(question("What is 27 + 58?")).await;
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["model"], NAME);
    assert!(answer["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert!(answer["created"].as_u64().unwrap() > 1_700_000_000);
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["role"], "assistant");
    let content = choice["message"]["content"].as_str().unwrap();
    assert!(content.contains("85"), "{content}");
    assert!(choice["message"].get("tool_calls").is_none());
    assert_eq!(choice["finish_reason"], "stop");
    assert_eq!(choice["logprobs"], json!(null));
    let usage = &answer["usage"];
    let count = |name: &str| usage[name].as_u64().unwrap();
    assert_eq!(
        count("total_tokens"),
        count("prompt_tokens") + count("completion_tokens")
    );
    assert!(count("completion_tokens") > 0);
}

#[tokio::test]
async fn a_prompt_that_is_known_is_read_from_the_cache_and_answered_alike() {
    let service = shared().await;
    let text = "Please remember: in room 17 lives Ada, in room 18 lives Ben, in room 19 lives Cid. Who lives in room 18?";
    let ask = || service.chat(question(text));
    let (first, second) = (ask().await, ask().await);
    assert_eq!(first["choices"][0]["message"], second["choices"][0]["message"]);
    let cached = |answer: &serde_json::Value| {
        answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .unwrap()
    };
    assert_eq!(cached(&first), 0);
    assert!(cached(&second) >= 16, "{second}");
    // With a salt of its own a request neither finds nor leaves anything for others.
    let salted = |salt: &str| service.chat(with(question(text), json!({"cache_salt": salt})));
    assert_eq!(cached(&salted("a").await), 0);
    assert_eq!(cached(&salted("b").await), 0);
    assert!(cached(&salted("a").await) >= 16);
}

#[tokio::test]
async fn the_choices_of_a_request_differ_by_index_and_are_counted_together() {
    let service = shared().await;
    let body = with(
        question("Tell me a story."),
        json!({"temperature": 1.0, "seed": 5, "n": 3, "max_tokens": 12}),
    );
    let answer = service.chat(body.clone()).await;
    let choices = answer["choices"].as_array().unwrap();
    let indices: Vec<_> = choices.iter().map(|c| c["index"].as_u64().unwrap()).collect();
    assert_eq!(indices, [0, 1, 2]);
    assert_ne!(choices[0]["message"], choices[1]["message"]);
    assert_eq!(answer["usage"]["completion_tokens"], 36);
    let again = service.chat(body.clone()).await;
    assert_eq!(again["choices"], answer["choices"]);
    // The first choice is what n = 1 gives.
    let one = service.chat(with(body, json!({"n": 1}))).await;
    assert_eq!(one["choices"][0], answer["choices"][0]);
}

#[tokio::test]
async fn seeds_decide_and_without_one_answers_differ() {
    let service = shared().await;
    let ask = |seed: Option<i64>| {
        let body = with(
            question("Tell me a story."),
            json!({"temperature": 1.0, "seed": seed, "max_tokens": 24}),
        );
        async move { service.chat(body).await["choices"][0]["message"].clone() }
    };
    assert_eq!(ask(Some(-7)).await, ask(Some(-7)).await);
    assert_ne!(ask(Some(1)).await, ask(Some(2)).await);
    assert_ne!(ask(None).await, ask(None).await);
}

#[tokio::test]
async fn log_probabilities_are_those_of_the_raw_distribution() {
    let service = shared().await;
    let body = with(
        question("What is 27 + 58?"),
        json!({"logprobs": true, "top_logprobs": 3, "logit_bias": {"5": 3.5}, "return_token_ids": true}),
    );
    let answer = service.chat(body).await;
    let choice = &answer["choices"][0];
    let content = choice["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), choice["token_ids"].as_array().unwrap().len());
    assert_eq!(content.len() as u64, answer["usage"]["completion_tokens"].as_u64().unwrap());
    for token in content {
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 3);
        // Greedy: the token is the likeliest, unless the bias has changed that.
        let of = |value: &serde_json::Value| value["logprob"].as_f64().unwrap();
        assert!(of(&top[0]) >= of(&top[1]) && of(&top[0]) <= 0.0);
        assert!(of(token) <= of(&top[0]));
        let bytes: Vec<u8> = serde_json::from_value(token["bytes"].clone()).unwrap();
        assert_eq!(token["token"], String::from_utf8_lossy(&bytes).into_owned());
    }
}

#[tokio::test]
async fn reasoning_is_split_off_and_can_be_turned_off_or_hidden() {
    let service = shared().await;
    // The template opens a thought unless it is told not to; here the caller continues inside one.
    let body = |more| with(question("What is 27 + 58?"), more);
    let off = service.chat(body(json!({"enable_thinking": false, "return_prompt_text": true}))).await;
    assert!(off["choices"][0]["message"].get("reasoning_content").is_none());
    assert!(off["prompt_text"].as_str().unwrap().ends_with("<think></think>"));
    for same in [
        json!({"chat_template_kwargs": {"enable_thinking": false}}),
        json!({"thinking": {"type": "disabled"}}),
        json!({"reasoning_effort": "none"}),
    ] {
        let answer = service.chat(body(with(same, json!({"return_prompt_text": true})))).await;
        assert_eq!(answer["prompt_text"], off["prompt_text"]);
    }
    let on = service
        .chat(body(json!({"enable_thinking": true, "return_prompt_text": true, "max_tokens": 24})))
        .await;
    assert!(on["prompt_text"].as_str().unwrap().ends_with("<think>"));
    let message = &on["choices"][0]["message"];
    assert_eq!(message.get("reasoning_content"), message.get("reasoning"));
    // A budget of no tokens closes the thought at once.
    let budget = service
        .chat(body(json!({"enable_thinking": true, "thinking_token_budget": 0})))
        .await;
    let message = &budget["choices"][0]["message"];
    assert!(message.get("reasoning").is_none(), "{message}");
    assert!(!message["content"].as_str().unwrap().is_empty());
    assert_eq!(budget["usage"]["completion_tokens_details"]["reasoning_tokens"], 1);
}

#[tokio::test]
async fn an_unfinished_message_is_gone_on_with() {
    let service = shared().await;
    let body = json!({
        "messages": [
            {"role": "user", "content": "What is the capital of France?"},
            {"role": "assistant", "content": "The capital of"}
        ],
        "continue_final_message": true, "temperature": 0, "max_tokens": 16
    });
    let answer = service.chat(body.clone()).await;
    let content = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(content.contains("Paris"), "{content}");
    let echoed = service.chat(with(body, json!({"echo": true}))).await;
    assert_eq!(
        echoed["choices"][0]["message"]["content"],
        format!("The capital of{content}")
    );
}
