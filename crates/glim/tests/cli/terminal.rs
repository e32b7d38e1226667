//! What there is on a terminal only: the chat, and bars. Driven through a pseudo-terminal.

use std::path::Path;
use std::process::Command;

use glim_testkit::assets;
use rexpect::process::WaitStatus;
use rexpect::session::{PtySession, spawn_command};
use serde_json::Value as Json;

/// Longest wait for anything to appear: generous, since many tests share the machine.
const TIMEOUT_MS: u64 = 60_000;
const CTRL_C: char = 'c';

/// Starts glim as a person would.
fn start(args: &[&str], state: &Path) -> PtySession {
    let mut command = Command::new(env!("CARGO_BIN_EXE_glim"));
    command
        .args(args)
        .env("XDG_STATE_HOME", state)
        .env("TERM", "xterm")
        .env_remove("NO_COLOR");
    spawn_command(command, Some(TIMEOUT_MS)).unwrap()
}

/// Starts a chat whose history is kept in `state`.
fn chat(state: &Path, args: &[&str]) -> PtySession {
    let mut chat = start(&[&["run"], args].concat(), state);
    chat.exp_string("Ctrl-D leaves.").unwrap();
    chat.exp_string("> ").unwrap();
    chat
}

/// Types a line and waits for `expected`, then for the next prompt.
#[track_caller]
fn say(chat: &mut PtySession, line: &str, expected: &str) {
    chat.send_line(line).unwrap();
    chat.exp_string(expected)
        .unwrap_or_else(|error| panic!("{line}: {error}"));
    chat.exp_string("> ").unwrap();
}

#[track_caller]
fn leave(mut chat: PtySession) {
    chat.send_control('d').unwrap();
    chat.exp_eof().unwrap();
    let status = chat.process().wait().unwrap();
    assert!(matches!(status, WaitStatus::Exited(_, 0)), "{status:?}");
}

#[test]
fn questions_are_answered_with_dimmed_reasoning_and_the_conversation_can_be_saved() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("chat.json");
    let mut chat = chat(dir.path(), &[]);
    chat.send_line("What is 27 + 58?").unwrap();
    chat.exp_string("\u{1b}[2m27 + 58: ").unwrap();
    chat.exp_string("\u{1b}[0m").unwrap();
    chat.exp_string("85").unwrap();
    chat.exp_string("> ").unwrap();
    say(&mut chat, "/params temperature=0", "temperature=0 ");
    say(&mut chat, "/nonsense", "There is no /nonsense");
    let save = format!("/save {}", file.display());
    say(&mut chat, &save, "2 messages saved");
    leave(chat);
    let saved: Json = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert_eq!(saved[0]["content"], "What is 27 + 58?");
    assert_eq!(saved[1]["content"], "85");
}

#[test]
fn ctrl_c_stops_an_answer_and_keeps_what_was_said() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("chat.json");
    // Without its end tokens the model talks on until the context is full.
    let mut chat = chat(dir.path(), &["--ignore-eos", "--no-think"]);
    chat.send_line("What is the capital of France?").unwrap();
    chat.exp_string("Paris").unwrap();
    chat.send_control(CTRL_C).unwrap();
    chat.exp_string("(stopped)").unwrap();
    chat.exp_string("> ").unwrap();
    let save = format!("/save {}", file.display());
    say(&mut chat, &save, "2 messages saved");
    leave(chat);
    let saved: Json = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let kept = saved[1]["content"].as_str().unwrap();
    assert!(kept.starts_with("The capital of France is Paris"), "{kept}");
}

#[test]
fn ctrl_c_twice_at_the_prompt_leaves() {
    let dir = tempfile::tempdir().unwrap();
    let mut chat = chat(dir.path(), &[]);
    chat.send_control(CTRL_C).unwrap();
    chat.exp_string("Ctrl-C once more").unwrap();
    chat.exp_string("> ").unwrap();
    chat.send_control(CTRL_C).unwrap();
    chat.exp_eof().unwrap();
}

#[test]
fn the_history_lasts_from_one_chat_to_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = chat(dir.path(), &[]);
    say(&mut first, "/params seed=1234", "seed=1234");
    leave(first);
    let mut second = chat(dir.path(), &[]);
    // Arrow up, Enter.
    second.send("\u{1b}[A\r").unwrap();
    second.flush().unwrap();
    second.exp_string("/params seed=1234").unwrap();
    second
        .exp_string("temperature=0 top_k=0 top_p=1 seed=1234")
        .unwrap();
    leave(second);
}

#[test]
fn a_pasted_text_of_several_lines_is_one_message() {
    let dir = tempfile::tempdir().unwrap();
    let mut chat = chat(dir.path(), &["--no-think", "--max-tokens", "1"]);
    chat.send("\u{1b}[200~One line,\nanother one.\u{1b}[201~")
        .unwrap();
    chat.flush().unwrap();
    chat.send_line("").unwrap();
    chat.exp_string("> ").unwrap();
    let file = dir.path().join("chat.json");
    let save = format!("/save {}", file.display());
    say(&mut chat, &save, "2 messages saved");
    leave(chat);
    let saved: Json = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert_eq!(saved[0]["content"], "One line,\nanother one.");
}

#[test]
fn a_long_job_shows_how_far_it_is_and_ctrl_c_ends_it() {
    let dir = tempfile::tempdir().unwrap();
    let text = assets::heldout_text();
    let args = ["eval", "--math", "exact", "--text", super::text(&text)];
    let mut job = start(&args, dir.path());
    job.exp_string("measuring").unwrap();
    job.exp_string("left perplexity ").unwrap();
    job.send_control(CTRL_C).unwrap();
    job.exp_eof().unwrap();
    let status = job.process().wait().unwrap();
    assert!(matches!(status, WaitStatus::Signaled(..)), "{status:?}");
}
