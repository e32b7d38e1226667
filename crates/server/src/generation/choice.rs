//! One answer on its way: tokens in, pieces out, and the decision when it is over.
//!
//! Stop strings are looked for in the content, after reasoning and tool calls are told apart: a stop string neither cuts a thought
//! nor a call. Text that may still become a stop string is held back, and so is what may still become a character.

use std::sync::Arc;

use glim_text::{ControlTokens, Detokenizer, GlmParser, Piece, StopStrings, TokenId, Tokenizer};
use serde_json::Value as Json;

use super::update::{Delta, Finish, FinishReason, StopReason, TokenLogprob};

/// How an answer is read.
#[derive(Debug, Clone)]
pub(crate) struct Reading {
    pub(crate) form: Form,
    /// Texts that end the content.
    pub(crate) stops: Vec<String>,
    /// What ended the content stays in it.
    pub(crate) include_stop: bool,
    /// Tokens that end it, of the caller's own.
    pub(crate) stop_tokens: Vec<TokenId>,
    /// Reasoning is generated but not shown.
    pub(crate) hide_reasoning: bool,
    /// The answer ends after its first call.
    pub(crate) one_call: bool,
    /// The caller has named the function to be called: then calls are no reason of their own to finish.
    pub(crate) named_call: bool,
}

/// What the tokens mean.
#[derive(Debug, Clone)]
pub(crate) enum Form {
    /// All is content.
    Raw(ControlTokens),
    /// Reasoning, content and calls.
    Chat {
        starts_in_reasoning: bool,
        /// Those that may be called.
        tools: Option<Arc<Vec<Json>>>,
    },
}

#[derive(Debug)]
enum Reader {
    Raw(Detokenizer),
    Chat(Box<GlmParser>),
}

impl Reader {
    fn push(&mut self, token: TokenId) -> Vec<Piece> {
        match self {
            Self::Raw(detokenizer) => vec![Piece::Content(detokenizer.push(token))],
            Self::Chat(parser) => parser.push(token),
        }
    }

    fn finish(&mut self) -> Vec<Piece> {
        match self {
            Self::Raw(detokenizer) => vec![Piece::Content(detokenizer.finish())],
            Self::Chat(parser) => parser.finish(),
        }
    }

    fn in_reasoning(&self) -> bool {
        match self {
            Self::Raw(_) => false,
            Self::Chat(parser) => parser.in_reasoning(),
        }
    }
}

/// One of the answers of a generation.
#[derive(Debug)]
pub(crate) struct Choice {
    index: u32,
    reader: Reader,
    reading: Reading,
    stops: StopStrings,
    tokens: usize,
    reasoning_tokens: usize,
    calls: usize,
    /// Nothing more is taken.
    over: bool,
}

/// What a token did.
#[derive(Debug, Default)]
pub(crate) struct Step {
    pub(crate) delta: Delta,
    /// Set if the answer is whole: the engine need not go on with it.
    pub(crate) finish: Option<Finish>,
}

impl Choice {
    pub(crate) fn new(index: u32, reading: Reading, tokenizer: &Arc<Tokenizer>) -> Self {
        let reader = match &reading.form {
            Form::Raw(control) => Reader::Raw(Detokenizer::new(tokenizer.clone(), *control)),
            Form::Chat {
                starts_in_reasoning,
                tools,
            } => Reader::Chat(Box::new(GlmParser::new(
                tokenizer.clone(),
                *starts_in_reasoning,
                tools.as_ref().map(|tools| tools.as_slice()),
            ))),
        };
        Self {
            index,
            reader,
            stops: StopStrings::new(reading.stops.clone()),
            reading,
            tokens: 0,
            reasoning_tokens: 0,
            calls: 0,
            over: false,
        }
    }

    /// Tokens so far.
    pub(crate) fn tokens(&self) -> usize {
        self.tokens
    }

    /// Tokens of reasoning so far.
    pub(crate) fn reasoning_tokens(&self) -> usize {
        self.reasoning_tokens
    }

    /// Takes a token.
    pub(crate) fn push(&mut self, token: TokenId, logprob: Option<TokenLogprob>) -> Step {
        let mut step = self.step();
        if self.over {
            return step;
        }
        self.tokens += 1;
        if self.reader.in_reasoning() {
            self.reasoning_tokens += 1;
        }
        step.delta.token_ids.push(token);
        step.delta.logprobs.extend(logprob);
        let pieces = self.reader.push(token);
        step.finish = self.take(pieces, &mut step.delta);
        step
    }

    /// The engine has ended the answer, at this token of its own if there was one.
    pub(crate) fn end(&mut self, at_limit: bool, stop_token: Option<TokenId>) -> Step {
        let mut step = self.step();
        if self.over {
            return step;
        }
        let pieces = self.reader.finish();
        step.finish = self.take(pieces, &mut step.delta).or_else(|| {
            push_content(self.stops.finish(), &mut step.delta.pieces);
            let own = stop_token.filter(|token| self.reading.stop_tokens.contains(token));
            let reason = match (at_limit, self.calls) {
                (true, _) => FinishReason::Length,
                (false, 0) => FinishReason::Stop,
                (false, _) => self.reason_of_calls(),
            };
            Some(self.finish(reason, own.map(StopReason::Token)))
        });
        step
    }

    fn step(&self) -> Step {
        let delta = Delta {
            choice: self.index,
            ..Delta::default()
        };
        Step {
            delta,
            finish: None,
        }
    }

    /// Passes pieces on, up to where the answer ends.
    fn take(&mut self, pieces: Vec<Piece>, delta: &mut Delta) -> Option<Finish> {
        for piece in pieces {
            match piece {
                Piece::Reasoning(text) => {
                    if !self.reading.hide_reasoning && !text.is_empty() {
                        delta.pieces.push(Piece::Reasoning(text));
                    }
                }
                Piece::Content(text) => {
                    let stopped = self.stops.push(&text);
                    push_content(stopped.text, &mut delta.pieces);
                    if let Some(stop) = stopped.matched {
                        let stop = self.reading.stops[stop].clone();
                        if self.reading.include_stop {
                            push_content(stop.clone(), &mut delta.pieces);
                        }
                        let reason = match self.calls {
                            0 => FinishReason::Stop,
                            _ => self.reason_of_calls(),
                        };
                        return Some(self.finish(reason, Some(StopReason::Text(stop))));
                    }
                }
                Piece::CallStart { .. } => {
                    // No stop string reaches across a call.
                    push_content(self.stops.finish(), &mut delta.pieces);
                    delta.pieces.push(piece);
                }
                Piece::CallArguments(_) => delta.pieces.push(piece),
                Piece::CallEnd { .. } => {
                    delta.pieces.push(piece);
                    self.calls += 1;
                    if self.reading.one_call {
                        return Some(self.finish(self.reason_of_calls(), None));
                    }
                }
            }
        }
        None
    }

    fn reason_of_calls(&self) -> FinishReason {
        match self.reading.named_call {
            true => FinishReason::Stop,
            false => FinishReason::ToolCalls,
        }
    }

    fn finish(&mut self, reason: FinishReason, stop: Option<StopReason>) -> Finish {
        self.over = true;
        Finish {
            reason,
            stop,
            completion_tokens: self.tokens,
            reasoning_tokens: self.reasoning_tokens,
        }
    }
}

fn push_content(text: String, pieces: &mut Vec<Piece>) {
    if !text.is_empty() {
        pieces.push(Piece::Content(text));
    }
}
