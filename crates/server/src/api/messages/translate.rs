//! A Messages request as the chat request that it means.
//!
//! The two conversations are cut differently. A user's turn holds text and results of tools side by side; in a chat each result is a
//! message of its own, so a turn becomes several messages, in the order of its blocks. An assistant's turn holds thinking, text and calls
//! in any order; a chat message has one place for each, in this order, so a turn that goes back in it (text after a call) becomes two
//! messages rather than be reordered.

use serde_json::{Map, Value as Json, json};

use super::wire::{
    Block, DocumentSource, MessagesRequest, OutputFormat, ResultBlock, Role, TextBlock, Thinking,
    ThinkingDisplay, Tool, ToolChoice, Turn,
};
use crate::api::chat::request::ChatRequest;
use crate::api::content::{AssistantMessage, TextOrBlocks, parts};
use crate::api::fields::{
    FunctionName, JsonSchemaFormat, NamedTool, NamedToolKind, OneOrMany, ResponseFormat,
    SamplingFields, ToolChoice as ChatToolChoice, ToolMode,
};
use crate::error::ApiError;

/// The chat request with the same prompt and the same rules for the answer.
///
/// # Errors
/// Blocks and tools that a text model without storage and network cannot serve, by their place; ranges are left to the chat request.
pub(super) fn chat_request(request: MessagesRequest) -> Result<ChatRequest, ApiError> {
    if request
        .mcp_servers
        .is_some_and(|servers| !servers.is_empty())
    {
        return Err(ApiError::invalid(
            "mcp_servers",
            "mcp_servers: this server connects to no other server; call the tools yourself and declare them in `tools`",
        ));
    }
    let mut messages = Vec::new();
    if let Some(system) = request.system {
        messages.push(json!({"role": "system", "content": text_content(system)}));
    }
    let continues = request
        .messages
        .last()
        .is_some_and(|turn| turn.role == Role::Assistant && is_begun(turn));
    for (index, turn) in request.messages.into_iter().enumerate() {
        push_turn(turn, index, &mut messages)?;
    }
    let tools = request
        .tools
        .map(|tools| {
            let tools = tools.into_iter().enumerate();
            tools.map(|(index, tool)| function(tool, index)).collect()
        })
        .transpose()?;
    let config = request.output_config.unwrap_or_default();
    let (tool_choice, parallel_tool_calls) = choice(request.tool_choice);
    let thinks = match request.thinking {
        None => config.effort.is_some(),
        Some(Thinking::Disabled {}) => false,
        Some(Thinking::Enabled { .. } | Thinking::Adaptive { .. }) => true,
    };
    let (budget, display) = match request.thinking {
        Some(Thinking::Enabled {
            budget_tokens,
            display,
        }) => (budget_tokens, display),
        Some(Thinking::Adaptive { display }) => (None, display),
        Some(Thinking::Disabled {}) | None => (None, None),
    };
    Ok(ChatRequest {
        model: request.model,
        messages,
        max_tokens: request.max_tokens,
        sampling: SamplingFields {
            temperature: request.temperature,
            top_p: request.top_p,
            top_k: request.top_k,
            stop: request.stop_sequences.map(OneOrMany::Many),
            ..SamplingFields::default()
        },
        stream: request.stream,
        tools,
        tool_choice,
        parallel_tool_calls,
        response_format: config.format.or(request.output_format).map(
            |OutputFormat::JsonSchema { schema }| ResponseFormat::JsonSchema {
                json_schema: JsonSchemaFormat { name: None, schema },
            },
        ),
        reasoning_effort: config.effort.filter(|_| thinks),
        enable_thinking: Some(thinks),
        thinking_token_budget: budget,
        include_reasoning: display.map(|display| display == ThinkingDisplay::Summarized),
        add_generation_prompt: continues.then_some(false),
        continue_final_message: continues.then_some(true),
        ..ChatRequest::default()
    })
}

/// Blocks of text as a chat message's content: a string stays one, blocks stay parts.
fn text_content(content: TextOrBlocks<TextBlock>) -> Json {
    match content {
        TextOrBlocks::Text(text) => Json::from(text),
        TextOrBlocks::Blocks(blocks) => parts(
            blocks
                .into_iter()
                .map(|TextBlock::Text { text }| text)
                .collect(),
        ),
    }
}

/// True if the turn is the beginning of an answer: it has text, and no calls that wait for results.
fn is_begun(turn: &Turn) -> bool {
    let is_blank = |text: &str| text.trim().is_empty();
    match &turn.content {
        TextOrBlocks::Text(text) => !is_blank(text),
        TextOrBlocks::Blocks(blocks) => {
            let calls = blocks
                .iter()
                .any(|block| matches!(block, Block::ToolUse { .. }));
            let text = blocks
                .last()
                .is_some_and(|block| matches!(block, Block::Text { text } if !is_blank(text)));
            text && !calls
        }
    }
}

fn push_turn(turn: Turn, index: usize, messages: &mut Vec<Json>) -> Result<(), ApiError> {
    let blocks = match (turn.role, turn.content) {
        (role, TextOrBlocks::Text(text)) => {
            let role = role_name(role);
            messages.push(json!({"role": role, "content": text}));
            return Ok(());
        }
        (_, TextOrBlocks::Blocks(blocks)) => blocks,
    };
    match turn.role {
        Role::Assistant => push_assistant(blocks, index, messages),
        Role::User | Role::System => push_user(turn.role, blocks, index, messages),
    }
}

fn role_name(role: Role) -> &'static str {
    match role {
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::System => "system",
    }
}

/// The text that so far has no message.
fn flush_text(role: Role, texts: &mut Vec<String>, messages: &mut Vec<Json>) {
    if !texts.is_empty() {
        let content = parts(std::mem::take(texts));
        messages.push(json!({"role": role_name(role), "content": content}));
    }
}

fn push_user(
    role: Role,
    blocks: Vec<Block>,
    turn: usize,
    messages: &mut Vec<Json>,
) -> Result<(), ApiError> {
    if blocks.is_empty() {
        messages.push(json!({"role": role_name(role), "content": ""}));
    }
    let mut texts = Vec::new();
    for (index, block) in blocks.into_iter().enumerate() {
        match block {
            Block::Text { text } => texts.push(text),
            Block::Document { source, title } => {
                texts.push(document(source, title, turn, index)?);
            }
            Block::ToolResult {
                tool_use_id,
                content,
                ..
            } => {
                flush_text(role, &mut texts, messages);
                let content = result(content, turn, index)?;
                messages
                    .push(json!({"role": "tool", "tool_call_id": tool_use_id, "content": content}));
            }
            Block::Image {} => return Err(image(turn, index)),
            Block::Thinking { .. } | Block::RedactedThinking {} | Block::ToolUse { .. } => {
                return Err(misplaced(
                    turn,
                    index,
                    "`thinking` and `tool_use` belong to turns of the assistant",
                ));
            }
        }
    }
    flush_text(role, &mut texts, messages);
    Ok(())
}

fn document(
    source: DocumentSource,
    title: Option<String>,
    turn: usize,
    index: usize,
) -> Result<String, ApiError> {
    let DocumentSource::Text { data } = source else {
        let place = place(turn, index);
        let message = format!(
            "{place}: only documents whose source is `text` can be read; this server fetches, stores and converts nothing"
        );
        return Err(ApiError::invalid(place, message));
    };
    Ok(match title {
        Some(title) => format!("{title}\n\n{data}"),
        None => data,
    })
}

fn result(
    content: Option<TextOrBlocks<ResultBlock>>,
    turn: usize,
    index: usize,
) -> Result<Json, ApiError> {
    let blocks = match content {
        None => return Ok(Json::from("")),
        Some(TextOrBlocks::Text(text)) => return Ok(Json::from(text)),
        Some(TextOrBlocks::Blocks(blocks)) => blocks,
    };
    let texts: Result<Vec<String>, ApiError> = blocks
        .into_iter()
        .map(|block| match block {
            ResultBlock::Text { text } => Ok(text),
            ResultBlock::Image {} => Err(image(turn, index)),
        })
        .collect();
    texts.map(parts)
}

fn push_assistant(
    blocks: Vec<Block>,
    turn: usize,
    messages: &mut Vec<Json>,
) -> Result<(), ApiError> {
    if blocks.is_empty() {
        messages.push(json!({"role": "assistant", "content": ""}));
    }
    let mut message = AssistantMessage::default();
    for (index, block) in blocks.into_iter().enumerate() {
        match block {
            Block::Thinking { thinking } => message.reason(&thinking, messages),
            Block::RedactedThinking {} => {}
            Block::Text { text } => message.say(text, messages),
            Block::ToolUse { id, name, input } => message.call(&id, &name, input),
            Block::Image {} => return Err(image(turn, index)),
            Block::ToolResult { .. } | Block::Document { .. } => {
                return Err(misplaced(
                    turn,
                    index,
                    "`tool_result` and `document` belong to turns of the user",
                ));
            }
        }
    }
    message.flush(messages);
    Ok(())
}

fn place(turn: usize, index: usize) -> String {
    format!("messages[{turn}].content[{index}]")
}

fn image(turn: usize, index: usize) -> ApiError {
    let place = place(turn, index);
    let message = format!("{place}: the model reads text only, not images");
    ApiError::invalid(place, message)
}

fn misplaced(turn: usize, index: usize, why: &str) -> ApiError {
    let place = place(turn, index);
    let message = format!("{place}: {why}");
    ApiError::invalid(place, message)
}

fn function(tool: Tool, index: usize) -> Result<Json, ApiError> {
    if let Some(kind) = tool.kind.filter(|kind| kind != "custom") {
        return Err(ApiError::invalid(
            format!("tools[{index}].type"),
            format!(
                "tools[{index}]: `{kind}` is a tool that Anthropic's servers or clients define; only `custom` tools with an `input_schema` can be served"
            ),
        ));
    }
    let Some(schema) = tool.input_schema else {
        return Err(ApiError::invalid(
            format!("tools[{index}].input_schema"),
            format!("tools[{index}]: `input_schema` is missing, the JSON schema of its arguments"),
        ));
    };
    let mut function = Map::new();
    function.insert("name".to_owned(), Json::from(tool.name));
    if let Some(description) = tool.description {
        function.insert("description".to_owned(), Json::from(description));
    }
    function.insert("parameters".to_owned(), Json::Object(schema));
    Ok(json!({"type": "function", "function": function}))
}

/// The choice of tools, and whether several calls may be made at once.
fn choice(choice: Option<ToolChoice>) -> (Option<ChatToolChoice>, Option<bool>) {
    let (choice, single) = match choice {
        None => return (None, None),
        Some(ToolChoice::Auto {
            disable_parallel_tool_use,
        }) => (
            ChatToolChoice::Mode(ToolMode::Auto),
            disable_parallel_tool_use,
        ),
        Some(ToolChoice::Any {
            disable_parallel_tool_use,
        }) => (
            ChatToolChoice::Mode(ToolMode::Required),
            disable_parallel_tool_use,
        ),
        Some(ToolChoice::Tool {
            name,
            disable_parallel_tool_use,
        }) => (
            ChatToolChoice::Named(NamedTool {
                kind: NamedToolKind::Function,
                function: FunctionName { name },
            }),
            disable_parallel_tool_use,
        ),
        Some(ToolChoice::None {}) => (ChatToolChoice::Mode(ToolMode::None), None),
    };
    (Some(choice), single.map(|single| !single))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn translate(request: Json) -> Result<ChatRequest, ApiError> {
        chat_request(serde_json::from_value(request).unwrap())
    }

    fn check_messages(messages: Json, expected: Json) {
        let chat = translate(json!({"max_tokens": 8, "messages": messages})).unwrap();
        assert_eq!(Json::Array(chat.messages), expected);
    }

    fn check_refused(request: Json, param: &str, words: &str) {
        let error = translate(request).unwrap_err();
        assert_eq!(error.param.as_deref(), Some(param), "{error}");
        assert!(error.message.contains(words), "{error}");
    }

    #[test]
    fn system_blocks_keep_their_order_and_their_text() {
        let messages = json!([{"role": "user", "content": "hi"}]);
        for (system, expected) in [
            (json!("a\n b "), json!("a\n b ")),
            (
                json!([{"type": "text", "text": "one", "cache_control": {"type": "ephemeral"}}]),
                json!("one"),
            ),
            (
                json!([{"type": "text", "text": "b "}, {"type": "text", "text": "a"}]),
                json!([{"type": "text", "text": "b "}, {"type": "text", "text": "a"}]),
            ),
        ] {
            let chat = translate(json!({"max_tokens": 8, "messages": messages, "system": system}));
            assert_eq!(
                chat.unwrap().messages,
                [
                    json!({"role": "system", "content": expected}),
                    json!({"role": "user", "content": "hi"}),
                ]
            );
        }
    }

    #[test]
    fn results_of_tools_become_messages_and_text_beside_them_stays_where_it_was() {
        check_messages(
            json!([
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": "18 C"},
                    {"type": "text", "text": "and"},
                    {"type": "text", "text": "then"},
                    {"type": "tool_result", "tool_use_id": "t2", "is_error": true, "content": [{"type": "text", "text": "no such city"}]},
                    {"type": "tool_result", "tool_use_id": "t3"},
                    {"type": "text", "text": "Well?"}
                ]}
            ]),
            json!([
                {"role": "tool", "tool_call_id": "t1", "content": "18 C"},
                {"role": "user", "content": [{"type": "text", "text": "and"}, {"type": "text", "text": "then"}]},
                {"role": "tool", "tool_call_id": "t2", "content": "no such city"},
                {"role": "tool", "tool_call_id": "t3", "content": ""},
                {"role": "user", "content": "Well?"}
            ]),
        );
    }

    #[test]
    fn thinking_text_and_calls_of_a_turn_are_one_message() {
        check_messages(
            json!([
                {"role": "assistant", "content": [
                    {"type": "redacted_thinking", "data": "x"},
                    {"type": "thinking", "thinking": "Hm.", "signature": "of another service"},
                    {"type": "text", "text": "Let me see."},
                    {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Rome", "n": 3}},
                    {"type": "tool_use", "id": "t2", "name": "time", "input": {}}
                ]}
            ]),
            json!([
                {"role": "assistant", "content": "Let me see.", "reasoning_content": "Hm.", "tool_calls": [
                    {"id": "t1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Rome", "n": 3}}},
                    {"id": "t2", "type": "function", "function": {"name": "time", "arguments": {}}}
                ]}
            ]),
        );
    }

    #[test]
    fn a_turn_that_goes_back_becomes_two_messages_in_its_order() {
        check_messages(
            json!([
                {"role": "assistant", "content": [
                    {"type": "tool_use", "id": "t1", "name": "f", "input": {}},
                    {"type": "text", "text": "called"},
                    {"type": "thinking", "thinking": "Hm.", "signature": ""},
                    {"type": "tool_use", "id": "t2", "name": "f", "input": {}}
                ]}
            ]),
            json!([
                {"role": "assistant", "content": null, "tool_calls": [{"id": "t1", "type": "function", "function": {"name": "f", "arguments": {}}}]},
                {"role": "assistant", "content": "called"},
                {"role": "assistant", "content": null, "reasoning_content": "Hm.", "tool_calls": [{"id": "t2", "type": "function", "function": {"name": "f", "arguments": {}}}]}
            ]),
        );
    }

    #[test]
    fn an_answer_that_was_begun_is_continued() {
        let user = json!({"role": "user", "content": "?"});
        let call = json!({"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]});
        for (last, continues) in [
            (
                json!({"role": "assistant", "content": "The answer is ("}),
                Some(true),
            ),
            (json!({"role": "user", "content": "!"}), None),
            (call, None),
            (json!({"role": "assistant", "content": " "}), None),
        ] {
            let chat = translate(json!({"max_tokens": 8, "messages": [user, last]})).unwrap();
            assert_eq!(chat.continue_final_message, continues);
            assert_eq!(chat.add_generation_prompt, continues.map(|_| false));
        }
    }

    #[test]
    fn thinking_is_off_unless_asked_for() {
        for (fields, thinks, budget, shown) in [
            (json!({}), false, None, None),
            (json!({"thinking": {"type": "disabled"}}), false, None, None),
            (json!({"thinking": {"type": "adaptive"}}), true, None, None),
            (
                json!({"output_config": {"effort": "low"}}),
                true,
                None,
                None,
            ),
            (
                json!({"thinking": {"type": "enabled", "budget_tokens": 1024}}),
                true,
                Some(1024),
                None,
            ),
            (
                json!({"thinking": {"type": "enabled", "display": "omitted"}}),
                true,
                None,
                Some(false),
            ),
        ] {
            let mut request = json!({"max_tokens": 8, "messages": []});
            request
                .as_object_mut()
                .unwrap()
                .extend(fields.as_object().unwrap().clone());
            let chat = translate(request).unwrap();
            assert_eq!(chat.enable_thinking, Some(thinks), "{fields}");
            assert_eq!(chat.thinking_token_budget, budget, "{fields}");
            assert_eq!(chat.include_reasoning, shown, "{fields}");
        }
    }

    #[test]
    fn tools_and_their_choice_are_those_of_a_chat() {
        let named = ChatToolChoice::Named(NamedTool {
            kind: NamedToolKind::Function,
            function: FunctionName {
                name: "f".to_owned(),
            },
        });
        for (choice, expected, parallel) in [
            (
                json!({"type": "auto"}),
                ChatToolChoice::Mode(ToolMode::Auto),
                None,
            ),
            (
                json!({"type": "any", "disable_parallel_tool_use": true}),
                ChatToolChoice::Mode(ToolMode::Required),
                Some(false),
            ),
            (
                json!({"type": "tool", "name": "f", "disable_parallel_tool_use": false}),
                named,
                Some(true),
            ),
            (
                json!({"type": "none"}),
                ChatToolChoice::Mode(ToolMode::None),
                None,
            ),
        ] {
            let chat = translate(json!({
                "max_tokens": 8, "messages": [], "tool_choice": choice,
                "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}}]
            }))
            .unwrap();
            assert_eq!(chat.tool_choice, Some(expected));
            assert_eq!(chat.parallel_tool_calls, parallel);
            assert_eq!(
                chat.tools.unwrap(),
                [
                    json!({"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}})
                ]
            );
        }
    }

    #[test]
    fn the_schema_of_the_answer_is_taken_from_both_places() {
        let format = json!({"type": "json_schema", "schema": {"type": "object"}});
        for fields in [
            json!({"output_config": {"format": format}}),
            json!({"output_format": format}),
        ] {
            let mut request = json!({"max_tokens": 8, "messages": []});
            request
                .as_object_mut()
                .unwrap()
                .extend(fields.as_object().unwrap().clone());
            match translate(request).unwrap().response_format {
                Some(ResponseFormat::JsonSchema { json_schema }) => {
                    assert_eq!(json_schema.schema, json!({"type": "object"}));
                }
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn what_cannot_be_served_is_refused_by_its_place() {
        let turn = |role: &str, blocks: Json| json!({"max_tokens": 8, "messages": [{"role": "user", "content": "a"}, {"role": role, "content": blocks}]});
        let image = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}});
        let at = "messages[1].content[0]";
        check_refused(turn("user", json!([image])), at, "text only");
        check_refused(
            turn(
                "user",
                json!([{"type": "tool_result", "tool_use_id": "t", "content": [image]}]),
            ),
            at,
            "text only",
        );
        check_refused(
            turn(
                "user",
                json!([{"type": "tool_use", "id": "t", "name": "f", "input": {}}]),
            ),
            at,
            "assistant",
        );
        check_refused(
            turn(
                "assistant",
                json!([{"type": "tool_result", "tool_use_id": "t"}]),
            ),
            at,
            "user",
        );
        check_refused(
            turn(
                "user",
                json!([{"type": "document", "source": {"type": "url", "url": "https://example.org"}}]),
            ),
            at,
            "source is `text`",
        );
        check_refused(
            json!({"messages": [], "tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
            "tools[0].type",
            "web_search_20250305",
        );
        check_refused(
            json!({"messages": [], "tools": [{"name": "f"}]}),
            "tools[0].input_schema",
            "missing",
        );
        check_refused(
            json!({"messages": [], "mcp_servers": [{"type": "url", "url": "https://example.org"}]}),
            "mcp_servers",
            "connects to no other server",
        );
    }

    #[test]
    fn an_unknown_block_is_named_by_the_parser() {
        let error = serde_json::from_value::<MessagesRequest>(
            json!({"messages": [{"role": "user", "content": [{"type": "audio"}]}]}),
        )
        .unwrap_err()
        .to_string();
        assert!(error.contains("unknown variant `audio`"), "{error}");
        let error = serde_json::from_value::<MessagesRequest>(
            json!({"messages": [{"role": "user", "content": 3}]}),
        )
        .unwrap_err()
        .to_string();
        assert!(error.contains("a string or a list of parts"), "{error}");
    }
}
