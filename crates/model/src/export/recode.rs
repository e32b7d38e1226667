//! Bytes of one type into another: decode, check, encode, on all cores.
//!
//! A tensor comes in pieces, a piece is cut into chunks, and each thread turns one chunk at a time from the stored type
//! to f32 and on to the new one. What has the new type already is passed on as it is.

use std::borrow::Cow;
use std::io::{self, Write};
use std::ops::ControlFlow;

use glim_quant::{GgmlType, QuantError, dequantize, quantize};

use super::ExportError;

/// Elements that a thread converts at a time: a whole number of blocks of every type.
const CHUNK_ELEMENTS: usize = 1 << 20;
/// Most threads: beyond them the disk is the limit.
const MAX_THREADS: usize = 16;
/// Numbers from here on round to infinity in F16: half-way between 65504 and what would be next.
const F16_INFINITY: f32 = 65520.0;

/// The buffers of all threads.
pub(super) struct Recoder {
    jobs: Vec<Job>,
}

/// Why a tensor's turn ended.
pub(super) enum Failure {
    /// Its bytes could not be written.
    Io(io::Error),
    /// They could not be had, or not be encoded.
    Export(ExportError),
}

/// Is told of bytes that were written; [`ControlFlow::Break`] ends the job.
pub type Progress<'a> = dyn FnMut(u64) -> ControlFlow<()> + 'a;

/// Writes bytes and tells of them.
pub(super) fn put(
    out: &mut dyn Write,
    bytes: &[u8],
    progress: &mut Progress<'_>,
) -> Result<(), Failure> {
    out.write_all(bytes).map_err(Failure::Io)?;
    match progress(bytes.len() as u64) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(Failure::Export(ExportError::Stopped)),
    }
}

/// Which tensor of which source, for messages.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) origin: &'a str,
    pub(super) tensor: &'a str,
}

impl Recoder {
    pub(super) fn new() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let jobs = (0..threads.min(MAX_THREADS)).map(|_| Job::default());
        Self {
            jobs: jobs.collect(),
        }
    }

    /// Hands the bytes of `pieces`, turned from one type into another, to `put`.
    pub(super) fn run<'p>(
        &mut self,
        pieces: impl Iterator<Item = Cow<'p, [u8]>>,
        (from, to): (GgmlType, GgmlType),
        place: Place<'_>,
        put: &mut dyn FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let chunk_bytes = CHUNK_ELEMENTS / from.block_elems() * from.block_bytes();
        let mut first = 0u64;
        for piece in pieces {
            for batch in piece.chunks(chunk_bytes * self.jobs.len()) {
                if from == to {
                    put(batch)?;
                    continue;
                }
                let chunks: Vec<&[u8]> = batch.chunks(chunk_bytes).collect();
                let jobs = &mut self.jobs[..chunks.len()];
                run(jobs, &chunks, from, to);
                for job in jobs {
                    if let Some(refused) = job.refused.take() {
                        return Err(Failure::Export(refused.at(place, first)));
                    }
                    put(&job.bytes)?;
                    first += job.values.len() as u64;
                }
            }
        }
        Ok(())
    }
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
    fn at(self, place: Place<'_>, first: u64) -> ExportError {
        let (origin, tensor) = (place.origin.to_owned(), place.tensor.to_owned());
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
