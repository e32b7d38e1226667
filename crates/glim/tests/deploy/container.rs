//! The Containerfile: what it takes from this repository, and what it sets for the program.

use std::process::Command;

use crate::{glim, path, read, settings, told};

const FILE: &str = "deploy/Containerfile";

/// Instructions with their continuation lines joined, without comments.
pub(crate) fn instructions() -> Vec<(String, String)> {
    let text = read(FILE);
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let joined = lines.collect::<Vec<_>>().join("\n").replace("\\\n", " ");
    let instructions = joined.lines().filter_map(|line| {
        let (word, rest) = line.trim().split_once(' ')?;
        Some((word.to_owned(), rest.trim().to_owned()))
    });
    instructions.collect()
}

/// The arguments of all instructions of a kind.
pub(crate) fn all(kind: &str) -> Vec<String> {
    let found = instructions().into_iter().filter(|(word, _)| word == kind);
    found.map(|(_, rest)| rest).collect()
}

/// Variables that the image sets for the program.
pub(crate) fn variables() -> Vec<(String, String)> {
    let pairs = all("ENV").into_iter().map(|pair| {
        let (name, value) = pair.split_once('=').unwrap();
        (name.to_owned(), value.to_owned())
    });
    pairs.collect()
}

/// A constant list of strings in a file of this repository.
fn constant(file: &str, name: &str) -> Vec<String> {
    let text = read(file);
    let (_, rest) = text
        .split_once(&format!("const {name}: &[&str] = &["))
        .unwrap_or_else(|| panic!("{file} has no {name}"));
    let (list, _) = rest.split_once(']').unwrap();
    let quoted = list.split('"').skip(1).step_by(2);
    quoted.map(str::to_owned).collect()
}

#[test]
fn what_is_copied_is_there() {
    let own = all("COPY")
        .into_iter()
        .filter(|copy| !copy.starts_with("--from="));
    for copy in own {
        let mut words: Vec<&str> = copy.split_whitespace().collect();
        words.pop();
        for file in words {
            assert!(path(file).exists(), "{file}");
        }
    }
}

#[test]
fn kernels_are_compiled_for_all_architectures_by_the_compiler_that_is_pinned() {
    let archs = all("ARG").into_iter().find_map(|argument| {
        let archs = argument
            .strip_prefix("GPU_ARCHS=")?
            .trim_matches('"')
            .to_owned();
        Some(archs)
    });
    let archs = archs.unwrap();
    let archs: Vec<&str> = archs.split(' ').collect();
    assert_eq!(archs, constant("xtask/kernels/src/main.rs", "ALL_ARCHS"));
    let packages = constant("xtask/src/kernels.rs", "PACKAGES");
    let nvrtc = packages
        .iter()
        .find(|package| package.contains("nvrtc"))
        .unwrap();
    let runs = all("RUN").join("\n");
    assert!(
        runs.contains(&format!(" {nvrtc}\n")),
        "{nvrtc} is not in:\n{runs}"
    );
}

#[test]
fn it_runs_as_nobody_else_and_serves_where_it_is_exposed() {
    assert_eq!(all("USER"), ["10001:10001"]);
    assert_eq!(all("ENTRYPOINT"), ["[\"/usr/local/bin/glim\"]"]);
    assert_eq!(all("CMD"), ["[\"serve\"]"]);
    let defaults = settings(&[]);
    assert_eq!(all("EXPOSE"), [defaults["port"].as_str().unwrap()]);
    // The program takes the variables, and listens on all addresses by them.
    let mut command: Command = glim();
    command.args(["config", "--json"]).envs(variables());
    let effective: serde_json::Value = serde_json::from_str(&told(&mut command)).unwrap();
    let found = effective["settings"].as_array().unwrap().iter();
    let host = found.filter(|setting| setting["key"] == "host");
    let host: Vec<_> = host
        .map(|setting| setting["values"][0].as_str().unwrap())
        .collect();
    assert_eq!(host, ["0.0.0.0"]);
}

#[test]
fn the_compiler_is_new_enough() {
    let manifest: toml::Table = read("Cargo.toml").parse().unwrap();
    let least = manifest["workspace"]["package"]["rust-version"]
        .as_str()
        .unwrap();
    let numbers = |version: &str| -> Vec<u32> {
        let parts = version
            .split(['.', '-'])
            .map_while(|part| part.parse().ok());
        parts.collect()
    };
    let image = all("FROM");
    let (_, image) = image[0].split_once("rust:").unwrap();
    assert!(numbers(image) >= numbers(least), "{image} < {least}");
}
