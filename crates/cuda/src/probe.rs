//! Which GPUs there are, or why there are none that can be used.

use thiserror::Error;

use crate::CudaError;
use crate::driver::{self, GpuFacts};
use crate::libraries;

/// The oldest compute capability that the kernels are compiled for.
pub const OLDEST_CAPABILITY: (i32, i32) = (8, 0);

/// The oldest driver that is known to load what we make: CUDA 12.0.
pub const OLDEST_DRIVER: i32 = 12_000;

/// Why no GPU can be used.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProbeError {
    /// No `libcuda`.
    #[error("there is no NVIDIA driver (libcuda.so.1 was not found)")]
    NoDriver,
    /// The driver finds no GPU, or cannot start.
    #[error("the NVIDIA driver finds no GPU ({code}: {text})")]
    NoGpu {
        /// Name of the driver's error.
        code: String,
        /// What the driver says.
        text: String,
    },
    /// The driver is too old.
    #[error(
        "the NVIDIA driver is for CUDA {}.{}, and CUDA {}.{} or newer is needed: update the driver",
        found / 1000, found % 1000 / 10, needed / 1000, needed % 1000 / 10
    )]
    OldDriver {
        /// `1000 · major + 10 · minor`.
        found: i32,
        /// Likewise.
        needed: i32,
    },
    /// A GPU is too old.
    #[error(
        "GPU {ordinal} ({name}) has compute capability {}.{}, and {}.{} or newer is needed",
        found.0, found.1, needed.0, needed.1
    )]
    OldGpu {
        /// Ordinal.
        ordinal: usize,
        /// Name.
        name: String,
        /// Its capability.
        found: (i32, i32),
        /// The least.
        needed: (i32, i32),
    },
    /// There is no GPU of this number.
    #[error("there is no GPU {ordinal}: the driver sees {count}")]
    NoSuchGpu {
        /// Asked for.
        ordinal: usize,
        /// There are.
        count: usize,
    },
    /// No compiler and no compiled kernels.
    #[error(
        "NVRTC, which compiles the kernels, was not found: install cuda-nvrtc, or `pip install nvidia-cuda-nvrtc`"
    )]
    NoCompiler,
    /// The driver failed.
    #[error("{0}")]
    Driver(CudaError),
}

/// All GPUs that the driver shows and that are new enough, in its order (`CUDA_VISIBLE_DEVICES` applies). The compiler is not looked for: a warm cache or
/// prebuilt kernels do without.
///
/// It makes no context: who only looks holds no memory on any GPU, and others who look for holders do not see it.
///
/// # Errors
/// Why there is none; never a panic.
pub fn probe() -> Result<Vec<GpuFacts>, ProbeError> {
    libraries::driver().map_err(|_| ProbeError::NoDriver)?;
    let (code, text) = match driver::initialise() {
        Ok(()) => (String::new(), String::new()),
        Err((code, text)) => return Err(ProbeError::NoGpu { code, text }),
    };
    let version = driver::version();
    if version < OLDEST_DRIVER {
        return Err(ProbeError::OldDriver {
            found: version,
            needed: OLDEST_DRIVER,
        });
    }
    let count = driver::count();
    if count == 0 {
        return Err(ProbeError::NoGpu { code, text });
    }
    // One that is too old beside one that is not is no obstacle.
    let (found, refused): (Vec<_>, Vec<_>) = (0..count).map(info).partition(Result::is_ok);
    match refused.into_iter().find_map(Result::err) {
        Some(error) if found.is_empty() => Err(error),
        _ => Ok(found.into_iter().flatten().collect()),
    }
}

fn info(ordinal: usize) -> Result<GpuFacts, ProbeError> {
    let facts = GpuFacts::read(ordinal).map_err(ProbeError::Driver)?;
    if facts.capability < OLDEST_CAPABILITY {
        return Err(ProbeError::OldGpu {
            ordinal,
            name: facts.name,
            found: facts.capability,
            needed: OLDEST_CAPABILITY,
        });
    }
    Ok(facts)
}

/// Bytes of a GPU's memory that nobody holds. It makes this process's context there, which stays and takes some hundred MiB of its own.
///
/// # Errors
/// If the driver gives no context: another process holds the GPU for itself, or all of its memory.
pub fn free_memory(ordinal: usize) -> Result<usize, CudaError> {
    let (free, _) = driver::Gpu::open(ordinal)?.memory()?;
    Ok(free)
}

/// Whether kernels can be compiled here.
///
/// # Errors
/// [`ProbeError::NoCompiler`].
pub fn compiler() -> Result<(), ProbeError> {
    libraries::nvrtc().map_err(|_| ProbeError::NoCompiler)
}
