//! Chat templates against Python's jinja2, set up as transformers does: byte for byte.
//! Goldens: `xtask/py/golden_text.py features`, `tiny`, `templates`; the conversations are in `conversations.json`.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{GGUF, HF, golden, template_folder};
use glim_text::{AddedTokens, ChatRequest, ChatTemplate, TextError};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

fn conversations() -> Vec<(String, ChatRequest)> {
    let read = |conversation: &Value| {
        let list = |key: &str| {
            conversation
                .get(key)
                .map(|list| list.as_array().unwrap().clone())
        };
        let request = ChatRequest {
            messages: list("messages").unwrap(),
            tools: list("tools"),
            add_generation_prompt: conversation.get("add_generation_prompt")
                != Some(&Value::Bool(false)),
            kwargs: conversation
                .get("kwargs")
                .map(|kwargs| kwargs.as_object().unwrap().clone())
                .unwrap_or_default(),
        };
        (conversation["name"].as_str().unwrap().to_owned(), request)
    };
    golden("conversations.json")
        .as_array()
        .unwrap()
        .iter()
        .map(read)
        .collect()
}

#[test]
fn small_templates_print_what_jinja2_prints() {
    let golden = golden("features.json");
    let mut kwargs = golden["context"].as_object().unwrap().clone();
    let messages = kwargs
        .remove("messages")
        .unwrap()
        .as_array()
        .unwrap()
        .clone();
    let request = ChatRequest {
        messages,
        tools: None,
        add_generation_prompt: false,
        kwargs,
    };
    let mut wrong = Vec::new();
    for case in golden["cases"].as_array().unwrap() {
        let (source, expected) = (
            case["template"].as_str().unwrap(),
            case["text"].as_str().unwrap(),
        );
        let template = ChatTemplate::new(source);
        for added in [&AddedTokens::default(), GGUF.tokenizer.added_tokens()] {
            let text = template
                .as_ref()
                .map_err(ToString::to_string)
                .and_then(|template| {
                    template
                        .render(&request, added)
                        .map(|rendered| rendered.text().to_owned())
                        .map_err(|e| e.to_string())
                });
            if text.as_deref() != Ok(expected) {
                wrong.push(format!(
                    "{source:?}\n  printed  {text:?}\n  expected {expected:?}"
                ));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of the cases:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn the_built_in_template_prints_what_jinja2_prints() {
    let golden = golden("tiny_template.json");
    let conversations = conversations();
    let expected = golden["conversations"].as_array().unwrap();
    assert_eq!(conversations.len(), expected.len());
    for model in [&GGUF, &HF] {
        let template = model.template.as_ref().unwrap();
        for ((name, request), expected) in conversations.iter().zip(expected) {
            assert_eq!(expected["name"], *name);
            let rendered = template
                .render(request, model.tokenizer.added_tokens())
                .unwrap();
            assert_eq!(
                rendered.text(),
                expected["text"].as_str().unwrap(),
                "{name}"
            );
        }
    }
}

#[test]
fn glm_templates_print_what_jinja2_prints() {
    let Some(folder) = template_folder() else {
        println!(
            "skipped: the GLM templates are not there; fetch them with \
             `python xtask/py/golden_text.py fetch-templates target/templates`, or name their folder in GLIM_TEMPLATE_DIR"
        );
        return;
    };
    let golden = golden("templates.json");
    let conversations = conversations();
    let mut wrong = Vec::new();
    for expected in golden["templates"].as_array().unwrap() {
        let file = expected["file"].as_str().unwrap();
        let source = std::fs::read_to_string(folder.join(file)).unwrap();
        assert_eq!(
            hash(&source),
            expected["sha256"].as_str().unwrap(),
            "{file} is not the file that the goldens are of"
        );
        let template = ChatTemplate::new(&source).unwrap();
        let hashes = expected["conversations"].as_array().unwrap();
        assert_eq!(conversations.len(), hashes.len());
        for ((name, request), expected) in conversations.iter().zip(hashes) {
            match template.render(request, GGUF.tokenizer.added_tokens()) {
                Ok(rendered) if hash(rendered.text()) == expected["sha256"].as_str().unwrap() => {
                    assert_eq!(
                        rendered.text().len() as u64,
                        expected["bytes"].as_u64().unwrap()
                    );
                }
                Ok(rendered) => wrong.push(format!("{file}, {name}:\n{}", rendered.text())),
                Err(error) => wrong.push(format!("{file}, {name}: {error}")),
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} texts differ:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

fn hash(text: &str) -> String {
    Sha256::digest(text.as_bytes())
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[test]
fn failures_name_the_line_and_the_reason() {
    let render = |source: &str| {
        let request = ChatRequest::new(vec![json!({"role": "user", "content": "x"})]);
        ChatTemplate::new(source)?.render(&request, &AddedTokens::default())
    };
    assert!(matches!(
        render("a\n{% if %}"),
        Err(TextError::TemplateSyntax { line: 2, .. })
    ));
    assert!(matches!(
        render("a\n{{ messages[0].content.nope() }}"),
        Err(TextError::TemplateFailed { line: 2, .. })
    ));
    let raised = render("{{ raise_exception('no ' + messages[0].role) }}");
    assert!(
        matches!(&raised, Err(TextError::TemplateRaised { message }) if message == "no user"),
        "{raised:?}"
    );
    let endless = render(
        "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}",
    );
    assert!(
        matches!(&endless, Err(TextError::TemplateFailed { reason, .. }) if reason.contains("fuel")),
        "{endless:?}"
    );
}

#[test]
fn malformed_messages_are_named() {
    let template = GGUF.template.as_ref().unwrap();
    let request = ChatRequest::new(vec![json!({"role": "user", "content": "x"}), json!("text")]);
    let error = template
        .render(&request, &AddedTokens::default())
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "messages[1] is a string, expected an object with `role` and `content`"
    );
}

#[test]
fn a_request_cannot_replace_the_variables_of_the_conversation() {
    let mut request = ChatRequest::new(vec![json!({"role": "user", "content": "x"})]);
    request.kwargs = json!({"messages": [], "tools": [1], "add_generation_prompt": false, "a": 1})
        .as_object()
        .unwrap()
        .clone();
    let template =
        ChatTemplate::new("{{ messages[0].content }}{{ tools }}{{ add_generation_prompt }}{{ a }}")
            .unwrap();
    assert_eq!(
        template
            .render(&request, &AddedTokens::default())
            .unwrap()
            .text(),
        "xNoneTrue1"
    );
}

#[test]
fn special_tokens_and_the_time_are_variables() {
    let request = ChatRequest::new(Vec::new());
    let source = "{{ eos_token }}|{{ bos_token is defined }}|{{ strftime_now('%Y') }}";
    let template = ChatTemplate::new(source)
        .unwrap()
        .with_special_tokens(vec![("eos_token".to_owned(), "<|x|>".to_owned())]);
    let rendered = template.render(&request, &AddedTokens::default()).unwrap();
    let year: i32 = rendered
        .text()
        .strip_prefix("<|x|>|False|")
        .unwrap()
        .parse()
        .unwrap();
    assert!(year >= 2025);
}
