//! The draw held against its specification, `glim_plan::sample`: token for token, over vocabularies of many blocks, with ties, and
//! with cuts that leave thousands of candidates.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;
#[path = "common/single.rs"]
mod single;

use glim_cuda::CudaBackend;
use glim_plan::reference::moe::top_k_merge;
use glim_plan::sample::{SampleParams, sample_row, shortlist};
use glim_plan::{Backend, GgmlType, InputKind, Op, Rows, SampleInputs, StepKind};
use glim_testkit::parity::blocks::Random;

use self::single::{Inputs, Session, Single};

const F32: GgmlType = GgmlType::F32;
const I32: GgmlType = GgmlType::I32;

fn backend() -> Box<dyn Backend> {
    Box::new(CudaBackend::new(common::options()).unwrap())
}

fn sample_inputs(plan: &mut Single) -> SampleInputs {
    let mut input = |kind| plan.b.input(kind);
    SampleInputs {
        output_rows: input(InputKind::OutputRows),
        positions: input(InputKind::Positions),
        temperature: input(InputKind::Temperature),
        top_k: input(InputKind::TopK),
        top_p: input(InputKind::TopP),
        min_p: input(InputKind::MinP),
        seeds: input(InputKind::Seeds),
        token_mask: input(InputKind::TokenMask),
    }
}

/// Rows of a step.
const ROWS: usize = 8;

/// A plan that draws from the rows of a table.
fn sampler(vocab: usize, table: &[f32]) -> Session {
    let mut plan = Single::new(StepKind::Decode { rows: ROWS }, vocab, 0);
    let x = plan.activation(vocab, table);
    let logits = plan.outputs(x, vocab);
    let inputs = sample_inputs(&mut plan);
    let out = plan.result("token", I32, 1, Rows::Outputs);
    let sample = Op::Sample {
        logits,
        ids: None,
        inputs,
        carry: None,
        out,
    };
    plan.b.op("sample", sample);
    plan.on(backend())
}

fn params(position: u32) -> SampleParams {
    SampleParams {
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        seed: 0x1234_5678_9abc_def0,
        choice: position % 3,
        position: position + 1,
    }
}

/// Logits of about the given spread; coarse ones are full of ties.
fn logits(random: &mut Random, n: usize, spread: f32, coarse: bool) -> Vec<f32> {
    let mut logits = random.units(n);
    for l in &mut logits {
        *l *= spread;
        if coarse {
            *l = (*l * 2.0).round() * 0.5;
        }
    }
    logits
}

fn masks(random: &mut Random, vocab: usize, rows: usize, all: bool) -> Vec<u32> {
    (0..rows * vocab.div_ceil(32))
        .map(|_| if all { u32::MAX } else { random.word() as u32 })
        .collect()
}

/// Draws from every row of `table` with each of `settings`, a step of rows at a time.
fn check(vocab: usize, table: &[f32], settings: &[SampleParams], random: &mut Random) {
    let mut session = sampler(vocab, table);
    let (rows, words) = (table.len() / vocab, vocab.div_ceil(32));
    let draws: Vec<(usize, SampleParams)> = settings
        .iter()
        .enumerate()
        .flat_map(|(s, p)| (0..rows).map(move |row| (s * rows + row, row, *p)))
        .map(|(i, row, p)| {
            let (seed, position) = (p.seed ^ (i as u64) << 29, i as u32 * 7 % 250 + 1);
            (
                row,
                SampleParams {
                    seed,
                    position,
                    ..p
                },
            )
        })
        .collect();
    for (step, draws) in draws.chunks(ROWS).enumerate() {
        let masks = masks(random, vocab, draws.len(), step % 2 == 0);
        let inputs = Inputs {
            tokens: draws.iter().map(|(row, _)| *row as i32).collect(),
            draws: draws.iter().map(|(_, p)| *p).collect(),
            masks,
            ..Inputs::default()
        };
        let results = session.run(&inputs).unwrap();
        let tokens = results.i32s("token").unwrap();
        for (n, (row, p)) in draws.iter().enumerate() {
            let logits = &table[row * vocab..][..vocab];
            let expected = sample_row(logits, &inputs.masks[n * words..][..words], p);
            assert_eq!(tokens[n], expected, "row {row} of {vocab}, {p:?}");
        }
    }
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn random_rows_are_drawn_as_specified() {
    let random = &mut Random::named(11, "rows");
    let p = params(0);
    let settings = [
        SampleParams {
            temperature: 0.0,
            ..p
        },
        p,
        SampleParams {
            temperature: 1e-38,
            ..p
        },
        SampleParams {
            temperature: 40.0,
            ..p
        },
        SampleParams { top_k: 1, ..p },
        SampleParams { top_k: 5, ..p },
        SampleParams {
            top_k: 40,
            top_p: 0.6,
            ..p
        },
        SampleParams {
            top_k: 699,
            top_p: 0.999,
            ..p
        },
        SampleParams { top_k: 700, ..p },
        SampleParams { top_k: 5000, ..p },
        SampleParams { top_p: 0.0, ..p },
        SampleParams { top_p: 0.9, ..p },
        SampleParams {
            top_p: 0.999_999_94,
            temperature: 3.0,
            ..p
        },
        SampleParams {
            min_p: 0.1,
            temperature: 2.0,
            ..p
        },
        SampleParams { min_p: 1.0, ..p },
        SampleParams {
            top_k: 60,
            top_p: 0.8,
            min_p: 0.05,
            temperature: 1.5,
            ..p
        },
    ];
    for (vocab, spread, coarse) in [(700, 6.0, false), (700, 3.0, true), (4099, 9.0, false)] {
        let table = logits(random, 8 * vocab, spread, coarse);
        check(vocab, &table, &settings, random);
    }
}

/// Every bound lies among equals, and the token of the lowest id must win.
#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn ties_go_to_the_lowest_token() {
    let vocab = 9000;
    let mut table = vec![0.25f32; 3 * vocab];
    // One level above, with −0 and 0 as equals; and one that is larger than all.
    for id in 0..vocab {
        table[vocab + id] = if id % 3 == 1 { 0.0 } else { -0.0 };
        table[2 * vocab + id] = (id % 7) as f32;
    }
    let p = params(0);
    let settings = [
        SampleParams {
            temperature: 0.0,
            ..p
        },
        SampleParams { top_k: 1, ..p },
        SampleParams { top_k: 100, ..p },
        SampleParams { top_k: 4321, ..p },
        // More than are sorted at once.
        SampleParams { top_k: 8500, ..p },
        SampleParams { top_p: 0.25, ..p },
        SampleParams {
            top_k: 3000,
            top_p: 0.5,
            ..p
        },
    ];
    check(vocab, &table, &settings, &mut Random::named(12, "ties"));
}

/// More candidates than are sorted at once, for the sum of all and for the prefix.
#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn top_p_reaches_over_thousands_of_candidates() {
    let random = &mut Random::named(13, "many");
    let vocab = 20_011;
    let mut table = logits(random, vocab, 4.0, false);
    table.extend(logits(random, vocab, 1.0, true));
    let p = params(0);
    let settings = [
        SampleParams { top_p: 0.02, ..p },
        SampleParams { top_p: 0.5, ..p },
        SampleParams { top_p: 0.97, ..p },
        SampleParams {
            top_k: 12_000,
            top_p: 0.99,
            ..p
        },
    ];
    check(vocab, &table, &settings, random);
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn rows_without_a_possible_token_get_a_code() {
    let vocab = 2500;
    let mut table = vec![1.0f32; 4 * vocab];
    table[vocab - 1] = f32::NAN;
    table[2 * vocab - 1] = f32::INFINITY;
    table[2 * vocab..3 * vocab].fill(f32::NEG_INFINITY);
    table[3 * vocab..].fill(f32::MIN);
    let p = params(0);
    let settings = [
        SampleParams {
            temperature: 0.0,
            ..p
        },
        p,
        SampleParams {
            top_k: 3,
            top_p: 0.5,
            ..p
        },
    ];
    check(vocab, &table, &settings, &mut Random::named(14, "codes"));
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn shortlists_hold_what_is_specified() {
    let random = &mut Random::named(15, "shortlist");
    const FIRST: usize = 77;
    for (width, k, coarse) in [
        (5000, 64, false),
        (5000, 33, true),
        (300, 64, false),
        (70, 1, true),
    ] {
        let mut table = logits(random, 4 * width, 5.0, coarse);
        table[width / 2] = f32::NAN;
        let mut plan = Single::new(StepKind::Decode { rows: ROWS }, FIRST + width, 0);
        let x = plan.activation(width, &table);
        let part = plan.outputs(x, width);
        let inputs = sample_inputs(&mut plan);
        let out_values = plan.result("values", F32, k, Rows::Outputs);
        let out_ids = plan.result("ids", I32, k, Rows::Outputs);
        let op = Op::Shortlist {
            logits: part,
            first_id: FIRST,
            inputs,
            k,
            out_values,
            out_ids,
        };
        plan.b.op("shortlist", op);
        let mut session = plan.on(backend());
        let words = (FIRST + width).div_ceil(32);
        for (step, all) in [true, false].into_iter().enumerate() {
            let mut inputs = Inputs {
                tokens: (0..ROWS as i32).map(|t| t % 4).collect(),
                draws: (0..ROWS as u32).map(|n| params(9 + n)).collect(),
                masks: masks(random, FIRST + width, ROWS, all),
                ..Inputs::default()
            };
            for (n, draw) in inputs.draws.iter_mut().enumerate() {
                (draw.temperature, draw.top_k) =
                    [(0.0, 0), (1.0, 0), (0.7, k), (1.3, 0)][(n / 2 + step) % 4];
            }
            if step == 1 {
                // A row of which nearly nothing is allowed: empty places.
                inputs.masks[2 * words..3 * words].fill(0);
                inputs.masks[2 * words + 3] = 0xff;
            }
            let results = session.run(&inputs).unwrap();
            let (values, ids) = (
                results.f32s("values").unwrap(),
                results.i32s("ids").unwrap(),
            );
            for (n, draw) in inputs.draws.iter().enumerate() {
                let logits = &table[n % 4 * width..][..width];
                let mask = &inputs.masks[n * words..][..words];
                let mut kept = shortlist(logits, FIRST, mask, draw, k);
                let is_corrupt = kept.iter().any(|(_, l)| l.is_nan());
                let mut expected: Vec<(i32, u32)> = kept
                    .drain(..)
                    .map(|(id, l)| (id as i32, l.to_bits()))
                    .collect();
                expected.resize(k, (-1, f32::NEG_INFINITY.to_bits()));
                let found: Vec<(i32, u32)> = (0..k)
                    .map(|i| (ids[n * k + i], values[n * k + i].to_bits()))
                    .collect();
                assert_eq!(found, expected, "row {n} of {width}, corrupt: {is_corrupt}");
            }
        }
    }
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn merged_candidates_are_in_the_specified_order() {
    let random = &mut Random::named(16, "merge");
    for (candidates, k) in [(24, 24), (600, 50), (5, 2)] {
        let rows = 6;
        let mut values = logits(random, rows * candidates, 3.0, true);
        values[1] = f32::NAN;
        values[candidates + 1] = f32::NEG_INFINITY;
        values[2 * candidates + 2] = -0.0;
        values[2 * candidates] = 0.0;
        let step = StepKind::Prefill {
            tokens: rows,
            sequences: 1,
        };
        let mut plan = Single::new(step, 0, candidates);
        let x = plan.activation(candidates, &values);
        let ids = plan.b.input(InputKind::ForcedTopk);
        let out_values = plan.result("values", F32, k, Rows::Tokens);
        let out_ids = plan.result("ids", I32, k, Rows::Tokens);
        let op = Op::TopKMerge {
            values: x,
            ids,
            k,
            out_values,
            out_ids,
        };
        plan.b.op("merge", op);
        let mut session = plan.on(backend());
        // Of each row two are empty places, and the ids are in no order.
        let id = |i: usize| {
            if i % candidates < 2 {
                -1
            } else {
                (i * 7919 % 10_007) as i32
            }
        };
        let inputs = Inputs {
            tokens: (0..rows as i32).collect(),
            forced: (0..rows * candidates).map(id).collect(),
            ..Inputs::default()
        };
        let results = session.run(&inputs).unwrap();
        let (found, ids) = (
            results.f32s("values").unwrap(),
            results.i32s("ids").unwrap(),
        );
        for row in 0..rows {
            let at = row * candidates..(row + 1) * candidates;
            let expected = top_k_merge(&values[at.clone()], &inputs.forced[at], k);
            for (i, (value, id)) in expected.into_iter().enumerate() {
                let at = row * k + i;
                assert_eq!(ids[at], id, "row {row}, place {i}");
                assert_eq!(found[at].to_bits(), value.to_bits(), "row {row}, place {i}");
            }
        }
    }
}
