//! `tidy`: rules of the repository that the compiler does not know.
//!
//! Each check is a function from the [`Tree`] to a list of [`Problem`]s, tested on a fabricated tree. A problem prints as
//! `tidy[CHECK] PATH:LINE: what is wrong, and what to do`.

mod arrows;
mod habits;
mod lex;
mod repository;
mod source;
mod tree;

use std::fmt;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use tree::Tree;

/// A broken rule.
#[derive(Debug, PartialEq, Eq)]
struct Problem {
    check: &'static str,
    path: String,
    /// From 1; `None`: the file as a whole.
    line: Option<usize>,
    message: String,
}

impl Problem {
    fn file(check: &'static str, path: &str, message: impl Into<String>) -> Self {
        Self {
            check,
            path: path.into(),
            line: None,
            message: message.into(),
        }
    }

    fn line(check: &'static str, path: &str, line: usize, message: impl Into<String>) -> Self {
        Self {
            line: Some(line),
            ..Self::file(check, path, message)
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tidy[{}] {}", self.check, self.path)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        write!(f, ": {}", self.message)
    }
}

/// Every check.
const CHECKS: &[fn(&Tree) -> Vec<Problem>] = &[
    arrows::arrows,
    source::unsafe_code,
    source::environment,
    source::file_doc,
    source::file_length,
    source::stubs,
    habits::white_space,
    habits::machine_paths,
    repository::size,
    repository::generated,
    repository::readme_commands,
];

/// Runs every check over the repository and prints the problems.
pub(crate) fn run(root: &Path) -> Result<ExitCode> {
    let tree = Tree::of_git(root)?;
    let problems: Vec<Problem> = CHECKS.iter().flat_map(|check| check(&tree)).collect();
    for problem in &problems {
        println!("{problem}");
    }
    if problems.is_empty() {
        println!(
            "tidy: {} files, {} checks, no problem",
            tree.files().len(),
            CHECKS.len()
        );
        return Ok(ExitCode::SUCCESS);
    }
    println!("tidy: {} problems", problems.len());
    Ok(ExitCode::FAILURE)
}
