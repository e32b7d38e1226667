//! What binds the tokens of one request: a grammar, a schema, a choice.
//!
//! The engine knows tokens and masks, not text: a [`TokenConstraint`] clears the bits of what may not come next, and is told what
//! was drawn. It is asked before every draw and told after it, wherever the draw happens (in the step, or from logits on the
//! host). A preemption does not show: tokens that are computed a second time were accepted already.

use std::fmt::Debug;

use glim_text::TokenId;
use thiserror::Error;

/// Binds what a request may draw.
pub trait TokenConstraint: Send + Sync + Debug {
    /// Clears the bits of tokens that may not come next (bit `id % 32` of word `id / 32`; 1 = allowed). What is not bound at
    /// present leaves the mask as it is.
    ///
    /// # Errors
    /// If it cannot say; the request then ends, alone.
    fn restrict(&mut self, mask: &mut [u32]) -> Result<(), ConstraintError>;

    /// A token was drawn; stop tokens count too.
    ///
    /// # Errors
    /// If the token may not come here; the request then ends, alone.
    fn accept(&mut self, token: TokenId) -> Result<(), ConstraintError>;

    /// The same constraint in the same state.
    fn clone_box(&self) -> Box<dyn TokenConstraint>;
}

impl Clone for Box<dyn TokenConstraint> {
    fn clone(&self) -> Self {
        self.clone_box()
    }
}

/// Why a constraint cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{reason}")]
pub struct ConstraintError {
    /// One sentence.
    pub reason: String,
}
