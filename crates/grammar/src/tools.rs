//! Calls of tools in GLM's form, as a grammar.
//!
//! ```text
//! <tool_call>NAME<arg_key>K</arg_key><arg_value>V</arg_value>…</tool_call>
//! ```
//! The tags are tokens, so that no text forges them. Arguments come in the order of the schema, required ones always. A string
//! is written as it stands; any other value as JSON of its schema, spaced as in [`Rule::JsonSchema`](crate::Rule::JsonSchema).
//! How a value's text will be read is asked of [`glim_text::argument_text`], so that parser and grammar agree. Between the tags
//! there may be one newline where the templates of GLM-4.5 and 4.6 write one; 4.7 and 5.x write none. The parser skips it.
//!
//! Arguments that are not declared are written only where `additionalProperties` is there and says of which kind.

use std::fmt::Write;

use glim_text::{ArgumentText, TokenId, argument_text};
use llguidance::api::TopLevelGrammar;
use serde_json::{Map, Value as Json};

use crate::grammar::limit;
use crate::lark::{literal, regex};
use crate::limits::MAX_TEXT_BYTES;
use crate::schema::{Normal, normalise_counting, strings};
use crate::vocabulary::Tags;
use crate::{GrammarError, Vocabulary, compile, error};

/// A name of an argument that is not declared.
const FREE_KEY: &str = "[A-Za-z_][A-Za-z0-9_.-]{0,63}";

/// Keywords of a tool's parameters that this grammar follows.
const PARAMETERS: [&str; 5] = [
    "$defs",
    "additionalProperties",
    "properties",
    "required",
    "type",
];

/// The automaton of calls.
pub(crate) fn compile(
    vocabulary: &Vocabulary,
    tools: &[Json],
    only: Option<&str>,
    parallel: bool,
) -> Result<llguidance::Matcher, GrammarError> {
    let ids = Ids::of(vocabulary.tags())?;
    let mut lark = Lark {
        rules: String::new(),
        ids,
        nodes: 0,
        count: 0,
        json: Vec::new(),
    };
    let mut names = Vec::new();
    let mut alternatives = Vec::new();
    for (index, tool) in tools.iter().enumerate() {
        let name = name_of(tool).map_err(|reason| GrammarError::Tool { index, reason })?;
        names.push(name);
        if only.is_none_or(|only| only == name) {
            alternatives.push(lark.tool(index, name, tool)?);
        }
    }
    if alternatives.is_empty() {
        return Err(GrammarError::NoSuchTool {
            name: only.unwrap_or("any").to_owned(),
            declared: match names.is_empty() {
                true => "none".to_owned(),
                false => error::shortened(&names.join(", ")),
            },
        });
    }
    let calls = if parallel { "(nl call)+" } else { "nl call" };
    let [call, call_end] = [ids.tool_call, ids.tool_call_end].map(token);
    let text = format!(
        "start: {calls}\ncall: {call} ({}) {call_end}\nnl: NL?\nNL: \"\\n\"\n{}",
        alternatives.join(" | "),
        lark.rules
    );
    limit("the grammar of all tools", text.len(), 8 * MAX_TEXT_BYTES)?;
    compile::compile(vocabulary, TopLevelGrammar::from_lark(text)).map_err(|reason| {
        // Which value is it?
        let mut faults = lark
            .json
            .iter()
            .filter_map(|value| compile::json(vocabulary, value).err());
        faults
            .next()
            .unwrap_or_else(|| GrammarError::Unenforceable {
                path: "tools".to_owned(),
                reason,
            })
    })
}

fn name_of(tool: &Json) -> Result<&str, String> {
    let function = tool.get("function").unwrap_or(tool);
    let name = function.get("name").and_then(Json::as_str);
    let name = name.ok_or("has no name; expected `function.name`, a string")?;
    if name.is_empty() || name.trim() != name {
        return Err(format!(
            "is named {:?}; expected a name without blanks around it",
            error::shortened(name)
        ));
    }
    Ok(name)
}

/// The ids of the tags of calls, all of which must be there.
#[derive(Clone, Copy)]
struct Ids {
    tool_call: TokenId,
    tool_call_end: TokenId,
    arg_key: TokenId,
    arg_key_end: TokenId,
    arg_value: TokenId,
    arg_value_end: TokenId,
}

impl Ids {
    fn of(tags: Tags) -> Result<Self, GrammarError> {
        let all = || {
            Some(Self {
                tool_call: tags.tool_call?,
                tool_call_end: tags.tool_call_end?,
                arg_key: tags.arg_key?,
                arg_key_end: tags.arg_key_end?,
                arg_value: tags.arg_value?,
                arg_value_end: tags.arg_value_end?,
            })
        };
        all().ok_or_else(|| GrammarError::Vocabulary {
            reason: "has no tokens for the tags of tool calls, so a call cannot be forced; leave `tool_choice` at auto"
                .to_owned(),
        })
    }
}

/// A grammar's text while it is written.
struct Lark {
    rules: String,
    ids: Ids,
    nodes: usize,
    count: usize,
    /// The schemas of values that are written as JSON.
    json: Vec<Normal>,
}

fn token(id: TokenId) -> String {
    format!("<[{}]>", id.0)
}

impl Lark {
    /// The name of a new rule.
    fn rule(&mut self, body: &str) -> String {
        self.count += 1;
        let name = format!("r{}", self.count);
        // Writing to a string does not fail.
        let _ = writeln!(self.rules, "{name}: {body}");
        name
    }

    /// The name of a new terminal.
    fn terminal(&mut self, body: &str) -> String {
        self.count += 1;
        let name = format!("T{}", self.count);
        let _ = writeln!(self.rules, "{name}: {body}");
        name
    }

    /// A rule for what stands between the tags of a call: name and arguments.
    fn tool(&mut self, index: usize, name: &str, tool: &Json) -> Result<String, GrammarError> {
        let mut body = format!("{} nl", literal(name));
        let function = tool.get("function").unwrap_or(tool);
        if let Some(parameters) = function.get("parameters").filter(|given| !given.is_null()) {
            let path = match tool.get("function") {
                Some(_) => format!("tools[{index}].function.parameters"),
                None => format!("tools[{index}].parameters"),
            };
            let normal = normalise_counting(parameters, &path, &mut self.nodes)?;
            for argument in self.arguments(tool, &normal)? {
                body.push(' ');
                body.push_str(&argument);
            }
        }
        Ok(self.rule(&body))
    }

    /// The arguments, each with the mark of how often it may come.
    fn arguments(&mut self, tool: &Json, normal: &Normal) -> Result<Vec<String>, GrammarError> {
        let empty = Map::new();
        let map = normal.schema.as_object().unwrap_or(&empty);
        let refused = |keyword: &str, reason: &str| GrammarError::Keyword {
            path: normal.path.clone(),
            keyword: keyword.to_owned(),
            reason: reason.to_owned(),
            advice: "declare the arguments by `properties` and `required`",
        };
        if let Some(keyword) = map.keys().find(|name| !PARAMETERS.contains(&name.as_str())) {
            return Err(refused(
                keyword,
                "is not supported at the top of a tool's parameters",
            ));
        }
        if map.get("type").is_some_and(|found| found != "object") {
            return Err(refused("type", "is not `object`"));
        }
        let properties = map.get("properties").and_then(Json::as_object);
        let properties = properties.unwrap_or(&empty);
        let required = map.get("required").and_then(Json::as_array);
        let required: Vec<&str> = required
            .into_iter()
            .flatten()
            .filter_map(Json::as_str)
            .collect();
        let rest = map.get("additionalProperties");
        if let Some(name) = required
            .iter()
            .find(|name| !properties.contains_key(**name))
        {
            let name = error::shortened(name);
            return Err(refused(
                "required",
                &format!("names {name:?}, which is not declared"),
            ));
        }
        let mut arguments = Vec::new();
        for (name, schema) in properties {
            if name.is_empty() || name.trim() != name {
                let name = error::shortened(name);
                return Err(refused(
                    "properties",
                    &format!("names {name:?}, with blanks around it"),
                ));
            }
            let path = format!("{}/properties/{}", normal.path, error::shortened(name));
            let mark = if required.contains(&name.as_str()) {
                ""
            } else {
                "?"
            };
            if *schema == Json::Bool(false) && mark == "?" {
                continue;
            }
            let value = self.value(argument_text(tool, name), schema, normal, &path)?;
            arguments.push(self.argument(&literal(name), &value) + mark);
        }
        if let Some(schema) = rest.filter(|rest| **rest != Json::Bool(false)) {
            let path = format!("{}/additionalProperties", normal.path);
            let taken: Vec<String> = properties.keys().map(|name| literal(name)).collect();
            let mut key = regex(FREE_KEY, "");
            if !taken.is_empty() {
                key = format!("{key} & ~({})", taken.join(" | "));
            }
            let key = self.terminal(&key);
            // No declared argument has this name, so it is read as all that are not declared.
            let free = free_name(properties);
            let value = self.value(argument_text(tool, &free), schema, normal, &path)?;
            arguments.push(self.argument(&key, &value) + "*");
        }
        Ok(arguments)
    }

    fn argument(&mut self, key: &str, value: &str) -> String {
        let Ids {
            arg_key,
            arg_key_end,
            arg_value,
            arg_value_end,
            ..
        } = self.ids;
        let [open, close, value_open, value_close] =
            [arg_key, arg_key_end, arg_value, arg_value_end].map(token);
        self.rule(&format!(
            "{open} {key} {close} nl {value_open} {value} {value_close} nl"
        ))
    }

    /// A rule or terminal for a value's text.
    fn value(
        &mut self,
        text: ArgumentText,
        schema: &Json,
        normal: &Normal,
        path: &str,
    ) -> Result<String, GrammarError> {
        let fault = |reason: String| GrammarError::Unenforceable {
            path: path.to_owned(),
            reason,
        };
        match text {
            ArgumentText::Verbatim | ArgumentText::VerbatimOrNull => {
                let or_null = text == ArgumentText::VerbatimOrNull;
                let body = strings::terminal(schema, normal, or_null).map_err(fault)?;
                Ok(self.terminal(&body))
            }
            ArgumentText::Json => {
                let value = normal.part(schema, path.to_owned());
                let rule = self.rule(&format!("%json {}", compile::with_options(&value.schema)));
                self.json.push(value);
                Ok(rule)
            }
            ArgumentText::Unknown if says_nothing(schema) => {
                Ok(self.terminal(&regex("(?s:.*)", "")))
            }
            ArgumentText::Unknown => Err(fault(
                "it does not say of which type the argument is, so its text cannot be read as it is meant; add `type`"
                    .to_owned(),
            )),
        }
    }
}

/// Whether a schema admits everything.
fn says_nothing(schema: &Json) -> bool {
    match schema {
        Json::Bool(value) => *value,
        Json::Object(map) => map.is_empty(),
        _ => false,
    }
}

fn free_name(properties: &Map<String, Json>) -> String {
    let mut name = "free".to_owned();
    while properties.contains_key(&name) {
        name.push('_');
    }
    name
}
