//! Embeds every kernel file and include of `kernels/`: a new file needs no line anywhere.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn files(folder: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    println!("cargo::rerun-if-changed={}", folder.display());
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            files(&path, found)?;
        } else if path
            .extension()
            .is_some_and(|end| end == "cu" || end == "cuh")
        {
            println!("cargo::rerun-if-changed={}", path.display());
            found.push(path);
        }
    }
    Ok(())
}

fn main() -> io::Result<()> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join("kernels");
    let mut found = Vec::new();
    files(&root, &mut found)?;
    found.sort();
    let mut table = String::from("&[\n");
    for path in &found {
        let name = path.strip_prefix(&root).unwrap_or(path);
        let _ = writeln!(
            table,
            "    ({:?}, include_str!({:?})),",
            name.display().to_string(),
            path.display().to_string()
        );
    }
    table.push_str("]\n");
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("sources.rs");
    fs::write(out, table)
}
