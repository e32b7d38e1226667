//! Each row-wise operation of the reference executor against another way of computing it, in f64 and in one piece.
//! Attention and the indexer are in `ops_attention.rs`, routing and experts in `ops_moe.rs`, output rows and
//! sampling in `ops_head.rs`.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::close::assert_close;
use common::feed::Feed;
use common::weights::Random;
use glim_plan::{Cols, GgmlType, InputKind, Op, Precision, RopeSpec, RopeStyle, Rows};

/// Values below are of the order of one and sums have at most 40 terms: f32 rounding is 40 · 2⁻²⁴ = 2.4e-6 at worst.
const BOUND: f64 = 5e-6;

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|v| f64::from(*v)).collect()
}

#[test]
fn rms_norm_of_a_range_of_columns() {
    let (rows, width, start, len) = (5, 17, 3, 11);
    let mut random = Random(1);
    let (x, w) = (random.units(rows * width), random.units(len));
    let mut feed = Feed::new(rows);
    let buffer = feed.values("x", &[width], &x);
    let weight = feed.weight("w", &[len], &w);
    let out = feed.out(&[len]);
    feed.b.op(
        "norm",
        Op::RmsNorm {
            x: Cols { buffer, start, len },
            weight,
            eps: 1e-3,
            out,
        },
    );
    let expected: Vec<f64> = wide(&x)
        .chunks(width)
        .flat_map(|row| {
            let part = &row[start..start + len];
            let rms = (part.iter().map(|v| v.powi(2)).sum::<f64>() / len as f64
                + f64::from(1e-3f32))
            .sqrt();
            part.iter()
                .zip(&w)
                .map(|(v, w)| v / rms * f64::from(*w))
                .collect::<Vec<_>>()
        })
        .collect();
    assert_close(feed.run().f32s("out").unwrap(), &expected, BOUND);
}

#[test]
fn layer_norm_has_mean_variance_and_bias() {
    let (rows, width) = (4, 13);
    let mut random = Random(2);
    let (x, w, bias) = (
        random.units(rows * width),
        random.units(width),
        random.units(width),
    );
    let mut feed = Feed::new(rows);
    let buffer = feed.values("x", &[width], &x);
    let weight = feed.weight("w", &[width], &w);
    let b = feed.weight("b", &[width], &bias);
    let out = feed.out(&[width]);
    feed.b.op(
        "norm",
        Op::LayerNorm {
            x: Cols {
                buffer,
                start: 0,
                len: width,
            },
            weight,
            bias: b,
            eps: 1e-2,
            out,
        },
    );
    let expected: Vec<f64> = wide(&x)
        .chunks(width)
        .flat_map(|row| {
            let n = width as f64;
            let mean = row.iter().sum::<f64>() / n;
            // E[x²] − E[x]²: fine in f64.
            let variance = row.iter().map(|v| v * v).sum::<f64>() / n - mean * mean;
            let sd = (variance + f64::from(1e-2f32)).sqrt();
            (0..width)
                .map(|i| (row[i] - mean) / sd * f64::from(w[i]) + f64::from(bias[i]))
                .collect::<Vec<_>>()
        })
        .collect();
    assert_close(feed.run().f32s("out").unwrap(), &expected, BOUND);
}

#[test]
fn a_linear_is_a_product_with_each_of_its_weights() {
    let (rows, k, m) = (6, 37, [5, 8]);
    let mut random = Random(3);
    let x = random.units(rows * k);
    let w = m.map(|m| random.units(m * k));
    let mut feed = Feed::new(rows);
    let input = feed.values("x", &[k], &x);
    let weights = vec![
        feed.weight("w0", &[m[0], k], &w[0]),
        feed.weight("w1", &[m[1], k], &w[1]),
    ];
    let second = feed
        .b
        .result("second", GgmlType::F32, &[rows, 2, 4], Rows::Tokens);
    let outs = vec![feed.out(&[m[0]]), second];
    feed.b.op(
        "product",
        Op::Linear {
            x: input,
            weights,
            outs,
            precision: Precision::Fast,
        },
    );
    let results = feed.run();
    for (name, w) in [("out", &w[0]), ("second", &w[1])] {
        let (x, w) = (wide(&x), wide(w));
        let expected: Vec<f64> = x
            .chunks(k)
            .flat_map(|x| {
                w.chunks(k)
                    .map(move |w| (0..k).rev().map(|i| x[i] * w[i]).sum::<f64>())
            })
            .collect();
        assert_close(results.f32s(name).unwrap(), &expected, BOUND);
    }
}

/// As complex numbers: a pair is `a + ib`, a rotation is a factor `e^{iφ}`. The angle is specified as an f32 product of the position
/// and an f32 frequency: with the exact angle the row at position 100 000 would differ by 2e-3.
fn check_rope(style: RopeStyle, pair: impl Fn(usize, usize) -> (usize, usize)) {
    let (rows, heads, width, start, n, theta) = (9, 2, 13, 3, 8, 50.0f32);
    let x = Random(4).units(rows * heads * width);
    // Not the row's number, so that a mix-up shows; one of them far out.
    let positions: Vec<i32> = vec![0, 1, 7, 3, 100_000, 2, 2, 19, 65_535];
    let mut feed = Feed::new(rows);
    let buffer = feed.values("x", &[heads, width], &x);
    let position_input = feed.b.input(InputKind::Positions);
    let spec = RopeSpec {
        start,
        n,
        theta,
        style,
    };
    feed.b.op(
        "rope",
        Op::Rope {
            x: buffer,
            positions: position_input,
            spec,
        },
    );
    // Through an exact product, because a result cannot be an embedding.
    let total = heads * width;
    let one: Vec<f32> = (0..total * total)
        .map(|i| if i % (total + 1) == 0 { 1.0 } else { 0.0 })
        .collect();
    let one = feed.weight("one", &[total, total], &one);
    let out = feed.out(&[heads, width]);
    let op = Op::Linear {
        x: buffer,
        weights: vec![one],
        outs: vec![out],
        precision: Precision::F32,
    };
    feed.b.op("copy", op);
    let given = positions.clone();
    let results = feed.run_with(|inputs| inputs.set_i32(InputKind::Positions, given).unwrap());

    let mut expected = wide(&x);
    for (row, position) in expected.chunks_mut(total).zip(&positions) {
        for head in row.chunks_mut(width) {
            for i in 0..n / 2 {
                let frequency = 1.0 / f64::from(theta).powf(2.0 * i as f64 / n as f64) as f32;
                let angle = f64::from(*position as f32 * frequency);
                let (a, b) = pair(i, n);
                let (re, im) = (head[start + a], head[start + b]);
                let (length, phase) = (re.hypot(im), im.atan2(re));
                head[start + a] = length * (phase + angle).cos();
                head[start + b] = length * (phase + angle).sin();
            }
        }
    }
    assert_close(results.f32s("out").unwrap(), &expected, BOUND);
}

#[test]
fn interleaved_rope_turns_neighbours() {
    check_rope(RopeStyle::Interleaved, |i, _| (2 * i, 2 * i + 1));
}

#[test]
fn half_split_rope_turns_halves() {
    check_rope(RopeStyle::HalfSplit, |i, n| (i, i + n / 2));
}

#[test]
fn swiglu_gates_and_add_adds() {
    let (rows, width) = (3, 19);
    let mut random = Random(5);
    let gate: Vec<f32> = random.units(rows * width).iter().map(|v| 9.0 * v).collect();
    let up = random.units(rows * width);
    let mut feed = Feed::new(rows);
    let (g, u) = (
        feed.values("gate", &[width], &gate),
        feed.values("up", &[width], &up),
    );
    let act = feed
        .b
        .temp("act", GgmlType::F32, &[rows, width], Rows::Tokens);
    feed.b.op(
        "act",
        Op::SwiGlu {
            gate: g,
            up: u,
            out: act,
        },
    );
    let out = feed.out(&[width]);
    feed.b.op("add", Op::Add { a: act, b: u, out });
    let expected: Vec<f64> = wide(&gate)
        .iter()
        .zip(wide(&up))
        // σ(z) = (1 + tanh(z/2)) / 2.
        .map(|(g, u)| g * (1.0 + (g / 2.0).tanh()) / 2.0 * u + u)
        .collect();
    assert_close(feed.run().f32s("out").unwrap(), &expected, BOUND);
}

#[test]
fn a_head_project_multiplies_each_head_by_its_own_weight() {
    let (rows, heads, width, start, n, m) = (4, 3, 9, 2, 5, 7);
    let mut random = Random(6);
    let (x, w) = (
        random.units(rows * heads * width),
        random.units(heads * m * n),
    );
    let mut feed = Feed::new(rows);
    let buffer = feed.values("x", &[heads, width], &x);
    let weight = feed.weight("w", &[heads, m, n], &w);
    let out = feed.out(&[heads, m]);
    feed.b.op(
        "project",
        Op::HeadProject {
            x: Cols {
                buffer,
                start,
                len: n,
            },
            weight,
            out,
        },
    );
    let mut expected = Vec::new();
    for t in 0..rows {
        for h in 0..heads {
            for j in 0..m {
                let at = |i: usize| {
                    f64::from(w[(h * m + j) * n + i])
                        * f64::from(x[(t * heads + h) * width + start + i])
                };
                expected.push((0..n).map(at).sum());
            }
        }
    }
    assert_close(feed.run().f32s("out").unwrap(), &expected, BOUND);
}
