//! Options of `glim serve` from three places: a file, the environment, the command line; the later wins.
//!
//! There is no second list of options. What clap knows of `serve` says which keys there are: an option `--max-num-seqs` is the key
//! `max-num-seqs` under `[serve]` of the file, and the variable `GLIM_SERVE_MAX_NUM_SEQS`; MODEL is the key `model`. A value that
//! comes from the file or the environment is put on the command line as the option that it stands for, unless that is there already,
//! and clap parses the whole: so values are checked by the same rules wherever they come from.
//!
//! What an operator misspells is an error and never ignored: a key or a variable that is no option, or a value that the option does
//! not take, ends the command with code 78 and says where it stands.

mod file;
#[cfg(test)]
mod tests;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, CommandFactory, FromArgMatches};
use serde::Serialize;

use self::file::File;
use crate::cli::Cli;
use crate::exit::{Exit, Failure};

/// What every variable of an option begins with.
const PREFIX: &str = "GLIM_SERVE_";
/// The option that names the file. It cannot stand in the file.
const CONFIG: &str = "config";
/// Commands whose options come from all three places: the one that serves, and the one that shows them.
const LAYERED: [&str; 2] = ["serve", CONFIG];

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "from", content = "name", rename_all = "lowercase")]
pub(crate) enum Origin {
    /// The command line.
    Flag(String),
    /// A variable.
    Environment(String),
    /// A file, with its line.
    File(String),
    /// Nobody said so.
    Default,
}

/// An option and its effective value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Setting {
    pub(crate) key: String,
    /// None if the option has none: what happens then is said by `--help`.
    pub(crate) values: Vec<String>,
    #[serde(flatten)]
    pub(crate) origin: Origin,
}

/// A command line, with what the file and the environment add to it.
#[derive(Debug)]
pub(crate) struct Parsed {
    pub(crate) cli: Cli,
    /// Effective values; of the commands that have them.
    pub(crate) settings: Vec<Setting>,
}

/// Why there is no [`Parsed`].
#[derive(Debug)]
pub(crate) enum Refused {
    /// The command line is wrong, or asks for help.
    CommandLine(clap::Error),
    /// The file or the environment is.
    Settings(Failure),
}

impl From<clap::Error> for Refused {
    fn from(error: clap::Error) -> Self {
        Self::CommandLine(error)
    }
}

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Self {
        Self::Settings(failure)
    }
}

/// Parses the command line of the process.
pub(crate) fn parse() -> Result<Parsed, Refused> {
    parse_from(std::env::args_os().collect(), std::env::vars_os().collect())
}

fn parse_from(
    args: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
) -> Result<Parsed, Refused> {
    let mut command = Cli::command();
    command.build();
    let given = command.clone().try_get_matches_from(&args);
    let given = match given {
        // What an option needs may be in the file.
        Err(error) if error.kind() == ErrorKind::MissingRequiredArgument => {
            let lenient = command.clone().ignore_errors(true);
            lenient.try_get_matches_from(&args)?
        }
        given => given?,
    };
    let layered = given
        .subcommand()
        .filter(|(name, _)| LAYERED.contains(name));
    let Some((name, own)) = layered else {
        // If the lenient parse was needed, this says what is missing.
        let matches = command.try_get_matches_from(&args)?;
        return Ok(Parsed {
            cli: Cli::from_arg_matches(&matches)?,
            settings: Vec::new(),
        });
    };
    let options = options(&command, name);
    let variables = variables(environment, &options)?;
    let added = Layers {
        command: &command,
        name,
        options: &options,
        variables: &variables,
    }
    .below(own)?;
    let args = merged(args, name, &added);
    let matches = command.clone().try_get_matches_from(args)?;
    let settings = match matches.subcommand() {
        Some((_, effective)) => settings(&options, effective, own, &added),
        None => Vec::new(),
    };
    let cli = Cli::from_arg_matches(&matches)?;
    Ok(Parsed { cli, settings })
}

/// An option as clap knows it, and what it is called elsewhere.
struct Opt<'a> {
    arg: &'a Arg,
    /// In the file.
    key: String,
    /// In the environment.
    variable: String,
}

/// The options of a command that has layers: all that it shows.
fn options<'a>(command: &'a clap::Command, name: &str) -> Vec<Opt<'a>> {
    let own = command.find_subcommand(name);
    let args = own.into_iter().flat_map(clap::Command::get_arguments);
    let is_value = |arg: &&Arg| {
        !arg.is_hide_set()
            && !matches!(
                arg.get_action(),
                ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong | ArgAction::Version
            )
    };
    let opt = |arg: &'a Arg| {
        let positional = || {
            let names = arg.get_value_names().unwrap_or_default();
            names
                .first()
                .map_or(arg.get_id().as_str(), |name| name.as_str())
                .to_lowercase()
        };
        let key = arg.get_long().map_or_else(positional, str::to_owned);
        let variable = format!("{PREFIX}{}", key.to_uppercase().replace('-', "_"));
        Opt { arg, key, variable }
    };
    args.filter(is_value).map(opt).collect()
}

impl Opt<'_> {
    fn is_repeatable(&self) -> bool {
        matches!(self.arg.get_action(), ArgAction::Append)
    }

    fn is_switch(&self) -> bool {
        !self.arg.get_action().takes_values()
    }

    fn is_of(&self, matches: &ArgMatches) -> bool {
        matches.value_source(self.arg.get_id().as_str()) == Some(ValueSource::CommandLine)
    }

    /// As it is written on a command line. A switch is there or not.
    fn arguments(&self, values: &[OsString]) -> Result<Vec<OsString>, String> {
        let Some(long) = self.arg.get_long() else {
            return Ok(values.to_vec());
        };
        if self.is_switch() {
            let [value] = values else {
                return Err("expected true or false".to_owned());
            };
            let is_on = switch(value).ok_or_else(|| {
                format!(
                    "expected true or false, found {:?}",
                    value.to_string_lossy()
                )
            })?;
            return Ok(match is_on {
                true => vec![format!("--{long}").into()],
                false => Vec::new(),
            });
        }
        if values.len() > 1 && !self.is_repeatable() {
            return Err(format!("expected one value, found {}", values.len()));
        }
        let argument = |value: &OsString| {
            let mut argument = OsString::from(format!("--{long}="));
            argument.push(value);
            argument
        };
        Ok(values.iter().map(argument).collect())
    }
}

/// On or off, as people write it in the environment.
fn switch(value: &OsStr) -> Option<bool> {
    match value.to_str()?.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Some(true),
        "false" | "0" | "no" | "off" => Some(false),
        _ => None,
    }
}

/// Variables of options, by their option's key. An empty one counts as not there.
fn variables(
    environment: Vec<(OsString, OsString)>,
    options: &[Opt<'_>],
) -> Result<Vec<(String, OsString)>, Failure> {
    let mut found = Vec::new();
    for (name, value) in environment {
        let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else {
            continue;
        };
        if value.is_empty() {
            continue;
        }
        match options.iter().find(|opt| opt.variable == name) {
            Some(opt) => found.push((opt.key.clone(), value)),
            None => {
                let known = options.iter().map(|opt| opt.variable.as_str());
                let failure = Failure::new(
                    Exit::Config,
                    format!("{name} is set, and glim serve has no option of that name"),
                );
                return Err(match closest(name, known) {
                    Some(known) => failure.hint(format!("did you mean {known}?")),
                    None => failure.hint("glim config shows the options and their variables"),
                });
            }
        }
    }
    Ok(found)
}

/// The name that a misspelt one was probably meant to be.
fn closest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    /// Below this, two names have little in common (0: nothing, 1: all).
    const LIKENESS: f64 = 0.8;
    let likeness = |known: &'a str| (strsim::jaro(name, known), known);
    let best = known.map(likeness).max_by(|a, b| a.0.total_cmp(&b.0))?;
    (best.0 > LIKENESS).then_some(best.1)
}

/// A value that is not from the command line.
struct Added {
    key: String,
    origin: Origin,
    arguments: Vec<OsString>,
    is_positional: bool,
}

/// What lies below the command line.
struct Layers<'a> {
    command: &'a clap::Command,
    name: &'a str,
    options: &'a [Opt<'a>],
    variables: &'a [(String, OsString)],
}

impl Layers<'_> {
    /// The values that the command line leaves to the environment and the file. Those that it does not leave are checked too.
    fn below(&self, given: &ArgMatches) -> Result<Vec<Added>, Failure> {
        let file = self.path(given).map(|path| File::read(&path)).transpose()?;
        let known: Vec<&str> = self.options.iter().map(|opt| opt.key.as_str()).collect();
        if let Some(file) = &file {
            file.check_keys(&known)?;
        }
        let mut added = Vec::new();
        for opt in self.options {
            let mut values = None;
            if let Some(file) = &file
                && let Some(found) = file.values(&opt.key)?
            {
                values = Some(self.added(opt, Origin::File(found.place), &found.values)?);
            }
            if let Some((_, value)) = self.variables.iter().find(|(key, _)| *key == opt.key) {
                let list = match (opt.is_repeatable(), value.to_str()) {
                    (true, Some(list)) => list.split(',').map(OsString::from).collect(),
                    _ => vec![value.clone()],
                };
                let origin = Origin::Environment(opt.variable.clone());
                values = Some(self.added(opt, origin, &list)?);
            }
            if let Some(values) = values
                && !opt.is_of(given)
            {
                added.push(values);
            }
        }
        Ok(added)
    }

    /// The file that the user names.
    fn path(&self, given: &ArgMatches) -> Option<PathBuf> {
        let named = given.try_get_one::<PathBuf>(CONFIG).ok().flatten();
        let variable = || {
            let (_, value) = self.variables.iter().find(|(key, _)| key == CONFIG)?;
            Some(Path::new(value).to_owned())
        };
        named.cloned().or_else(variable)
    }

    /// Puts one value on a command line of its own, which says whether the option takes it.
    fn added(&self, opt: &Opt<'_>, origin: Origin, values: &[OsString]) -> Result<Added, Failure> {
        let wrong = |message: &str| {
            let (Origin::File(place) | Origin::Environment(place) | Origin::Flag(place)) = &origin
            else {
                return Failure::new(Exit::Config, message);
            };
            Failure::new(Exit::Config, format!("{place}: {message}"))
        };
        let arguments = opt
            .arguments(values)
            .map_err(|message| wrong(&format!("{}: {message}", opt.key)))?;
        let is_positional = opt.arg.is_positional();
        let mut line = vec![OsString::from("glim"), self.name.into()];
        line.extend(is_positional.then(|| "--".into()));
        line.extend(arguments.iter().cloned());
        match self.command.clone().try_get_matches_from(line) {
            Err(error) if error.kind() != ErrorKind::MissingRequiredArgument => {
                let text = error.to_string();
                let text = text.strip_prefix("error: ").unwrap_or(&text);
                let (message, _) = text.split_once("\n\nFor more").unwrap_or((text, ""));
                Err(wrong(message))
            }
            _ => Ok(Added {
                key: opt.key.clone(),
                origin,
                arguments,
                is_positional,
            }),
        }
    }
}

/// The command line with all that is added.
fn merged(mut args: Vec<OsString>, name: &str, added: &[Added]) -> Vec<OsString> {
    // What stands before the subcommand are global options, whose values are never its name.
    let at = args.iter().position(|arg| arg == name).unwrap_or(0) + 1;
    let (last, options): (Vec<_>, Vec<_>) = added.iter().partition(|added| added.is_positional);
    let options: Vec<OsString> = options
        .iter()
        .flat_map(|added| added.arguments.clone())
        .collect();
    args.splice(at..at, options);
    for added in last {
        if !args.iter().any(|arg| arg == "--") {
            args.push("--".into());
        }
        args.extend(added.arguments.clone());
    }
    args
}

/// All options, with what became of each.
fn settings(
    options: &[Opt<'_>],
    effective: &ArgMatches,
    given: &ArgMatches,
    added: &[Added],
) -> Vec<Setting> {
    let setting = |opt: &Opt<'_>| {
        let added = added.iter().find(|added| added.key == opt.key);
        let origin = match added {
            _ if opt.is_of(given) => Origin::Flag(match opt.arg.get_long() {
                Some(long) => format!("--{long}"),
                None => opt.key.to_uppercase(),
            }),
            Some(added) => added.origin.clone(),
            None => Origin::Default,
        };
        let id = opt.arg.get_id().as_str();
        let values = match opt.is_switch() {
            true => vec![effective.get_flag(id).to_string()],
            false => {
                let raw = effective.get_raw(id).into_iter().flatten();
                raw.map(|value| value.to_string_lossy().into_owned())
                    .collect()
            }
        };
        Setting {
            key: opt.key.clone(),
            values,
            origin,
        }
    };
    options.iter().map(setting).collect()
}
