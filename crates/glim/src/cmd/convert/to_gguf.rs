//! From a Hugging Face folder to a GGUF file, or a set of them.

use std::path::Path;

use glim_gguf::Metadata;
use glim_model::Checkpoint;
use glim_model::checkpoint::HfFolder;
use glim_model::export::{self, ExportOptions, ExportPlan, FileType, General};
use glim_plan::GgmlType;
use glim_text::{TextOptions, from_hf, to_gguf};

use super::{ConvertArgs, TypeChoice, Written, with_progress};
use crate::exit::Failure;
use crate::interrupt::Interrupt;
use crate::ui::Ui;

const EXTENSION: &str = "gguf";

pub(super) fn run(
    args: &ConvertArgs,
    checkpoint: &Checkpoint,
    folder: &HfFolder,
    interrupt: &Interrupt,
    ui: &Ui,
) -> Result<Written, Failure> {
    // Also keeps a slip from replacing a file of the checkpoint itself.
    let stem = args.out.file_stem().and_then(|stem| stem.to_str());
    let (Some(stem), true) = (stem, args.out.extension().is_some_and(|e| e == EXTENSION)) else {
        let out = args.out.display();
        return Err(Failure::usage(format!(
            "{out}: the name of the file to write must end in .{EXTENSION}"
        ))
        .hint("IN is a Hugging Face folder, which becomes a GGUF file"));
    };
    let text = text(args, checkpoint, folder)?;
    let options = ExportOptions {
        file_type: file_type(args.file_type),
        mtp: args.mtp(),
    };
    let general = General::of_folder(&args.input)?;
    let plan = ExportPlan::new(checkpoint, options, &general, &text)?;
    tell_fallbacks(&plan, options.file_type, ui);

    let files = with_progress(plan.data_bytes(), interrupt, ui, |progress| {
        let Some(max_bytes) = args.split_size else {
            export::write(checkpoint, &plan, &args.out, progress)?;
            return Ok(vec![args.out.clone()]);
        };
        let dir = args.out.parent().unwrap_or(Path::new(""));
        export::write_split(checkpoint, &plan, (dir, stem), max_bytes, progress)
    })?;
    Ok(Written {
        path: files.first().unwrap_or(&args.out).clone(),
        files,
        tensors: plan.tensors.len(),
    })
}

fn text(
    args: &ConvertArgs,
    checkpoint: &Checkpoint,
    folder: &HfFolder,
) -> Result<Metadata, Failure> {
    if args.no_tokenizer {
        return Ok(Metadata::new());
    }
    let options = TextOptions {
        pre: args.pre.as_deref(),
    };
    let text = from_hf::read_with(&args.input, options)?;
    let origin = args.input.display().to_string();
    let vocab_size = checkpoint.config().vocab_size;
    Ok(to_gguf::metadata(
        &text,
        folder.config_json(),
        vocab_size,
        &origin,
    )?)
}

fn file_type(choice: TypeChoice) -> FileType {
    match choice {
        TypeChoice::F32 => FileType::F32,
        TypeChoice::Bf16 => FileType::Bf16,
        TypeChoice::F16 => FileType::F16,
        TypeChoice::Q8_0 => FileType::Q8_0,
    }
}

/// A matrix that is larger than the user asked for should not be a surprise.
fn tell_fallbacks(plan: &ExportPlan<'_>, file_type: FileType, ui: &Ui) {
    let wanted = file_type.ggml_type();
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
