//! Level 1: the file by itself. Header and completeness, numbers that cannot be weights, copies, and the digest.

use std::collections::BTreeMap;

use glim_quant::scan;

use super::digest::{self, Digest, Hash};
use super::pass::{self, Found};
use super::report::{Check, Level, Timer};
use super::stored::{StoredTensor, stored, stored_bytes};
use super::words::{bytes, counted};
use super::{Progress, copies, norms};
use crate::checkpoint::{Checkpoint, Source};
use crate::error::ModelError;

const CONTAINER: &str = "container";

/// What level 1 found.
#[derive(Debug, Clone)]
pub struct FileProof {
    /// `container`, `values`, `vectors`, `copies`, `digest`.
    pub checks: Vec<Check>,
    /// The model's digest.
    pub digest: Digest,
}

/// Level 1, in one pass over the bytes. `progress` is called with bytes that add up to [`file_bytes`].
///
/// - `container`: what had to hold for the checkpoint to open, with counts.
/// - `values`: no NaN, no infinity, and no magnitude beyond [`scan::MAX_WEIGHT`], by the scales of blocks and the elements of floats;
///   rows that are all zeros, and holes of sparse files, are counted in the detail.
/// - `vectors`: the range of norms and the digits of router biases. It never fails; its detail remarks on what stands out.
/// - `copies`: no two layers hold the same bytes in one role, but for shared indexers.
/// - `digest`: always passes; its detail is the [`Digest`].
pub fn file(checkpoint: &Checkpoint, progress: Progress<'_>) -> FileProof {
    let timer = Timer::start(Level::File, CONTAINER);
    let tensors = stored(checkpoint);
    let container = container(checkpoint, &tensors, timer);
    let timer = Timer::start(Level::File, "values");
    let found = pass::walk(&tensors, progress);
    let values = values(&tensors, &found, timer);
    let vectors = norms::check(checkpoint, &tensors);
    let data: Vec<Hash> = found.iter().map(|found| found.data).collect();
    let copies = copies::check(checkpoint, &tensors, &data);
    let timer = Timer::start(Level::File, "digest");
    let digest = digest::digest(checkpoint, &tensors, &data);
    let covered = format!(
        "names, types, shapes and bytes of {}, keys",
        counted(tensors.len(), "tensor")
    );
    FileProof {
        checks: vec![
            container,
            values,
            vectors,
            copies,
            timer.passed(covered, 0, digest.to_string()),
        ],
        digest,
    }
}

/// The bytes that [`file`] reports as progress: those of all stored tensors, holes included.
pub fn file_bytes(checkpoint: &Checkpoint) -> u64 {
    stored_bytes(checkpoint)
}

/// The failed check of level 1 that a checkpoint which does not open is.
pub fn of_open_error(error: &ModelError) -> Check {
    let timer = Timer::start(Level::File, CONTAINER);
    timer.failed("header", 0, error.to_string(), None)
}

fn container(checkpoint: &Checkpoint, tensors: &[StoredTensor<'_>], timer: Timer) -> Check {
    let files = match checkpoint.source() {
        Source::Gguf(gguf) => counted(gguf.parts().len(), "file"),
        Source::Hf(_) => "the folder's files".to_owned(),
    };
    let logical = checkpoint.tensors().len() + checkpoint.mtp_tensors().len();
    let mut detail = format!(
        "sizes and places of {} hold, and all {} of the configuration are there",
        counted(tensors.len(), "stored tensor"),
        counted(logical, "tensor")
    );
    if checkpoint.config().n_mtp_layers > 0 && checkpoint.mtp_tensors().is_empty() {
        detail.push_str(", without the MTP block");
    }
    for oddity in checkpoint.oddities() {
        detail.push_str("; ");
        detail.push_str(oddity);
    }
    timer.passed(
        format!("{files}, {}", counted(tensors.len(), "tensor")),
        0,
        detail,
    )
}

fn values(tensors: &[StoredTensor<'_>], found: &[Found], timer: Timer) -> Check {
    let total: u64 = tensors.iter().map(|tensor| tensor.len as u64).sum();
    let there: u64 = tensors.iter().map(|tensor| tensor.data_len() as u64).sum();
    let covered = format!("{}, {}", counted(tensors.len(), "tensor"), bytes(total));
    let mut notes = Vec::new();
    if there < total {
        notes.push(format!(
            "holes: {} bytes, read as zeros",
            super::words::thousands(total - there)
        ));
    }
    if let Some(note) = zero_rows(tensors, found) {
        notes.push(note);
    }
    let mut unknown: BTreeMap<&str, usize> = BTreeMap::new();
    for tensor in tensors.iter().filter(|tensor| !scan::can_scan(tensor.ty)) {
        *unknown.entry(tensor.ty.name()).or_default() += 1;
    }
    for (ty, n) in unknown {
        notes.push(format!(
            "{} of type {ty} not looked at, as its scales are not known here",
            counted(n, "tensor")
        ));
    }

    let mut bad = tensors.iter().zip(found).filter_map(|(tensor, found)| {
        let (element, expected, found) = found.implausible.clone()?;
        Some((tensor, tensor.bad(element, expected, found)))
    });
    let Some((tensor, first_bad)) = bad.next() else {
        return timer.passed(covered, there, notes.join("; "));
    };
    let mut detail = format!(
        "`{}` ({}) holds a number that no weight is; get the file again, or convert it again",
        tensor.name, tensor.ty
    );
    match bad.count() {
        0 => {}
        n => detail.push_str(&format!("; so do {}", counted(n, "other tensor"))),
    }
    for note in notes {
        detail.push_str("; ");
        detail.push_str(&note);
    }
    timer.failed(covered, there, detail, Some(first_bad))
}

fn zero_rows(tensors: &[StoredTensor<'_>], found: &[Found]) -> Option<String> {
    let rows: usize = found.iter().map(|found| found.zero_rows).sum();
    let (tensor, row) = tensors
        .iter()
        .zip(found)
        .find_map(|(tensor, found)| Some((tensor, found.first_zero_row?)))?;
    Some(format!(
        "{} of nothing but zeros, the first is row {row} of `{}` (a vocabulary's spare rows may be)",
        counted(rows, "row"),
        tensor.name
    ))
}
