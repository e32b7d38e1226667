//! What the user sees: stdout for the answer, stderr for everything else.
//!
//! Nothing here panics when a stream is closed: a gone reader of stdout ends the command quietly, and stderr is best
//! effort.

use std::io::{self, IsTerminal, Write};

use clap::ValueEnum;
use serde::Serialize;

use crate::cli::Global;
use crate::exit::Failure;

/// When to use colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorChoice {
    // On a terminal, unless NO_COLOR is set. (Doc comments would turn `--help` into its long form.)
    Auto,
    Always,
    Never,
}

/// How to talk to the user.
#[derive(Debug, Clone)]
pub(crate) struct Ui {
    /// One JSON object on stdout.
    pub(crate) json: bool,
    verbose: bool,
    color: ColorChoice,
}

impl Ui {
    pub(crate) fn new(global: &Global) -> Self {
        Self {
            json: global.json,
            verbose: global.verbose,
            color: global.color,
        }
    }

    /// Whether a person reads stdout.
    pub(crate) fn is_terminal(&self) -> bool {
        io::stdout().is_terminal()
    }

    /// Whether stdout gets colours.
    pub(crate) fn is_colored(&self) -> bool {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        match self.color {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => {
                self.is_terminal()
                    && !set("NO_COLOR")
                    && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
            }
        }
    }

    /// Writes text to stdout, at once.
    pub(crate) fn print(&self, text: &str) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())
            .and_then(|()| out.flush())
            .map_err(|error| Failure::write(&error))
    }

    /// Writes the one object of `--json`.
    pub(crate) fn print_json(&self, value: &impl Serialize) -> Result<(), Failure> {
        let text = serde_json::to_string(value).map_err(|error| {
            Failure::new(
                crate::exit::Exit::Internal,
                format!("the result cannot be written as JSON: {error}"),
            )
        })?;
        self.print(&(text + "\n"))
    }

    /// Tells the user something that is no part of the answer.
    pub(crate) fn note(&self, text: &str) {
        let _ = writeln!(io::stderr(), "{text}");
    }

    /// Whether the user asked for more, with `-v`.
    pub(crate) fn is_verbose(&self) -> bool {
        self.verbose
    }

    /// Tells the user more, with `-v`.
    pub(crate) fn detail(&self, text: impl FnOnce() -> String) {
        if self.verbose {
            self.note(&text());
        }
    }
}
