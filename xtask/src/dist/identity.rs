//! What a binary says of itself, and whether it is the commit's that is packed.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::said;

/// `glim --version`, taken apart.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Identity {
    /// As in `Cargo.toml`.
    pub(super) version: String,
    /// The first digits of its hash; `+` behind them: with changes; `no` for none.
    pub(super) commit: String,
    /// The name of the kernels' sources.
    pub(super) kernels: String,
}

impl Identity {
    pub(super) fn of(binary: &Path) -> Result<Self> {
        let text = said(Command::new(binary).arg("--version"))?;
        Self::parse(&text).with_context(|| format!("{} says: {text}", binary.display()))
    }

    fn parse(text: &str) -> Option<Self> {
        let (first, rest) = text.split_once('\n')?;
        let mut words = first.strip_prefix("glim ")?.split(' ');
        let (version, commit) = (words.next()?, words.next()?.strip_prefix('(')?);
        let kernels = rest
            .lines()
            .find_map(|line| line.strip_prefix("kernels "))?;
        Some(Self {
            version: version.to_owned(),
            commit: commit.to_owned(),
            kernels: kernels.trim().to_owned(),
        })
    }

    /// Refuses a binary of another commit than what is checked out, and a tree with changes.
    pub(super) fn check_commit(&self, root: &Path) -> Result<()> {
        let git = |arguments: &[&str]| said(Command::new("git").current_dir(root).args(arguments));
        let changes = git(&["status", "--porcelain", "--untracked-files=no"])?;
        if !changes.is_empty() {
            bail!("the tree is not its commit's; commit, or say --snapshot:\n{changes}");
        }
        let head = git(&["rev-parse", "HEAD"])?;
        if !head.starts_with(&self.commit) {
            bail!(
                "the binary is of commit {}, and {head} is checked out: build it again, or say --snapshot",
                self.commit
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_taken_apart_or_refused() {
        let text = "glim 0.1.0 (0123456789ab 2026-11-30)\nfeatures  cuda\nkernels   ffee\n";
        let expected = Identity {
            version: "0.1.0".into(),
            commit: "0123456789ab".into(),
            kernels: "ffee".into(),
        };
        assert_eq!(Identity::parse(text), Some(expected));
        for text in [
            "glim 0.1.0\n",
            "other 0.1.0 (a b)\nkernels x",
            "glim 0.1.0 (a b)\nfeatures x",
        ] {
            assert_eq!(Identity::parse(text), None, "{text}");
        }
    }
}
