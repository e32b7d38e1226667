//! A Responses request as the chat request that it means.
//!
//! Items of the assistant that follow each other (reasoning, a message, calls) are one message of a chat, which has one place for each.

use serde_json::{Map, Value as Json, json};

use super::wire::{
    InputItem, Item, Part, ReasoningPart, ResponsesRequest, Role, TextFormat, Tool, ToolChoice,
};
use crate::api::chat::request::ChatRequest;
use crate::api::content::{AssistantMessage, TextOrBlocks, parts};
use crate::api::fields::{
    FunctionName, JsonSchemaFormat, NamedTool, NamedToolKind, ResponseFormat, SamplingFields,
    ToolChoice as ChatToolChoice, ToolMode,
};
use crate::error::ApiError;

/// Stands before the text in `encrypted_content`, which holds the reasoning itself: without storage there is nothing to hide it from.
pub(super) const PLAIN: &str = "glim-plain-v1:";
/// Asks for `encrypted_content`.
const INCLUDE_ENCRYPTED: &str = "reasoning.encrypted_content";
/// Asks for log-probabilities.
const INCLUDE_LOGPROBS: &str = "message.output_text.logprobs";

/// The chat request with the same prompt and the same rules for the answer.
///
/// # Errors
/// What a text model without storage cannot serve, by its place; ranges are left to the chat request.
pub(super) fn chat_request(request: &ResponsesRequest) -> Result<ChatRequest, ApiError> {
    refuse_what_needs_storage(request)?;
    refuse_logprobs(request)?;
    let mut messages = Vec::new();
    if let Some(instructions) = &request.instructions {
        messages.push(json!({"role": "system", "content": instructions}));
    }
    match &request.input {
        None => {
            let message = "input is missing: expected a string or a list of items";
            return Err(ApiError::invalid("input", message));
        }
        Some(TextOrBlocks::Text(text)) => {
            messages.push(json!({"role": "user", "content": text}));
        }
        Some(TextOrBlocks::Blocks(items)) => push_items(items, &mut messages)?,
    }
    let (tools, tool_choice) = tools(request)?;
    let format = request.text.as_ref().map(|text| &text.format);
    Ok(ChatRequest {
        model: request.model.clone(),
        messages,
        max_completion_tokens: request.max_output_tokens,
        sampling: SamplingFields {
            temperature: request.temperature,
            top_p: request.top_p,
            ..SamplingFields::default()
        },
        stream: request.stream,
        tools,
        tool_choice,
        parallel_tool_calls: request.parallel_tool_calls,
        response_format: match format {
            None | Some(TextFormat::Text) => None,
            Some(TextFormat::JsonObject) => Some(ResponseFormat::JsonObject { schema: None }),
            Some(TextFormat::JsonSchema { name, schema, .. }) => {
                let (name, schema) = (name.clone(), schema.clone());
                Some(ResponseFormat::JsonSchema {
                    json_schema: JsonSchemaFormat { name, schema },
                })
            }
        },
        reasoning_effort: request
            .reasoning
            .as_ref()
            .and_then(|reasoning| reasoning.effort),
        ..ChatRequest::default()
    })
}

/// Whether reasoning items carry their text in `encrypted_content`.
pub(super) fn includes_encrypted(request: &ResponsesRequest) -> bool {
    includes(request, INCLUDE_ENCRYPTED)
}

fn includes(request: &ResponsesRequest, what: &str) -> bool {
    request.include.iter().flatten().any(|name| name == what)
}

fn refuse_what_needs_storage(request: &ResponsesRequest) -> Result<(), ApiError> {
    let is_given = |value: &Option<Json>| value.as_ref().is_some_and(|value| !value.is_null());
    let refused = [
        (
            "previous_response_id",
            is_given(&request.previous_response_id),
        ),
        ("conversation", is_given(&request.conversation)),
        ("prompt", is_given(&request.prompt)),
        ("background", request.background == Some(true)),
    ];
    match refused.iter().find(|(_, refused)| *refused) {
        None => Ok(()),
        Some((name, _)) => Err(ApiError::invalid(
            *name,
            format!(
                "{name}: this server is stateless and stores no responses; send the whole conversation as `input`"
            ),
        )),
    }
}

fn refuse_logprobs(request: &ResponsesRequest) -> Result<(), ApiError> {
    let refuse = |param: &str| {
        let message = format!(
            "{param}: log-probabilities are not part of responses here; /v1/chat/completions has them"
        );
        Err(ApiError::invalid(param, message))
    };
    if request.top_logprobs.is_some_and(|top| top != 0) {
        return refuse("top_logprobs");
    }
    if includes(request, INCLUDE_LOGPROBS) {
        return refuse("include");
    }
    Ok(())
}

fn push_items(items: &[InputItem], messages: &mut Vec<Json>) -> Result<(), ApiError> {
    if items.is_empty() {
        let message = "input is empty: expected one item at least";
        return Err(ApiError::invalid("input", message));
    }
    let mut assistant = AssistantMessage::default();
    for (index, InputItem(item)) in items.iter().enumerate() {
        match item {
            Item::Message {
                role: Role::Assistant,
                content,
            } => {
                if assistant.has_text() {
                    assistant.flush(messages);
                }
                for text in texts(content, index, "content")? {
                    assistant.say(text, messages);
                }
            }
            Item::Message { role, content } => {
                assistant.flush(messages);
                let role = match role {
                    Role::User => "user",
                    Role::Assistant => "assistant",
                    Role::System => "system",
                    Role::Developer => "developer",
                };
                let content = parts(texts(content, index, "content")?);
                messages.push(json!({"role": role, "content": content}));
            }
            Item::FunctionCall {
                call_id,
                name,
                arguments,
            } => assistant.call(call_id, name, self::arguments(arguments, index)?),
            Item::FunctionCallOutput { call_id, output } => {
                assistant.flush(messages);
                let content = parts(texts(output, index, "output")?);
                messages.push(json!({"role": "tool", "tool_call_id": call_id, "content": content}));
            }
            Item::Reasoning {
                content,
                encrypted_content,
                summary,
            } => {
                let plain = encrypted_content
                    .as_deref()
                    .and_then(|text| text.strip_prefix(PLAIN));
                let text = match (content, plain) {
                    (Some(content), _) if !content.is_empty() => joined(content),
                    (_, Some(plain)) => plain.to_owned(),
                    _ => joined(summary.as_deref().unwrap_or_default()),
                };
                // Reasoning of other services is hidden: there is nothing to show to the model.
                if !text.is_empty() {
                    assistant.reason(&text, messages);
                }
            }
            Item::Reference {} => {
                let param = format!("input[{index}]");
                let message = format!(
                    "{param}: this server is stateless and stores no items; send the item itself"
                );
                return Err(ApiError::invalid(param, message));
            }
        }
    }
    assistant.flush(messages);
    Ok(())
}

fn joined(parts: &[ReasoningPart]) -> String {
    let text = |part: &ReasoningPart| match part {
        ReasoningPart::ReasoningText { text } | ReasoningPart::SummaryText { text } => text.clone(),
    };
    parts.iter().map(text).collect()
}

/// The texts of a message, or of what a call gave.
fn texts(content: &TextOrBlocks<Part>, item: usize, field: &str) -> Result<Vec<String>, ApiError> {
    let parts = match content {
        TextOrBlocks::Text(text) => return Ok(vec![text.clone()]),
        TextOrBlocks::Blocks(parts) => parts,
    };
    let text = |(index, part): (usize, &Part)| match part {
        Part::InputText { text } | Part::OutputText { text } => Ok(text.clone()),
        Part::Refusal { refusal } => Ok(refusal.clone()),
        Part::InputImage {} | Part::InputFile {} => {
            let param = format!("input[{item}].{field}[{index}]");
            let message = format!("{param}: the model reads text only, not images and files");
            Err(ApiError::invalid(param, message))
        }
    };
    parts.iter().enumerate().map(text).collect()
}

/// The arguments of a call, from their text. Blank means none.
fn arguments(text: &str, item: usize) -> Result<Map<String, Json>, ApiError> {
    if text.trim().is_empty() {
        return Ok(Map::new());
    }
    serde_json::from_str(text).map_err(|error| {
        let param = format!("input[{item}].arguments");
        let message = format!("{param}: expected a JSON object in a string ({error})");
        ApiError::invalid(param, message)
    })
}

/// The tools that the model is shown, in the chat's form, and which of them it may call.
fn tools(
    request: &ResponsesRequest,
) -> Result<(Option<Vec<Json>>, Option<ChatToolChoice>), ApiError> {
    let mut shown: Vec<&Tool> = request.tools.iter().flatten().collect();
    if let Some((index, tool)) = (0..).zip(&shown).find(|(_, tool)| tool.kind != "function") {
        let (param, kind): (String, _) = (format!("tools[{index}].type"), &tool.kind);
        let kind = crate::state::shorten(kind);
        let message = format!(
            "{param} is {kind:?}: only tools of type function can be served, since this server runs none itself"
        );
        return Err(ApiError::invalid(param, message));
    }
    let choice = match &request.tool_choice {
        None => None,
        Some(ToolChoice::Mode(mode)) => Some(ChatToolChoice::Mode(*mode)),
        Some(ToolChoice::Named(named)) => Some(ChatToolChoice::Named(NamedTool {
            kind: NamedToolKind::Function,
            function: FunctionName {
                name: named.name.clone(),
            },
        })),
        Some(ToolChoice::Allowed(allowed)) => {
            let is_allowed = |tool: &&Tool| allowed.tools.iter().any(|one| one.name == tool.name);
            let declared = |name: &str| shown.iter().any(|tool| tool.name == name);
            if let Some(unknown) = allowed.tools.iter().find(|one| !declared(&one.name)) {
                let name = crate::state::shorten(&unknown.name);
                let message =
                    format!("tool_choice.tools names {name:?}, which is none of the tools");
                return Err(ApiError::invalid("tool_choice", message));
            }
            shown.retain(is_allowed);
            Some(ChatToolChoice::Mode(allowed.mode))
        }
    };
    // Without tools the choice is as good as none given.
    let free = ChatToolChoice::Mode(ToolMode::Auto);
    let choice = choice.filter(|choice| !(shown.is_empty() && *choice == free));
    let tools = request
        .tools
        .is_some()
        .then(|| shown.into_iter().map(function).collect());
    Ok((tools, choice))
}

fn function(tool: &Tool) -> Json {
    let mut function = Map::new();
    function.insert("name".to_owned(), Json::from(tool.name.as_str()));
    if let Some(description) = &tool.description {
        function.insert("description".to_owned(), Json::from(description.as_str()));
    }
    if let Some(parameters) = &tool.parameters {
        function.insert("parameters".to_owned(), parameters.clone());
    }
    json!({"type": "function", "function": function})
}

/// An error about the chat request, in the words of this protocol.
pub(super) fn rename(mut error: ApiError) -> ApiError {
    const NAMES: &[(&str, &str)] = &[
        ("max_completion_tokens", "max_output_tokens"),
        ("reasoning_effort", "reasoning.effort"),
        ("response_format", "text.format"),
        ("messages", "input"),
    ];
    if let Some(param) = &mut error.param
        && let Some((chat, own)) = NAMES.iter().find(|(chat, _)| param.starts_with(chat))
    {
        error.message = error.message.replace(chat, own);
        // Places inside it are those of the chat.
        *param = (*own).to_owned();
    }
    error
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn translate(request: Json) -> Result<ChatRequest, ApiError> {
        chat_request(&serde_json::from_value(request).unwrap())
    }

    fn check_messages(input: Json, expected: Json) {
        let chat = translate(json!({"input": input})).unwrap();
        assert_eq!(Json::Array(chat.messages), expected);
    }

    fn check_refused(request: Json, param: &str, words: &str) {
        let error = translate(request).unwrap_err();
        assert_eq!(error.param.as_deref(), Some(param), "{error}");
        assert!(error.message.contains(words), "{error}");
    }

    #[test]
    fn a_text_is_the_users_and_instructions_come_first() {
        let chat = translate(json!({"input": "hi", "instructions": "Be brief."})).unwrap();
        assert_eq!(
            chat.messages,
            [
                json!({"role": "system", "content": "Be brief."}),
                json!({"role": "user", "content": "hi"}),
            ]
        );
    }

    #[test]
    fn messages_come_with_and_without_their_type_and_in_both_forms() {
        check_messages(
            json!([
                {"role": "developer", "content": "d"},
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
                {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
                 "content": [{"type": "output_text", "text": "c", "annotations": [], "logprobs": []}]},
                {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
                {"role": "user", "content": "e"}
            ]),
            json!([
                {"role": "developer", "content": "d"},
                {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                {"role": "assistant", "content": "c"},
                {"role": "assistant", "content": "no"},
                {"role": "user", "content": "e"}
            ]),
        );
    }

    #[test]
    fn reasoning_text_and_calls_that_follow_each_other_are_one_message() {
        check_messages(
            json!([
                {"role": "user", "content": "Weather?"},
                {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}, {"type": "reasoning_text", "text": "."}]},
                {"type": "message", "role": "assistant", "content": "Let me see."},
                {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "weather", "arguments": "{\"city\": \"Rome\"}", "status": "completed"},
                {"type": "function_call", "call_id": "c2", "name": "time", "arguments": ""},
                {"type": "function_call_output", "call_id": "c1", "output": "18 C"},
                {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "noon"}]},
                {"type": "message", "role": "assistant", "content": "18 C."}
            ]),
            json!([
                {"role": "user", "content": "Weather?"},
                {"role": "assistant", "content": "Let me see.", "reasoning_content": "Hm.", "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}},
                    {"id": "c2", "type": "function", "function": {"name": "time", "arguments": {}}}
                ]},
                {"role": "tool", "tool_call_id": "c1", "content": "18 C"},
                {"role": "tool", "tool_call_id": "c2", "content": "noon"},
                {"role": "assistant", "content": "18 C."}
            ]),
        );
    }

    #[test]
    fn reasoning_is_read_wherever_its_text_is() {
        let summary = json!([{"type": "summary_text", "text": "s"}]);
        for (reasoning, expected) in [
            (
                json!({"summary": summary, "content": [{"type": "reasoning_text", "text": "c"}]}),
                Some("c"),
            ),
            (
                json!({"summary": summary, "encrypted_content": "glim-plain-v1:e"}),
                Some("e"),
            ),
            (
                json!({"summary": summary, "encrypted_content": "gAAAA"}),
                Some("s"),
            ),
            (json!({"summary": [], "encrypted_content": "gAAAA"}), None),
            (json!({"summary": []}), None),
        ] {
            let mut item = reasoning.clone();
            item["type"] = json!("reasoning");
            let answer = json!({"role": "assistant", "content": "a"});
            let chat = translate(json!({"input": [item, answer]})).unwrap();
            assert_eq!(chat.messages.len(), 1, "{reasoning}");
            assert_eq!(
                chat.messages[0]["reasoning_content"].as_str(),
                expected,
                "{reasoning}"
            );
        }
    }

    #[test]
    fn tools_and_their_choice_are_those_of_a_chat() {
        let tool = |name: &str| json!({"type": "function", "name": name, "parameters": {"type": "object"}, "strict": true});
        let function = |name: &str| json!({"type": "function", "function": {"name": name, "parameters": {"type": "object"}}});
        let mode = ChatToolChoice::Mode;
        let named = ChatToolChoice::Named(NamedTool {
            kind: NamedToolKind::Function,
            function: FunctionName {
                name: "g".to_owned(),
            },
        });
        let allowed = json!({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "g"}]});
        for (choice, expected, shown) in [
            (json!("none"), mode(ToolMode::None), vec!["f", "g"]),
            (json!("required"), mode(ToolMode::Required), vec!["f", "g"]),
            (
                json!({"type": "function", "name": "g"}),
                named,
                vec!["f", "g"],
            ),
            (allowed, mode(ToolMode::Required), vec!["g"]),
        ] {
            let chat = translate(
                json!({"input": "a", "tools": [tool("f"), tool("g")], "tool_choice": choice}),
            )
            .unwrap();
            assert_eq!(chat.tool_choice, Some(expected));
            let shown: Vec<Json> = shown.into_iter().map(function).collect();
            assert_eq!(chat.tools.unwrap(), shown);
        }
    }

    #[test]
    fn the_form_of_the_answer_is_that_of_a_chat() {
        let format = |format: Json| {
            translate(json!({"input": "a", "text": {"format": format, "verbosity": "low"}}))
                .unwrap()
                .response_format
        };
        assert!(format(json!({"type": "text"})).is_none());
        assert!(matches!(
            format(json!({"type": "json_object"})),
            Some(ResponseFormat::JsonObject { schema: None })
        ));
        match format(
            json!({"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": true}),
        ) {
            Some(ResponseFormat::JsonSchema { json_schema }) => {
                assert_eq!(json_schema.schema, json!({"type": "object"}));
            }
            other => panic!("{other:?}"),
        }
        assert!(
            translate(json!({"input": "a", "text": {}}))
                .unwrap()
                .response_format
                .is_none()
        );
    }

    #[test]
    fn what_cannot_be_served_is_refused_by_its_place() {
        for (field, value) in [
            ("previous_response_id", json!("resp_1")),
            ("background", json!(true)),
            ("conversation", json!({"id": "conv_1"})),
            ("prompt", json!({"id": "pmpt_1"})),
        ] {
            let mut request = json!({"input": "a"});
            request[field] = value;
            check_refused(request, field, "stateless");
        }
        let image = json!({"type": "input_image", "image_url": "https://example.org/a.png"});
        check_refused(
            json!({"input": [{"role": "user", "content": [image]}]}),
            "input[0].content[0]",
            "text only",
        );
        check_refused(
            json!({"input": [{"type": "function_call_output", "call_id": "c", "output": [image]}]}),
            "input[0].output[0]",
            "text only",
        );
        check_refused(
            json!({"input": [{"type": "item_reference", "id": "msg_1"}]}),
            "input[0]",
            "stateless",
        );
        let call = |arguments: &str| json!({"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments}]});
        check_refused(call("{"), "input[0].arguments", "JSON object");
        check_refused(call("[1]"), "input[0].arguments", "JSON object");
        check_refused(json!({"input": []}), "input", "empty");
        check_refused(json!({}), "input", "missing");
        check_refused(
            json!({"input": "a", "tools": [{"type": "web_search"}]}),
            "tools[0].type",
            "web_search",
        );
        check_refused(
            json!({"input": "a", "top_logprobs": 2}),
            "top_logprobs",
            "/v1/chat/completions",
        );
        check_refused(
            json!({"input": "a", "include": ["message.output_text.logprobs"]}),
            "include",
            "/v1/chat/completions",
        );
        check_refused(
            json!({"input": "a", "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]}}),
            "tool_choice",
            "none of the tools",
        );
    }

    #[test]
    fn fields_of_no_effect_are_accepted() {
        let chat = translate(json!({
            "input": "a", "store": true, "truncation": "auto", "service_tier": "auto", "previous_response_id": null, "background": false,
            "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k", "metadata": {"a": "b"}, "top_logprobs": 0
        }));
        assert_eq!(chat.unwrap().messages.len(), 1);
    }

    #[test]
    fn errors_about_the_chat_request_speak_of_this_one() {
        let error = rename(ApiError::invalid(
            "max_completion_tokens",
            "max_completion_tokens is 0: expected 1 or more",
        ));
        assert_eq!(error.param.as_deref(), Some("max_output_tokens"));
        assert_eq!(error.message, "max_output_tokens is 0: expected 1 or more");
        let error = rename(ApiError::invalid("top_p", "top_p is 2"));
        assert_eq!(error.param.as_deref(), Some("top_p"));
    }
}
