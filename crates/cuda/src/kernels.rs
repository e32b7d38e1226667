//! Kernels: the sources in the binary, and which variants of each file there are.
//!
//! A file of `kernels/` is compiled once for each set of defines that is asked for. Which sets there can be, the file says itself, in
//! comments at the start of a line: `// variants: TYPE = Q8_0 Q4_K; ROWS = 1 2 4 8` stands for all eight combinations. A file
//! without such a line has one variant, without defines. So tools can compile everything, and nothing is compiled that they do
//! not know.

use std::collections::HashSet;
use std::fmt;

use crate::error::CudaError;

/// Name and text of each file, by path below `kernels/`.
const SOURCES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/sources.rs"));

/// Names all sources together: other sources, another name.
pub const SOURCES_HASH: &str = env!("GLIM_KERNELS");

/// A file with the defines that it is compiled with.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Unit {
    /// Name of the file without its ending.
    pub file: &'static str,
    /// Names and values, in the order of the file's `variants` line.
    pub defines: Vec<(&'static str, String)>,
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.file)?;
        for (name, value) in &self.defines {
            write!(f, " {name}={value}")?;
        }
        Ok(())
    }
}

/// An entry point of a unit.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Kernel {
    /// Where it stands.
    pub unit: Unit,
    /// Its name there.
    pub entry: &'static str,
}

impl Kernel {
    /// The kernel `entry` of `file`, compiled with these defines.
    pub fn new(file: &'static str, entry: &'static str, defines: &[(&'static str, &str)]) -> Self {
        Self {
            unit: Unit {
                file,
                defines: defines.iter().map(|(n, v)| (*n, (*v).to_owned())).collect(),
            },
            entry,
        }
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.entry, self.unit)
    }
}

fn text(path: &str) -> Option<&'static str> {
    let source = SOURCES.iter().find(|(name, _)| *name == path);
    source.map(|(_, text)| *text)
}

/// The source of a unit with its includes in place, each once; the defines come first.
///
/// # Errors
/// If the file, or one that it includes, does not exist.
pub fn source(unit: &Unit) -> Result<String, CudaError> {
    let missing = |what: String| CudaError::Kernel {
        kernel: unit.to_string(),
        reason: format!("{what} is not among the kernels' sources"),
    };
    let path = format!("{}.cu", unit.file);
    let root = text(&path).ok_or_else(|| missing(path.clone()))?;
    let mut out = String::new();
    for (name, value) in &unit.defines {
        out.push_str(&format!("#define {name} {value}\n"));
    }
    let mut seen = HashSet::new();
    expand(&path, root, &mut out, &mut seen).map_err(missing)?;
    Ok(out)
}

/// Appends `text`, with files in the place of `#include "…"` lines, which are relative to `include/`.
fn expand(
    name: &str,
    text_of: &str,
    out: &mut String,
    seen: &mut HashSet<String>,
) -> Result<(), String> {
    out.push_str(&format!("#line 1 \"{name}\"\n"));
    for (number, line) in text_of.lines().enumerate() {
        let included = line
            .trim_start()
            .strip_prefix("#include \"")
            .and_then(|rest| rest.strip_suffix('"'));
        match included {
            None if line.trim() == "#pragma once" => out.push('\n'),
            None => {
                out.push_str(line);
                out.push('\n');
            }
            Some(file) => {
                let path = format!("include/{file}");
                if seen.insert(path.clone()) {
                    let inner = text(&path).ok_or_else(|| path.clone())?;
                    expand(&path, inner, out, seen)?;
                }
                out.push_str(&format!("#line {} \"{name}\"\n", number + 2));
            }
        }
    }
    Ok(())
}

/// Every unit that the product can ask for, by the files' `variants` lines.
pub fn all() -> Vec<Unit> {
    let files = SOURCES
        .iter()
        .filter_map(|(name, text)| Some((name.strip_suffix(".cu")?, *text)));
    files
        .flat_map(|(file, text)| variants(file, text))
        .collect()
}

/// The combinations of each `variants` line of a file.
fn variants(file: &'static str, text: &'static str) -> Vec<Unit> {
    let mut units = Vec::new();
    for line in text.lines() {
        let Some(axes) = line.strip_prefix("// variants:") else {
            continue;
        };
        let mut sets: Vec<Vec<(&'static str, String)>> = vec![Vec::new()];
        for axis in axes.split(';') {
            let Some((name, values)) = axis.split_once('=') else {
                continue;
            };
            let (name, values) = (name.trim(), values.split_whitespace());
            sets = values
                .flat_map(|value| {
                    sets.iter().map(move |set| {
                        let mut set = set.clone();
                        set.push((name, value.to_owned()));
                        set
                    })
                })
                .collect();
        }
        units.extend(sets.into_iter().map(|defines| Unit { file, defines }));
    }
    if units.is_empty() {
        units.push(Unit {
            file,
            defines: Vec::new(),
        });
    }
    units
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn variants_are_all_combinations() {
        let names =
            |text| -> Vec<String> { variants("f", text).iter().map(Unit::to_string).collect() };
        assert_eq!(names("KERNEL(32) k() {}"), ["f"]);
        assert_eq!(
            names("// variants: A = 1 2; B = x y\n// variants: A = 3\n"),
            ["f A=1 B=x", "f A=2 B=x", "f A=1 B=y", "f A=2 B=y", "f A=3"]
        );
    }

    #[test]
    fn every_unit_has_a_source_without_includes() {
        for unit in all() {
            let source = source(&unit).unwrap();
            assert!(!source.contains("#include"), "{unit}");
            assert!(source.contains("KERNEL("), "{unit} has no entry point");
        }
    }
}
