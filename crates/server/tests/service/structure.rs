//! Answers that are bound: what they must be they are, or the request is refused.

use serde_json::{Value, json};

use crate::harness::{question, shared, weather_tool, with};

async fn bound(more: Value) -> String {
    let body = with(question("What is 27 + 58?"), json!({"max_tokens": 200, "temperature": 1.0, "seed": 4}));
    let answer = shared().await.chat(with(body, more)).await;
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "stop", "{choice}");
    choice["message"]["content"].as_str().unwrap().to_owned()
}

fn schema(schema: &Value) -> Value {
    json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}})
}

#[tokio::test]
async fn an_answer_fits_its_schema_in_whatever_form_it_is_given() {
    let wanted = json!({"type": "object", "properties": {
        "sum": {"type": "integer", "minimum": 0, "maximum": 99}, "sure": {"type": "boolean"}},
        "required": ["sum", "sure"], "additionalProperties": false});
    for form in [
        schema(&wanted),
        json!({"response_format": {"type": "json_object", "schema": wanted}}),
        json!({"structured_outputs": {"json": wanted}}),
        json!({"structured_outputs": {"json": wanted.to_string()}}),
        json!({"guided_json": wanted}),
    ] {
        let answer: Value = serde_json::from_str(&bound(form.clone()).await).unwrap();
        assert!((0..100).contains(&answer["sum"].as_i64().unwrap()), "{form}: {answer}");
        assert!(answer["sure"].is_boolean() && answer.as_object().unwrap().len() == 2);
    }
}

#[tokio::test]
async fn other_rules_bind_as_well() {
    let regex = bound(json!({"structured_outputs": {"regex": "[A-F]{2}-[0-9]{3}"}})).await;
    assert!(regex.len() == 6 && regex.as_bytes()[2] == b'-', "{regex}");
    let choice = bound(json!({"structured_outputs": {"choice": ["yes \"indeed\"", "no"]}})).await;
    assert!(["yes \"indeed\"", "no"].contains(&choice.as_str()));
    let lark = bound(json!({"structured_outputs": {"grammar": "start: \"a\"+ \"b\""}})).await;
    assert!(lark.ends_with('b') && lark.trim_end_matches('b').bytes().all(|b| b == b'a'), "{lark}");
}

#[tokio::test]
async fn thinking_stays_free_and_the_answer_is_bound() {
    let body = with(
        question("What is 27 + 58?"),
        with(schema(&json!({"type": "integer"})), json!({"enable_thinking": true, "max_tokens": 100})),
    );
    let answer = shared().await.chat(body).await;
    let message = &answer["choices"][0]["message"];
    assert!(message["reasoning"].as_str().unwrap().contains("27 + 58"), "{message}");
    assert_eq!(message["content"], "85");
}

#[tokio::test]
async fn where_tools_may_be_called_a_call_takes_the_place_of_the_bound_answer() {
    let body = with(
        question("What is the weather in Oslo?"),
        with(schema(&json!({"type": "integer"})), json!({"tools": weather_tool()})),
    );
    let answer = shared().await.chat(body).await;
    assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls", "{answer}");
}

#[tokio::test]
async fn what_cannot_be_enforced_is_refused_and_never_free() {
    let service = shared().await;
    for (more, param) in [
        (schema(&json!({"type": "strange"})), "response_format"),
        (schema(&json!({"allOf": [{"type": "string"}, {"type": "integer"}]})), "response_format"),
        (schema(&json!({"$ref": "#/$defs/nowhere"})), "response_format"),
        (schema(&json!(5)), "response_format"),
        (json!({"response_format": {"type": "structural_tag"}}), "response_format"),
        (json!({"guided_regex": "("}), "guided_regex"),
        (json!({"guided_choice": []}), "guided_choice"),
        (json!({"guided_grammar": "start: nobody"}), "guided_grammar"),
        (json!({"guided_json": "{not json"}), "guided_json"),
        (json!({"guided_regex": "a", "response_format": {"type": "json_object"}}), "guided_regex"),
    ] {
        let body = with(question("x"), more.clone());
        let (found, message) = service.refused("/v1/chat/completions", body).await;
        assert_eq!(found, param, "{more}: {message}");
        assert!(!message.is_empty());
    }
}
