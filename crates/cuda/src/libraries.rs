//! Where `libcuda` and `libnvrtc` are found, without a panic if they are not.
//!
//! cudarc opens libraries by name at their first call and panics when there is none. So each is looked for here before: by
//! name, as the loader finds it; then in the folders where CUDA and the Python wheels put it. One that is opened by its path
//! stays open, and a later `dlopen` by name finds it by its SONAME.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use libloading::Library;

use crate::error::CudaError;

/// The driver.
const DRIVER: &[&str] = &["libcuda.so.1", "libcuda.so"];

/// The run-time compiler.
const NVRTC: &[&str] = &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];

/// Folders that were named by the user, looked into first.
static PREFERRED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Has libraries looked for in this folder before all others; for tests, and for `--cuda-libraries`.
pub fn preload(folder: &Path) {
    let mut folders = PREFERRED.lock().unwrap_or_else(|e| e.into_inner());
    if !folders.iter().any(|f| f == folder) {
        folders.push(folder.to_owned());
    }
}

/// Folders of CUDA toolkits and of Python's wheels, in the order in which they are looked through.
pub fn folders() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = PREFERRED.lock().unwrap_or_else(|e| e.into_inner()).clone();
    let mut toolkits: Vec<PathBuf> = Path::new("/usr/local")
        .read_dir()
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with("cuda"))
        })
        .collect();
    // The newest version first: `cuda-13.0` after `cuda-12.8` in name.
    toolkits.sort();
    toolkits.reverse();
    for toolkit in toolkits {
        found.push(toolkit.join("lib64"));
        found.push(toolkit.join("targets/x86_64-linux/lib"));
    }
    found.push("/usr/local/nvidia/lib64".into());
    found.push("/usr/lib/x86_64-linux-gnu".into());
    if let Ok(own) = std::env::current_exe()
        && let Some(folder) = own.parent()
    {
        found.push(folder.to_owned());
        found.push(folder.join("lib"));
    }
    found
}

/// NVIDIA's collectives.
const NCCL: &[&str] = &["libnccl.so.2", "libnccl.so"];

/// Opens the first of `names` that there is, for good.
fn open(names: &[&str]) -> Option<&'static Library> {
    let preferred = PREFERRED.lock().unwrap_or_else(|e| e.into_inner()).clone();
    let by_path = |folders: Vec<PathBuf>| {
        folders
            .into_iter()
            .flat_map(|folder| names.iter().map(move |name| folder.join(name)))
            .filter(|path| path.is_file())
            .collect::<Vec<_>>()
    };
    let candidates = by_path(preferred)
        .into_iter()
        .chain(names.iter().map(PathBuf::from))
        .chain(by_path(folders()));
    for candidate in candidates {
        // SAFETY: these are NVIDIA's libraries (or the emulator that a test names), whose initialisers may run at any time.
        if let Ok(library) = unsafe { Library::new(&candidate) } {
            // Open for the life of the process: functions of it are kept in statics.
            return Some(Box::leak(Box::new(library)));
        }
    }
    None
}

/// Opens NCCL.
///
/// # Errors
/// If there is none.
pub(crate) fn nccl() -> Result<&'static Library, CudaError> {
    open(NCCL).ok_or_else(|| CudaError::Library {
        library: "NCCL (libnccl.so.2)",
        hint: "install the package libnccl2 of your distribution, or `pip install nvidia-nccl-cu13` and name its lib folder".into(),
    })
}

/// Opens the driver.
///
/// # Errors
/// If there is none, or cudarc would not find it.
pub fn driver() -> Result<(), CudaError> {
    // SAFETY: it only tries to open the library.
    if open(DRIVER).is_some() && unsafe { cudarc::driver::sys::is_culib_present() } {
        return Ok(());
    }
    Err(CudaError::Library {
        library: "the NVIDIA driver (libcuda.so.1)",
        hint: "install the driver, or give the container access to the GPU".into(),
    })
}

/// Opens the run-time compiler.
///
/// # Errors
/// As [`driver`].
pub fn nvrtc() -> Result<(), CudaError> {
    // SAFETY: it only tries to open the library.
    if open(NVRTC).is_some() && unsafe { cudarc::nvrtc::sys::is_culib_present() } {
        return Ok(());
    }
    Err(CudaError::Library {
        library: "NVRTC (libnvrtc.so.13 or .12)",
        hint: "install the package cuda-nvrtc of your distribution, or `pip install nvidia-cuda-nvrtc` and name its lib folder"
            .into(),
    })
}
