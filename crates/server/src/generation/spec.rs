//! What a generation is: the engine's request, and how its tokens are read. Every protocol ends up here.

use glim_engine::GenerateRequest;

use super::choice::Reading;

/// What is asked.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    /// Names it in the log and in the response.
    pub(crate) id: String,
    /// The name by which the model was called, or its own.
    pub(crate) model: String,
    /// Answers to give.
    pub(crate) n: u32,
    /// What each of them asks of the engine; the index of the choice is set later.
    pub(crate) request: GenerateRequest,
    pub(crate) reading: Reading,
    /// The prompt as rendered, if it was asked for.
    pub(crate) prompt_text: Option<String>,
    /// Text that the answer begins with.
    pub(crate) echo: Option<String>,
    /// Names of tokens in log-probabilities are `token_id:N`.
    pub(crate) tokens_as_ids: bool,
    /// Token ids are part of the response.
    pub(crate) return_token_ids: bool,
    /// Timings are part of the response.
    pub(crate) timings: bool,
}
