//! Launches, with programmatic dependent launch.

use std::ffi::c_void;

use cudarc::driver::sys;

use super::{Function, Stream};
use crate::error::CudaError;

/// A kernel's argument, as it lies in memory: a scalar, or a struct by value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Param(Box<[u64]>);

impl Param {
    pub(crate) fn u64(value: u64) -> Self {
        Self(Box::new([value]))
    }

    pub(crate) fn u32(value: u32) -> Self {
        // The low half comes first: this runs where GPUs are, on little-endian machines.
        Self::u64(u64::from(value))
    }

    /// The value of a scalar.
    pub(crate) fn scalar(&self) -> u64 {
        self.0[0]
    }

    /// A struct, padded to whole words of 8 bytes.
    pub(crate) fn structure(words: &[u64]) -> Self {
        Self(words.into())
    }
}

/// How a kernel is launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) grid: [u32; 3],
    pub(crate) threads: u32,
    pub(crate) shared: u32,
    /// Whether it may be scheduled before its predecessor has ended.
    pub(crate) dependent: bool,
}

/// Puts a kernel into a stream.
///
/// # Errors
/// If the driver refuses it, or an earlier kernel failed.
pub(crate) fn launch(
    function: &Function,
    config: Config,
    params: &[Param],
    stream: &Stream,
) -> Result<(), CudaError> {
    stream.gpu().bind()?;
    let mut pointers: Vec<*mut c_void> = params
        .iter()
        .map(|p| p.0.as_ptr().cast_mut().cast())
        .collect();
    // SAFETY: all-zero is a valid value of these plain C structs.
    let mut attribute: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
    attribute.id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attribute.value.programmaticStreamSerializationAllowed = 1;
    // SAFETY: as above.
    let mut c: sys::CUlaunchConfig = unsafe { std::mem::zeroed() };
    [c.gridDimX, c.gridDimY, c.gridDimZ] = config.grid;
    (c.blockDimX, c.blockDimY, c.blockDimZ) = (config.threads, 1, 1);
    c.sharedMemBytes = config.shared;
    c.hStream = stream.handle();
    c.attrs = &mut attribute;
    c.numAttrs = u32::from(config.dependent);
    // SAFETY: `pointers` has one entry for each parameter (the program's builder made them for this kernel), each to memory that
    // lives until the call returns; the driver copies them.
    let code = unsafe {
        sys::cuLaunchKernelEx(
            &c,
            function.handle,
            pointers.as_mut_ptr(),
            std::ptr::null_mut(),
        )
    };
    stream.gpu().check("cuLaunchKernelEx", code)
}
