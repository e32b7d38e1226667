//! From a GGUF model to a Hugging Face folder.

use std::path::PathBuf;

use glim_gguf::Gguf;
use glim_model::Checkpoint;
use glim_model::export::General;
use glim_model::export::hf::{self, DEFAULT_SHARD_BYTES, Float, HfOptions, HfPlan};
use glim_text::to_hf::HfText;
use glim_text::{TextOptions, from_gguf, to_hf};

use super::{ConvertArgs, TypeChoice, Written, with_progress};
use crate::exit::Failure;
use crate::interrupt::Interrupt;
use crate::ui::Ui;

pub(super) fn run(
    args: &ConvertArgs,
    checkpoint: &Checkpoint,
    gguf: &Gguf,
    interrupt: &Interrupt,
    ui: &Ui,
) -> Result<Written, Failure> {
    if args.out.extension().is_some_and(|e| e == "gguf") {
        let out = args.out.display();
        return Err(Failure::usage(format!(
            "{out}: names a file, but a GGUF model becomes a folder"
        ))
        .hint("IN is a GGUF model; a Hugging Face folder has config.json and model.safetensors, or several files and their index"));
    }
    // Before hours of work, not after them.
    hf::check_target(&args.out)?;
    let options = HfOptions {
        float: float(args.file_type)?,
        mtp: args.mtp(),
        shard_bytes: args.split_size.unwrap_or(DEFAULT_SHARD_BYTES),
    };
    let text = text(args, checkpoint, gguf)?;
    let general = General::of_gguf(gguf.metadata())?;
    let plan = HfPlan::new(checkpoint, options, &general, &text.token_ids)?;
    tell_rounding(&plan, options.float, ui);

    with_progress(plan.data_bytes(), interrupt, ui, |progress| {
        hf::write(checkpoint, &plan, &text.files, &args.out, progress)
    })?;
    Ok(Written {
        path: args.out.clone(),
        files: files(args)?,
        tensors: plan.tensors.len(),
    })
}

fn float(choice: TypeChoice) -> Result<Float, Failure> {
    match choice {
        TypeChoice::F32 => Ok(Float::F32),
        TypeChoice::Bf16 => Ok(Float::Bf16),
        TypeChoice::F16 => Ok(Float::F16),
        TypeChoice::Q8_0 => Err(Failure::usage(
            "--type q8_0: a Hugging Face folder holds f32, bf16 or f16",
        )),
    }
}

fn text(args: &ConvertArgs, checkpoint: &Checkpoint, gguf: &Gguf) -> Result<HfText, Failure> {
    if args.no_tokenizer {
        return Ok(HfText::default());
    }
    let options = TextOptions {
        pre: args.pre.as_deref(),
    };
    let read = from_gguf::read_with(gguf, options);
    let text = read.map_err(|error| {
        Failure::from(error).hint("--no-tokenizer leaves tokenizer and chat template out")
    })?;
    let max_context = checkpoint.config().max_context;
    let origin = args.input.display().to_string();
    Ok(to_hf::files(&text, max_context, &origin)?)
}

/// What is lost should not be a surprise.
fn tell_rounding(plan: &HfPlan<'_>, float: Float, ui: &Ui) {
    let n = plan
        .tensors
        .iter()
        .filter(|tensor| tensor.is_decoded())
        .count();
    if n > 0 {
        let rounded = match float {
            Float::F32 => "exact".to_owned(),
            _ => format!("rounded to {}", float.name()),
        };
        ui.note(&format!(
            "note: {n} tensors are quantised: their values are decoded, {rounded}"
        ));
    }
}

/// All files of the folder, by name.
fn files(args: &ConvertArgs) -> Result<Vec<PathBuf>, Failure> {
    let failed = |error| Failure::read(&args.out, &error);
    let entries = std::fs::read_dir(&args.out).map_err(failed)?;
    let mut files = entries
        .map(|entry| Ok(entry.map_err(failed)?.path()))
        .collect::<Result<Vec<PathBuf>, Failure>>()?;
    files.sort();
    Ok(files)
}
