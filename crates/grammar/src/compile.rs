//! From a grammar's text to an automaton, and from llguidance's errors to ours.

use llguidance::api::TopLevelGrammar;
use llguidance::{JsonCompileOptions, Matcher, TokenParser};
use serde_json::Value as Json;

use crate::limits::COMPILE_STACK_BYTES;
use crate::schema::Normal;
use crate::{GrammarError, Vocabulary, error};

/// Most sub-schemas that are compiled alone to find the one at fault.
const MAX_SEARCH: usize = 64;

/// How JSON is spaced and escaped, see [`Rule::JsonSchema`](crate::Rule::JsonSchema). One way to write each string means that a
/// name that is not declared cannot be a declared one in other clothes.
pub(crate) fn json_options() -> JsonCompileOptions {
    JsonCompileOptions {
        item_separator: ", ?".to_owned(),
        key_separator: ": ?".to_owned(),
        whitespace_flexible: false,
        json_allowed_escapes: Some("nrbtf\\\"".to_owned()),
        ..JsonCompileOptions::default()
    }
}

/// Compiles a grammar on a thread of its own, whose stack is deep enough for llguidance's recursion. The reason of a failure is
/// one line.
pub(crate) fn compile(
    vocabulary: &Vocabulary,
    grammar: TopLevelGrammar,
) -> Result<Matcher, String> {
    let parser = on_deep_stack(|| {
        vocabulary
            .factory()
            .create_parser(grammar)
            .map_err(|error| one_line(&error.to_string()))
    })?;
    first_mask(parser)
}

/// A grammar that allows nothing at all is found here and not by the first request.
fn first_mask(parser: TokenParser) -> Result<Matcher, String> {
    let mut matcher = Matcher::new(Ok(parser));
    let mask = matcher.deep_clone().compute_mask_or_eos();
    match mask {
        Ok(mask) if !mask.is_zero() => Ok(matcher),
        Ok(_) => Err("no token is allowed at its start".to_owned()),
        Err(error) => {
            let accepting = matcher.is_accepting().unwrap_or(false);
            let reason = one_line(&error.to_string());
            if accepting {
                return Ok(matcher);
            }
            Err(match reason.as_str() {
                "NoExtensionBias" | "NoExtension" => "nothing matches it".to_owned(),
                _ => reason,
            })
        }
    }
}

fn on_deep_stack<T: Send>(work: impl FnOnce() -> Result<T, String> + Send) -> Result<T, String> {
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .name("grammar".to_owned())
            .stack_size(COMPILE_STACK_BYTES)
            .spawn_scoped(scope, work)
            .map_err(|error| format!("no thread to compile it: {error}"))?
            .join()
            .unwrap_or_else(|_| Err("the compiler failed".to_owned()))
    })
}

/// A message in one line: of `regex` what it calls the error, of llguidance the first line, without the state that it appends.
pub(crate) fn one_line(message: &str) -> String {
    let error = message
        .lines()
        .find_map(|line| line.strip_prefix("error: "));
    let line = error.or_else(|| message.lines().next()).unwrap_or_default();
    error::shortened(line.trim_end_matches([';', ':', ' ']))
}

/// Compiles a normalised schema. If that fails, its sub-schemas are tried alone, to say which one is at fault.
pub(crate) fn json(vocabulary: &Vocabulary, normal: &Normal) -> Result<Matcher, GrammarError> {
    let compile = |schema: &Json| {
        compile(
            vocabulary,
            TopLevelGrammar::from_json_schema(with_options(schema)),
        )
    };
    compile(&normal.schema).map_err(|reason| blame(normal, reason, |schema| compile(schema).err()))
}

/// The innermost sub-schema that fails on its own; `reason` is why the whole fails.
pub(crate) fn blame(
    normal: &Normal,
    reason: String,
    fails: impl Fn(&Json) -> Option<String>,
) -> GrammarError {
    let mut at = (normal.path.clone(), reason);
    let mut schema = &normal.schema;
    let mut tried = 0;
    'inward: loop {
        for (path, part) in normal.parts(&at.0, schema) {
            tried += 1;
            if tried > MAX_SEARCH {
                break 'inward;
            }
            if let Some(reason) = fails(&normal.alone(part)) {
                at = (path, reason);
                schema = part;
                continue 'inward;
            }
        }
        break;
    }
    GrammarError::Unenforceable {
        path: at.0,
        reason: at.1,
    }
}

/// The schema with the marks by which llguidance takes our options.
pub(crate) fn with_options(schema: &Json) -> Json {
    let mut schema = match schema {
        Json::Object(_) => schema.clone(),
        other => serde_json::json!({ "allOf": [other] }),
    };
    json_options().apply_to(&mut schema);
    schema
}
