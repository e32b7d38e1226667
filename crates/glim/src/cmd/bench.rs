//! `glim bench`: how fast a model's steps are, beside what this machine could do at most, measured in the same run.

mod requests;

use clap::Args;
use clap::builder::RangedU64ValueParser;
use glim_engine::bench::{Timing, decode, prefill};
use glim_engine::{Budget, EngineError, EngineOptions};
use serde_json::{Value as Json, json};

use crate::exit::{Exit, Failure};
use crate::loader::{self, ModelArg};
use crate::machine::{Machine, read_bytes};
use crate::paper::{PaperArgs, Subject};
use crate::placement::Placement;
use crate::ui::Ui;
use crate::units;

const EXAMPLES: &str = "\
Roofline: the bytes that a step must read at least (weights that it touches, cached rows that it scans or gathers) over the
read bandwidth of all threads, or of the GPUs, measured first. A ratio near 1 means that nothing but memory is waited
for. A model that fits into the processor's caches can be beyond it. For prefill, on the CPU, also: operations a second
over the peak of f32 multiply-adds, measured first; integer products can be beyond that.

Times are medians, of decode steps as generation runs them: on a GPU each is put behind one that still runs. Nodes are those
of the graph that a GPU replays; without one, operations. The cached context is not computed, only allocated: with --shape
it is random on a GPU, elsewhere zeros. What does not fit into a GPU's memory is left out, and said.

Examples:
  glim bench
  glim bench model.gguf --rows 1,4 --context 0,4096 --prompt 512 --json
  glim bench model.gguf --concurrency 1,8
  glim bench --shape glm-5 --rank 0/8 --layers 4 --collective 8";

/// Options of `glim bench`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    model: ModelArg,
    /// Rows of decode steps
    #[arg(long, value_name = "N,N,…", value_delimiter = ',', default_value = "1,2,4,8", value_parser = RangedU64ValueParser::<usize>::new().range(1..=128))]
    rows: Vec<usize>,
    /// Tokens that each sequence has before a step [default: 0 and 1024, as far as the model's context goes]
    #[arg(long, value_name = "N,N,…", value_delimiter = ',')]
    context: Option<Vec<usize>>,
    /// Tokens of prefill steps [default: 16 and 512, as far as the model's context goes]
    #[arg(long, value_name = "N,N,…", value_delimiter = ',', value_parser = RangedU64ValueParser::<usize>::new().range(1..=4096))]
    prompt: Option<Vec<usize>>,
    /// Repetitions of each step
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = RangedU64ValueParser::<usize>::new().range(1..=10_000))]
    repeat: usize,
    #[command(flatten)]
    requests: requests::Requests,
    #[command(flatten)]
    placement: Placement,
    #[command(flatten)]
    paper: PaperArgs,
}

/// What is measured if nothing else is asked for: of a model that is there, and of one rank of a shape.
const MODEL_SIZES: (&[usize], &[usize]) = (&[0, 1024], &[16, 512]);
const PAPER_SIZES: (&[usize], &[usize]) = (&[0, 2048, 32_768, 131_072], &[512, 4096]);

pub(crate) fn run(args: &BenchArgs, ui: &Ui) -> Result<Exit, Failure> {
    let subject = Subject::read(&args.model, &args.paper, &args.placement)?;
    if args.requests.is_asked_for() {
        return match subject {
            Subject::Model(checkpoint, _, setup) => {
                args.requests.run(&checkpoint, setup, ui)?;
                Ok(Exit::Ok)
            }
            Subject::Paper(_) => Err(Failure::usage(
                "--concurrency measures a model: it needs MODEL in place of --shape",
            )),
        };
    }
    let max = subject.max_context();
    let (contexts, prompts) = match &subject {
        Subject::Model(..) => MODEL_SIZES,
        Subject::Paper(_) => PAPER_SIZES,
    };
    let contexts = sizes(&args.context, contexts, max - 1);
    let prompts = sizes(&args.prompt, prompts, max);
    let most = |list: &[usize]| list.iter().copied().max().unwrap_or(0);
    let options = EngineOptions {
        context: Some((most(&contexts) + 1).max(most(&prompts))),
        max_chunk: most(&prompts),
        max_num_seqs: most(&args.rows),
        memory: subject.setup().free_memory()?,
        ..EngineOptions::default()
    };
    let machine = Machine::measure(subject.setup(), ui)?;
    let (name, ranks) = (subject.name(), subject.setup().ranks());
    let mut engine = subject.engine(options, ui)?;
    let memory = loader::memory(engine.budget());
    ui.note(&match ranks {
        1 => format!("{name}: {memory}"),
        n => format!("{name}: {n} ranks, of which the largest holds {memory}"),
    });
    let mut prefills = Vec::new();
    for tokens in &prompts {
        prefills.push(prefill(&mut engine, *tokens, 0, args.repeat)?);
    }
    let mut decodes = Vec::new();
    for context in &contexts {
        for rows in &args.rows {
            match decode(&mut engine, *rows, *context, args.repeat) {
                Err(EngineError::OutOfBlocks { .. }) => {
                    ui.note(&left_out(*rows, *context, engine.budget()));
                }
                timing => decodes.push(timing?),
            }
        }
    }
    report(&engine.caps().name, &machine, &prefills, &decodes, ui)?;
    Ok(Exit::Ok)
}

/// Why a size is not measured.
fn left_out(rows: usize, context: usize, budget: &Budget) -> String {
    let held = budget.latent_cache + budget.index_cache;
    let of_token = held as f64 / budget.cache_tokens.max(1) as f64;
    format!(
        "note: {rows} rows of {context} tokens are left out: their caches take {}, and beside weights and arena there is room for {}",
        units::bytes((of_token * (rows * (context + 1)) as f64) as u64),
        units::bytes(held)
    )
}

/// The user's list, or the defaults that fit.
fn sizes(given: &Option<Vec<usize>>, defaults: &[usize], most: usize) -> Vec<usize> {
    match given {
        Some(list) => list.clone(),
        None => defaults.iter().copied().filter(|n| *n <= most).collect(),
    }
}

fn report(
    device: &str,
    machine: &Machine,
    prefills: &[Timing],
    decodes: &[Timing],
    ui: &Ui,
) -> Result<(), Failure> {
    if ui.json {
        let prefill: Vec<Json> = prefills.iter().map(|t| prefill_json(t, machine)).collect();
        let decode: Vec<Json> = decodes.iter().map(|t| decode_json(t, machine)).collect();
        return ui.print_json(&json!({
            "device": device,
            "read_bandwidth_gb_s": machine.read_bandwidth / 1e9,
            "peak_gflop_s": machine.peak_flops.map(|peak| peak / 1e9),
            "prefill": prefill,
            "decode": decode,
        }));
    }
    let mut text = format!(
        "device          {device}\nread bandwidth  {:.1} GB/s\n",
        machine.read_bandwidth / 1e9
    );
    if let Some(peak) = machine.peak_flops {
        text += &format!("f32 peak        {:.0} GFLOP/s\n", peak / 1e9);
    }
    text.push('\n');
    text += "prefill   tokens        ms     tok/s        GB  roofline ms  of roofline  nodes  of f32 peak\n";
    for t in prefills {
        let seconds = t.median();
        let roofline = read_bytes(&t.cost) / machine.read_bandwidth;
        let ratio = machine.flops_ratio(t.cost.flops, seconds);
        let ratio = ratio.map_or(String::new(), |ratio| format!("{:>11.0} %", ratio * 100.0));
        text += &format!(
            "          {:>6} {:>9.2} {:>9.1} {:>9.3} {:>12.3} {:>10.0} % {:>6}{ratio}\n",
            t.rows,
            seconds * 1e3,
            t.rows as f64 / seconds,
            read_bytes(&t.cost) / 1e9,
            roofline * 1e3,
            roofline / seconds * 100.0,
            nodes(t),
        );
    }
    text += "\ndecode      rows  context        ms     tok/s        GB  roofline ms  of roofline  nodes\n";
    for t in decodes {
        let seconds = t.median();
        let roofline = read_bytes(&t.cost) / machine.read_bandwidth;
        text += &format!(
            "          {:>6} {:>8} {:>9.3} {:>9.1} {:>9.3} {:>12.3} {:>11.0} % {:>6}\n",
            t.rows,
            t.context,
            seconds * 1e3,
            t.rows as f64 / seconds,
            read_bytes(&t.cost) / 1e9,
            roofline * 1e3,
            roofline / seconds * 100.0,
            nodes(t)
        );
    }
    ui.print(&text)
}

/// Nodes of the step's graph, or operations where there is none.
fn nodes(t: &Timing) -> usize {
    t.nodes.unwrap_or(t.ops)
}

fn prefill_json(t: &Timing, machine: &Machine) -> Json {
    let seconds = t.median();
    let roofline = read_bytes(&t.cost) / machine.read_bandwidth;
    json!({
        "tokens": t.rows,
        "ms": seconds * 1e3,
        "tok_s": t.rows as f64 / seconds,
        "bytes": read_bytes(&t.cost),
        "roofline_ms": roofline * 1e3,
        "ratio": roofline / seconds,
        "nodes": nodes(t),
        "flops_ratio": machine.flops_ratio(t.cost.flops, seconds),
    })
}

fn decode_json(t: &Timing, machine: &Machine) -> Json {
    let seconds = t.median();
    let roofline = read_bytes(&t.cost) / machine.read_bandwidth;
    json!({
        "rows": t.rows,
        "context": t.context,
        "ms": seconds * 1e3,
        "tok_s": t.rows as f64 / seconds,
        "bytes": read_bytes(&t.cost),
        "roofline_ms": roofline * 1e3,
        "ratio": roofline / seconds,
        "nodes": nodes(t),
    })
}
