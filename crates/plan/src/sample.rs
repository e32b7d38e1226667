//! The sampler, specified: how [`crate::Op::Sample`] turns one row of logits into a token, on any backend.
//!
//! Order (that of vLLM, where users of the API come from): mask, arg-max if the temperature is 0, divide by the temperature,
//! top-k, top-p on the renormalised probabilities, min-p, draw. The draw is a Gumbel race: the token with the largest
//! `(logit − max) / temperature + g`, where `max` is the largest allowed logit (so that a tiny temperature cannot overflow),
//! `g = −ln(−ln u)` and `u` is a number that depends on seed, choice, position and token id alone.
//! So there is no order of summation to agree on, and a seeded stream does not depend on batching, preemption or speculation.
//!
//! The steps are public one by one ([`candidates`], [`race`]), for a sampler that does more in between.
//!
//! Ties go to the lowest token id everywhere.

/// Result of a row with a NaN or +∞ logit.
pub const TOKEN_CORRUPT: i32 = -2;
/// Result of a row whose tokens are all masked.
pub const TOKEN_NONE_ALLOWED: i32 = -3;

/// Parameters of one row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SampleParams {
    /// 0: arg-max.
    pub temperature: f32,
    /// 0: off.
    pub top_k: usize,
    /// 1: off.
    pub top_p: f32,
    /// Tokens below this share of the likeliest one's probability are cut; 0: off.
    pub min_p: f32,
    /// Seed of the request.
    pub seed: u64,
    /// Index among the choices of one request.
    pub choice: u32,
    /// Position of the token that is drawn.
    pub position: u32,
}

/// Draws a token from `logits [V]`; `mask [ceil(V / 32)]` has a bit for each token that may be drawn. Returns its id, or
/// [`TOKEN_CORRUPT`], or [`TOKEN_NONE_ALLOWED`].
pub fn sample_row(logits: &[f32], mask: &[u32], params: &SampleParams) -> i32 {
    if is_corrupt(logits) {
        return TOKEN_CORRUPT;
    }
    let winner = race(&candidates(logits, mask, params), params);
    winner.map_or(TOKEN_NONE_ALLOWED, |id| {
        i32::try_from(id).unwrap_or(TOKEN_CORRUPT)
    })
}

/// Whether a row holds NaN or +∞; −∞ is an ordinary way to forbid a token.
pub fn is_corrupt(logits: &[f32]) -> bool {
    logits.iter().any(|l| l.is_nan() || *l == f32::INFINITY)
}

/// Draws a token among candidates that were gathered from parts of the vocabulary by [`shortlist`]: their ids, −1 for an empty place,
/// and logits, as [`sample_row`] would from the whole row if [`is_shortlistable`].
pub fn sample_shortlist(ids: &[i32], logits: &[f32], params: &SampleParams) -> i32 {
    if is_corrupt(logits) {
        return TOKEN_CORRUPT;
    }
    let pairs = ids.iter().zip(logits);
    let mut kept: Vec<(usize, f32)> = pairs
        .filter_map(|(id, l)| Some((usize::try_from(*id).ok()?, *l)))
        .collect();
    kept.sort_unstable_by_key(|(id, _)| *id);
    let winner = race(&cut(kept, params), params);
    winner.map_or(TOKEN_NONE_ALLOWED, |id| {
        i32::try_from(id).unwrap_or(TOKEN_CORRUPT)
    })
}

/// Whether the token that is drawn from the whole vocabulary is always among the `k` that [`shortlist`] keeps of each part of it:
/// an arg-max, a draw from the `k` likeliest or fewer, or a race that nothing is cut from. Top-p and min-p without such a top-k
/// go by the probabilities of all tokens.
pub fn is_shortlistable(params: &SampleParams, k: usize) -> bool {
    let uncut = params.top_k == 0 && params.top_p >= 1.0 && params.min_p <= 0.0;
    params.temperature <= 0.0 || (1..=k).contains(&params.top_k) || uncut
}

/// Of a part of the vocabulary, whose logits begin with that of token `first_id`, the `k` tokens among which the drawn one is if it
/// lies in this part: the largest logits, or the best of the race where nothing is cut. `mask` is that of the whole vocabulary.
/// Ids with their logits, ascending by id; a part with NaN or +∞ gives one NaN.
///
/// A race runs on distances to the largest logit; a part knows its own only, so that its order can differ from that of the whole
/// where tokens lie within a rounding of each other. That is what it keeps more than one for.
pub fn shortlist(
    logits: &[f32],
    first_id: usize,
    mask: &[u32],
    params: &SampleParams,
    k: usize,
) -> Vec<(usize, f32)> {
    if is_corrupt(logits) {
        return vec![(first_id, f32::NAN)];
    }
    let mut kept: Vec<(usize, f32)> = (first_id..)
        .zip(logits.iter().copied())
        .filter(|(id, l)| is_allowed(mask, *id) && *l > f32::NEG_INFINITY)
        .collect();
    if kept.len() > k {
        let races = params.temperature > 0.0 && params.top_k == 0;
        let max = kept.iter().map(|(_, l)| *l).fold(f32::MIN, f32::max);
        let inverse = 1.0 / params.temperature;
        let key = |(id, l): (usize, f32)| match races {
            // Adding zero makes −0 and 0 equal.
            true => scale(l - max, inverse) + gumbel(params, id as u32),
            false => l + 0.0,
        };
        let mut keyed: Vec<(f32, (usize, f32))> = kept.iter().map(|p| (key(*p), *p)).collect();
        let order = |a: &(f32, (usize, f32)), b: &(f32, (usize, f32))| {
            b.0.total_cmp(&a.0).then(a.1.0.cmp(&b.1.0))
        };
        keyed.select_nth_unstable_by(k, order);
        kept = keyed[..k].iter().map(|(_, pair)| *pair).collect();
        kept.sort_unstable_by_key(|(id, _)| *id);
    }
    kept
}

/// The tokens that may be drawn, with `(logit − max) / temperature` (the logits themselves at temperature 0): masked, then cut
/// by top-k, top-p and min-p.
pub fn candidates(logits: &[f32], mask: &[u32], params: &SampleParams) -> Vec<(usize, f32)> {
    let kept = logits
        .iter()
        .enumerate()
        .filter(|(id, l)| is_allowed(mask, *id) && **l > f32::NEG_INFINITY)
        .map(|(id, l)| (id, *l));
    cut(kept.collect(), params)
}

fn is_allowed(mask: &[u32], id: usize) -> bool {
    mask.get(id / 32)
        .is_some_and(|word| word >> (id % 32) & 1 == 1)
}

/// Scales and cuts tokens, which come ascending by id.
fn cut(mut kept: Vec<(usize, f32)>, params: &SampleParams) -> Vec<(usize, f32)> {
    if params.temperature <= 0.0 {
        return kept;
    }
    let inverse = 1.0 / params.temperature;
    let max = kept.iter().map(|(_, l)| *l).fold(f32::MIN, f32::max);
    kept.iter_mut()
        .for_each(|(_, l)| *l = scale(*l - max, inverse));
    let mut kept = truncate(kept, params.top_k, params.top_p);
    if params.min_p > 0.0 {
        // The likeliest token has 0: its probability is the largest, and e^l is the ratio to it.
        let least = params.min_p.min(1.0).ln();
        kept.retain(|(_, l)| *l >= least);
    }
    kept
}

/// The winner among [`candidates`]: the largest at temperature 0, the draw of this seed, choice and position otherwise.
pub fn race(candidates: &[(usize, f32)], params: &SampleParams) -> Option<usize> {
    let noise = |id: usize| {
        if params.temperature <= 0.0 {
            0.0
        } else {
            gumbel(params, id as u32)
        }
    };
    first_max(candidates.iter().map(|(id, l)| (*id, l + noise(*id))))
}

/// A number in 0..1 that depends on seed, choice, position and `stream` (1 and up; 0 is the race's own).
pub fn uniform(params: &SampleParams, stream: u32) -> f32 {
    let counter = [0, params.position, params.choice, stream];
    let block = philox4x32_10(counter, [params.seed as u32, (params.seed >> 32) as u32]);
    (block[0] >> 8) as f32 * (1.0 / 16_777_216.0)
}

/// `(logit − max) / temperature`, at most zero: a tiny temperature makes no infinity and no new ties out of the largest logits.
fn scale(below: f32, inverse: f32) -> f32 {
    // 0 · ∞ (a temperature whose inverse overflows) is the largest logit itself.
    if below == 0.0 {
        0.0
    } else {
        (below * inverse).max(f32::MIN)
    }
}

fn first_max(candidates: impl Iterator<Item = (usize, f32)>) -> Option<usize> {
    let mut best: Option<(usize, f32)> = None;
    for (id, value) in candidates {
        if best.is_none_or(|(_, b)| value > b) {
            best = Some((id, value));
        }
    }
    best.map(|(id, _)| id)
}

/// Keeps the `top_k` largest, then the smallest prefix (largest first) whose probability reaches `top_p`; at least one.
fn truncate(mut scaled: Vec<(usize, f32)>, top_k: usize, top_p: f32) -> Vec<(usize, f32)> {
    if (top_k == 0 || top_k >= scaled.len()) && top_p >= 1.0 {
        return scaled;
    }
    // Scaled logits are never NaN and at most zero; adding zero makes −0 and 0 equal.
    scaled.sort_by(|a, b| (b.1 + 0.0).total_cmp(&(a.1 + 0.0)).then(a.0.cmp(&b.0)));
    if top_k > 0 {
        scaled.truncate(top_k);
    }
    if top_p < 1.0 {
        let max = scaled.first().map_or(0.0, |(_, l)| *l);
        let weights: Vec<f32> = scaled.iter().map(|(_, l)| (l - max).exp()).collect();
        let wanted = top_p * weights.iter().sum::<f32>();
        let mut sum = 0.0;
        let keep = weights.iter().take_while(|w| {
            let more = sum < wanted;
            sum += **w;
            more
        });
        let keep = keep.count().max(1);
        scaled.truncate(keep);
    }
    scaled
}

/// Standard Gumbel noise of one token: lane `id % 4` of the Philox block at counter `(id / 4, position, choice, 0)`.
fn gumbel(params: &SampleParams, id: u32) -> f32 {
    let block = philox4x32_10(
        [id / 4, params.position, params.choice, 0],
        [params.seed as u32, (params.seed >> 32) as u32],
    );
    gumbel_of(block[id as usize % 4])
}

/// Gumbel noise from a random word, finite for every word.
fn gumbel_of(word: u32) -> f32 {
    /// The largest number below 1.
    const BELOW_ONE: f32 = 1.0 - f32::EPSILON / 2.0;
    // 24 random bits, centred in their interval: never 0. All ones and a half would be rounded to 1, whose noise is infinite: a
    // token in 2^24 would win its race whatever its logit.
    let u = ((word >> 8) as f32 + 0.5) * (1.0 / 16_777_216.0);
    -(-u.min(BELOW_ONE).ln()).ln()
}

/// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
pub fn philox4x32_10(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let a = u64::from(counter[0]) * 0xD251_1F53;
        let b = u64::from(counter[2]) * 0xCD9E_8D57;
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
        key = [
            key[0].wrapping_add(0x9E37_79B9),
            key[1].wrapping_add(0xBB67_AE85),
        ];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [u32; 4] = [u32::MAX; 4];

    fn params() -> SampleParams {
        SampleParams {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            seed: 42,
            choice: 0,
            position: 7,
        }
    }

    /// Known answers of the authors' Random123 library (kat_vectors).
    #[test]
    fn philox_gives_the_known_answers() {
        assert_eq!(
            philox4x32_10([0; 4], [0; 2]),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
        assert_eq!(
            philox4x32_10(
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0]
            ),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn noise_is_finite_for_every_word() {
        for word in [0, 0xff, 0x7fff_ffff, 0x8000_0000, 0xffff_feff, u32::MAX] {
            let noise = gumbel_of(word);
            assert!((-3.0..17.0).contains(&noise), "{word:#x}: {noise}");
        }
    }

    #[test]
    fn zero_temperature_takes_the_lowest_of_equal_maxima() {
        let p = SampleParams {
            temperature: 0.0,
            ..params()
        };
        assert_eq!(sample_row(&[1.0, 3.0, 3.0, 2.0], &ALL, &p), 1);
        assert_eq!(sample_row(&[1.0, 3.0, 3.0, 2.0], &[0b1101, 0, 0, 0], &p), 2);
    }

    #[test]
    fn rows_without_a_possible_token_say_so() {
        let p = params();
        assert_eq!(sample_row(&[1.0, f32::NAN], &ALL, &p), TOKEN_CORRUPT);
        assert_eq!(sample_row(&[1.0, f32::INFINITY], &ALL, &p), TOKEN_CORRUPT);
        assert_eq!(
            sample_row(&[1.0, 2.0], &[0, 0, 0, 0], &p),
            TOKEN_NONE_ALLOWED
        );
        assert_eq!(
            sample_row(&[f32::NEG_INFINITY; 2], &ALL, &p),
            TOKEN_NONE_ALLOWED
        );
    }

    #[test]
    fn a_tiny_temperature_is_arg_max() {
        let p = SampleParams {
            temperature: 1e-38,
            ..params()
        };
        assert_eq!(sample_row(&[-1e4, 5.0, 1e4, 3.0], &ALL, &p), 2);
    }

    #[test]
    fn draws_follow_the_distribution() {
        let logits = [0.0f32, 1.0, 2.0, -1.0];
        let z: f32 = logits.iter().map(|l| l.exp()).sum();
        let mut counts = [0u32; 4];
        let n = 20_000;
        for position in 0..n {
            let token = sample_row(
                &logits,
                &ALL,
                &SampleParams {
                    position,
                    ..params()
                },
            );
            counts[token as usize] += 1;
        }
        for (count, logit) in counts.iter().zip(logits) {
            let p = f64::from(logit.exp() / z);
            let sigma = (f64::from(n) * p * (1.0 - p)).sqrt();
            let off = (f64::from(*count) - f64::from(n) * p).abs();
            assert!(
                off < 4.5 * sigma,
                "{count} draws, expected {} ± {sigma}",
                f64::from(n) * p
            );
        }
    }

    #[test]
    fn top_k_and_top_p_cut_the_tail() {
        let logits = [0.0f32, 1.0, 2.0, 2.0];
        for position in 0..500 {
            let p = SampleParams {
                position,
                ..params()
            };
            // Of two equal logits at the boundary, the lower id is kept.
            assert_eq!(
                sample_row(&logits, &ALL, &SampleParams { top_k: 1, ..p }),
                2
            );
            // softmax: 0.054 0.146 0.399 0.399: 0.3 is reached by the first, 0.5 by the second.
            assert_eq!(
                sample_row(&logits, &ALL, &SampleParams { top_p: 0.3, ..p }),
                2
            );
            assert!(sample_row(&logits, &ALL, &SampleParams { top_p: 0.5, ..p }) >= 2);
            assert_eq!(
                sample_row(&logits, &ALL, &SampleParams { top_p: 0.0, ..p }),
                2
            );
        }
    }

    #[test]
    fn min_p_cuts_what_is_unlikely_beside_the_likeliest() {
        // Ratios to the largest: e^-2, e^-1, 1.
        let logits = [0.0f32, 1.0, 2.0];
        for position in 0..500 {
            let p = SampleParams {
                position,
                ..params()
            };
            assert_eq!(
                sample_row(&logits, &ALL, &SampleParams { min_p: 0.5, ..p }),
                2
            );
            assert!(sample_row(&logits, &ALL, &SampleParams { min_p: 0.3, ..p }) >= 1);
            assert_eq!(
                sample_row(&logits, &ALL, &SampleParams { min_p: 1.0, ..p }),
                2
            );
        }
    }

    /// Parts of the vocabulary of any size, whichever part the winner lies in.
    #[test]
    fn a_draw_from_shortlists_is_the_draw_from_the_whole() {
        const K: usize = 8;
        let vocab = 300usize;
        let mask: Vec<u32> = (0..10u32).map(|word| !(1 << (word % 7))).collect();
        for position in 0..400u32 {
            // Coarse, so that there are ties, at the largest logit too.
            let logit = |id: usize| {
                let block = philox4x32_10([id as u32, position, 3, 9], [1, 2]);
                (block[0] % 23) as f32 * 0.4
            };
            let logits: Vec<f32> = (0..vocab).map(logit).collect();
            let base = SampleParams {
                position,
                ..params()
            };
            for p in [
                SampleParams {
                    temperature: 0.0,
                    ..base
                },
                base,
                SampleParams {
                    temperature: 0.3,
                    ..base
                },
                SampleParams { top_k: 1, ..base },
                SampleParams {
                    top_k: 8,
                    top_p: 0.7,
                    min_p: 0.1,
                    ..base
                },
            ] {
                assert!(is_shortlistable(&p, K), "{p:?}");
                let expected = sample_row(&logits, &mask, &p);
                for cuts in [
                    vec![0, 300],
                    vec![0, 3, 150, 300],
                    vec![0, 100, 104, 299, 300],
                ] {
                    let (mut ids, mut values) = (Vec::new(), Vec::new());
                    for part in cuts.windows(2) {
                        let kept = shortlist(&logits[part[0]..part[1]], part[0], &mask, &p, K);
                        assert!(kept.len() <= K);
                        ids.extend(kept.iter().map(|(id, _)| *id as i32));
                        values.extend(kept.iter().map(|(_, l)| *l));
                        // An empty place, as there are in a gathered row.
                        ids.push(-1);
                        values.push(f32::NEG_INFINITY);
                    }
                    assert_eq!(
                        sample_shortlist(&ids, &values, &p),
                        expected,
                        "{p:?} {cuts:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn what_goes_by_all_probabilities_is_not_shortlistable() {
        let p = params();
        assert!(!is_shortlistable(&SampleParams { top_p: 0.9, ..p }, 8));
        assert!(!is_shortlistable(&SampleParams { min_p: 0.1, ..p }, 8));
        assert!(!is_shortlistable(&SampleParams { top_k: 9, ..p }, 8));
    }

    #[test]
    fn a_corrupt_part_makes_the_draw_corrupt() {
        let p = params();
        let sound = shortlist(&[1.0, 2.0], 0, &ALL, &p, 4);
        let corrupt = shortlist(&[1.0, f32::INFINITY], 2, &ALL, &p, 4);
        let all: Vec<(usize, f32)> = sound.into_iter().chain(corrupt).collect();
        let ids: Vec<i32> = all.iter().map(|(id, _)| *id as i32).collect();
        let values: Vec<f32> = all.iter().map(|(_, l)| *l).collect();
        assert_eq!(sample_shortlist(&ids, &values, &p), TOKEN_CORRUPT);
        assert_eq!(
            sample_shortlist(&[-1], &[f32::NEG_INFINITY], &p),
            TOKEN_NONE_ALLOWED
        );
    }

    #[test]
    fn seed_choice_and_position_each_change_the_stream() {
        let logits = [0.0f32; 64];
        let stream = |seed, choice, first: u32| -> Vec<i32> {
            (first..first + 16)
                .map(|position| {
                    sample_row(
                        &logits,
                        &ALL,
                        &SampleParams {
                            seed,
                            choice,
                            position,
                            ..params()
                        },
                    )
                })
                .collect()
        };
        assert_eq!(stream(1, 0, 0), stream(1, 0, 0));
        assert_ne!(stream(1, 0, 0), stream(2, 0, 0));
        assert_ne!(stream(1, 0, 0), stream(1 << 40, 0, 0));
        assert_ne!(stream(1, 0, 0), stream(1, 1, 0));
        assert_ne!(stream(1, 0, 0), stream(1, 0, 16));
    }
}
