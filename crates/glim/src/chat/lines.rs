//! What the user types: with editing and history on a terminal, plain lines elsewhere.
//!
//! A pasted text of several lines stays one message: the terminal marks it (bracketed paste), so its line ends are not
//! taken for Enter. The history is a file of the user's: `$XDG_STATE_HOME/glim/history`, or `~/.local/state/…`.

use std::env;
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

use rustyline::config::Config;
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{ColorMode, Editor};

use super::state::Input;
use crate::exit::{Exit, Failure};
use crate::ui::Ui;

const PROMPT: &str = "> ";
/// Messages that the history keeps.
const MAX_HISTORY: usize = 1000;

/// Where messages come from.
pub(super) enum Lines {
    /// A terminal: lines can be edited.
    Edited {
        editor: Box<Editor<(), FileHistory>>,
        history: Option<PathBuf>,
    },
    /// Stdin as it comes.
    Plain,
}

impl Lines {
    /// Edited if a person both types and reads here.
    pub(super) fn open(ui: &Ui) -> Result<Self, Failure> {
        if !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
            return Ok(Self::Plain);
        }
        let color = if ui.is_colored() {
            ColorMode::Enabled
        } else {
            ColorMode::Disabled
        };
        let config = Config::builder()
            .max_history_size(MAX_HISTORY)
            .map(|builder| builder.color_mode(color).history_ignore_space(true).build())
            .map_err(|error| failed(&error))?;
        let mut editor = Editor::with_config(config).map_err(|error| failed(&error))?;
        let history = history_file(env::var_os("XDG_STATE_HOME"), env::var_os("HOME"));
        if let Some(path) = &history
            && let Err(error) = load(&mut editor, path)
        {
            let path = path.display();
            ui.detail(|| format!("{path}: no history: {error}"));
        }
        Ok(Self::Edited {
            editor: Box::new(editor),
            history,
        })
    }

    /// The next message or key.
    pub(super) fn next(&mut self, ui: &Ui) -> Result<Input, Failure> {
        let Self::Edited { editor, history } = self else {
            return plain(ui);
        };
        match editor.readline(PROMPT) {
            Ok(line) => {
                remember(editor, history.as_deref(), &line, ui);
                Ok(Input::Line(line))
            }
            Err(ReadlineError::Interrupted) => Ok(Input::Interrupt),
            Err(ReadlineError::Eof) => Ok(Input::End),
            Err(error) => Err(failed(&error)),
        }
    }
}

fn plain(ui: &Ui) -> Result<Input, Failure> {
    if ui.is_terminal() {
        ui.print(PROMPT)?;
    }
    let mut line = String::new();
    match io::stdin().read_line(&mut line) {
        Ok(0) => Ok(Input::End),
        Ok(_) => {
            let line = line.strip_suffix('\n').unwrap_or(&line);
            Ok(Input::Line(
                line.strip_suffix('\r').unwrap_or(line).to_owned(),
            ))
        }
        Err(error) => Err(failed(&error)),
    }
}

fn failed(error: &dyn std::error::Error) -> Failure {
    Failure::new(
        Exit::Temporary,
        format!("the terminal cannot be read: {error}"),
    )
}

/// Appends at once, so that two chats at a time share a history.
fn remember(editor: &mut Editor<(), FileHistory>, file: Option<&Path>, line: &str, ui: &Ui) {
    let added = editor.add_history_entry(line);
    if let (Ok(true), Some(path)) = (added, file)
        && let Err(error) = editor.append_history(path)
    {
        let path = path.display();
        ui.detail(|| format!("{path}: not written: {error}"));
    }
}

fn load(editor: &mut Editor<(), FileHistory>, path: &Path) -> rustyline::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    match editor.load_history(path) {
        Err(ReadlineError::Io(error)) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        loaded => loaded,
    }
}

/// As the XDG base directory specification has it: a relative `$XDG_STATE_HOME` counts as none.
fn history_file(state_home: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let absolute =
        |value: Option<OsString>| value.map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute(state_home)
        .or_else(|| absolute(home).map(|home| home.join(".local").join("state")))?;
    Some(base.join("glim").join("history"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_history_lies_in_the_users_state_folder() {
        let file = |state: Option<&str>, home: Option<&str>| {
            history_file(state.map(OsString::from), home.map(OsString::from))
        };
        let expected = |path: &str| Some(PathBuf::from(path));
        assert_eq!(file(Some("/s"), Some("/h")), expected("/s/glim/history"));
        let in_home = expected("/h/.local/state/glim/history");
        assert_eq!(file(None, Some("/h")), in_home);
        assert_eq!(file(Some("relative"), Some("/h")), in_home);
        assert_eq!(file(None, None), None);
    }
}
