//! One GPU: what it is, and its context.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{self, CUdevice_attribute_enum as Attribute, CUresult};

use super::pool::Pool;
use super::{check, describe};
use crate::error::CudaError;

/// What a GPU is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuFacts {
    /// Number that the driver gives it.
    pub ordinal: usize,
    /// Product name.
    pub name: String,
    /// Compute capability.
    pub capability: (i32, i32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of shared memory that a block may have, if it asks for them.
    pub shared_memory: u32,
    /// Bytes of L2.
    pub l2: usize,
    /// Bytes of memory.
    pub memory: usize,
    /// `domain:bus:device.function`.
    pub bus_id: String,
}

/// Starts the driver.
///
/// # Errors
/// Name and description of the driver's error.
pub(crate) fn initialise() -> Result<(), (String, String)> {
    // SAFETY: the library is open.
    match unsafe { sys::cuInit(0) } {
        CUresult::CUDA_SUCCESS => Ok(()),
        code => Err(describe(code)),
    }
}

/// The newest CUDA that the driver knows, as `1000 · major + 10 · minor`.
pub(crate) fn version() -> i32 {
    let mut version = 0;
    // SAFETY: it writes an integer. A failure leaves 0, which is too old for anything.
    unsafe { sys::cuDriverGetVersion(&mut version) };
    version
}

/// GPUs that the driver shows.
pub(crate) fn count() -> usize {
    let mut count = 0;
    // SAFETY: it writes an integer; a failure leaves 0.
    unsafe { sys::cuDeviceGetCount(&mut count) };
    usize::try_from(count).unwrap_or(0)
}

impl GpuFacts {
    /// Asks the driver.
    ///
    /// # Errors
    /// If there is no GPU of this number.
    pub(crate) fn read(ordinal: usize) -> Result<Self, CudaError> {
        let device = device(ordinal)?;
        let attribute = |which| -> Result<i32, CudaError> {
            let mut value = 0;
            // SAFETY: it writes an integer.
            let code = unsafe { sys::cuDeviceGetAttribute(&mut value, which, device) };
            check("cuDeviceGetAttribute", ordinal, code)?;
            Ok(value)
        };
        let text = |call: &'static str, write: &dyn Fn(*mut std::ffi::c_char, i32) -> CUresult| {
            let mut buffer = [0u8; 256];
            check(call, ordinal, write(buffer.as_mut_ptr().cast(), 255))?;
            let text = CStr::from_bytes_until_nul(&buffer).unwrap_or_default();
            Ok::<_, CudaError>(text.to_string_lossy().into_owned())
        };
        let mut memory = 0;
        // SAFETY: it writes a size.
        let code = unsafe { sys::cuDeviceTotalMem_v2(&mut memory, device) };
        check("cuDeviceTotalMem", ordinal, code)?;
        Ok(Self {
            ordinal,
            // SAFETY: the buffer is longer than the length that is passed.
            name: text("cuDeviceGetName", &|p, n| unsafe {
                sys::cuDeviceGetName(p, n, device)
            })?,
            capability: (
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32,
            shared_memory: attribute(
                Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
            )? as u32,
            l2: attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)? as usize,
            memory,
            // SAFETY: as above.
            bus_id: text("cuDeviceGetPCIBusId", &|p, n| unsafe {
                sys::cuDeviceGetPCIBusId(p, n, device)
            })?,
        })
    }
}

fn device(ordinal: usize) -> Result<sys::CUdevice, CudaError> {
    let mut device = 0;
    // SAFETY: it writes a handle.
    let code = unsafe { sys::cuDeviceGet(&mut device, ordinal as i32) };
    check("cuDeviceGet", ordinal, code)?;
    Ok(device)
}

/// A GPU's primary context, and an account of what is held of it through this handle and its clones.
#[derive(Debug, Clone)]
pub(crate) struct Gpu {
    inner: Arc<Context>,
    account: Arc<Account>,
}

#[derive(Debug)]
struct Context {
    facts: GpuFacts,
    device: sys::CUdevice,
    context: sys::CUcontext,
    pools: Pools,
}

/// What was given up and may be handed out again.
#[derive(Debug)]
pub(super) struct Pools {
    /// Addresses.
    pub(super) device: Pool<u64>,
    /// Addresses of the host.
    pub(super) pinned: Pool<usize>,
    /// Handles, as numbers.
    pub(super) streams: Pool<usize>,
    /// Handles, as numbers.
    pub(super) events: Pool<usize>,
}

impl Default for Pools {
    fn default() -> Self {
        Self {
            // Larger blocks live long, and who frees one wants the room.
            device: Pool::new(4 << 20, 128 << 20),
            pinned: Pool::new(1 << 20, 16 << 20),
            streams: Pool::new(0, 0),
            events: Pool::new(0, 0),
        }
    }
}

/// What one holder has of a GPU.
#[derive(Debug, Default)]
pub(super) struct Account {
    /// Nothing comes from a pool, and each buffer is an allocation of its own.
    apart: bool,
    /// Times that memory, a stream, an event or code was asked for.
    asked: AtomicU64,
    device_bytes: AtomicU64,
    pinned_bytes: AtomicU64,
}

/// What is held through one handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// Times that memory, a stream, an event or code was asked for until now.
    pub asked: u64,
    /// Bytes of the GPU's memory.
    pub device_bytes: u64,
    /// Bytes of the host's memory that are pinned.
    pub pinned_bytes: u64,
}

/// Which memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Device,
    Pinned,
}

impl Account {
    fn bytes(&self, kind: Kind) -> &AtomicU64 {
        match kind {
            Kind::Device => &self.device_bytes,
            Kind::Pinned => &self.pinned_bytes,
        }
    }
}

// SAFETY: the driver's functions may be called from any thread; a context is bound to the calling thread first.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Gpu {
    /// Opens it, and binds it to this thread. The driver must have been initialised.
    ///
    /// A GPU that was opened stays open as long as the process lives: whoever makes many backends would make a context for each.
    pub(crate) fn open(ordinal: usize) -> Result<Self, CudaError> {
        static OPENED: Mutex<BTreeMap<usize, Gpu>> = Mutex::new(BTreeMap::new());
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(gpu) = opened.get(&ordinal) {
            gpu.bind()?;
            return Ok(gpu.with(Account::default()));
        }
        let gpu = Self::retain(ordinal)?;
        opened.insert(ordinal, gpu.clone());
        Ok(gpu.with(Account::default()))
    }

    /// The same GPU with an account of its own.
    fn with(&self, account: Account) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            account: Arc::new(account),
        }
    }

    /// The same GPU, each buffer of which is an allocation of its own: new, exactly as long as asked for, and gone when it is freed. So what
    /// watches allocations sees a kernel that reads what nobody wrote, runs over an end, or comes too late.
    pub(crate) fn apart(&self) -> Self {
        self.with(Account {
            apart: true,
            ..Account::default()
        })
    }

    /// Whether each buffer is an allocation of its own.
    pub(crate) fn is_apart(&self) -> bool {
        self.account.apart
    }

    /// What is held through this handle and its clones.
    pub(crate) fn held(&self) -> Held {
        let read = |n: &AtomicU64| n.load(Ordering::Relaxed);
        Held {
            asked: read(&self.account.asked),
            device_bytes: read(&self.account.device_bytes),
            pinned_bytes: read(&self.account.pinned_bytes),
        }
    }

    /// Counts that something was asked for.
    pub(super) fn asked(&self) {
        self.account.asked.fetch_add(1, Ordering::Relaxed);
    }

    /// Enters memory that was got.
    pub(super) fn got(&self, kind: Kind, bytes: usize) {
        let held = self.account.bytes(kind);
        held.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Strikes out memory that was let go.
    pub(super) fn let_go(&self, kind: Kind, bytes: usize) {
        let held = self.account.bytes(kind);
        held.fetch_sub(bytes as u64, Ordering::Relaxed);
    }

    /// Where things come from and go to; `None`: from and to the driver.
    pub(super) fn pools(&self) -> Option<&Pools> {
        (!self.account.apart).then_some(&self.inner.pools)
    }

    /// All pools, whoever they serve: to be emptied when memory is short.
    pub(super) fn all_pools(&self) -> &Pools {
        &self.inner.pools
    }

    fn retain(ordinal: usize) -> Result<Self, CudaError> {
        let facts = GpuFacts::read(ordinal)?;
        let device = device(ordinal)?;
        let mut context = std::ptr::null_mut();
        // SAFETY: it writes a handle, which is released once, on drop.
        let code = unsafe { sys::cuDevicePrimaryCtxRetain(&mut context, device) };
        check("cuDevicePrimaryCtxRetain", ordinal, code)?;
        let gpu = Self {
            inner: Arc::new(Context {
                facts,
                device,
                context,
                pools: Pools::default(),
            }),
            account: Arc::default(),
        };
        gpu.bind()?;
        Ok(gpu)
    }

    pub(crate) fn facts(&self) -> &GpuFacts {
        &self.inner.facts
    }

    pub(crate) fn ordinal(&self) -> usize {
        self.inner.facts.ordinal
    }

    /// Makes it the calling thread's GPU.
    pub(crate) fn bind(&self) -> Result<(), CudaError> {
        // SAFETY: the context is alive as long as `self`.
        self.check("cuCtxSetCurrent", unsafe {
            sys::cuCtxSetCurrent(self.inner.context)
        })
    }

    /// Free and total bytes.
    pub(crate) fn memory(&self) -> Result<(usize, usize), CudaError> {
        self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: it writes two sizes.
        let code = unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) };
        self.check("cuMemGetInfo", code)?;
        Ok((free, total))
    }

    /// Waits for copies that belong to no stream of ours; not for kernels, one of which may wait for the caller.
    pub(super) fn finish_copies(&self) -> Result<(), CudaError> {
        self.bind()?;
        // SAFETY: null is the default stream, for which streams of ours do not wait, nor it for them.
        let code = unsafe { sys::cuStreamSynchronize(std::ptr::null_mut()) };
        self.check("cuStreamSynchronize", code)
    }

    /// Lets kernels on this GPU read the memory of another.
    pub(crate) fn see(&self, peer: &Gpu) -> Result<(), CudaError> {
        self.bind()?;
        // SAFETY: both contexts are alive.
        match unsafe { sys::cuCtxEnablePeerAccess(peer.inner.context, 0) } {
            CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            code => self.check("cuCtxEnablePeerAccess", code),
        }
    }

    pub(crate) fn check(&self, call: &'static str, code: CUresult) -> Result<(), CudaError> {
        check(call, self.ordinal(), code)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it was retained once. An error here has nobody to tell.
        unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}
