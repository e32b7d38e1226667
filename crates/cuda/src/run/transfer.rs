//! A step's way in and out: words that a kernel moves between the GPU and pinned memory (`kernels/transfer.cu` says why a kernel).

use crate::code::Code;
use crate::driver::{Config, Function, Param, Stream, launch};
use crate::error::CudaError;
use crate::kernels::Kernel;

/// As in `transfer.cu`.
const MAX_PIECES: usize = 8;

const THREADS: u32 = 256;
const MAX_BLOCKS: usize = 32;
/// Words that a thread moves at a time.
const EACH: usize = 4;

/// Words that lie side by side, by address: device memory's, or pinned memory's, which is the same on the host and on the GPU.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) bytes: usize,
}

/// The kernel, ready to be launched.
#[derive(Debug)]
pub(super) struct Transfer(Function);

impl Transfer {
    /// What has to be loaded for it.
    pub(super) fn kernel() -> Kernel {
        Kernel::new("transfer", "transfer", &[])
    }

    pub(super) fn new(code: &Code) -> Result<Self, CudaError> {
        code.function(&Self::kernel()).cloned().map(Self)
    }

    /// Puts it into the stream. Pieces are whole words, and stay where they are until the stream has passed.
    pub(super) fn put(&self, pieces: &[Piece], stream: &Stream) -> Result<(), CudaError> {
        for pieces in pieces.chunks(MAX_PIECES) {
            let mut words = Vec::with_capacity(3 * MAX_PIECES + 1);
            words.extend(
                pieces
                    .iter()
                    .flat_map(|p| [p.from, p.to, p.bytes as u64 / 4]),
            );
            words.resize(3 * MAX_PIECES, 0);
            words.push(pieces.len() as u64);
            let largest = pieces.iter().map(|p| p.bytes / 4).max().unwrap_or(0);
            let blocks = largest.div_ceil(THREADS as usize * EACH);
            let config = Config {
                grid: [blocks.clamp(1, MAX_BLOCKS) as u32, 1, 1],
                threads: THREADS,
                shared: 0,
                dependent: false,
            };
            launch(&self.0, config, &[Param::structure(&words)], stream)?;
        }
        Ok(())
    }
}
