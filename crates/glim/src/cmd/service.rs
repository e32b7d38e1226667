//! `glim service`: `glim serve` as a systemd service. Each thing that is done is told in a line.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use glim_service::install::{self, Action, InstallError, Places};
use glim_service::unit::{Scope, Unit};
use serde_json::json;

use crate::exit::{Exit, Failure};
use crate::ui::Ui;

const EXAMPLES: &str = "\
Examples:
  glim service install --now
  glim service install --user --name tiny -- --port 8001
  glim service print --restrict-devices";

/// What to do with the service.
#[derive(Debug, Subcommand)]
pub(crate) enum ServiceCommand {
    /// Write the unit and a configuration to start from
    #[command(after_help = EXAMPLES)]
    Install {
        #[command(flatten)]
        unit: UnitArgs,
        /// Enable and start it as well
        #[arg(long)]
        now: bool,
    },
    /// Print what install would write
    Print {
        #[command(flatten)]
        unit: UnitArgs,
    },
    /// Show how it does
    Status {
        #[command(flatten)]
        which: Which,
    },
    /// Stop it and remove its unit; configuration and environment stay
    Remove {
        #[command(flatten)]
        which: Which,
    },
}

/// Which service.
#[derive(Debug, Args)]
pub(crate) struct Which {
    /// Of this user, not of the system
    #[arg(long)]
    user: bool,
    /// Name of the unit
    #[arg(long, value_name = "NAME", default_value = "glim", value_parser = name)]
    name: String,
    /// Work below this folder, as for an image of a system, and ask no manager
    #[arg(long, value_name = "FOLDER")]
    root: Option<PathBuf>,
}

/// What the unit is made of.
#[derive(Debug, Args)]
pub(crate) struct UnitArgs {
    #[command(flatten)]
    which: Which,
    /// System user to run as [default: one that systemd makes]
    #[arg(long, value_name = "USER", conflicts_with = "user")]
    run_as: Option<String>,
    /// Have systemd listen here, so that no connection is refused while the service restarts
    #[arg(long, value_name = "IP:PORT")]
    socket: Option<SocketAddr>,
    /// Let it use no devices but GPUs; their modules must be loaded before it starts
    #[arg(long)]
    restrict_devices: bool,
    /// Options of glim serve, in a drop-in; the configuration file is the better place
    #[arg(last = true, value_name = "FLAGS")]
    flags: Vec<String>,
}

/// A unit's name becomes the name of files.
fn name(text: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_@".contains(c);
    match (1..=64).contains(&text.len()) && text.chars().all(fits) && !text.starts_with('-') {
        true => Ok(text.to_owned()),
        false => Err("expected letters, digits, -, _ or @".to_owned()),
    }
}

pub(crate) fn run(command: ServiceCommand, ui: &Ui) -> Result<Exit, Failure> {
    match command {
        ServiceCommand::Install { unit, now } => {
            let (which, unit, places) = unit.resolve()?;
            let actions = install::install(&unit, &places, now).map_err(failed)?;
            carry_out(&which, actions, ui)?;
            if !now && which.root.is_none() && !ui.json {
                let user = if which.user { "--user " } else { "" };
                ui.note(&format!(
                    "start it with: systemctl {user}enable --now {}",
                    unit.name
                ));
            }
            Ok(Exit::Ok)
        }
        ServiceCommand::Print { unit } => print(unit, ui),
        ServiceCommand::Status { which } => status(&which, ui),
        ServiceCommand::Remove { which } => {
            let scope = which.scope(None);
            let places = which.places(&scope)?;
            let actions = install::remove(&which.name, &scope, &places).map_err(failed)?;
            carry_out(&which, actions, ui)?;
            Ok(Exit::Ok)
        }
    }
}

fn print(unit: UnitArgs, ui: &Ui) -> Result<Exit, Failure> {
    let (_, unit, places) = unit.resolve()?;
    let file = |name: String| places.units.join(name).display().to_string();
    let mut files = vec![(file(format!("{}.service", unit.name)), unit.service())];
    if let Some(text) = unit.socket_unit() {
        files.push((file(format!("{}.socket", unit.name)), text));
    }
    for (drop_in, text) in unit.drop_ins() {
        files.push((file(format!("{}.service.d/{drop_in}", unit.name)), text));
    }
    if ui.json {
        let files: Vec<_> = files
            .iter()
            .map(|(path, text)| json!({ "path": path, "text": text }))
            .collect();
        ui.print_json(&json!({ "files": files }))?;
        return Ok(Exit::Ok);
    }
    // The unit alone can be piped into a file.
    let several = files.len() > 1;
    for (path, text) in files {
        let head = if several {
            format!("# --- {path}\n")
        } else {
            String::new()
        };
        ui.print(&format!("{head}{text}"))?;
    }
    Ok(Exit::Ok)
}

/// Does all of it, and tells each when it is done.
fn carry_out(which: &Which, actions: Vec<Action>, ui: &Ui) -> Result<(), Failure> {
    let mut done = Vec::new();
    for action in actions {
        if which.root.is_some() && matches!(action, Action::Systemctl(_)) {
            continue;
        }
        install::perform(&action).map_err(failed)?;
        match ui.json {
            true => done.push(action.to_string()),
            false => ui.print(&format!("{action}\n"))?,
        }
    }
    match ui.json {
        true => ui.print_json(&json!({ "done": done })),
        false => Ok(()),
    }
}

/// What is asked of the manager.
const PROPERTIES: [&str; 9] = [
    "LoadState",
    "UnitFileState",
    "ActiveState",
    "SubState",
    "StatusText",
    "MainPID",
    "NRestarts",
    "Result",
    "ExecMainStatus",
];

fn status(which: &Which, ui: &Ui) -> Result<Exit, Failure> {
    let mut arguments: Vec<String> = which
        .user
        .then(|| "--user".to_owned())
        .into_iter()
        .collect();
    arguments.extend(["show".to_owned(), format!("{}.service", which.name)]);
    arguments.push(format!("--property={}", PROPERTIES.join(",")));
    let text = install::ask(&arguments).map_err(failed)?;
    let found: Vec<(&str, &str)> = text
        .lines()
        .filter_map(|line| line.split_once('='))
        .collect();
    let is_active = found.contains(&("ActiveState", "active"));
    if ui.json {
        let fields: serde_json::Map<_, _> = found
            .iter()
            .map(|(name, value)| ((*name).to_owned(), json!(value)))
            .collect();
        ui.print_json(&json!({ "unit": format!("{}.service", which.name), "properties": fields }))?;
    } else {
        for (name, value) in found {
            ui.print(&format!("{name:14}  {value}\n"))?;
        }
    }
    Ok(if is_active { Exit::Ok } else { Exit::No })
}

impl Which {
    fn scope(&self, run_as: Option<String>) -> Scope {
        match self.user {
            true => Scope::User,
            false => Scope::System { user: run_as },
        }
    }

    fn places(&self, scope: &Scope) -> Result<Places, Failure> {
        let folder = |name| {
            std::env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        let own = folder("XDG_CONFIG_HOME").or_else(|| Some(folder("HOME")?.join(".config")));
        let own = match (scope, own) {
            (Scope::User, None) => {
                let message =
                    "neither XDG_CONFIG_HOME nor HOME is set: a user's units lie below them";
                return Err(Failure::new(Exit::Config, message));
            }
            (_, own) => own.unwrap_or_default(),
        };
        let places = Places::new(scope, &own);
        Ok(match &self.root {
            Some(root) => places.below(root),
            None => places,
        })
    }
}

impl UnitArgs {
    fn resolve(self) -> Result<(Which, Unit, Places), Failure> {
        let scope = self.which.scope(self.run_as);
        let places = self.which.places(&scope)?;
        let executable = std::env::current_exe().map_err(|error| {
            Failure::new(Exit::Internal, format!("this program has no path: {error}"))
        })?;
        // What the unit says is without the root, which is there while the image is made only.
        let config = match &self.which.root {
            Some(root) => match places.config.strip_prefix(root) {
                Ok(inner) => PathBuf::from("/").join(inner),
                Err(_) => places.config.clone(),
            },
            None => places.config.clone(),
        };
        let name = self.which.name.clone();
        let unit = Unit {
            scope,
            executable,
            config: config.join(format!("{name}.toml")),
            environment: config.join(format!("{name}.env")),
            name,
            socket: self.socket,
            flags: self.flags,
            restrict_devices: self.restrict_devices,
        };
        Ok((self.which, unit, places))
    }
}

fn failed(error: InstallError) -> Failure {
    let exit = match &error {
        InstallError::Foreign(_) => Exit::Config,
        InstallError::Absent { .. } => Exit::MissingFile,
        InstallError::File { .. } => Exit::Config,
        InstallError::Systemctl { .. } => Exit::Temporary,
    };
    let failure = Failure::new(exit, error.to_string());
    match error {
        InstallError::File { source, .. }
            if source.kind() == std::io::ErrorKind::PermissionDenied =>
        {
            failure.hint("run it as root, or install it --user")
        }
        _ => failure,
    }
}
