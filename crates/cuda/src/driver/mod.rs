//! The driver, as far as we use it: owned handles, errors that name the call, nothing that panics.
//!
//! All functions of `cudarc::driver::sys` are loaded by [`crate::libraries::driver`] before a [`Gpu`] can exist. Handles keep their
//! GPU's context alive. A thread must have bound the GPU ([`Gpu::bind`]) before it uses its handles; every public method here
//! that needs it does so itself, since binding is a few nanoseconds.

mod gpu;
mod graph;
mod launch;
mod memory;
mod module;
mod pool;
mod stream;

pub(crate) use gpu::{Gpu, count, initialise, version};
pub use gpu::{GpuFacts, Held};
pub(crate) use graph::Graph;
pub(crate) use launch::{Config, Param, launch};
pub(crate) use memory::{DeviceMemory, Pinned, write_pointer};
pub(crate) use module::{Function, Module};
pub(crate) use stream::{Event, Stream};

use std::ffi::CStr;

use cudarc::driver::sys;

use crate::error::CudaError;

/// Opens the driver's library and starts it, for the sake of this GPU.
///
/// # Errors
/// If there is none, or it does not start.
pub(crate) fn start(gpu: usize) -> Result<(), CudaError> {
    crate::libraries::driver()?;
    initialise().map_err(|(code, text)| CudaError::Driver {
        call: "cuInit",
        gpu,
        code,
        text,
    })
}

/// Name and description of a driver's error.
pub(crate) fn describe(code: sys::CUresult) -> (String, String) {
    let text = |get: unsafe fn(sys::CUresult, *mut *const std::ffi::c_char) -> sys::CUresult| {
        let mut text = std::ptr::null();
        // SAFETY: the driver writes a pointer to a static string, or none for a code that it does not know.
        unsafe {
            get(code, &mut text);
            match text.is_null() {
                true => format!("{code:?}"),
                false => CStr::from_ptr(text).to_string_lossy().into_owned(),
            }
        }
    };
    (text(sys::cuGetErrorName), text(sys::cuGetErrorString))
}

/// The result of a call as ours.
fn check(call: &'static str, gpu: usize, code: sys::CUresult) -> Result<(), CudaError> {
    if code == sys::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let (code, text) = describe(code);
    Err(CudaError::Driver {
        call,
        gpu,
        code,
        text,
    })
}
