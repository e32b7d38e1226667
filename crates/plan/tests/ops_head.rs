//! What happens to output rows: selection, the output head, merging of candidates, and the sampler in a plan.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::close::assert_close;
use common::feed::Feed;
use common::weights::Random;
use glim_plan::sample::{SampleParams, sample_row};
use glim_plan::{GgmlType, InputKind, Op, Rows, SampleInputs};

/// Sums of five products of the order of one.
const BOUND: f64 = 1e-6;

#[test]
fn embed_select_and_head_pick_rows() {
    let (rows, d, vocab) = (6, 5, 7);
    let mut random = Random(7);
    let (x, w) = (random.units(rows * d), random.units(vocab * d));
    let mut feed = Feed::new(rows);
    feed.outputs(4, vocab);
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
    feed.outputs(rows, 1);
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
    feed.outputs(rows, vocab);
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
        min_p: feed.b.input(InputKind::MinP),
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
            ids: None,
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
                min_p: 0.0,
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
        min_p: 0.0,
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
