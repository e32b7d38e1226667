//! `glim imatrix`: an importance matrix of a text.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use clap::builder::RangedU64ValueParser;
use glim_engine::{EngineError, EngineOptions, ImatrixOptions, imatrix};
use glim_text::Special;
use serde_json::json;

use crate::exit::{Exit, Failure};
use crate::loader::{self, ModelArg, TextArg};
use crate::placement::{Math, Placement};
use crate::progress::{Progress, Unit};
use crate::prompt::read_text;
use crate::ui::Ui;

/// Tokens of a step: what is tapped for them all stands in memory at a time, 26 MB a token for GLM-5.
const MAX_CHUNK: usize = 64;

const EXAMPLES: &str = "\
The text is cut into consecutive windows of tokens that do not see each other; a last partial one is dropped. For each \
column of each weight matrix the squares of what it is multiplied with are summed up; of experts and heads, each its own. \
OUT.gguf has llama.cpp's form, and both programs read it.

The experts' inner activations are computed a second time, in f32 from the decoded weights, so this takes longer than \
eval --text --math exact. Math is exact unless --math says otherwise.

Examples:
  glim imatrix model-bf16.gguf --text calibration.txt -o imatrix.gguf
  glim quantize model-bf16.gguf model-q4_k_m.gguf --type q4_k_m --imatrix imatrix.gguf";

/// Options of `glim imatrix`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ImatrixArgs {
    #[command(flatten)]
    model: ModelArg,
    #[command(flatten)]
    text_arg: TextArg,
    /// Text to read: of the kind that the model is for
    #[arg(long, value_name = "FILE")]
    text: PathBuf,
    /// File to write
    #[arg(short, long, value_name = "OUT.gguf")]
    out: PathBuf,
    /// Tokens of a window
    #[arg(
        long, value_name = "TOKENS", default_value_t = 512,
        value_parser = RangedU64ValueParser::<usize>::new().range(2..),
    )]
    window: usize,
    /// Read this many windows at most
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    windows: Option<usize>,
    /// Also sum up for output.weight
    #[arg(long)]
    process_output: bool,
    #[command(flatten)]
    placement: Placement,
}

pub(crate) fn run(args: &ImatrixArgs, ui: &Ui) -> Result<Exit, Failure> {
    let setup = args.placement.setup(Math::Exact)?;
    if args.out.extension().is_none_or(|e| e != "gguf") {
        return Err(Failure::usage(format!(
            "{}: the name of the file to write must end in .gguf",
            args.out.display()
        )));
    }
    let text = read_text(&args.text)?;
    let checkpoint = args.model.checkpoint()?;
    let tokenizer = args.text_arg.of(&checkpoint)?.model.tokenizer;
    let mut ids = tokenizer.encode(&text, Special::Text)?;
    // Asked before the weights are loaded, which takes longer.
    if ids.len() < args.window {
        let too_short = EngineError::TextTooShort {
            found: ids.len(),
            expected: args.window,
        };
        return Err(Failure::bad_data(&args.text, too_short)
            .hint("give a longer text, or a smaller --window"));
    }
    let windows = ids.len() / args.window;
    let windows = args.windows.map_or(windows, |most| most.min(windows));
    ids.truncate(windows * args.window);

    let start = Instant::now();
    let engine_options = EngineOptions {
        context: Some(args.window),
        max_chunk: MAX_CHUNK,
        ..EngineOptions::default()
    };
    if setup.world_size != 1 {
        // A rank sees its own columns only, and several matrices' sums are nobody's.
        return Err(Failure::usage("imatrix runs a model on one rank").hint("leave --tp out"));
    }
    let options = ImatrixOptions {
        window: args.window,
        output: args.process_output,
        threads: setup.threads(),
    };
    let mut engine = loader::engine_with(&checkpoint, setup, engine_options, ui, &|_| ())?;
    let mut progress = Progress::new(ui, "reading", Unit::Things("windows"), windows as u64);
    let show = |done: usize, _: usize, so_far: f64| {
        progress.set(done as u64, format!("perplexity {so_far:.4}"));
    };
    let collected = imatrix(&mut engine, &checkpoint, &ids, options, show);
    drop(progress);
    let mut collected = collected?;
    let name = args.text.file_name().unwrap_or(args.text.as_os_str());
    let name = name.to_string_lossy().into_owned();
    collected.sums.datasets.push(name);
    collected.sums.write(&args.out)?;

    let seconds = start.elapsed().as_secs_f64();
    let (unmet, experts) = collected.unmet;
    if unmet > 0 {
        ui.note(&format!(
            "note: {unmet} of {experts} experts met no token of the text, and get no weights: a longer or more varied text meets more"
        ));
    }
    let (path, entries) = (args.out.display().to_string(), collected.sums.entries.len());
    let perplexity = collected.perplexity;
    if ui.json {
        ui.print_json(&json!({
            "path": path, "entries": entries, "windows": windows, "window": args.window, "tokens": ids.len(),
            "perplexity": perplexity, "experts": experts, "experts_unmet": unmet, "seconds": seconds,
        }))?;
    } else {
        ui.print(&format!(
            "{path}: {entries} matrices, from {windows} windows of {} tokens (perplexity {perplexity:.4}), in {seconds:.1} s\n",
            args.window
        ))?;
    }
    Ok(Exit::Ok)
}
