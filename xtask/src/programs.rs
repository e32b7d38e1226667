//! Programs of the workspace, built to be run here or elsewhere.
//!
//! Cargo gives third-party crates the features that what is built together asks for. `-p` asks for others than `--workspace`, and most
//! crates would be compiled once more for it; so whatever can be is built as a part of the whole.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

/// A test program.
#[derive(Debug)]
pub(crate) struct Test {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
}

/// The folder of a crate.
pub(crate) fn folder(root: &Path, package: &str) -> PathBuf {
    let name = package.strip_prefix("glim-").unwrap_or(package);
    root.join("crates").join(name)
}

/// Names of the integration tests of a crate: files, and folders with a `main.rs`.
pub(crate) fn test_names(root: &Path, package: &str) -> Result<Vec<String>> {
    let tests = folder(root, package).join("tests");
    let mut names = Vec::new();
    for entry in tests
        .read_dir()
        .with_context(|| format!("{} is not there", tests.display()))?
    {
        let path = entry?.path();
        let is_test = path.extension().is_some_and(|e| e == "rs") || path.join("main.rs").is_file();
        if is_test && let Some(name) = path.file_stem() {
            names.push(name.to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Builds these integration tests of a crate; in the order of their names.
pub(crate) fn tests(root: &Path, package: &str, names: &[String]) -> Result<Vec<Test>> {
    let mut arguments = vec!["test", "--workspace", "--no-run"];
    arguments.extend(names.iter().flat_map(|name| ["--test", name.as_str()]));
    // Another crate may have a test of the same name.
    let manifest = folder(root, package).join("Cargo.toml");
    let own = |message: &Value| message["manifest_path"].as_str().map(Path::new) == Some(&manifest);
    let mut found = build(root, &arguments, own)?;
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// Builds a program of the workspace.
pub(crate) fn program(root: &Path, name: &str, arguments: &[&str]) -> Result<PathBuf> {
    let mut all = vec!["build", "--bin", name];
    all.extend(arguments);
    let mut found = build(root, &all, |message| message["target"]["name"] == name)?;
    Ok(found.swap_remove(0).path)
}

/// Runs cargo, and gives what it made of those that are `wanted`.
fn build(root: &Path, arguments: &[&str], wanted: impl Fn(&Value) -> bool) -> Result<Vec<Test>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .current_dir(root)
        .args(arguments)
        .args(["--quiet", "--message-format=json-render-diagnostics"])
        .stderr(Stdio::inherit());
    let output = command.output().context("cargo did not start")?;
    if !output.status.success() {
        bail!("{command:?} ended with {}", output.status);
    }
    let mut found = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let message: Value = serde_json::from_str(line).context("cargo's messages are not JSON")?;
        let (name, path) = (&message["target"]["name"], &message["executable"]);
        if let (Some(name), Some(path)) = (name.as_str(), path.as_str())
            && wanted(&message)
        {
            let (name, path) = (name.to_owned(), PathBuf::from(path));
            found.push(Test { name, path });
        }
    }
    if found.is_empty() {
        bail!("{command:?} made no program");
    }
    Ok(found)
}
