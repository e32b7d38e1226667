//! Sampling fields of a request, checked, in the engine's form.
//!
//! What counts: the request's value, then the server's default, then the API's.

use glim_engine::{Dry, GenerateRequest, SamplingParams, Xtc};
use glim_text::{TokenId, Tokenizer};

use crate::api::fields::SamplingFields;
use crate::config::SamplingDefaults;
use crate::error::ApiError;

/// Most answers to one request.
pub(crate) const MAX_CHOICES: i64 = 128;
/// Most stop strings.
const MAX_STOPS: usize = 64;
/// Longest stop string, in bytes.
const MAX_STOP_BYTES: usize = 1024;
/// Most of `top_logprobs`.
pub(crate) const MAX_TOP_LOGPROBS: i64 = 20;
/// Longest salt, in characters.
const MAX_SALT: usize = 1024;
/// Below this the likeliest token is taken: the quotient would overflow.
const LEAST_TEMPERATURE: f64 = 1e-5;
/// Defaults of DRY, as in llama.cpp.
const DRY_BASE: f64 = 1.75;
const DRY_ALLOWED_LENGTH: i64 = 2;
/// Default of XTC, as in llama.cpp.
const XTC_THRESHOLD: f64 = 0.1;

/// What the engine needs to know of a model to draw its tokens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Draws<'a> {
    pub(crate) tokenizer: &'a Tokenizer,
    /// Rows of the head.
    pub(crate) vocab_size: usize,
    pub(crate) defaults: &'a SamplingDefaults,
}

/// Refuses a number outside its range, by name.
fn within(
    param: &'static str,
    value: Option<f64>,
    expected: &'static str,
    is_right: impl Fn(f64) -> bool,
) -> Result<Option<f32>, ApiError> {
    match value {
        Some(found) if !(found.is_finite() && is_right(found)) => Err(ApiError::invalid(
            param,
            format!("{param} is {found}: expected {expected}"),
        )),
        value => Ok(value.map(|value| value as f32)),
    }
}

/// Refuses a whole number outside its range, by name.
pub(crate) fn whole(
    param: &'static str,
    value: Option<i64>,
    range: std::ops::RangeInclusive<i64>,
) -> Result<Option<i64>, ApiError> {
    match value {
        Some(found) if !range.contains(&found) => {
            let expected = match *range.end() {
                i64::MAX => format!("{} or more", range.start()),
                end => format!("{} to {end}", range.start()),
            };
            Err(ApiError::invalid(
                param,
                format!("{param} is {found}: expected {expected}"),
            ))
        }
        value => Ok(value),
    }
}

/// Tokens of an answer, by whatever name the protocol has for them.
pub(crate) fn max_tokens(
    param: &'static str,
    value: Option<i64>,
    defaults: &SamplingDefaults,
) -> Result<Option<usize>, ApiError> {
    let value = whole(param, value, 1..=i64::MAX)?;
    Ok(value
        .map(|value| usize::try_from(value).unwrap_or(usize::MAX))
        .or(defaults.max_tokens))
}

impl SamplingFields {
    /// Answers to give.
    pub(crate) fn choices(&self) -> Result<u32, ApiError> {
        Ok(whole("n", self.n, 1..=MAX_CHOICES)?.unwrap_or(1) as u32)
    }

    /// Stop strings, checked.
    pub(crate) fn stop_strings(&self) -> Result<Vec<String>, ApiError> {
        let stops = self.stop.clone().map_or_else(Vec::new, |stop| stop.into_vec());
        let fits = |stop: &String| (1..=MAX_STOP_BYTES).contains(&stop.len());
        if stops.len() > MAX_STOPS || !stops.iter().all(fits) {
            return Err(ApiError::invalid(
                "stop",
                format!("stop holds {} strings: expected at most {MAX_STOPS}, each of 1 to {MAX_STOP_BYTES} bytes", stops.len()),
            ));
        }
        Ok(stops)
    }

    /// The caller's own stop tokens.
    pub(crate) fn own_stop_tokens(&self, vocab_size: usize) -> Result<Vec<TokenId>, ApiError> {
        let tokens = self.stop_token_ids.iter().flatten();
        let known = |id: &u32| match (*id as usize) < vocab_size {
            true => Ok(TokenId(*id)),
            false => Err(outside("stop_token_ids", *id, vocab_size)),
        };
        tokens.map(known).collect()
    }

    /// The engine's request for this prompt.
    ///
    /// # Errors
    /// A parameter outside its range, by name.
    pub(crate) fn request(
        &self,
        prompt: Vec<TokenId>,
        max_tokens: Option<usize>,
        top_logprobs: Option<usize>,
        draws: &Draws<'_>,
    ) -> Result<GenerateRequest, ApiError> {
        let vocab_size = draws.vocab_size;
        let mut stop_tokens = self.own_stop_tokens(vocab_size)?;
        if self.ignore_eos != Some(true) {
            stop_tokens.extend(draws.tokenizer.stop_ids());
        }
        let min_tokens = whole("min_tokens", self.min_tokens, 0..=i64::MAX)?.unwrap_or(0);
        let min_tokens = usize::try_from(min_tokens).unwrap_or(usize::MAX);
        if max_tokens.is_some_and(|max| min_tokens > max) {
            return Err(ApiError::invalid(
                "min_tokens",
                format!("min_tokens is {min_tokens}: expected no more than max_tokens"),
            ));
        }
        let priority = i64::from(i32::MIN)..=i64::from(i32::MAX);
        let priority = whole("priority", self.priority, priority)?.unwrap_or(0) as i32;
        let salt = self.cache_salt.as_ref().map(|salt| salt.chars().count());
        if salt.is_some_and(|length| !(1..=MAX_SALT).contains(&length)) {
            return Err(ApiError::invalid(
                "cache_salt",
                format!("cache_salt is empty or too long: expected 1 to {MAX_SALT} characters"),
            ));
        }
        Ok(GenerateRequest {
            sampling: SamplingParams {
                min_tokens,
                logprobs: top_logprobs,
                ..self.params(draws)?
            },
            max_tokens,
            stop_tokens,
            vocab_limit: Some(draws.tokenizer.vocab_size()),
            priority,
            cache_salt: self.cache_salt.clone(),
            ..GenerateRequest::new(prompt)
        })
    }

    fn params(&self, draws: &Draws<'_>) -> Result<SamplingParams, ApiError> {
        let defaults = draws.defaults;
        let temperature = within(
            "temperature",
            self.temperature,
            "0 to 2",
            |t| (0.0..=2.0).contains(&t),
        )?;
        let temperature = match self.temperature {
            Some(t) if t < LEAST_TEMPERATURE => Some(0.0),
            _ => temperature,
        };
        let top_p = within("top_p", self.top_p, "above 0, at most 1", |p| {
            p > 0.0 && p <= 1.0
        })?;
        // What is above 0 must stay so.
        let top_p = top_p.map(|p| p.max(f32::MIN_POSITIVE));
        let top_k = whole("top_k", self.top_k, -1..=i64::from(u32::MAX))?;
        let top_k = top_k.map(|k| u32::try_from(k).unwrap_or(0));
        let unit = |p: f64| (0.0..=1.0).contains(&p);
        let min_p = within("min_p", self.min_p, "0 to 1", unit)?;
        let repetition = within(
            "repetition_penalty",
            self.repetition_penalty,
            "above 0, at most 100",
            |r| r > 0.0 && r <= 100.0,
        )?;
        let repetition = repetition.map(|r| r.max(f32::MIN_POSITIVE));
        let two = |x: f64| (-2.0..=2.0).contains(&x);
        let frequency = within("frequency_penalty", self.frequency_penalty, "-2 to 2", two)?;
        let presence = within("presence_penalty", self.presence_penalty, "-2 to 2", two)?;
        Ok(SamplingParams {
            temperature: temperature.or(defaults.temperature).unwrap_or(1.0),
            top_p: top_p.or(defaults.top_p).unwrap_or(1.0),
            top_k: top_k.or(defaults.top_k).unwrap_or(0),
            min_p: min_p.or(defaults.min_p).unwrap_or(0.0),
            repetition_penalty: repetition.or(defaults.repetition_penalty).unwrap_or(1.0),
            frequency_penalty: frequency.unwrap_or(0.0),
            presence_penalty: presence.unwrap_or(0.0),
            seed: self.seed.map_or_else(random_seed, |seed| seed as u64),
            logit_bias: self.biases(draws.vocab_size)?,
            dry: self.dry()?,
            xtc: self.xtc()?,
            ..SamplingParams::GREEDY
        })
    }

    fn biases(&self, vocab_size: usize) -> Result<Vec<(TokenId, f32)>, ApiError> {
        let mut biases = Vec::new();
        for (key, bias) in self.logit_bias.iter().flatten() {
            let Ok(id) = key.parse::<u32>() else {
                return Err(ApiError::invalid(
                    "logit_bias",
                    "logit_bias has a key that is no token id: expected whole numbers",
                ));
            };
            if id as usize >= vocab_size {
                return Err(outside("logit_bias", id, vocab_size));
            }
            if !(-100.0..=100.0).contains(bias) {
                return Err(ApiError::invalid(
                    "logit_bias",
                    format!("logit_bias of token {id} is {bias}: expected -100 to 100"),
                ));
            }
            biases.push((TokenId(id), *bias as f32));
        }
        Ok(biases)
    }

    fn dry(&self) -> Result<Option<Dry>, ApiError> {
        let up_to = |x: f64| (0.0..=100.0).contains(&x);
        let multiplier = within("dry_multiplier", self.dry_multiplier, "0 to 100", up_to)?;
        let base = within("dry_base", self.dry_base, "1 to 100", |b| {
            (1.0..=100.0).contains(&b)
        })?;
        let allowed = whole("dry_allowed_length", self.dry_allowed_length, 0..=i64::MAX)?;
        let window = whole("dry_penalty_last_n", self.dry_penalty_last_n, -1..=i64::MAX)?;
        let Some(multiplier) = multiplier.filter(|multiplier| *multiplier > 0.0) else {
            return Ok(None);
        };
        let length = |n: i64| usize::try_from(n).unwrap_or(0);
        Ok(Some(Dry {
            multiplier,
            base: base.unwrap_or(DRY_BASE as f32),
            allowed_length: length(allowed.unwrap_or(DRY_ALLOWED_LENGTH)),
            window: length(window.unwrap_or(0)),
            breakers: Vec::new(),
        }))
    }

    fn xtc(&self) -> Result<Option<Xtc>, ApiError> {
        let unit = |p: f64| (0.0..=1.0).contains(&p);
        let probability = within("xtc_probability", self.xtc_probability, "0 to 1", unit)?;
        let threshold = within("xtc_threshold", self.xtc_threshold, "0 to 1", unit)?;
        let probability = probability.filter(|probability| *probability > 0.0);
        Ok(probability.map(|probability| Xtc {
            probability,
            threshold: threshold.unwrap_or(XTC_THRESHOLD as f32),
        }))
    }
}

fn outside(param: &'static str, id: u32, vocab_size: usize) -> ApiError {
    ApiError::invalid(
        param,
        format!("{param} names token {id}, which lies outside the vocabulary of {vocab_size}"),
    )
}

/// Without a seed two equal requests differ.
fn random_seed() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().0
}
