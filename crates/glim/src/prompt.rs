//! Where a prompt comes from: conversation files, tool declarations, template variables; and how it becomes token ids.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use clap::Args;
use glim_text::{ChatRequest, Rendered};
use serde_json::{Map, Value as Json};

use crate::exit::{Exit, Failure};
use crate::loader::Text;
use crate::ui::Ui;

/// The variable of GLM templates that turns reasoning on and off.
const ENABLE_THINKING: &str = "enable_thinking";

/// Options about a conversation and its rendering.
#[derive(Debug, Args)]
pub(crate) struct ChatArgs {
    /// Conversation: a JSON list of OpenAI messages, or an object with `messages` and perhaps `tools` (-: stdin)
    #[arg(long, value_name = "FILE.json", help_heading = "Conversation")]
    pub(crate) messages: Option<PathBuf>,
    /// Tool declarations: a JSON list as in the OpenAI API
    #[arg(long, value_name = "FILE.json", help_heading = "Conversation")]
    pub(crate) tools: Option<PathBuf>,
    /// Jinja chat template to use instead of the model's own
    #[arg(long, value_name = "FILE.jinja", help_heading = "Conversation")]
    pub(crate) template: Option<PathBuf>,
    /// Turn reasoning off: the same as --template-kwarg enable_thinking=false
    #[arg(long, help_heading = "Conversation")]
    no_think: bool,
    /// Set a variable of the chat template, e.g. clear_thinking=false or reasoning_effort='"high"' (repeatable)
    #[arg(long, value_name = "KEY=JSON", value_parser = key_json, help_heading = "Conversation")]
    template_kwarg: Vec<(String, Json)>,
}

fn key_json(text: &str) -> Result<(String, Json), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=JSON")?;
    if key.is_empty() {
        return Err("the key before `=` is empty".to_owned());
    }
    let value = serde_json::from_str(value).map_err(|error| {
        format!(
            "`{value}` is not JSON ({error}); a string needs double quotes, as in {key}='\"text\"'"
        )
    })?;
    Ok((key.to_owned(), value))
}

/// What a `--messages` file holds.
struct Conversation {
    messages: Vec<Json>,
    tools: Option<Vec<Json>>,
}

impl ChatArgs {
    /// Whether an option is there that only a chat template can heed.
    pub(crate) fn wants_template(&self) -> bool {
        self.tools.is_some()
            || self.template.is_some()
            || self.no_think
            || !self.template_kwarg.is_empty()
    }

    /// Reads the template file, if there is one.
    pub(crate) fn read_template(&self) -> Result<Option<String>, Failure> {
        self.template.as_deref().map(read_text).transpose()
    }

    /// The request: the conversation of `--messages`, or `messages` if there is none.
    pub(crate) fn request(&self, messages: Vec<Json>, ui: &Ui) -> Result<ChatRequest, Failure> {
        let mut conversation = match &self.messages {
            Some(path) => read_conversation(path, ui)?,
            None => Conversation {
                messages,
                tools: None,
            },
        };
        if let Some(path) = &self.tools {
            if conversation.tools.is_some() {
                return Err(Failure::usage(
                    "tools are declared both in the --messages file and by --tools",
                )
                .hint("leave one of them out"));
            }
            conversation.tools = Some(list(path, read_json(path)?, "a list of tool declarations")?);
        }
        let mut request = ChatRequest::new(conversation.messages);
        request.tools = conversation.tools;
        request.kwargs = self.kwargs()?;
        Ok(request)
    }

    fn kwargs(&self) -> Result<Map<String, Json>, Failure> {
        let mut kwargs = Map::new();
        if self.no_think {
            kwargs.insert(ENABLE_THINKING.to_owned(), Json::Bool(false));
        }
        for (key, value) in &self.template_kwarg {
            if kwargs.insert(key.clone(), value.clone()).is_some() {
                return Err(
                    Failure::usage(format!("the template variable `{key}` is set twice"))
                        .hint("--no-think sets enable_thinking"),
                );
            }
        }
        Ok(kwargs)
    }
}

/// Prints a conversation with the model's template.
pub(crate) fn render(text: &Text, request: &ChatRequest, ui: &Ui) -> Result<Rendered, Failure> {
    let (Some(template), Some(source)) = (&text.model.template, &text.template) else {
        return Err(Failure::usage("this model has no chat template").hint(
            "give one with --template FILE.jinja, or continue plain text with `glim run --raw`",
        ));
    };
    for key in request
        .kwargs
        .keys()
        .filter(|key| !source.contains(key.as_str()))
    {
        ui.note(&format!(
            "note: the chat template does not know `{key}`, so it has no effect"
        ));
    }
    if request
        .tools
        .as_ref()
        .is_some_and(|tools| !tools.is_empty())
        && !source.contains("tools")
    {
        ui.note("note: the chat template does not know tools, so the model will not see them");
    }
    Ok(template.render(request, text.model.tokenizer.added_tokens())?)
}

fn read_conversation(path: &Path, ui: &Ui) -> Result<Conversation, Failure> {
    const EXPECTED: &str = "a list of messages, or an object with `messages`";
    let mut object = match read_json(path)? {
        Json::Array(messages) => {
            return Ok(Conversation {
                messages,
                tools: None,
            });
        }
        Json::Object(object) => object,
        other => return Err(wrong_kind(path, &other, EXPECTED)),
    };
    let messages = object.remove("messages").ok_or_else(|| {
        Failure::bad_data(
            path,
            format_args!("an object without `messages`, expected {EXPECTED}"),
        )
    })?;
    let messages = list(path, messages, "`messages` to be a list")?;
    let tools = match object.remove("tools") {
        None | Some(Json::Null) => None,
        Some(tools) => Some(list(path, tools, "`tools` to be a list")?),
    };
    if !object.is_empty() {
        let keys: Vec<_> = object.keys().map(|key| format!("`{key}`")).collect();
        let (path, keys) = (path.display(), keys.join(", "));
        ui.note(&format!(
            "note: {path}: {keys} ignored: only `messages` and `tools` are read"
        ));
    }
    Ok(Conversation { messages, tools })
}

fn list(path: &Path, json: Json, expected: &str) -> Result<Vec<Json>, Failure> {
    match json {
        Json::Array(list) => Ok(list),
        other => Err(wrong_kind(path, &other, expected)),
    }
}

fn wrong_kind(path: &Path, found: &Json, expected: &str) -> Failure {
    let found = match found {
        Json::Null => "null",
        Json::Bool(_) => "a boolean",
        Json::Number(_) => "a number",
        Json::String(_) => "a string",
        Json::Array(_) => "a list",
        Json::Object(_) => "an object",
    };
    Failure::bad_data(path, format_args!("found {found}, expected {expected}"))
}

fn read_json(path: &Path) -> Result<Json, Failure> {
    let text = read_text(path)?;
    serde_json::from_str(&text)
        .map_err(|error| Failure::bad_data(path, format_args!("not valid JSON: {error}")))
}

/// A text file, or stdin for `-`.
pub(crate) fn read_text(path: &Path) -> Result<String, Failure> {
    if path == Path::new("-") {
        return read_stdin();
    }
    std::fs::read_to_string(path).map_err(|error| Failure::read(path, &error))
}

/// All of stdin.
pub(crate) fn read_stdin() -> Result<String, Failure> {
    let mut text = String::new();
    match io::stdin().read_to_string(&mut text) {
        Ok(_) => Ok(text),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            Err(Failure::new(Exit::BadData, "stdin is not UTF-8 text"))
        }
        Err(error) => Err(Failure::new(
            Exit::BadData,
            format!("stdin cannot be read: {error}"),
        )),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn template_variables_are_json() {
        assert_eq!(
            key_json("a=false").unwrap(),
            ("a".to_owned(), Json::Bool(false))
        );
        assert_eq!(key_json("a=\"x=y\"").unwrap().1, "x=y");
        assert!(key_json("a=high").unwrap_err().contains("double quotes"));
        assert!(key_json("a").unwrap_err().contains("KEY=JSON"));
        assert!(key_json("=1").unwrap_err().contains("empty"));
    }
}
