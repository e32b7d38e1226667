//! Rules for source files.

use super::Problem;
use super::lex::{code_only, lines_with_word};
use super::tree::{File, Tree};

/// Files that may hold `unsafe` code, each behind a safe function; and folders (with a final `/`) all of which may.
const UNSAFE_PLACES: &[&str] = &[
    "crates/cpu/src/",
    "crates/cuda/src/",
    "crates/doctor/src/host/libraries.rs",
    "crates/doctor/src/nvml/library.rs",
    "crates/gguf/src/mmap.rs",
    "crates/model/src/checkpoint/mmap.rs",
];

/// Folders whose code may read environment variables.
const ENVIRONMENT_FOLDERS: &[&str] = &["crates/glim/", "crates/testkit/", "xtask/"];

/// Longest source file, in lines. A file of over 800 is asked what it is really two of; this is where asking ends.
const MAX_LINES: usize = 900;

/// Words that a file holds instead of code that works. In two halves, so that this file does not hold them itself.
const MARKERS: &[&str] = &[
    concat!("to", "do!"),
    concat!("unimple", "mented!"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
];

/// `unsafe` stands only in [`UNSAFE_PLACES`], and every other crate root has the compiler say the same.
pub(super) fn unsafe_code(tree: &Tree) -> Vec<Problem> {
    const CHECK: &str = "unsafe";
    let mut problems = Vec::new();
    for (file, text) in tree.texts(&[".rs"]) {
        let allowed = |place: &&str| {
            file.path == *place || place.ends_with('/') && file.path.starts_with(*place)
        };
        if UNSAFE_PLACES.iter().any(allowed) {
            continue;
        }
        let code = code_only(text);
        for line in lines_with_word(&code, "unsafe") {
            let message = format!("unsafe code may stand only in {}", UNSAFE_PLACES.join(", "));
            problems.push(Problem::line(CHECK, &file.path, line, message));
        }
        if let Some(folder) = crate_root(file) {
            let has_unsafe = UNSAFE_PLACES.iter().any(|path| path.starts_with(folder));
            let level = if has_unsafe { "deny" } else { "forbid" };
            if !code.contains(&format!("#![{level}(unsafe_code)]")) {
                let message = format!("a crate root says #![{level}(unsafe_code)]");
                problems.push(Problem::file(CHECK, &file.path, message));
            }
        }
    }
    problems
}

/// `crates/plan/src/` of `crates/plan/src/lib.rs`.
fn crate_root(file: &File) -> Option<&str> {
    let folder = file
        .path
        .strip_suffix("lib.rs")
        .or_else(|| file.path.strip_suffix("main.rs"))?;
    folder.ends_with("/src/").then_some(folder)
}

/// Only the binary is configured by its environment: invariant 6 of ARCHITECTURE.md.
pub(super) fn environment(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (file, text) in tree.texts(&[".rs"]) {
        if ENVIRONMENT_FOLDERS
            .iter()
            .any(|folder| file.path.starts_with(folder))
            || file.is_below("tests")
            || file.path.ends_with("/build.rs")
        {
            continue;
        }
        let code = code_only(text);
        for word in ["var", "var_os", "vars", "vars_os"] {
            for line in lines_with_word(&code, &format!("env::{word}")) {
                let message = "reads an environment variable: only the binary does, and passes on what it means";
                problems.push(Problem::line("environment", &file.path, line, message));
            }
        }
    }
    problems
}

/// Every Rust file says first what it is.
pub(super) fn file_doc(tree: &Tree) -> Vec<Problem> {
    let silent = tree
        .texts(&[".rs"])
        .filter(|(_, text)| !text.starts_with("//! "));
    let message = "begins without a `//!` line that says what the file is for";
    silent
        .map(|(file, _)| Problem::file("file-doc", &file.path, message))
        .collect()
}

/// No source file is longer than [`MAX_LINES`].
pub(super) fn file_length(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (file, text) in tree.texts(&[".rs", ".py", ".cu", ".cuh"]) {
        let lines = text.lines().count();
        if lines > MAX_LINES {
            let message =
                format!("{lines} lines, at most {MAX_LINES}: split it where its purpose changes");
            problems.push(Problem::file("file-length", &file.path, message));
        }
    }
    problems
}

/// No stubs, and no notes to self: what is open is an issue.
pub(super) fn stubs(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (file, text) in tree.texts(&[".rs", ".py", ".cu", ".cuh"]) {
        for marker in MARKERS {
            for line in lines_with_word(text, marker) {
                let message = format!("`{marker}`: finish it, or file it and say what holds today");
                problems.push(Problem::line("stubs", &file.path, line, message));
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(problems: &[Problem]) -> Vec<(&str, Option<usize>)> {
        problems
            .iter()
            .map(|problem| (problem.path.as_str(), problem.line))
            .collect()
    }

    #[test]
    fn unsafe_stands_in_its_files_only() {
        let tree = Tree::made_up(&[
            ("crates/gguf/src/mmap.rs", "unsafe { map() }"),
            (
                "crates/gguf/src/reader.rs",
                "// unsafe\nlet x = \"unsafe\";\nunsafe { map() }",
            ),
            ("crates/plan/tests/replay.rs", "unsafe fn f() {}"),
            ("crates/cpu/src/simd/avx2.rs", "unsafe { load() }"),
        ]);
        let found = unsafe_code(&tree);
        assert_eq!(
            places(&found),
            [
                ("crates/gguf/src/reader.rs", Some(3)),
                ("crates/plan/tests/replay.rs", Some(1))
            ]
        );
    }

    #[test]
    fn crate_roots_forbid_unsafe_code_or_deny_it_where_a_file_may_allow_it() {
        let tree = Tree::made_up(&[
            ("crates/gguf/src/lib.rs", "#![deny(unsafe_code)]"),
            ("crates/plan/src/lib.rs", "#![forbid(unsafe_code)]"),
            ("crates/text/src/lib.rs", "#![deny(unsafe_code)]"),
            ("crates/glim/src/main.rs", "// #![forbid(unsafe_code)]"),
            ("crates/glim/src/cmd/main.rs", ""),
            ("crates/cpu/src/lib.rs", ""),
        ]);
        let found = unsafe_code(&tree);
        assert_eq!(
            places(&found),
            [
                ("crates/text/src/lib.rs", None),
                ("crates/glim/src/main.rs", None)
            ]
        );
        assert_eq!(
            found[0].message,
            "a crate root says #![forbid(unsafe_code)]"
        );
    }

    #[test]
    fn only_the_binary_and_tests_read_the_environment() {
        let line =
            "let x = std::env::var(\"X\");\nlet y = std::env::vars_os();\nlet z = env!(\"Z\");";
        let tree = Tree::made_up(&[
            ("crates/engine/src/eval/mod.rs", line),
            ("crates/glim/src/config.rs", line),
            ("crates/text/tests/common/mod.rs", line),
        ]);
        let found = environment(&tree);
        let path = "crates/engine/src/eval/mod.rs";
        assert_eq!(places(&found), [(path, Some(1)), (path, Some(2))]);
    }

    #[test]
    fn files_begin_with_what_they_are() {
        let tree = Tree::made_up(&[
            ("a.rs", "//! A thing.\nfn f() {}"),
            ("b.rs", "fn f() {}"),
            ("c.rs", "// c\n"),
            ("d.py", ""),
        ]);
        assert_eq!(places(&file_doc(&tree)), [("b.rs", None), ("c.rs", None)]);
    }

    #[test]
    fn long_files_are_counted() {
        let (long, fits) = ("x\n".repeat(MAX_LINES + 1), "x\n".repeat(MAX_LINES));
        let tree = Tree::made_up(&[("long.rs", &long), ("fits.rs", &fits), ("data.json", &long)]);
        assert_eq!(file_length(&tree).len(), 1);
        assert!(
            file_length(&tree)[0]
                .message
                .starts_with("901 lines, at most 900")
        );
    }

    #[test]
    fn markers_are_found_in_code_and_comments() {
        let stub = format!(
            "fn f() {{\n    {}(\"later\")\n}}\n// {}\n// \\u{}X\n",
            MARKERS[0], MARKERS[2], MARKERS[3]
        );
        let found = Tree::made_up(&[("a.rs", &stub), ("b.md", &stub)]);
        assert_eq!(
            places(&stubs(&found)),
            [("a.rs", Some(2)), ("a.rs", Some(4))]
        );
    }
}
