//! Dependency arrows: which crate of the workspace may know which. Invariants 1 to 3 of ARCHITECTURE.md, as a table.

use toml::{Table, Value};

use super::Problem;
use super::tree::Tree;

const CHECK: &str = "arrows";

/// Each crate, the crates of the workspace that it may depend on, and those that its tests may depend on besides. Lower
/// never knows higher; a new crate is a new row.
const ALLOWED: &[(&str, &[&str], &[&str])] = &[
    ("quant", &[], &[]),
    ("gguf", &["quant"], &[]),
    ("text", &["gguf"], &[]),
    ("plan", &["quant"], &[]),
    ("model", &["gguf", "plan", "quant"], &[]),
    // Its parity tests run the plans of real architectures.
    ("cpu", &["plan", "quant"], &["model"]),
    ("cuda", &["plan", "quant"], &["model"]),
    ("doctor", &[], &[]),
    (
        "engine",
        &["model", "plan", "text"],
        &["cpu", "cuda", "gguf", "quant"],
    ),
    ("grammar", &["text"], &["gguf"]),
    (
        "server",
        &["engine", "grammar", "text"],
        &["cpu", "gguf", "model", "plan"],
    ),
    // The one reader of /proc is the doctor's.
    ("service", &["doctor"], &[]),
    (
        "glim",
        &[
            "cpu", "cuda", "doctor", "engine", "gguf", "model", "plan", "quant", "server",
            "service", "text",
        ],
        &[],
    ),
    (TESTKIT, &["gguf", "plan", "quant"], &[]),
    // What others wrote is parsed in these.
    ("fuzz", &["gguf", "grammar", "model", "quant", "text"], &[]),
];

/// Support for tests: everybody's, but in `[dev-dependencies]` only.
const TESTKIT: &str = "testkit";

/// Reads every `crates/*/Cargo.toml` and compares its dependencies with [`ALLOWED`].
pub(super) fn arrows(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (file, text) in tree.texts(&["/Cargo.toml"]) {
        let folder = file
            .path
            .strip_prefix("crates/")
            .and_then(|path| path.strip_suffix("/Cargo.toml"));
        let Some(name) = folder else { continue };
        let mut problem =
            |message: String| problems.push(Problem::file(CHECK, &file.path, message));
        let manifest: Table = match text.parse() {
            Ok(manifest) => manifest,
            Err(error) => {
                problem(format!("is not TOML: {error}"));
                continue;
            }
        };
        let package = manifest
            .get("package")
            .and_then(|package| package.get("name"))
            .and_then(Value::as_str);
        if package.and_then(short) != Some(name) {
            problem(format!(
                "the package in folder {name} is called {}",
                package.unwrap_or("nothing")
            ));
        }
        let Some((_, allowed, tests)) = ALLOWED.iter().find(|(of, ..)| *of == name) else {
            problem(format!(
                "{name} has no row in the table of xtask/src/tidy/arrows.rs: say what it may know"
            ));
            continue;
        };
        for dependency in dependencies(&manifest, &["dependencies", "build-dependencies"]) {
            if !allowed.contains(&dependency.as_str()) {
                problem(format!(
                    "{name} may not depend on {dependency}, only on {allowed:?}"
                ));
            }
        }
        for dependency in dependencies(&manifest, &["dev-dependencies"]) {
            let for_tests = [&[TESTKIT], *allowed, *tests].concat();
            if !for_tests.contains(&dependency.as_str()) {
                problem(format!(
                    "the tests of {name} may not depend on {dependency}, only on {for_tests:?}"
                ));
            }
        }
    }
    problems
}

/// `glim-plan` is `plan`; a crate of others is `None`.
fn short(package: &str) -> Option<&str> {
    if package == "glim" {
        Some("glim")
    } else {
        package.strip_prefix("glim-")
    }
}

/// Crates of the workspace in these sections, also in those for one target only.
fn dependencies(manifest: &Table, sections: &[&str]) -> Vec<String> {
    let targets = manifest.get("target").and_then(Value::as_table);
    let targets = targets
        .into_iter()
        .flat_map(Table::values)
        .filter_map(Value::as_table);
    let mut names = Vec::new();
    for table in [manifest].into_iter().chain(targets) {
        for section in sections
            .iter()
            .filter_map(|section| table.get(*section)?.as_table())
        {
            for (key, value) in section {
                let package = value.get("package").and_then(Value::as_str).unwrap_or(key);
                names.extend(short(package).map(str::to_owned));
            }
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, rest: &str, expected: &[&str]) {
        let path = format!("crates/{name}/Cargo.toml");
        let text = format!("[package]\nname = \"glim-{name}\"\n{rest}");
        let found: Vec<String> = arrows(&Tree::made_up(&[(&path, &text)]))
            .into_iter()
            .map(|problem| problem.message)
            .collect();
        assert_eq!(found, expected, "{rest}");
    }

    #[test]
    fn an_arrow_down_is_fine_and_one_up_is_named() {
        check(
            "plan",
            "[dependencies]\nglim-quant.workspace = true\nthiserror = \"2\"",
            &[],
        );
        check(
            "plan",
            "[dependencies]\nglim-model.workspace = true",
            &["plan may not depend on model, only on [\"quant\"]"],
        );
    }

    #[test]
    fn renamed_tabled_and_targeted_arrows_are_seen() {
        let expected = ["quant may not depend on gguf, only on []"];
        check(
            "quant",
            "[dependencies]\nother = { package = \"glim-gguf\", path = \"../gguf\" }",
            &expected,
        );
        check(
            "quant",
            "[dependencies.glim-gguf]\nworkspace = true",
            &expected,
        );
        check(
            "quant",
            "[target.'cfg(unix)'.dependencies]\nglim-gguf.workspace = true",
            &expected,
        );
        check(
            "quant",
            "[build-dependencies]\nglim-gguf.workspace = true",
            &expected,
        );
    }

    #[test]
    fn testkit_is_for_tests_only() {
        check(
            "text",
            "[dev-dependencies]\nglim-testkit.workspace = true",
            &[],
        );
        check(
            "text",
            "[dependencies]\nglim-testkit.workspace = true",
            &["text may not depend on testkit, only on [\"gguf\"]"],
        );
        check(
            "text",
            "[dev-dependencies]\nglim-model.workspace = true",
            &["the tests of text may not depend on model, only on [\"testkit\", \"gguf\"]"],
        );
    }

    #[test]
    fn tests_may_know_more_where_the_table_says_so() {
        check(
            "cpu",
            "[dev-dependencies]\nglim-model.workspace = true",
            &[],
        );
        let expected = "cpu may not depend on model, only on [\"plan\", \"quant\"]";
        check(
            "cpu",
            "[dependencies]\nglim-model.workspace = true",
            &[expected],
        );
    }

    #[test]
    fn a_crate_needs_a_row_and_its_folder_s_name() {
        let tree = Tree::made_up(&[
            ("crates/new/Cargo.toml", "[package]\nname = \"glim-new\""),
            ("crates/gguf/Cargo.toml", "[package]\nname = \"glim-ggml\""),
            ("crates/text/Cargo.toml", "[package\n"),
        ]);
        let found: Vec<String> = arrows(&tree).iter().map(ToString::to_string).collect();
        assert!(found[0].contains("new has no row"), "{found:?}");
        assert_eq!(
            found[1],
            "tidy[arrows] crates/gguf/Cargo.toml: the package in folder gguf is called glim-ggml"
        );
        assert!(found[2].contains("is not TOML"), "{found:?}");
        assert_eq!(found.len(), 3);
    }
}
