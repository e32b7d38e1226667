//! The model inside the binary: tiny-glm5, really trained, so that the first command needs no download.

use glim_gguf::Gguf;

use crate::exit::Failure;

/// What messages call it.
pub(crate) const NAME: &str = "tiny-glm5 (built in)";
/// What a server calls it.
pub(crate) const SHORT_NAME: &str = "tiny-glm5";

#[cfg(feature = "builtin-model")]
const BYTES: &[u8] = include_bytes!("../../../assets/tiny-glm5/tiny-glm5-q8_0.gguf");

/// Opens the built-in model.
#[cfg(feature = "builtin-model")]
pub(crate) fn open() -> Result<Gguf, Failure> {
    Ok(Gguf::from_static(NAME, BYTES)?)
}

/// Says that there is none.
#[cfg(not(feature = "builtin-model"))]
pub(crate) fn open() -> Result<Gguf, Failure> {
    Err(Failure::usage("no MODEL is named, and this glim was built without its built-in model")
        .hint("name a .gguf file or a Hugging Face folder, or build with the feature `builtin-model`"))
}
