//! The errors of this crate. Each message says what, where, and what to do.

/// Why a rule cannot be enforced.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GrammarError {
    /// A keyword that this crate cannot enforce.
    #[error("{path}: the keyword `{keyword}` {reason}, so the schema cannot be enforced; {advice}")]
    Keyword {
        /// Where the keyword stands, as a JSON pointer.
        path: String,
        /// The keyword.
        keyword: String,
        /// What is the matter with it.
        reason: String,
        /// What to do.
        advice: &'static str,
    },

    /// Something in a schema that is not as JSON schema has it.
    #[error("{path} is {found}, expected {expected}")]
    Schema {
        /// Where, as a JSON pointer.
        path: String,
        /// What stands there.
        found: String,
        /// What was expected.
        expected: &'static str,
    },

    /// No value satisfies the schema, or it was too hard to find out.
    #[error("{path}: the schema cannot be enforced: {reason}")]
    Unenforceable {
        /// The innermost sub-schema that is at fault, as a JSON pointer.
        path: String,
        /// Why.
        reason: String,
    },

    /// A limit is exceeded.
    #[error("{what} exceeds the limit of {limit}; make it smaller")]
    TooLarge {
        /// What is too large.
        what: String,
        /// The most that is accepted.
        limit: usize,
    },

    /// A regular expression that is none, or uses what cannot be enforced.
    #[error("the regular expression {regex:?} cannot be enforced: {reason}")]
    Regex {
        /// The expression, shortened.
        regex: String,
        /// Why.
        reason: String,
    },

    /// A choice among nothing.
    #[error("the list of choices is empty; give at least one")]
    NoChoice,

    /// A grammar that does not compile.
    #[error("the grammar does not compile: {reason}")]
    Grammar {
        /// Where and why.
        reason: String,
    },

    /// A tool that cannot be called by a grammar.
    #[error("tools[{index}] {reason}")]
    Tool {
        /// Its place in the list of tools.
        index: usize,
        /// What is wrong.
        reason: String,
    },

    /// A call is demanded of a tool that is not declared.
    #[error("no tool is named {name:?}; declared are {declared}")]
    NoSuchTool {
        /// The name asked for.
        name: String,
        /// The names there are.
        declared: String,
    },

    /// The vocabulary lacks what the rule needs.
    #[error("the model's vocabulary {reason}")]
    Vocabulary {
        /// What is missing.
        reason: String,
    },
}

/// Why an answer cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MatchError {
    /// A token came that the grammar does not allow.
    #[error("token {token} is not allowed by the grammar here")]
    Forbidden {
        /// The token's id.
        token: u32,
    },
    /// The automaton gave up: a limit on its work or memory.
    #[error("the grammar cannot be followed any further: {reason}")]
    Exhausted {
        /// The automaton's own words.
        reason: String,
    },
}

/// The name of a JSON value's type, for messages.
pub(crate) fn kind(value: &serde_json::Value) -> String {
    use serde_json::Value::{Array, Bool, Null, Number, Object, String};
    match value {
        Null => "null",
        Bool(_) => "a boolean",
        Number(_) => return format!("the number {value}"),
        String(_) => "a string",
        Array(_) => "an array",
        Object(_) => "an object",
    }
    .to_owned()
}

/// The beginning of a text from outside, for messages.
pub(crate) fn shortened(text: &str) -> String {
    const MOST: usize = 80;
    match text.char_indices().nth(MOST) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}
