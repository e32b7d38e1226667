//! The indexer and latent attention against naive computations in f64, over a cache whose blocks lie in descending order.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::close::assert_close;
use common::feed::{Feed, GEOMETRY};
use common::weights::Random;
use glim_plan::{BufferId, Cols, GgmlType, InputExtents, InputKind, Op, Rows};

const F32: GgmlType = GgmlType::F32;
/// Values are of the order of one, sums have at most 40 terms and three of them follow each other: 3 · 40 · 2⁻²⁴.
const BOUND: f64 = 1e-5;

fn all(buffer: BufferId, len: usize) -> Cols {
    Cols {
        buffer,
        start: 0,
        len,
    }
}

fn append(feed: &mut Feed, parts: Vec<Cols>) -> BufferId {
    let slots = feed.b.input(InputKind::SlotMapping);
    let state = feed
        .b
        .paged_state("cache", F32, parts.iter().map(|p| p.len).sum());
    feed.b.op(
        "append",
        Op::CacheAppend {
            parts,
            slots,
            state,
        },
    );
    state
}

/// Scores of `rows` rows through the plan: `[rows, max positions]`.
fn index_scores(
    rows: usize,
    heads: usize,
    dim: usize,
    q: &[f32],
    w: &[f32],
    k: &[f32],
    scale: f32,
) -> Vec<f32> {
    let mut feed = Feed::new(rows);
    let key = feed.values("key", &[dim], k);
    let q = feed.values("q", &[heads, dim], q);
    let weights = feed.values("weights", &[heads], w);
    let keys = append(&mut feed, vec![all(key, dim)]);
    let paging = feed.paging();
    let out = feed.out(&[GEOMETRY.max_positions()]);
    feed.b.op(
        "score",
        Op::IndexScore {
            q,
            weights,
            keys,
            paging,
            scale,
            out,
        },
    );
    feed.run().f32s("out").unwrap().to_vec()
}

#[test]
fn index_scores_are_weighted_sums_of_what_is_positive() {
    let (rows, heads, dim, scale) = (11, 3, 5, 0.3f32);
    let mut random = Random(11);
    let (q, k) = (random.units(rows * heads * dim), random.units(rows * dim));
    let w = random.units(rows * heads);
    assert!(w.iter().any(|w| *w < 0.0), "negative head weights count");
    let scores = index_scores(rows, heads, dim, &q, &w, &k, scale);
    let mut cut = 0;
    for t in 0..rows {
        for s in 0..=t {
            let mut expected = 0.0;
            for h in 0..heads {
                let product =
                    |i: usize| f64::from(q[(t * heads + h) * dim + i]) * f64::from(k[s * dim + i]);
                let dot: f64 = (0..dim).map(product).sum();
                cut += usize::from(dot < 0.0);
                expected += if dot > 0.0 {
                    dot * f64::from(w[t * heads + h]) * f64::from(scale)
                } else {
                    0.0
                };
            }
            assert_close(
                &[scores[t * GEOMETRY.max_positions() + s]],
                &[expected],
                BOUND,
            );
        }
    }
    assert!(cut > 20, "{cut} products were cut off");
}

/// Selected positions of each row for a given `[rows, max positions]`.
fn select(rows: usize, topk: usize, scores: &[f32]) -> Vec<Vec<i32>> {
    let mut feed = Feed::new(rows);
    let scores = feed.values("scores", &[GEOMETRY.max_positions()], scores);
    let positions = feed.b.input(InputKind::Positions);
    let out = feed.out_i32("topk", topk);
    feed.b.op(
        "select",
        Op::IndexSelect {
            scores,
            positions,
            topk,
            forced: None,
            out,
        },
    );
    feed.run()
        .i32s("topk")
        .unwrap()
        .chunks(topk)
        .map(<[i32]>::to_vec)
        .collect()
}

#[test]
fn selection_takes_the_largest_visible_scores_ascending() {
    let (rows, topk) = (13, 4);
    let scores = Random(12).units(rows * GEOMETRY.max_positions());
    for (t, found) in select(rows, topk, &scores).iter().enumerate() {
        let row = &scores[t * GEOMETRY.max_positions()..];
        // One after the other, the largest that is left.
        let mut left: Vec<usize> = (0..=t).collect();
        let mut taken = Vec::new();
        while taken.len() < topk && !left.is_empty() {
            let best =
                (0..left.len()).fold(0, |b, i| if row[left[i]] > row[left[b]] { i } else { b });
            taken.push(left.remove(best) as i32);
        }
        taken.sort_unstable();
        taken.resize(topk, -1);
        assert_eq!(*found, taken, "row {t}");
    }
}

#[test]
fn equal_scores_at_the_border_go_to_the_lower_position() {
    let width = GEOMETRY.max_positions();
    let (rows, topk) = (8, 3);
    // Zero and minus zero are equal: negative head weights make the latter.
    for flat in [[0.0f32, 0.0], [-0.0, 0.0], [0.0, -0.0], [1.5, 1.5]] {
        let mut scores: Vec<f32> = (0..rows * width).map(|i| flat[i % width % 2]).collect();
        // One clear winner, at position 6.
        scores
            .iter_mut()
            .skip(6)
            .step_by(width)
            .for_each(|s| *s = 2.0);
        let found = select(rows, topk, &scores);
        assert_eq!(found[0], [0, -1, -1], "{flat:?}");
        assert_eq!(found[1], [0, 1, -1]);
        assert_eq!(found[5], [0, 1, 2]);
        assert_eq!(found[6], [0, 1, 6]);
        assert_eq!(found[7], [0, 1, 6]);
    }
}

/// Forced positions lie side by side for several selections; each reads its own columns.
#[test]
fn a_forced_row_takes_its_own_columns_and_the_others_choose() {
    let (rows, topk) = (7, 2);
    let scores = Random(14).units(rows * GEOMETRY.max_positions());
    let free = select(rows, topk, &scores);
    let mut feed = Feed::new(rows);
    feed.b.extents(InputExtents {
        outputs: rows,
        vocab_size: 0,
        forced: 2 * topk,
    });
    let scores = feed.values("scores", &[GEOMETRY.max_positions()], &scores);
    let positions = feed.b.input(InputKind::Positions);
    let buffer = feed.b.input(InputKind::ForcedTopk);
    for (name, start) in [("first", 0), ("second", topk)] {
        let out = feed.out_i32(name, topk);
        let forced = Some(Cols {
            buffer,
            start,
            len: topk,
        });
        feed.b.op(
            name,
            Op::IndexSelect {
                scores,
                positions,
                topk,
                forced,
                out,
            },
        );
    }
    // Row 3 is forced in both, row 5 in the second only, row 6 to fewer than it could have.
    let mut words = vec![[-1; 4]; rows];
    words[3] = [0, 1, 2, 3];
    words[5] = [-1, 4, 1, 5];
    words[6] = [6, -1, -1, -1];
    let results = feed.run_with(|inputs| {
        inputs
            .set_i32(InputKind::ForcedTopk, words.concat())
            .unwrap();
    });
    let rows_of = |name| -> Vec<Vec<i32>> {
        results
            .i32s(name)
            .unwrap()
            .chunks(topk)
            .map(<[i32]>::to_vec)
            .collect()
    };
    let (mut first, mut second) = (free.clone(), free);
    (first[3], first[6]) = (vec![0, 1], vec![6, -1]);
    (second[3], second[5]) = (vec![2, 3], vec![1, 5]);
    assert_eq!((rows_of("first"), rows_of("second")), (first, second));
}

#[test]
fn a_context_within_topk_is_selected_whole() {
    let scores = Random(13).units(5 * GEOMETRY.max_positions());
    for (t, found) in select(5, 9, &scores).iter().enumerate() {
        let expected: Vec<i32> = (0..9).map(|s| if s <= t as i32 { s } else { -1 }).collect();
        assert_eq!(*found, expected);
    }
}

/// Sizes of an attention: rows, heads, latent rank, nope and rope parts of a query head, value head.
const T: usize = 10;
const H: usize = 3;
const R: usize = 7;
const NOPE: usize = 5;
const ROPE: usize = 4;
const V: usize = 6;
const SCALE: f32 = 0.4;

struct Attention {
    q: Vec<f32>,
    c: Vec<f32>,
    k_pe: Vec<f32>,
    k_b: Vec<f32>,
    v_b: Vec<f32>,
    scores: Vec<f32>,
}

impl Attention {
    fn random(seed: u64) -> Self {
        let mut random = Random(seed);
        Self {
            q: random
                .units(T * H * (NOPE + ROPE))
                .iter()
                .map(|v| 2.0 * v)
                .collect(),
            c: random.units(T * R),
            k_pe: random.units(T * ROPE),
            k_b: random.units(H * R * NOPE),
            v_b: random.units(H * V * R),
            scores: random.units(T * GEOMETRY.max_positions()),
        }
    }

    /// Absorbed, through the plan: `v_b · attend(k_b · q_nope, q_rope, [c ‖ k_pe])`.
    fn absorbed(&self, topk: Option<usize>) -> Vec<f32> {
        let mut feed = Feed::new(T);
        let q = feed.values("q", &[H, NOPE + ROPE], &self.q);
        let c = feed.values("c", &[R], &self.c);
        let k_pe = feed.values("k_pe", &[ROPE], &self.k_pe);
        let latent = append(&mut feed, vec![all(c, R), all(k_pe, ROPE)]);
        let topk = topk.map(|topk| {
            let scores = feed.values("scores", &[GEOMETRY.max_positions()], &self.scores);
            let positions = feed.b.input(InputKind::Positions);
            let out = feed.b.temp("topk", GgmlType::I32, &[T, topk], Rows::Tokens);
            feed.b.op(
                "select",
                Op::IndexSelect {
                    scores,
                    positions,
                    topk,
                    forced: None,
                    out,
                },
            );
            out
        });
        let k_b = feed.weight("k_b", &[H, R, NOPE], &self.k_b);
        let q_latent = feed.b.temp("q_latent", F32, &[T, H, R], Rows::Tokens);
        feed.b.op(
            "k_b",
            Op::HeadProject {
                x: all(q, NOPE),
                weight: k_b,
                out: q_latent,
            },
        );
        let q_rope = Cols {
            buffer: q,
            start: NOPE,
            len: ROPE,
        };
        let paging = feed.paging();
        let context = feed.b.temp("context", F32, &[T, H, R], Rows::Tokens);
        feed.b.op(
            "attend",
            Op::MlaAttend {
                q_latent,
                q_rope,
                latent,
                topk,
                paging,
                scale: SCALE,
                out: context,
            },
        );
        let v_b = feed.weight("v_b", &[H, V, R], &self.v_b);
        let out = feed.out(&[H, V]);
        feed.b.op(
            "v_b",
            Op::HeadProject {
                x: all(context, R),
                weight: v_b,
                out,
            },
        );
        feed.run().f32s("out").unwrap().to_vec()
    }

    /// Expanded to keys and values of every head, as in ordinary multi-head attention.
    fn expanded(&self, topk: Option<usize>) -> Vec<f64> {
        let at = |v: &[f32], i: usize| f64::from(v[i]);
        let key = |s: usize, h: usize| -> Vec<f64> {
            let nope = (0..NOPE).map(|n| {
                (0..R)
                    .map(|r| at(&self.k_b, (h * R + r) * NOPE + n) * at(&self.c, s * R + r))
                    .sum()
            });
            nope.chain((0..ROPE).map(|i| at(&self.k_pe, s * ROPE + i)))
                .collect()
        };
        let value = |s: usize, h: usize| -> Vec<f64> {
            (0..V)
                .map(|v| {
                    (0..R)
                        .map(|r| at(&self.v_b, (h * V + v) * R + r) * at(&self.c, s * R + r))
                        .sum()
                })
                .collect()
        };
        let mut out = Vec::new();
        for t in 0..T {
            let visible = self.visible(t, topk);
            for h in 0..H {
                let query = &self.q[(t * H + h) * (NOPE + ROPE)..][..NOPE + ROPE];
                let score = |s: &usize| -> f64 {
                    f64::from(SCALE)
                        * key(*s, h)
                            .iter()
                            .zip(query)
                            .map(|(k, q)| k * f64::from(*q))
                            .sum::<f64>()
                };
                // Without subtracting the maximum: f64 has room.
                let weights: Vec<f64> = visible.iter().map(|s| score(s).exp()).collect();
                let sum: f64 = weights.iter().sum();
                for v in 0..V {
                    out.push(
                        visible
                            .iter()
                            .zip(&weights)
                            .map(|(s, w)| w / sum * value(*s, h)[v])
                            .sum(),
                    );
                }
            }
        }
        out
    }

    /// By rank: a position is kept if fewer than `topk` visible ones score higher.
    fn visible(&self, t: usize, topk: Option<usize>) -> Vec<usize> {
        let row = &self.scores[t * GEOMETRY.max_positions()..][..=t];
        let higher = |s: usize| row.iter().filter(|other| **other > row[s]).count();
        (0..=t)
            .filter(|s| topk.is_none_or(|k| higher(*s) < k))
            .collect()
    }
}

#[test]
fn absorbed_attention_is_expanded_attention() {
    for seed in 0..5 {
        let attention = Attention::random(seed);
        assert_close(&attention.absorbed(None), &attention.expanded(None), BOUND);
    }
}

#[test]
fn sparse_attention_is_expanded_attention_over_the_chosen_positions() {
    for topk in [1, 3, 8] {
        let attention = Attention::random(20 + topk as u64);
        let (found, expected) = (
            attention.absorbed(Some(topk)),
            attention.expanded(Some(topk)),
        );
        assert_close(&found, &expected, BOUND);
        // Late rows differ from dense attention, early rows do not.
        let dense = attention.absorbed(None);
        assert_eq!(found[..topk * H * V], dense[..topk * H * V]);
        assert_ne!(found[topk * H * V..], dense[topk * H * V..]);
    }
}

#[test]
fn scores_that_overflow_an_exponential_still_have_a_softmax() {
    let mut attention = Attention::random(31);
    attention.q.iter_mut().for_each(|q| *q *= 1e4);
    let found = attention.absorbed(None);
    assert!(found.iter().all(|v| v.is_finite()));
    // One position takes all: each row is one cached row's value.
    for t in 0..T {
        for h in 0..H {
            let row = &found[(t * H + h) * V..][..V];
            let near = (0..=t).any(|s| {
                (0..V).all(|v| {
                    let value: f64 = (0..R)
                        .map(|r| {
                            f64::from(attention.v_b[(h * V + v) * R + r])
                                * f64::from(attention.c[s * R + r])
                        })
                        .sum();
                    (value - f64::from(row[v])).abs() < BOUND
                })
            });
            assert!(near, "row {t}, head {h}");
        }
    }
}
