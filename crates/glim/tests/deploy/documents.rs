//! What documents say of options, exit codes and files.

use std::collections::BTreeSet;

use crate::{glim, read, told};

/// Headings of a level, which is given as it is written.
pub(crate) fn headings<'t>(text: &'t str, level: &'t str) -> impl Iterator<Item = &'t str> {
    text.lines()
        .filter_map(move |line| line.strip_prefix(level))
}

/// All `--options` that a text names.
pub(crate) fn options_named(text: &str) -> BTreeSet<String> {
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let words = text.split(|c: char| !is_name(c));
    words
        .filter(|word| word.len() > 3 && word.starts_with("--"))
        .map(str::to_owned)
        .collect()
}

/// All options of the commands that an operator is sent to.
pub(crate) fn options_of_operators() -> BTreeSet<String> {
    let commands = ["serve", "doctor", "verify", "bench", "explain"];
    let helps = commands.map(|command| told(glim().args([command, "--help"])));
    let options = options_named(&helps.concat());
    assert!(options.contains("--max-num-seqs") && options.len() > 30);
    options
}

/// The part of a Markdown text below a heading, up to the next of its level.
fn section<'t>(text: &'t str, heading: &str) -> &'t str {
    let start = text.find(&format!("\n## {heading}\n"));
    let start = start.unwrap_or_else(|| panic!("no heading {heading}"));
    let body = &text[start + 1..];
    let end = body[3..].find("\n## ").map_or(body.len(), |end| end + 3);
    &body[..end]
}

#[test]
fn the_guide_s_alerts_name_options_that_there_are() {
    let options = options_of_operators();
    let guide = read("docs/operations.md");
    let named = options_named(section(&guide, "Alerts"));
    assert!(!named.is_empty());
    for option in named {
        assert!(options.contains(&option), "no command has {option}");
    }
}

#[test]
fn the_guide_has_a_row_for_each_exit_code_of_a_service() {
    let help = told(glim().arg("--help"));
    let (_, codes) = help.split_once("Exit codes:\n").unwrap();
    let codes = codes.lines().map_while(|line| {
        let code: u8 = line.split_whitespace().next()?.parse().ok()?;
        Some(code)
    });
    let codes: Vec<u8> = codes.collect();
    assert!(codes.len() > 7, "{codes:?}");
    let unit = told(glim().args(["service", "print"]));
    let finals = unit
        .lines()
        .find_map(|line| line.strip_prefix("RestartPreventExitStatus="))
        .unwrap();
    let finals: Vec<u8> = finals
        .split(' ')
        .map(|code| code.parse().unwrap())
        .collect();
    let guide = read("docs/operations.md");
    let table = section(&guide, "Exit codes");
    // 1 is the answer of commands that check something.
    for code in codes.into_iter().filter(|code| *code != 1) {
        let row = table
            .lines()
            .find(|line| line.starts_with(&format!("| {code} |")))
            .unwrap_or_else(|| panic!("no row for {code}"));
        let is_restarted = row.split('|').nth(3).unwrap().trim() == "yes";
        let expected = code != 0 && !finals.contains(&code);
        assert_eq!(is_restarted, expected, "{row}");
    }
}

#[test]
fn the_readme_leads_to_every_document() {
    let readme = read("README.md");
    for entry in crate::path("docs").read_dir().unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let is_linked = readme.contains(&format!("(docs/{name})"));
        assert!(is_linked, "no way to docs/{name}");
    }
}

#[test]
fn the_changelog_begins_with_what_is_to_come_and_knows_this_version() {
    let changelog = read("CHANGELOG.md");
    let versions: Vec<&str> = headings(&changelog, "## ").collect();
    assert_eq!(versions.first(), Some(&"[Unreleased]"));
    let version = env!("CARGO_PKG_VERSION");
    // 0.0.0 is what every build before the first release is called.
    let is_known = version == "0.0.0"
        || versions
            .iter()
            .any(|heading| heading.starts_with(&format!("[{version}] - 20")));
    assert!(is_known, "{version} is not among {versions:?}");
}

/// Lines of code blocks that call glim: the command, and the line.
fn calls(text: &str) -> Vec<(String, String)> {
    let mut is_code = false;
    let mut calls = Vec::new();
    for line in text.lines() {
        if line.starts_with("```") {
            is_code = !is_code;
        }
        let words = line.trim_start_matches("sudo ").strip_prefix("glim ");
        // What stands behind a `#` is for people.
        let code = words.map(|words| words.split(" #").next().unwrap_or_default());
        if let Some(code) = code.filter(|_| is_code)
            && let Some(command) = code.split_whitespace().next()
        {
            calls.push((command.to_owned(), code.to_owned()));
        }
    }
    calls
}

#[test]
fn commands_in_the_documents_have_the_options_that_they_are_given() {
    let mut seen = 0;
    for file in [
        "README.md",
        "docs/models.md",
        "docs/operations.md",
        "docs/serving.md",
    ] {
        for (command, code) in calls(&read(file)) {
            if command.starts_with("--") {
                continue;
            }
            let help = told(glim().args([&command, "--help"]));
            // `service install` has its own.
            let subcommand = code
                .split_whitespace()
                .nth(1)
                .filter(|_| command == "service");
            let more = subcommand.map(|sub| told(glim().args([&command, sub, "--help"])));
            let options = options_named(&(help + &more.unwrap_or_default()));
            for option in options_named(&code) {
                assert!(
                    options.contains(&option),
                    "{file}: {command} has no {option}"
                );
                seen += 1;
            }
        }
    }
    assert!(seen > 40, "{seen}");
}

/// The table of `docs/models.md`: `| `TYPE` | N GB | B |`.
#[test]
fn models_are_as_large_as_the_guide_says() {
    let text = read("docs/models.md");
    let folder = tempfile::tempdir().unwrap();
    let mut seen = 0;
    for row in text.lines() {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [_, kind, size, bits, _] = cells[..] else {
            continue;
        };
        let Some(size) = size.strip_suffix(" GB") else {
            continue;
        };
        let (shape, kind) = match kind.contains("UD-Q2_K_XL") {
            true => ("glm-5.2", "ud-q2_k_xl"),
            false => ("glm-5", kind.trim_matches('`')),
        };
        let file = folder.path().join(format!("{kind}.gguf"));
        let mut command = glim();
        command.arg("synth").arg(&file);
        told(command.args(["--shape", shape, "--type", kind, "--sparse"]));
        let bytes = file.metadata().unwrap().len() as f64;
        assert_eq!(size, format!("{:.0}", bytes / 1e9), "{kind}");
        let parameters = 753.6e9;
        let found: f64 = bits.parse().unwrap();
        assert!(
            (found - bytes * 8.0 / parameters).abs() < 0.06,
            "{kind}: {found}"
        );
        seen += 1;
    }
    assert_eq!(seen, 9);
}
