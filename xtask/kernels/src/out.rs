//! Cubins as a release has them: a folder that is laid beside the binary, and a file that says what is in it.
//!
//! The file is for people, and for `cargo xtask dist`, which compares the name of the sources with that of the binary's.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use glim_cuda::kernels::SOURCES_HASH;

use crate::build::Built;

/// Where the product looks for cubins, beside itself.
const CUBINS: &str = "kernels";
/// What says which they are.
const LIST: &str = "KERNELS";

/// Writes all of it below a folder. The list comes last: where it is, everything is.
pub(crate) fn write(built: &[Built], archs: &[&str], nvrtc: &str, folder: &Path) -> Result<()> {
    let cubins = folder.join(CUBINS);
    fs::create_dir_all(&cubins).with_context(|| format!("{} was not made", cubins.display()))?;
    let mut there = cubins
        .read_dir()
        .with_context(|| format!("{} is not readable", cubins.display()))?;
    if there.next().is_some() {
        bail!(
            "{} is not empty: what is there may be of other sources; remove it",
            cubins.display()
        );
    }
    let mut bytes = 0;
    for one in built {
        let path = cubins.join(&one.name);
        fs::write(&path, &one.cubin)
            .with_context(|| format!("{} was not written", path.display()))?;
        bytes += one.cubin.len();
    }
    let temporary = folder.join(format!(".{LIST}.{}", std::process::id()));
    fs::write(&temporary, list(built, archs, nvrtc))
        .and_then(|()| fs::rename(&temporary, folder.join(LIST)))
        .with_context(|| format!("{LIST} was not written to {}", folder.display()))?;
    println!(
        "{} cubins, {:.1} MB, are in {}",
        built.len(),
        bytes as f64 / 1e6,
        cubins.display()
    );
    Ok(())
}

/// The sources' name, the compiler, how many there are for each architecture, and for which types of weights.
fn list(built: &[Built], archs: &[&str], nvrtc: &str) -> String {
    let mut text = format!("sources   {SOURCES_HASH}\ncompiler  NVRTC {nvrtc}\n");
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut types = BTreeSet::new();
    for one in built {
        *counts.entry(&one.arch).or_default() += 1;
        let defines = one.unit.defines.iter();
        types.extend(
            defines
                .filter(|(name, _)| *name == "TYPE")
                .map(|(_, ty)| ty.as_str()),
        );
    }
    for arch in archs {
        let count = counts.get(arch).copied().unwrap_or_default();
        let _ = writeln!(text, "{arch:8}  {count} cubins");
    }
    let types: Vec<&str> = types.into_iter().collect();
    text + &format!("types     {}\n", types.join(" "))
}
