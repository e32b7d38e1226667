//! What each kernel takes of a multiprocessor, as the assembler says it (`--ptxas-options=-v`).
//!
//! One line for each kernel and architecture, over the variants of its file: the least and the most registers, and the most of
//! everything else. A kernel that spills without being named in a `// spills: NAME` line of its file is a problem: it reads and
//! writes memory for what should be in registers, mostly unnoticed.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Context as _, Result, bail};

use crate::build::Built;
use crate::named;

/// One kernel of one unit.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    name: String,
    registers: u32,
    /// Bytes of static shared memory.
    shared: u32,
    /// Bytes of local memory for each thread: arrays that are indexed, and spills.
    stack: u32,
    /// Bytes stored and loaded by spills.
    spills: u32,
}

/// All variants of a kernel for one architecture.
#[derive(Debug, Clone)]
struct Line {
    variants: usize,
    registers: (u32, u32),
    shared: u32,
    stack: u32,
    spills: u32,
    /// The variant that spills most.
    worst: String,
}

/// By file, kernel and architecture.
#[derive(Debug)]
pub(crate) struct Table {
    lines: BTreeMap<(String, String, String), Line>,
}

impl Table {
    /// Reads the compiler's logs.
    pub(crate) fn new<'b>(built: impl Iterator<Item = &'b Built>) -> Result<Self> {
        let mut lines: BTreeMap<_, Line> = BTreeMap::new();
        for one in built {
            let entries = parse(&one.log)
                .with_context(|| format!("the log of {} for {}", one.unit, one.arch))?;
            if entries.is_empty() {
                bail!("the log of {} for {} names no kernel", one.unit, one.arch);
            }
            for entry in entries {
                let key = (one.unit.file.to_owned(), entry.name, one.arch.clone());
                let line = lines.entry(key).or_insert(Line {
                    variants: 0,
                    registers: (u32::MAX, 0),
                    shared: 0,
                    stack: 0,
                    spills: 0,
                    worst: String::new(),
                });
                line.variants += 1;
                line.registers.0 = line.registers.0.min(entry.registers);
                line.registers.1 = line.registers.1.max(entry.registers);
                line.shared = line.shared.max(entry.shared);
                line.stack = line.stack.max(entry.stack);
                if entry.spills > line.spills {
                    line.spills = entry.spills;
                    line.worst = one.unit.to_string();
                }
            }
        }
        Ok(Self { lines })
    }

    /// Kernels that spill and may not.
    pub(crate) fn spills(&self, sources: &[(String, String)]) -> Vec<String> {
        let allowed = |file: &str, kernel: &str| {
            let source = sources.iter().find(|(name, _)| name == file);
            source.is_some_and(|(_, text)| named(text, "spills").contains(&kernel))
        };
        let spilling = self
            .lines
            .iter()
            .filter(|((file, kernel, _), line)| line.spills > 0 && !allowed(file, kernel));
        spilling
            .map(|((_, kernel, arch), line)| {
                format!(
                    "{kernel} of {} spills {} bytes on {arch}: use fewer registers, or say `// spills: {kernel}` and why",
                    line.worst, line.spills
                )
            })
            .collect()
    }

    /// The lines of these architectures, as they are kept.
    pub(crate) fn snapshot(&self, version: &str, archs: &[&str]) -> String {
        let mut text = format!(
            "# Written by `cargo xtask kernels` with NVRTC {version}: what each kernel takes, over its file's variants for a few weight types.\n"
        );
        for ((file, kernel, arch), line) in &self.lines {
            if archs.contains(&arch.as_str()) {
                text.push_str(&format!("{file}.cu {kernel} {arch}: {line}\n"));
            }
        }
        text
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (least, most) = self.registers;
        let registers = match least == most {
            true => format!("{most}"),
            false => format!("{least}-{most}"),
        };
        write!(
            f,
            "variants {}, registers {registers}, shared {}, stack {}, spills {}",
            self.variants, self.shared, self.stack, self.spills
        )
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ((_, kernel, arch), line) in &self.lines {
            writeln!(f, "{kernel:28} {arch:8} {line}")?;
        }
        Ok(())
    }
}

/// The entry points that a log of ptxas names. Functions that are called and not inlined stand there too; what they spill counts for
/// the kernel that is being compiled.
fn parse(log: &str) -> Result<Vec<Entry>> {
    let mut entries: Vec<Entry> = Vec::new();
    for line in log.lines() {
        if let Some(rest) = line.split("Compiling entry function '").nth(1) {
            let name = rest.split('\'').next().unwrap_or_default();
            entries.push(Entry {
                name: name.to_owned(),
                registers: 0,
                shared: 0,
                stack: 0,
                spills: 0,
            });
        }
        let Some(entry) = entries.last_mut() else {
            continue;
        };
        if line.contains("bytes stack frame") {
            entry.stack = entry.stack.max(before(line, "bytes stack frame")?);
            entry.spills +=
                before(line, "bytes spill stores")? + before(line, "bytes spill loads")?;
        }
        if line.contains("registers") && line.contains("Used") {
            entry.registers = before(line, "registers")?;
            if line.contains("bytes smem") {
                entry.shared = before(line, "bytes smem")?;
            }
            if line.contains("bytes cumulative stack size") {
                let stack = before(line, "bytes cumulative stack size")?;
                entry.stack = entry.stack.max(stack);
            }
        }
    }
    Ok(entries)
}

/// The number that stands before some words.
fn before(line: &str, words: &str) -> Result<u32> {
    let head = line.split(words).next().unwrap_or_default();
    let number = head.split_whitespace().next_back().unwrap_or_default();
    number
        .parse()
        .with_context(|| format!("no number before `{words}` in `{line}`"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    const LOG: &str = "\
k.cu(182): warning #177-D: variable \"X\" was declared but never referenced

ptxas info    : 29 bytes gmem
ptxas info    : Compiling entry function 'two' for 'sm_90a'
ptxas info    : Function properties for two
ptxas         .     896 bytes stack frame, 84 bytes spill stores, 96 bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers, 896 bytes cumulative stack size
ptxas info    : Compile time = 125.561 ms
ptxas info    : Compiling entry function 'one' for 'sm_90a'
ptxas info    : Function properties for one
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 22 registers, used 1 barriers, 128 bytes smem
";

    #[test]
    fn a_log_gives_every_kernel() {
        let entry = |name: &str, registers, shared, stack, spills| Entry {
            name: name.into(),
            registers,
            shared,
            stack,
            spills,
        };
        let wanted = [entry("two", 64, 0, 896, 180), entry("one", 22, 128, 0, 0)];
        assert_eq!(parse(LOG).unwrap(), wanted);
    }

    #[test]
    fn a_spill_that_is_not_named_is_a_problem() {
        let built = |file| Built {
            unit: glim_cuda::kernels::Unit {
                file,
                defines: Vec::new(),
            },
            arch: "sm_90a".into(),
            name: String::new(),
            cubin: Vec::new(),
            log: LOG.into(),
        };
        let table = Table::new([built("k")].iter()).unwrap();
        let with = |text: &str| table.spills(&[("k".into(), text.into())]);
        assert_eq!(with("// spills: one\n").len(), 1);
        assert!(with("")[0].starts_with("two of k spills 180 bytes on sm_90a"));
        assert!(with("// spills: two\n").is_empty());
    }

    #[test]
    fn a_snapshot_has_a_line_for_each_kernel_and_architecture() {
        let built = |arch: &str, registers: &str| Built {
            unit: glim_cuda::kernels::Unit {
                file: "k",
                defines: Vec::new(),
            },
            arch: arch.into(),
            name: String::new(),
            cubin: Vec::new(),
            log: LOG.replace("22 registers", registers),
        };
        let all = [
            built("sm_80", "22 registers"),
            built("sm_90a", "22 registers"),
            built("sm_90a", "30 registers"),
        ];
        let table = Table::new(all.iter()).unwrap();
        let text = table.snapshot("13.5", &["sm_90a"]);
        let lines: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(
            lines,
            [
                "k.cu one sm_90a: variants 2, registers 22-30, shared 128, stack 0, spills 0",
                "k.cu two sm_90a: variants 2, registers 64, shared 0, stack 896, spills 180",
            ]
        );
    }
}
