//! Random weights and caches, made on the GPU: nothing of them crosses the bus (`kernels/synth.cu`).
//!
//! A [`RandomBlocks`] says which words and which scale; the host's way from it to bytes is its source's, and both give the same.

use glim_plan::{GgmlType, RandomBlocks};

use crate::cache::Cache;
use crate::code::Code;
use crate::driver::{Config, Gpu, Param, Stream, launch};
use crate::error::CudaError;
use crate::kernels::Kernel;
use crate::layout::Layout;

/// Threads of a block, and blocks of a multiprocessor: what hides the latency of words and stores.
const THREADS: u32 = 128;
const BLOCKS: u32 = 8;

/// Most fields that a type's blocks have.
const MAX_FIELDS: usize = 5;

/// Makes random blocks in a stream of its own.
pub(crate) struct Random {
    gpu: Gpu,
    code: Code,
    stream: Stream,
}

impl Random {
    pub(crate) fn new(gpu: &Gpu, cache: &Cache) -> Result<Self, CudaError> {
        Ok(Self {
            gpu: gpu.clone(),
            code: Code::new(gpu, cache.clone()),
            stream: Stream::new(gpu)?,
        })
    }

    /// Puts the making of `count` blocks at `address` into the stream.
    pub(crate) fn fill(
        &mut self,
        address: u64,
        count: usize,
        random: &RandomBlocks,
    ) -> Result<(), CudaError> {
        let kernel = Kernel::new("synth", "synth", &[("TYPE", random.ty.name())]);
        self.code.load([(&kernel, 0)].into_iter())?;
        let most = self.gpu.facts().multiprocessors * BLOCKS;
        let grid = u32::try_from(count.div_ceil(THREADS as usize)).map_or(most, |n| n.min(most));
        let config = Config {
            grid: [grid.max(1), 1, 1],
            threads: THREADS,
            shared: 0,
            dependent: false,
        };
        let params = [
            Param::u64(address),
            Param::u64(count as u64),
            Param::u64(random.key),
            Param::u32(random.scale.to_bits()),
            Param::structure(&fields(random.ty)),
        ];
        let function = self.code.function(&kernel)?;
        launch(function, config, &params, &self.stream)
    }

    /// Waits until all is there.
    pub(crate) fn finish(&self) -> Result<(), CudaError> {
        self.stream.synchronise()
    }
}

/// The struct `Fields` of a type.
pub(crate) fn fields(ty: GgmlType) -> [u64; 6] {
    let whole = [(0, ty.block_bytes())];
    let fields = match Layout::of(ty) {
        Layout::Planes(fields) => fields,
        Layout::Stored => &whole,
    };
    let mut words = [0u32; 12];
    words[0] = fields.len() as u32;
    for (i, (at, len)) in fields.iter().take(MAX_FIELDS).enumerate() {
        words[1 + i] = *at as u32;
        words[1 + MAX_FIELDS + i] = *len as u32;
    }
    std::array::from_fn(|i| u64::from(words[2 * i]) | u64::from(words[2 * i + 1]) << 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_and_fit() {
        for ty in GgmlType::ALL.iter().copied().filter(|ty| ty.can_decode()) {
            if let Layout::Planes(fields) = Layout::of(ty) {
                assert!(fields.len() <= MAX_FIELDS, "{ty}");
            }
        }
        // Two planes: 32 bytes from byte 2 on, and 2 from byte 0 on.
        let expected = [2 | 2 << 32, 0, 0, 32 | 2 << 32, 0, 0];
        assert_eq!(fields(GgmlType::Q8_0), expected);
    }
}
