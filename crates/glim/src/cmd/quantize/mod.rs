//! `glim quantize`: a GGUF file with other types.

mod report;

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use clap::builder::RangedU64ValueParser;
use glim_gguf::Gguf;
use glim_model::quantize::{Imatrix, Mix, Options, QuantizePlan, TypeFor};
use glim_plan::GgmlType;

use crate::exit::{Exit, Failure};
use crate::progress::{Progress, Unit};
use crate::ui::Ui;

const EXAMPLES: &str = "\
Types: f32 bf16 f16 q8_0 q6_k q5_k_m q5_k_s q5_1 q5_0 q4_1 q4_k_m q4_k_s q4_0 iq4_nl iq4_xs mxfp4 q3_k_l q3_k_m q3_k_s q2_k \
q2_k_s, and copy, which changes only what --tensor-type names. Which tensor gets what is llama.cpp's choice, tensor by \
tensor; --dry-run shows it. Vectors, norms and the router keep their type. Rows that are no whole blocks get a type with \
smaller blocks.

PATTERN is a regular expression that is looked for in the names of tensors; the first --tensor-type that matches counts.

The source may be of any type; what was quantised before loses more than once, so start from bf16 if you can. OUT.gguf is \
one file, appears when it is whole, and replaces a file of that name.

Examples:
  glim quantize glm-5-bf16.gguf glm-5-q4_k_m.gguf --type q4_k_m
  glim quantize in.gguf out.gguf --type q4_k_m --imatrix imatrix.gguf --tensor-type 'attn_[kv]_b=q8_0'
  glim quantize in.gguf --type iq4_xs --dry-run";

/// Options of `glim quantize`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct QuantizeArgs {
    /// A .gguf file (any part of a split set)
    #[arg(value_name = "IN.gguf")]
    source: PathBuf,
    /// File to write
    #[arg(value_name = "OUT.gguf", required_unless_present = "dry_run")]
    out: Option<PathBuf>,
    /// What most weights become (see below)
    #[arg(long = "type", value_name = "TYPE", value_parser = target)]
    target: Target,
    /// Importance matrix that weights the columns: a file of `glim imatrix` or llama.cpp
    #[arg(long, value_name = "FILE")]
    imatrix: Option<PathBuf>,
    /// Type of the tensors whose name matches; can be given several times
    #[arg(long, value_name = "PATTERN=TYPE", value_parser = type_for)]
    tensor_type: Vec<TypeFor>,
    /// Type of output.weight
    #[arg(long, value_name = "TYPE", value_parser = tensor_type)]
    output_tensor_type: Option<GgmlType>,
    /// Type of token_embd.weight
    #[arg(long, value_name = "TYPE", value_parser = tensor_type)]
    token_embedding_type: Option<GgmlType>,
    /// One type for all weights, without better ones for those that matter more
    #[arg(long)]
    pure: bool,
    /// Only show what each tensor would become, and why
    #[arg(long)]
    dry_run: bool,
    /// Threads [default: one for each core]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=1024))]
    threads: Option<usize>,
}

/// A mix, or `copy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Copy,
    Mix(Mix),
}

impl Target {
    fn mix(self) -> Option<Mix> {
        match self {
            Self::Copy => None,
            Self::Mix(mix) => Some(mix),
        }
    }

    fn name(self) -> &'static str {
        self.mix().map_or("copy", Mix::name)
    }
}

fn target(name: &str) -> Result<Target, String> {
    if name.eq_ignore_ascii_case("copy") {
        return Ok(Target::Copy);
    }
    let mix = Mix::from_name(name).map_err(|error| error.to_string())?;
    Ok(Target::Mix(mix))
}

fn type_for(text: &str) -> Result<TypeFor, String> {
    TypeFor::parse(text).map_err(|error| error.to_string())
}

fn tensor_type(name: &str) -> Result<GgmlType, String> {
    let ty = GgmlType::from_name(name).filter(|ty| ty.can_encode());
    ty.ok_or_else(|| {
        let types = GgmlType::ALL.iter().filter(|ty| ty.can_encode());
        let names: Vec<String> = types.map(|ty| ty.name().to_lowercase()).collect();
        format!("expected one of {}", names.join(", "))
    })
}

pub(crate) fn run(args: &QuantizeArgs, ui: &Ui) -> Result<Exit, Failure> {
    // Also keeps a slip from replacing something else.
    if let Some(out) = &args.out
        && out.extension().is_none_or(|e| e != "gguf")
    {
        return Err(Failure::usage(format!(
            "{}: the name of the file to write must end in .gguf",
            out.display()
        )));
    }
    let source = open(&args.source)?;
    let imatrix = args.imatrix.as_deref().map(Imatrix::open).transpose()?;
    let options = Options {
        mix: args.target.mix(),
        pure: args.pure,
        output: args.output_tensor_type,
        token_embedding: args.token_embedding_type,
        types: args.tensor_type.clone(),
        has_imatrix: imatrix.is_some(),
    };
    let plan = QuantizePlan::new(&source, &options, imatrix.as_ref())?;
    report::tell_notes(&plan, imatrix.is_some(), ui);
    let out = match &args.out {
        Some(out) if !args.dry_run => out,
        _ => return report::plan(&plan, args.target.name(), ui),
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let start = Instant::now();
    let mut progress = Progress::new(ui, "quantising", Unit::Bytes, plan.data_bytes());
    let written = plan.write(out, args.threads.unwrap_or(cores), &mut |n| progress.add(n));
    drop(progress);
    written?;
    let seconds = start.elapsed().as_secs_f64();
    report::written(&plan, args.target.name(), out, seconds, ui)
}

/// A folder of a Hugging Face checkpoint is the likeliest slip.
fn open(path: &Path) -> Result<Gguf, Failure> {
    let opened = Gguf::open(path);
    if opened.is_err() && path.join("config.json").is_file() {
        let folder = path.display();
        let message =
            format!("{folder} is a Hugging Face folder, and only GGUF files are quantised");
        let hint = format!("convert it first: glim convert {folder} model-bf16.gguf --type bf16");
        return Err(Failure::usage(message).hint(hint));
    }
    Ok(opened?)
}
