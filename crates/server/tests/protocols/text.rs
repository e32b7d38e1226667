//! `/tokenize`, `/detokenize`, `/apply-template`, `/version` and `/info`.

use serde_json::{Value, json};

use crate::harness::{NAME, client, shared};

async fn ok(path: &str, body: Value) -> Value {
    let (status, answer) = shared().await.ask(path, &body).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

async fn get(path: &str) -> Value {
    let url = format!("{}{path}", shared().await.url);
    client().get(url).send().await.unwrap().json().await.unwrap()
}

#[tokio::test]
async fn a_text_is_tokenized_in_the_form_that_asks() {
    let vllm = ok("/tokenize", json!({"model": NAME, "prompt": "Hello, world", "return_token_strs": true})).await;
    let tokens = vllm["tokens"].as_array().unwrap();
    assert_eq!(vllm["count"], tokens.len());
    assert_eq!(vllm["max_model_len"], 2048);
    let texts = vllm["token_strs"].as_array().unwrap();
    let joined: String = texts.iter().map(|text| text.as_str().unwrap()).collect();
    assert_eq!(joined, "Hello, world");

    let llama = ok("/tokenize", json!({"content": "Hello, world"})).await;
    assert_eq!(llama, json!({"tokens": tokens}));
    let pieces = ok("/tokenize", json!({"content": "Hello, world", "with_pieces": true})).await;
    for (piece, (id, text)) in pieces["tokens"].as_array().unwrap().iter().zip(tokens.iter().zip(texts)) {
        assert_eq!(*piece, json!({"id": id, "piece": text}));
    }
    let text = ok("/detokenize", json!({"tokens": tokens})).await;
    assert_eq!(text, json!({"prompt": "Hello, world", "content": "Hello, world"}));
}

#[tokio::test]
async fn pieces_that_are_no_text_are_bytes() {
    let text = "\u{1F9FF}\u{2603}";
    let pieces = ok("/tokenize", json!({"content": text, "with_pieces": true})).await;
    let mut bytes: Vec<u8> = Vec::new();
    for piece in pieces["tokens"].as_array().unwrap() {
        match &piece["piece"] {
            Value::String(text) => bytes.extend(text.bytes()),
            list => bytes.extend(serde_json::from_value::<Vec<u8>>(list.clone()).unwrap()),
        }
    }
    assert_eq!(String::from_utf8(bytes).unwrap(), text);
}

#[tokio::test]
async fn a_text_holds_control_tokens_only_if_asked() {
    let count = async |body: Value| ok("/tokenize", body).await["tokens"].as_array().unwrap().len();
    assert!(count(json!({"prompt": "<|user|>"})).await > 1);
    assert!(count(json!({"content": "<|user|>"})).await > 1);
    assert_eq!(count(json!({"prompt": "<|user|>", "parse_special": true})).await, 1);
    assert_eq!(count(json!({"content": "<|user|>", "parse_special": true})).await, 1);
}

#[tokio::test]
async fn a_conversation_is_rendered_and_counted_as_a_chat_reads_it() {
    let service = shared().await;
    let messages = json!([{"role": "user", "content": "Say <|assistant|> please"}]);
    let rendered = ok("/apply-template", json!({"messages": messages, "return_token_ids": true})).await;
    let prompt = rendered["prompt"].as_str().unwrap();
    assert!(prompt.contains("Say <|assistant|> please"), "{prompt}");
    assert_eq!(rendered["starts_in_reasoning"], true);
    let again = ok("/v1/chat/completions/render", json!({"messages": messages, "return_token_ids": true})).await;
    assert_eq!(rendered, again);
    let tokens = ok("/tokenize", json!({"messages": messages})).await;
    assert_eq!(tokens["tokens"], rendered["prompt_token_ids"]);
    assert_eq!(tokens["count"], rendered["count"]);
    let answer = service.chat(json!({"messages": messages, "max_tokens": 1})).await;
    assert_eq!(answer["usage"]["prompt_tokens"], rendered["count"]);
    // What the user writes is text, what the template writes are tokens.
    let parsed = ok("/tokenize", json!({"prompt": prompt, "parse_special": true})).await;
    assert!(parsed["count"].as_u64() < rendered["count"].as_u64());

    let off = json!({"messages": messages, "chat_template_kwargs": {"enable_thinking": false}});
    assert_eq!(ok("/apply-template", off).await["starts_in_reasoning"], false);
}

#[tokio::test]
async fn what_cannot_be_read_is_named() {
    let service = shared().await;
    for (path, body, param) in [
        ("/tokenize", json!({}), "prompt"),
        ("/tokenize", json!({"prompt": "a", "content": "a"}), "prompt"),
        ("/tokenize", json!({"prompt": 5}), "prompt"),
        ("/detokenize", json!({"tokens": [1, 100_000_000]}), "tokens[1]"),
        ("/detokenize", json!({"tokens": [-1]}), "tokens[0]"),
        ("/apply-template", json!({"messages": []}), "messages"),
    ] {
        let (found, message) = service.refused(path, body).await;
        assert_eq!(found, param, "{message}");
    }
    let (status, _) = service.ask("/tokenize", &json!({"model": "gpt", "prompt": "a"})).await;
    assert_eq!(status, 404);
}

#[tokio::test]
async fn the_server_says_what_it_runs() {
    assert!(get("/version").await["version"].is_string());
    let info = get("/info").await;
    assert_eq!(info["names"][0], NAME);
    assert_eq!(info["max_model_len"], 2048);
    assert_eq!(info["block_size"], 16);
    assert_eq!(info["template_sha256"].as_str().unwrap().len(), 64);
    assert_eq!(info["template_knows"]["enable_thinking"], true);
    for key in ["attention", "math", "quantization", "ranks", "build", "backend", "vocab_size", "blocks"] {
        assert!(!info[key].is_null(), "{key}");
    }
}
