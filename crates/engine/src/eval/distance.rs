//! Distances between what a model computed and what a reference says, and the bounds that exact arithmetic keeps.

use super::perplexity::log_sum_exp;

/// One prompt, compared.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptReport {
    /// Prompt.
    pub name: String,
    /// Largest `|Δlogit|` over the rows that the reference has.
    pub max_abs_logit_diff: f64,
    /// Mean over those rows of `KL(reference ‖ model)`, in nats.
    pub mean_kl: f64,
    /// Share of those rows whose likeliest token is the reference's.
    pub top1_agreement: f64,
    /// Largest relative difference of a hidden state: `max |Δ| / max |reference|` of a row, over rows and layers.
    pub hidden_max_rel: f64,
    /// Largest relative difference of an expert's weight.
    pub expert_weight_max_rel: f64,
    /// Whether the greedy continuation is the reference's, token by token.
    pub greedy_match: bool,
    /// First place where it is not.
    pub greedy_first_diff: Option<usize>,
    /// Whether every row chose the reference's experts.
    pub router_match: bool,
    /// Whether every row that can be compared chose the reference's positions.
    pub index_topk_match: bool,
    /// Rows of index choices that were compared.
    pub index_rows_compared: usize,
    /// Rows left out, because the scores at the last place are too close to tell.
    pub index_rows_close: usize,
    /// Near-ties in which the reference's choice was taken, and found to be one.
    pub near_ties: usize,
    /// First difference of each kind, in words.
    pub first_diffs: Vec<String>,
}

/// What exact arithmetic keeps to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounds {
    /// For [`PromptReport::max_abs_logit_diff`].
    pub logit: f64,
    /// For [`PromptReport::hidden_max_rel`] and [`PromptReport::expert_weight_max_rel`].
    pub relative: f64,
}

impl Bounds {
    /// F32 arithmetic against f32 arithmetic in another order of summation.
    pub const EXACT: Self = Self {
        logit: 2e-3,
        relative: 1e-3,
    };
}

/// What a bound is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// Logits.
    Logits,
    /// Hidden states.
    Hidden,
    /// Experts and their weights.
    Router,
    /// Positions chosen by the indexer.
    IndexTopk,
    /// Greedy tokens.
    Greedy,
}

impl Measure {
    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Logits => "logits",
            Self::Hidden => "hidden",
            Self::Router => "router",
            Self::IndexTopk => "index_topk",
            Self::Greedy => "greedy",
        }
    }
}

impl PromptReport {
    /// Nothing differs, nothing was compared.
    pub(super) fn perfect(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            max_abs_logit_diff: 0.0,
            mean_kl: 0.0,
            top1_agreement: 1.0,
            hidden_max_rel: 0.0,
            expert_weight_max_rel: 0.0,
            greedy_match: true,
            greedy_first_diff: None,
            router_match: true,
            index_topk_match: true,
            index_rows_compared: 0,
            index_rows_close: 0,
            near_ties: 0,
            first_diffs: Vec::new(),
        }
    }

    /// The measures that leave the bounds. NaN leaves every bound.
    pub fn outside(&self, bounds: &Bounds) -> Vec<Measure> {
        let within = |value: f64, bound: f64| value <= bound;
        let checks = [
            (
                Measure::Logits,
                within(self.max_abs_logit_diff, bounds.logit),
            ),
            (
                Measure::Hidden,
                within(self.hidden_max_rel, bounds.relative),
            ),
            (
                Measure::Router,
                self.router_match && within(self.expert_weight_max_rel, bounds.relative),
            ),
            (Measure::IndexTopk, self.index_topk_match),
            (Measure::Greedy, self.greedy_match),
        ];
        checks
            .into_iter()
            .filter(|(_, ok)| !ok)
            .map(|(measure, _)| measure)
            .collect()
    }
}

/// Largest `|a − b|`, and where. NaN is larger than anything.
pub(super) fn max_abs_diff(a: &[f32], b: &[f32]) -> (f64, usize) {
    let mut worst = (0.0, 0);
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        let d = (f64::from(*a) - f64::from(*b)).abs();
        if d > worst.0 || d.is_nan() {
            worst = (d, i);
            if d.is_nan() {
                break;
            }
        }
    }
    worst
}

/// `max |a − reference| / max |reference|`.
pub(super) fn relative(a: &[f32], reference: &[f32]) -> f64 {
    let scale = reference.iter().fold(0f32, |m, x| m.max(x.abs()));
    max_abs_diff(a, reference).0 / f64::from(scale.max(f32::MIN_POSITIVE))
}

/// `KL(reference ‖ model)` of two rows of logits, in nats.
pub(crate) fn kl(reference: &[f32], model: &[f32]) -> f64 {
    let (zr, zm) = (log_sum_exp(reference), log_sum_exp(model));
    reference
        .iter()
        .zip(model)
        .map(|(r, m)| {
            let (r, m) = (f64::from(*r) - zr, f64::from(*m) - zm);
            r.exp() * (r - m)
        })
        .sum()
}

/// Index of the largest value, the first of equals.
pub(crate) fn arg_max(row: &[f32]) -> usize {
    let mut best = 0;
    for (i, v) in row.iter().enumerate() {
        if *v > row[best] {
            best = i;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_leaves_every_bound() {
        assert!(
            PromptReport::perfect("p")
                .outside(&Bounds::EXACT)
                .is_empty()
        );
        let nan = PromptReport {
            max_abs_logit_diff: f64::NAN,
            hidden_max_rel: f64::NAN,
            ..PromptReport::perfect("p")
        };
        assert_eq!(
            nan.outside(&Bounds::EXACT),
            [Measure::Logits, Measure::Hidden]
        );
        assert!(
            max_abs_diff(&[1.0, f32::NAN, 9.0], &[1.0, 2.0, 3.0])
                .0
                .is_nan()
        );
    }

    #[test]
    fn kl_is_zero_for_equal_rows_and_ignores_a_shift() {
        assert!(kl(&[1.0, 2.0, 3.0], &[11.0, 12.0, 13.0]).abs() < 1e-9);
        // p = (1/2, 1/2), q = (1/4, 3/4): ½ ln 2 + ½ ln ⅔.
        let expected = 0.5 * 2f64.ln() + 0.5 * (2f64 / 3.0).ln();
        assert!((kl(&[0.0, 0.0], &[0.0, 3f32.ln()]) - expected).abs() < 1e-6);
    }
}
