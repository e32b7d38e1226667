//! Measuring a model through the steps that serve it: perplexity of a text, distance to a reference.

mod against;
pub(crate) mod distance;
mod divergence;
mod hidden;
pub(crate) mod perplexity;
mod reference;

pub use against::against;
pub use distance::{Bounds, Measure, PromptReport};
pub use divergence::{Divergence, divergence};
pub use hidden::{HiddenStates, hidden_states, relative_difference};
pub use perplexity::{Perplexity, perplexity};
pub use reference::{PromptReference, Reference};
