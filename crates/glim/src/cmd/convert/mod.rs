//! `glim convert`: a Hugging Face folder as a GGUF file, as llama.cpp's converter writes it, and the way back.

mod size;
mod to_gguf;
mod to_hf;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{Args, ValueEnum};
use glim_model::Checkpoint;
use glim_model::checkpoint::Source;
use glim_model::export::{self, ExportError, Mtp};
use serde_json::json;

use crate::exit::{Exit, Failure};
use crate::interrupt::Interrupt;
use crate::progress::{Progress, Unit};
use crate::ui::Ui;
use crate::units;

const EXAMPLES: &str = "\
From a Hugging Face folder, OUT is a .gguf file. Norms, biases and router stay F32, as does the projection of the index \
heads; a matrix whose rows are no whole blocks becomes F16. FP8 weights are multiplied with their scales and rounded \
once. A file of that name is replaced.

From a GGUF model, OUT is a folder that does not exist or is empty: config.json, safetensors, tokenizer and chat \
template. F32, F16 and BF16 weights are kept as they are; quantised ones are decoded, and rounded to TYPE.

OUT appears when it is whole.

Examples:
  glim convert path/to/GLM-5 glm-5.gguf
  glim convert path/to/GLM-5-FP8 glm-5-q8_0.gguf --type q8_0 --split-size 45G
  glim convert glm-5-00001-of-00010.gguf path/to/folder";

/// Options of `glim convert`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ConvertArgs {
    /// Hugging Face checkpoint folder, or GGUF file (any part of a split set)
    #[arg(value_name = "IN")]
    input: PathBuf,
    /// What to write: a .gguf file from a folder, a folder from a GGUF
    #[arg(value_name = "OUT")]
    out: PathBuf,
    /// What most weights are stored as; to a folder, what quantised weights become
    #[arg(long = "type", value_name = "TYPE", default_value = "bf16")]
    file_type: TypeChoice,
    /// Leave out the MTP (NextN) blocks
    #[arg(long)]
    no_mtp: bool,
    /// Largest file, e.g. 45G or 500M (powers of 1000); what is larger is cut into OUT-00001-of-0000N.gguf and so on.
    /// Files of a folder have at most 5G of weights unless this says otherwise
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    split_size: Option<u64>,
    /// Name this pre-tokenizer, whatever the input says
    #[arg(long, value_name = "NAME")]
    pre: Option<String>,
    /// Leave out tokenizer and chat template
    #[arg(long, conflicts_with = "pre")]
    no_tokenizer: bool,
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

/// What was written.
struct Written {
    /// What the user named, or the first part of a set.
    path: PathBuf,
    files: Vec<PathBuf>,
    tensors: usize,
}

pub(crate) fn run(args: &ConvertArgs, ui: &Ui) -> Result<Exit, Failure> {
    let checkpoint = Checkpoint::open(&args.input)?;
    for oddity in checkpoint.oddities() {
        ui.detail(|| format!("note: {oddity}"));
    }
    let start = Instant::now();
    let interrupt = Interrupt::on_ctrl_c()?;
    let written = match checkpoint.source() {
        Source::Hf(folder) => to_gguf::run(args, &checkpoint, folder, &interrupt, ui)?,
        Source::Gguf(gguf) => to_hf::run(args, &checkpoint, gguf, &interrupt, ui)?,
    };
    report(&written, start.elapsed().as_secs_f64(), ui)
}

/// Carries an export out with a bar. Ctrl-C ends the process once nothing half-written is left.
fn with_progress<T>(
    total: u64,
    interrupt: &Interrupt,
    ui: &Ui,
    write: impl FnOnce(&mut export::Progress<'_>) -> Result<T, ExportError>,
) -> Result<T, Failure> {
    let mut bar = Progress::new(ui, "converting", Unit::Bytes, total);
    let written = write(&mut |bytes| {
        bar.add(bytes);
        if interrupt.is_set() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    drop(bar);
    match written {
        Err(ExportError::Stopped) => interrupt.end(),
        written => Ok(written?),
    }
}

impl ConvertArgs {
    fn mtp(&self) -> Mtp {
        if self.no_mtp { Mtp::Drop } else { Mtp::Keep }
    }
}

fn report(written: &Written, seconds: f64, ui: &Ui) -> Result<Exit, Failure> {
    let size = |path: &PathBuf| {
        let meta = std::fs::metadata(path).map_err(|error| Failure::read(path, &error))?;
        Ok(meta.len())
    };
    let bytes: u64 = written
        .files
        .iter()
        .map(size)
        .sum::<Result<u64, Failure>>()?;
    let (path, tensors) = (shown(&written.path), written.tensors);
    if ui.json {
        let files: Vec<String> = written.files.iter().map(|file| shown(file)).collect();
        ui.print_json(&json!({
            "path": path, "files": files, "tensors": tensors, "bytes": bytes, "seconds": seconds,
        }))?;
    } else {
        let rate = units::bytes((bytes as f64 / seconds.max(1e-9)) as u64);
        let bytes = units::bytes(bytes);
        let files = match written.files.len() {
            1 => String::new(),
            n => format!(" in {n} files"),
        };
        ui.print(&format!(
            "{path}: {tensors} tensors, {bytes}{files}, in {seconds:.1} s ({rate}/s)\n"
        ))?;
    }
    Ok(Exit::Ok)
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}
