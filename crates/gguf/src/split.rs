//! Split sets: `NAME-00001-of-00003.gguf` and its siblings, each a GGUF file of its own.
//!
//! Part 1 has the model's keys, the others only `split.*`. `split.no` counts from 0 where the name
//! counts from 1; `split.tensors.count` is the total over all parts. Source: `llama_split_path` and
//! `tools/gguf-split` of llama.cpp.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{error::GgufError, limits::MAX_PARTS, metadata::Metadata};

pub(crate) const NO_KEY: &str = "split.no";
pub(crate) const COUNT_KEY: &str = "split.count";
pub(crate) const TENSORS_KEY: &str = "split.tensors.count";
/// What all keys of a split set begin with.
pub(crate) const KEY_PREFIX: &str = "split.";

/// What the name of a model file ends with.
pub(crate) const EXTENSION: &str = ".gguf";
const DIGITS: usize = 5;

/// A file name taken apart: `STEM-NNNNN-of-MMMMM.gguf`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PartName {
    pub(crate) stem: String,
    /// From 1, as in the name.
    pub(crate) number: u64,
    pub(crate) count: u64,
}

impl PartName {
    pub(crate) fn parse(file_name: &str) -> Option<Self> {
        let rest = file_name.strip_suffix(EXTENSION)?;
        let (rest, count) = trailing_number(rest)?;
        let (stem, number) = trailing_number(rest.strip_suffix("-of-")?)?;
        let stem = stem.strip_suffix('-')?.to_owned();
        (1..=count).contains(&number).then_some(Self {
            stem,
            number,
            count,
        })
    }

    /// The name of part `number` (from 1) of the same set.
    pub(crate) fn sibling(&self, number: u64) -> String {
        file_name(&self.stem, number, self.count)
    }
}

/// The name of part `number` (from 1) of `count`.
pub(crate) fn file_name(stem: &str, number: u64, count: u64) -> String {
    format!("{stem}-{number:05}-of-{count:05}{EXTENSION}")
}

/// Cuts five digits off the end.
fn trailing_number(text: &str) -> Option<(&str, u64)> {
    let (rest, digits) = text.split_at_checked(text.len().checked_sub(DIGITS)?)?;
    let all_digits = digits.bytes().all(|byte| byte.is_ascii_digit());
    all_digits.then_some(())?;
    Some((rest, digits.parse().ok()?))
}

/// What a part's keys say about its set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SplitKeys {
    /// From 0.
    pub(crate) no: u64,
    pub(crate) count: u64,
    /// Over all parts.
    pub(crate) tensors: u64,
}

impl SplitKeys {
    /// `None` if the file is a whole model: no `split.count`, or 0 (as `gguf-split --merge` leaves
    /// it), or 1.
    pub(crate) fn read(path: &Path, metadata: &Metadata) -> Result<Option<Self>, GgufError> {
        let count = match metadata.uint(COUNT_KEY)? {
            None | Some(0 | 1) => return Ok(None),
            Some(count) => count,
        };
        if count > MAX_PARTS {
            return Err(GgufError::Limit {
                path: path.to_owned(),
                place: format!("key `{COUNT_KEY}`"),
                unit: "parts",
                found: count,
                limit: MAX_PARTS,
            });
        }
        let required = |key| {
            let found = metadata.uint(key)?;
            found.ok_or_else(|| {
                metadata.missing(key, "an integer, since this is one part of a split set")
            })
        };
        Ok(Some(Self {
            no: required(NO_KEY)?,
            count,
            tensors: required(TENSORS_KEY)?,
        }))
    }
}

/// The place of the file `path` in its set, by its name and its keys, which must agree. `None` for
/// a whole model.
pub(crate) fn part_name(
    path: &Path,
    keys: Option<SplitKeys>,
) -> Result<Option<PartName>, GgufError> {
    let name = path
        .file_name()
        .and_then(|name| PartName::parse(name.to_str()?));
    match (name, keys) {
        (None, None) => Ok(None),
        (None, Some(keys)) => Err(GgufError::NotAPartName {
            path: path.to_owned(),
            count: keys.count,
        }),
        (Some(name), None) if name.count == 1 => Ok(None),
        (Some(name), keys) => {
            let found = keys.map_or(0, |keys| keys.count);
            if found != name.count {
                return Err(GgufError::PartCount {
                    path: path.to_owned(),
                    named: name.count,
                    found,
                });
            }
            let no = keys.map_or(0, |keys| keys.no);
            if name.number.checked_sub(1) != Some(no) {
                return Err(GgufError::PartNumber {
                    path: path.to_owned(),
                    named: name.number,
                    found: no,
                });
            }
            Ok(Some(name))
        }
    }
}

/// The one model in the folder `dir`: the path of its file, or of one part of its set.
pub(crate) fn only_model_in(dir: &Path) -> Result<PathBuf, GgufError> {
    let failed = |e| GgufError::io(dir, "list the folder", e);
    let mut models: Vec<(String, PathBuf)> = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
            continue;
        };
        if !name.ends_with(EXTENSION) || name.starts_with('.') {
            continue;
        }
        // All parts of one set count as the model that their first part would be.
        let model = PartName::parse(name).map_or_else(|| name.to_owned(), |part| part.sibling(1));
        if !models.iter().any(|(known, _)| *known == model) {
            models.push((model, path));
        }
    }
    models.sort();
    match models.len() {
        0 => Err(GgufError::EmptyFolder {
            path: dir.to_owned(),
        }),
        1 => Ok(models.remove(0).1),
        _ => {
            let names: Vec<_> = models.into_iter().map(|(name, _)| name).collect();
            Err(GgufError::AmbiguousFolder {
                path: dir.to_owned(),
                found: names.join(", "),
            })
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn part_names_are_taken_apart() {
        let name = PartName::parse("GLM-5.1-Q4_K_M-00002-of-00010.gguf").unwrap();
        assert_eq!(
            name,
            PartName {
                stem: "GLM-5.1-Q4_K_M".to_owned(),
                number: 2,
                count: 10
            }
        );
        assert_eq!(name.sibling(10), "GLM-5.1-Q4_K_M-00010-of-00010.gguf");
    }

    #[test]
    fn other_names_are_no_part_names() {
        for name in [
            "model.gguf",
            "m-00001-of-00002.bin",
            "m-1-of-2.gguf",
            "m-00000-of-00002.gguf",
            "m-00003-of-00002.gguf",
            "m-0000a-of-00002.gguf",
            "m00001-of-00002.gguf",
            "é1-of-00002.gguf",
            "-of-.gguf",
            "",
        ] {
            assert_eq!(PartName::parse(name), None, "{name}");
        }
    }
}
