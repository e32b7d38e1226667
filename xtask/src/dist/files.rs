//! What a release consists of, laid out in a folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::identity::Identity;
use super::{licences, said};
use crate::python::call;

/// Files and folders of the repository that are part of a release as they are.
const COPIED: &[&str] = &[
    "README.md",
    "CHANGELOG.md",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "deploy",
    "docs",
];

/// Where the unit expects the binary: what a link in front of the folders of all versions points to.
const INSTALLED: &str = "/opt/glim/glim";

/// Shells, and what they call a file of completions.
const COMPLETIONS: &[(&str, &str)] = &[
    ("bash", "glim.bash"),
    ("zsh", "_glim"),
    ("fish", "glim.fish"),
];

/// Everything but kernels and checksums.
pub(super) fn gather(root: &Path, binary: &Path, folder: &Path) -> Result<()> {
    let glim = folder.join("glim");
    call(Path::new("strip"), [Path::new("-o"), &glim, binary])?;
    // What git knows, and nothing that lies beside it.
    let tracked = said(
        Command::new("git")
            .current_dir(root)
            .args(["ls-files", "--"])
            .args(COPIED),
    )?;
    for name in tracked.lines() {
        copy(&root.join(name), &folder.join(name))?;
    }
    write(
        &folder.join("LICENSES-THIRD-PARTY"),
        &licences::of_crates(root)?,
    )?;

    said(Command::new(&glim).arg("man").arg(folder.join("man/man1")))?;
    for (shell, file) in COMPLETIONS {
        let script = said(Command::new(&glim).args(["completions", shell]))?;
        write(&folder.join("completions").join(file), &(script + "\n"))?;
    }
    let unit = said(Command::new(&glim).args(["service", "print"]))?;
    write(
        &folder.join("systemd/glim.service"),
        &installed(&unit, &glim)?,
    )
}

/// The unit with the path that the binary will have.
fn installed(unit: &str, here: &Path) -> Result<String> {
    let here = format!("ExecStart={} ", here.display());
    if unit.matches(&here).count() != 1 {
        bail!(
            "`{here}` is not in the unit once: is there a blank in the path of the folder?\n{unit}"
        );
    }
    Ok(unit.replace(&here, &format!("ExecStart={INSTALLED} ")) + "\n")
}

/// Cubins of the same sources as the binary's, and the list of them.
pub(super) fn cubins(from: &Path, identity: &Identity, folder: &Path) -> Result<()> {
    let list = from.join("KERNELS");
    let text = fs::read_to_string(&list).with_context(|| {
        format!(
            "{} is not there: `cargo xtask kernels --all --compile-only --out FOLDER` writes it",
            list.display()
        )
    })?;
    let sources = text.lines().find_map(|line| line.strip_prefix("sources "));
    if sources.map(str::trim) != Some(&identity.kernels) {
        bail!(
            "{}: these are cubins of other sources than the binary's ({}): compile them again\n{text}",
            list.display(),
            identity.kernels
        );
    }
    copy(&list, &folder.join("KERNELS"))?;
    copy(&from.join("kernels"), &folder.join("kernels"))
}

/// SHA-256 of every file, in the form that `sha256sum --check` reads.
pub(super) fn checksums(folder: &Path) -> Result<()> {
    let files = all_files(folder, folder)?;
    // The arguments of one process are enough for some ten thousand names.
    let sums = said(
        Command::new("sha256sum")
            .current_dir(folder)
            .arg("--")
            .args(&files),
    )?;
    write(&folder.join("SHA256SUMS"), &(sums + "\n"))
}

/// All files below a folder, relative to `base`, sorted.
fn all_files(folder: &Path, base: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in folder
        .read_dir()
        .with_context(|| format!("{} is not there", folder.display()))?
    {
        let path = entry?.path();
        match path.is_dir() {
            true => files.extend(all_files(&path, base)?),
            false => files.push(path.strip_prefix(base)?.to_owned()),
        }
    }
    files.sort();
    Ok(files)
}

/// A file, or a folder with all that is in it.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let pairs = match from.is_dir() {
        true => all_files(from, from)?
            .into_iter()
            .map(|file| (from.join(&file), to.join(&file)))
            .collect(),
        false => vec![(from.to_owned(), to.to_owned())],
    };
    for (from, to) in pairs {
        make_room(&to)?;
        fs::copy(&from, &to).with_context(|| format!("{} was not copied", from.display()))?;
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<()> {
    make_room(path)?;
    fs::write(path, text).with_context(|| format!("{} was not written", path.display()))
}

fn make_room(path: &Path) -> Result<()> {
    let folder = path.parent().context("a file has no folder")?;
    fs::create_dir_all(folder).with_context(|| format!("{} was not made", folder.display()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn what_is_copied_is_in_the_repository() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for name in COPIED {
            assert!(root.join(name).exists(), "{name}");
        }
    }

    #[test]
    fn the_unit_names_the_place_of_the_installed_binary() {
        let unit = "[Service]\nExecStart=/build/glim serve --config /etc/glim/glim.toml\nRestart=on-failure";
        let found = installed(unit, Path::new("/build/glim")).unwrap();
        assert!(
            found.contains("\nExecStart=/opt/glim/glim serve --config "),
            "{found}"
        );
        assert!(!found.contains("/build"), "{found}");
        let error = installed(unit, Path::new("/another/glim")).unwrap_err();
        assert!(error.to_string().contains("is not in the unit"), "{error}");
    }
}
