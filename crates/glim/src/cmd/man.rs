//! `glim man`: a manual page for glim and for each of its commands, made from the command line's own description.
//!
//! clap_mangen writes what clap knows. What stands below the options in `--help` is prose and examples, which it would run together: that
//! part, exit codes and variables are written here, as sections of their own.

use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use serde_json::json;

use crate::cli::Cli;
use crate::exit::{Exit, Failure};
use crate::ui::Ui;

/// Options of `glim man`.
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Folder to write to, such as ~/.local/share/man/man1; it is made if it is not there
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

/// The section of the manual for commands.
const SECTION: &str = "1";

/// Variables that count for every command. Those of `serve` follow a rule, which its page says.
const VARIABLES: &[(&str, &str)] = &[
    (
        "GLIM_CUDA_CACHE",
        "Folder that compiled kernels are kept in, in place of glim/kernels below XDG_CACHE_HOME.",
    ),
    (
        "GLIM_CUDA_LIBRARIES",
        "Folder that libcuda, libnvrtc and libnccl are looked for in first.",
    ),
    (
        "CUDA_VISIBLE_DEVICES",
        "The GPUs that the driver shows, and their order.",
    ),
    ("NO_COLOR", "No colours, unless --color asks for them."),
];

pub(crate) fn run(args: &ManArgs, ui: &Ui) -> Result<Exit, Failure> {
    let mut command = Cli::command();
    command.build();
    let failed = |path: &Path, error: &io::Error| {
        let exit = match error.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Exit::Config,
            _ => Exit::Temporary,
        };
        Failure::new(
            exit,
            format!("{}: cannot be written: {error}", path.display()),
        )
    };
    std::fs::create_dir_all(&args.folder).map_err(|error| failed(&args.folder, &error))?;
    let mut written = Vec::new();
    for (name, page) in pages(&command) {
        let path = args.folder.join(&name);
        let temporary = args.folder.join(format!(".{name}.{}", std::process::id()));
        std::fs::write(&temporary, page)
            .and_then(|()| std::fs::rename(&temporary, &path))
            .map_err(|error| {
                // Of no use any more; the first error says why.
                let _ = std::fs::remove_file(&temporary);
                failed(&path, &error)
            })?;
        written.push(path.display().to_string());
    }
    match ui.json {
        true => ui.print_json(&json!({ "files": written }))?,
        false => ui.print(&(written.join("\n") + "\n"))?,
    }
    Ok(Exit::Ok)
}

/// File name and text of the page of a command and of all below it, hidden ones left out.
fn pages(command: &Command) -> Vec<(String, String)> {
    let mut all = vec![(file_name(command), page(command))];
    let shown = command.get_subcommands().filter(|sub| !sub.is_hide_set());
    all.extend(shown.flat_map(pages));
    all
}

/// `glim-serve` for `glim serve`.
fn title(command: &Command) -> &str {
    command
        .get_display_name()
        .unwrap_or_else(|| command.get_name())
}

fn file_name(command: &Command) -> String {
    format!("{}.{SECTION}", title(command))
}

fn page(command: &Command) -> String {
    let man = Man::new(command.clone())
        .section(SECTION)
        .source(concat!("glim ", env!("CARGO_PKG_VERSION")))
        .manual("glim");
    let mut out = Vec::new();
    let has_options = command.get_arguments().any(|arg| !arg.is_hide_set());
    let has_commands = command.get_subcommands().any(|sub| !sub.is_hide_set());
    man.render_title(&mut out)
        .and_then(|()| man.render_name_section(&mut out))
        .and_then(|()| man.render_synopsis_section(&mut out))
        .and_then(|()| man.render_description_section(&mut out))
        .and_then(|()| match has_commands {
            true => man.render_subcommands_section(&mut out),
            false => Ok(()),
        })
        .and_then(|()| match has_options {
            true => man.render_options_section(&mut out),
            false => Ok(()),
        })
        .expect("writing to a Vec does not fail");
    ascii(&(String::from_utf8_lossy(&out).into_owned() + &further(command).to_roff()))
}

/// Other characters by their numbers (`groff_char(7)`): not every formatter is told in which encoding a page is.
fn ascii(page: &str) -> String {
    let escaped = |c: char| match c.is_ascii() {
        true => c.to_string(),
        false => format!("\\[u{:04X}]", u32::from(c)),
    };
    page.chars().map(escaped).collect()
}

/// What clap_mangen does not write.
fn further(command: &Command) -> Roff {
    let mut roff = Roff::new();
    let below = command.get_after_long_help().or(command.get_after_help());
    let below = below.map(ToString::to_string).unwrap_or_default();
    let mut has_notes = false;
    for paragraph in below.split("\n\n") {
        match paragraph.split_once(":\n  ") {
            // Said below, on every page.
            Some(("Exit codes", _)) => {}
            Some((heading, _)) if !heading.contains('\n') => {
                roff.control("SH", [heading.to_uppercase().as_str()]);
                verbatim(&mut roff, paragraph.lines().skip(1));
            }
            _ if paragraph.is_empty() => {}
            _ => {
                match has_notes {
                    true => roff.control("PP", []),
                    false => roff.control("SH", ["NOTES"]),
                };
                has_notes = true;
                roff.text([roman(
                    paragraph.split_whitespace().collect::<Vec<_>>().join(" "),
                )]);
            }
        }
    }
    roff.control("SH", ["EXIT STATUS"]);
    for exit in Exit::ALL {
        roff.control("TP", []);
        roff.text([bold(exit.code().to_string())]);
        roff.text([roman(exit.meaning())]);
    }
    roff.control("SH", ["ENVIRONMENT"]);
    for (name, meaning) in VARIABLES {
        roff.control("TP", []);
        roff.text([bold(*name)]);
        roff.text([roman(*meaning)]);
    }
    if let Some((above, _)) = title(command).rsplit_once('-') {
        roff.control("SH", ["SEE ALSO"]);
        roff.text([bold(above), roman(format!("({SECTION})"))]);
    }
    roff
}

/// Lines as they stand, without the indentation that they have in common.
fn verbatim<'t>(roff: &mut Roff, lines: impl Iterator<Item = &'t str>) {
    roff.control("nf", []);
    for line in lines {
        roff.text([roman(line.strip_prefix("  ").unwrap_or(line))]);
    }
    roff.control("fi", []);
}
