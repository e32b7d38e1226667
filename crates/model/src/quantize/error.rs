//! Why a file cannot be quantised.

use glim_gguf::GgufError;

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
}

fn mix_names() -> String {
    let names: Vec<&str> = Mix::ALL.iter().map(|mix| mix.name()).collect();
    names.join(", ")
}
