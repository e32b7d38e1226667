//! Stub.
#![forbid(unsafe_code)]
#![allow(missing_docs)]
use std::sync::Arc;
#[derive(Debug, Clone)]
pub struct Vocabulary;
#[derive(Debug, Clone, thiserror::Error)]
#[error("not there yet")]
pub struct GrammarError;
#[derive(Debug, Clone, thiserror::Error)]
#[error("not there yet")]
pub struct MatchError;
#[derive(Debug, Clone)]
pub enum Rule { JsonSchema(serde_json::Value), JsonObject, Regex(String), Choice(Vec<String>), Lark(String), ToolCalls { tools: Vec<serde_json::Value>, only: Option<String>, parallel: bool } }
#[derive(Debug, Clone)]
pub struct Grammar;
#[derive(Debug, Clone)]
pub struct Matcher;
impl Vocabulary { pub fn new(_: &Arc<glim_text::Tokenizer>, _: usize) -> Result<Self, GrammarError> { Ok(Self) } }
impl Grammar { pub fn new(_: &Vocabulary, _: &Rule) -> Result<Self, GrammarError> { Err(GrammarError) } }
impl Matcher { pub fn new(_: &Grammar, _: bool) -> Self { Self } pub fn restrict(&mut self, _: &mut [u32]) -> Result<(), MatchError> { Ok(()) } pub fn accept(&mut self, _: glim_text::TokenId) -> Result<(), MatchError> { Ok(()) } pub fn at_start(&self) -> bool { false } }
