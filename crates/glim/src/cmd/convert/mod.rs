//! `glim convert`: a Hugging Face checkpoint as a GGUF file, as llama.cpp's converter writes it.

mod tokenizer;

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{Args, ValueEnum};
use glim_model::Checkpoint;
use glim_model::checkpoint::{HfFolder, Source};
use glim_model::export::{self, ExportPlan, FileType, General};
use glim_plan::GgmlType;
use glim_text::{TextOptions, from_hf};
use serde_json::json;

use crate::exit::{Exit, Failure};
use crate::progress::{Progress, Unit};
use crate::ui::Ui;
use crate::units;

const EXAMPLES: &str = "\
Norms, biases and router stay F32, as does the projection of the index heads; a matrix whose rows are no whole blocks \
becomes F16. The MTP block is kept. OUT.gguf appears when it is whole; a file of that name is replaced.

Examples:
  glim convert path/to/GLM-5 glm-5.gguf
  glim convert path/to/GLM-5 glm-5-q8_0.gguf --type q8_0";

/// Options of `glim convert`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ConvertArgs {
    /// Hugging Face checkpoint folder: config.json, safetensors, tokenizer
    #[arg(value_name = "HF_DIR")]
    folder: PathBuf,
    /// File to write
    #[arg(value_name = "OUT.gguf")]
    out: PathBuf,
    /// What most weights are stored as
    #[arg(long = "type", value_name = "TYPE", default_value = "bf16")]
    file_type: TypeChoice,
    /// Name this pre-tokenizer in the file, whatever the folder's tokenizer.json says
    #[arg(long, value_name = "NAME")]
    pre: Option<String>,
}

// (Doc comments would turn `--help` into its long form.)
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TypeChoice {
    F32,
    Bf16,
    F16,
    #[value(name = "q8_0")]
    Q8_0,
}

impl TypeChoice {
    fn file_type(self) -> FileType {
        match self {
            Self::F32 => FileType::F32,
            Self::Bf16 => FileType::Bf16,
            Self::F16 => FileType::F16,
            Self::Q8_0 => FileType::Q8_0,
        }
    }
}

pub(crate) fn run(args: &ConvertArgs, ui: &Ui) -> Result<Exit, Failure> {
    // Also keeps a slip from replacing a file of the checkpoint itself.
    if args.out.extension().is_none_or(|e| e != "gguf") {
        let out = args.out.display();
        return Err(Failure::usage(format!(
            "{out}: the name of the file to write must end in .gguf"
        )));
    }
    let checkpoint = Checkpoint::open(&args.folder)?;
    let folder = hf_folder(&checkpoint, &args.folder)?;
    for oddity in checkpoint.oddities() {
        ui.detail(|| format!("note: {oddity}"));
    }
    let options = TextOptions {
        pre: args.pre.as_deref(),
    };
    let text = from_hf::read_with(&args.folder, options)?;
    let text = tokenizer::keys(&text, folder, checkpoint.config().vocab_size)?;
    let general = General::of_folder(&args.folder)?;
    let plan = ExportPlan::new(&checkpoint, args.file_type.file_type(), &general, &text)?;
    tell_fallbacks(&plan, args.file_type, ui);

    let start = Instant::now();
    let mut progress = Progress::new(ui, "converting", Unit::Bytes, plan.data_bytes());
    let written = export::write(&checkpoint, &plan, &args.out, &mut |n| progress.add(n));
    drop(progress);
    written?;
    report(&plan, &args.out, start.elapsed().as_secs_f64(), ui)
}

fn hf_folder<'a>(checkpoint: &'a Checkpoint, path: &Path) -> Result<&'a HfFolder, Failure> {
    match checkpoint.source() {
        Source::Hf(folder) => Ok(folder),
        Source::Gguf(_) => Err(Failure::usage(format!(
            "{} is a GGUF model: only Hugging Face folders are converted",
            path.display()
        ))
        .hint(
            "the folder needs config.json and model.safetensors, or several files and their index",
        )),
    }
}

/// A matrix that is larger than the user asked for should not be a surprise.
fn tell_fallbacks(plan: &ExportPlan<'_>, choice: TypeChoice, ui: &Ui) {
    let wanted = choice.file_type().ggml_type();
    let is_fallback = |ty: GgmlType| ty == GgmlType::F16 && wanted != GgmlType::F16;
    let n = plan.tensors.iter().filter(|t| is_fallback(t.ty)).count();
    if n > 0 {
        let (these, name) = (
            if n == 1 { "tensor has" } else { "tensors have" },
            wanted.name(),
        );
        ui.note(&format!(
            "note: {n} {these} rows that are no whole blocks of {name}: stored as F16"
        ));
    }
}

fn report(plan: &ExportPlan<'_>, out: &Path, seconds: f64, ui: &Ui) -> Result<Exit, Failure> {
    let bytes = std::fs::metadata(out)
        .map_err(|error| Failure::read(out, &error))?
        .len();
    let (path, tensors) = (out.display().to_string(), plan.tensors.len());
    if ui.json {
        ui.print_json(
            &json!({ "path": path, "tensors": tensors, "bytes": bytes, "seconds": seconds }),
        )?;
    } else {
        let rate = units::bytes((bytes as f64 / seconds.max(1e-9)) as u64);
        let bytes = units::bytes(bytes);
        ui.print(&format!(
            "{path}: {tensors} tensors, {bytes}, in {seconds:.1} s ({rate}/s)\n"
        ))?;
    }
    Ok(Exit::Ok)
}
