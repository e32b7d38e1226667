//! What a chat knows, and what follows from each thing that the user does.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use glim_text::ChatRequest;
use serde_json::{Value as Json, json};

use super::params;
use crate::session::Settings;

const HELP: &str = "\
/help              this list
/clear             forget the conversation, but not the system message
/system TEXT       set the system message; without TEXT show it, with - remove it
/params [K=V …]    show or change temperature, top_k, top_p, seed, max_tokens
/save FILE         write the conversation as JSON, for glim run --messages
/quit              leave, like Ctrl-D
Anything else is a message; one that begins with a slash needs two of them.
Ctrl-C stops an answer and keeps what was said; twice at the prompt it leaves.";

const LEAVE_HINT: &str = "Ctrl-C once more, or Ctrl-D, leaves.";

/// What the user did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Input {
    Line(String),
    /// Ctrl-C at the prompt.
    Interrupt,
    /// Ctrl-D, or the end of stdin.
    End,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Action {
    Nothing,
    /// Tell the user.
    Tell(String),
    /// Have the request answered, then call [`Chat::answered`].
    Ask,
    Save {
        path: PathBuf,
        messages: Vec<Json>,
    },
    Leave,
}

/// A conversation under way.
pub(super) struct Chat {
    request: ChatRequest,
    settings: Settings,
    /// Whether the last thing that the user did was Ctrl-C.
    interrupted: bool,
    /// Files that this chat wrote, and may write over.
    saved: BTreeSet<PathBuf>,
}

impl Chat {
    pub(super) fn new(request: ChatRequest, settings: Settings) -> Self {
        Self {
            request,
            settings,
            interrupted: false,
            saved: BTreeSet::new(),
        }
    }

    pub(super) fn request(&self) -> &ChatRequest {
        &self.request
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Decides.
    pub(super) fn take(&mut self, input: Input) -> Action {
        let twice = std::mem::replace(&mut self.interrupted, input == Input::Interrupt);
        let line = match input {
            Input::End => return Action::Leave,
            Input::Interrupt if twice => return Action::Leave,
            Input::Interrupt => return Action::Tell(LEAVE_HINT.to_owned()),
            Input::Line(line) => line,
        };
        let text = line.trim();
        match text.strip_prefix('/') {
            _ if text.is_empty() => Action::Nothing,
            None => self.ask(line),
            Some(rest) if rest.starts_with('/') => self.ask(rest.to_owned()),
            Some(rest) => {
                let (name, argument) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
                self.command(name, argument.trim())
            }
        }
    }

    /// The answer to what was asked; without one the message is as if it had not been sent.
    pub(super) fn answered(&mut self, message: Option<Json>) {
        match message {
            Some(message) => self.request.messages.push(message),
            None => {
                self.request.messages.pop();
            }
        }
    }

    fn ask(&mut self, content: String) -> Action {
        let message = json!({ "role": "user", "content": content });
        self.request.messages.push(message);
        Action::Ask
    }

    fn command(&mut self, name: &str, argument: &str) -> Action {
        let text = match name {
            "help" | "?" => HELP.to_owned(),
            "quit" | "exit" => return Action::Leave,
            "clear" => {
                self.request.messages.retain(is_system);
                "The conversation is forgotten.".to_owned()
            }
            "system" => self.system(argument),
            "params" if argument.is_empty() => params::show(&self.settings),
            "params" => match params::change(&self.settings, argument) {
                Ok(settings) => {
                    self.settings = settings;
                    params::show(&self.settings)
                }
                Err(problem) => problem,
            },
            "save" => return self.save(argument),
            _ => format!("There is no /{name}: /help lists the commands."),
        };
        Action::Tell(text)
    }

    fn system(&mut self, text: &str) -> String {
        let messages = &mut self.request.messages;
        let index = messages.iter().position(is_system);
        match (text, index) {
            ("", None) | ("-", None) => "There is no system message.".to_owned(),
            ("", Some(index)) => {
                let content = messages[index]["content"].as_str();
                format!("System message: {}", content.unwrap_or_default())
            }
            ("-", Some(index)) => {
                messages.remove(index);
                "The system message is removed.".to_owned()
            }
            (text, index) => {
                let message = json!({ "role": "system", "content": text });
                match index {
                    Some(index) => messages[index] = message,
                    None => messages.insert(0, message),
                }
                "The system message is set, from the next answer on.".to_owned()
            }
        }
    }

    fn save(&mut self, file: &str) -> Action {
        if file.is_empty() {
            return Action::Tell("/save needs the name of a file.".to_owned());
        }
        let path = Path::new(file).to_owned();
        // A slip of the completion must not cost a model.
        if path.exists() && !self.saved.contains(&path) {
            return Action::Tell(format!("{file} is there already: choose another name."));
        }
        self.saved.insert(path.clone());
        Action::Save {
            path,
            messages: self.request.messages.clone(),
        }
    }
}

fn is_system(message: &Json) -> bool {
    message["role"] == "system"
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use glim_engine::SamplingParams;

    use super::*;

    fn chat() -> Chat {
        let settings = Settings {
            sampling: SamplingParams::GREEDY,
            max_tokens: None,
            ignore_eos: false,
        };
        Chat::new(ChatRequest::new(Vec::new()), settings)
    }

    impl Chat {
        fn type_line(&mut self, line: &str) -> Action {
            self.take(Input::Line(line.to_owned()))
        }

        /// What a command answers.
        fn told(&mut self, line: &str) -> String {
            match self.type_line(line) {
                Action::Tell(text) => text,
                other => panic!("{line}: {other:?}"),
            }
        }

        fn contents(&self) -> Vec<&str> {
            let messages = self.request.messages.iter();
            messages.filter_map(|m| m["content"].as_str()).collect()
        }
    }

    #[test]
    fn a_line_is_a_message_and_its_answer_follows_it() {
        let mut chat = chat();
        assert_eq!(chat.type_line(" Hello\nthere "), Action::Ask);
        chat.answered(Some(json!({ "role": "assistant", "content": "Hi." })));
        assert_eq!(chat.contents(), [" Hello\nthere ", "Hi."]);
        assert_eq!(chat.type_line("  "), Action::Nothing);
        assert_eq!(chat.contents().len(), 2);
    }

    #[test]
    fn a_message_without_answer_is_taken_back() {
        let mut chat = chat();
        chat.type_line("too long");
        chat.answered(None);
        assert!(chat.contents().is_empty());
    }

    #[test]
    fn ctrl_c_leaves_when_it_comes_twice_in_a_row() {
        let mut chat = chat();
        assert!(matches!(chat.take(Input::Interrupt), Action::Tell(_)));
        chat.type_line("/help");
        assert!(matches!(chat.take(Input::Interrupt), Action::Tell(_)));
        assert_eq!(chat.take(Input::Interrupt), Action::Leave);
    }

    #[test]
    fn ctrl_d_and_quit_leave() {
        assert_eq!(chat().take(Input::End), Action::Leave);
        assert_eq!(chat().type_line("/quit"), Action::Leave);
    }

    #[test]
    fn two_slashes_are_a_message_that_begins_with_one() {
        let mut chat = chat();
        assert_eq!(chat.type_line("//etc/hosts?"), Action::Ask);
        assert_eq!(chat.contents(), ["/etc/hosts?"]);
        assert!(chat.told("/etc/hosts?").contains("no /etc/hosts?"));
    }

    #[test]
    fn clear_keeps_the_system_message() {
        let mut chat = chat();
        chat.told("/system Be brief.");
        chat.type_line("Hello");
        chat.told("/clear");
        assert_eq!(chat.contents(), ["Be brief."]);
    }

    #[test]
    fn the_system_message_stands_first_and_is_replaced_shown_and_removed() {
        let mut chat = chat();
        chat.type_line("Hello");
        chat.told("/system One.");
        chat.told("/system Two.");
        assert_eq!(chat.contents(), ["Two.", "Hello"]);
        assert_eq!(chat.told("/system"), "System message: Two.");
        chat.told("/system -");
        assert_eq!(chat.contents(), ["Hello"]);
        assert_eq!(chat.told("/system"), "There is no system message.");
    }

    #[test]
    fn params_are_changed_together_or_not_at_all() {
        let mut chat = chat();
        let text = chat.told("/params temperature=0.7 top_p=0.9 max_tokens=20 seed=7");
        assert_eq!(
            text,
            "temperature=0.7 top_k=0 top_p=0.9 seed=7 max_tokens=20"
        );
        assert_eq!(chat.told(&format!("/params {text}")), text);
        for (wrong, word) in [
            ("temperature=1 top_p=2", "above 0, at most 1"),
            ("temperature=-1", "0 or more"),
            ("max_tokens=0", "from 1"),
            ("top-k=3", "none of"),
            ("warm", "NAME=VALUE"),
        ] {
            let told = chat.told(&format!("/params {wrong}"));
            assert!(told.contains(word), "{wrong}: {told}");
        }
        assert_eq!(chat.told("/params"), text);
    }

    #[test]
    fn only_files_of_this_chat_are_written_over() {
        let dir = tempfile::tempdir().unwrap();
        let (new, old) = (dir.path().join("new.json"), dir.path().join("old.json"));
        std::fs::write(&old, "precious").unwrap();
        let mut chat = chat();
        chat.type_line("Hello");
        let command = |path: &Path| format!("/save {}", path.display());
        assert!(chat.told(&command(&old)).contains("there already"));
        for _ in 0..2 {
            let Action::Save { path, messages } = chat.type_line(&command(&new)) else {
                panic!("not saved");
            };
            assert_eq!((path.as_path(), messages.len()), (new.as_path(), 1));
            std::fs::write(path, "[]").unwrap();
        }
        assert!(chat.told("/save").contains("name of a file"));
    }
}
