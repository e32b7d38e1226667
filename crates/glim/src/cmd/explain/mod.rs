//! `glim explain`: where the time of a step goes, operation by operation, beside the least that each could take.

mod table;
mod trace;

use std::path::PathBuf;

use clap::Args;
use clap::builder::RangedU64ValueParser;
use glim_engine::EngineOptions;
use glim_engine::bench::{Explained, ExplainedOp, Size, explain};
use serde_json::{Value as Json, json};

use crate::exit::{Exit, Failure};
use crate::loader::ModelArg;
use crate::machine::{Machine, read_bytes};
use crate::paper::{PaperArgs, Subject};
use crate::placement::Placement;
use crate::ui::Ui;

const EXAMPLES: &str = "\
One step is run over and over, first as generation runs it, then with a stamp around each operation. Times are means over the \
middle half of the runs by length, so that they add up. A gap is the time before an operation in which none ran; the step's own \
time is measured apart from them (on a GPU between two events around the graph). Bytes are those that an operation must read at least: \
weights that it touches, and cached rows. Roofline: these bytes over the read bandwidth, measured first; for prefill also \
operations over the peak of f32 multiply-adds, if that takes longer. With --tp the operations are rank 0's, and a \
collective's time includes the wait for the slowest rank.

Operations of the same name in all layers share a line, unless --each is given. --trace writes one run, of all ranks, for \
chrome://tracing or ui.perfetto.dev; each rank's times count from its own start of the step.

Examples:
  glim explain
  glim explain model.gguf --rows 8 --context 4096 --top 10
  glim explain model.gguf --prefill 512 --each --trace step.json
  glim explain --shape glm-5 --rank 0/8 --layers 4 --collective 8";

/// Options of `glim explain`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    model: ModelArg,
    /// Rows of the decode step
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = RangedU64ValueParser::<usize>::new().range(1..=128))]
    rows: usize,
    /// Tokens that each sequence has before the step [default: 1024 in decode, as far as the model's context goes; 0 in prefill]
    #[arg(long, value_name = "N")]
    context: Option<usize>,
    /// Explain a prefill step of so many tokens instead
    #[arg(long, value_name = "TOKENS", conflicts_with = "rows", value_parser = RangedU64ValueParser::<usize>::new().range(1..=4096))]
    prefill: Option<usize>,
    /// Runs of the step
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = RangedU64ValueParser::<usize>::new().range(1..=10_000))]
    steps: usize,
    /// Costliest operations that are shown
    #[arg(long, value_name = "N", default_value_t = 20)]
    top: usize,
    /// A line for each operation of each layer
    #[arg(long)]
    each: bool,
    /// Write one run as a Chrome trace
    #[arg(long, value_name = "FILE.json")]
    trace: Option<PathBuf>,
    #[command(flatten)]
    placement: Placement,
    #[command(flatten)]
    paper: PaperArgs,
}

/// Context that a decode step has if nothing else is asked for.
const DEFAULT_CONTEXT: usize = 1024;

pub(crate) fn run(args: &ExplainArgs, ui: &Ui) -> Result<Exit, Failure> {
    let subject = Subject::read(&args.model, &args.paper, &args.placement)?;
    let size = args.size(subject.max_context());
    let options = EngineOptions {
        context: Some(size.context() + args.prefill.unwrap_or(1)),
        max_chunk: args.prefill.unwrap_or(1),
        max_num_seqs: args.rows,
        ..EngineOptions::default()
    };
    let setup = subject.setup();
    let (ranks, rank) = (setup.ranks(), setup.lone.map_or(0, |lone| lone.rank));
    let world_size = setup.world_size;
    let machine = Machine::measure(setup, ui)?.of_rank(ranks);
    let model = subject.name();
    let mut engine = subject.engine(options, ui)?;
    let explained = explain(&mut engine, size, args.steps)?;
    let report = Report {
        device: engine.caps().name,
        model,
        rank,
        world_size,
        machine,
        explained: &explained,
    };
    if let Some(path) = &args.trace {
        trace::write(path, &explained)?;
    }
    match ui.json {
        true => ui.print_json(&report.to_json())?,
        false => ui.print(&table::page(&report, args.top, args.each))?,
    }
    Ok(Exit::Ok)
}

impl ExplainArgs {
    fn size(&self, max_context: usize) -> Size {
        match self.prefill {
            Some(tokens) => Size::Prefill {
                tokens,
                context: self.context.unwrap_or(0),
            },
            None => Size::Decode {
                rows: self.rows,
                context: self.context.unwrap_or(DEFAULT_CONTEXT.min(max_context - 1)),
            },
        }
    }
}

/// A step, taken apart, and what it is held against.
struct Report<'a> {
    device: String,
    model: String,
    /// Whose operations are shown, of how many.
    rank: usize,
    world_size: usize,
    /// Limits of one rank.
    machine: Machine,
    explained: &'a Explained,
}

impl Report<'_> {
    fn roofline(&self, op: &ExplainedOp) -> f64 {
        self.machine.roofline(self.explained.size, &op.cost)
    }

    fn to_json(&self) -> Json {
        let explained = self.explained;
        let op = |op: &ExplainedOp| {
            json!({
                "label": op.label,
                "kind": op.kind,
                "ms": op.seconds * 1e3,
                "bytes": read_bytes(&op.cost),
                "flops": op.cost.flops,
                "roofline_ms": self.roofline(op) * 1e3,
                "gap_ms": op.gap * 1e3,
            })
        };
        let step = match explained.size {
            Size::Decode { .. } => "decode",
            Size::Prefill { .. } => "prefill",
        };
        json!({
            "device": self.device,
            "read_bandwidth_gb_s": self.machine.read_bandwidth / 1e9,
            "step": step,
            "rows": explained.size.rows(),
            "context": explained.size.context(),
            "rank": self.rank,
            "ranks": self.world_size,
            "step_ms": explained.step * 1e3,
            "unwatched_ms": explained.unwatched * 1e3,
            "roofline_ms": explained.ops.iter().map(|op| self.roofline(op)).sum::<f64>() * 1e3,
            "accounted": explained.accounted(),
            "collective_share": explained.collective_share(),
            "ops": explained.ops.iter().map(op).collect::<Vec<_>>(),
        })
    }
}
