//! The real GLM chat templates, whose licence is not ours to pass on, and llama.cpp's test vocabularies, which are large: they are
//! fetched, not carried.
//!
//! `xtask/py/golden_text.py` takes them out of a source archive on PyPI and checks their SHA-256.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::python;

/// The files that the goldens are of, as the script names them.
const FILES: &[&str] = &["GLM-4.6.jinja", "GLM-4.7-Flash.jinja"];

/// The script that fetches templates and makes the goldens of `glim-text`.
pub(crate) fn script(root: &Path) -> PathBuf {
    root.join("xtask/py/golden_text.py")
}

/// Fetches the templates unless all are there, and returns their folder. The tests look for them in the same place.
pub(crate) fn fetch(root: &Path) -> Result<PathBuf> {
    let folder = root.join("target/templates");
    if !FILES.iter().all(|name| folder.join(name).is_file()) {
        call(root, "fetch-templates", &folder)?;
    }
    Ok(folder)
}

/// Fetches the vocabularies with their test vectors, and returns their folder. The script checks what is there.
pub(crate) fn fetch_vocabs(root: &Path) -> Result<PathBuf> {
    let folder = root.join("target/vocabs");
    call(root, "fetch-vocabs", &folder)?;
    Ok(folder)
}

fn call(root: &Path, command: &str, folder: &Path) -> Result<()> {
    let script = script(root);
    let arguments = [script.as_os_str(), OsStr::new(command), folder.as_os_str()];
    python::call(&python::system(), arguments)
}
