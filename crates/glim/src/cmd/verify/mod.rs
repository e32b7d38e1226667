//! `glim verify`: the proof that a model is what it says and computes what it says, level by level.
//!
//! What is checked is in `glim_model::proof` (bytes and shapes) and `glim_engine::proof` (what must run). Here it is chosen, run with
//! progress, and reported.

mod levels;
mod report;

use std::path::PathBuf;

use clap::Args;
use clap::builder::RangedU64ValueParser;
use glim_engine::proof::{Check, Level, Outcome};

use self::levels::Levels;
use self::report::Report;
use crate::exit::{Exit, Failure};
use crate::loader::ModelArg;
use crate::placement::{DeviceArgs, Math, Setup, Wanted};
use crate::ui::Ui;

const EXAMPLES: &str = "\
Levels:
  1 file        numbers that cannot be weights, copied layers, completeness; the digest
  2 layout      kv_b rebuilt from its halves and back, fused and stacked tensors
  3 checkpoint  each tensor beside the same of --against
  4 shards      the ranks' parts of each tensor, for each number of ranks of --tp
  5 residence   the weights in each rank's memory, read back, beside the file's
  6 function    each operation of a prefill and a decode step, recomputed from the file's bytes
  7 sense       the likelihood of a text

Faults that leave every number plausible and the text likely (two rows exchanged, a router bias dropped) are seen by level 3 \
alone. A model that was never trained fails level 7, rightly: leave it out with --levels.

Exit code 1: a check failed, or the file does not open because of what is in it.

Examples:
  glim verify
  glim verify model.gguf --against path/to/GLM-5
  glim verify model.gguf --levels 1,4 --tp 8 --json";

/// Most ranks that can be asked for.
const MAX_RANKS: u64 = 1024;

/// Options of `glim verify`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    model: ModelArg,
    /// Compare each tensor with that of this checkpoint: a Hugging Face folder, or another GGUF of the same model
    #[arg(long, value_name = "MODEL")]
    against: Option<PathBuf>,
    /// Numbers of ranks whose shards are proved, and which levels 5 to 7 run on [default: those of 2,4,8 that the model can be cut into; levels 5 to 7: one rank]
    #[arg(
        long, value_name = "R,R,…", value_delimiter = ',',
        value_parser = RangedU64ValueParser::<usize>::new().range(1..=MAX_RANKS),
    )]
    tp: Option<Vec<usize>>,
    /// Levels to check [default: all, 3 only with --against]
    #[arg(long, value_name = "N,N,…", value_delimiter = ',', value_parser = level)]
    levels: Option<Vec<Level>>,
    /// Arithmetic of levels 5 to 7: fast or exact [default: fast]
    #[arg(
        long,
        value_name = "MATH",
        hide_possible_values = true,
        help_heading = "Where it runs"
    )]
    math: Option<Math>,
    /// Threads of levels 5 to 7 [default: as many as the process may use]
    #[arg(
        long, value_name = "N", help_heading = "Where it runs",
        value_parser = RangedU64ValueParser::<usize>::new().range(1..=1024),
    )]
    threads: Option<usize>,
    /// Context of levels 5 to 7, in tokens [default: what they need]
    #[arg(
        long, value_name = "TOKENS", help_heading = "Where it runs",
        value_parser = RangedU64ValueParser::<usize>::new().range(2..),
    )]
    context: Option<usize>,
    #[command(flatten)]
    device: DeviceArgs,
}

/// All levels, in order.
const LEVELS: [Level; 7] = [
    Level::File,
    Level::Layout,
    Level::Checkpoint,
    Level::Shards,
    Level::Residence,
    Level::Function,
    Level::Sense,
];

fn level(text: &str) -> Result<Level, String> {
    let known = |level: &Level| level.number().to_string() == text || level.name() == text;
    let found = LEVELS.into_iter().find(known);
    found.ok_or_else(|| "expected numbers of 1 to 7, or their names".to_owned())
}

impl VerifyArgs {
    /// Whether a level is to be checked.
    fn wants(&self, level: Level) -> bool {
        match &self.levels {
            Some(levels) => levels.contains(&level),
            None => level != Level::Checkpoint || self.against.is_some(),
        }
    }

    /// Whether the user named the level, who then wants no excuse.
    fn insists(&self, level: Level) -> bool {
        self.levels
            .as_ref()
            .is_some_and(|levels| levels.contains(&level))
    }

    fn math(&self) -> Math {
        self.math.unwrap_or(Math::Fast)
    }

    /// How levels 5 to 7 run on so many ranks.
    fn setup(&self, ranks: usize) -> Result<Setup, Failure> {
        self.device
            .place(Wanted::on_ranks(self.math(), self.threads, ranks))
    }
}

pub(crate) fn run(args: &VerifyArgs, ui: &Ui) -> Result<Exit, Failure> {
    if args.insists(Level::Checkpoint) && args.against.is_none() {
        return Err(Failure::usage("level 3 compares with another checkpoint")
            .hint("name it with --against"));
    }
    if args.against.is_some() && !args.wants(Level::Checkpoint) {
        return Err(
            Failure::usage("--against is for level 3, which --levels leaves out")
                .hint("add 3 to --levels"),
        );
    }
    // A GPU that is asked for and not there is said before anything is read.
    args.setup(
        args.tp
            .as_ref()
            .and_then(|tp| tp.first().copied())
            .unwrap_or(1),
    )?;
    let mut report = Report::new(args.model.name());
    match args.model.proved()? {
        Ok(checkpoint) => Levels::new(args, &checkpoint, ui).run(&mut report)?,
        Err(check) => {
            report.add(vec![check]);
            report.leave_out("all other levels", "the model does not open");
        }
    }
    match ui.json {
        true => ui.print_json(&report.to_json())?,
        false => ui.print(&report.page(ui.is_colored()))?,
    }
    Ok(if report.ok() { Exit::Ok } else { Exit::No })
}

/// Whether a check counts against the model.
fn failed(check: &Check) -> bool {
    check.outcome == Outcome::Failed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_that_was_not_made_does_not_count_against_the_model() {
        let timer = || glim_engine::proof::Timer::start(Level::File, "container");
        assert!(failed(&timer().failed("", 0, "", None)));
        assert!(!failed(&timer().passed("", 0, "")) && !failed(&timer().skipped("")));
    }

    #[test]
    fn levels_go_by_number_or_name() {
        assert_eq!(level("4"), Ok(Level::Shards));
        assert_eq!(level("sense"), Ok(Level::Sense));
        for wrong in ["9", "0", "8", "", "File", "1-4"] {
            assert!(level(wrong).is_err(), "{wrong}");
        }
    }
}
