//! The device that the tests run on: the emulator if its folder is named, a GPU otherwise ([`glim_testkit::device`]).
#![allow(dead_code, reason = "each test file uses its part")]

use glim_cuda::cache::Cache;
use glim_cuda::{CudaOptions, libraries};
use glim_testkit::device;

/// Whether the tests run on the emulator.
pub(crate) fn is_emulated() -> bool {
    device::emulator().is_some()
}

/// Options for a test.
pub(crate) fn options() -> CudaOptions {
    if let Some(folder) = device::emulator() {
        libraries::preload(&folder);
    }
    CudaOptions {
        cache: Cache {
            folder: device::kernel_cache(),
            prebuilt: None,
        },
        apart: device::apart(),
        ..CudaOptions::default()
    }
}
