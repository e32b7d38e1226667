//! Rules for the repository as a whole.

use super::Problem;
use super::tree::Tree;

/// All tracked files together, in bytes: a checkout and a binary with the built-in model must fit on small machines.
const MAX_BYTES: u64 = 40 << 20;

/// Largest files to name when the limit is broken.
const NAMED: usize = 5;

/// The two commands of the README that CI runs as they stand there.
const README_COMMANDS: &[&str] = &[
    "cargo run --release -- run -p \"What is 27 + 58?\"",
    "cargo test --workspace",
];

/// All files together stay below [`MAX_BYTES`].
pub(super) fn size(tree: &Tree) -> Vec<Problem> {
    let total: u64 = tree.files().iter().map(|file| file.bytes).sum();
    if total <= MAX_BYTES {
        return Vec::new();
    }
    let mut largest: Vec<_> = tree.files().iter().collect();
    largest.sort_by_key(|file| std::cmp::Reverse(file.bytes));
    let largest: Vec<String> = largest
        .iter()
        .take(NAMED)
        .map(|file| format!("{} {}", file.path, file.bytes))
        .collect();
    let message = format!(
        "all files together are {total} bytes, at most {MAX_BYTES}; the largest: {}",
        largest.join(", ")
    );
    vec![Problem::file("size", ".", message)]
}

/// Nothing that a tool made: build folders, snapshots that nobody has reviewed, caches.
pub(super) fn generated(tree: &Tree) -> Vec<Problem> {
    let made = |path: &str| {
        path.split('/')
            .any(|part| part == "target" || part == "__pycache__")
            || [
                ".snap.new",
                ".pending-snap",
                ".profraw",
                ".pyc",
                ".orig",
                ".rej",
            ]
            .iter()
            .any(|end| path.ends_with(end))
    };
    let made = tree.files().iter().filter(|file| made(&file.path));
    let message = "made by a tool: not part of the repository (a `.snap.new` is reviewed and renamed, or deleted)";
    made.map(|file| Problem::file("generated", &file.path, message))
        .collect()
}

/// What the README promises is what CI runs.
pub(super) fn readme_commands(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for path in ["README.md", ".ci/run"] {
        for command in README_COMMANDS {
            if !tree.text(path).is_some_and(|text| text.contains(command)) {
                let message = format!(
                    "does not hold the command `{command}`, which the README promises and CI runs"
                );
                problems.push(Problem::file("readme-commands", path, message));
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_on_all_files_together() {
        let tree = Tree::made_up(&[("a.rs", "x")]).with_bytes("b.bin", MAX_BYTES - 1);
        assert_eq!(size(&tree), []);
        let found = size(&tree.with_bytes("c.bin", 2));
        assert_eq!(found.len(), 1);
        let expected =
            "41943042 bytes, at most 41943040; the largest: b.bin 41943039, c.bin 2, a.rs 1";
        assert!(found[0].message.ends_with(expected), "{}", found[0].message);
    }

    #[test]
    fn what_tools_make_is_named() {
        let made = [
            "target/x",
            "crates/a/target/y.rs",
            "t/snapshots/a.snap.new",
            "xtask/py/__pycache__/a.pyc",
        ];
        let fine = ["crates/a/src/target.rs", "t/snapshots/a.snap"];
        let files: Vec<(&str, &str)> = made.iter().chain(&fine).map(|path| (*path, "")).collect();
        let found = generated(&Tree::made_up(&files));
        assert_eq!(
            found
                .iter()
                .map(|problem| problem.path.as_str())
                .collect::<Vec<_>>(),
            made
        );
    }

    #[test]
    fn readme_and_ci_hold_the_same_commands() {
        let both = README_COMMANDS.join("\n");
        assert_eq!(
            readme_commands(&Tree::made_up(&[("README.md", &both), (".ci/run", &both)])),
            []
        );
        let found = readme_commands(&Tree::made_up(&[
            ("README.md", README_COMMANDS[0]),
            (".ci/run", &both),
        ]));
        assert_eq!(found.len(), 1);
        assert!(
            found[0].path == "README.md" && found[0].message.contains("`cargo test --workspace`")
        );
        assert_eq!(readme_commands(&Tree::made_up(&[])).len(), 4);
    }
}
