//! `glim run`: generate from a prompt, or chat in the terminal.

use std::io::{self, BufRead, IsTerminal};
use std::ops::ControlFlow;

use clap::Args;
use clap::builder::RangedU64ValueParser;
use glim_engine::{Engine, FinishReason, GenerateRequest, Generation, SamplingParams};
use glim_text::{ChatRequest, GlmParser, Special, TokenId, starts_in_reasoning};
use serde_json::{Value as Json, json};

use crate::answer::{Answer, Decoder, Printer, Show, ToolCall};
use crate::exit::{Exit, Failure};
use crate::loader::{self, ModelArg, Text};
use crate::placement::Placement;
use crate::prompt::{self, ChatArgs};
use crate::ui::Ui;

const EXAMPLES: &str = "\
The prompt is -p, or what is piped into stdin; in a terminal without -p a chat begins (end it with Ctrl-D). \
Piped stdout gets the answer only; a terminal also gets the reasoning before it.

Examples:
  glim run -p 'What is 27 + 58?'
  glim run model.gguf --system 'Be brief.' -p 'Name three rivers.' --temperature 0.8 --seed 7
  glim run --messages chat.json --tools tools.json --json
  glim run --raw -p 'Once upon a time' --max-tokens 50";

/// Options of `glim run`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    model: ModelArg,
    /// The user's message (with --raw: the text to continue)
    #[arg(short, long, value_name = "TEXT", conflicts_with = "messages")]
    prompt: Option<String>,
    /// System message before the prompt
    #[arg(long, value_name = "TEXT", conflicts_with = "messages")]
    system: Option<String>,
    /// Continue the prompt as it is, without a chat template; special tokens in it are matched
    #[arg(long, conflicts_with_all = ["messages", "system", "tools", "template", "no_think", "template_kwarg", "show_reasoning"])]
    raw: bool,
    #[command(flatten)]
    chat: ChatArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// Print the reasoning too, within <think> tags, where stdout is not a terminal
    #[arg(long, conflicts_with = "json")]
    show_reasoning: bool,
    /// Longest sequence, prompt and answer, in tokens [default: the model's limit, at most 8192]
    #[arg(long, value_name = "TOKENS", value_parser = RangedU64ValueParser::<usize>::new().range(1..), help_heading = "Where it runs")]
    context: Option<usize>,
    #[command(flatten)]
    placement: Placement,
}

/// How tokens are drawn, and when to stop.
#[derive(Debug, Args)]
struct SamplingArgs {
    /// 0 always takes the likeliest token, so that a prompt has one answer; --top-k, --top-p and --seed matter above 0 only
    #[arg(
        long,
        value_name = "T",
        default_value_t = 0.0,
        allow_negative_numbers = true,
        help_heading = "Sampling"
    )]
    temperature: f32,
    /// Draw among this many likeliest tokens; 0: among all
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Sampling")]
    top_k: u32,
    /// Draw among the likeliest tokens that together reach this probability
    #[arg(
        long,
        value_name = "P",
        default_value_t = 1.0,
        allow_negative_numbers = true,
        help_heading = "Sampling"
    )]
    top_p: f32,
    /// Equal seeds give equal answers
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Sampling")]
    seed: u64,
    /// Tokens to generate at most [default: up to the end of the context]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..), help_heading = "Sampling")]
    max_tokens: Option<usize>,
    /// Do not stop at the model's end tokens
    #[arg(long, help_heading = "Sampling")]
    ignore_eos: bool,
}

impl SamplingArgs {
    fn params(&self) -> SamplingParams {
        SamplingParams {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            seed: self.seed,
        }
    }
}

/// What to generate from.
enum Prompt {
    Raw(String),
    Chat(ChatRequest),
    /// A conversation that is typed line by line.
    Typed(ChatRequest),
}

pub(crate) fn run(args: RunArgs, ui: &Ui) -> Result<Exit, Failure> {
    args.placement.check()?;
    let checkpoint = args.model.checkpoint()?;
    let prompt = read_prompt(&args, ui)?;
    let template = args.chat.read_template()?;
    let mut text = loader::text_of(&checkpoint)?;
    if let Some(template) = template {
        text = text.with_template(&template)?;
    }
    let engine = loader::engine(&checkpoint, &args.placement, args.context, ui)?;
    let mut session = Session {
        args: &args,
        ui,
        text,
        engine,
    };
    match prompt {
        Prompt::Raw(prompt) => session.raw(&prompt)?,
        Prompt::Chat(request) => session.once(&request)?,
        Prompt::Typed(request) => session.converse(request, io::stdin().lock())?,
    }
    Ok(Exit::Ok)
}

/// Decides where the prompt comes from, and reads it before the weights are loaded.
fn read_prompt(args: &RunArgs, ui: &Ui) -> Result<Prompt, Failure> {
    let messages = |prompt: Option<String>| -> Vec<Json> {
        let message = |role: &str, content: String| json!({ "role": role, "content": content });
        let system = args.system.clone().map(|text| message("system", text));
        system
            .into_iter()
            .chain(prompt.map(|text| message("user", text)))
            .collect()
    };
    if args.chat.messages.is_some() {
        return Ok(Prompt::Chat(args.chat.request(Vec::new(), ui)?));
    }
    let prompt = match &args.prompt {
        Some(prompt) => prompt.clone(),
        None if !io::stdin().is_terminal() => piped_prompt(args.raw)?,
        None if args.raw || ui.json => {
            let option = if args.raw { "--raw" } else { "--json" };
            return Err(Failure::usage(format!("{option} needs a prompt"))
                .hint("give it with -p TEXT, or pipe it into stdin"));
        }
        None => return Ok(Prompt::Typed(args.chat.request(messages(None), ui)?)),
    };
    match args.raw {
        true => Ok(Prompt::Raw(prompt)),
        false => Ok(Prompt::Chat(args.chat.request(messages(Some(prompt)), ui)?)),
    }
}

/// All of stdin. The line end that `echo` adds is no part of a message; raw text is taken to the letter.
fn piped_prompt(raw: bool) -> Result<String, Failure> {
    let mut prompt = prompt::read_stdin()?;
    if !raw && prompt.ends_with('\n') {
        prompt.pop();
        if prompt.ends_with('\r') {
            prompt.pop();
        }
    }
    if prompt.is_empty() {
        return Err(Failure::usage("there is no prompt: stdin is empty")
            .hint("give one with -p TEXT, or pipe it into stdin"));
    }
    Ok(prompt)
}

/// A loaded model and how to use it.
struct Session<'a> {
    args: &'a RunArgs,
    ui: &'a Ui,
    text: Text,
    engine: Engine,
}

impl Session<'_> {
    /// Continues plain text.
    fn raw(&mut self, prompt: &str) -> Result<(), Failure> {
        let ids = self
            .text
            .model
            .tokenizer
            .encode(prompt, Special::Template)?;
        let show = if self.ui.json {
            Show::Nothing
        } else {
            Show::Content
        };
        let decoder = Decoder::raw(self.text.model.tokenizer.clone());
        let (answer, generation) = self.generate(ids, show, decoder)?;
        self.report(&answer, &generation)
    }

    /// Answers one conversation.
    fn once(&mut self, request: &ChatRequest) -> Result<(), Failure> {
        let (answer, generation) = self.answer(request)?;
        self.report(&answer, &generation)?;
        if !self.ui.json && answer.text.is_empty() && answer.tool_calls.is_empty() {
            self.explain_empty(&answer, &generation);
        }
        Ok(())
    }

    /// Answers line by line, keeping the history.
    fn converse(&mut self, mut request: ChatRequest, input: impl BufRead) -> Result<(), Failure> {
        self.ui.note("Chat: a line is a message; Ctrl-D ends.");
        self.ui.print("> ")?;
        for line in input.lines() {
            let line = line.map_err(|error| {
                Failure::new(
                    Exit::BadData,
                    format!("the terminal cannot be read: {error}"),
                )
            })?;
            if !line.trim().is_empty() {
                request
                    .messages
                    .push(json!({ "role": "user", "content": line }));
                let (answer, generation) = self.answer(&request)?;
                self.detail(&generation);
                request.messages.push(answer.to_message());
            }
            self.ui.print("> ")?;
        }
        self.ui.print("\n")
    }

    fn answer(&mut self, request: &ChatRequest) -> Result<(Answer, Generation), Failure> {
        let rendered = prompt::render(&self.text, request, self.ui)?;
        let tokenizer = &self.text.model.tokenizer;
        let ids = tokenizer.encode_rendered(&rendered)?;
        let parser = GlmParser::new(
            tokenizer.clone(),
            starts_in_reasoning(&rendered),
            request.tools.as_deref(),
        );
        self.generate(ids, self.show(), Decoder::chat(parser))
    }

    /// What of a chat's answer is printed while it comes.
    fn show(&self) -> Show {
        match (
            self.args.show_reasoning || self.ui.is_terminal(),
            self.ui.is_colored(),
        ) {
            _ if self.ui.json => Show::Nothing,
            (false, _) => Show::Content,
            (true, false) => Show::Tagged,
            (true, true) => Show::Dimmed,
        }
    }

    fn generate(
        &mut self,
        prompt: Vec<TokenId>,
        show: Show,
        decoder: Decoder,
    ) -> Result<(Answer, Generation), Failure> {
        let tokenizer = &self.text.model.tokenizer;
        let sampling = &self.args.sampling;
        let request = GenerateRequest {
            prompt,
            sampling: sampling.params(),
            max_tokens: sampling.max_tokens,
            stop_tokens: if sampling.ignore_eos {
                Vec::new()
            } else {
                tokenizer.stop_ids().to_vec()
            },
            vocab_limit: Some(tokenizer.vocab_size()),
        };
        let mut printer = Printer::new(self.ui, show, decoder);
        let mut printed = Ok(());
        let generation = self.engine.generate(&request, |id| {
            printed = printer.push(id);
            if printed.is_ok() {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        })?;
        printed?;
        Ok((printer.finish()?, generation))
    }

    fn report(&self, answer: &Answer, generation: &Generation) -> Result<(), Failure> {
        self.detail(generation);
        if self.ui.json {
            self.ui.print_json(&summary(answer, generation))
        } else {
            Ok(())
        }
    }

    fn detail(&self, generation: &Generation) {
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
    fn explain_empty(&self, answer: &Answer, generation: &Generation) {
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

/// Tokens of the prompt for each second until the first token.
fn prefill_rate(generation: &Generation) -> Option<f64> {
    rate(generation.prompt_tokens, generation.prefill)
}

/// Decode steps for each second; `None` if there was none.
fn decode_rate(generation: &Generation) -> Option<f64> {
    rate(generation.decode_steps, generation.decode)
}

fn rate(n: usize, time: std::time::Duration) -> Option<f64> {
    (n > 0 && !time.is_zero()).then(|| n as f64 / time.as_secs_f64())
}
