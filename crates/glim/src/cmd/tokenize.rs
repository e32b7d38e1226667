//! `glim tokenize`: the rendered prompt and its token ids. Needs a model's text side only, not its weights.

use clap::Args;
use glim_text::{Special, TokenId, Tokenizer};
use serde_json::json;

use crate::exit::{Exit, Failure};
use crate::loader::{ModelArg, TextArg};
use crate::prompt::{self, ChatArgs};
use crate::ui::Ui;

const EXAMPLES: &str = "\
Examples:
  glim tokenize --text 'Once upon a time'
  glim tokenize --text '<|user|>Hello' --special
  glim tokenize model.gguf --messages chat.json --tools tools.json
  glim tokenize --messages chat.json --template GLM-4.6.jinja --json";

/// Options of `glim tokenize`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, group(clap::ArgGroup::new("what").required(true).args(["text", "messages"])))]
pub(crate) struct TokenizeArgs {
    #[command(flatten)]
    model: ModelArg,
    #[command(flatten)]
    text_arg: TextArg,
    /// Text to encode
    #[arg(long)]
    text: Option<String>,
    /// Match special tokens such as <|user|> in --text; without it they are text like any other
    #[arg(long, conflicts_with = "messages")]
    special: bool,
    #[command(flatten)]
    chat: ChatArgs,
}

pub(crate) fn run(args: &TokenizeArgs, ui: &Ui) -> Result<Exit, Failure> {
    if args.text.is_some() && args.chat.wants_template() {
        return Err(Failure::usage(
            "--tools, --template, --no-think and --template-kwarg need --messages: --text has no template",
        ));
    }
    let template = args.chat.read_template()?;
    let mut text = args.text_arg.of_model(&args.model)?;
    if let Some(template) = template {
        text = text.with_template(&template)?;
    }
    let tokenizer = text.model.tokenizer.clone();
    let (prompt, ids) = match &args.text {
        Some(text) => {
            let special = if args.special {
                Special::Template
            } else {
                Special::Text
            };
            (text.clone(), tokenizer.encode(text, special)?)
        }
        None => {
            let rendered = prompt::render(&text, &args.chat.request(Vec::new(), ui)?, ui)?;
            (
                rendered.text().to_owned(),
                tokenizer.encode_rendered(&rendered)?,
            )
        }
    };
    let pieces: Vec<String> = ids.iter().map(|id| piece(&tokenizer, *id)).collect();
    if ui.json {
        let ids: Vec<u32> = ids.iter().map(|id| id.0).collect();
        ui.print_json(&json!({ "prompt": prompt, "ids": ids, "pieces": pieces }))?;
    } else {
        ui.print(&table(&prompt, &ids, &pieces))?;
    }
    Ok(Exit::Ok)
}

/// The text of a token; bytes that are no whole character show as U+FFFD.
fn piece(tokenizer: &Tokenizer, id: TokenId) -> String {
    tokenizer.token_text(id).unwrap_or_default().into_owned()
}

fn table(prompt: &str, ids: &[TokenId], pieces: &[String]) -> String {
    let mut out = format!("{prompt}\n\n{} tokens\n", ids.len());
    for (id, piece) in ids.iter().zip(pieces) {
        out += &format!("{:>8}  {piece:?}\n", id.0);
    }
    out
}
