//! `glim run`: generate from a prompt, or chat in the terminal.

use std::io::{self, IsTerminal};

use clap::Args;
use clap::builder::RangedU64ValueParser;
use glim_engine::SamplingParams;
use glim_text::{ChatRequest, Special};
use serde_json::{Value as Json, json};

use crate::answer::{Decoder, Show};
use crate::chat;
use crate::exit::{Exit, Failure};
use crate::interrupt::Interrupt;
use crate::loader::{self, ModelArg, TextArg};
use crate::placement::{Math, Placement};
use crate::prompt::{self, ChatArgs};
use crate::session::{Session, Settings};
use crate::ui::Ui;

const EXAMPLES: &str = "\
The prompt is -p, or what is piped into stdin; in a terminal without -p a chat begins (/help lists its commands). \
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
    #[command(flatten)]
    text: TextArg,
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
    fn settings(&self) -> Settings {
        Settings {
            sampling: SamplingParams {
                temperature: self.temperature,
                top_k: self.top_k,
                top_p: self.top_p,
                seed: self.seed,
                ..SamplingParams::GREEDY
            },
            max_tokens: self.max_tokens,
            ignore_eos: self.ignore_eos,
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
    let setup = args.placement.setup(Math::Fast)?;
    let checkpoint = args.model.checkpoint()?;
    let prompt = read_prompt(&args, ui)?;
    let template = args.chat.read_template()?;
    let mut text = args.text.of(&checkpoint)?;
    if let Some(template) = template {
        text = text.with_template(&template)?;
    }
    let engine = loader::engine(&checkpoint, setup, args.context, ui)?;
    let mut session = Session {
        ui,
        text,
        engine,
        interrupt: Interrupt::never(),
        show_reasoning: args.show_reasoning,
    };
    let settings = args.sampling.settings();
    match prompt {
        Prompt::Raw(prompt) => raw(&mut session, &prompt, &settings)?,
        Prompt::Chat(request) => once(&mut session, &request, &settings)?,
        Prompt::Typed(request) => {
            session.interrupt = Interrupt::on_ctrl_c()?;
            chat::converse(&mut session, request, settings)?;
        }
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

/// Continues plain text.
fn raw(session: &mut Session<'_>, prompt: &str, settings: &Settings) -> Result<(), Failure> {
    let tokenizer = session.text.model.tokenizer.clone();
    let ids = tokenizer.encode(prompt, Special::Template)?;
    let show = if session.ui.json {
        Show::Nothing
    } else {
        Show::Content
    };
    let (answer, generation) = session.generate(ids, settings, show, Decoder::raw(tokenizer))?;
    session.report(&answer, &generation)
}

/// Answers one conversation.
fn once(
    session: &mut Session<'_>,
    request: &ChatRequest,
    settings: &Settings,
) -> Result<(), Failure> {
    let (answer, generation) = session.answer(request, settings)?;
    session.report(&answer, &generation)?;
    if !session.ui.json && answer.text.is_empty() && answer.tool_calls.is_empty() {
        session.explain_empty(&answer, &generation);
    }
    Ok(())
}
