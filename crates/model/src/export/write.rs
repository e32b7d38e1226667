//! Carrying a plan out: decode, encode, write.
//!
//! A tensor comes in pieces, a piece is cut into chunks, and each thread turns one chunk at a time from the stored type
//! to f32 and on to the file's. What has the file's type already is copied.

use std::cell::RefCell;
use std::io::{self, Write};
use std::path::Path;

use glim_gguf::{Source, Writer};
use glim_quant::{GgmlType, QuantError, dequantize, quantize};

use super::{ExportError, ExportPlan, ExportTensor};
use crate::checkpoint::Checkpoint;

/// Elements that a thread converts at a time: a whole number of blocks of every type.
const CHUNK_ELEMENTS: usize = 1 << 20;
/// Most threads: beyond them the disk is the limit.
const MAX_THREADS: usize = 16;
/// Numbers from here on round to infinity in F16: half-way between 65504 and what would be next.
const F16_INFINITY: f32 = 65520.0;

/// Writes the file at `path`; one that is there is replaced. `progress` is called with the bytes of a piece of tensor
/// data when it has been written; they add up to [`ExportPlan::data_bytes`].
///
/// # Errors
/// The checkpoint cannot be read, the type cannot store its weights, or the file cannot be written. No file is left
/// behind then.
pub fn write(
    checkpoint: &Checkpoint,
    plan: &ExportPlan<'_>,
    path: &Path,
    progress: &mut dyn FnMut(u64),
) -> Result<(), ExportError> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let shared = RefCell::new(Shared {
        jobs: (0..threads.min(MAX_THREADS))
            .map(|_| Job::default())
            .collect(),
        failure: None,
        progress,
    });
    let mut writer = Writer::with_metadata(plan.metadata.clone());
    for tensor in &plan.tensors {
        let shared = &shared;
        let produce = move |out: &mut dyn Write| {
            let shared = &mut *shared.borrow_mut();
            let done = convert(checkpoint, tensor, shared, out);
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
    let written = writer.write(path);
    match shared.into_inner().failure {
        Some(failure) => Err(failure),
        None => Ok(written?),
    }
}

/// What the tensors' turns share.
struct Shared<'a> {
    jobs: Vec<Job>,
    failure: Option<ExportError>,
    progress: &'a mut dyn FnMut(u64),
}

/// Why a tensor's turn ended.
enum Failure {
    Io(io::Error),
    Export(ExportError),
}

fn convert(
    checkpoint: &Checkpoint,
    tensor: &ExportTensor<'_>,
    shared: &mut Shared<'_>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let from = tensor.desc.ty;
    let chunk_bytes = CHUNK_ELEMENTS / from.block_elems() * from.block_bytes();
    let pieces = checkpoint.pieces(tensor.desc);
    let mut first = 0u64;
    for piece in pieces.map_err(|error| Failure::Export(error.into()))? {
        for batch in piece.chunks(chunk_bytes * shared.jobs.len()) {
            if from == tensor.ty {
                put(out, batch, shared.progress)?;
                continue;
            }
            let chunks: Vec<&[u8]> = batch.chunks(chunk_bytes).collect();
            let jobs = &mut shared.jobs[..chunks.len()];
            run(jobs, &chunks, from, tensor.ty);
            for job in jobs {
                if let Some(refused) = job.refused.take() {
                    let error = refused.at(checkpoint, tensor, first);
                    return Err(Failure::Export(error));
                }
                put(out, &job.bytes, shared.progress)?;
                first += job.values.len() as u64;
            }
        }
    }
    Ok(())
}

fn put(out: &mut dyn Write, bytes: &[u8], progress: &mut dyn FnMut(u64)) -> Result<(), Failure> {
    out.write_all(bytes).map_err(Failure::Io)?;
    progress(bytes.len() as u64);
    Ok(())
}

/// Converts a chunk with each job, on as many threads; one alone runs here.
fn run(jobs: &mut [Job], chunks: &[&[u8]], from: GgmlType, to: GgmlType) {
    match (jobs, chunks) {
        ([job], [chunk]) => job.run(chunk, from, to),
        (jobs, chunks) => std::thread::scope(|scope| {
            for (job, chunk) in jobs.iter_mut().zip(chunks) {
                scope.spawn(move || job.run(chunk, from, to));
            }
        }),
    }
}

/// The buffers of one thread.
#[derive(Default)]
struct Job {
    values: Vec<f32>,
    bytes: Vec<u8>,
    refused: Option<Refused>,
}

/// Why a chunk cannot be converted.
enum Refused {
    Quant(QuantError),
    /// This element, counted in the chunk.
    BeyondF16(usize, f32),
}

impl Job {
    fn run(&mut self, chunk: &[u8], from: GgmlType, to: GgmlType) {
        let elements = chunk.len() / from.block_bytes() * from.block_elems();
        self.values.resize(elements, 0.0);
        self.bytes
            .resize(elements / to.block_elems() * to.block_bytes(), 0);
        self.refused = self.convert(chunk, from, to).err();
    }

    fn convert(&mut self, chunk: &[u8], from: GgmlType, to: GgmlType) -> Result<(), Refused> {
        dequantize(from, chunk, &mut self.values).map_err(Refused::Quant)?;
        if to == GgmlType::F16 {
            let beyond = |x: &f32| x.is_finite() && x.abs() >= F16_INFINITY;
            if let Some(i) = self.values.iter().position(beyond) {
                return Err(Refused::BeyondF16(i, self.values[i]));
            }
        }
        quantize(to, &self.values, &mut self.bytes).map_err(Refused::Quant)
    }
}

impl Refused {
    fn at(self, checkpoint: &Checkpoint, tensor: &ExportTensor<'_>, first: u64) -> ExportError {
        let (origin, tensor) = (checkpoint.source().name(), tensor.name().to_owned());
        match self {
            Self::Quant(source) => ExportError::Encode {
                origin,
                tensor,
                first,
                source,
            },
            Self::BeyondF16(element, found) => ExportError::BeyondF16 {
                origin,
                tensor,
                element: first + element as u64,
                found,
            },
        }
    }
}
