//! Each row-wise operation of the reference executor against another way of computing it, in f64 and in one piece.
//! Attention and the indexer are in `ops_attention.rs`, routing and experts in `ops_moe.rs`.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::close::assert_close;
use common::feed::Feed;
use common::weights::Random;
use glim_plan::sample::{SampleParams, sample_row};
use glim_plan::{
    Cols, GgmlType, InputKind, Op, Precision, RopeSpec, RopeStyle, Rows, SampleInputs,
};

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

#[test]
fn embed_select_and_head_pick_rows() {
    let (rows, d, vocab) = (6, 5, 7);
    let mut random = Random(7);
    let (x, w) = (random.units(rows * d), random.units(vocab * d));
    let mut feed = Feed::new(rows);
    feed.b.outputs(4, vocab);
    let buffer = feed.values("x", &[d], &x);
    let output_rows = feed.b.input(InputKind::OutputRows);
    let selected = feed
        .b
        .temp("selected", GgmlType::F32, &[4, d], Rows::Outputs);
    feed.b.op(
        "select",
        Op::SelectRows {
            x: buffer,
            output_rows,
            out: selected,
        },
    );
    let weight = feed.weight("head", &[vocab, d], &w);
    let logits = feed
        .b
        .result("logits", GgmlType::F32, &[4, vocab], Rows::Outputs);
    feed.b.op(
        "head",
        Op::LmHead {
            x: selected,
            weight,
            out: logits,
        },
    );
    let tokens = [2, 0, 5, 5, 1, 3];
    let picked = [4usize, 4, 1];
    // The fourth output row is a pad.
    let results = feed.run_with(|inputs| {
        inputs.set_i32(InputKind::Tokens, tokens).unwrap();
        inputs
            .set_i32(InputKind::OutputRows, picked.map(|row| row as i32))
            .unwrap();
    });
    let expected: Vec<f64> = picked
        .iter()
        .flat_map(|row| {
            let x = &x[tokens[*row] as usize * d..][..d];
            w.chunks(d).map(move |w| {
                x.iter()
                    .zip(w)
                    .map(|(a, b)| f64::from(*a) * f64::from(*b))
                    .sum()
            })
        })
        .collect();
    assert_close(
        &results.f32s("logits").unwrap()[..3 * vocab],
        &expected,
        BOUND,
    );
}

/// Merging is by value, then by id; the candidates come in any order.
#[test]
fn top_k_merge_takes_the_largest_and_the_lower_of_equals() {
    let (rows, c, k) = (4, 3, 2);
    let values = [
        1.0, 5.0, 3.0, 2.0, 2.0, 2.0, -1.0, -3.0, -2.0, 0.0, -0.0, 0.0f32,
    ];
    let ids = [9, 4, 7, 30, 20, 10, 0, 1, 2, 8, 3, 5];
    let mut feed = Feed::new(rows);
    feed.b.outputs(rows, 1);
    let x = feed.values("x", &[c], &values);
    let output_rows = feed.b.input(InputKind::OutputRows);
    let selected = feed
        .b
        .temp("selected", GgmlType::F32, &[rows, c], Rows::Outputs);
    feed.b.op(
        "select",
        Op::SelectRows {
            x,
            output_rows,
            out: selected,
        },
    );
    // The one i32 input with three words a row.
    let id_input = feed.b.input(InputKind::Seeds);
    let out_values = feed
        .b
        .result("best", GgmlType::F32, &[rows, k], Rows::Outputs);
    let out_ids = feed
        .b
        .result("ids", GgmlType::I32, &[rows, k], Rows::Outputs);
    feed.b.op(
        "merge",
        Op::TopKMerge {
            values: selected,
            ids: id_input,
            k,
            out_values,
            out_ids,
        },
    );
    let results = feed.run_with(|inputs| inputs.set_i32(InputKind::Seeds, ids).unwrap());
    assert_eq!(
        results.f32s("best").unwrap(),
        [5.0, 3.0, 2.0, 2.0, -1.0, -2.0, 0.0, 0.0]
    );
    assert_eq!(results.i32s("ids").unwrap(), [4, 7, 10, 20, 0, 2, 3, 5]);
}

#[test]
fn sample_draws_each_row_with_its_own_parameters() {
    let (rows, vocab) = (5, 40);
    let logits: Vec<f32> = Random(8)
        .units(rows * vocab)
        .iter()
        .map(|v| 4.0 * v)
        .collect();
    let mut feed = Feed::new(rows);
    feed.b.outputs(rows, vocab);
    let x = feed.values("x", &[vocab], &logits);
    let output_rows = feed.b.input(InputKind::OutputRows);
    let selected = feed
        .b
        .temp("selected", GgmlType::F32, &[rows, vocab], Rows::Outputs);
    feed.b.op(
        "select",
        Op::SelectRows {
            x,
            output_rows,
            out: selected,
        },
    );
    let inputs = SampleInputs {
        output_rows,
        positions: feed.b.input(InputKind::Positions),
        temperature: feed.b.input(InputKind::Temperature),
        top_k: feed.b.input(InputKind::TopK),
        top_p: feed.b.input(InputKind::TopP),
        seeds: feed.b.input(InputKind::Seeds),
        token_mask: feed.b.input(InputKind::TokenMask),
    };
    let out = feed
        .b
        .result("token", GgmlType::I32, &[rows], Rows::Outputs);
    feed.b.op(
        "sample",
        Op::Sample {
            logits: selected,
            inputs,
            carry: None,
            out,
        },
    );

    // Output row n is row 4 − n, so that the row's own position counts.
    let positions = [100, 3, 57, i32::MAX, 8];
    let seed = 0xDEAD_BEEF_0123_4567u64;
    let temperature = [0.0, 1.0, 0.7, 1.3, 0.0];
    let (top_k, top_p) = ([0, 0, 5, 0, 0], [1.0, 1.0, 1.0, 0.6, 1.0]);
    // The last row may only draw 6 or 33.
    let masks = [
        [u32::MAX; 2],
        [u32::MAX; 2],
        [u32::MAX; 2],
        [u32::MAX; 2],
        [1 << 6, 1 << 1],
    ];
    let results = feed.run_with(|inputs| {
        inputs
            .set_i32(InputKind::OutputRows, [4, 3, 2, 1, 0])
            .unwrap();
        inputs.set_i32(InputKind::Positions, positions).unwrap();
        inputs.set_f32(InputKind::Temperature, temperature).unwrap();
        inputs.set_i32(InputKind::TopK, top_k).unwrap();
        inputs.set_f32(InputKind::TopP, top_p).unwrap();
        inputs
            .set(
                InputKind::Seeds,
                (0..5u32).flat_map(|n| [seed as u32, (seed >> 32) as u32, n]),
            )
            .unwrap();
        inputs.set(InputKind::TokenMask, masks.concat()).unwrap();
    });
    let expected: Vec<i32> = (0..rows)
        .map(|n| {
            let row = 4 - n;
            let params = SampleParams {
                temperature: temperature[n],
                top_k: top_k[n] as usize,
                top_p: top_p[n],
                seed,
                choice: n as u32,
                position: (positions[row] as u32).wrapping_add(1),
            };
            sample_row(&logits[row * vocab..][..vocab], &masks[n], &params)
        })
        .collect();
    let found = results.i32s("token").unwrap();
    assert_eq!(found, expected);
    // The arg-max rows, without the sampler's own code.
    let row = &logits[4 * vocab..];
    assert!(row.iter().all(|l| *l <= row[found[0] as usize]));
    assert_eq!(found[4], if logits[6] >= logits[33] { 6 } else { 33 });
}

#[test]
fn edges_of_the_sampler() {
    let params = SampleParams {
        temperature: 1.0,
        top_k: 1,
        top_p: 1.0,
        seed: 1,
        choice: 0,
        position: 0,
    };
    // Zero and minus zero are equal, and the lower id is kept.
    for position in 0..50 {
        let params = SampleParams { position, ..params };
        assert_eq!(sample_row(&[-0.0, 0.0, -1.0], &[7], &params), 0);
    }
    // The inverse of a subnormal temperature is infinite; of an enormous one, almost zero.
    let tiny = SampleParams {
        temperature: 1e-45,
        top_k: 0,
        ..params
    };
    assert_eq!(
        sample_row(&[-3.0, 2.0, f32::MIN, 1.999_999], &[15], &tiny),
        1
    );
    let flat = SampleParams {
        temperature: f32::MAX,
        top_k: 0,
        ..params
    };
    let drawn: std::collections::BTreeSet<i32> = (0..200)
        .map(|position| sample_row(&[-9.0, 9.0, 3.0], &[7], &SampleParams { position, ..flat }))
        .collect();
    assert_eq!(drawn.into_iter().collect::<Vec<_>>(), [0, 1, 2]);
    // What is masked cannot win, nor set the scale.
    let masked = SampleParams {
        temperature: 1e-30,
        top_k: 0,
        ..params
    };
    assert_eq!(sample_row(&[1e30, 5.0, 4.0], &[6], &masked), 1);
}
