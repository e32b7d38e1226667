//! Perplexity: how surprised the model is by a text.
//!
//! The ids are cut into consecutive windows of `context` ids, the last partial window is dropped; in each window every id but
//! the first is predicted from those before it in the window. Perplexity is `exp(mean negative log-likelihood)`.

use std::ops::Range;

use glim_model::names;
use glim_plan::StepResults;
use glim_text::TokenId;

use crate::engine::Engine;
use crate::error::EngineError;
use crate::trace::{ForcedChoices, Tracer};

/// A measured text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Perplexity {
    /// `exp` of the mean negative log-likelihood in nats.
    pub perplexity: f64,
    /// Tokens that were predicted.
    pub tokens: usize,
    /// Window, in tokens.
    pub context: usize,
}

/// Measures a text. `progress` gets the windows done, the windows in all, and the perplexity so far.
///
/// # Errors
/// If the text is shorter than a window, the window is shorter than two tokens, or a step fails.
pub fn perplexity(
    engine: &mut Engine,
    ids: &[TokenId],
    context: usize,
    mut progress: impl FnMut(usize, usize, f64),
) -> Result<Perplexity, EngineError> {
    let windows = ids.len() / context.max(1);
    if windows == 0 || context < 2 {
        return Err(EngineError::TextTooShort {
            found: ids.len(),
            expected: context.max(2),
        });
    }
    let vocab = engine.inventory().config().vocab_size;
    let mut tracer = Tracer::new(engine, Vec::new(), false)?;
    let mut text = Likelihood::default();
    for (w, window) in ids.chunks_exact(context).enumerate() {
        tracer.run(
            engine,
            window,
            |_| 0,
            &ForcedChoices::new(),
            |first, n, results| text.add(results, vocab, window, first..first + n),
        )?;
        progress(w + 1, windows, text.perplexity());
    }
    Ok(Perplexity {
        perplexity: text.perplexity(),
        tokens: text.tokens,
        context,
    })
}

/// How likely a model finds the tokens of a text, summed as its rows come.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Likelihood {
    /// Negative log-likelihood of the tokens that were predicted, in nats.
    pub(crate) nats: f64,
    /// How many these are.
    pub(crate) tokens: usize,
}

impl Likelihood {
    /// Adds what the rows at `positions` of a window say about the tokens after them.
    pub(crate) fn add(
        &mut self,
        results: &StepResults,
        vocab: usize,
        window: &[TokenId],
        positions: Range<usize>,
    ) {
        let logits = results.f32s(names::LOGITS).unwrap_or_default();
        for (position, row) in positions.zip(logits.chunks_exact(vocab)) {
            if let Some(next) = window.get(position + 1) {
                self.nats -= log_probability(row, next.0 as usize);
                self.tokens += 1;
            }
        }
    }

    /// `exp` of the mean.
    pub(crate) fn perplexity(&self) -> f64 {
        (self.nats / self.tokens as f64).exp()
    }
}

/// `ln softmax(logits)[id]`, summed in f64.
pub(crate) fn log_probability(logits: &[f32], id: usize) -> f64 {
    f64::from(logits[id]) - log_sum_exp(logits)
}

/// `ln Σ exp(logits)` in f64.
pub(super) fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    max + logits
        .iter()
        .map(|l| (f64::from(*l) - max).exp())
        .sum::<f64>()
        .ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_probabilities_sum_to_one_also_for_large_logits() {
        let logits = [1000.0f32, 999.0, 998.5, -1000.0];
        let sum: f64 = (0..4).map(|id| log_probability(&logits, id).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-12, "{sum}");
    }
}
