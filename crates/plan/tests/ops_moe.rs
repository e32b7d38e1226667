//! The router and the experts against naive computations in f64.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::close::assert_close;
use common::feed::Feed;
use common::weights::Random;
use glim_plan::{GgmlType, Op, RouterSpec, Rows, Scoring};

const ROWS: usize = 9;
const D: usize = 13;
const E: usize = 12;
/// Sums of 13 products of the order of one, then a sigmoid and a division.
const BOUND: f64 = 5e-6;

struct Router {
    x: Vec<f32>,
    weight: Vec<f32>,
    bias: Option<Vec<f32>>,
    spec: RouterSpec,
}

impl Router {
    fn random(seed: u64, spec: RouterSpec, bias: bool) -> Self {
        let mut random = Random(seed);
        Self {
            x: random.units(ROWS * D),
            weight: random.units(E * D),
            bias: bias.then(|| random.units(E)),
            spec,
        }
    }

    fn found(&self) -> (Vec<i32>, Vec<f32>) {
        let mut feed = Feed::new(ROWS);
        let x = feed.values("x", &[D], &self.x);
        let weight = feed.weight("router", &[E, D], &self.weight);
        let bias = self.bias.as_ref().map(|b| feed.weight("bias", &[E], b));
        let ids = feed.out_i32("ids", self.spec.k);
        let expert_weights = feed.out(&[self.spec.k]);
        feed.b.op(
            "route",
            Op::Route {
                x,
                weight,
                bias,
                spec: self.spec,
                ids,
                expert_weights,
            },
        );
        let results = feed.run();
        (
            results.i32s("ids").unwrap().to_vec(),
            results.f32s("out").unwrap().to_vec(),
        )
    }

    /// By rank counts rather than by sorting: an expert is chosen if fewer than `k` allowed ones have a higher biased score.
    fn expected(&self) -> (Vec<i32>, Vec<f64>) {
        let spec = &self.spec;
        let (mut ids, mut weights) = (Vec::new(), Vec::new());
        for row in self.x.chunks(D) {
            let logit = |e: usize| -> f64 {
                (0..D)
                    .map(|i| f64::from(row[i]) * f64::from(self.weight[e * D + i]))
                    .sum()
            };
            let total: f64 = (0..E).map(|e| logit(e).exp()).sum();
            let score = |e: usize| match spec.scoring {
                Scoring::Sigmoid => (1.0 + (logit(e) / 2.0).tanh()) / 2.0,
                Scoring::Softmax => logit(e).exp() / total,
            };
            let biased = |e: usize| score(e) + self.bias.as_ref().map_or(0.0, |b| f64::from(b[e]));
            let size = E / spec.n_group;
            let group_score = |g: usize| {
                let members = g * size..(g + 1) * size;
                let best = members
                    .clone()
                    .fold(f64::NEG_INFINITY, |m, e| m.max(biased(e)));
                let second = members
                    .filter(|e| biased(*e) < best)
                    .fold(f64::NEG_INFINITY, |m, e| m.max(biased(e)));
                best + if size > 1 { second } else { 0.0 }
            };
            let better = |g: usize| {
                (0..spec.n_group)
                    .filter(|o| group_score(*o) > group_score(g))
                    .count()
            };
            let allowed: Vec<usize> = (0..E)
                .filter(|e| spec.n_group == 1 || better(e / size) < spec.topk_group)
                .collect();
            let higher = |e: usize| allowed.iter().filter(|o| biased(**o) > biased(e)).count();
            let chosen: Vec<usize> = allowed
                .iter()
                .copied()
                .filter(|e| higher(*e) < spec.k)
                .collect();
            let sum: f64 = chosen.iter().map(|e| score(*e)).sum();
            let norm = if spec.norm { sum } else { 1.0 };
            weights.extend(
                chosen
                    .iter()
                    .map(|e| score(*e) / norm * f64::from(spec.scale)),
            );
            ids.extend(chosen.iter().map(|e| *e as i32));
        }
        (ids, weights)
    }
}

#[test]
fn the_router_chooses_by_biased_score_and_weighs_by_score() {
    let plain = RouterSpec {
        k: 4,
        scoring: Scoring::Sigmoid,
        n_group: 1,
        topk_group: 1,
        norm: true,
        scale: 2.5,
    };
    let specs = [
        plain,
        RouterSpec {
            norm: false,
            ..plain
        },
        RouterSpec {
            scoring: Scoring::Softmax,
            norm: false,
            scale: 1.0,
            ..plain
        },
        RouterSpec {
            n_group: 4,
            topk_group: 2,
            ..plain
        },
        RouterSpec {
            n_group: 3,
            topk_group: 1,
            k: 2,
            ..plain
        },
        RouterSpec {
            n_group: 12,
            topk_group: 5,
            k: 3,
            ..plain
        },
        RouterSpec { k: E, ..plain },
    ];
    for (i, spec) in specs.into_iter().enumerate() {
        for bias in [false, true] {
            let router = Router::random(40 + i as u64, spec, bias);
            let (ids, weights) = router.found();
            let (expected_ids, expected_weights) = router.expected();
            assert_eq!(ids, expected_ids, "{spec:?}, bias {bias}");
            assert_close(&weights, &expected_weights, BOUND);
        }
    }
}

/// Guards the test above: the bias and the groups change the choice.
#[test]
fn bias_and_groups_matter() {
    let spec = RouterSpec {
        k: 4,
        scoring: Scoring::Sigmoid,
        n_group: 1,
        topk_group: 1,
        norm: true,
        scale: 2.5,
    };
    let mut router = Router::random(50, spec, true);
    let with = router.found();
    router.spec = RouterSpec {
        n_group: 4,
        topk_group: 2,
        ..spec
    };
    assert_ne!(router.found().0, with.0);
    router.spec = spec;
    router.bias = None;
    assert_ne!(router.found().0, with.0);
}

#[test]
fn experts_are_gated_products_summed_by_weight() {
    const I: usize = 7;
    const OUT: usize = 11;
    let k = 3;
    let spec = RouterSpec {
        k,
        scoring: Scoring::Sigmoid,
        n_group: 1,
        topk_group: 1,
        norm: true,
        scale: 2.5,
    };
    let router = Router::random(60, spec, true);
    let mut random = Random(61);
    let (gate, up, down) = (
        random.units(E * I * D),
        random.units(E * I * D),
        random.units(E * OUT * I),
    );

    let mut feed = Feed::new(ROWS);
    let x = feed.values("x", &[D], &router.x);
    let weight = feed.weight("router", &[E, D], &router.weight);
    let bias = router.bias.as_ref().map(|b| feed.weight("bias", &[E], b));
    let ids = feed.b.temp("ids", GgmlType::I32, &[ROWS, k], Rows::Tokens);
    let expert_weights = feed
        .b
        .temp("weights", GgmlType::F32, &[ROWS, k], Rows::Tokens);
    feed.b.op(
        "route",
        Op::Route {
            x,
            weight,
            bias,
            spec,
            ids,
            expert_weights,
        },
    );
    let g = feed.weight("gate", &[E, I, D], &gate);
    let u = feed.weight("up", &[E, I, D], &up);
    let d = feed.weight("down", &[E, OUT, I], &down);
    let out = feed.out(&[OUT]);
    feed.b.op(
        "experts",
        Op::ExpertFfn {
            x,
            ids,
            expert_weights,
            gate: g,
            up: u,
            down: d,
            out,
        },
    );
    let results = feed.run();

    let (ids, weights) = router.expected();
    let mut expected = vec![0.0; ROWS * OUT];
    for (slot, (e, w)) in ids.iter().zip(weights).enumerate() {
        let (t, e) = (slot / k, *e as usize);
        let product = |m: &[f32], i: usize| -> f64 {
            (0..D)
                .map(|j| f64::from(m[(e * I + i) * D + j]) * f64::from(router.x[t * D + j]))
                .sum()
        };
        for i in 0..I {
            let (g, u) = (product(&gate, i), product(&up, i));
            let hidden = g / (1.0 + (-g).exp()) * u;
            for o in 0..OUT {
                expected[t * OUT + o] += w * hidden * f64::from(down[(e * OUT + o) * I + i]);
            }
        }
    }
    // Three experts of 13 and 7 terms with weights up to 2.5.
    assert_close(results.f32s("out").unwrap(), &expected, BOUND);
}
