//! `glim`: the one binary. Parses the command line, runs one subcommand, and turns its outcome into an exit code.
#![forbid(unsafe_code)]

mod answer;
mod builtin;
mod chat;
mod cli;
mod cmd;
mod exit;
mod fault;
mod gpu;
mod gpu_memory;
mod host;
mod interrupt;
mod kv_events;
mod loader;
mod logs;
mod machine;
mod paper;
mod placement;
mod progress;
mod prompt;
mod session;
mod settings;
mod size;
mod ui;
mod units;
mod version;

use std::ffi::OsStr;
use std::process::ExitCode;

use crate::exit::Exit;
use crate::settings::Refused;
use crate::ui::Ui;

fn main() -> ExitCode {
    // Needed before parsing too: a wrong command line and a panic are told in the form that the caller asked for.
    let wants_json = std::env::args_os()
        .skip(1)
        .take_while(|arg| arg != "--")
        .any(|arg| arg == OsStr::new("--json"));
    exit::install_panic_hook(wants_json);
    let parsed = match settings::parse() {
        Ok(parsed) => parsed,
        Err(Refused::CommandLine(error)) => return exit::report_clap(&error, wants_json).into(),
        Err(Refused::Settings(failure)) => return failure.report_in(wants_json).into(),
    };
    let ui = Ui::new(&parsed.cli.global);
    parsed
        .cli
        .command
        .run(&parsed.settings, &ui)
        .unwrap_or_else(|failure| failure.report(&ui))
        .into()
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit.code())
    }
}
