//! The machine as the doctor reads it: for `glim doctor`, and for `glim serve` before it takes GPUs.

use std::path::Path;

use glim_doctor::{Host, Live, Search, Subject};

use crate::exit::Failure;
use crate::gpu;

/// What the doctor is asked about besides the machine: a model that is to run, and where kernels are kept.
pub(crate) fn subject(model: Option<&Path>) -> Subject {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let places = gpu::places();
    Subject {
        // Where it really lies: the mount of a link says nothing.
        model: model.map(|path| {
            let real = path.canonicalize().or_else(|_| std::path::absolute(path));
            text(&real.unwrap_or_else(|_| path.to_owned()))
        }),
        kernel_cache: places.kernels.as_deref().map(text),
        prebuilt_kernels: places.prebuilt.as_deref().map(text),
    }
}

/// This machine, with libraries looked for where the backend looks for them.
pub(crate) fn live() -> Live {
    let places = gpu::places();
    Live::new(Search {
        preferred: places.preferred,
        folders: places.libraries,
    })
}

/// The machine that a server starts on.
#[cfg(not(debug_assertions))]
pub(crate) fn machine() -> Result<Box<dyn Host>, Failure> {
    Ok(Box::new(live()))
}

/// The machine that a server starts on. A test may name a recording of another, which is read anew each time.
#[cfg(debug_assertions)]
pub(crate) fn machine() -> Result<Box<dyn Host>, Failure> {
    let Some(path) = std::env::var_os("GLIM_TEST_HOST").map(std::path::PathBuf::from) else {
        return Ok(Box::new(live()));
    };
    let text = std::fs::read_to_string(&path).map_err(|error| Failure::read(&path, &error))?;
    let recording = glim_doctor::Recording::parse(&text);
    Ok(Box::new(
        recording.map_err(|error| Failure::bad_data(&path, error))?,
    ))
}
