//! `glim eval`: perplexity of a text, or the distance to what another implementation computed.

use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::RangedU64ValueParser;
use glim_engine::EngineError;
use glim_engine::eval::{Bounds, PromptReport, Reference, against, divergence, perplexity};
use glim_model::Checkpoint;
use glim_text::{Special, TokenId};
use serde_json::{Value as Json, json};

use crate::exit::{Exit, Failure};
use crate::loader::{self, ModelArg, TextArg};
use crate::placement::{Math, Placement, Setup};
use crate::progress::{Progress, Unit};
use crate::prompt::read_text;
use crate::ui::Ui;

const EXAMPLES: &str = "\
Perplexity: the text's ids, without any prefix, are cut into consecutive windows, and the last partial one is dropped; in \
each window every id but the first is predicted from those before it; exp(mean negative log-likelihood in nats).

A reference is a safetensors file of arrays PROMPT.input_ids, PROMPT.logits, PROMPT.hidden, PROMPT.experts, \
PROMPT.indexer_topk, PROMPT.greedy, …; their rows are those of the prompt's last positions.

Examples:
  glim eval --text heldout.txt --window 512
  glim eval model.gguf --against reference.safetensors --check";

/// Options of `glim eval`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, group(clap::ArgGroup::new("what").required(true).args(["text", "against"])))]
pub(crate) struct EvalArgs {
    #[command(flatten)]
    model: ModelArg,
    #[command(flatten)]
    text_arg: TextArg,
    /// Measure the perplexity of this text
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Tokens of a window of --text
    #[arg(
        long, value_name = "TOKENS", default_value_t = 512, conflicts_with = "against",
        value_parser = RangedU64ValueParser::<usize>::new().range(2..),
    )]
    window: usize,
    /// With --text: run exact and fast math side by side, and say how far apart they are
    #[arg(long, requires = "text")]
    compare_math: bool,
    /// Compare with this reference, prompt by prompt; given twice, the files make one reference
    #[arg(long, value_name = "FILE.safetensors")]
    against: Vec<PathBuf>,
    /// With --against: exit 1 if a measure leaves the bounds of exact arithmetic; implies --math exact unless --math is given
    #[arg(long, conflicts_with = "text")]
    check: bool,
    /// Epsilon of q_a_norm and kv_a_norm instead of the model's own (transformers: 1e-6)
    #[arg(long, value_name = "EPS", value_parser = epsilon, allow_negative_numbers = true)]
    latent_norm_eps: Option<f32>,
    #[command(flatten)]
    placement: Placement,
}

fn epsilon(text: &str) -> Result<f32, String> {
    let eps: f32 = text
        .parse()
        .map_err(|_| "expected a number such as 1e-6".to_owned())?;
    if eps >= 0.0 && eps.is_finite() {
        Ok(eps)
    } else {
        Err("expected a finite number, 0 or more".to_owned())
    }
}

pub(crate) fn run(args: &EvalArgs, ui: &Ui) -> Result<Exit, Failure> {
    let setup = setup(args)?;
    match &args.text {
        Some(file) => measure_text(args, file, setup, ui),
        None => compare(args, setup, ui),
    }
}

/// The bounds of `--check` are those of exact arithmetic; without it eval measures what `run` computes.
fn setup(args: &EvalArgs) -> Result<Setup, Failure> {
    args.placement
        .setup(if args.check { Math::Exact } else { Math::Fast })
}

fn checkpoint(args: &EvalArgs) -> Result<Checkpoint, Failure> {
    let mut checkpoint = args.model.checkpoint()?;
    if let Some(eps) = args.latent_norm_eps {
        checkpoint.set_latent_norm_eps(eps);
    }
    Ok(checkpoint)
}

fn measure_text(args: &EvalArgs, file: &Path, setup: Setup, ui: &Ui) -> Result<Exit, Failure> {
    let text = read_text(file)?;
    let checkpoint = checkpoint(args)?;
    let ids = args
        .text_arg
        .of(&checkpoint)?
        .model
        .tokenizer
        .encode(&text, Special::Text)?;
    // Asked before the weights are loaded, which takes longer.
    if ids.len() < args.window {
        let too_short = EngineError::TextTooShort {
            found: ids.len(),
            expected: args.window,
        };
        return Err(
            Failure::bad_data(file, too_short).hint("give a longer text, or a smaller --window")
        );
    }
    if args.compare_math {
        return compare_math(args, &checkpoint, &ids, setup, ui);
    }
    let mut engine = loader::engine(&checkpoint, setup, Some(args.window), ui)?;
    let windows = (ids.len() / args.window) as u64;
    let mut progress = Progress::new(ui, "measuring", Unit::Things("windows"), windows);
    let result = perplexity(&mut engine, &ids, args.window, |done, _, so_far| {
        progress.set(done as u64, format!("perplexity {so_far:.4}"));
    });
    drop(progress);
    let result = result?;
    if ui.json {
        ui.print_json(&json!({
            "perplexity": result.perplexity, "tokens": result.tokens, "context": result.context, "windows": windows,
        }))?;
    } else {
        let (perplexity, tokens, context) = (result.perplexity, result.tokens, result.context);
        ui.print(&format!(
            "perplexity {perplexity:.4} ({tokens} tokens predicted, windows of {context})\n"
        ))?;
    }
    Ok(Exit::Ok)
}

/// What fast math costs on this file: the same windows through both arithmetics.
fn compare_math(
    args: &EvalArgs,
    checkpoint: &Checkpoint,
    ids: &[TokenId],
    mut setup: Setup,
    ui: &Ui,
) -> Result<Exit, Failure> {
    let mut with = |math| {
        setup.cpu.math = math;
        let each = setup.clone();
        // Said once.
        setup.why_cpu = None;
        each
    };
    let context = Some(args.window);
    let mut exact = loader::engine(checkpoint, with(glim_cpu::Math::Exact), context, ui)?;
    let mut fast = loader::engine(checkpoint, with(glim_cpu::Math::Fast), context, ui)?;
    let windows = ids.len() / args.window;
    let mut progress = Progress::new(ui, "measuring", Unit::Things("windows"), windows as u64);
    let result = divergence(
        &mut exact,
        &mut fast,
        ids,
        args.window,
        windows,
        |done, _| {
            progress.set(done as u64, String::new());
        },
    );
    drop(progress);
    let d = result?;
    if ui.json {
        ui.print_json(&json!({
            "mean_kl": d.mean_kl, "max_kl": d.max_kl, "top1_agreement": d.top1_agreement,
            "perplexity_exact": d.perplexity, "perplexity_fast": d.perplexity_other, "rows": d.rows, "context": args.window,
        }))?;
    } else {
        ui.print(&format!(
            "perplexity {:.4} exact, {:.4} fast ({:+.3} %)\nmean KL {:.2e}, largest {:.2e}; likeliest token the same in {:.2} % of {} rows\n",
            d.perplexity,
            d.perplexity_other,
            (d.perplexity_other / d.perplexity - 1.0) * 100.0,
            d.mean_kl,
            d.max_kl,
            d.top1_agreement * 100.0,
            d.rows
        ))?;
    }
    Ok(Exit::Ok)
}

fn compare(args: &EvalArgs, setup: Setup, ui: &Ui) -> Result<Exit, Failure> {
    let reference = read_reference(&args.against)?;
    let checkpoint = checkpoint(args)?;
    let mut engine = loader::engine(&checkpoint, setup, Some(reference.context()), ui)?;
    let reports = against(&mut engine, &reference)?;
    let ok = reports
        .iter()
        .all(|report| report.outside(&Bounds::EXACT).is_empty());
    if ui.json {
        let prompts: Vec<Json> = reports.iter().map(to_json).collect();
        ui.print_json(&json!({ "prompts": prompts, "ok": ok }))?;
    } else {
        ui.print(&table(&reports))?;
    }
    Ok(if args.check && !ok {
        Exit::No
    } else {
        Exit::Ok
    })
}

fn read_reference(files: &[PathBuf]) -> Result<Reference, Failure> {
    let read = |file: &PathBuf| std::fs::read(file).map_err(|error| Failure::read(file, &error));
    let bytes = files.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    let slices: Vec<&[u8]> = bytes.iter().map(Vec::as_slice).collect();
    Reference::parse(&slices).map_err(|error| {
        let names: Vec<_> = files
            .iter()
            .map(|file| file.display().to_string())
            .collect();
        Failure::new(Exit::BadData, format!("{}: {error}", names.join(", ")))
    })
}

fn to_json(report: &PromptReport) -> Json {
    json!({
        "name": report.name,
        "max_abs_logit_diff": report.max_abs_logit_diff,
        "mean_kl": report.mean_kl,
        "top1_agreement": report.top1_agreement,
        "hidden_max_rel": report.hidden_max_rel,
        "expert_weight_max_rel": report.expert_weight_max_rel,
        "greedy_match": report.greedy_match,
        "greedy_first_diff": report.greedy_first_diff,
        "router_match": report.router_match,
        "index_topk_match": report.index_topk_match,
        "index_rows_compared": report.index_rows_compared,
        "index_rows_close": report.index_rows_close,
        "near_ties": report.near_ties,
        "outside": report.outside(&Bounds::EXACT).iter().map(|measure| measure.name()).collect::<Vec<_>>(),
        "first_diffs": report.first_diffs,
    })
}

/// A line a prompt, then what left the bounds.
fn table(reports: &[PromptReport]) -> String {
    let bounds = Bounds::EXACT;
    let mut out = format!(
        "{:<16} {:>10} {:>10} {:>7} {:>10} {:>7} {:>7} {:>13}\n",
        "prompt",
        "max |Δlogit|",
        "mean KL",
        "top-1",
        "hidden rel",
        "router",
        "greedy",
        "index top-k"
    );
    for report in reports {
        let same = |ok: bool| if ok { "same" } else { "DIFFERS" };
        let (compared, close) = (report.index_rows_compared, report.index_rows_close);
        let index = match compared {
            0 => "none compared".to_owned(),
            _ => format!(
                "{} {compared}/{}",
                same(report.index_topk_match),
                compared + close
            ),
        };
        out += &format!(
            "{:<16} {:>12.2e} {:>10.2e} {:>7.4} {:>10.2e} {:>7} {:>7} {:>13}\n",
            report.name,
            report.max_abs_logit_diff,
            report.mean_kl,
            report.top1_agreement,
            report.hidden_max_rel,
            same(report.router_match),
            same(report.greedy_match),
            index,
        );
    }
    out += &format!(
        "Bounds of exact arithmetic: max |Δlogit| {:.0e}, hidden and expert weights {:.0e} relative, the rest the same.\n",
        bounds.logit, bounds.relative
    );
    let failed: Vec<_> = reports
        .iter()
        .filter(|report| !report.outside(&bounds).is_empty())
        .collect();
    for report in &failed {
        let names: Vec<_> = report
            .outside(&bounds)
            .iter()
            .map(|measure| measure.name())
            .collect();
        out += &format!(
            "{}: outside the bounds: {}\n",
            report.name,
            names.join(", ")
        );
        out += &report
            .first_diffs
            .iter()
            .map(|diff| format!("  {diff}\n"))
            .collect::<String>();
    }
    match failed.len() {
        0 => out + &format!("All {} prompts lie within the bounds.\n", reports.len()),
        n => out + &format!("{n} of {} prompts leave the bounds.\n", reports.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epsilon_is_a_finite_number() {
        assert_eq!(epsilon("1e-6"), Ok(1e-6));
        assert!(epsilon("-1").is_err());
        assert!(epsilon("inf").is_err());
        assert!(epsilon("small").is_err());
    }
}
