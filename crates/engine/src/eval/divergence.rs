//! How far two engines are apart on a text: what fast math costs on a file, say.
//!
//! Both read the same windows (as [`super::perplexity`] cuts them), and every row's distributions are compared.

use glim_model::names;
use glim_text::TokenId;

use super::distance::{arg_max, kl};
use super::perplexity::log_probability;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::trace::{ForcedChoices, Tracer};

/// Two engines, compared.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Divergence {
    /// Mean over the rows of `KL(first ‖ second)`, in nats.
    pub mean_kl: f64,
    /// Largest of a row.
    pub max_kl: f64,
    /// Share of rows whose likeliest token is the same.
    pub top1_agreement: f64,
    /// Perplexity of the first.
    pub perplexity: f64,
    /// Perplexity of the second.
    pub perplexity_other: f64,
    /// Rows compared.
    pub rows: usize,
}

/// Compares two engines of one vocabulary over at most `windows` windows of a text. `progress` gets the windows done and the
/// windows in all.
///
/// # Errors
/// As [`super::perplexity`].
pub fn divergence(
    first: &mut Engine,
    second: &mut Engine,
    ids: &[TokenId],
    context: usize,
    windows: usize,
    mut progress: impl FnMut(usize, usize),
) -> Result<Divergence, EngineError> {
    let windows = windows.min(ids.len() / context.max(1));
    if windows == 0 || context < 2 {
        return Err(EngineError::TextTooShort {
            found: ids.len(),
            expected: context.max(2),
        });
    }
    let vocab = first.inventory().config().vocab_size;
    let mut tracers = [
        Tracer::new(first, Vec::new(), false)?,
        Tracer::new(second, Vec::new(), false)?,
    ];
    let mut sum = Divergence {
        mean_kl: 0.0,
        max_kl: 0.0,
        top1_agreement: 0.0,
        perplexity: 0.0,
        perplexity_other: 0.0,
        rows: 0,
    };
    let mut predicted = 0;
    for (w, window) in ids.chunks_exact(context).take(windows).enumerate() {
        let mut logits = [Vec::new(), Vec::new()];
        for ((tracer, engine), out) in tracers
            .iter_mut()
            .zip([&mut *first, &mut *second])
            .zip(&mut logits)
        {
            tracer.run(
                engine,
                window,
                |_| 0,
                &ForcedChoices::new(),
                |_, n, results| {
                    let rows = results.f32s(names::LOGITS).unwrap_or_default();
                    out.extend_from_slice(&rows[..(n * vocab).min(rows.len())]);
                },
            )?;
        }
        let [a, b] = &logits;
        for (i, (a, b)) in a.chunks_exact(vocab).zip(b.chunks_exact(vocab)).enumerate() {
            let row = kl(a, b);
            sum.mean_kl += row;
            sum.max_kl = sum.max_kl.max(row);
            sum.top1_agreement += f64::from(u8::from(arg_max(a) == arg_max(b)));
            sum.rows += 1;
            if let Some(next) = window.get(i + 1) {
                sum.perplexity -= log_probability(a, next.0 as usize);
                sum.perplexity_other -= log_probability(b, next.0 as usize);
                predicted += 1;
            }
        }
        progress(w + 1, windows);
    }
    let rows = sum.rows as f64;
    sum.mean_kl /= rows;
    sum.top1_agreement /= rows;
    sum.perplexity = (sum.perplexity / f64::from(predicted)).exp();
    sum.perplexity_other = (sum.perplexity_other / f64::from(predicted)).exp();
    Ok(sum)
}
