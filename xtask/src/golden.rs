//! `golden`: the numbers and texts that tests compare with, made by independent implementations.
//!
//! Each script says in its head what it writes, with which packages and from which seed.

use std::ffi::OsString;
use std::path::Path;

use anyhow::Result;
use clap::ValueEnum;

use crate::{python, templates};

/// A set of goldens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Which {
    /// Blocks of each quantised type and their values, by gguf-py
    Quant,
    /// Token ids by `tokenizers`, small templates and the built-in one by jinja2
    Text,
    /// What the real GLM templates print, as hashes, by jinja2
    Templates,
}

/// Writes the goldens, or compares them with what would be written.
pub(crate) fn run(root: &Path, which: &[Which], check: bool) -> Result<()> {
    let which = if which.is_empty() {
        Which::value_variants()
    } else {
        which
    };
    let python = python::with_packages(root)?;
    for which in which {
        for arguments in commands(root, *which, check)? {
            python::call(&python, arguments)?;
        }
    }
    Ok(())
}

/// The command lines of a set, without the interpreter.
fn commands(root: &Path, which: Which, check: bool) -> Result<Vec<Vec<OsString>>> {
    let quant = root.join("xtask/py/golden_quant.py");
    let text = templates::script(root);
    let line = |script: &Path, rest: &[OsString]| {
        let check = check.then(|| OsString::from("--check"));
        [script.as_os_str().to_owned()]
            .into_iter()
            .chain(check)
            .chain(rest.iter().cloned())
            .collect()
    };
    Ok(match which {
        Which::Quant => vec![line(&quant, &[])],
        Which::Text => ["encode", "features", "tiny"]
            .map(|name| line(&text, &[name.into()]))
            .into(),
        Which::Templates => vec![line(
            &text,
            &["templates".into(), templates::fetch(root)?.into()],
        )],
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn check_stands_before_the_subcommand() {
        let lines = commands(Path::new("r"), Which::Text, true).unwrap();
        let words: Vec<_> = lines.iter().map(|line| line.join(" ".as_ref())).collect();
        assert_eq!(words[0], "r/xtask/py/golden_text.py --check encode");
        assert_eq!(words.len(), 3);
        let lines = commands(Path::new("r"), Which::Quant, false).unwrap();
        assert_eq!(lines, [["r/xtask/py/golden_quant.py"]]);
    }

    /// The scripts are called by these names; a renamed one would only show when somebody makes goldens.
    #[test]
    fn the_scripts_exist() {
        let root = crate::root().unwrap();
        for which in [Which::Quant, Which::Text] {
            for line in commands(&root, which, false).unwrap() {
                assert!(Path::new(&line[0]).is_file(), "{line:?}");
            }
        }
    }
}
