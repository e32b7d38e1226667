//! What the binary says of itself: version, commit and its day, features, compiler. `src/version.rs` reads it.
//!
//! The commit is, in this order: the variable `GLIM_COMMIT` (`HASH DAY`; a container's build has no repository), what `git archive` wrote
//! into `commit.txt`, and what git says. Git is asked for release builds only: a build for development would otherwise be made anew after
//! each commit, and its sources are seldom those of one.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Digits of a hash that name a commit to people.
const DIGITS: usize = 12;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=commit.txt");
    println!("cargo::rerun-if-env-changed=GLIM_COMMIT");
    let variable = |name: &str| env::var(name).unwrap_or_default();
    let commit = named(&variable("GLIM_COMMIT"))
        .or_else(|| named(&std::fs::read_to_string("commit.txt").unwrap_or_default()))
        .or_else(|| match variable("PROFILE").as_str() {
            "release" => of_git(),
            _ => None,
        });
    let version = variable("CARGO_PKG_VERSION");
    let commit = commit.unwrap_or_else(|| "no commit".to_owned());
    println!("cargo::rustc-env=GLIM_VERSION={version} ({commit})");

    let mut features: Vec<String> = env::vars()
        .filter_map(|(name, _)| Some(name.strip_prefix("CARGO_FEATURE_")?.to_lowercase()))
        .filter(|name| name != "default")
        .map(|name| name.replace('_', "-"))
        .collect();
    features.sort();
    println!("cargo::rustc-env=GLIM_FEATURES={}", features.join(", "));
    println!("cargo::rustc-env=GLIM_TARGET={}", variable("TARGET"));
    let rustc = said(Path::new(&variable("RUSTC")), &["--version"]);
    let rustc = rustc.unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=GLIM_RUSTC={rustc}");
}

/// `HASH DAY` with the hash cut to what people need; `None` if that is not what it is.
fn named(text: &str) -> Option<String> {
    let mut words = text.split_whitespace();
    let (hash, day) = (words.next()?, words.next()?);
    let is_hash = hash.len() >= DIGITS && hash.chars().all(|c| c.is_ascii_hexdigit());
    is_hash.then(|| format!("{} {day}", &hash[..DIGITS]))
}

/// The commit that is checked out; with a `+` behind its hash if the sources are not the commit's.
fn of_git() -> Option<String> {
    let git = |arguments: &[&str]| said(Path::new("git"), arguments);
    let root = git(&["rev-parse", "--show-toplevel"])?;
    // A repository around an unpacked archive is another one.
    let own = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR")?);
    if own.parent()?.parent()?.canonicalize().ok()? != Path::new(&root).canonicalize().ok()? {
        return None;
    }
    // Where a commit or a checkout leaves its mark. Cargo runs this again for ever if one of them is not there.
    for name in ["HEAD", "refs/heads", "packed-refs"] {
        let path = git(&["rev-parse", "--git-path", name])?;
        if Path::new(&path).exists() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    // And where a change makes the sources differ from it.
    for path in SOURCES {
        println!("cargo::rerun-if-changed={root}/{path}");
    }
    let commit = named(&git(&["log", "-1", "--format=%H %cs"])?)?;
    let mut status = vec![
        "-C",
        &root,
        "status",
        "--porcelain",
        "--untracked-files=no",
        "--",
    ];
    status.extend(SOURCES);
    let is_changed = !git(&status)?.is_empty();
    Some(match is_changed {
        true => commit.replacen(' ', "+ ", 1),
        false => commit,
    })
}

/// What the binary is made of, below the root.
const SOURCES: &[&str] = &["Cargo.toml", "Cargo.lock", "crates", "assets/tiny-glm5"];

/// What a program prints if it ends well.
fn said(program: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
