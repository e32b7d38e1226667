//! From a chat's request to what is asked of the engine: checks, the rendered prompt, and what binds the answer.

use std::sync::Arc;

use glim_grammar::Rule;
use glim_text::{ControlTokens, Rendered, TokenId, starts_in_reasoning};
use serde_json::{Map, Value as Json};

use super::request::{ChatRequest, TruncationSide};
use crate::api::fields::{ReasoningEffort, ThinkingMode, ToolChoice, ToolMode};
use crate::error::ApiError;
use crate::generation::choice::{Form, Reading};
use crate::generation::sampling::{Draws, MAX_TOP_LOGPROBS, max_tokens, whole};
use crate::generation::spec::Spec;
use crate::generation::structure::{self, Bounds, Wanted};
use crate::http::observe::new_id;
use crate::model::Model;
use crate::state::{AppState, shorten};

/// Most tools of a request.
const MAX_TOOLS: usize = 1024;
/// Longest name of a request, in bytes.
const MAX_ID: usize = 128;

/// Checks a request and makes it ready for the engine.
///
/// # Errors
/// What is wrong with it, by field; or that the model is not there yet.
pub(crate) async fn spec(state: &AppState, request: ChatRequest) -> Result<Spec, ApiError> {
    state.model()?;
    state
        .work(move |state| {
            let model = state.model()?;
            prepare(state, model, request)
        })
        .await
}

/// The prompt of a conversation, and what of the request shaped it.
pub(crate) struct Prompt {
    pub(crate) rendered: Rendered,
    pub(crate) tokens: Vec<TokenId>,
    /// The message that is gone on with.
    pub(crate) continued: Option<String>,
}

fn prepare(state: &AppState, model: &Model, request: ChatRequest) -> Result<Spec, ApiError> {
    let name = state.check_model_name(request.model.as_deref())?;
    if !request.unknown.is_empty() {
        let fields: Vec<&String> = request.unknown.keys().collect();
        tracing::debug!(?fields, "fields of the request are not known and ignored");
    }
    let tools = Tools::of(&request)?;
    let sampling = &request.sampling;
    let n = sampling.choices()?;
    let top_logprobs = top_logprobs(&request)?;
    if whole("prompt_logprobs", request.prompt_logprobs, 0..=i64::MAX)?.is_some_and(|n| n > 0) {
        return Err(ApiError::invalid(
            "prompt_logprobs",
            "prompt_logprobs is not supported: expected 0",
        ));
    }
    if sampling.skip_special_tokens == Some(false) {
        return Err(ApiError::invalid(
            "skip_special_tokens",
            "skip_special_tokens is false: a chat never shows control tokens; /v1/completions can",
        ));
    }
    let defaults = &state.config().defaults;
    let limit = match request.max_completion_tokens {
        Some(_) => max_tokens("max_completion_tokens", request.max_completion_tokens, defaults)?,
        None => max_tokens("max_tokens", request.max_tokens, defaults)?,
    };
    let budget = whole(
        "thinking_token_budget",
        request.thinking_token_budget,
        0..=i64::MAX,
    )?;
    let wanted = structure::wanted(
        request.response_format.as_ref(),
        request.structured_outputs.as_ref(),
        &request.guided,
    )?;

    let Prompt {
        rendered,
        tokens,
        continued,
    } = prompt(model, &request)?;
    let starts_in_reasoning = continued.is_none() && starts_in_reasoning(&rendered);

    let bounds = Bounds {
        starts_in_reasoning,
        budget: budget.map(|budget| usize::try_from(budget).unwrap_or(usize::MAX)),
        may_call: tools.mode == Mode::Auto,
    };
    let wanted = tools.wanted().or(wanted);
    let constraint = structure::constraint(model, wanted, bounds)?;

    let draws = Draws {
        tokenizer: &model.tokenizer,
        vocab_size: model.vocab_size,
        defaults,
    };
    let mut generate = sampling.request(tokens, limit, top_logprobs, &draws)?;
    generate.constraint = constraint.boxed();
    if tools.mode == Mode::None && tools.declared {
        generate.sampling.forbidden.extend(model.tags.tool_call);
    }
    let echo = continued.filter(|_| request.echo == Some(true));
    Ok(Spec {
        id: response_id(sampling.request_id.as_deref())?,
        model: name,
        n,
        reading: Reading {
            form: Form::Chat {
                starts_in_reasoning,
                tools: tools.callable(),
            },
            stops: sampling.stop_strings()?,
            include_stop: sampling.include_stop_str_in_output == Some(true),
            stop_tokens: sampling.own_stop_tokens(model.vocab_size)?,
            hide_reasoning: request.include_reasoning == Some(false),
            one_call: request.parallel_tool_calls == Some(false)
                || matches!(tools.mode, Mode::Named(_)),
            named_call: matches!(tools.mode, Mode::Named(_)),
        },
        prompts: vec![generate],
        prompt_text: (sampling.return_prompt_text == Some(true))
            .then(|| rendered.text().to_owned()),
        echo,
        tokens_as_ids: sampling.return_tokens_as_token_ids == Some(true),
        return_token_ids: sampling.return_token_ids == Some(true),
        timings: request.timings_per_token == Some(true),
    })
}

/// Renders and tokenises a conversation.
///
/// # Errors
/// Messages that the template refuses, and contradictions of the request.
pub(crate) fn prompt(model: &Model, request: &ChatRequest) -> Result<Prompt, ApiError> {
    check_messages(&request.messages)?;
    let Some(template) = &model.text.template else {
        return Err(ApiError::invalid(
            "messages",
            "the model has no chat template: use /v1/completions",
        ));
    };
    let continues = request.continue_final_message == Some(true);
    if continues && request.add_generation_prompt == Some(true) {
        return Err(ApiError::invalid(
            "continue_final_message",
            "continue_final_message and add_generation_prompt exclude each other: set one of them",
        ));
    }
    let chat = glim_text::ChatRequest {
        messages: request.messages.clone(),
        tools: request.tools.clone().filter(|tools| !tools.is_empty()),
        add_generation_prompt: !continues && request.add_generation_prompt != Some(false),
        kwargs: template_kwargs(model, request)?,
    };
    let mut rendered = template.render(&chat, model.tokenizer.added_tokens())?;
    let continued = match continues {
        true => Some(cut(&mut rendered, &request.messages)?),
        false => None,
    };
    let mut tokens = model.tokenizer.encode_rendered(&rendered)?;
    truncate(
        &mut tokens,
        request.truncate_prompt_tokens,
        request.truncation_side.unwrap_or_default(),
        model.context,
    )?;
    Ok(Prompt {
        rendered,
        tokens,
        continued,
    })
}

/// Cuts a prompt to its allowed length. −1: to what the context holds.
pub(crate) fn truncate(
    tokens: &mut Vec<TokenId>,
    most: Option<i64>,
    side: TruncationSide,
    context: usize,
) -> Result<(), ApiError> {
    let Some(most) = whole("truncate_prompt_tokens", most, -1..=i64::MAX)? else {
        return Ok(());
    };
    let most = match most {
        0 => {
            return Err(ApiError::invalid(
                "truncate_prompt_tokens",
                "truncate_prompt_tokens is 0: expected 1 or more, or -1 for the whole context",
            ));
        }
        most => usize::try_from(most).unwrap_or(context.saturating_sub(1)),
    };
    match side {
        TruncationSide::Left => drop(tokens.drain(..tokens.len().saturating_sub(most))),
        TruncationSide::Right => tokens.truncate(most),
    }
    Ok(())
}

/// Ends the prompt within its last message.
fn cut(rendered: &mut Rendered, messages: &[Json]) -> Result<String, ApiError> {
    let refuse = |why: &str| ApiError::invalid("continue_final_message", why);
    let last = messages.last().filter(|last| last["role"] == "assistant");
    let last = last.ok_or_else(|| {
        refuse("continue_final_message is set, but the last message is not the assistant's")
    })?;
    let text = text_of(&last["content"]);
    if text.trim().is_empty() || !rendered.cut_after(&text) {
        return Err(refuse(
            "continue_final_message is set, but the last message has no text that stands in the prompt",
        ));
    }
    Ok(text)
}

/// The text of a message's content: itself, or its parts.
fn text_of(content: &Json) -> String {
    match content {
        Json::String(text) => text.clone(),
        Json::Array(parts) => parts
            .iter()
            .filter_map(|part| part["text"].as_str())
            .collect(),
        _ => String::new(),
    }
}

/// Refuses messages that no template can be given.
fn check_messages(messages: &[Json]) -> Result<(), ApiError> {
    const ROLES: &[&str] = &["system", "developer", "user", "assistant", "tool"];
    if messages.is_empty() {
        return Err(ApiError::invalid(
            "messages",
            "messages is empty: expected one message at least",
        ));
    }
    for (index, message) in messages.iter().enumerate() {
        let refuse = |what: String| {
            let param = format!("messages[{index}]");
            Err(ApiError::invalid(param.clone(), format!("{param}{what}")))
        };
        let Some(message) = message.as_object() else {
            return refuse(": expected an object with role and content".to_owned());
        };
        match message.get("role").and_then(Json::as_str) {
            Some(role) if ROLES.contains(&role) => {}
            Some(role) => {
                let role = shorten(role);
                return refuse(format!(".role is {role:?}: expected {}", ROLES.join(", ")));
            }
            None => return refuse(".role is missing: expected a string".to_owned()),
        }
        match message.get("content") {
            None | Some(Json::Null | Json::String(_)) => {}
            Some(Json::Array(parts)) => {
                for part in parts {
                    match part.get("type").and_then(Json::as_str) {
                        Some("text" | "input_text" | "output_text")
                            if part.get("text").is_some_and(Json::is_string) => {}
                        Some(kind) => {
                            let kind = shorten(kind);
                            return refuse(format!(
                                ".content has a part of type {kind:?}: expected parts of type text, with a string text"
                            ));
                        }
                        None => {
                            return refuse(
                                ".content has a part without a type: expected parts of type text"
                                    .to_owned(),
                            );
                        }
                    }
                }
            }
            Some(_) => {
                return refuse(".content: expected a string, null, or a list of parts".to_owned());
            }
        }
    }
    Ok(())
}

/// Variables of the template: those that fields of the request stand for, then those that it names itself.
fn template_kwargs(model: &Model, request: &ChatRequest) -> Result<Map<String, Json>, ApiError> {
    let mut kwargs = Map::new();
    let mut thinking = request.enable_thinking;
    if let Some(mode) = request.thinking {
        thinking = thinking.or(Some(mode.mode == ThinkingMode::Enabled));
    }
    match request.reasoning_effort {
        None => {}
        Some(ReasoningEffort::None) if !model.knows_enable_thinking => {
            return Err(ApiError::invalid(
                "reasoning_effort",
                "reasoning_effort is none, but reasoning cannot be turned off: the model's template does not know enable_thinking",
            ));
        }
        Some(ReasoningEffort::None) => thinking = Some(false),
        Some(effort) => {
            if model.knows_reasoning_effort
                && let Ok(effort) = serde_json::to_value(effort)
            {
                kwargs.insert("reasoning_effort".to_owned(), effort);
            }
        }
    }
    if let Some(thinking) = thinking {
        kwargs.insert("enable_thinking".to_owned(), thinking.into());
    }
    if let Some(own) = &request.chat_template_kwargs {
        const OURS: &[&str] = &["messages", "tools", "add_generation_prompt"];
        if let Some(name) = OURS.iter().find(|name| own.contains_key(**name)) {
            return Err(ApiError::invalid(
                "chat_template_kwargs",
                format!("chat_template_kwargs holds {name}, which has a field of its own"),
            ));
        }
        kwargs.extend(own.clone());
    }
    Ok(kwargs)
}

fn top_logprobs(request: &ChatRequest) -> Result<Option<usize>, ApiError> {
    let top = whole("top_logprobs", request.top_logprobs, 0..=MAX_TOP_LOGPROBS)?;
    match (request.logprobs == Some(true), top) {
        (true, top) => Ok(Some(top.unwrap_or(0) as usize)),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => Err(ApiError::invalid(
            "top_logprobs",
            "top_logprobs is set but logprobs is not: set logprobs to true",
        )),
    }
}

/// The id of a response, without the prefix of its protocol.
pub(crate) fn response_id(own: Option<&str>) -> Result<String, ApiError> {
    match own {
        None => Ok(new_id()),
        Some(id) if id.len() <= MAX_ID && !id.is_empty() && id.bytes().all(|b| b.is_ascii_graphic()) => {
            Ok(id.to_owned())
        }
        Some(_) => Err(ApiError::invalid(
            "request_id",
            format!("request_id: expected 1 to {MAX_ID} visible characters of ASCII"),
        )),
    }
}

/// Raw text of completions.
pub(crate) fn raw_form(skip_special_tokens: Option<bool>) -> Form {
    Form::Raw(match skip_special_tokens {
        Some(false) => ControlTokens::Show,
        _ => ControlTokens::Skip,
    })
}

/// What the model may do with tools.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Mode {
    None,
    Auto,
    Required,
    Named(String),
}

/// The tools of a request, and what may be done with them.
struct Tools {
    mode: Mode,
    /// There are some.
    declared: bool,
    tools: Arc<Vec<Json>>,
    parallel: bool,
}

impl Tools {
    fn of(request: &ChatRequest) -> Result<Self, ApiError> {
        let tools = request.tools.clone().unwrap_or_default();
        check_tools(&tools)?;
        let declared = !tools.is_empty();
        let mode = match &request.tool_choice {
            None if declared => Mode::Auto,
            None | Some(ToolChoice::Mode(ToolMode::None)) => Mode::None,
            Some(ToolChoice::Mode(ToolMode::Auto)) if declared => Mode::Auto,
            Some(ToolChoice::Mode(ToolMode::Auto)) => Mode::None,
            Some(_) if !declared => {
                return Err(ApiError::invalid(
                    "tool_choice",
                    "tool_choice asks for a call, but there are no tools",
                ));
            }
            Some(ToolChoice::Mode(ToolMode::Required)) => Mode::Required,
            Some(ToolChoice::Named(named)) => {
                let name = &named.function.name;
                if !tools.iter().any(|tool| tool_name(tool) == Some(name)) {
                    let name = shorten(name);
                    return Err(ApiError::invalid(
                        "tool_choice",
                        format!("tool_choice names {name:?}, which is none of the tools"),
                    ));
                }
                Mode::Named(name.clone())
            }
        };
        Ok(Self {
            mode,
            declared,
            tools: Arc::new(tools),
            parallel: request.parallel_tool_calls != Some(false),
        })
    }

    /// The rule that forces a call.
    fn wanted(&self) -> Option<Wanted> {
        let (only, parallel) = match &self.mode {
            Mode::None | Mode::Auto => return None,
            Mode::Required => (None, self.parallel),
            Mode::Named(name) => (Some(name.clone()), false),
        };
        let rule = Rule::ToolCalls {
            tools: self.tools.to_vec(),
            only,
            parallel,
        };
        Some(Wanted {
            param: "tools",
            rule,
        })
    }

    /// Tools whose calls are looked for.
    fn callable(&self) -> Option<Arc<Vec<Json>>> {
        (self.mode != Mode::None).then(|| self.tools.clone())
    }
}

fn tool_name(tool: &Json) -> Option<&str> {
    tool.get("function")?.get("name")?.as_str()
}

fn check_tools(tools: &[Json]) -> Result<(), ApiError> {
    if tools.len() > MAX_TOOLS {
        return Err(ApiError::invalid(
            "tools",
            format!("there are {} tools: expected at most {MAX_TOOLS}", tools.len()),
        ));
    }
    for (index, tool) in tools.iter().enumerate() {
        let refuse = |what: &str| {
            let param = format!("tools[{index}]");
            Err(ApiError::invalid(param.clone(), format!("{param}{what}")))
        };
        if tool.get("type").is_some_and(|kind| kind != "function") {
            return refuse(".type: expected \"function\"");
        }
        let Some(name) = tool_name(tool) else {
            return refuse(".function.name is missing: expected a string");
        };
        let is_name = |c: char| c.is_ascii_alphanumeric() || "_-.:".contains(c);
        if name.is_empty() || name.len() > 128 || !name.chars().all(is_name) {
            return refuse(".function.name: expected 1 to 128 letters, digits, and any of _ - . :");
        }
        let parameters = &tool["function"]["parameters"];
        if !(parameters.is_null() || parameters.is_object()) {
            return refuse(".function.parameters: expected a JSON schema, which is an object");
        }
        if tools[..index].iter().any(|other| tool_name(other) == Some(name)) {
            return refuse(".function.name is that of another tool");
        }
    }
    Ok(())
}
