//! Embeds every kernel file and include of `kernels/`: a new file needs no line anywhere. And gives all of them together a name.

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

/// FNV-1a over 64 bits: enough to tell sources apart, and a build script needs no crate for it.
fn fnv(hash: u64, bytes: &[u8]) -> u64 {
    // The end of a name is not the beginning of a text.
    let bytes = bytes.iter().chain(&[0]);
    bytes.fold(hash, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;

fn main() -> io::Result<()> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join("kernels");
    let mut found = Vec::new();
    files(&root, &mut found)?;
    found.sort();
    let mut table = String::from("&[\n");
    let mut hash = FNV_OFFSET;
    for path in &found {
        let name = path.strip_prefix(&root).unwrap_or(path);
        hash = fnv(hash, name.as_os_str().as_encoded_bytes());
        hash = fnv(hash, &fs::read(path)?);
        let _ = writeln!(
            table,
            "    ({:?}, include_str!({:?})),",
            name.display().to_string(),
            path.display().to_string()
        );
    }
    table.push_str("]\n");
    println!("cargo::rustc-env=GLIM_KERNELS={hash:016x}");
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("sources.rs");
    fs::write(out, table)
}
