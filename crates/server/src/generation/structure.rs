//! What an answer must be: from the several ways in which requests say so to one rule of a grammar.

use glim_grammar::{Grammar, GrammarError, Matcher, Rule};
use serde_json::Value as Json;

use super::constraint::{Constraint, Grammatical, ReasoningBudget};
use crate::api::fields::{GuidedFields, ResponseFormat, StructuredOutputs};
use crate::error::ApiError;
use crate::model::Model;

/// A rule, and the field of the request that it comes from.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) param: &'static str,
    pub(crate) rule: Rule,
}

/// The rule that a request sets for its answer, if any.
///
/// # Errors
/// If it sets several.
pub(crate) fn wanted(
    format: Option<&ResponseFormat>,
    structured: Option<&StructuredOutputs>,
    guided: &GuidedFields,
) -> Result<Option<Wanted>, ApiError> {
    let mut found: Vec<Wanted> = Vec::new();
    let mut add = |param, rule| found.push(Wanted { param, rule });
    match format {
        None | Some(ResponseFormat::Text) => {}
        Some(ResponseFormat::JsonObject { schema: None }) => {
            add("response_format", Rule::JsonObject);
        }
        Some(ResponseFormat::JsonObject {
            schema: Some(schema),
        }) => add("response_format", Rule::JsonSchema(schema.clone())),
        Some(ResponseFormat::JsonSchema { json_schema }) => add(
            "response_format",
            Rule::JsonSchema(json_schema.schema.clone()),
        ),
    }
    if let Some(outputs) = structured {
        let param = "structured_outputs";
        if let Some(schema) = &outputs.json {
            add(param, Rule::JsonSchema(parsed(param, schema)?));
        }
        if outputs.json_object == Some(true) {
            add(param, Rule::JsonObject);
        }
        if let Some(regex) = &outputs.regex {
            add(param, Rule::Regex(regex.clone()));
        }
        if let Some(choice) = &outputs.choice {
            add(param, Rule::Choice(choice.clone()));
        }
        if let Some(grammar) = &outputs.grammar {
            add(param, Rule::Lark(grammar.clone()));
        }
    }
    if let Some(schema) = &guided.guided_json {
        add("guided_json", Rule::JsonSchema(parsed("guided_json", schema)?));
    }
    if let Some(regex) = &guided.guided_regex {
        add("guided_regex", Rule::Regex(regex.clone()));
    }
    if let Some(choice) = &guided.guided_choice {
        add("guided_choice", Rule::Choice(choice.clone()));
    }
    if let Some(grammar) = &guided.guided_grammar {
        add("guided_grammar", Rule::Lark(grammar.clone()));
    }
    if found.len() > 1 {
        let params: Vec<_> = found.iter().map(|wanted| wanted.param).collect();
        return Err(ApiError::invalid(
            params[1],
            format!(
                "the answer is bound {} times ({}): expected one rule at most",
                found.len(),
                params.join(", ")
            ),
        ));
    }
    Ok(found.pop())
}

/// A schema, or the text of one.
fn parsed(param: &'static str, schema: &Json) -> Result<Json, ApiError> {
    match schema {
        Json::String(text) => serde_json::from_str(text).map_err(|error| {
            ApiError::invalid(param, format!("{param} is a string that is not JSON: {error}"))
        }),
        schema => Ok(schema.clone()),
    }
}

/// What else bears on the tokens of an answer.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Bounds {
    pub(crate) starts_in_reasoning: bool,
    /// Tokens of reasoning.
    pub(crate) budget: Option<usize>,
    /// Tools may be called instead of giving the bound answer.
    pub(crate) may_call: bool,
}

/// Compiles what binds an answer.
///
/// # Errors
/// A rule that cannot be enforced, with the reason: never a free answer.
pub(crate) fn constraint(
    model: &Model,
    wanted: Option<Wanted>,
    bounds: Bounds,
) -> Result<Constraint, ApiError> {
    let grammar = wanted.map(|Wanted { param, rule }| {
        let refuse = |error: GrammarError| {
            ApiError::invalid(param, error.to_string()).with_code("unsupported_grammar")
        };
        let vocabulary = model.vocabulary().map_err(refuse)?;
        let grammar = Grammar::new(vocabulary, &rule).map_err(refuse)?;
        let matcher = Matcher::new(&grammar, bounds.starts_in_reasoning);
        let or_call = model.tags.tool_call.filter(|_| bounds.may_call);
        Ok::<_, ApiError>(Grammatical::new(matcher, or_call))
    });
    let budget = match bounds.budget {
        None => None,
        Some(tokens) => {
            let budget = ReasoningBudget::new(tokens, bounds.starts_in_reasoning, &model.tags);
            Some(budget.ok_or_else(|| {
                ApiError::invalid(
                    "thinking_token_budget",
                    "thinking_token_budget has no effect on this model: its vocabulary has no </think>",
                )
            })?)
        }
    };
    Ok(Constraint {
        grammar: grammar.transpose()?,
        budget,
    })
}
