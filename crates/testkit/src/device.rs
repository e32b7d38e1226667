//! What tests on a GPU, or on its emulator, are told from outside.
//!
//! They are test programs that travel to a machine without the repository, so variables say what arguments would:
//!
//! | variable | says |
//! | --- | --- |
//! | `GLIM_CUDA_LIBRARIES` | the folder of the emulator's libraries; `cargo xtask emulate` sets it |
//! | `GLIM_CUDA_CACHE` | a folder that keeps compiled kernels between tests |
//! | `GLIM_CUDA_APART` | that each buffer is to be an allocation of its own, so that what leaves it is seen |
//! | `GLIM_CUDA_PROMPTS` | prompts of a reference, separated by commas |
//! | `GLIM_CUDA_RUNS` | how often what must repeat itself is repeated |

use std::path::PathBuf;

fn folder(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).map(PathBuf::from)
}

/// The variable that names the emulator's libraries.
pub const LIBRARIES: &str = "GLIM_CUDA_LIBRARIES";

/// The emulator's libraries; `None` on a GPU.
pub fn emulator() -> Option<PathBuf> {
    folder(LIBRARIES)
}

/// Where compiled kernels are kept.
pub fn kernel_cache() -> Option<PathBuf> {
    folder("GLIM_CUDA_CACHE")
}

/// Whether each buffer is to be an allocation of its own.
pub fn apart() -> bool {
    std::env::var_os("GLIM_CUDA_APART").is_some()
}

/// Whether a prompt of a reference is run: those that are asked for, or else all of them on a GPU and the shortest, `short`, on the emulator.
pub fn runs_prompt(name: &str) -> bool {
    match std::env::var("GLIM_CUDA_PROMPTS") {
        Ok(names) if !names.is_empty() => names.split(',').any(|wanted| wanted == name),
        _ => emulator().is_none() || name == "short",
    }
}

/// How often what must repeat itself is repeated: 100 times on a GPU, 3 times on the emulator.
///
/// # Panics
/// If another number is asked for and is none.
pub fn repeats() -> usize {
    match std::env::var("GLIM_CUDA_RUNS") {
        Ok(n) => n.parse().expect("GLIM_CUDA_RUNS is no number"),
        Err(_) => sized(100, 3),
    }
}

/// `on_gpu`, or something smaller on the emulator, which takes about half a second for a token.
pub fn sized<T>(on_gpu: T, emulated: T) -> T {
    match emulator() {
        Some(_) => emulated,
        None => on_gpu,
    }
}
