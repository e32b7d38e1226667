//! The router's choice and the chosen experts.

use super::math::{axpy, matmul, sigmoid, softmax, swiglu};
use crate::op::{RouterSpec, Scoring};

/// Chooses experts for one row of router logits: ids ascending, and their weights.
pub fn route(logits: &[f32], bias: Option<&[f32]>, spec: &RouterSpec) -> Vec<(usize, f32)> {
    let mut scores = logits.to_vec();
    match spec.scoring {
        Scoring::Sigmoid => scores.iter_mut().for_each(|s| *s = sigmoid(*s)),
        Scoring::Softmax => softmax(&mut scores),
    }
    let mut choice = scores.clone();
    if let Some(bias) = bias {
        choice.iter_mut().zip(bias).for_each(|(c, b)| *c += b);
    }
    if spec.n_group > 1 {
        keep_groups(&mut choice, spec.n_group, spec.topk_group);
    }
    let mut ids = largest(&choice, spec.k);
    ids.sort_unstable();
    let sum: f32 = ids.iter().map(|e| scores[*e]).sum();
    let factor = if spec.norm {
        spec.scale / (sum + 1e-20)
    } else {
        spec.scale
    };
    ids.into_iter().map(|e| (e, scores[e] * factor)).collect()
}

/// A group's score is the sum of its two best; experts of the other groups cannot be chosen.
fn keep_groups(choice: &mut [f32], n_group: usize, topk_group: usize) {
    let size = choice.len() / n_group;
    let scores: Vec<f32> = choice
        .chunks_exact(size)
        .map(|group| largest(group, 2.min(size)).iter().map(|e| group[*e]).sum())
        .collect();
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

/// The weights of all experts, row-major: `gate`, `up` `[E, I, D]`, `down` `[E, D, I]`.
pub(crate) struct Experts<'a> {
    pub(crate) gate: &'a [f32],
    pub(crate) up: &'a [f32],
    pub(crate) down: &'a [f32],
    pub(crate) inner: usize,
}

impl Experts<'_> {
    /// `acc += weight · down(silu(gate x) ⊙ up x)` of expert `e`.
    pub(crate) fn add(&self, e: usize, weight: f32, x: &[f32], acc: &mut [f32]) {
        let (d, i) = (x.len(), self.inner);
        let mut gate = vec![0.0; i];
        let mut up = vec![0.0; i];
        matmul(x, &self.gate[e * i * d..][..i * d], d, &mut gate);
        matmul(x, &self.up[e * i * d..][..i * d], d, &mut up);
        gate.iter_mut()
            .zip(&up)
            .for_each(|(g, u)| *g = swiglu(*g, *u));
        let mut y = vec![0.0; acc.len()];
        matmul(
            &gate,
            &self.down[e * acc.len() * i..][..acc.len() * i],
            i,
            &mut y,
        );
        axpy(acc, weight, &y);
    }
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
