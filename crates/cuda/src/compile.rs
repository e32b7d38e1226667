//! NVRTC: a unit's source to machine code for one architecture.
//!
//! Machine code (a cubin) and not PTX: a driver refuses PTX that is newer than itself, and takes a cubin; features of one exact
//! architecture (`sm_90a`) need it; and it loads in a millisecond.

use std::ffi::{CStr, CString, c_char};

use cudarc::nvrtc::sys;

use crate::error::CudaError;
use crate::kernels::{Unit, source};
use crate::libraries;

/// What every unit is compiled with, besides its defines and the architecture.
pub const OPTIONS: &[&str] = &["--std=c++17", "-default-device", "--ptxas-options=-v"];

/// A compiled unit.
#[derive(Debug, Clone)]
pub struct Compiled {
    /// Machine code.
    pub cubin: Vec<u8>,
    /// What the compiler says of registers, spills and shared memory of each entry.
    pub log: String,
}

/// The compiler's version, as in `13.0`.
///
/// # Errors
/// If NVRTC is not there.
pub fn version() -> Result<(i32, i32), CudaError> {
    libraries::nvrtc()?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the library is open, and both pointers are to integers of ours.
    unsafe { sys::nvrtcVersion(&mut major, &mut minor) };
    Ok((major, minor))
}

/// The architecture to compile for: `sm_90a` for compute capability 9.0. From 9.0 on with the suffix that opens what only this
/// generation has.
pub fn arch((major, minor): (i32, i32)) -> String {
    let suffix = if major >= 9 { "a" } else { "" };
    format!("sm_{major}{minor}{suffix}")
}

/// Compiles a unit.
///
/// # Errors
/// If NVRTC is missing, or refuses the source.
pub fn compile(unit: &Unit, arch: &str) -> Result<Compiled, CudaError> {
    libraries::nvrtc()?;
    let failed = |log: String| CudaError::Compile {
        kernel: unit.to_string(),
        arch: arch.into(),
        log,
    };
    let c_string = |text: String| CString::new(text).map_err(|e| failed(e.to_string()));
    let text = c_string(source(unit)?)?;
    let name = c_string(format!("{}.cu", unit.file))?;
    let mut options = vec![c_string(format!("--gpu-architecture={arch}"))?];
    for option in OPTIONS {
        options.push(c_string((*option).into())?);
    }
    let options: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();

    let mut program = std::ptr::null_mut();
    // SAFETY: the library is open; the strings live until the call returns, and NVRTC keeps copies.
    let created = unsafe {
        sys::nvrtcCreateProgram(
            &mut program,
            text.as_ptr(),
            name.as_ptr(),
            0,
            std::ptr::null(),
            std::ptr::null(),
        )
    };
    if created != sys::nvrtcResult::NVRTC_SUCCESS {
        return Err(failed(describe(created)));
    }
    let program = Program(program);
    // SAFETY: the program is alive, and `options` holds as many strings as is said.
    let result =
        unsafe { sys::nvrtcCompileProgram(program.0, options.len() as i32, options.as_ptr()) };
    let log = program.log();
    if result != sys::nvrtcResult::NVRTC_SUCCESS {
        return Err(failed(format!("{}: {log}", describe(result))));
    }
    let cubin = program.cubin().map_err(failed)?;
    Ok(Compiled { cubin, log })
}

fn describe(result: sys::nvrtcResult) -> String {
    // SAFETY: NVRTC gives a static string for every code.
    let text = unsafe { CStr::from_ptr(sys::nvrtcGetErrorString(result)) };
    text.to_string_lossy().into_owned()
}

struct Program(sys::nvrtcProgram);

impl Program {
    fn log(&self) -> String {
        let mut bytes = 0;
        // SAFETY: the program is alive; the buffer is as long as NVRTC says that the log is.
        let buffer = unsafe {
            sys::nvrtcGetProgramLogSize(self.0, &mut bytes);
            let mut buffer = vec![0u8; bytes.max(1)];
            sys::nvrtcGetProgramLog(self.0, buffer.as_mut_ptr().cast());
            buffer
        };
        let text = buffer.split(|b| *b == 0).next().unwrap_or_default();
        String::from_utf8_lossy(text).trim().to_owned()
    }

    fn cubin(&self) -> Result<Vec<u8>, String> {
        let mut bytes = 0;
        // SAFETY: the program is alive, and was compiled.
        let result = unsafe { sys::nvrtcGetCUBINSize(self.0, &mut bytes) };
        if result != sys::nvrtcResult::NVRTC_SUCCESS {
            return Err(describe(result));
        }
        let mut cubin = vec![0u8; bytes];
        // SAFETY: the buffer is as long as NVRTC said.
        let result = unsafe { sys::nvrtcGetCUBIN(self.0, cubin.as_mut_ptr().cast()) };
        match result {
            sys::nvrtcResult::NVRTC_SUCCESS => Ok(cubin),
            other => Err(describe(other)),
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: it was created, and is destroyed once.
        unsafe { sys::nvrtcDestroyProgram(&mut self.0) };
    }
}
