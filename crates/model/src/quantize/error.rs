//! Why a file cannot be quantised.

use std::fmt;
use std::path::PathBuf;

use glim_gguf::GgufError;
use glim_quant::GgmlType;

use super::Mix;

/// Why quantising failed. No file is left behind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QuantizeError {
    /// A file cannot be read or written.
    #[error(transparent)]
    Gguf(#[from] GgufError),

    /// A mix that llama.cpp has.
    #[error("{name} needs an encoder that glim lacks; use {instead} instead")]
    RefusedMix {
        /// What was asked for, in lower case.
        name: String,
        /// What comes nearest.
        instead: &'static str,
    },

    /// A mix that nobody has.
    #[error("`{name}` is no type: expected one of {}", mix_names())]
    UnknownMix {
        /// What was asked for.
        name: String,
    },

    /// A `--tensor-type` that says nothing.
    #[error("--tensor-type `{text}`: {reason}; expected PATTERN=TYPE")]
    BadOverride {
        /// What was given.
        text: String,
        /// What is wrong with it.
        reason: String,
    },

    /// A model whose rules are not known here.
    #[error(
        "{origin}: the architecture is `{found}`; those that glim can quantise are {supported}"
    )]
    Arch {
        /// The file.
        origin: String,
        /// What `general.architecture` says.
        found: String,
        /// What would do.
        supported: String,
    },

    /// A tensor whose rule asks for its layer.
    #[error("tensor `{tensor}`: expected a name that begins with `blk.N.`, N below {n_layers}")]
    NoLayer {
        /// The tensor.
        tensor: String,
        /// Layers of the model.
        n_layers: usize,
    },

    /// A tensor that must change and that cannot be read.
    #[error(
        "{origin}: tensor `{tensor}` is of type {ty}, which glim cannot decode: start from a file with other types"
    )]
    CannotDecode {
        /// The file.
        origin: String,
        /// The tensor.
        tensor: String,
        /// Its type.
        ty: GgmlType,
    },

    /// A type that makes garbage without an importance matrix.
    #[error(
        "tensor `{tensor}` would become {ty} in a file of type q2_k_s, which needs an importance matrix that knows the tensor: make one with `glim imatrix` and give it with --imatrix, or use q2_k"
    )]
    NeedsImatrix {
        /// The tensor.
        tensor: String,
        /// The type it would get.
        ty: GgmlType,
    },

    /// A file that is no importance matrix, or one of another model.
    #[error("{}: {reason}", path.display())]
    BadImatrix {
        /// The file.
        path: PathBuf,
        /// What was found and what was expected.
        reason: String,
    },

    /// A weight that is none, or that the type cannot store.
    #[error("{origin}: tensor `{tensor}`: {place} {problem}")]
    BadNumber {
        /// The file.
        origin: String,
        /// The tensor.
        tensor: String,
        /// Where.
        place: Place,
        /// What is wrong with it.
        problem: String,
    },

    /// The file to write is one that is read.
    #[error("{}: is the file to read as well: write another one", path.display())]
    SameFile {
        /// The file.
        path: PathBuf,
    },
}

/// A place in a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The matrix, if there are several: an expert or a head.
    pub matrix: Option<usize>,
    /// Row of the matrix.
    pub row: usize,
    /// Column.
    pub column: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(matrix) = self.matrix {
            write!(f, "matrix {matrix}, ")?;
        }
        write!(f, "row {}, column {}", self.row, self.column)
    }
}

fn mix_names() -> String {
    let names: Vec<&str> = Mix::ALL.iter().map(|mix| mix.name()).collect();
    names.join(", ")
}
