//! The device that the tests run on: the emulator if its folder is named, a GPU otherwise.
#![allow(dead_code, reason = "each test file uses its part")]

use std::path::PathBuf;

use glim_cuda::cache::Cache;
use glim_cuda::{CudaOptions, libraries};

/// Whether the tests run on the emulator.
pub(crate) fn is_emulated() -> bool {
    std::env::var_os("GLIM_CUDA_LIBRARIES").is_some()
}

/// Options for a test. `GLIM_CUDA_LIBRARIES` names the folder of the emulator's libraries (`cargo xtask emulate` sets it);
/// `GLIM_CUDA_CACHE` a folder that keeps compiled kernels between tests.
pub(crate) fn options() -> CudaOptions {
    if let Some(folder) = std::env::var_os("GLIM_CUDA_LIBRARIES") {
        libraries::preload(&PathBuf::from(folder));
    }
    CudaOptions {
        cache: Cache {
            folder: std::env::var_os("GLIM_CUDA_CACHE").map(PathBuf::from),
            prebuilt: None,
        },
        ..CudaOptions::default()
    }
}
