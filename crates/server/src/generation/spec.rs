//! What a generation is: the engine's request, and how its tokens are read. Every protocol ends up here.

use glim_engine::GenerateRequest;
use glim_text::TokenId;

use super::choice::Reading;

/// What is asked.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    /// Names it in the log and in the response.
    pub(crate) id: String,
    /// The name by which the model was called, or its own.
    pub(crate) model: String,
    /// What each prompt asks of the engine, one at least; the index of the choice is set later.
    pub(crate) prompts: Vec<GenerateRequest>,
    /// Answers to each prompt. Choice `c` is answer `c % n` to prompt `c / n`.
    pub(crate) n: u32,
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

impl Spec {
    /// Answers in all.
    pub(crate) fn choices(&self) -> u32 {
        self.n * self.prompts.len() as u32
    }

    /// Tokens of all prompts.
    pub(crate) fn prompt_tokens(&self) -> usize {
        self.prompts.iter().map(|request| request.prompt.len()).sum()
    }

    /// Tokens of the prompt that is answered; of several, the first.
    pub(crate) fn prompt(&self) -> &[TokenId] {
        self.prompts
            .first()
            .map_or(&[], |request| request.prompt.as_slice())
    }

    /// Whether log-probabilities are part of the response.
    pub(crate) fn logprobs(&self) -> bool {
        let wants = |request: &GenerateRequest| request.sampling.logprobs.is_some();
        self.prompts.first().is_some_and(wants)
    }
}
