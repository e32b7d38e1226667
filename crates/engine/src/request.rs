//! What a caller asks for.

use std::time::Instant;

use glim_text::TokenId;

use crate::constraint::TokenConstraint;
use crate::error::EngineError;

/// Penalises what would continue a repetition (DRY): a token that extends a repeated run of `n ≥ allowed_length` tokens loses
/// `multiplier · base^(n − allowed_length)`.
#[derive(Debug, Clone, PartialEq)]
pub struct Dry {
    /// 0: off.
    pub multiplier: f32,
    /// At least 1.
    pub base: f32,
    /// Longest run that costs nothing.
    pub allowed_length: usize,
    /// Tokens looked back; 0: all.
    pub window: usize,
    /// Tokens that a run does not reach across.
    pub breakers: Vec<TokenId>,
}

/// Removes the likeliest tokens now and then (XTC): with `probability`, of the tokens above `threshold` only the least likely
/// stays.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Xtc {
    /// 0: off.
    pub probability: f32,
    /// Least probability of a token that counts as likely; above 0.5 nothing is ever removed.
    pub threshold: f32,
}

/// How tokens are drawn. Order: mask, logit bias, penalties, DRY, arg-max at temperature 0, temperature, top-k, top-p, min-p,
/// XTC, draw; the arithmetic from the temperature on is that of [`glim_plan::sample`].
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// 0: the likeliest token.
    pub temperature: f32,
    /// Draw among this many likeliest tokens; 0: all.
    pub top_k: u32,
    /// Draw among the likeliest tokens that together reach this probability; 1: all.
    pub top_p: f32,
    /// Cut tokens below this share of the likeliest one's probability; 0: none.
    pub min_p: f32,
    /// Equal seeds give equal streams.
    pub seed: u64,
    /// Index among the choices of one request: choices with one seed differ.
    pub choice: u32,
    /// Logits of tokens in prompt or answer are divided by this if positive, multiplied if negative; 1: off.
    pub repetition_penalty: f32,
    /// Taken from a token's logit for each time that the answer has it.
    pub frequency_penalty: f32,
    /// Taken from the logit of every token that the answer has.
    pub presence_penalty: f32,
    /// Added to logits; −∞ forbids a token.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Only these tokens may be drawn.
    pub allowed: Option<Vec<TokenId>>,
    /// These tokens are never drawn.
    pub forbidden: Vec<TokenId>,
    /// Stop tokens are not drawn before the answer has this many tokens.
    pub min_tokens: usize,
    /// Repetitions.
    pub dry: Option<Dry>,
    /// Likely tokens.
    pub xtc: Option<Xtc>,
    /// Report the log-probability of each token, and of this many likeliest ones, from the raw logits.
    pub logprobs: Option<usize>,
}

impl SamplingParams {
    /// Always the likeliest token.
    pub const GREEDY: Self = Self {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        seed: 0,
        choice: 0,
        repetition_penalty: 1.0,
        frequency_penalty: 0.0,
        presence_penalty: 0.0,
        logit_bias: Vec::new(),
        allowed: None,
        forbidden: Vec::new(),
        min_tokens: 0,
        dry: None,
        xtc: None,
        logprobs: None,
    };

    /// Whether a logit depends on how often its token was there.
    pub(crate) fn penalises(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.frequency_penalty != 0.0
            || self.presence_penalty != 0.0
    }

    /// Whether the logits have to come to the host: for what [`glim_plan::Op::Sample`] does not do itself.
    pub(crate) fn needs_logits(&self) -> bool {
        let has_dry = self.dry.as_ref().is_some_and(|d| d.multiplier != 0.0);
        self.penalises()
            || has_dry
            || !self.logit_bias.is_empty()
            || self.xtc.is_some_and(|x| x.probability > 0.0)
            || self.logprobs.is_some()
    }

    /// Refuses values without a meaning.
    pub(crate) fn check(&self) -> Result<(), EngineError> {
        let rule = |name, found: f32, ok: bool, expected| match ok {
            true => Ok(()),
            false => Err(EngineError::BadSampling {
                name,
                found,
                expected,
            }),
        };
        let finite = |x: f32| x.is_finite();
        let t = self.temperature;
        rule(
            "temperature",
            t,
            t >= 0.0 && finite(t),
            "a finite number, 0 or more",
        )?;
        let p = self.top_p;
        rule("top_p", p, p > 0.0 && p <= 1.0, "above 0, at most 1")?;
        rule(
            "min_p",
            self.min_p,
            (0.0..=1.0).contains(&self.min_p),
            "0 to 1",
        )?;
        let r = self.repetition_penalty;
        rule(
            "repetition_penalty",
            r,
            r > 0.0 && finite(r),
            "a finite number above 0",
        )?;
        for (name, x) in [
            ("frequency_penalty", self.frequency_penalty),
            ("presence_penalty", self.presence_penalty),
        ] {
            rule(name, x, finite(x), "a finite number")?;
        }
        for (_, bias) in &self.logit_bias {
            let ok = !bias.is_nan() && *bias != f32::INFINITY;
            rule(
                "logit_bias",
                *bias,
                ok,
                "a finite number, or minus infinity",
            )?;
        }
        if let Some(dry) = &self.dry {
            let m = dry.multiplier;
            rule(
                "dry multiplier",
                m,
                m >= 0.0 && finite(m),
                "a finite number, 0 or more",
            )?;
            let b = dry.base;
            rule(
                "dry base",
                b,
                b >= 1.0 && finite(b),
                "a finite number, 1 or more",
            )?;
        }
        if let Some(xtc) = self.xtc {
            let unit = 0.0..=1.0;
            rule(
                "xtc probability",
                xtc.probability,
                unit.contains(&xtc.probability),
                "0 to 1",
            )?;
            rule(
                "xtc threshold",
                xtc.threshold,
                unit.contains(&xtc.threshold),
                "0 to 1",
            )?;
        }
        Ok(())
    }
}

/// A generation to be run.
#[derive(Debug, Clone)]
pub struct GenerateRequest {
    /// Prompt.
    pub prompt: Vec<TokenId>,
    /// How to draw.
    pub sampling: SamplingParams,
    /// Tokens to generate at most; `None`: up to the end of the context.
    pub max_tokens: Option<usize>,
    /// Tokens that end the generation and are not part of it.
    pub stop_tokens: Vec<TokenId>,
    /// Ids from here on are never drawn: rows of the head beyond the tokenizer's vocabulary. `None`: all may be drawn.
    pub vocab_limit: Option<usize>,
    /// Smaller runs sooner, and may take the blocks of what runs; equal ones by arrival.
    pub priority: i32,
    /// Once it has passed the request is over, in whatever state: [`FinishReason::Deadline`](crate::FinishReason::Deadline).
    pub deadline: Option<Instant>,
    /// Cached rows are shared with requests of an equal salt only.
    pub cache_salt: Option<String>,
    /// Binds what may be drawn.
    pub constraint: Option<Box<dyn TokenConstraint>>,
}

impl GenerateRequest {
    /// Greedy, without stop tokens, up to the end of the context.
    pub fn new(prompt: Vec<TokenId>) -> Self {
        Self {
            prompt,
            sampling: SamplingParams::GREEDY,
            max_tokens: None,
            stop_tokens: Vec::new(),
            vocab_limit: None,
            priority: 0,
            deadline: None,
            cache_salt: None,
            constraint: None,
        }
    }
}
