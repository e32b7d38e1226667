//! What two GPUs are to each other, measured: whether bytes arrive as they were sent, how fast, and how long a flag takes.
//!
//! A bad path between two GPUs gives no error code: bytes are wrong, or a kernel waits for ever. Bytes are compared here, and kernels have a
//! deadline; but a copy may also hang in the driver, so whoever asks does so in a process that can be killed.

use std::time::Duration;

use cudarc::driver::sys;

use crate::cache::Cache;
use crate::code::Code;
use crate::driver::{Config, DeviceMemory, Event, Gpu, Param, Stream, launch};
use crate::error::CudaError;
use crate::kernels::Kernel;

/// What was found between two GPUs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pair {
    /// Bytes that were compared: copied by the driver, loaded by a kernel, stored by a kernel.
    pub bytes: u64,
    /// How many of them were wrong.
    pub wrong_bytes: u64,
    /// Bytes a second that a kernel of the first loads from the second's memory.
    pub read: f64,
    /// Bytes a second that it stores there.
    pub write: f64,
    /// A flag there and back between kernels of both.
    pub round_trip: Duration,
}

/// Bytes of a transfer: enough that its start does not count, little enough that a slow path ends in time.
const BYTES: usize = 64 << 20;
const THREADS: u32 = 256;
/// Blocks on each multiprocessor.
const BLOCKS: u32 = 4;
/// Transfers of a kind; the fastest counts.
const PASSES: usize = 5;
/// Rounds of the flag.
const ROUNDS: u32 = 2000;
/// How long all of them may take.
const LIMIT: Duration = Duration::from_secs(5);

/// Measures from `from`'s side; both may be the same GPU, which is then its own peer.
///
/// # Errors
/// If a GPU cannot be opened or cannot address the other's memory, has no room, or the flag did not come back.
pub fn probe_pair(from: usize, to: usize, cache: &Cache) -> Result<Pair, CudaError> {
    pair_of(from, to, cache, BYTES)
}

/// The same with so many bytes: for tests, which only want it to run.
///
/// # Errors
/// As [`probe_pair`].
#[doc(hidden)]
pub fn pair_of(from: usize, to: usize, cache: &Cache, bytes: usize) -> Result<Pair, CudaError> {
    crate::driver::start(from)?;
    let (near, far) = (Side::new(from, cache, bytes)?, Side::new(to, cache, bytes)?);
    if from != to {
        near.gpu.see(&far.gpu)?;
        far.gpu.see(&near.gpu)?;
    }
    let mut wrong = 0;
    far.fill(1)?;
    near.copy(&far)?;
    wrong += near.wrong(1)?;
    far.fill(2)?;
    let read = near.moves(&far.data, &near.data)?;
    wrong += near.wrong(2)?;
    near.fill(3)?;
    let write = near.moves(&near.data, &far.data)?;
    wrong += far.wrong(3)?;
    Ok(Pair {
        bytes: 3 * bytes as u64,
        wrong_bytes: wrong,
        read,
        write,
        round_trip: round_trip(&near, far)?,
    })
}

/// One of the two, with what it needs.
struct Side {
    gpu: Gpu,
    stream: Stream,
    code: Code,
    data: DeviceMemory,
    /// A flag that the other sets, and what a kernel has counted.
    flag: DeviceMemory,
    found: DeviceMemory,
}

fn kernel(entry: &'static str) -> Kernel {
    Kernel::new("pair", entry, &[])
}

impl Side {
    fn new(gpu: usize, cache: &Cache, bytes: usize) -> Result<Self, CudaError> {
        let gpu = Gpu::open(gpu)?;
        let stream = Stream::new(&gpu)?;
        let mut code = Code::new(&gpu, cache.clone());
        let kernels = ["pair_fill", "pair_check", "pair_move", "pair_flag"].map(kernel);
        code.load(kernels.iter().map(|kernel| (kernel, 0)))?;
        let memory = |bytes| DeviceMemory::new(&gpu, bytes, "the probe of a pair of GPUs");
        Ok(Self {
            data: memory(bytes / 16 * 16)?,
            flag: memory(256)?,
            found: memory(256)?,
            stream,
            code,
            gpu,
        })
    }

    fn pieces(&self) -> u64 {
        self.data.bytes() as u64 / 16
    }

    fn launch(&self, entry: &'static str, params: &[Param]) -> Result<(), CudaError> {
        let config = Config {
            grid: match entry {
                "pair_flag" => [1, 1, 1],
                _ => [self.gpu.facts().multiprocessors * BLOCKS, 1, 1],
            },
            threads: if entry == "pair_flag" { 32 } else { THREADS },
            shared: 0,
            dependent: false,
        };
        let function = self.code.function(&kernel(entry))?;
        launch(function, config, params, &self.stream)
    }

    /// Writes a pattern, and waits.
    fn fill(&self, seed: u32) -> Result<(), CudaError> {
        let params = [
            Param::u64(self.data.address()),
            Param::u64(self.pieces()),
            Param::u32(seed),
        ];
        self.launch("pair_fill", &params)?;
        self.stream.synchronise()
    }

    /// Bytes of the data that are not those of the pattern.
    fn wrong(&self, seed: u32) -> Result<u64, CudaError> {
        self.found.fill(0, &self.stream)?;
        let params = [
            Param::u64(self.data.address()),
            Param::u64(self.pieces()),
            Param::u32(seed),
            Param::u64(self.found.address()),
        ];
        self.launch("pair_check", &params)?;
        self.word()
    }

    /// What a kernel has left, once it is over.
    fn word(&self) -> Result<u64, CudaError> {
        self.stream.synchronise()?;
        let mut word = [0; 8];
        self.found.read(0, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    /// Copies the other's data by the driver, and waits.
    fn copy(&self, other: &Self) -> Result<(), CudaError> {
        self.gpu.bind()?;
        let (to, from) = (self.data.address(), other.data.address());
        // SAFETY: both allocations are as long, and each GPU may address the other's.
        let code =
            unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, self.data.bytes(), self.stream.handle()) };
        self.gpu.check("cuMemcpyDtoDAsync", code)?;
        self.stream.synchronise()
    }

    /// Bytes a second at which a kernel of this side moves data.
    fn moves(&self, from: &DeviceMemory, to: &DeviceMemory) -> Result<f64, CudaError> {
        let params = [
            Param::u64(from.address()),
            Param::u64(to.address()),
            Param::u64(self.pieces()),
        ];
        let (begin, end) = (Event::new(&self.gpu)?, Event::new(&self.gpu)?);
        let mut best = 0.0f64;
        for _ in 0..PASSES {
            begin.record(&self.stream)?;
            self.launch("pair_move", &params)?;
            end.record(&self.stream)?;
            self.stream.synchronise()?;
            let seconds = end.seconds_since(&begin)?;
            if seconds > 0.0 {
                best = best.max(self.data.bytes() as f64 / seconds);
            }
        }
        Ok(best)
    }

    /// Its end of the flag, to its end; the other's flag lies at `theirs`. Nanoseconds.
    fn answer(&self, theirs: u64, leads: bool) -> Result<u64, CudaError> {
        let params = [
            Param::u64(self.flag.address()),
            Param::u64(theirs),
            Param::u32(ROUNDS),
            Param::u32(leads.into()),
            Param::u64(LIMIT.as_nanos() as u64),
            Param::u64(self.found.address()),
        ];
        self.launch("pair_flag", &params)?;
        self.word()
    }
}

fn round_trip(near: &Side, far: Side) -> Result<Duration, CudaError> {
    for side in [near, &far] {
        side.flag.fill(0, &side.stream)?;
        side.stream.synchronise()?;
    }
    let gpus = vec![near.gpu.ordinal(), far.gpu.ordinal()];
    let (nearby, theirs) = (near.flag.address(), far.flag.address());
    // Each from a thread of its own, as ranks are: neither is held up by the other's wait.
    let ns = std::thread::scope(|scope| {
        let answers = scope.spawn(move || far.answer(nearby, false));
        let ns = near.answer(theirs, true);
        match answers.join() {
            Ok(answered) => answered.and(ns),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })?;
    match ns {
        0 => Err(CudaError::Ranks {
            gpus,
            reason: format!(
                "a flag that one sets in the other's memory was not answered within {} s",
                LIMIT.as_secs()
            ),
        }),
        ns => Ok(Duration::from_nanos(ns) / ROUNDS),
    }
}
