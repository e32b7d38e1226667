//! A loaded model that answers: from ids or a conversation to printed text, and the figures about it.

use std::ops::ControlFlow;
use std::time::Duration;

use glim_engine::{Engine, FinishReason, GenerateRequest, Generation, SamplingParams};
use glim_text::{ChatRequest, GlmParser, TokenId, starts_in_reasoning};
use serde_json::{Value as Json, json};

use crate::answer::{Answer, Decoder, Printer, Show, ToolCall};
use crate::exit::Failure;
use crate::interrupt::Interrupt;
use crate::loader::Text;
use crate::prompt;
use crate::ui::Ui;

/// How tokens are drawn, and when to stop.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Settings {
    pub(crate) sampling: SamplingParams,
    /// `None`: up to the end of the context.
    pub(crate) max_tokens: Option<usize>,
    /// Do not stop at the model's end tokens.
    pub(crate) ignore_eos: bool,
}

/// A loaded model and how to use it.
pub(crate) struct Session<'a> {
    pub(crate) ui: &'a Ui,
    pub(crate) text: Text,
    pub(crate) engine: Engine,
    pub(crate) interrupt: Interrupt,
    /// Show the reasoning even where no person reads along.
    pub(crate) show_reasoning: bool,
}

impl Session<'_> {
    /// Answers a conversation.
    pub(crate) fn answer(
        &mut self,
        request: &ChatRequest,
        settings: &Settings,
    ) -> Result<(Answer, Generation), Failure> {
        let rendered = prompt::render(&self.text, request, self.ui)?;
        let tokenizer = &self.text.model.tokenizer;
        let ids = tokenizer.encode_rendered(&rendered)?;
        let parser = GlmParser::new(
            tokenizer.clone(),
            starts_in_reasoning(&rendered),
            request.tools.as_deref(),
        );
        self.generate(ids, settings, self.show(), Decoder::chat(parser))
    }

    /// What of a chat's answer is printed while it comes.
    fn show(&self) -> Show {
        match (
            self.show_reasoning || self.ui.is_terminal(),
            self.ui.is_colored(),
        ) {
            _ if self.ui.json => Show::Nothing,
            (false, _) => Show::Content,
            (true, false) => Show::Tagged,
            (true, true) => Show::Dimmed,
        }
    }

    /// Generates from token ids, printing as it goes.
    pub(crate) fn generate(
        &mut self,
        prompt: Vec<TokenId>,
        settings: &Settings,
        show: Show,
        decoder: Decoder,
    ) -> Result<(Answer, Generation), Failure> {
        let tokenizer = &self.text.model.tokenizer;
        let request = GenerateRequest {
            sampling: settings.sampling.clone(),
            max_tokens: settings.max_tokens,
            stop_tokens: if settings.ignore_eos {
                Vec::new()
            } else {
                tokenizer.stop_ids().to_vec()
            },
            vocab_limit: Some(tokenizer.vocab_size()),
            ..GenerateRequest::new(prompt)
        };
        self.interrupt.clear();
        let mut printer = Printer::new(self.ui, show, decoder);
        let mut printed = Ok(());
        let generation = self.engine.generate(&request, |id| {
            printed = printer.push(id);
            if printed.is_ok() && !self.interrupt.is_set() {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        })?;
        printed?;
        Ok((printer.finish()?, generation))
    }

    /// Ends a command that gave one answer.
    pub(crate) fn report(&self, answer: &Answer, generation: &Generation) -> Result<(), Failure> {
        self.detail(generation);
        if self.ui.json {
            self.ui.print_json(&summary(answer, generation))
        } else {
            Ok(())
        }
    }

    /// Tells the speed, with `-v`.
    pub(crate) fn detail(&self, generation: &Generation) {
        self.ui.detail(|| {
            let rate = |rate: Option<f64>| {
                rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1} tok/s"))
            };
            format!(
                "prompt {} tokens, prefill {}; answer {} tokens, decode {}; finish: {}",
                generation.prompt_tokens,
                rate(prefill_rate(generation)),
                generation.tokens.len(),
                rate(decode_rate(generation)),
                generation.finish_reason.as_str()
            )
        });
    }

    /// A person who sees nothing should know why.
    pub(crate) fn explain_empty(&self, answer: &Answer, generation: &Generation) {
        let cut = generation.finish_reason == FinishReason::Length;
        self.ui.note(match (answer.reasoning.is_empty(), cut) {
            (true, _) => "note: the answer is empty",
            (false, true) => "note: the tokens ran out while the model was reasoning: raise --max-tokens or --context, or see --show-reasoning",
            (false, false) => "note: the model reasoned but said nothing: see --show-reasoning",
        });
    }
}

/// The object of `--json`.
fn summary(answer: &Answer, generation: &Generation) -> Json {
    let finish_reason = match generation.finish_reason {
        FinishReason::Stop if !answer.tool_calls.is_empty() => "tool_calls",
        reason => reason.as_str(),
    };
    json!({
        "text": answer.text,
        "reasoning": answer.reasoning,
        "tool_calls": answer.tool_calls.iter().map(ToolCall::to_json).collect::<Vec<_>>(),
        "token_ids": generation.tokens.iter().map(|id| id.0).collect::<Vec<_>>(),
        "prompt_tokens": generation.prompt_tokens,
        "completion_tokens": generation.tokens.len(),
        "finish_reason": finish_reason,
        "prefill_tok_s": prefill_rate(generation),
        "decode_tok_s": decode_rate(generation),
    })
}

/// Computed tokens of the prompt for each second until the first token.
fn prefill_rate(generation: &Generation) -> Option<f64> {
    let computed = generation.prompt_tokens - generation.cached_tokens;
    rate(computed, generation.prefill)
}

/// Decode steps for each second; `None` if there was none.
fn decode_rate(generation: &Generation) -> Option<f64> {
    rate(generation.decode_steps, generation.decode)
}

fn rate(n: usize, time: Duration) -> Option<f64> {
    (n > 0 && !time.is_zero()).then(|| n as f64 / time.as_secs_f64())
}
