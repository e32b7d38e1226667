//! The router's choice and the chosen experts.

use super::math::{sigmoid, softmax};
use crate::op::{RouterSpec, Scoring};

/// Chooses experts for one row of router logits: ids ascending, and their weights.
pub fn route(logits: &[f32], bias: Option<&[f32]>, spec: &RouterSpec) -> Vec<(usize, f32)> {
    let scores = scores(logits, spec);
    let mut choice = biased(&scores, bias);
    if spec.n_group > 1 {
        keep_groups(&mut choice, spec.n_group, spec.topk_group);
    }
    let mut ids = largest(&choice, spec.k);
    ids.sort_unstable();
    let weights = weights(&scores, &ids, spec);
    ids.into_iter().zip(weights).collect()
}

fn scores(logits: &[f32], spec: &RouterSpec) -> Vec<f32> {
    let mut scores = logits.to_vec();
    match spec.scoring {
        Scoring::Sigmoid => scores.iter_mut().for_each(|s| *s = sigmoid(*s)),
        Scoring::Softmax => softmax(&mut scores),
    }
    scores
}

fn biased(scores: &[f32], bias: Option<&[f32]>) -> Vec<f32> {
    let mut choice = scores.to_vec();
    if let Some(bias) = bias {
        choice.iter_mut().zip(bias).for_each(|(c, b)| *c += b);
    }
    choice
}

fn weights(scores: &[f32], ids: &[usize], spec: &RouterSpec) -> Vec<f32> {
    let sum: f32 = ids.iter().map(|e| scores[*e]).sum();
    let factor = if spec.norm {
        spec.scale / (sum + 1e-20)
    } else {
        spec.scale
    };
    ids.iter().map(|e| scores[*e] * factor).collect()
}

/// What [`route`] weighs these experts with, whether it would choose them or not.
pub fn route_weights(logits: &[f32], ids: &[usize], spec: &RouterSpec) -> Vec<f32> {
    weights(&scores(logits, spec), ids, spec)
}

/// Whether [`route`] might choose `ids` (distinct, `k` of them) if each score were off by up to `margin`.
pub fn might_route(
    logits: &[f32],
    bias: Option<&[f32]>,
    spec: &RouterSpec,
    ids: &[usize],
    margin: f32,
) -> bool {
    let choice = biased(&scores(logits, spec), bias);
    let size = choice.len() / spec.n_group.max(1);
    let groups: Vec<f32> = choice.chunks_exact(size).map(group_score).collect();
    // A group's score is a sum of two.
    let slack = 2.0 * margin;
    let better = |g: usize, by: f32| {
        let others = groups.iter().enumerate().filter(|(other, _)| *other != g);
        others.filter(|(_, score)| **score > groups[g] + by).count()
    };
    let may_be_kept = |g: usize| better(g, 2.0 * slack) < spec.topk_group;
    let must_be_kept = |g: usize| better(g, -2.0 * slack) < spec.topk_group;
    let least = ids.iter().map(|e| choice[*e]).fold(f32::INFINITY, f32::min);
    let passed_over = |e: usize| {
        let group = e / size;
        let kept = must_be_kept(group) || ids.iter().any(|id| id / size == group);
        kept && !ids.contains(&e) && choice[e] > least + 2.0 * margin
    };
    ids.len() == spec.k
        && ids.iter().all(|e| may_be_kept(e / size))
        && !(0..choice.len()).any(passed_over)
}

/// The sum of a group's two best.
fn group_score(group: &[f32]) -> f32 {
    largest(group, 2.min(group.len()))
        .iter()
        .map(|e| group[*e])
        .sum()
}

/// Experts of groups other than the best cannot be chosen.
fn keep_groups(choice: &mut [f32], n_group: usize, topk_group: usize) {
    let size = choice.len() / n_group;
    let scores: Vec<f32> = choice.chunks_exact(size).map(group_score).collect();
    let kept = largest(&scores, topk_group);
    for (g, group) in choice.chunks_exact_mut(size).enumerate() {
        if !kept.contains(&g) {
            group.fill(f32::NEG_INFINITY);
        }
    }
}

/// Indices of the `k` largest, largest first; equal values: the lower index first.
pub fn largest(values: &[f32], k: usize) -> Vec<usize> {
    // A total order for NaN's sake; adding zero makes −0 and 0 equal in it.
    let key = |i: usize| values[i] + 0.0;
    let order = |a: &usize, b: &usize| key(*b).total_cmp(&key(*a)).then(a.cmp(b));
    let mut ids: Vec<usize> = (0..values.len()).collect();
    if k < ids.len() {
        ids.select_nth_unstable_by(k, order);
        ids.truncate(k);
    }
    ids.sort_unstable_by(order);
    ids
}

/// The `k` largest of a row of candidates with their ids, largest first; equal values: the lower id first.
pub fn top_k_merge(values: &[f32], ids: &[i32], k: usize) -> Vec<(f32, i32)> {
    // In the order of the ids, so that `largest` breaks ties as it should.
    let mut order: Vec<usize> = (0..ids.len()).collect();
    order.sort_by_key(|i| ids[*i]);
    let sorted: Vec<f32> = order.iter().map(|i| values[*i]).collect();
    largest(&sorted, k)
        .into_iter()
        .map(|i| (sorted[i], ids[order[i]]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> RouterSpec {
        RouterSpec {
            k: 2,
            scoring: Scoring::Sigmoid,
            n_group: 1,
            topk_group: 1,
            norm: true,
            scale: 2.5,
        }
    }

    fn ids(chosen: &[(usize, f32)]) -> Vec<usize> {
        chosen.iter().map(|(e, _)| *e).collect()
    }

    #[test]
    fn bias_chooses_but_does_not_weigh() {
        let logits = [2.0, 1.0, 0.0, -1.0];
        assert_eq!(ids(&route(&logits, None, &spec())), [0, 1]);
        let chosen = route(&logits, Some(&[0.0, 0.0, 0.0, 9.0]), &spec());
        assert_eq!(ids(&chosen), [0, 3]);
        let (s0, s3) = (sigmoid(2.0), sigmoid(-1.0));
        assert!((chosen[1].1 - 2.5 * s3 / (s0 + s3)).abs() < 1e-6);
    }

    #[test]
    fn equal_scores_go_to_the_lower_expert() {
        assert_eq!(ids(&route(&[1.0; 6], None, &spec())), [0, 1]);
    }

    #[test]
    fn groups_are_kept_by_their_two_best() {
        // Group 0 has the best expert, group 1 the best pair.
        let logits = [3.0, -3.0, 2.0, 2.0];
        let spec = RouterSpec {
            n_group: 2,
            topk_group: 1,
            ..spec()
        };
        assert_eq!(ids(&route(&logits, None, &spec)), [2, 3]);
    }

    #[test]
    fn a_choice_within_the_margin_is_possible_and_no_other() {
        let logits = [2.0, 1.0, 0.99, -1.0];
        let might = |ids: &[usize], margin| might_route(&logits, None, &spec(), ids, margin);
        assert!(might(&[0, 1], 0.0));
        assert!(!might(&[0, 2], 0.0) && might(&[0, 2], 0.01));
        assert!(!might(&[0, 3], 0.1) && !might(&[0], 0.1));
        // Bias decides who is chosen.
        assert!(might_route(
            &logits,
            Some(&[0.0, 0.0, 0.0, 9.0]),
            &spec(),
            &[0, 3],
            0.0
        ));
    }

    #[test]
    fn a_choice_from_a_group_that_could_not_be_kept_is_impossible() {
        let spec = RouterSpec {
            n_group: 2,
            topk_group: 1,
            ..spec()
        };
        let logits = [3.0, -3.0, 2.0, 2.0];
        assert!(might_route(&logits, None, &spec, &[2, 3], 0.0));
        assert!(!might_route(&logits, None, &spec, &[0, 1], 0.01));
        assert!(!might_route(&logits, None, &spec, &[0, 2], 0.01));
        let close = [2.0, 2.0, 2.0, 2.001];
        assert!(might_route(&close, None, &spec, &[0, 1], 0.001));
    }

    #[test]
    fn softmax_without_norm_keeps_the_probabilities() {
        let spec = RouterSpec {
            scoring: Scoring::Softmax,
            norm: false,
            scale: 1.0,
            ..spec()
        };
        let chosen = route(&[0.0, 0.0, 1.0, 1.0], None, &spec);
        let p = 1f32.exp() / (2.0 + 2.0 * 1f32.exp());
        assert!(ids(&chosen) == [2, 3] && (chosen[0].1 - p).abs() < 1e-6);
    }
}
