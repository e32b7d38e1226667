//! Whether the model makes sense of a text.
//!
//! The measure is bits a byte: the negative log-likelihood of the text's tokens, but the first, over the bytes that they spell. It does
//! not depend on the tokenizer, so that one bound fits all models of a class. Weights that are all well-formed but in the wrong place
//! (experts exchanged, keys for values, a matrix untransposed) leave a model that predicts no better than letter frequencies do, about
//! four bits a byte, and often worse.

use glim_model::names;
use glim_text::{Special, TokenId, Tokenizer};

use super::{Check, Level, Progress, Timer};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::eval::perplexity::log_probability;
use crate::trace::{ForcedChoices, Tracer};

/// A text, and what a sound model needs for it at most.
#[derive(Debug, Clone, Copy)]
pub struct SenseText {
    /// What it is called.
    pub name: &'static str,
    /// The text.
    pub text: &'static str,
    /// Bits a byte.
    pub bound: f64,
}

/// The built-in texts. A model passes with one of them.
///
/// `prose`: English and code, written for this purpose, so that nobody has learned it by heart. GPT-2, of 124 million parameters, needs 1.0 to
/// 1.2 bits a byte of such text, and models of the class served here need less than 0.9; a model of two or three bits a weight
/// some tenths more. The bound leaves room for a short text's scatter.
///
/// `stories`: what the built-in model was trained to continue (its held-out text). It needs 0.161 bits a byte. The bound is close above,
/// so that subtle faults show: one matrix untransposed in each layer costs this model 0.07.
pub const SENSE_TEXTS: [SenseText; 2] = [
    SenseText {
        name: "prose",
        text: include_str!("sense/prose.txt"),
        bound: 1.5,
    },
    SenseText {
        name: "stories",
        text: include_str!("sense/stories.txt"),
        bound: 0.2,
    },
];

/// Checks `text`: the likelihood of the built-in texts, as far as the engine's context goes. The engine must be idle. `progress` counts
/// texts.
pub fn sense(engine: &mut Engine, tokenizer: &Tokenizer, progress: Progress<'_>) -> Check {
    let timer = Timer::start(Level::Sense, "text");
    let (mut said, mut tokens, mut passed) = (Vec::new(), 0, false);
    for (n, text) in SENSE_TEXTS.iter().enumerate() {
        match measure(engine, tokenizer, text.text) {
            Ok(found) => {
                passed |= found.bits_per_byte <= text.bound;
                tokens += found.tokens;
                said.push(format!(
                    "{} {:.3} bits a byte (bound {})",
                    text.name, found.bits_per_byte, text.bound
                ));
            }
            Err(error) => {
                let detail = format!("the text {} cannot be measured: {error}", text.name);
                return timer.failed("", 0, detail, None);
            }
        }
        progress(n as u64 + 1, SENSE_TEXTS.len() as u64);
    }
    let covered = format!("{tokens} tokens of {} texts", SENSE_TEXTS.len());
    let (said, bytes) = (said.join(", "), engine.budget().weights);
    if passed {
        return timer.passed(covered, bytes, said);
    }
    let detail = format!(
        "{said}: the model makes no sense of either. Weights are in the wrong place or misread (experts exchanged, keys and values swapped, a matrix untransposed), or the model was never trained"
    );
    timer.failed(covered, bytes, detail, None)
}

struct Measured {
    bits_per_byte: f64,
    tokens: usize,
}

fn measure(
    engine: &mut Engine,
    tokenizer: &Tokenizer,
    text: &str,
) -> Result<Measured, EngineError> {
    let vocab = engine.inventory().config().vocab_size;
    let unreadable = |error: glim_text::TextError| EngineError::BadReference {
        name: "text".into(),
        reason: error.to_string(),
    };
    let mut ids = tokenizer.encode(text, Special::Text).map_err(unreadable)?;
    ids.truncate(engine.context());
    if ids.len() < 2 {
        return Err(EngineError::TextTooShort {
            found: ids.len(),
            expected: 2,
        });
    }
    let length = |id: &TokenId| tokenizer.token_bytes(*id).map_or(0, <[u8]>::len);
    let bytes: usize = ids[1..].iter().map(length).sum();
    let mut nats = 0.0;
    let mut tracer = Tracer::new(engine, Vec::new(), false)?;
    tracer.run(
        engine,
        &ids,
        |_| 0,
        &ForcedChoices::new(),
        |first, n, results| {
            let logits = results.f32s(names::LOGITS).unwrap_or_default();
            for (i, row) in logits.chunks_exact(vocab).take(n).enumerate() {
                if let Some(next) = ids.get(first + i + 1) {
                    nats -= log_probability(row, next.0 as usize);
                }
            }
        },
    )?;
    Ok(Measured {
        bits_per_byte: nats / std::f64::consts::LN_2 / bytes.max(1) as f64,
        tokens: ids.len() - 1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_texts_are_plain_and_long_enough_to_mean_something() {
        for text in SENSE_TEXTS {
            assert!((1500..12_000).contains(&text.text.len()), "{}", text.name);
            assert!(
                text.text.is_ascii() && !text.text.contains('\r'),
                "{}",
                text.name
            );
        }
    }
}
