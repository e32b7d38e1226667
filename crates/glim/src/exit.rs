//! How a command ends: exit codes, and the one place where an error becomes one.
//!
//! The codes are those of `sysexits.h`, so that a service manager can tell what a restart cannot mend (64, 65, 66, 69, 78)
//! from what it can (70, 75). A failure is told in one line on stderr, with a hint on a second where there is something
//! to do; with `--json` it is an object on stdout.

use std::io::{self, Write};
use std::path::Path;

use clap::error::ErrorKind;
use glim_cpu::POOL_THREAD;
use glim_engine::{EngineError, panics};
use glim_gguf::GgufError;
use glim_model::export::ExportError;
use glim_model::quantize::QuantizeError;
use glim_model::synth::SynthError;
use glim_model::{EmitError, ModelError};
use glim_plan::BackendError;
use glim_server::ServeError;
use glim_text::TextError;

use crate::logs;
use crate::ui::Ui;

macro_rules! exits {
    ($($variant:ident $code:literal $name:literal $meaning:literal;)*) => {
        /// What the process ends with.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Exit { $(#[doc = $meaning] $variant,)* }

        impl Exit {
            pub(crate) const ALL: &[Exit] = &[$(Exit::$variant,)*];

            /// The number that the caller sees.
            pub(crate) fn code(self) -> u8 {
                match self { $(Exit::$variant => $code,)* }
            }

            /// The name in `--json` errors.
            fn name(self) -> &'static str {
                match self { $(Exit::$variant => $name,)* }
            }

            /// What it means, in a few words.
            pub(crate) fn meaning(self) -> &'static str {
                match self { $(Exit::$variant => $meaning,)* }
            }
        }
    };
}

exits! {
    Ok 0 "ok" "done";
    No 1 "no" "done, and the answer is no: a check did not pass";
    Usage 64 "usage" "wrong command line, or a request that cannot be served";
    BadData 65 "bad_data" "a file is there, but broken or of an unsupported kind";
    MissingFile 66 "missing_file" "a file is not there";
    Unavailable 69 "unavailable" "a device is absent or held by another process";
    Internal 70 "internal" "a bug in glim, or a result that is not a number";
    Temporary 75 "temporary" "the system refused for now; try again";
    Config 78 "config" "wrong configuration";
}

/// The list of exit codes, for `--help`.
pub(crate) fn table() -> String {
    let line = |exit: &Exit| format!("\n  {:>2}  {}", exit.code(), exit.meaning());
    Exit::ALL.iter().map(line).collect()
}

/// Why a command could not do its job.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Failure {
    exit: Exit,
    message: String,
    hint: Option<String>,
}

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self {
            exit,
            message: message.into(),
            hint: None,
        }
    }

    /// A wrong command line or request.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// A file with wrong content.
    pub(crate) fn bad_data(path: &Path, message: impl std::fmt::Display) -> Self {
        Self::new(Exit::BadData, format!("{}: {message}", path.display()))
    }

    /// Says what to do about it.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// A file that could not be read.
    pub(crate) fn read(path: &Path, error: &io::Error) -> Self {
        let (exit, reason) = match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                (Exit::MissingFile, "no such file".to_owned())
            }
            io::ErrorKind::InvalidData => (Exit::BadData, "not UTF-8 text".to_owned()),
            _ => (Exit::BadData, format!("cannot be read: {error}")),
        };
        Self::new(exit, format!("{}: {reason}", path.display()))
    }

    /// Output that could not be written. A reader who has gone (`glim … | head`) is no failure: the command just ends.
    pub(crate) fn write(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::new(Exit::Ok, ""),
            _ => Self::new(Exit::Temporary, format!("cannot write to stdout: {error}")),
        }
    }

    fn file(missing: bool, message: String) -> Self {
        Self::new(
            if missing {
                Exit::MissingFile
            } else {
                Exit::BadData
            },
            message,
        )
    }

    /// The exit code, for a command that tells the failure itself.
    pub(crate) fn exit(&self) -> Exit {
        self.exit
    }

    /// The error in one line.
    pub(crate) fn message(&self) -> String {
        one_line(&self.message)
    }

    /// The error as the value of `error` in a JSON object.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        serde_json::json!({ "kind": self.exit.name(), "message": one_line(&self.message), "hint": self.hint })
    }

    /// Tells the user.
    pub(crate) fn report(&self, ui: &Ui) -> Exit {
        self.report_in(ui.json)
    }

    /// The same where there is no [`Ui`] yet.
    pub(crate) fn report_in(&self, json: bool) -> Exit {
        match self.exit {
            Exit::Ok => {}
            _ if json => {
                self.log();
                tell_json(&self.to_json());
            }
            _ => self.tell(),
        }
        self.exit
    }

    /// Tells it in the log, if that is for programs; whether it is.
    fn log(&self) -> bool {
        let (kind, code) = (self.exit.name(), self.exit.code());
        let is_structured = logs::is_structured();
        if is_structured {
            tracing::error!(kind, code, hint = self.hint, "{}", self.message());
        }
        is_structured
    }

    /// Tells it in words, on stderr, or in the log where that is for programs.
    pub(crate) fn tell(&self) {
        if self.log() {
            return;
        }
        let mut text = format!("glim: {}\n", one_line(&self.message));
        if let Some(hint) = &self.hint {
            text += &format!("hint: {}\n", one_line(hint));
        }
        // Nothing can be done if stderr is closed.
        let _ = io::stderr().write_all(text.as_bytes());
    }
}

fn one_line(text: &str) -> String {
    text.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

fn tell_json(error: &serde_json::Value) {
    let _ = writeln!(io::stdout(), "{}", serde_json::json!({ "error": error }));
}

/// Tells about a command line that clap refused, or prints the help or version that it asked for.
pub(crate) fn report_clap(error: &clap::Error, json: bool) -> Exit {
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
    ) {
        // A reader who has gone is no failure.
        let _ = error.print();
        return Exit::Ok;
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let _ = error.print();
        return Exit::Usage;
    }
    let text = error.to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let (message, rest) = text.split_once("\n\n").unwrap_or((text, ""));
    if json {
        let failure = Failure {
            exit: Exit::Usage,
            message: message.into(),
            hint: Some(one_line(rest)),
        };
        tell_json(&failure.to_json());
    } else {
        let _ = io::stderr().write_all(format!("glim: {}\n{rest}", one_line(message)).as_bytes());
    }
    Exit::Usage
}

/// Threads whose panic does not end the process: those that answer HTTP, and what they start, where it ends one request; those of a pool,
/// where it ends whatever uses the pool.
fn is_survivor(thread: &str) -> bool {
    ["glim-http", "glim-template"].contains(&thread) || thread.starts_with(POOL_THREAD)
}

/// What to do about a bug.
const REPORT: &str = concat!(
    "this is a bug in glim ",
    env!("GLIM_VERSION"),
    ": please report this line and the command at ",
    env!("CARGO_PKG_REPOSITORY")
);

/// A panic is a bug: one line that asks for a report, exit 70.
pub(crate) fn install_panic_hook(json: bool) {
    std::panic::set_hook(Box::new(move |info| {
        let place = info
            .location()
            .map(|l| format!("{}:{}", l.file(), l.line()))
            .unwrap_or_default();
        // The step that a rank was in ends with an error that names it.
        if panics::is_watched() {
            return panics::note_place(place);
        }
        let thread = std::thread::current();
        let payload = info.payload();
        let literal = payload.downcast_ref::<&str>().copied();
        let reason = literal
            .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("no reason given");
        let message = format!("internal error at {place}: {reason}");
        let failure = Failure::new(Exit::Internal, message).hint(REPORT);
        if thread.name().is_some_and(is_survivor) {
            failure.tell();
            return;
        }
        failure.report_in(json);
        std::process::exit(Exit::Internal.code().into());
    }));
}

impl From<GgufError> for Failure {
    fn from(error: GgufError) -> Self {
        Self::file(error.is_missing(), error.to_string())
    }
}

impl From<ModelError> for Failure {
    fn from(error: ModelError) -> Self {
        Self::file(error.is_missing(), error.to_string())
    }
}

impl Failure {
    /// About a file that is being written, not one that is read: a full disk is no bad data.
    fn writing(error: GgufError) -> Self {
        let GgufError::Io { ref source, .. } = error else {
            return error.into();
        };
        Self::new(Self::exit_of_writing(source), error.to_string())
    }

    fn exit_of_writing(error: &io::Error) -> Exit {
        match error.kind() {
            io::ErrorKind::NotFound => Exit::MissingFile,
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Exit::Config,
            _ => Exit::Temporary,
        }
    }
}

impl From<SynthError> for Failure {
    fn from(error: SynthError) -> Self {
        match error {
            SynthError::Gguf(GgufError::BadSplit { .. }) => Self::usage(error.to_string()),
            SynthError::Gguf(error) => Self::writing(error),
            _ => Self::usage(error.to_string()),
        }
    }
}

impl From<ExportError> for Failure {
    fn from(error: ExportError) -> Self {
        match error {
            ExportError::Model(error) => error.into(),
            ExportError::Gguf(error) => Self::writing(error),
            ExportError::Write { ref source, .. } => {
                Self::new(Self::exit_of_writing(source), error.to_string())
            }
            ExportError::Occupied { .. } => Self::usage(error.to_string()),
            _ => Self::new(Exit::BadData, error.to_string()),
        }
    }
}

impl From<QuantizeError> for Failure {
    fn from(error: QuantizeError) -> Self {
        match error {
            QuantizeError::Gguf(error) => Self::writing(error),
            QuantizeError::RefusedMix { .. }
            | QuantizeError::UnknownMix { .. }
            | QuantizeError::BadOverride { .. }
            | QuantizeError::NeedsImatrix { .. }
            | QuantizeError::SameFile { .. } => Self::usage(error.to_string()),
            _ => Self::new(Exit::BadData, error.to_string()),
        }
    }
}

impl From<TextError> for Failure {
    fn from(error: TextError) -> Self {
        if let TextError::NoSuchPreTokenizer { .. } = error {
            return Self::usage(error.to_string());
        }
        let missing = match &error {
            TextError::Gguf(error) => error.is_missing(),
            TextError::Io { source, .. } => source.kind() == io::ErrorKind::NotFound,
            _ => false,
        };
        Self::file(missing, error.to_string())
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        let exit = match &error {
            EngineError::ContextExceeded { .. }
            | EngineError::EmptyPrompt
            | EngineError::BadSampling { .. }
            | EngineError::BadContext { .. }
            | EngineError::BadSequences { .. }
            | EngineError::BadCache { .. }
            | EngineError::OutOfMemory { .. }
            | EngineError::Shards(_)
            | EngineError::Emit(EmitError::IdleRank { .. }) => Exit::Usage,
            EngineError::BadToken { .. }
            | EngineError::BadReference { .. }
            | EngineError::TextTooShort { .. }
            | EngineError::Model(_)
            | EngineError::BadWeight { .. }
            | EngineError::CorruptActivation { .. }
            | EngineError::Emit(EmitError::UnknownArch { .. } | EmitError::NoWeight { .. })
            | EngineError::Emit(EmitError::NoFullIndexer { .. })
            | EngineError::Backend(BackendError::Source { .. } | BackendError::Decode { .. }) => {
                Exit::BadData
            }
            _ => Exit::Internal,
        };
        let failure = Self::new(exit, error.to_string());
        match error {
            EngineError::Shards(_) => failure.hint("choose another --tp"),
            EngineError::Emit(EmitError::IdleRank { .. }) => failure.hint("use --tp-latents whole"),
            EngineError::Backend(BackendError::Rank { what, .. })
                if what.starts_with("panicked") =>
            {
                failure.hint(REPORT)
            }
            _ => failure,
        }
    }
}

impl From<ServeError<Failure>> for Failure {
    fn from(error: ServeError<Failure>) -> Self {
        let message = match &error {
            ServeError::Load(_) => String::new(),
            error => error.to_string(),
        };
        match error {
            ServeError::Load(failure) => failure,
            ServeError::Engine(error) | ServeError::SelfTest(error) => Self {
                message,
                ..(*error).into()
            },
            ServeError::Bind { source, .. } => match source.kind() {
                io::ErrorKind::AddrInUse => Self::new(Exit::Temporary, message)
                    .hint("another process listens there: end it, or choose another --port"),
                io::ErrorKind::AddrNotAvailable | io::ErrorKind::PermissionDenied => {
                    Self::new(Exit::Config, message).hint("choose another --host or --port")
                }
                _ => Self::new(Exit::Temporary, message),
            },
            ServeError::System { .. } => Self::new(Exit::Temporary, message),
            ServeError::KvEvents(_) => {
                Self::new(Exit::Config, message).hint("choose another --kv-events")
            }
            ServeError::Panic | ServeError::NoToken => Self::new(Exit::Internal, message),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line() {
        let failure = Failure::usage("two\n  lines");
        assert_eq!(failure.to_json()["message"], "two lines");
        assert_eq!(failure.to_json()["kind"], "usage");
    }

    #[test]
    fn a_reader_who_has_gone_is_no_failure() {
        let gone = io::Error::from(io::ErrorKind::BrokenPipe);
        assert_eq!(Failure::write(&gone).exit().code(), 0);
        let full = io::Error::from(io::ErrorKind::StorageFull);
        assert_eq!(Failure::write(&full).exit().code(), 75);
    }

    #[test]
    fn what_cannot_fit_is_usage_and_what_is_not_a_number_is_internal() {
        let code = |error: EngineError| Failure::from(error).exit().code();
        assert_eq!(
            code(EngineError::ContextExceeded {
                needed: 9,
                available: 4
            }),
            64
        );
        assert_eq!(
            code(EngineError::BadSampling {
                name: "top_p",
                found: 2.0,
                expected: "at most 1"
            }),
            64
        );
        assert_eq!(code(EngineError::CorruptLogits { position: 3 }), 70);
        // A supervisor starts the service again, with new ranks.
        let rank = BackendError::Rank {
            plan: "decode-1".into(),
            rank: 1,
            op: "blk.2.experts".into(),
            what: "panicked".into(),
        };
        assert_eq!(code(rank.into()), 70);
        assert_eq!(
            code(EngineError::TextTooShort {
                found: 3,
                expected: 512
            }),
            65
        );
    }

    /// The hook ends the process, so the test runs itself as another one.
    #[test]
    fn a_panic_ends_with_70_and_asks_for_a_report() {
        const CHILD: &str = "GLIM_TEST_PANIC";
        if std::env::var_os(CHILD).is_some() {
            install_panic_hook(false);
            panic!("two\nlines");
        }
        let name = "exit::tests::a_panic_ends_with_70_and_asks_for_a_report";
        let this = std::env::current_exe().unwrap();
        let output = std::process::Command::new(this)
            .args([name, "--exact", "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(70));
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(
            told.contains("glim: internal error at ") && told.contains(": two lines\nhint: "),
            "{told}"
        );
        assert!(told.contains("please report"), "{told}");
    }
}
