//! Why a checkpoint cannot be written as a GGUF file or a Hugging Face folder.

use std::io;
use std::path::PathBuf;

use glim_gguf::GgufError;
use glim_quant::QuantError;

use crate::error::ModelError;

/// Why an export failed. No file is left behind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The checkpoint cannot be read.
    #[error(transparent)]
    Model(#[from] ModelError),

    /// The file cannot be written.
    #[error(transparent)]
    Gguf(#[from] GgufError),

    /// Whoever watched the progress ended the job.
    #[error("stopped before the end; nothing was written")]
    Stopped,

    /// The folder to write is there already, with something in it, or is a file.
    #[error("{}: exists already; name a folder that does not exist or is empty", path.display())]
    Occupied {
        /// The folder.
        path: PathBuf,
    },

    /// A file or folder cannot be written.
    #[error("{}: cannot {action}: {source}", path.display())]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },

    /// The model has a trait that the format has no key for: a reader would assume the opposite.
    #[error(
        "{origin}: the model has {what}, which {format} has no key for, so it cannot be converted"
    )]
    NoKey {
        /// File or folder.
        origin: String,
        /// The trait.
        what: &'static str,
        /// The format.
        format: &'static str,
    },

    /// Weights that the chosen type cannot store.
    #[error(
        "{origin}: tensor `{tensor}`, counted from element {first}: {source}; convert to another type, such as bf16"
    )]
    Encode {
        /// File or folder.
        origin: String,
        /// The tensor, by its name in what is written.
        tensor: String,
        /// Where in the tensor the numbers in `source` begin to count.
        first: u64,
        /// What is wrong.
        #[source]
        source: QuantError,
    },

    /// A finite weight that F16 would turn into an infinity.
    #[error(
        "{origin}: element {element} of tensor `{tensor}` is {found}, and the largest number of F16 is 65504; convert to bf16"
    )]
    BeyondF16 {
        /// File or folder.
        origin: String,
        /// The tensor, by its name in what is written.
        tensor: String,
        /// The element, in row-major order.
        element: u64,
        /// Its value.
        found: f32,
    },
}
