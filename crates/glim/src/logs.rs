//! Logs of `glim serve`: fields for systemd's journal, lines on stderr for people or as JSON, and spans for OpenTelemetry where that is
//! built in.
//!
//! The libraries make events and spans with `tracing`; only here it is decided what becomes of them. Prompts, answers and keys are never
//! in them.
//!
//! The journal is spoken to in its own protocol, so that fields stay fields (`journalctl REQUEST_ID=…`, `-p err`), where `JOURNAL_STREAM`
//! says that our stderr goes there (systemd.exec(5)). Names are the fields' own in capitals: `REQUEST_ID`, `PHASE`, `OP`, `RANK`.

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use clap::{Args, ValueEnum};
use tracing::level_filters::LevelFilter;
use tracing_journald::{Priority, PriorityMappings};
use tracing_subscriber::filter::{EnvFilter, ParseError};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};
use tracing_subscriber::{Layer, Registry, fmt};

use crate::exit::{Exit, Failure};

/// The variable that says what is logged where `--log-level` does not.
const VARIABLE: &str = "GLIM_LOG";

/// What is logged where nobody says otherwise.
const DEFAULT_LEVEL: LevelFilter = LevelFilter::INFO;

/// How logs are written.
#[derive(Debug, Args)]
#[command(next_help_heading = "Logs")]
pub(crate) struct LogArgs {
    /// How logs are written: lines on stderr for people (human) or as JSON (json), fields for systemd's journal (journal), or auto: the journal where stderr goes there, else human
    #[arg(
        long,
        value_name = "FORMAT",
        default_value = "auto",
        hide_possible_values = true
    )]
    log_format: LogFormat,
    /// What is logged: error, warn, info, debug or trace, or by part, as in warn,glim_server=debug [default: $GLIM_LOG, or info]
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
    /// Collector that spans of requests are sent to by OTLP over HTTP, such as http://localhost:4318 [default: none]
    #[cfg(feature = "otel")]
    #[arg(long, value_name = "URL")]
    otlp_endpoint: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    Auto,
    Human,
    Json,
    Journal,
}

/// A layer that does nothing: where it is, logs are for programs, and so are failures.
struct Structured;

impl<S: tracing::Subscriber> Layer<S> for Structured {}

/// Whether logs are kept that programs read.
pub(crate) fn is_structured() -> bool {
    tracing::dispatcher::get_default(|logs| logs.is::<Structured>())
}

/// Keeps the logs going; what is left is sent when it is dropped.
#[must_use = "spans that were not sent yet are sent when this is dropped"]
pub(crate) struct Logs {
    #[cfg(feature = "otel")]
    _otel: Option<glim_server::Otel>,
}

impl LogArgs {
    /// Starts logging, once for the process.
    pub(crate) fn start(&self) -> Result<Logs, Failure> {
        let filter = self.filter()?;
        let (format, why_not) = match self.log_format {
            LogFormat::Auto if goes_to_journal() => match journal() {
                Ok(_) => (LogFormat::Journal, None),
                Err(error) => (LogFormat::Human, Some(error)),
            },
            LogFormat::Auto => (LogFormat::Human, None),
            format => (format, None),
        };
        let lines = lines(format, filter)?;
        let structured = (format != LogFormat::Human).then_some(Structured);
        #[cfg(feature = "otel")]
        {
            let otel = self.otlp_endpoint.as_deref();
            let otel = otel.map(glim_server::Otel::start).transpose();
            let otel = otel.map_err(|error| Failure::new(Exit::Usage, error.to_string()))?;
            let spans = otel.as_ref().map(glim_server::Otel::layer);
            let subscriber = Registry::default().with(lines).with(structured).with(spans);
            subscriber.try_init().map_err(second)?;
            if let Some(error) = why_not {
                tracing::warn!(%error, "the journal cannot be reached: logs go to stderr");
            }
            Ok(Logs { _otel: otel })
        }
        #[cfg(not(feature = "otel"))]
        {
            let subscriber = Registry::default().with(lines).with(structured);
            subscriber.try_init().map_err(second)?;
            if let Some(error) = why_not {
                tracing::warn!(%error, "the journal cannot be reached: logs go to stderr");
            }
            Ok(Logs {})
        }
    }

    fn filter(&self) -> Result<EnvFilter, Failure> {
        let (from, text) = match &self.log_level {
            Some(text) => ("--log-level", text.clone()),
            None => (VARIABLE, std::env::var(VARIABLE).unwrap_or_default()),
        };
        parse(&text).map_err(|error| {
            let expected =
                "a level (error, warn, info, debug, trace) or PART=LEVEL, with commas between";
            let message =
                format!("{from}: {text:?} does not say what to log ({error}); expected {expected}");
            Failure::new(Exit::Usage, message)
        })
    }
}

fn lines<S>(
    format: LogFormat,
    filter: EnvFilter,
) -> Result<impl Layer<S> + Send + Sync + use<S>, Failure>
where
    S: tracing::Subscriber + for<'span> LookupSpan<'span> + Send + Sync,
{
    let lines = match format {
        LogFormat::Auto | LogFormat::Human => fmt::layer()
            .with_writer(io::stderr)
            .with_ansi(is_colored())
            .with_target(false)
            .boxed(),
        LogFormat::Json => fmt::layer()
            .with_writer(io::stderr)
            .json()
            .flatten_event(true)
            .with_current_span(true)
            .with_span_list(false)
            .boxed(),
        LogFormat::Journal => {
            let journal = journal().map_err(|error| {
                let message =
                    format!("--log-format journal: systemd's journal cannot be reached: {error}");
                Failure::new(Exit::Config, message).hint("use human or json where there is none")
            })?;
            journal.boxed()
        }
    };
    Ok(lines.with_filter(filter))
}

/// Levels are those of syslog (`INFO` is 6, "informational"); fields have no prefix, since each has a name that says what it is.
fn journal() -> io::Result<tracing_journald::Layer> {
    let priorities = PriorityMappings {
        info: Priority::Informational,
        debug: Priority::Debug,
        ..PriorityMappings::new()
    };
    Ok(tracing_journald::layer()?
        .with_field_prefix(None)
        .with_syslog_identifier("glim".to_owned())
        .with_priority_mappings(priorities))
}

/// Whether stderr is what systemd has connected to the journal: it says so by the socket's device and inode.
fn goes_to_journal() -> bool {
    let Ok(named) = std::env::var("JOURNAL_STREAM") else {
        return false;
    };
    let stderr = io::stderr();
    let stderr = stderr.as_fd().try_clone_to_owned().map(File::from);
    let found = stderr.and_then(|stderr| stderr.metadata());
    found.is_ok_and(|found| named == format!("{}:{}", found.dev(), found.ino()))
}

/// Nothing is the default; a level may be written in any case.
fn parse(text: &str) -> Result<EnvFilter, ParseError> {
    EnvFilter::builder()
        .with_default_directive(DEFAULT_LEVEL.into())
        .parse(text)
}

/// Whether a person reads stderr on something that knows colours.
fn is_colored() -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    io::stderr().is_terminal() && !is_set("NO_COLOR")
}

fn second(error: TryInitError) -> Failure {
    Failure::new(Exit::Internal, format!("logs cannot be started: {error}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<LevelFilter>) {
        assert_eq!(parse(text).unwrap().max_level_hint(), expected, "{text:?}");
    }

    #[test]
    fn levels_parts_and_nothing() {
        check("", Some(LevelFilter::INFO));
        check("WARN", Some(LevelFilter::WARN));
        check("debug", Some(LevelFilter::DEBUG));
        check("off", Some(LevelFilter::OFF));
        check("warn,glim_server=debug", Some(LevelFilter::DEBUG));
    }

    #[test]
    fn what_is_no_level_is_told_with_where_it_stands() {
        let args = LogArgs {
            log_format: LogFormat::Auto,
            log_level: Some("glim_server=loud".to_owned()),
            #[cfg(feature = "otel")]
            otlp_endpoint: None,
        };
        let message = format!("{:?}", args.filter().map(drop).unwrap_err());
        assert!(
            message.contains("--log-level") && message.contains("loud"),
            "{message}"
        );
    }
}
