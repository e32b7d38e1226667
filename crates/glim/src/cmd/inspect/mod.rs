//! `glim inspect`: what a model file is, read from its headers only.
//!
//! The container is shown even where the model in it cannot run in this build; then the reason comes last, with its exit
//! code.

mod facts;
mod plans;
mod report;
mod text;
mod values;

use clap::Args;
use clap::builder::RangedU64ValueParser;
use glim_model::shard::MAX_WORLD_SIZE;

use self::plans::PlanChoice;
use self::report::Report;
use crate::exit::{Exit, Failure};
use crate::loader::{ModelArg, TextArg};
use crate::ui::Ui;

const EXAMPLES: &str = "\
Examples:
  glim inspect
  glim inspect model-00001-of-00011.gguf --tensors
  glim inspect model.gguf --context 131072 --tp 8 --memory 96G
  glim inspect --plan=decode:8
  glim inspect model.gguf --json | jq .oddities";

/// Options of `glim inspect`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct InspectArgs {
    #[command(flatten)]
    model: ModelArg,
    #[command(flatten)]
    text: TextArg,
    /// List every tensor, with its shape in both conventions (--json always does)
    #[arg(long)]
    tensors: bool,
    /// Print the plans that a step runs, with their cost; without a value one decode and one prefill step
    #[arg(long, value_name = "decode:ROWS|prefill:TOKENS", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    plan: Option<PlanChoice>,
    /// Context that memory and plans are computed for, in tokens [default: the model's limit, at most 8192]
    #[arg(long, value_name = "TOKENS", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    context: Option<usize>,
    /// Ranks that memory and plans are computed for; plans are rank 0's
    #[arg(long, value_name = "RANKS", default_value_t = 1, value_parser = RangedU64ValueParser::<usize>::new().range(1..=MAX_WORLD_SIZE as u64))]
    tp: usize,
    /// Say the largest context that fits into this much memory on each rank, such as 96G
    #[arg(long, value_name = "SIZE", value_parser = crate::size::parse)]
    memory: Option<u64>,
}

pub(crate) fn run(args: &InspectArgs, ui: &Ui) -> Result<Exit, Failure> {
    let (report, problem) = Report::of(args)?;
    if ui.json {
        let mut object = report.to_json();
        if let Some(problem) = &problem {
            object.insert("error".to_owned(), problem.to_json());
        }
        ui.print_json(&object)?;
    } else {
        ui.print(&text::page(&report, args.tensors))?;
        if let Some(problem) = &problem {
            problem.tell();
        }
    }
    Ok(problem.map_or(Exit::Ok, |problem| problem.exit()))
}
