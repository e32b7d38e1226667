//! Whether the model makes sense of a text.
//!
//! The measure is bits a byte: the negative log-likelihood of the text's tokens, but the first, over the bytes that they spell. It does
//! not depend on the tokenizer, so that one bound fits all models of a class. Weights that are all well-formed but in the wrong place
//! (experts exchanged, keys for values, a matrix untransposed) leave a model that predicts no better than letter frequencies do, about
//! four bits a byte, and often worse.

use glim_plan::StepResults;
use glim_text::{Special, TokenId, Tokenizer};

use super::{Check, Level, Progress, Timer};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::eval::perplexity::Likelihood;
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
/// tokens.
pub fn sense(engine: &mut Engine, tokenizer: &Tokenizer, progress: Progress<'_>) -> Check {
    let timer = Timer::start(Level::Sense, "text");
    let measured = measure_all(engine, tokenizer, progress);
    let (found, tokens) = match measured {
        Ok(measured) => measured,
        Err(error) => {
            let detail = format!("the texts cannot be measured: {error}");
            return timer.failed("", 0, detail, None);
        }
    };
    let say = |(text, bits): (&SenseText, &f64)| {
        format!("{} {bits:.3} bits a byte (bound {})", text.name, text.bound)
    };
    let said: Vec<String> = SENSE_TEXTS.iter().zip(&found).map(say).collect();
    let (said, bytes) = (said.join(", "), engine.budget().weights);
    let covered = format!("{tokens} tokens of {} texts", SENSE_TEXTS.len());
    let within = |(text, bits): (&SenseText, &f64)| *bits <= text.bound;
    if SENSE_TEXTS.iter().zip(&found).any(within) {
        return timer.passed(covered, bytes, said);
    }
    let detail = format!(
        "{said}: the model makes no sense of either. Weights are in the wrong place or misread (experts exchanged, keys and values swapped, a matrix untransposed), or the model was never trained"
    );
    timer.failed(covered, bytes, detail, None)
}

/// Bits a byte of each text, and the tokens of all.
fn measure_all(
    engine: &mut Engine,
    tokenizer: &Tokenizer,
    progress: Progress<'_>,
) -> Result<(Vec<f64>, usize), EngineError> {
    let ids = |text: &SenseText| {
        let ids = tokenizer.encode(text.text, Special::Text);
        let mut ids = ids.map_err(|error| EngineError::BadReference {
            name: text.name.into(),
            reason: error.to_string(),
        })?;
        ids.truncate(engine.context());
        match ids.len() {
            0 | 1 => Err(EngineError::TextTooShort {
                found: ids.len(),
                expected: 2,
            }),
            _ => Ok(ids),
        }
    };
    let texts = SENSE_TEXTS.iter().map(ids).collect::<Result<Vec<_>, _>>()?;
    let all: usize = texts.iter().map(Vec::len).sum();
    let mut done = 0;
    let mut found = Vec::with_capacity(texts.len());
    for ids in &texts {
        found.push(measure(engine, tokenizer, ids, &mut |tokens| {
            done += tokens;
            progress(done as u64, all as u64);
        })?);
    }
    // The first of each is not predicted.
    Ok((found, all - texts.len()))
}

/// Bits a byte of all tokens but the first. `progress` is told tokens as they are done.
fn measure(
    engine: &mut Engine,
    tokenizer: &Tokenizer,
    ids: &[TokenId],
    progress: &mut dyn FnMut(usize),
) -> Result<f64, EngineError> {
    let vocab = engine.inventory().config().vocab_size;
    let length = |id: &TokenId| tokenizer.token_bytes(*id).map_or(0, <[u8]>::len);
    let bytes: usize = ids.iter().skip(1).map(length).sum();
    let mut text = Likelihood::default();
    let mut tracer = Tracer::new(engine, Vec::new(), false)?;
    let each = |first: usize, n: usize, results: &StepResults| {
        text.add(results, vocab, ids, first..first + n);
        progress(n);
    };
    tracer.run(engine, ids, |_| 0, &ForcedChoices::new(), each)?;
    Ok(text.nats / std::f64::consts::LN_2 / bytes.max(1) as f64)
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
