//! `deploy/` and what the documents say of it, held against the program: command lines are parsed by the real parser, probes and names of
//! metrics are those of a real server, and numbers that depend on each other fit.
//!
//! What the formats' own tools think of these files (promtool, hadolint, the schemas of Kubernetes and Compose) is `tests/deploy/run.sh`.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod alerts;
mod compose;
mod container;
mod dashboard;
mod documents;
mod exposition;
mod kubernetes;
mod promql;
mod server;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize as _;
use serde_json::Value as Json;

/// A file of the repository, by its path there.
fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(name)
}

fn read(name: &str) -> String {
    std::fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The only document of a YAML file.
fn yaml(name: &str) -> Json {
    let text = read(name);
    let documents = serde_norway::Deserializer::from_str(&text);
    let mut documents: Vec<Json> = documents
        .map(|document| {
            Json::deserialize(document).unwrap_or_else(|error| panic!("{name}: {error}"))
        })
        .collect();
    assert_eq!(documents.len(), 1, "{name}");
    documents.swap_remove(0)
}

/// `glim` with nothing of the tests' own surroundings.
fn glim() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_glim"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("GLIM_SERVE_") {
            command.env_remove(name);
        }
    }
    command.env("CUDA_VISIBLE_DEVICES", "");
    command
}

/// What `glim` prints if it ends with 0.
fn told(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The effective options of `glim serve` with these arguments (those behind `serve`), by their keys.
fn settings(arguments: &[String]) -> serde_json::Map<String, Json> {
    let text = told(glim().arg("config").arg("--json").args(arguments));
    let json: Json = serde_json::from_str(&text).unwrap();
    let settings = json["settings"].as_array().unwrap().iter();
    settings
        .map(|setting| {
            let key = setting["key"].as_str().unwrap().to_owned();
            (key, setting["values"][0].clone())
        })
        .collect()
}

/// An option that is a whole number.
fn number(settings: &serde_json::Map<String, Json>, key: &str) -> u64 {
    settings[key].as_str().unwrap().parse().unwrap()
}

/// Strings of a list.
fn strings(list: &Json) -> Vec<String> {
    let list = list.as_array().unwrap_or_else(|| panic!("no list: {list}"));
    list.iter()
        .map(|item| item.as_str().unwrap().to_owned())
        .collect()
}

/// A file of API keys in a folder.
fn keys(folder: &tempfile::TempDir) -> String {
    let keys = folder.path().join("keys");
    std::fs::write(&keys, "sk-0123456789\n").unwrap();
    keys.to_str().unwrap().to_owned()
}

/// Seconds that a server has to end after its drain, and in which whoever waits for it notices.
const MARGIN: u64 = 10;
