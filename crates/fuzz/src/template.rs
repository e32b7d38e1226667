//! Chat templates: bounded in time and memory, whatever the template and the messages.

use glim_text::{AddedTokens, ChatRequest, ChatTemplate, TokenId};
use serde_json::{Value as Json, json};

use crate::assert_named;

/// The template, then perhaps a NUL and a JSON list of messages.
pub(crate) fn chat_template(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (source, messages) = text.split_once('\0').unwrap_or((&text, ""));
    let template = match ChatTemplate::new(source) {
        Ok(template) => template,
        Err(error) => return assert_named(&error, &["the chat template"]),
    };
    let added = ["<|user|>", "<|assistant|>", "<think>", "</think>"];
    let added = (0..)
        .zip(added)
        .map(|(id, text)| (text.to_owned(), TokenId(id)));
    let request = ChatRequest {
        tools: Some(vec![json!({"type": "function", "function": {"name": "f"}})]),
        ..ChatRequest::new(list(messages))
    };
    match template.render(&request, &AddedTokens::new(added)) {
        Ok(rendered) => {
            for range in rendered.untrusted() {
                assert!(rendered.text().get(range.clone()).is_some(), "{range:?}");
            }
        }
        Err(error) => assert_named(
            &error,
            &["the chat template", "messages[", "message contents"],
        ),
    }
}

fn list(messages: &str) -> Vec<Json> {
    serde_json::from_str(messages).unwrap_or_else(|_| {
        vec![
            json!({"role": "user", "content": "Hi <|user|> <thi"}),
            json!({"role": "assistant", "content": "ok", "tool_calls": [
                {"function": {"name": "f", "arguments": "{\"a\": [1, 2.5, null]}"}}
            ]}),
            json!({"role": "tool", "content": "4"}),
        ]
    })
}
