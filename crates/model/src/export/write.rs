//! Carrying a plan for a GGUF file out.

use std::cell::RefCell;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use glim_gguf::{GgufError, Source, Writer};

use super::recode::{Failure, Place, Progress, Recoder, put};
use super::{ExportError, ExportPlan, ExportTensor};
use crate::checkpoint::Checkpoint;

/// Writes the file at `path`; one that is there is replaced. `progress` is called with the bytes of a piece of tensor
/// data when it has been written; they add up to [`ExportPlan::data_bytes`]. It may end the job.
///
/// # Errors
/// The checkpoint cannot be read, the type cannot store its weights, the file cannot be written, or `progress` ended it.
/// No file is left behind then.
pub fn write(
    checkpoint: &Checkpoint,
    plan: &ExportPlan<'_>,
    path: &Path,
    progress: &mut Progress<'_>,
) -> Result<(), ExportError> {
    with_writer(checkpoint, plan, progress, |writer| writer.write(path))
}

/// As [`write()`], in parts of at most `max_bytes` each: `STEM-00001-of-0000N.gguf` in `dir`, or `STEM.gguf` if one file
/// does. A tensor that alone is larger has a larger part to itself. Returns the files in order.
///
/// # Errors
/// As [`write()`]; then there is no part at all.
pub fn write_split(
    checkpoint: &Checkpoint,
    plan: &ExportPlan<'_>,
    (dir, stem): (&Path, &str),
    max_bytes: u64,
    progress: &mut Progress<'_>,
) -> Result<Vec<PathBuf>, ExportError> {
    with_writer(checkpoint, plan, progress, |writer| {
        writer.write_split_by_size(dir, stem, max_bytes)
    })
}

fn with_writer<T>(
    checkpoint: &Checkpoint,
    plan: &ExportPlan<'_>,
    progress: &mut Progress<'_>,
    write: impl FnOnce(Writer<'_>) -> Result<T, GgufError>,
) -> Result<T, ExportError> {
    let origin = checkpoint.source().name();
    let shared = RefCell::new(Shared {
        recoder: Recoder::new(),
        failure: None,
        progress,
    });
    let mut writer = Writer::with_metadata(plan.metadata.clone());
    for tensor in &plan.tensors {
        let (shared, origin) = (&shared, &origin);
        let produce = move |out: &mut dyn Write| {
            let shared = &mut *shared.borrow_mut();
            let done = convert(checkpoint, origin, tensor, shared, out);
            done.map_err(|failure| match failure {
                Failure::Io(error) => error,
                Failure::Export(error) => {
                    // An `io::Error` is all that may pass through the writer: the reason waits here.
                    shared.failure = Some(error);
                    io::Error::other("a tensor cannot be converted")
                }
            })
        };
        let source = Source::Stream(Box::new(produce));
        writer.tensor(tensor.name(), &tensor.ggml_dims(), tensor.ty, source);
    }
    let written = write(writer);
    match shared.into_inner().failure {
        Some(failure) => Err(failure),
        None => Ok(written?),
    }
}

/// What the tensors' turns share.
struct Shared<'a> {
    recoder: Recoder,
    failure: Option<ExportError>,
    progress: &'a mut Progress<'a>,
}

fn convert(
    checkpoint: &Checkpoint,
    origin: &str,
    tensor: &ExportTensor<'_>,
    shared: &mut Shared<'_>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let pieces = checkpoint.pieces(tensor.desc);
    let pieces = pieces.map_err(|error| Failure::Export(error.into()))?;
    let place = Place {
        origin,
        tensor: tensor.name(),
    };
    let progress = &mut *shared.progress;
    let mut put = |bytes: &[u8]| put(out, bytes, progress);
    shared
        .recoder
        .run(pieces, (tensor.desc.ty, tensor.ty), place, &mut put)
}
