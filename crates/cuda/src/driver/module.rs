//! Compiled code on a GPU.

use std::ffi::{CString, c_void};
use std::sync::Arc;

use cudarc::driver::sys;

use super::Gpu;
use crate::error::CudaError;

/// A loaded cubin.
#[derive(Debug)]
pub(crate) struct Module {
    gpu: Gpu,
    handle: sys::CUmodule,
}

// SAFETY: the driver's functions may be called from any thread.
unsafe impl Send for Module {}
// SAFETY: as above; nothing changes a module.
unsafe impl Sync for Module {}

/// An entry point of a module, which it keeps loaded.
#[derive(Debug, Clone)]
pub(crate) struct Function {
    _module: Arc<Module>,
    pub(super) handle: sys::CUfunction,
}

// SAFETY: as for `Module`.
unsafe impl Send for Function {}
// SAFETY: as for `Module`; the driver guards its attributes.
unsafe impl Sync for Function {}

impl Module {
    pub(crate) fn load(gpu: &Gpu, cubin: &[u8]) -> Result<Arc<Self>, CudaError> {
        gpu.bind()?;
        gpu.asked();
        let mut handle = std::ptr::null_mut();
        // SAFETY: a cubin says itself how long it is; the driver copies it.
        let code = unsafe { sys::cuModuleLoadData(&mut handle, cubin.as_ptr().cast::<c_void>()) };
        gpu.check("cuModuleLoadData", code)?;
        Ok(Arc::new(Self {
            gpu: gpu.clone(),
            handle,
        }))
    }

    /// An entry point, which may have up to `shared` bytes of dynamic shared memory.
    pub(crate) fn function(self: &Arc<Self>, name: &str) -> Result<Function, CudaError> {
        self.gpu.bind()?;
        let c_name = CString::new(name).map_err(|_| CudaError::Kernel {
            kernel: name.into(),
            reason: "a name holds no NUL".into(),
        })?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: module and name are alive.
        let code = unsafe { sys::cuModuleGetFunction(&mut handle, self.handle, c_name.as_ptr()) };
        self.gpu.check("cuModuleGetFunction", code)?;
        // The driver loads a function when it is first needed, and may wait for the GPU to be idle then: not at its first launch, while another
        // rank's kernel waits for it, but now, as asking for what it takes makes it (CUDA programming guide, "Lazy Loading").
        let mut bytes = 0;
        let which = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES;
        // SAFETY: the function is alive; it writes an integer.
        let code = unsafe { sys::cuFuncGetAttribute(&mut bytes, which, handle) };
        self.gpu.check("cuFuncGetAttribute", code)?;
        Ok(Function {
            _module: Arc::clone(self),
            handle,
        })
    }
}

impl Module {
    /// Address of a variable of the module; `None` if it has none of this name.
    pub(crate) fn global(&self, name: &str) -> Result<Option<u64>, CudaError> {
        self.gpu.bind()?;
        let Ok(name) = CString::new(name) else {
            return Ok(None);
        };
        let (mut address, mut bytes) = (0, 0);
        // SAFETY: module and name are alive.
        let code = unsafe {
            sys::cuModuleGetGlobal_v2(&mut address, &mut bytes, self.handle, name.as_ptr())
        };
        match code {
            sys::CUresult::CUDA_ERROR_NOT_FOUND => Ok(None),
            code => {
                self.gpu.check("cuModuleGetGlobal", code)?;
                Ok(Some(address))
            }
        }
    }
}

impl Function {
    /// Lets launches have this many bytes of dynamic shared memory.
    pub(crate) fn allow_shared(&self, gpu: &Gpu, bytes: u32) -> Result<(), CudaError> {
        gpu.bind()?;
        let which = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function is alive.
        let code = unsafe { sys::cuFuncSetAttribute(self.handle, which, bytes as i32) };
        gpu.check("cuFuncSetAttribute", code)
    }

    /// Asks for as much of a multiprocessor's memory as can be shared memory, where the driver takes what one kernel needs. A multiprocessor
    /// has to be empty before it is split in another way, so kernels that are to be beside each other must want the same.
    pub(crate) fn prefer_shared(&self, gpu: &Gpu) -> Result<(), CudaError> {
        gpu.bind()?;
        let which =
            sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
        // SAFETY: the function is alive.
        let code = unsafe { sys::cuFuncSetAttribute(self.handle, which, 100) };
        gpu.check("cuFuncSetAttribute", code)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.gpu.bind().is_ok() {
            // SAFETY: it was loaded once, and no function of it is left.
            unsafe { sys::cuModuleUnload(self.handle) };
        }
    }
}
