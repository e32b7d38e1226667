//! Which tokens an answer may go on with: JSON schemas, regular expressions, choices, grammars, tool calls.
//!
//! A [`Rule`] says what the answer must be. [`Grammar::new`] makes of it an automaton over the bytes of a [`Vocabulary`], or says
//! what cannot be enforced and where: a rule never becomes free text. A [`Matcher`] follows one answer, token by token, and
//! clears the bits of the tokens that may not come next. Reasoning stays free: a matcher binds the answer from the first token
//! after `</think>`. Knows tokenizers and schemas; does not know what a request, a model or a server is.
//!
//! The automaton is that of [llguidance](https://docs.rs/llguidance): an Earley parser whose lexer is a lazily built DFA of
//! derivatives. It works on bytes, so a character may span tokens. This crate decides what goes in: it follows a schema by
//! keyword ([`Rule::JsonSchema`] says which are known), refuses what llguidance would ignore or get wrong, and bounds the work.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use glim_grammar::{Grammar, Matcher, Rule, Vocabulary};
//!
//! let model = glim_text::TextModel::from_hf("path/to/checkpoint".as_ref())?;
//! let vocabulary = Vocabulary::new(&model.tokenizer, 151_552)?;
//! let rule = Rule::JsonSchema(serde_json::json!({"type": "integer", "minimum": 3}));
//! let grammar = Grammar::new(&vocabulary, &rule)?;
//! let mut matcher = Matcher::new(&grammar, false);
//! let mut mask = vec![u32::MAX; vocabulary.mask_words()];
//! matcher.restrict(&mut mask)?;
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod compile;
mod error;
mod grammar;
mod lark;
mod limits;
mod matcher;
mod schema;
mod tools;
mod vocabulary;

pub use error::{GrammarError, MatchError};
pub use grammar::{Grammar, Rule};
pub use limits::*;
pub use matcher::Matcher;
pub use vocabulary::Vocabulary;
