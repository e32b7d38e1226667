//! Rules, and the automata made of them.

use std::sync::{Arc, Mutex, PoisonError};

use llguidance::api::TopLevelGrammar;
use llguidance::derivre::RegexBuilder;
use serde_json::{Value as Json, json};

use crate::lark::{literal, regex};
use crate::limits::{MAX_ALTERNATIVES, MAX_GRAMMAR_DEPTH, MAX_REGEX_BYTES, MAX_TEXT_BYTES};
use crate::{GrammarError, Vocabulary, compile, error, schema, tools};

/// What an answer must be.
#[derive(Debug, Clone, PartialEq)]
pub enum Rule {
    /// One JSON value that satisfies a schema.
    ///
    /// Properties come in the order of the schema; there is at most one blank after each `:` and `,` and none elsewhere;
    /// strings hold no control characters, and no escapes but `\" \\ \n \r \t \b \f`; integers lie within ±9·10¹⁸.
    ///
    /// Enforced: `type`, `enum`, `const`, `properties`, `required`, `additionalProperties`, `patternProperties`,
    /// `minProperties` and `maxProperties` (in common cases), `items`, `prefixItems`, `additionalItems`, `minItems`, `maxItems`, `minLength`, `maxLength`, `pattern`
    /// (without look-around), `format` (`date`, `time`, `date-time`, `uuid`, `duration`, `email`, `hostname`, `ipv4`, `ipv6`, `uri`), `minimum`, `maximum`,
    /// `exclusiveMinimum`, `exclusiveMaximum`, `multipleOf`, `anyOf`, `allOf`, `oneOf` (if its alternatives exclude each other), `$ref` within the schema
    /// (also to itself), `nullable`. Annotations are ignored, as are keywords that begin with `x-`. Any other keyword is an error.
    JsonSchema(Json),
    /// One JSON object of any kind, spaced as above.
    JsonObject,
    /// Text that a regular expression matches as a whole (syntax of the `regex` crate, no look-around).
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A grammar in llguidance's dialect of Lark, with a rule `start`. llama.cpp's GBNF is refused by name: its rules are of
    /// characters, and those of Lark are of tokens that a lexer finds, so a conversion would not mean the same.
    Lark(String),
    /// Calls of tools and nothing else, in GLM's form.
    ToolCalls {
        /// The declared tools, as in a chat request: `{"type": "function", "function": {"name", "parameters"}}`.
        tools: Vec<Json>,
        /// The one tool that must be called, by name; any if `None`.
        only: Option<String>,
        /// Whether there may be more than one call.
        parallel: bool,
    },
}

/// A compiled [`Rule`]. Cheap to clone.
#[derive(Clone)]
pub struct Grammar {
    vocabulary: Vocabulary,
    /// The automaton before any token. llguidance's is not `Sync`.
    automaton: Arc<Mutex<llguidance::Matcher>>,
    calls_tools: bool,
}

impl Grammar {
    /// Compiles a rule. Milliseconds for ordinary rules; the [limits](crate::MAX_SCHEMA_NODES) bound it for hostile ones.
    ///
    /// # Errors
    /// What cannot be enforced, by place and keyword where there is one; limits; rules that nothing satisfies.
    pub fn new(vocabulary: &Vocabulary, rule: &Rule) -> Result<Self, GrammarError> {
        let automaton = match rule {
            Rule::JsonSchema(schema) => json_schema(vocabulary, schema)?,
            Rule::JsonObject => json_schema(vocabulary, &json!({"type": "object"}))?,
            Rule::Regex(expression) => whole_regex(vocabulary, expression)?,
            Rule::Choice(choices) => choice(vocabulary, choices)?,
            Rule::Lark(text) => lark(vocabulary, text)?,
            Rule::ToolCalls {
                tools,
                only,
                parallel,
            } => tools::compile(vocabulary, tools, only.as_deref(), *parallel)?,
        };
        Ok(Self {
            vocabulary: vocabulary.clone(),
            automaton: Arc::new(Mutex::new(automaton)),
            calls_tools: matches!(rule, Rule::ToolCalls { .. }),
        })
    }

    pub(crate) fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// An automaton of its own for one answer: it shares no caches, so neither work nor limits.
    pub(crate) fn automaton(&self) -> llguidance::Matcher {
        // Cloning leaves nothing half done.
        let automaton = self
            .automaton
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        automaton.deep_clone()
    }

    pub(crate) fn calls_tools(&self) -> bool {
        self.calls_tools
    }
}

impl std::fmt::Debug for Grammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammar")
            .field("vocabulary", &self.vocabulary)
            .field("calls_tools", &self.calls_tools)
            .finish_non_exhaustive()
    }
}

fn json_schema(
    vocabulary: &Vocabulary,
    schema: &Json,
) -> Result<llguidance::Matcher, GrammarError> {
    let normal = schema::normalise(schema, "#")?;
    compile::json(vocabulary, &normal)
}

fn whole_regex(
    vocabulary: &Vocabulary,
    expression: &str,
) -> Result<llguidance::Matcher, GrammarError> {
    limit("the regular expression", expression.len(), MAX_REGEX_BYTES)?;
    let fault = |reason: String| GrammarError::Regex {
        regex: error::shortened(expression),
        reason,
    };
    if expression.is_empty() {
        return Err(fault("it is empty".to_owned()));
    }
    RegexBuilder::new()
        .mk_regex(&llguidance::regex_to_lark(expression, ""))
        .map_err(|error| fault(compile::one_line(&error.to_string())))?;
    let text = format!("start: TEXT\nTEXT: {}\n", regex(expression, ""));
    compile::compile(vocabulary, TopLevelGrammar::from_lark(text)).map_err(fault)
}

fn choice(
    vocabulary: &Vocabulary,
    choices: &[String],
) -> Result<llguidance::Matcher, GrammarError> {
    limit("the number of choices", choices.len(), MAX_ALTERNATIVES)?;
    let bytes = choices.iter().map(String::len).sum();
    limit("the text of the choices", bytes, MAX_TEXT_BYTES)?;
    if choices.is_empty() {
        return Err(GrammarError::NoChoice);
    }
    let alternatives: Vec<String> = choices.iter().map(|text| literal(text)).collect();
    let text = format!("start: TEXT\nTEXT: {}\n", alternatives.join(" | "));
    compile::compile(vocabulary, TopLevelGrammar::from_lark(text))
        .map_err(|reason| GrammarError::Grammar { reason })
}

fn lark(vocabulary: &Vocabulary, text: &str) -> Result<llguidance::Matcher, GrammarError> {
    limit("the grammar's text", text.len(), MAX_TEXT_BYTES)?;
    let fault = |reason: String| GrammarError::Grammar { reason };
    let deepest = text.bytes().scan(0usize, |depth, byte| {
        match byte {
            b'(' | b'[' | b'{' => *depth += 1,
            b')' | b']' | b'}' => *depth = depth.saturating_sub(1),
            _ => {}
        }
        Some(*depth)
    });
    limit(
        "the nesting of brackets in the grammar",
        deepest.max().unwrap_or(0),
        MAX_GRAMMAR_DEPTH,
    )?;
    for (word, instead) in [
        (
            "::=",
            "this is llama.cpp's GBNF, write it in Lark: `start: item+` for `root ::= item+`, /[a-z]/ for [a-z]",
        ),
        ("%json", "send the schema as a schema"),
        ("allow_invalid_utf8", "an answer is text"),
    ] {
        if text.contains(word) {
            return Err(fault(format!("`{word}` is not supported; {instead}")));
        }
    }
    compile::compile(vocabulary, TopLevelGrammar::from_lark(text.to_owned())).map_err(fault)
}

/// An error if `found` is more than `limit`.
pub(crate) fn limit(what: &str, found: usize, limit: usize) -> Result<(), GrammarError> {
    if found > limit {
        return Err(GrammarError::TooLarge {
            what: format!("{what} ({found})"),
            limit,
        });
    }
    Ok(())
}
