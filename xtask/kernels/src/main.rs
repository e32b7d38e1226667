//! `cargo xtask kernels`: compiles every unit of `crates/cuda/kernels` that the product can ask for, without a GPU, and looks at what came
//! out: registers, spills, shared memory and stack of each kernel (`resources`), and whether weights are asked for before the wait
//! for the previous kernel (`sass`).
//!
//! A program of its own, because `xtask` must build while the kernels' crate does not. `cargo xtask kernels` calls it with the
//! pinned compiler, whose version the numbers belong to.
#![forbid(unsafe_code)]

mod build;
mod out;
mod resources;
mod sass;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use glim_cuda::kernels::{self, Unit};
use glim_cuda::{compile, libraries};

/// What the snapshot has lines for, and CI compiles: the generation that is tuned for, and one that knows less (no `wgmma`, less
/// shared memory).
const SNAPSHOT_ARCHS: &[&str] = &["sm_90a", "sm_120a"];

/// Every architecture that the product claims.
const ALL_ARCHS: &[&str] = &["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"];

/// The weight types of the snapshot and of CI: floats, plain integers, super-blocks, and a table. All types would take a quarter of an
/// hour on two cores; their functions are tested on the emulator.
const SNAPSHOT_TYPES: &[&str] = &["F32", "Q8_0", "Q4_K", "IQ4_XS"];

#[derive(Parser)]
#[command(name = "cargo xtask kernels")]
struct Cli {
    /// Compile for every architecture that the product claims, not only for those of the snapshot
    #[arg(long)]
    all: bool,
    /// Compile for this architecture (again for more)
    #[arg(long, value_name = "sm_N", conflicts_with = "all")]
    arch: Vec<String>,
    /// Fail if the numbers are not those of crates/cuda/kernels/resources.txt, instead of writing it
    #[arg(long)]
    check: bool,
    /// Only the units that the snapshot is of: a few weight types
    #[arg(long)]
    quick: bool,
    /// Only units whose name holds this, as in `gemv_int` or `TYPE=Q4_K`; prints, and leaves the snapshot alone
    #[arg(long, value_name = "WORD")]
    only: Option<String>,
    /// Write the cubins here, as a release has them: in the folder `kernels`, by the names that the product looks for, and what they
    /// are in the file `KERNELS`
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Compile, and look at nothing: for a release of sources that were looked at
    #[arg(long, requires = "out", conflicts_with = "check")]
    compile_only: bool,
    /// Folder of libnvrtc
    #[arg(long, value_name = "FOLDER")]
    nvrtc: Option<PathBuf>,
    /// The disassembler
    #[arg(long, value_name = "FILE", default_value = "nvdisasm")]
    nvdisasm: PathBuf,
    /// Root of the repository
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    root: PathBuf,
    /// Keeps what was compiled, by content
    #[arg(long, value_name = "FOLDER", default_value = "target/kernels")]
    cache: PathBuf,
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<()> {
    if let Some(folder) = &cli.nvrtc {
        libraries::preload(folder);
    }
    let (major, minor) = compile::version()?;
    let archs = archs(cli);
    let units: Vec<Unit> = kernels::all()
        .into_iter()
        .filter(|unit| {
            let name = unit.to_string();
            cli.only.as_ref().is_none_or(|word| name.contains(word))
                && (!cli.quick || in_snapshot(unit))
        })
        .collect();
    if units.is_empty() {
        bail!("no unit is named like that");
    }
    println!(
        "{} units for {} with NVRTC {major}.{minor}",
        units.len(),
        archs.join(", ")
    );
    let cache = cli.cache.join(format!("nvrtc-{major}.{minor}"));
    let built = build::all(&units, &archs, &cache)?;
    if let Some(folder) = &cli.out {
        out::write(&built, &archs, &format!("{major}.{minor}"), folder)?;
    }
    if cli.compile_only {
        return Ok(());
    }

    let table = resources::Table::new(built.iter())?;
    print!("{table}");
    let mut problems = table.spills(&sources(&cli.root)?);
    problems.extend(sass::check(&built, &cli.root, &cli.nvdisasm)?);
    if cli.only.is_none() {
        let version = format!("{major}.{minor}");
        let part = built.iter().filter(|one| in_snapshot(&one.unit));
        let snapshot = resources::Table::new(part)?.snapshot(&version, SNAPSHOT_ARCHS);
        let path = cli.root.join("crates/cuda/kernels/resources.txt");
        problems.extend(keep(&path, &snapshot, &archs, cli.check)?);
    }
    if !problems.is_empty() {
        bail!("{}", problems.join("\n       "));
    }
    Ok(())
}

/// Whether the snapshot has a part in it.
fn in_snapshot(unit: &Unit) -> bool {
    let mut types = unit.defines.iter().filter(|(name, _)| *name == "TYPE");
    types.all(|(_, ty)| SNAPSHOT_TYPES.contains(&ty.as_str()))
}

fn archs(cli: &Cli) -> Vec<&str> {
    match (cli.all, cli.arch.as_slice()) {
        (true, _) => ALL_ARCHS.to_vec(),
        (false, []) => SNAPSHOT_ARCHS.to_vec(),
        (false, named) => named.iter().map(String::as_str).collect(),
    }
}

/// Name and text of each kernel file.
fn sources(root: &Path) -> Result<Vec<(String, String)>> {
    let folder = root.join("crates/cuda/kernels");
    let mut sources = Vec::new();
    for entry in folder
        .read_dir()
        .with_context(|| format!("{} is not there", folder.display()))?
    {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "cu")
            && let Some(name) = path.file_stem()
        {
            let text = std::fs::read_to_string(&path)
                .with_context(|| format!("{} is not readable", path.display()))?;
            sources.push((name.to_string_lossy().into_owned(), text));
        }
    }
    sources.sort();
    Ok(sources)
}

/// Names on comment lines `// WORD: NAME NAME` of a kernel file.
fn named<'t>(text: &'t str, word: &str) -> Vec<&'t str> {
    let lines = text.lines().filter_map(|line| {
        let rest = line.strip_prefix("// ")?.strip_prefix(word)?;
        rest.strip_prefix(':')
    });
    lines.flat_map(str::split_whitespace).collect()
}

/// Writes the snapshot, or says in which lines it is another.
fn keep(path: &Path, snapshot: &str, archs: &[&str], check: bool) -> Result<Vec<String>> {
    if !SNAPSHOT_ARCHS.iter().all(|arch| archs.contains(arch)) {
        println!("not all architectures of the snapshot were compiled: it is left alone");
        return Ok(Vec::new());
    }
    if !check {
        std::fs::write(path, snapshot)
            .with_context(|| format!("{} was not written", path.display()))?;
        return Ok(Vec::new());
    }
    let there = std::fs::read_to_string(path)
        .with_context(|| format!("{} is not readable", path.display()))?;
    let only = |a: &str, b: &str, sign: &str| -> Vec<String> {
        let lines = a
            .lines()
            .filter(|line| !b.lines().any(|other| other == *line));
        lines.map(|line| format!("{sign} {line}")).collect()
    };
    let mut problems = only(&there, snapshot, "-");
    problems.extend(only(snapshot, &there, "+"));
    if !problems.is_empty() {
        problems.insert(
            0,
            "the kernels' resources have changed; if that is meant, run `cargo xtask kernels` and commit resources.txt:"
                .into(),
        );
    }
    Ok(problems)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_on_lines_of_their_own() {
        let text = "// prefetches: a b\nKERNEL(32) a() {} // prefetches: c\n// prefetches: d\n";
        assert_eq!(named(text, "prefetches"), ["a", "b", "d"]);
    }
}
