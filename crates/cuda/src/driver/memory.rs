//! Memory of a GPU, and pinned memory of the host.

use std::ffi::c_void;
use std::sync::atomic::AtomicU64;

use cudarc::driver::sys::{self, CUresult};

use super::gpu::Kind;
use super::{Gpu, Stream};
use crate::error::CudaError;

/// An allocation on a GPU. Plain `cuMemAlloc`: other GPUs can read it once they see this one.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    gpu: Gpu,
    address: u64,
    bytes: usize,
}

impl DeviceMemory {
    /// Allocates; `what` is for the error.
    pub(crate) fn new(gpu: &Gpu, bytes: usize, what: &str) -> Result<Self, CudaError> {
        gpu.bind()?;
        gpu.asked();
        let kept = gpu.pools().and_then(|pools| pools.device.take(bytes));
        let address = match kept {
            Some(address) => address,
            None => allocate(gpu, bytes, what)?,
        };
        gpu.got(Kind::Device, bytes);
        Ok(Self {
            gpu: gpu.clone(),
            address,
            bytes,
        })
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    fn range(&self, at: usize, bytes: usize) -> u64 {
        assert!(
            at.checked_add(bytes).is_some_and(|end| end <= self.bytes),
            "{bytes} bytes at {at} of {} bytes of device memory",
            self.bytes
        );
        self.address + at as u64
    }

    /// Copies to it, and waits.
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) -> Result<(), CudaError> {
        self.gpu.bind()?;
        let to = self.range(at, bytes.len());
        // SAFETY: both ranges are inside their allocations.
        let code =
            unsafe { sys::cuMemcpyHtoD_v2(to, bytes.as_ptr().cast::<c_void>(), bytes.len()) };
        self.gpu.check("cuMemcpyHtoD", code)?;
        // The call may return before a copy from pageable memory has reached the GPU, and streams of ours do not wait for it.
        self.gpu.finish_copies()
    }

    /// Copies from it what is there now. Who wants what a stream writes has waited for it.
    pub(crate) fn read(&self, at: usize, bytes: &mut [u8]) -> Result<(), CudaError> {
        self.gpu.bind()?;
        let from = self.range(at, bytes.len());
        // SAFETY: both ranges are inside their allocations.
        let code =
            unsafe { sys::cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast::<c_void>(), from, bytes.len()) };
        self.gpu.check("cuMemcpyDtoH", code)
    }

    /// Fills it with a word, in stream order.
    pub(crate) fn fill(&self, word: u32, stream: &Stream) -> Result<(), CudaError> {
        self.fill_words(0, self.bytes / 4, word, stream)
    }

    /// Fills so many words from byte `at` on, in stream order.
    pub(crate) fn fill_words(
        &self,
        at: usize,
        words: usize,
        word: u32,
        stream: &Stream,
    ) -> Result<(), CudaError> {
        if words == 0 {
            return Ok(());
        }
        self.gpu.bind()?;
        let to = self.range(at, words * 4);
        // SAFETY: whole words inside the allocation.
        let code = unsafe { sys::cuMemsetD32Async(to, word, words, stream.handle()) };
        self.gpu.check("cuMemsetD32Async", code)
    }

    /// Copies from pinned memory in stream order.
    pub(crate) fn write_async(
        &self,
        at: usize,
        from: &Pinned,
        from_at: usize,
        bytes: usize,
        stream: &Stream,
    ) -> Result<(), CudaError> {
        self.gpu.bind()?;
        let to = self.range(at, bytes);
        let from = &from.bytes()[from_at..from_at + bytes];
        // SAFETY: both ranges are inside their allocations; the caller keeps `from` as it is until the stream has passed.
        let code = unsafe {
            sys::cuMemcpyHtoDAsync_v2(to, from.as_ptr().cast::<c_void>(), bytes, stream.handle())
        };
        self.gpu.check("cuMemcpyHtoDAsync", code)
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        self.gpu.let_go(Kind::Device, self.bytes);
        // After a failed kernel freeing fails too, and there is nobody to tell.
        if self.gpu.bind().is_ok() {
            match self.gpu.pools() {
                Some(pools) => free(pools.device.keep(self.bytes, self.address)),
                None => free(vec![self.address]),
            }
        }
    }
}

/// Asks the driver; a second time without what the pool has, if there is no room.
fn allocate(gpu: &Gpu, bytes: usize, what: &str) -> Result<u64, CudaError> {
    let mut address = 0;
    // SAFETY: it writes an address. An allocation of nothing would be an error, so it gets one byte.
    let mut ask = || unsafe { sys::cuMemAlloc_v2(&mut address, bytes.max(1)) };
    let mut code = ask();
    if code == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
        free(gpu.all_pools().device.clear());
        code = ask();
    }
    if code == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
        let (free, total) = gpu.memory()?;
        return Err(CudaError::Memory {
            gpu: gpu.ordinal(),
            what: what.into(),
            wanted: bytes,
            free,
            total,
        });
    }
    gpu.check("cuMemAlloc", code)?;
    Ok(address)
}

/// Gives allocations of the bound GPU back to the driver.
fn free(addresses: Vec<u64>) {
    for address in addresses {
        // SAFETY: it was allocated once, and nobody has it any more.
        unsafe { sys::cuMemFree_v2(address) };
    }
}

/// Writes a pointer into a variable of a module.
pub(crate) fn write_pointer(gpu: &Gpu, variable: u64, value: u64) -> Result<(), CudaError> {
    gpu.bind()?;
    let bytes = value.to_le_bytes();
    // SAFETY: `variable` is the address of a pointer of a module that is loaded.
    let code = unsafe { sys::cuMemcpyHtoD_v2(variable, bytes.as_ptr().cast::<c_void>(), 8) };
    gpu.check("cuMemcpyHtoD", code)?;
    gpu.finish_copies()
}

/// Host memory that the GPU copies from and to at full speed.
#[derive(Debug)]
pub(crate) struct Pinned {
    gpu: Gpu,
    pointer: *mut u8,
    bytes: usize,
}

// SAFETY: it is plain memory that this value owns.
unsafe impl Send for Pinned {}
// SAFETY: shared references only read, but for `word`, which is atomic.
unsafe impl Sync for Pinned {}

impl Pinned {
    pub(crate) fn new(gpu: &Gpu, bytes: usize) -> Result<Self, CudaError> {
        gpu.bind()?;
        gpu.asked();
        let kept = gpu.pools().and_then(|pools| pools.pinned.take(bytes));
        let pointer = match kept {
            Some(kept) => kept as *mut u8,
            None => {
                let mut pointer = std::ptr::null_mut();
                // SAFETY: it writes a pointer.
                let code = unsafe { sys::cuMemAllocHost_v2(&mut pointer, bytes.max(1)) };
                gpu.check("cuMemAllocHost", code)?;
                pointer.cast::<u8>()
            }
        };
        gpu.got(Kind::Pinned, bytes);
        // SAFETY: the allocation is that long.
        unsafe { pointer.write_bytes(0, bytes.max(1)) };
        Ok(Self {
            gpu: gpu.clone(),
            pointer,
            bytes,
        })
    }

    /// Its address, which is the same for the host and for all GPUs.
    pub(crate) fn address(&self) -> u64 {
        self.pointer as u64
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the allocation is that long, initialised, and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.pointer, self.bytes) }
    }

    /// Its first eight bytes, which kernels may write while it is looked at.
    pub(crate) fn word(&self) -> &AtomicU64 {
        assert!(self.bytes >= size_of::<u64>());
        // SAFETY: the allocation is that long, aligned to pages, and lives as long as `self`.
        unsafe { AtomicU64::from_ptr(self.pointer.cast()) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.pointer, self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.gpu.let_go(Kind::Pinned, self.bytes);
        if self.gpu.bind().is_ok() {
            let address = self.pointer as usize;
            let freed = match self.gpu.pools() {
                Some(pools) => pools.pinned.keep(self.bytes, address),
                None => vec![address],
            };
            for address in freed {
                // SAFETY: it was allocated once, and nobody has it any more.
                unsafe { sys::cuMemFreeHost(address as *mut c_void) };
            }
        }
    }
}
