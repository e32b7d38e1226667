//! The binary as its users meet it: arguments in, stdout, stderr and exit code out.
#![allow(clippy::unwrap_used, reason = "tests")]

mod bench;
mod convert;
mod doctor;
mod errors;
mod eval;
mod explain;
mod help;
mod hostile;
mod imatrix;
mod inspect;
mod manual;
mod models;
mod quantize;
mod ranks;
mod run;
mod serve;
mod synth;
#[cfg(unix)]
mod terminal;
mod tokenize;
mod verify;

use std::path::{Path, PathBuf};

use assert_cmd::Command;
use serde_json::Value as Json;

/// What a run of the binary left behind.
#[derive(Debug)]
struct Outcome {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Outcome {
    /// The one JSON object of stdout.
    fn json(&self) -> Json {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Stdout of a run that must have succeeded.
    fn ok(self) -> String {
        assert_eq!(self.code, 0, "{self:?}");
        self.stdout
    }

    /// Asserts that the command ended with `code` and one line of error that holds all of `words`.
    fn fails(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, code, "{self:?}");
        let mut lines = self
            .stderr
            .lines()
            .skip_while(|line| line.starts_with("note: "));
        let first = lines.next().unwrap_or_default();
        assert!(first.starts_with("glim: "), "{self:?}");
        for word in words {
            assert!(first.contains(word), "`{word}` is not in: {first}");
        }
        assert!(!self.stderr.contains("panicked"), "{self:?}");
    }
}

/// Runs `glim`, with nothing on stdin.
fn glim(args: &[&str]) -> Outcome {
    glim_with(args, "")
}

/// Runs `glim` with `stdin`.
fn glim_with(args: &[&str], stdin: &str) -> Outcome {
    let output = Command::new(env!("CARGO_BIN_EXE_glim"))
        .args(args)
        .env_remove("NO_COLOR")
        .env("COLUMNS", "100")
        // What they test is the same on a machine with GPUs.
        .env("CUDA_VISIBLE_DEVICES", "")
        .write_stdin(stdin)
        .output()
        .unwrap();
    Outcome {
        code: output.status.code().unwrap(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Writes a file that a test hands to the binary.
fn write(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
