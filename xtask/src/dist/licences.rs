//! The licences of the crates that are compiled into the binary, with their texts: most ask for being passed on with it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::{TARGET, said};

/// Beginnings of the names of files with licences and what belongs to them.
const FILES: &[&str] = &[
    "license",
    "licence",
    "copying",
    "notice",
    "copyright",
    "unlicense",
];

/// Names, versions and licences of all crates of `glim`, then each text once with those that have it.
pub(super) fn of_crates(root: &Path) -> Result<String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(root).args([
        "metadata",
        "--format-version=1",
        "--locked",
        "--offline",
        "--filter-platform",
        TARGET,
    ]);
    let metadata: Value = serde_json::from_str(&said(&mut command)?)
        .context("what `cargo metadata` prints is not JSON")?;
    let linked = linked(&metadata).context("`cargo metadata` does not know glim")?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    // Without a source it is one of the workspace.
    let others = packages.filter(|package| !package["source"].is_null());
    let others =
        others.filter(|package| package["id"].as_str().is_some_and(|id| linked.contains(id)));

    let mut list =
        String::from("Compiled into this binary, under these licences; their texts follow.\n\n");
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in others {
        let word = |key: &str| package[key].as_str().unwrap_or("unknown");
        let name = format!("{} {}", word("name"), word("version"));
        let _ = writeln!(list, "{name}: {} ({})", word("license"), word("repository"));
        let folder = Path::new(word("manifest_path")).parent();
        for text in folder.map(texts_of).transpose()?.into_iter().flatten() {
            texts.entry(text).or_default().push(name.clone());
        }
    }
    for (text, names) in texts {
        let _ = write!(
            list,
            "\n{}\n{}\n\n{text}\n",
            "-".repeat(80),
            names.join(", ")
        );
    }
    Ok(list)
}

/// Ids of the packages that are linked into `glim`: through dependencies of the normal kind.
fn linked(metadata: &Value) -> Option<BTreeSet<&str>> {
    let packages = metadata["packages"].as_array()?;
    let glim = packages.iter().find(|package| package["name"] == "glim")?;
    let nodes = metadata["resolve"]["nodes"].as_array()?;
    let nodes: BTreeMap<&str, &Value> = nodes
        .iter()
        .filter_map(|node| Some((node["id"].as_str()?, node)))
        .collect();
    let mut found = BTreeSet::new();
    let mut open = vec![glim["id"].as_str()?];
    while let Some(id) = open.pop() {
        if !found.insert(id) {
            continue;
        }
        let dependencies = nodes.get(id)?["deps"].as_array()?;
        let is_normal = |dependency: &&Value| {
            let kinds = dependency["dep_kinds"].as_array();
            kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind["kind"].is_null()))
        };
        let normal = dependencies.iter().filter(is_normal);
        open.extend(normal.filter_map(|dependency| dependency["pkg"].as_str()));
    }
    Some(found)
}

/// Texts of the licence files of a crate, in the order of their names.
fn texts_of(folder: &Path) -> Result<Vec<String>> {
    let mut paths = Vec::new();
    let entries = folder
        .read_dir()
        .with_context(|| format!("{} is not there", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .to_lowercase();
        if path.is_file() && FILES.iter().any(|begin| name.starts_with(begin)) {
            paths.push(path);
        }
    }
    paths.sort();
    let text = |path: &std::path::PathBuf| {
        let bytes =
            std::fs::read(path).with_context(|| format!("{} is not readable", path.display()))?;
        Ok(String::from_utf8_lossy(&bytes).trim().replace("\r\n", "\n"))
    };
    paths.iter().map(text).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn what_is_linked_is_named_with_its_text_and_tools_of_tests_are_not() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let text = of_crates(root).unwrap();
        let names: Vec<&str> = text
            .lines()
            .take_while(|line| !line.starts_with("---"))
            .collect();
        let is_there = |name: &str| {
            names
                .iter()
                .any(|line| line.starts_with(&format!("{name} ")))
        };
        assert!(
            is_there("clap") && is_there("tokio") && is_there("cudarc"),
            "{names:?}"
        );
        // Of tests, of build scripts, of the workspace, of other systems.
        for name in ["insta", "assert_cmd", "glim-plan", "windows-sys"] {
            assert!(!is_there(name), "{name}");
        }
        assert!(text.contains("Permission is hereby granted, free of charge"));
        assert!(!text.contains(": unknown ("), "a crate names no licence");
    }
}
