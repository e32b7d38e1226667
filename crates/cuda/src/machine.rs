//! What a GPU can do at most, measured: the figure that a step is held against.

use crate::cache::Cache;
use crate::code::Code;
use crate::driver::{Config, DeviceMemory, Event, Gpu, Param, Stream, launch};
use crate::error::CudaError;
use crate::kernels::Kernel;

/// Bytes that are read in one pass, as multiples of what the L2 holds: what of it is still there from the last pass does not count.
const L2_SIZES: usize = 64;
/// Fewest that say something.
const LEAST_BYTES: usize = 1 << 20;
/// Threads of a block, and blocks of a multiprocessor: all that it can hold.
const THREADS: u32 = 1024;
const BLOCKS: u32 = 2;
/// Passes; the fastest counts. The first finds clocks low.
const PASSES: usize = 8;

/// Bytes a second that a kernel reads from the GPU's memory.
///
/// # Errors
/// If the GPU cannot be opened, has no room, or the kernel cannot be compiled.
pub fn read_bandwidth(gpu: usize, cache: &Cache) -> Result<f64, CudaError> {
    bandwidth_of(gpu, cache, usize::MAX)
}

/// The same, from no more than so many bytes: for tests, which only want it to run.
///
/// # Errors
/// As [`read_bandwidth`].
#[doc(hidden)]
pub fn bandwidth_of(gpu: usize, cache: &Cache, most: usize) -> Result<f64, CudaError> {
    crate::driver::start(gpu)?;
    let gpu = Gpu::open(gpu)?;
    let stream = Stream::new(&gpu)?;
    let kernel = Kernel::new("bandwidth", "read_all", &[]);
    let mut code = Code::new(&gpu, cache.clone());
    code.load([(&kernel, 0)].into_iter())?;
    let function = code.function(&kernel)?;
    let (free, _) = gpu.memory()?;
    let block_bytes = THREADS as usize * 4 * 16;
    let bytes = (L2_SIZES * gpu.facts().l2)
        .min(free / 2)
        .min(most)
        .max(LEAST_BYTES)
        / block_bytes
        * block_bytes;
    let memory = DeviceMemory::new(&gpu, bytes, "the measurement of its bandwidth")?;
    let out = DeviceMemory::new(&gpu, 256, "the measurement of its bandwidth")?;
    memory.fill(0x5555_5555, &stream)?;
    let config = Config {
        grid: [gpu.facts().multiprocessors * BLOCKS, 1, 1],
        threads: THREADS,
        shared: 0,
        dependent: false,
    };
    let params = [
        Param::u64(memory.address()),
        Param::u64(bytes as u64 / 16),
        Param::u64(out.address()),
    ];
    let (begin, end) = (Event::new(&gpu)?, Event::new(&gpu)?);
    let pass = || {
        begin.record(&stream)?;
        launch(function, config, &params, &stream)?;
        end.record(&stream)?;
        stream.synchronise()?;
        end.seconds_since(&begin)
    };
    let mut best = Ok(0.0f64);
    for _ in 0..PASSES {
        let speed = |seconds: f64| {
            if seconds > 0.0 {
                bytes as f64 / seconds
            } else {
                0.0
            }
        };
        best = best.and_then(|best: f64| Ok(best.max(speed(pass()?))));
    }
    // Also after a failure: memory is let go of below.
    stream.synchronise()?;
    best
}
