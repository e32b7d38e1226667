//! What can go wrong between us and a GPU.

use thiserror::Error;

/// A failure of the driver, the compiler or a kernel.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum CudaError {
    /// A call of the driver failed.
    #[error("the CUDA driver refused {call} on GPU {gpu}: {code} ({text})")]
    Driver {
        /// The call.
        call: &'static str,
        /// Ordinal of the GPU.
        gpu: usize,
        /// Name of the error, as the driver has it.
        code: String,
        /// What the driver says of it.
        text: String,
    },
    /// Memory ran out.
    #[error(
        "GPU {gpu} has no room for {wanted} bytes of {what}: {free} of {total} bytes are free; use a shorter context, more GPUs, or free what others hold"
    )]
    Memory {
        /// Ordinal of the GPU.
        gpu: usize,
        /// What was to be allocated.
        what: String,
        /// Bytes asked for.
        wanted: usize,
        /// Bytes free.
        free: usize,
        /// Bytes of the GPU.
        total: usize,
    },
    /// A kernel could not be compiled.
    #[error("kernel {kernel} could not be compiled for {arch}: {log}")]
    Compile {
        /// File and defines.
        kernel: String,
        /// Architecture.
        arch: String,
        /// What the compiler says.
        log: String,
    },
    /// The kernel's sources are not what the code expects.
    #[error("kernel {kernel}: {reason}")]
    Kernel {
        /// File, entry and defines.
        kernel: String,
        /// What is wrong.
        reason: String,
    },
    /// A library is missing.
    #[error("{library} was not found: {hint}")]
    Library {
        /// Name.
        library: &'static str,
        /// What to do.
        hint: String,
    },
    /// A kernel failed while it ran; the GPU's context is lost.
    #[error("GPU {gpu} failed in {during}: {code} ({text})")]
    Launch {
        /// Ordinal of the GPU.
        gpu: usize,
        /// Plan and operation.
        during: String,
        /// Name of the error.
        code: String,
        /// What the driver says.
        text: String,
    },
    /// A step was run or asked about before it had its memory.
    #[error("the memory of steps was asked for before any step was sealed")]
    Unsealed,
    /// Ranks cannot meet on these GPUs.
    #[error("ranks on GPUs {gpus:?} cannot meet: {reason}")]
    Ranks {
        /// Ordinal of each rank's GPU.
        gpus: Vec<usize>,
        /// Why.
        reason: String,
    },
}
