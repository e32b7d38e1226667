//! `glim synth`: a model of a real shape with random weights, for measurements and proofs that need its size.

mod text;

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::builder::{PossibleValuesParser, RangedU64ValueParser, TypedValueParser};
use clap::{ArgAction, Args};
use glim_model::synth::{self, Changes, Data, Shape, SynthError, SynthPlan, Target, TypeRule};
use serde_json::json;

use crate::exit::{Exit, Failure};
use crate::progress::{Progress, Unit};
use crate::ui::Ui;
use crate::units;

const EXAMPLES: &str = "\
The same options give the same bytes, on any machine. Weights are sized so that a step stays in range; the text that such \
a model makes is noise. Tokenizer and chat template are those of the built-in model, with unused tokens up to the shape's \
vocabulary. With --sparse the headers are real and the data is holes that read as zeros: a file of full size that takes \
no room.

TYPE is a mix of llama.cpp's quantiser (q4_k_m, q6_k, iq4_xs, …), that of a published file (ud-q2_k_xl: Unsloth's \
GLM-5.2; q8_0-q4_k: AesSedai's GLM-5.1), or a block type that no mix is named after (iq2_xs, tq1_0, …) for every matrix.

Examples:
  glim synth tiny.gguf --shape tiny --type q8_0
  glim synth small.gguf --shape glm-5 --layers 5 --experts 16 --no-mtp
  glim synth glm-5.2.gguf --shape glm-5.2 --type ud-q2_k_xl --sparse --split 10";

/// Options of `glim synth`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SynthArgs {
    /// File to write; of a split set, the name without its numbers
    #[arg(value_name = "OUT.gguf")]
    out: PathBuf,
    /// Sizes of this model
    #[arg(long, value_parser = shapes())]
    shape: Shape,
    /// What weights are stored as
    #[arg(long = "type", value_name = "TYPE", default_value = "q4_k_m", value_parser = rule)]
    types: TypeRule,
    /// Only the first trunk layers [default: all]
    #[arg(long, value_name = "N")]
    layers: Option<usize>,
    /// Routed experts in a layer [default: as the shape has]
    #[arg(long, value_name = "N")]
    experts: Option<usize>,
    /// Rows of embedding and head [default: as the shape has]
    #[arg(long, value_name = "N")]
    vocab: Option<usize>,
    /// Leave out the MTP block
    #[arg(long, action = ArgAction::SetTrue)]
    no_mtp: bool,
    /// Other weights
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Write no weights: holes in their place
    #[arg(long)]
    sparse: bool,
    /// Write a set of so many files
    #[arg(long, value_name = "PARTS", value_parser = RangedU64ValueParser::<usize>::new().range(1..=10_000))]
    split: Option<usize>,
}

fn shapes() -> impl TypedValueParser<Value = Shape> {
    let named = |name: String| Shape::ALL.iter().copied().find(|s| s.name() == name);
    PossibleValuesParser::new(Shape::ALL.iter().map(|shape| shape.name()))
        // Only the names of shapes come through.
        .map(move |name| named(name).unwrap_or(Shape::Tiny))
}

fn rule(name: &str) -> Result<TypeRule, SynthError> {
    TypeRule::from_name(name)
}

pub(crate) fn run(args: &SynthArgs, ui: &Ui) -> Result<Exit, Failure> {
    let stem = stem(&args.out)?;
    let config = args.shape.config(Changes {
        layers: args.layers,
        experts: args.experts,
        vocab: args.vocab,
        no_mtp: args.no_mtp,
    })?;
    let text = text::keys(config.vocab_size)?;
    let name = format!("Synthetic {}", args.shape.name());
    let plan = SynthPlan::new(&config, args.types, &name, &text)?;
    let data = if args.sparse {
        Data::Holes
    } else {
        Data::random(args.seed)
    };
    let target = match args.split {
        None => Target::File(&args.out),
        Some(parts) => Target::Split {
            dir: args.out.parent().unwrap_or(Path::new("")),
            stem,
            parts,
        },
    };
    let start = Instant::now();
    let mut progress = Progress::new(ui, "writing", Unit::Bytes, plan.data_bytes());
    let written = synth::write(&plan, data, target, &mut |n| progress.add(n));
    drop(progress);
    report(args, &plan, &written?, start.elapsed().as_secs_f64(), ui)
}

/// The name of the file without `.gguf`.
fn stem(out: &Path) -> Result<&str, Failure> {
    let name = out.file_name().and_then(|name| name.to_str());
    let stem = name.and_then(|name| name.strip_suffix(".gguf"));
    stem.filter(|stem| !stem.is_empty()).ok_or_else(|| {
        Failure::usage(format!(
            "{}: the name of the file to write must end in .gguf",
            out.display()
        ))
    })
}

fn report(
    args: &SynthArgs,
    plan: &SynthPlan,
    paths: &[PathBuf],
    seconds: f64,
    ui: &Ui,
) -> Result<Exit, Failure> {
    let mut bytes = 0;
    for path in paths {
        let meta = std::fs::metadata(path).map_err(|error| Failure::read(path, &error))?;
        bytes += meta.len();
    }
    let names: Vec<String> = paths.iter().map(|p| p.display().to_string()).collect();
    let (tensors, parameters) = (plan.tensors.len(), plan.parameters());
    if ui.json {
        ui.print_json(&json!({
            "paths": names, "tensors": tensors, "params": parameters, "bytes": bytes, "seed": args.seed,
            "sparse": args.sparse, "seconds": seconds,
        }))?;
        return Ok(Exit::Ok);
    }
    let files = match names.as_slice() {
        [one] => one.clone(),
        [first, ..] => format!("{first} and {} more", names.len() - 1),
        [] => String::new(),
    };
    let parameters = units::count(parameters);
    let size = units::bytes(bytes);
    let how = if args.sparse {
        format!("of holes, in {seconds:.1} s")
    } else {
        let rate = units::bytes((bytes as f64 / seconds.max(1e-9)) as u64);
        format!("in {seconds:.1} s ({rate}/s)")
    };
    ui.print(&format!(
        "{files}: {tensors} tensors, {parameters} parameters, {size} {how}\n"
    ))?;
    Ok(Exit::Ok)
}
