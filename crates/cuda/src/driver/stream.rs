//! Streams and events.

use cudarc::driver::sys;

use super::Gpu;
use super::pool::Pool;
use crate::error::CudaError;

/// A queue of work on a GPU. It does not wait for the default stream.
#[derive(Debug)]
pub(crate) struct Stream {
    gpu: Gpu,
    handle: sys::CUstream,
}

// SAFETY: the driver's functions may be called from any thread.
unsafe impl Send for Stream {}

impl Stream {
    pub(crate) fn new(gpu: &Gpu) -> Result<Self, CudaError> {
        gpu.bind()?;
        gpu.asked();
        if let Some(kept) = gpu.pools().and_then(|pools| pools.streams.take(0)) {
            return Ok(Self {
                gpu: gpu.clone(),
                handle: kept as sys::CUstream,
            });
        }
        let mut handle = std::ptr::null_mut();
        // SAFETY: it writes a handle.
        let code = unsafe {
            sys::cuStreamCreate(
                &mut handle,
                sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32,
            )
        };
        gpu.check("cuStreamCreate", code)?;
        Ok(Self {
            gpu: gpu.clone(),
            handle,
        })
    }

    pub(crate) fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    pub(crate) fn handle(&self) -> sys::CUstream {
        self.handle
    }

    /// Waits until all its work is done.
    pub(crate) fn synchronise(&self) -> Result<(), CudaError> {
        self.gpu.bind()?;
        // SAFETY: the stream is alive.
        let code = unsafe { sys::cuStreamSynchronize(self.handle) };
        self.gpu.check("cuStreamSynchronize", code)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.gpu.bind().is_ok() {
            for handle in kept_or_not(self.gpu.pools().map(|p| &p.streams), self.handle as usize) {
                // SAFETY: it was made once; work in it goes on to its end.
                unsafe { sys::cuStreamDestroy_v2(handle as sys::CUstream) };
            }
        }
    }
}

/// A place in a stream, with its time.
#[derive(Debug)]
pub(crate) struct Event {
    gpu: Gpu,
    handle: sys::CUevent,
}

// SAFETY: the driver's functions may be called from any thread.
unsafe impl Send for Event {}

impl Event {
    pub(crate) fn new(gpu: &Gpu) -> Result<Self, CudaError> {
        gpu.bind()?;
        gpu.asked();
        if let Some(kept) = gpu.pools().and_then(|pools| pools.events.take(0)) {
            return Ok(Self {
                gpu: gpu.clone(),
                handle: kept as sys::CUevent,
            });
        }
        let mut handle = std::ptr::null_mut();
        // SAFETY: it writes a handle.
        let code = unsafe { sys::cuEventCreate(&mut handle, 0) };
        gpu.check("cuEventCreate", code)?;
        Ok(Self {
            gpu: gpu.clone(),
            handle,
        })
    }

    /// Puts it behind all that is in the stream now.
    pub(crate) fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        self.gpu.bind()?;
        // SAFETY: both are alive, and of one GPU.
        let code = unsafe { sys::cuEventRecord(self.handle, stream.handle()) };
        self.gpu.check("cuEventRecord", code)
    }

    /// Waits until the stream has come to it.
    pub(crate) fn wait(&self) -> Result<(), CudaError> {
        self.gpu.bind()?;
        // SAFETY: the event is alive.
        let code = unsafe { sys::cuEventSynchronize(self.handle) };
        self.gpu.check("cuEventSynchronize", code)
    }

    /// Seconds between an earlier event and this one; both must have passed.
    pub(crate) fn seconds_since(&self, earlier: &Event) -> Result<f64, CudaError> {
        self.gpu.bind()?;
        let mut ms = 0.0;
        // SAFETY: both are alive.
        let code = unsafe { sys::cuEventElapsedTime_v2(&mut ms, earlier.handle, self.handle) };
        self.gpu.check("cuEventElapsedTime", code)?;
        Ok(f64::from(ms) / 1e3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.gpu.bind().is_ok() {
            for handle in kept_or_not(self.gpu.pools().map(|p| &p.events), self.handle as usize) {
                // SAFETY: it was made once.
                unsafe { sys::cuEventDestroy_v2(handle as sys::CUevent) };
            }
        }
    }
}

/// Puts a handle into its pool, if there is one; the handles that are to be destroyed.
fn kept_or_not(pool: Option<&Pool<usize>>, handle: usize) -> Vec<usize> {
    match pool {
        Some(pool) => pool.keep(0, handle),
        None => vec![handle],
    }
}
