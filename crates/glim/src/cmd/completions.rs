//! `glim completions`: what a shell needs to complete command lines, made from the command line's own description.

use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;
use serde_json::json;

use crate::cli::Cli;
use crate::exit::{Exit, Failure};
use crate::ui::Ui;
use crate::version;

const EXAMPLES: &str = "\
Examples:
  glim completions bash > ~/.local/share/bash-completion/completions/glim
  glim completions zsh > ~/.zfunc/_glim        # in ~/.zshrc, before compinit: fpath+=~/.zfunc
  glim completions fish > ~/.config/fish/completions/glim.fish";

/// Options of `glim completions`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

pub(crate) fn run(args: &CompletionsArgs, ui: &Ui) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut shown(Cli::command()), "glim", &mut script);
    let script = String::from_utf8_lossy(&script);
    match ui.json {
        true => ui.print_json(&json!({ "shell": args.shell.to_string(), "script": script }))?,
        false => ui.print(&script)?,
    }
    Ok(Exit::Ok)
}

/// The command without subcommands that `--help` hides: the generators know only hidden values.
fn shown(command: Command) -> Command {
    let subcommands = command.get_subcommands().filter(|sub| !sub.is_hide_set());
    let subcommands: Vec<Command> = subcommands.cloned().collect();
    let args: Vec<_> = command.get_arguments().cloned().collect();
    Command::new("glim")
        .version(version::VERSION)
        .disable_help_subcommand(true)
        .args(args)
        .subcommands(subcommands)
}
