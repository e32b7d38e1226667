//! Puts a unit in its place, and takes it away: decided as a list of actions first, then carried out one by one, each told in a line.
//!
//! A file is written beside its place and renamed into it, so that systemd never reads half of one. A file that glim did not write is
//! never touched: that is refused before anything is changed.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::unit::{MARK, Scope, Unit};

/// Where things lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// Units.
    pub units: PathBuf,
    /// Configuration and environment.
    pub config: PathBuf,
}

impl Places {
    /// The system's own, or a user's below the folder of their configuration.
    pub fn new(scope: &Scope, user_config: &Path) -> Self {
        match scope {
            Scope::System { .. } => Self {
                units: PathBuf::from("/etc/systemd/system"),
                config: PathBuf::from("/etc/glim"),
            },
            Scope::User => Self {
                units: user_config.join("systemd/user"),
                config: user_config.join("glim"),
            },
        }
    }

    /// The same below another root.
    #[must_use]
    pub fn below(&self, root: &Path) -> Self {
        let below = |path: &Path| root.join(path.strip_prefix("/").unwrap_or(path));
        Self {
            units: below(&self.units),
            config: below(&self.config),
        }
    }
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Write a file.
    Write {
        /// Where.
        path: PathBuf,
        /// What.
        text: String,
        /// Who may read it.
        mode: u32,
    },
    /// A file is there already and is the operator's.
    Keep(PathBuf),
    /// Remove a file of ours.
    Remove(PathBuf),
    /// Ask the manager.
    Systemctl(Vec<String>),
}

/// Why it was not done.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// Somebody else's file.
    #[error("{} was not written by glim and is left alone; choose another --name, or move it away", .0.display())]
    Foreign(PathBuf),
    /// There is nothing of that name.
    #[error("there is no unit {name} in {}", folder.display())]
    Absent {
        /// The name.
        name: String,
        /// Where it would be.
        folder: PathBuf,
    },
    /// A file cannot be written, read or removed.
    #[error("{}: {source}", path.display())]
    File {
        /// Where.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// systemctl is not there or did not do it.
    #[error("systemctl {} failed: {why}", arguments.join(" "))]
    Systemctl {
        /// What it was asked.
        arguments: Vec<String>,
        /// What it said.
        why: String,
    },
}

/// The configuration that a first installation starts from.
const CONFIG: &str = "\
# Options of glim serve, by their names; `glim config --config THIS_FILE` shows what is in force.
[serve]
# model = \"/models/glm-5.gguf\"
# host = \"0.0.0.0\"
# port = 8000
# api-key-file = \"/etc/glim/keys.txt\"
";

const ENVIRONMENT: &str = "\
# Variables of glim serve: GLIM_SERVE_PORT and the like win over the configuration file.
# CUDA_VISIBLE_DEVICES=0,1
";

/// What installing a unit takes. `now`: it is enabled and started as well.
///
/// # Errors
/// If a file of that name is not ours.
pub fn install(unit: &Unit, places: &Places, now: bool) -> Result<Vec<Action>, InstallError> {
    let service = places.units.join(format!("{}.service", unit.name));
    let folder = places.units.join(format!("{}.service.d", unit.name));
    let mut ours = vec![(service, unit.service())];
    let socket = places.units.join(format!("{}.socket", unit.name));
    match unit.socket_unit() {
        Some(text) => ours.push((socket, text)),
        None => check(&socket)?,
    }
    for (name, text) in unit.drop_ins() {
        ours.push((folder.join(name), text));
    }
    let mut actions = Vec::new();
    for (path, text) in ours {
        check(&path)?;
        actions.push(Action::Write {
            path,
            text,
            mode: 0o644,
        });
    }
    // Those of an earlier installation that are not asked for any more.
    for path in files(&unit.name, places) {
        let is_written = |action: &Action| matches!(action, Action::Write { path: written, .. } if *written == path);
        if !actions.iter().any(is_written) && is_ours(&path)? {
            actions.push(Action::Remove(path));
        }
    }
    for (ending, text, mode) in [("toml", CONFIG, 0o644), ("env", ENVIRONMENT, 0o640)] {
        let path = places.config.join(format!("{}.{ending}", unit.name));
        actions.push(match path.exists() {
            true => Action::Keep(path),
            false => Action::Write {
                path,
                text: text.to_owned(),
                mode,
            },
        });
    }
    actions.push(systemctl(&unit.scope, &["daemon-reload"]));
    if now {
        let mut arguments = vec!["enable".to_owned(), "--now".to_owned()];
        arguments.extend(unit.socket.map(|_| format!("{}.socket", unit.name)));
        arguments.push(format!("{}.service", unit.name));
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        actions.push(systemctl(&unit.scope, &arguments));
    }
    Ok(actions)
}

/// What removing a unit takes. Configuration and environment stay: they are the operator's.
///
/// # Errors
/// If there is none, or it is not ours.
pub fn remove(name: &str, scope: &Scope, places: &Places) -> Result<Vec<Action>, InstallError> {
    let files: Vec<PathBuf> = files(name, places)
        .into_iter()
        .filter(|path| path.exists())
        .collect();
    let service = places.units.join(format!("{name}.service"));
    if !files.contains(&service) {
        return Err(InstallError::Absent {
            name: name.to_owned(),
            folder: places.units.clone(),
        });
    }
    check(&service)?;
    let mut actions = Vec::new();
    let mut units = vec![format!("{name}.service")];
    if files.contains(&places.units.join(format!("{name}.socket"))) {
        units.insert(0, format!("{name}.socket"));
    }
    let mut arguments = vec!["disable", "--now"];
    arguments.extend(units.iter().map(String::as_str));
    actions.push(systemctl(scope, &arguments));
    for path in files {
        actions.push(match is_ours(&path)? {
            true => Action::Remove(path),
            // A drop-in of `systemctl edit`.
            false => Action::Keep(path),
        });
    }
    for ending in ["toml", "env"] {
        let path = places.config.join(format!("{name}.{ending}"));
        if path.exists() {
            actions.push(Action::Keep(path));
        }
    }
    actions.push(systemctl(scope, &["daemon-reload"]));
    Ok(actions)
}

/// Every file that may be a part of a unit: those that are made, and what lies among the drop-ins.
fn files(name: &str, places: &Places) -> Vec<PathBuf> {
    let folder = places.units.join(format!("{name}.service.d"));
    let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
    let mut drop_ins: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    drop_ins.sort();
    let mut files = vec![
        places.units.join(format!("{name}.service")),
        places.units.join(format!("{name}.socket")),
    ];
    files.extend(drop_ins);
    files
}

/// Refuses a file that is there and not ours.
fn check(path: &Path) -> Result<(), InstallError> {
    match path.exists() && !is_ours(path)? {
        true => Err(InstallError::Foreign(path.to_owned())),
        false => Ok(()),
    }
}

fn is_ours(path: &Path) -> Result<bool, InstallError> {
    match fs::read(path) {
        Ok(bytes) => Ok(bytes.starts_with(MARK.as_bytes())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(InstallError::File {
            path: path.to_owned(),
            source,
        }),
    }
}

fn systemctl(scope: &Scope, arguments: &[&str]) -> Action {
    let user = (*scope == Scope::User).then_some("--user");
    let words = user.into_iter().chain(arguments.iter().copied());
    Action::Systemctl(words.map(str::to_owned).collect())
}

/// Does one thing.
///
/// # Errors
/// If the system refuses.
pub fn perform(action: &Action) -> Result<(), InstallError> {
    match action {
        Action::Write { path, text, mode } => write(path, text, *mode).map_err(failed(path)),
        Action::Keep(_) => Ok(()),
        Action::Remove(path) => {
            fs::remove_file(path).map_err(failed(path))?;
            // A folder of drop-ins that is empty now. If it is not, it stays.
            if let Some(folder) = path
                .parent()
                .filter(|folder| folder.extension().is_some_and(|extension| extension == "d"))
            {
                let _ = fs::remove_dir(folder);
            }
            Ok(())
        }
        Action::Systemctl(arguments) => ask(arguments).map(drop),
    }
}

fn failed(path: &Path) -> impl Fn(io::Error) -> InstallError + use<'_> {
    move |source| InstallError::File {
        path: path.to_owned(),
        source,
    }
}

/// Asks systemctl, and returns what it prints.
///
/// # Errors
/// If it is not there, or fails.
pub fn ask(arguments: &[String]) -> Result<String, InstallError> {
    let failed = |why: String| InstallError::Systemctl {
        arguments: arguments.to_vec(),
        why,
    };
    let output = Command::new("systemctl")
        .args(arguments)
        .output()
        .map_err(|error| failed(error.to_string()))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(failed(
            String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        )),
    }
}

fn write(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(folder)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let beside = folder.join(format!(".{name}.{}", std::process::id()));
    let written = (|| {
        let mut file = fs::File::create(&beside)?;
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&beside, path)
    })();
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written
}

impl std::fmt::Display for Action {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Write { path, .. } => write!(f, "wrote {}", path.display()),
            Self::Keep(path) => write!(f, "kept {}", path.display()),
            Self::Remove(path) => write!(f, "removed {}", path.display()),
            Self::Systemctl(arguments) => write!(f, "ran systemctl {}", arguments.join(" ")),
        }
    }
}
