//! Log-probabilities as the OpenAI protocols print them. They are those of the raw logits: before bias, penalties and temperature.

use glim_text::TokenId;
use serde::Serialize;
use utoipa::ToSchema;

use crate::generation::update::TokenLogprob;
use crate::model::Model;

/// A token at a place of the answer.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct LogprobJson {
    #[serde(flatten)]
    token: TokenJson,
    /// The likeliest tokens here, likeliest first.
    top_logprobs: Vec<TokenJson>,
}

/// A token and its log-probability, in nats.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct TokenJson {
    /// Its text; what is no whole character is U+FFFD here.
    token: String,
    logprob: f32,
    /// Its bytes.
    bytes: Vec<u8>,
}

/// How tokens are named.
#[derive(Clone, Copy)]
pub(crate) struct Names<'a> {
    pub(crate) model: &'a Model,
    /// `token_id:N` instead of the text.
    pub(crate) as_ids: bool,
}

/// Least log-probability that is printed: JSON has no infinity, and clients expect a number.
const LEAST: f32 = -9999.0;

impl Names<'_> {
    /// What a token is called.
    pub(crate) fn name(self, id: TokenId) -> (String, Vec<u8>) {
        let (text, bytes) = self.model.token(id);
        match self.as_ids {
            true => (format!("token_id:{}", id.0), bytes),
            false => (text, bytes),
        }
    }

    fn token(self, id: TokenId, logprob: f32) -> TokenJson {
        let (token, bytes) = self.name(id);
        TokenJson {
            token,
            logprob: finite(logprob),
            bytes,
        }
    }
}

/// A log-probability that JSON can hold.
pub(crate) fn finite(logprob: f32) -> f32 {
    logprob.max(LEAST)
}

/// In the chat protocol's form.
pub(crate) fn chat(logprobs: &[TokenLogprob], names: Names<'_>) -> Vec<LogprobJson> {
    let one = |logprob: &TokenLogprob| LogprobJson {
        token: names.token(logprob.token, logprob.logprob),
        top_logprobs: logprob
            .top
            .iter()
            .map(|(id, logprob)| names.token(*id, *logprob))
            .collect(),
    };
    logprobs.iter().map(one).collect()
}
