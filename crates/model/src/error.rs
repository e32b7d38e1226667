//! What can be wrong with a checkpoint, by what the caller can do about it.
//!
//! Every message is one sentence that names the file or folder, the key or tensor, what was found and what was
//! expected. Errors of the container itself ([`GgufError`]) pass through unchanged.

use std::path::PathBuf;

use glim_gguf::GgufError;

/// Problems with tensors that one message lists before it says "and more".
pub const MAX_PROBLEMS: usize = 6;

/// Why a checkpoint cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The GGUF container is missing, broken, or its metadata has values of the wrong type.
    #[error(transparent)]
    Gguf(#[from] GgufError),

    /// A file or folder that must exist does not.
    #[error("{}: {what}", path.display())]
    Missing {
        /// The path that was looked up.
        path: PathBuf,
        /// What was looked for, and where else it may be.
        what: String,
    },

    /// A file exists but cannot be read.
    #[error("{}: cannot be read: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        error: std::io::Error,
    },

    /// A file or folder is not what its name says: broken JSON, a bad safetensors header, several models in one folder.
    #[error("{}: {reason}", path.display())]
    Malformed {
        /// The file or folder.
        path: PathBuf,
        /// What was found and what was expected.
        reason: String,
    },

    /// The model is of a kind that this build cannot run.
    #[error("{origin}: {key} is `{found}`, which is not supported; supported: {supported}")]
    Unsupported {
        /// File or folder.
        origin: String,
        /// The key that says so.
        key: String,
        /// Its value.
        found: String,
        /// What would do.
        supported: String,
    },

    /// A hyper-parameter is absent and has no safe default.
    #[error("{origin}: key `{key}` is missing; expected {expected}")]
    MissingKey {
        /// File or folder.
        origin: String,
        /// The key, as the file would spell it.
        key: String,
        /// What it should hold.
        expected: String,
    },

    /// A hyper-parameter has a value that cannot be right.
    #[error("{origin}: key `{key}` is {found}; expected {expected}")]
    BadKey {
        /// File or folder.
        origin: String,
        /// The key, as the file spells it.
        key: String,
        /// Its value.
        found: String,
        /// What it should hold.
        expected: String,
    },

    /// Tensors are missing, surplus, mis-shaped or of a type that their role does not allow.
    #[error("{origin}: {problems}")]
    Tensors {
        /// File or folder.
        origin: String,
        /// Each names its tensor.
        problems: Problems,
    },

    /// A tensor's type is known, but cannot be decoded yet.
    #[error(
        "{origin}: tensor `{tensor}` has type {ty}, which cannot be decoded yet; requantise it to a supported type"
    )]
    Undecodable {
        /// File or folder.
        origin: String,
        /// The stored tensor.
        tensor: String,
        /// Its type, by ggml's name.
        ty: String,
    },
}

impl ModelError {
    /// Whether a file is absent (rather than wrong): exit code 66 instead of 65.
    pub fn is_missing(&self) -> bool {
        match self {
            ModelError::Gguf(error) => error.is_missing(),
            ModelError::Missing { .. } => true,
            ModelError::Io { error, .. } => error.kind() == std::io::ErrorKind::NotFound,
            _ => false,
        }
    }
}

/// A handful of sentences about tensors, and whether there were more.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Problems {
    listed: Vec<String>,
    more: bool,
}

impl Problems {
    /// Notes one problem; beyond [`MAX_PROBLEMS`] only that there are more.
    pub(crate) fn push(&mut self, problem: impl FnOnce() -> String) {
        if self.is_full() {
            self.more = true;
        } else {
            self.listed.push(problem());
        }
    }

    /// Notes that whoever looks for problems gave up early.
    pub(crate) fn cut_short(&mut self) {
        self.more = true;
    }

    /// Whether nothing was noted.
    pub fn is_empty(&self) -> bool {
        self.listed.is_empty()
    }

    /// Whether further problems would not be listed.
    pub(crate) fn is_full(&self) -> bool {
        self.listed.len() >= MAX_PROBLEMS
    }

    /// The problems in words, at most [`MAX_PROBLEMS`] of them.
    pub fn listed(&self) -> &[String] {
        &self.listed
    }
}

impl std::fmt::Display for Problems {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.listed.join("; "))?;
        f.write_str(if self.more { "; and more" } else { "" })
    }
}
