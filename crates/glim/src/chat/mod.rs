//! The chat in the terminal.
//!
//! [`state`] decides, from what the user typed, what is to be done: plain data in, plain data out. [`lines`] gets what
//! is typed, with editing and history. This file carries the decisions out.

mod lines;
mod params;
mod state;

use std::path::Path;

use glim_text::ChatRequest;
use serde_json::Value as Json;

use self::lines::Lines;
use self::state::{Action, Chat};
use crate::answer::Answer;
use crate::exit::{Exit, Failure};
use crate::session::{Session, Settings};

/// Answers what is typed until the user leaves.
pub(crate) fn converse(
    session: &mut Session<'_>,
    request: ChatRequest,
    settings: Settings,
) -> Result<(), Failure> {
    let mut lines = Lines::open(session.ui)?;
    let mut chat = Chat::new(request, settings);
    session
        .ui
        .note("Chat: /help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves.");
    loop {
        let input = lines.next(session.ui)?;
        match chat.take(input) {
            Action::Nothing => {}
            Action::Tell(text) => session.ui.note(&text),
            Action::Ask => ask(session, &mut chat)?,
            Action::Save { path, messages } => match save(&path, &messages) {
                Ok(()) => {
                    let (n, path) = (messages.len(), path.display());
                    let plural = if n == 1 { "" } else { "s" };
                    session
                        .ui
                        .note(&format!("{n} message{plural} saved in {path}"));
                }
                Err(error) => {
                    let path = path.display();
                    session.ui.note(&format!("{path}: not saved: {error}"));
                }
            },
            Action::Leave => return Ok(()),
        }
    }
}

/// Answers the last message. What the user can mend, such as a full context, does not end the chat.
fn ask(session: &mut Session<'_>, chat: &mut Chat) -> Result<(), Failure> {
    match session.answer(chat.request(), chat.settings()) {
        Ok((answer, generation)) => {
            session.detail(&generation);
            if session.interrupt.is_set() {
                session.ui.note("(stopped)");
            } else if is_silent(&answer) {
                session.ui.note("(the model said nothing)");
            }
            let said = !is_silent(&answer) || !answer.reasoning.is_empty();
            chat.answered(said.then(|| answer.to_message()));
            Ok(())
        }
        Err(failure) if failure.exit() == Exit::Usage => {
            failure.tell();
            chat.answered(None);
            Ok(())
        }
        Err(failure) => Err(failure),
    }
}

fn is_silent(answer: &Answer) -> bool {
    answer.text.is_empty() && answer.tool_calls.is_empty()
}

/// As `--messages` reads it.
fn save(path: &Path, messages: &[Json]) -> std::io::Result<()> {
    let mut text = serde_json::to_string_pretty(messages)?;
    text.push('\n');
    std::fs::write(path, text)
}
