//! The files of the repository, as the checks see them.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

/// Longest file that is read as text, in bytes: longer ones are data.
const MAX_TEXT_BYTES: u64 = 4 << 20;

/// One file.
#[derive(Debug)]
pub(super) struct File {
    /// From the root, with `/`.
    pub(super) path: String,
    pub(super) bytes: u64,
    /// `None` if the file is not UTF-8, or holds NUL, or is too long to be written by hand.
    pub(super) text: Option<String>,
}

impl File {
    /// Whether the name ends in one of these, dot included.
    pub(super) fn ends_with(&self, endings: &[&str]) -> bool {
        endings.iter().any(|ending| self.path.ends_with(ending))
    }

    /// Whether one of the folders above the file has this name.
    pub(super) fn is_below(&self, folder: &str) -> bool {
        self.path
            .rsplit_once('/')
            .is_some_and(|(above, _)| above.split('/').any(|part| part == folder))
    }
}

/// All files, in the order of their paths.
#[derive(Debug)]
pub(super) struct Tree {
    files: Vec<File>,
}

impl Tree {
    /// What git tracks, and what it would add: a fault shows before it is committed.
    pub(super) fn of_git(root: &Path) -> Result<Self> {
        let listed = Command::new("git")
            .args([
                "ls-files",
                "-z",
                "--cached",
                "--others",
                "--exclude-standard",
            ])
            .current_dir(root)
            .output()
            .context("git did not start: is it installed?")?;
        if !listed.status.success() {
            bail!(
                "git ls-files failed: {}",
                String::from_utf8_lossy(&listed.stderr).trim()
            );
        }
        let listed = String::from_utf8(listed.stdout).context("a file name is not UTF-8")?;
        let mut paths: Vec<&str> = listed.split_terminator('\0').collect();
        paths.sort_unstable();
        paths.dedup();
        let mut files = Vec::with_capacity(paths.len());
        for path in paths {
            let full = root.join(path);
            // Tracked, but deleted in the work tree; or a link that points nowhere.
            let Ok(metadata) = std::fs::metadata(&full) else {
                continue;
            };
            let text = if metadata.is_file() && metadata.len() <= MAX_TEXT_BYTES {
                let bytes =
                    std::fs::read(&full).with_context(|| format!("{path} could not be read"))?;
                String::from_utf8(bytes)
                    .ok()
                    .filter(|text| !text.contains('\0'))
            } else {
                None
            };
            files.push(File {
                path: path.to_owned(),
                bytes: metadata.len(),
                text,
            });
        }
        Ok(Self { files })
    }

    /// A tree that tests make up.
    #[cfg(test)]
    pub(super) fn made_up(files: &[(&str, &str)]) -> Self {
        let file = |(path, text): &(&str, &str)| File {
            path: (*path).to_owned(),
            bytes: text.len() as u64,
            text: Some((*text).to_owned()),
        };
        Self {
            files: files.iter().map(file).collect(),
        }
    }

    /// The same with a file of that size.
    #[cfg(test)]
    pub(super) fn with_bytes(mut self, path: &str, bytes: u64) -> Self {
        self.files.push(File {
            path: path.into(),
            bytes,
            text: None,
        });
        self
    }

    pub(super) fn files(&self) -> &[File] {
        &self.files
    }

    /// Text files whose name has one of these endings.
    pub(super) fn texts<'a>(
        &'a self,
        endings: &'a [&str],
    ) -> impl Iterator<Item = (&'a File, &'a str)> {
        self.files
            .iter()
            .filter(|file| file.ends_with(endings))
            .filter_map(|file| Some((file, file.text.as_deref()?)))
    }

    /// The text of one file.
    pub(super) fn text(&self, path: &str) -> Option<&str> {
        self.files
            .iter()
            .find(|file| file.path == path)?
            .text
            .as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_below_its_folders_only() {
        let tree = Tree::made_up(&[("a/tests/common/mod.rs", ""), ("tests.rs", "")]);
        assert!(tree.files()[0].is_below("tests") && tree.files()[0].is_below("common"));
        assert!(!tree.files()[0].is_below("mod.rs") && !tree.files()[1].is_below("tests"));
    }

    #[test]
    fn the_repository_is_listed_with_this_file() {
        let root = crate::root().expect("the root");
        let tree = Tree::of_git(&root).expect("a list of files");
        assert!(
            tree.text("xtask/src/tidy/tree.rs")
                .is_some_and(|text| text.contains("fn of_git"))
        );
        assert!(
            !tree
                .files()
                .iter()
                .any(|file| file.path.starts_with("target/"))
        );
    }
}
