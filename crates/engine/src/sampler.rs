//! The part of sampling that needs the logits on the host: bias, penalties, DRY, XTC, log-probabilities.
//!
//! Neutral parameters change nothing, bit for bit: each step is skipped where its parameter is neutral. From the temperature on
//! the arithmetic is that of [`glim_plan::sample`], so a request that needs nothing of this draws the same tokens here as in
//! the step.

use std::collections::HashMap;

use glim_plan::sample::{SampleParams, candidates, is_corrupt, race, uniform};
use glim_text::TokenId;

use crate::error::EngineError;
use crate::event::Logprobs;
use crate::request::{Dry, SamplingParams, Xtc};

/// The stream of [`uniform`] that XTC takes its chance from.
const XTC_STREAM: u32 = 1;
/// Longest run that DRY looks for: the penalty of longer ones is beyond any logit.
const DRY_MAX_RUN: usize = 64;

/// How often a request has each token.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Times that a token is in the answer; 0 for tokens of the prompt.
    counts: HashMap<TokenId, u32>,
}

impl Counts {
    /// Of a request that has its prompt only.
    pub(crate) fn new(prompt: &[TokenId]) -> Self {
        Self {
            counts: prompt.iter().map(|t| (*t, 0)).collect(),
        }
    }

    /// One more token of the answer.
    pub(crate) fn push(&mut self, token: TokenId) {
        *self.counts.entry(token).or_insert(0) += 1;
    }
}

/// What tokens a request has so far.
#[derive(Debug, Clone, Copy)]
pub(crate) struct History<'a> {
    /// Prompt, then answer.
    pub(crate) tokens: &'a [TokenId],
    /// The same, counted; only where [`SamplingParams::penalises`].
    pub(crate) counts: &'a Counts,
}

/// A drawn token, with its log-probabilities if they were asked for.
pub(crate) struct Drawn {
    pub(crate) token: TokenId,
    pub(crate) logprobs: Option<Logprobs>,
}

/// Draws from one row of raw logits.
pub(crate) fn draw(
    logits: &[f32],
    mask: &[u32],
    params: &SampleParams,
    sampling: &SamplingParams,
    history: History<'_>,
) -> Result<Drawn, EngineError> {
    let position = params.position as usize;
    if is_corrupt(logits) {
        return Err(EngineError::CorruptLogits { position });
    }
    let mut adjusted = logits.to_vec();
    for (token, bias) in &sampling.logit_bias {
        if let Some(logit) = adjusted.get_mut(token.0 as usize) {
            *logit += bias;
        }
    }
    penalise(&mut adjusted, sampling, history.counts);
    if let Some(dry) = sampling.dry.as_ref().filter(|d| d.multiplier != 0.0) {
        repetitions(&mut adjusted, dry, history.tokens);
    }
    let mut kept = candidates(&adjusted, mask, params);
    if let Some(xtc) = sampling.xtc.filter(|_| params.temperature > 0.0) {
        exclude_top_choices(&mut kept, xtc, params);
    }
    let winner = race(&kept, params).ok_or(EngineError::NoTokenAllowed { position })?;
    let token = TokenId(winner as u32);
    let logprobs = sampling
        .logprobs
        .map(|n| log_probabilities(logits, winner, n));
    Ok(Drawn { token, logprobs })
}

/// Repetition penalty over prompt and answer, then frequency and presence over the answer.
fn penalise(logits: &mut [f32], sampling: &SamplingParams, counts: &Counts) {
    let r = sampling.repetition_penalty;
    let (frequency, presence) = (sampling.frequency_penalty, sampling.presence_penalty);
    if !sampling.penalises() {
        return;
    }
    for (token, count) in &counts.counts {
        let Some(logit) = logits.get_mut(token.0 as usize) else {
            continue;
        };
        if r != 1.0 {
            *logit = if *logit > 0.0 { *logit / r } else { *logit * r };
        }
        if *count > 0 {
            *logit -= frequency * *count as f32 + presence;
        }
    }
}

/// DRY: for each earlier place where the last tokens already stood, the token that followed there would repeat the run.
fn repetitions(logits: &mut [f32], dry: &Dry, tokens: &[TokenId]) {
    let start = if dry.window == 0 {
        0
    } else {
        tokens.len().saturating_sub(dry.window)
    };
    let tokens = &tokens[start..];
    let is_breaker = |t: &TokenId| dry.breakers.contains(t);
    let mut longest: HashMap<TokenId, usize> = HashMap::new();
    for next in 1..tokens.len() {
        let run = tokens[..next]
            .iter()
            .rev()
            .zip(tokens.iter().rev())
            .take(DRY_MAX_RUN)
            .take_while(|(a, b)| a == b && !is_breaker(a))
            .count();
        if run >= dry.allowed_length.max(1) && !is_breaker(&tokens[next]) {
            let best = longest.entry(tokens[next]).or_insert(0);
            *best = run.max(*best);
        }
    }
    for (token, run) in longest {
        if let Some(logit) = logits.get_mut(token.0 as usize) {
            let power = (run - dry.allowed_length.min(run)) as f32;
            // Finite, whatever the base: an infinity would make NaN of an infinity.
            *logit -= (dry.multiplier * dry.base.powf(power)).min(f32::MAX);
        }
    }
}

/// XTC: of the tokens above the threshold, all but the least likely go.
fn exclude_top_choices(kept: &mut Vec<(usize, f32)>, xtc: Xtc, params: &SampleParams) {
    if xtc.probability <= 0.0 || uniform(params, XTC_STREAM) >= xtc.probability {
        return;
    }
    let max = kept.iter().fold(f32::MIN, |m, (_, l)| m.max(*l));
    let sum: f32 = kept.iter().map(|(_, l)| (l - max).exp()).sum();
    let likely = |l: f32| (l - max).exp() / sum >= xtc.threshold;
    let least = kept
        .iter()
        .map(|(_, l)| *l)
        .filter(|l| likely(*l))
        .fold(f32::INFINITY, f32::min);
    if kept.iter().filter(|(_, l)| likely(*l)).count() > 1 {
        let mut one = false;
        kept.retain(|(_, l)| {
            let keep = !likely(*l) || (*l == least && !one);
            one |= likely(*l) && keep;
            keep
        });
    }
}

/// Of the raw logits: what the model says, before any parameter of the request.
fn log_probabilities(logits: &[f32], token: usize, n: usize) -> Logprobs {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|l| f64::from(l - max).exp()).sum();
    let log_z = f64::from(max) + sum.ln();
    let logprob = |id: usize| (f64::from(logits[id]) - log_z) as f32;
    let mut ids: Vec<usize> = (0..logits.len()).collect();
    let order = |a: &usize, b: &usize| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b));
    if n < ids.len() {
        ids.select_nth_unstable_by(n, order);
        ids.truncate(n);
    }
    ids.sort_unstable_by(order);
    let top = ids
        .into_iter()
        .map(|id| (TokenId(id as u32), logprob(id)))
        .collect();
    Logprobs {
        token: logprob(token),
        top,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const ALL: [u32; 1] = [u32::MAX];

    fn params(temperature: f32, position: u32) -> SampleParams {
        SampleParams {
            temperature,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            seed: 9,
            choice: 0,
            position,
        }
    }

    fn no_history(counts: &Counts) -> History<'_> {
        History {
            tokens: &[],
            counts,
        }
    }

    fn greedy(logits: &[f32], sampling: &SamplingParams, history: &[u32], prompt: usize) -> u32 {
        let tokens: Vec<TokenId> = history.iter().map(|t| TokenId(*t)).collect();
        let mut counts = Counts::new(&tokens[..prompt]);
        tokens[prompt..].iter().for_each(|t| counts.push(*t));
        let history = History {
            tokens: &tokens,
            counts: &counts,
        };
        draw(logits, &ALL, &params(0.0, 5), sampling, history)
            .unwrap()
            .token
            .0
    }

    #[test]
    fn neutral_parameters_draw_what_the_step_draws() {
        let logits = [0.3, -1.0, 2.5, 2.4, 0.0, 1.0, -7.0, 2.0];
        let counts = Counts::default();
        let history = no_history(&counts);
        for position in 0..300 {
            let p = params(0.8, position);
            let host = draw(&logits, &ALL, &p, &SamplingParams::GREEDY, history)
                .unwrap()
                .token;
            assert_eq!(
                host.0 as i32,
                glim_plan::sample::sample_row(&logits, &ALL, &p)
            );
        }
    }

    #[test]
    fn penalties_follow_their_formulas() {
        let base = SamplingParams::GREEDY;
        // Repetition: 3/2 < 2, and a negative logit sinks: −1 · 2 < −1.5.
        let r = SamplingParams {
            repetition_penalty: 2.0,
            ..base.clone()
        };
        assert_eq!(greedy(&[3.0, 2.0], &base, &[0], 1), 0);
        assert_eq!(greedy(&[3.0, 2.0], &r, &[0], 1), 1);
        assert_eq!(greedy(&[-1.0, -1.5], &r, &[0], 1), 1);
        // Frequency and presence look at the answer only.
        let f = SamplingParams {
            frequency_penalty: 0.6,
            ..base.clone()
        };
        assert_eq!(greedy(&[3.0, 2.0], &f, &[0, 0], 2), 0);
        assert_eq!(greedy(&[3.0, 2.0], &f, &[1, 0], 1), 0);
        assert_eq!(greedy(&[3.0, 2.0], &f, &[1, 0, 0], 1), 1);
        let p = SamplingParams {
            presence_penalty: 1.1,
            ..base.clone()
        };
        assert_eq!(greedy(&[3.0, 2.0], &p, &[1, 0], 1), 1);
        let bias = SamplingParams {
            logit_bias: vec![(TokenId(0), f32::NEG_INFINITY)],
            ..base
        };
        assert_eq!(greedy(&[3.0, 2.0], &bias, &[1], 1), 1);
    }

    #[test]
    fn dry_breaks_loops_but_not_at_breakers() {
        // 5 6 7 5 6 → 7 would repeat a run of two.
        let dry = |allowed_length, breakers: &[u32]| SamplingParams {
            dry: Some(Dry {
                multiplier: 0.8,
                base: 1.75,
                allowed_length,
                window: 0,
                breakers: breakers.iter().map(|t| TokenId(*t)).collect(),
            }),
            ..SamplingParams::GREEDY
        };
        let mut logits = [0.0; 8];
        (logits[7], logits[1]) = (1.0, 0.5);
        let loop_ = [5, 6, 7, 5, 6];
        assert_eq!(greedy(&logits, &dry(2, &[]), &loop_, 1), 1);
        assert_eq!(greedy(&logits, &dry(3, &[]), &loop_, 1), 7);
        assert_eq!(greedy(&logits, &dry(2, &[6]), &loop_, 1), 7);
    }

    #[test]
    fn xtc_leaves_the_least_likely_of_the_likely() {
        let logits = [2.0, 1.9, 0.0, -5.0];
        let counts = Counts::default();
        let history = no_history(&counts);
        let xtc = |probability| SamplingParams {
            xtc: Some(Xtc {
                probability,
                threshold: 0.3,
            }),
            ..SamplingParams::GREEDY
        };
        let count = |sampling: &SamplingParams| {
            let draws = (0..400).map(|position| {
                draw(&logits, &ALL, &params(1.0, position), sampling, history)
                    .unwrap()
                    .token
                    .0
            });
            draws.filter(|t| *t == 0).count()
        };
        assert_eq!(count(&xtc(1.0)), 0);
        let half = count(&xtc(0.5));
        let whole = count(&SamplingParams::GREEDY);
        assert!(
            half * 3 > whole && half * 3 < whole * 2,
            "{half} of {whole}"
        );
    }

    #[test]
    fn log_probabilities_are_those_of_the_raw_logits() {
        let sampling = SamplingParams {
            logprobs: Some(2),
            logit_bias: vec![(TokenId(0), 50.0)],
            ..SamplingParams::GREEDY
        };
        let counts = Counts::default();
        let history = no_history(&counts);
        let drawn = draw(&[0.0, 0.0, 1.0], &ALL, &params(0.0, 1), &sampling, history).unwrap();
        let logprobs = drawn.logprobs.unwrap();
        let z = (2.0 + 1f32.exp()).ln();
        assert_eq!(drawn.token, TokenId(0));
        assert!((logprobs.token + z).abs() < 1e-6);
        let ids: Vec<u32> = logprobs.top.iter().map(|(t, _)| t.0).collect();
        assert_eq!(ids, [2, 0]);
        assert!((logprobs.top[0].1 - (1.0 - z)).abs() < 1e-6);
    }

    #[test]
    fn corrupt_and_dead_rows_are_errors() {
        let counts = Counts::default();
        let h = no_history(&counts);
        let run = |logits: &[f32], mask: &[u32]| {
            draw(logits, mask, &params(1.0, 3), &SamplingParams::GREEDY, h).map(|d| d.token)
        };
        assert!(matches!(
            run(&[f32::NAN, 0.0], &ALL),
            Err(EngineError::CorruptLogits { position: 3 })
        ));
        assert!(matches!(
            run(&[1.0, 0.0], &[0]),
            Err(EngineError::NoTokenAllowed { position: 3 })
        ));
    }
}
