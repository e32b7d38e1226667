//! What is done to a template's source and to messages before rendering.

use std::borrow::Cow;

use serde_json::Value as Json;

use crate::TextError;
use crate::error::json_kind;

/// The source as Jinja2 would read it: all newlines as `\n`, and transformers' `{% generation %}` blocks, which only
/// note where the assistant's words are, as plain `{% with %}` blocks (same scope, same trimming).
pub(super) fn source(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len());
    let mut rest = source.as_str();
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at + 2);
        out.push_str(before);
        rest = tag;
        let name_at = tag.len() - tag.trim_start_matches(['-', '+']).trim_start().len();
        let name = &tag[name_at..];
        for (from, to) in [("generation", "with"), ("endgeneration", "endwith")] {
            let closes = name.strip_prefix(from).is_some_and(|end| {
                end.trim_start()
                    .trim_start_matches(['-', '+'])
                    .starts_with("%}")
            });
            if closes {
                out.push_str(&tag[..name_at]);
                out.push_str(to);
                rest = &name[from.len()..];
            }
        }
    }
    out.push_str(rest);
    out
}

/// The messages as templates expect them; see the head of [`template`](super).
pub(super) fn messages(messages: &[Json], knows_developer: bool) -> Result<Vec<Json>, TextError> {
    messages
        .iter()
        .enumerate()
        .map(|(index, message)| one_message(message, index, knows_developer))
        .collect()
}

fn one_message(message: &Json, index: usize, knows_developer: bool) -> Result<Json, TextError> {
    let Json::Object(fields) = message else {
        return Err(TextError::Message {
            index,
            found: json_kind(message),
        });
    };
    let mut fields = fields.clone();
    let role = fields
        .get("role")
        .and_then(Json::as_str)
        .unwrap_or_default()
        .to_owned();
    if role == "developer" && !knows_developer {
        fields.insert("role".to_owned(), Json::from("system"));
    }
    if role == "assistant" && fields.get("content").is_some_and(Json::is_null) {
        fields.insert("content".to_owned(), Json::from(""));
    }
    let has_reasoning = fields
        .get("reasoning_content")
        .is_some_and(|value| !value.is_null());
    if let (false, Some(Json::String(reasoning))) = (has_reasoning, fields.get("reasoning")) {
        let reasoning = Json::from(reasoning.as_str());
        fields.insert("reasoning_content".to_owned(), reasoning);
    }
    if let Some(Json::Array(calls)) = fields.get_mut("tool_calls") {
        for (call, value) in calls.iter_mut().enumerate() {
            parse_arguments(value).map_err(|reason| TextError::ToolArguments {
                message: index,
                call,
                reason: reason.into_owned(),
            })?;
        }
    }
    Ok(Json::Object(fields))
}

/// `arguments` of a call (in its `function` or beside it) from a JSON string to an object. Blank means no arguments.
fn parse_arguments(call: &mut Json) -> Result<(), Cow<'static, str>> {
    let holder = if call.get("function").is_some() {
        call.get_mut("function")
    } else {
        Some(call)
    };
    let Some(arguments) = holder.and_then(|holder| holder.get_mut("arguments")) else {
        return Ok(());
    };
    if let Json::String(text) = arguments {
        *arguments = if text.trim().is_empty() {
            Json::Object(serde_json::Map::new())
        } else {
            serde_json::from_str(text)
                .map_err(|error| Cow::from(format!("is a string that is not JSON ({error})")))?
        };
    }
    match arguments {
        Json::Object(_) | Json::Null => Ok(()),
        other => Err(Cow::from(format!("is {}", json_kind(other)))),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn generation_blocks_become_scopes_and_other_tags_stay() {
        assert_eq!(
            source(
                "a{%- generation %}b{% endgeneration -%}\r\n{% if generation %}c{% endif %}{% set generation = 1 %}"
            ),
            "a{%- with %}b{% endwith -%}\n{% if generation %}c{% endif %}{% set generation = 1 %}"
        );
    }

    #[test]
    fn arguments_become_objects_or_a_named_error() {
        let message = |arguments: Json| json!({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]});
        let parsed = messages(&[message(json!("{\"b\": 1, \"a\": 2}"))], false).unwrap();
        assert_eq!(
            parsed[0]["tool_calls"][0]["function"]["arguments"].to_string(),
            r#"{"b":1,"a":2}"#
        );
        for (arguments, words) in [
            (json!("{"), "not JSON"),
            (json!("[1]"), "is an array"),
            (json!(3), "is a number"),
        ] {
            let error = messages(&[json!({"role": "user"}), message(arguments)], false)
                .unwrap_err()
                .to_string();
            assert!(
                error.contains("messages[1].tool_calls[0]") && error.contains(words),
                "{error}"
            );
        }
    }

    #[test]
    fn names_that_servers_accept_are_made_those_that_templates_know() {
        let given = [
            json!({"role": "developer", "content": "d"}),
            json!({"role": "assistant", "content": null, "reasoning": "r"}),
        ];
        let expected = [
            json!({"role": "system", "content": "d"}),
            json!({"role": "assistant", "content": "", "reasoning": "r", "reasoning_content": "r"}),
        ];
        assert_eq!(messages(&given, false).unwrap(), expected);
        assert_eq!(messages(&given[..1], true).unwrap(), given[..1]);
    }
}
