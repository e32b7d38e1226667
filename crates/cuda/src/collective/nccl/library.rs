//! `libnccl`, as far as we call it.
//!
//! Bound by hand: cudarc's loader does not try the name that the library is installed under. The signatures are those of `nccl.h` since
//! version 2.4, which NCCL keeps.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

use cudarc::driver::sys::CUstream;

use crate::error::CudaError;
use crate::libraries;

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct UniqueId([c_char; 128]);

/// `ncclComm_t`.
pub(super) type RawComm = *mut c_void;

/// `ncclDataType_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub(super) enum DataType {
    U32 = 3,
    F32 = 7,
    Bf16 = 9,
}

/// `ncclSum`.
const SUM: c_int = 0;

/// The functions.
#[derive(Debug)]
pub(super) struct Nccl {
    get_unique_id: unsafe extern "C" fn(*mut UniqueId) -> c_int,
    comm_init_rank: unsafe extern "C" fn(*mut RawComm, c_int, UniqueId, c_int) -> c_int,
    all_reduce: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        c_int,
        c_int,
        RawComm,
        CUstream,
    ) -> c_int,
    all_gather:
        unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, RawComm, CUstream) -> c_int,
    comm_destroy: unsafe extern "C" fn(RawComm) -> c_int,
    comm_abort: unsafe extern "C" fn(RawComm) -> c_int,
    get_error_string: unsafe extern "C" fn(c_int) -> *const c_char,
}

impl Nccl {
    /// The library, opened at the first call.
    pub(super) fn get() -> Result<&'static Self, CudaError> {
        static FUNCTIONS: OnceLock<Nccl> = OnceLock::new();
        if let Some(functions) = FUNCTIONS.get() {
            return Ok(functions);
        }
        let library = libraries::nccl()?;
        macro_rules! function {
            ($name:literal) => {{
                // SAFETY: the type is that of the function of this name in `nccl.h`.
                let found = unsafe { library.get(concat!($name, "\0").as_bytes()) };
                *found.map_err(|error| CudaError::Library {
                    library: "NCCL (libnccl.so.2)",
                    hint: format!("the one that was opened has no {}: {error}", $name),
                })?
            }};
        }
        let functions = Self {
            get_unique_id: function!("ncclGetUniqueId"),
            comm_init_rank: function!("ncclCommInitRank"),
            all_reduce: function!("ncclAllReduce"),
            all_gather: function!("ncclAllGather"),
            comm_destroy: function!("ncclCommDestroy"),
            comm_abort: function!("ncclCommAbort"),
            get_error_string: function!("ncclGetErrorString"),
        };
        Ok(FUNCTIONS.get_or_init(|| functions))
    }

    fn check(&self, call: &'static str, gpu: usize, code: c_int) -> Result<(), CudaError> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: it gives a static string for any code.
        let text = unsafe { (self.get_error_string)(code) };
        let text = match text.is_null() {
            true => String::new(),
            // SAFETY: as above.
            false => unsafe { CStr::from_ptr(text) }
                .to_string_lossy()
                .into_owned(),
        };
        Err(CudaError::Driver {
            call,
            gpu,
            code: format!("NCCL error {code}"),
            text,
        })
    }

    /// What the ranks of a new group find each other by.
    pub(super) fn unique_id(&self, gpu: usize) -> Result<UniqueId, CudaError> {
        let mut id = UniqueId([0; 128]);
        // SAFETY: it writes the id.
        let code = unsafe { (self.get_unique_id)(&mut id) };
        self.check("ncclGetUniqueId", gpu, code)?;
        Ok(id)
    }

    /// Joins the group; comes back once all ranks have. The rank's GPU must be bound.
    pub(super) fn join(
        &self,
        id: UniqueId,
        rank: usize,
        world_size: usize,
        gpu: usize,
    ) -> Result<Comm, CudaError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: it writes a handle.
        let code =
            unsafe { (self.comm_init_rank)(&mut raw, world_size as c_int, id, rank as c_int) };
        self.check("ncclCommInitRank", gpu, code)?;
        Ok(Comm {
            raw,
            gpu,
            is_aborted: false,
        })
    }
}

/// One rank's communicator.
#[derive(Debug)]
pub(super) struct Comm {
    raw: RawComm,
    gpu: usize,
    is_aborted: bool,
}

// SAFETY: NCCL lets any thread use a communicator, one at a time; it lies behind a lock.
unsafe impl Send for Comm {}

impl Comm {
    /// Puts a sum of `count` elements into the stream; `x` and `out` are device addresses, which may be the same.
    pub(super) fn sum(
        &self,
        ty: DataType,
        [x, out]: [u64; 2],
        count: usize,
        stream: CUstream,
    ) -> Result<(), CudaError> {
        let nccl = self.live()?;
        // SAFETY: the caller's addresses hold that many elements as long as the step is there.
        let code = unsafe {
            (nccl.all_reduce)(
                x as *const c_void,
                out as *mut c_void,
                count,
                ty as c_int,
                SUM,
                self.raw,
                stream,
            )
        };
        nccl.check("ncclAllReduce", self.gpu, code)
    }

    /// Puts a gathering of `count` words from each rank into the stream.
    pub(super) fn gather(
        &self,
        [x, out]: [u64; 2],
        count: usize,
        stream: CUstream,
    ) -> Result<(), CudaError> {
        let nccl = self.live()?;
        // SAFETY: as above; `out` holds what all ranks bring.
        let code = unsafe {
            (nccl.all_gather)(
                x as *const c_void,
                out as *mut c_void,
                count,
                DataType::U32 as c_int,
                self.raw,
                stream,
            )
        };
        nccl.check("ncclAllGather", self.gpu, code)
    }

    fn live(&self) -> Result<&'static Nccl, CudaError> {
        match self.is_aborted {
            false => Nccl::get(),
            true => Err(CudaError::Ranks {
                gpus: vec![self.gpu],
                reason: "their group has ended".into(),
            }),
        }
    }

    /// Ends what is going on, and all that may come.
    pub(super) fn abort(&mut self) {
        if !std::mem::replace(&mut self.is_aborted, true)
            && let Ok(nccl) = Nccl::get()
        {
            // SAFETY: the handle is alive, and not used any more after this. An error has nobody to tell.
            unsafe { (nccl.comm_abort)(self.raw) };
        }
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        if !self.is_aborted
            && let Ok(nccl) = Nccl::get()
        {
            // SAFETY: it was made once.
            unsafe { (nccl.comm_destroy)(self.raw) };
        }
    }
}
