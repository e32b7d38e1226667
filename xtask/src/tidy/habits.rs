//! Habits of everything that is written by hand.

use super::Problem;
use super::tree::{File, Tree};

/// Endings of files that are written by hand.
const WRITTEN: &[&str] = &[
    ".rs",
    ".md",
    ".toml",
    ".py",
    ".cu",
    ".cuh",
    ".ci/run",
    ".gitignore",
    ".gitattributes",
];

/// Top-level folders of a machine. Text that names a file in one of them holds on one machine only.
const MACHINE_FOLDERS: &[&str] = &["home", "root", "tmp", "work"];

/// No blanks at the end of a line, no tabs, and a newline at the end.
pub(super) fn white_space(tree: &Tree) -> Vec<Problem> {
    const CHECK: &str = "white-space";
    let mut problems = Vec::new();
    for (file, text) in tree.texts(WRITTEN) {
        // Not `lines`, which takes a carriage return with its newline.
        for (number, line) in text.split('\n').enumerate() {
            if line.ends_with([' ', '\t', '\r']) {
                problems.push(Problem::line(
                    CHECK,
                    &file.path,
                    number + 1,
                    "blanks at the end of the line",
                ));
            }
            if line.contains('\t') {
                problems.push(Problem::line(
                    CHECK,
                    &file.path,
                    number + 1,
                    "a tab: indent with blanks",
                ));
            }
        }
        if !text.is_empty() && !text.ends_with('\n') {
            problems.push(Problem::file(CHECK, &file.path, "no newline at the end"));
        }
    }
    problems
}

/// No absolute path of a machine outside of tests and assets.
pub(super) fn machine_paths(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    let texts = tree.files().iter().filter(|file| !is_data(file));
    for (file, text) in texts.filter_map(|file| Some((file, file.text.as_deref()?))) {
        for (number, line) in text.lines().enumerate() {
            if let Some(folder) = machine_folder(line) {
                let message = format!("names a path in /{folder}, which is no part of the project");
                problems.push(Problem::line(
                    "machine-paths",
                    &file.path,
                    number + 1,
                    message,
                ));
            }
        }
    }
    problems
}

fn is_data(file: &File) -> bool {
    file.is_below("tests") || file.path.starts_with("assets/") || file.path == "Cargo.lock"
}

/// The folder if the line holds `/FOLDER/` that is not the middle of a longer path or address.
fn machine_folder(line: &str) -> Option<&'static str> {
    let begins = |at: usize| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "_-.~}*".contains(c))
    };
    MACHINE_FOLDERS.iter().copied().find(|folder| {
        let path = format!("/{folder}/");
        line.match_indices(&path).any(|(at, _)| begins(at))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(problems: &[Problem]) -> Vec<String> {
        problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn white_space_is_named_by_line() {
        let tree = Tree::made_up(&[
            ("a.md", "fine\nnot fine \n"),
            ("b.toml", "\ta = 1\n"),
            (".ci/run", "true"),
            ("c.json", "{} "),
            ("d.rs", "crlf\r\n"),
            ("empty.rs", ""),
        ]);
        let expected = [
            "tidy[white-space] a.md:2: blanks at the end of the line",
            "tidy[white-space] b.toml:1: a tab: indent with blanks",
            "tidy[white-space] .ci/run: no newline at the end",
            "tidy[white-space] d.rs:1: blanks at the end of the line",
        ];
        let found = messages(&white_space(&tree));
        assert_eq!(found, expected);
    }

    #[test]
    fn machine_paths_are_found_outside_tests_and_assets() {
        let home = format!("see /{}/me/x", MACHINE_FOLDERS[0]);
        let tree = Tree::made_up(&[
            ("a.md", &home),
            ("crates/x/tests/a.rs", &home),
            ("assets/a.txt", &home),
        ]);
        let found = messages(&machine_paths(&tree));
        assert_eq!(
            found,
            ["tidy[machine-paths] a.md:1: names a path in /home, which is no part of the project"]
        );
    }

    #[test]
    fn a_longer_path_or_an_address_is_not_a_machine_s() {
        for folder in MACHINE_FOLDERS {
            for line in [
                format!("https://example.org/{folder}/x"),
                format!("target/{folder}/x"),
                format!("a/{folder}s/"),
            ] {
                assert_eq!(machine_folder(&line), None, "{line}");
            }
            for line in [
                format!("(/{folder}/x)"),
                format!("\"/{folder}/x\""),
                format!("/{folder}/x"),
            ] {
                assert_eq!(machine_folder(&line), Some(*folder), "{line}");
            }
        }
    }
}
