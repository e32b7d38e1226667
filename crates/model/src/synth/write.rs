//! Carrying a plan out: blocks from all threads, to the disk in order.
//!
//! While one batch of chunks is written, the threads make the next, so that either the disk or the cores are busy all the
//! time. A chunk depends on the tensor's name, the seed and its place alone.

use std::cell::RefCell;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use glim_gguf::{Source, Writer};

use super::{
    Blocks, Fill, ROUTER_BIAS_MEANS, ROUTER_BIAS_SPREAD, Stream, SynthError, SynthPlan, SynthTensor,
};

/// Bytes that a thread makes at a time, about.
const CHUNK_BYTES: usize = 1 << 22;
/// Most threads: beyond them the disk is the limit.
const MAX_THREADS: usize = 16;

/// What stands in the data section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Data {
    /// Random weights of this seed, made by so many threads.
    Random {
        /// Another seed, other weights.
        seed: u64,
        /// At least 1; the bytes do not depend on it.
        threads: usize,
    },
    /// Nothing: the file has its full length, and its tensors read as zeros.
    Holes,
}

impl Data {
    /// Random weights, made by all cores.
    pub fn random(seed: u64) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self::Random {
            seed,
            threads: threads.min(MAX_THREADS),
        }
    }
}

/// Where the model goes. Files of these names are replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target<'a> {
    /// One file.
    File(&'a Path),
    /// So many parts `STEM-00001-of-NNNNN.gguf` in a folder.
    Split {
        /// The folder.
        dir: &'a Path,
        /// What the names begin with.
        stem: &'a str,
        /// Parts.
        parts: usize,
    },
}

/// Writes the model and returns the paths of its files. `progress` is called with bytes of tensor data as they are
/// written; without holes they add up to [`SynthPlan::data_bytes`].
///
/// # Errors
/// The files cannot be written; none is left behind then.
pub fn write(
    plan: &SynthPlan,
    data: Data,
    target: Target<'_>,
    progress: &mut dyn FnMut(u64),
) -> Result<Vec<PathBuf>, SynthError> {
    let progress = RefCell::new(progress);
    let mut writer = Writer::with_metadata(plan.metadata.clone());
    for tensor in &plan.tensors {
        let source = match data {
            Data::Holes => Source::Hole,
            Data::Random { seed, threads } => {
                let (stream, progress) = (Stream::new(seed, &tensor.spec.name), &progress);
                match tensor.fill {
                    Fill::Random(sigma) => {
                        let blocks = Blocks::new(tensor.ty, sigma)?;
                        Source::Stream(Box::new(move |out: &mut dyn Write| {
                            produce(tensor, blocks, stream, threads, out, &mut |bytes| {
                                progress.borrow_mut()(bytes)
                            })
                        }))
                    }
                    fill => {
                        let bytes = vector(tensor.spec.elements(), fill, stream);
                        progress.borrow_mut()(bytes.len() as u64);
                        bytes.into()
                    }
                }
            }
        };
        writer.tensor(&tensor.spec.name, &tensor.ggml_dims(), tensor.ty, source);
    }
    match target {
        Target::File(path) => {
            writer.write(path)?;
            Ok(vec![path.to_owned()])
        }
        Target::Split { dir, stem, parts } => Ok(writer.write_split(dir, stem, parts)?),
    }
}

/// An F32 tensor of so many elements that is small enough to be made whole.
pub(super) fn vector(elements: u64, fill: Fill, stream: Stream) -> Vec<u8> {
    let mut words = stream.words(0);
    let mut bytes = Vec::new();
    let mut put = |x: f32| bytes.extend(x.to_le_bytes());
    match fill {
        Fill::Constant(x) => (0..elements).for_each(|_| put(x)),
        Fill::Random(sigma) => (0..elements).for_each(|_| put(sigma * words.normal())),
        Fill::RouterBias => {
            let (least, most) = ROUTER_BIAS_MEANS;
            let mean = least + (most - least) * words.uniform();
            (0..elements).for_each(|_| put(mean + ROUTER_BIAS_SPREAD * words.normal()));
        }
    }
    bytes
}

/// Writes all blocks of one tensor.
fn produce(
    tensor: &SynthTensor,
    blocks: Blocks,
    stream: Stream,
    threads: usize,
    out: &mut dyn Write,
    progress: &mut dyn FnMut(u64),
) -> io::Result<()> {
    let block_bytes = tensor.ty.block_bytes();
    let chunk_blocks = (CHUNK_BYTES / block_bytes) as u64;
    let (mut made, total) = (0, tensor.blocks());
    let mut ready: Vec<Vec<u8>> = vec![Vec::new(); threads.max(1)];
    let mut next = ready.clone();
    while made < total || ready.iter().any(|chunk| !chunk.is_empty()) {
        std::thread::scope(|scope| {
            for chunk in &mut next {
                let (first, n) = (made, chunk_blocks.min(total - made));
                // Lossless: at most a chunk.
                chunk.resize(n as usize * block_bytes, 0);
                if n > 0 {
                    scope.spawn(move || blocks.fill(stream, first, chunk));
                }
                made += n;
            }
            for chunk in &ready {
                out.write_all(chunk)?;
                progress(chunk.len() as u64);
            }
            io::Result::Ok(())
        })?;
        std::mem::swap(&mut ready, &mut next);
        next.iter_mut().for_each(Vec::clear);
    }
    Ok(())
}
