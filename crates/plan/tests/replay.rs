//! The replay form of the reference executor: one prepared plan serves every step of its bucket. The input block is poisoned
//! before it is filled, so whatever a step does not set anew shows. Comparisons are bit by bit.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::drive::{Chunk, GREEDY, Rig, Row, fill, prepare, run, run_filled};
use common::toy::{self, GEOMETRY, SLOTS, VOCAB};
use glim_plan::reference::ReferenceOptions;
use glim_plan::{Backend, InputKind, ReadTarget, StepInputs};

/// A prompt longer than the indexer keeps, without repetition.
fn prompt(seed: i32, n: usize) -> Vec<i32> {
    (0..n as i32)
        .map(|i| (seed + 7 * i + i * i) % VOCAB as i32)
        .collect()
}

/// A step of the history: which plan, and what it gets.
enum Step {
    Prefill(Vec<Chunk>),
    Decode(Vec<Chunk>),
}

const A: [i32; 4] = [5, 2, 9, 11];
const B: [i32; 3] = [0, 7, 3];
const C: [i32; 5] = [21, 20, 31, 4, 6];

/// Three prefills and three decodes, with other sequences, numbers of rows, positions and block tables each time.
fn history() -> Vec<Step> {
    let a = |tokens: &[i32], start| Chunk::new(tokens, start, &A, 3);
    let b = |tokens: &[i32], start| Chunk::new(tokens, start, &B, 0);
    let c = |tokens: &[i32], start| Chunk::new(tokens, start, &C, 6);
    vec![
        Step::Prefill(vec![a(&prompt(1, 7), 0)]),
        Step::Decode(vec![a(&[12], 7)]),
        Step::Prefill(vec![b(&prompt(2, 4), 0), c(&prompt(3, 9), 0)]),
        Step::Decode(vec![b(&[8], 4), c(&[30], 9), a(&[1], 8)]),
        Step::Prefill(vec![c(&prompt(4, 3), 10), a(&prompt(5, 2), 9), b(&[40], 5)]),
        Step::Decode(vec![c(&[17], 13), b(&[2], 6)]),
    ]
}

fn play(rig: &mut Rig, step: &Step) -> Vec<Row> {
    match step {
        Step::Prefill(chunks) => rig.prefill(chunks),
        Step::Decode(chunks) => rig.decode(chunks),
    }
    .unwrap()
}

#[test]
fn one_prepared_step_serves_every_step_of_its_bucket() {
    let steps = history();
    let mut rig = Rig::new();
    let replayed: Vec<Vec<Row>> = steps.iter().map(|step| play(&mut rig, step)).collect();

    for (i, step) in steps.iter().enumerate() {
        // A fresh backend with the same history; the step under test runs on a copy of the plan that has never run.
        let mut fresh = Rig::new();
        steps[..i]
            .iter()
            .for_each(|step| drop(play(&mut fresh, step)));
        let rows = match step {
            Step::Prefill(chunks) => {
                let mut copy = prepare(&mut fresh.backend, toy::prefill(16, 3));
                run(&mut fresh.backend, &mut copy, chunks)
            }
            Step::Decode(chunks) => {
                let mut copy = prepare(&mut fresh.backend, toy::decode(4));
                run(&mut fresh.backend, &mut copy, chunks)
            }
        };
        assert_eq!(replayed[i], rows.unwrap(), "step {i}");
    }
    assert_eq!(
        replayed.iter().map(Vec::len).collect::<Vec<_>>(),
        [7, 1, 13, 3, 6, 2]
    );
}

/// Guards the other tests: if the rows did not depend on what came before, they would prove nothing.
#[test]
fn rows_depend_on_token_position_and_history() {
    let logits = |tokens: &[i32]| Rig::new().prefill(&[Chunk::new(tokens, 0, &C, 1)]).unwrap();
    let tokens = prompt(3, 12);
    let rows = logits(&tokens);
    assert!(rows.iter().all(|row| {
        row.logits
            .iter()
            .all(|bits| f32::from_bits(*bits).is_finite())
    }));
    for changed in [0, 5, 11] {
        let mut other = tokens.clone();
        other[changed] = (other[changed] + 1) % VOCAB as i32;
        let other = logits(&other);
        assert_eq!(rows[..changed], other[..changed], "causal");
        assert_ne!(rows[changed].logits, other[changed].logits);
    }
    // Between two rows there is only the cache.
    let mut other = tokens.clone();
    other[0] = (other[0] + 1) % VOCAB as i32;
    assert_ne!(rows[1].logits, logits(&other)[1].logits);
    // The same token twice, at two positions.
    let twice = logits(&[9, 9]);
    assert_ne!(twice[0].logits, twice[1].logits);
}

#[test]
fn pad_rows_and_the_size_of_the_bucket_change_nothing() {
    let prompt = prompt(6, 7);
    let sequence = |rig: &mut Rig| {
        let mut rows = rig.prefill(&[Chunk::new(&prompt, 0, &A, 2)]).unwrap();
        rows.extend(rig.decode(&[Chunk::new(&[13], 7, &A, 2)]).unwrap());
        rows
    };
    let tight = sequence(&mut Rig::with(
        ReferenceOptions::default(),
        toy::decode(1),
        toy::prefill(7, 1),
    ));
    let wide = sequence(&mut Rig::with(
        ReferenceOptions::default(),
        toy::decode(8),
        toy::prefill(64, 5),
    ));
    assert_eq!(tight, wide);
}

/// Pad rows with hostile content: only the counts say what is live.
#[test]
fn the_content_of_pad_rows_is_never_looked_at() {
    let mut rig = Rig::new();
    let chunks = [Chunk::new(&prompt(6, 5), 0, &B, 2)];
    let clean = rig.prefill(&chunks).unwrap();
    let state = |rig: &Rig| rig.backend.read(ReadTarget::State("blk.1.latent")).unwrap();
    let before = state(&rig);

    fill(&mut rig.prefill.inputs, &chunks).unwrap();
    for kind in [
        InputKind::Tokens,
        InputKind::Positions,
        InputKind::SlotMapping,
    ] {
        let mut words: Vec<i32> = rig
            .prefill
            .inputs
            .get(kind)
            .iter()
            .map(|w| *w as i32)
            .collect();
        words[5..].fill(i32::MAX);
        rig.prefill.inputs.set_i32(kind, words).unwrap();
    }
    let Rig {
        backend, prefill, ..
    } = &mut rig;
    assert_eq!(run_filled(backend, prefill).unwrap(), clean);
    assert_eq!(state(&rig), before);
}

/// A row whose state is already there (the last token of a prefix hit, say) is computed again without being written again.
#[test]
fn a_live_row_without_a_slot_is_computed_but_not_appended() {
    let mut rig = Rig::new();
    let tokens = prompt(6, 7);
    let rows = rig.prefill(&[Chunk::new(&tokens, 0, &A, 2)]).unwrap();
    let state = |rig: &Rig| rig.backend.read(ReadTarget::State("blk.1.latent")).unwrap();
    let before = state(&rig);
    let mut again = |token: i32| {
        fill(&mut rig.decode.inputs, &[Chunk::new(&[token], 6, &A, 2)]).unwrap();
        rig.decode
            .inputs
            .set_i32(InputKind::SlotMapping, [-1])
            .unwrap();
        let Rig {
            backend, decode, ..
        } = &mut rig;
        run_filled(backend, decode).unwrap()
    };
    assert_eq!(again(tokens[6]), rows[6..]);
    // Another token would have another state.
    assert_ne!(again((tokens[6] + 1) % VOCAB as i32), rows[6..]);
    assert_eq!(state(&rig), before);
}

#[test]
fn a_step_without_live_rows_does_nothing() {
    let mut rig = Rig::new();
    rig.prefill(&[Chunk::new(&prompt(1, 7), 0, &A, 3)]).unwrap();
    let state = |rig: &Rig| rig.backend.read(ReadTarget::State("blk.0.latent")).unwrap();
    let before = state(&rig);
    rig.decode.inputs = StepInputs::new(&rig.decode.plan);
    let Rig {
        backend, decode, ..
    } = &mut rig;
    assert_eq!(run_filled(backend, decode).unwrap(), []);
    assert_eq!(state(&rig), before);
}

#[test]
fn a_batch_gives_every_row_what_it_gets_alone() {
    let (a, b, c) = (
        Chunk::new(&prompt(1, 5), 0, &A, 3),
        Chunk::new(&prompt(2, 3), 0, &B, 0),
        Chunk::new(&prompt(3, 8), 0, &C, 6),
    );
    let next =
        |chunk: &Chunk, token| Chunk::new(&[token], chunk.tokens.len(), &chunk.blocks, chunk.slot);
    let mut together = Rig::new();
    let prefilled = together
        .prefill(&[a.clone(), b.clone(), c.clone()])
        .unwrap();
    let decoded = together
        .decode(&[next(&a, 4), next(&b, 5), next(&c, 6)])
        .unwrap();

    let (mut rows, mut last) = (Vec::new(), Vec::new());
    for (chunk, token) in [(a, 4), (b, 5), (c, 6)] {
        let mut alone = Rig::new();
        rows.extend(alone.prefill(std::slice::from_ref(&chunk)).unwrap());
        last.extend(alone.decode(&[next(&chunk, token)]).unwrap());
    }
    assert_eq!(prefilled, rows);
    assert_eq!(decoded, last);
}

#[test]
fn chunks_of_a_prompt_give_what_the_whole_gives() {
    let tokens = prompt(8, 15);
    let whole = Rig::new()
        .prefill(&[Chunk::new(&tokens, 0, &C, 1)])
        .unwrap();
    for size in [1, 3, 7] {
        let mut rig = Rig::new();
        let rows: Vec<Row> = tokens
            .chunks(size)
            .enumerate()
            .flat_map(|(i, part)| rig.prefill(&[Chunk::new(part, i * size, &C, 1)]).unwrap())
            .collect();
        assert_eq!(rows, whole, "chunks of {size}");
    }
    // Row by row through the decode plan: the same mathematics.
    let mut rig = Rig::new();
    let rows: Vec<Row> = tokens
        .iter()
        .enumerate()
        .flat_map(|(i, t)| rig.decode(&[Chunk::new(&[*t], i, &C, 1)]).unwrap())
        .collect();
    assert_eq!(rows, whole);
}

#[test]
fn a_carried_token_is_the_sampled_one() {
    let (a, b) = (
        Chunk::new(&prompt(1, 5), 0, &A, 3),
        Chunk::new(&prompt(2, 3), 0, &B, 7),
    );
    let last = |rows: &[Row], end: usize| rows[end - 1].token;

    let mut explicit = Rig::new();
    let rows = explicit.prefill(&[a.clone(), b.clone()]).unwrap();
    let (mut token_a, mut token_b) = (last(&rows, 5), last(&rows, 8));
    let mut expected = Vec::new();
    for i in 0..4 {
        let rows = explicit
            .decode(&[
                Chunk::new(&[token_a], 5 + i, &A, 3),
                Chunk::new(&[token_b], 3 + i, &B, 7),
            ])
            .unwrap();
        (token_a, token_b) = (rows[0].token, rows[1].token);
        expected.push(rows);
    }

    let mut carried = Rig::new();
    carried.prefill(&[a, b]).unwrap();
    for (i, expected) in expected.iter().enumerate() {
        // The rows change places; the slot tells which token is whose.
        let rows = carried
            .decode(&[
                Chunk::new(&[-1], 3 + i, &B, 7),
                Chunk::new(&[-1], 5 + i, &A, 3),
            ])
            .unwrap();
        assert_eq!(
            [&rows[1], &rows[0]],
            [&expected[0], &expected[1]],
            "step {i}"
        );
    }
    let carry = carried
        .backend
        .read(ReadTarget::Carry("carry.token"))
        .unwrap();
    let slots: Vec<i32> = carry
        .chunks_exact(4)
        .map(|b| i32::from_le_bytes(b.try_into().unwrap()))
        .collect();
    let mut expected = [0; SLOTS];
    (expected[3], expected[7]) = (token_a, token_b);
    assert_eq!(slots, expected);
}

#[test]
fn the_physical_order_of_blocks_does_not_matter() {
    let tokens = prompt(5, 14);
    let rows = |blocks: [i32; 6]| {
        let mut rig = Rig::new();
        // What was in the blocks before must not matter either.
        let stale: Vec<i32> = (0..GEOMETRY.max_blocks as i32).collect();
        rig.prefill(&[Chunk::new(&prompt(9, 16), 0, &stale, 0)])
            .unwrap();
        let mut rows = rig.prefill(&[Chunk::new(&tokens, 0, &blocks, 1)]).unwrap();
        rows.extend(
            (14..18).flat_map(|p| rig.decode(&[Chunk::new(&[-1], p, &blocks, 1)]).unwrap()),
        );
        rows
    };
    let expected = rows([0, 1, 2, 3, 4, 5]);
    assert_eq!(rows([5, 4, 3, 2, 1, 0]), expected);
    assert_eq!(rows([30, 0, 17, 2, 31, 9]), expected);
}

#[test]
fn a_fork_shares_the_blocks_of_its_prefix() {
    let prefix = prompt(5, 6);
    let mut rig = Rig::new();
    rig.prefill(&[Chunk::new(&prefix, 0, &[4, 8], 0)]).unwrap();
    // Two continuations on the same two full blocks.
    let rows = rig
        .decode(&[
            Chunk::new(&[3], 6, &[4, 8, 1], 1),
            Chunk::new(&[6], 6, &[4, 8, 2], 2),
        ])
        .unwrap();
    for (row, token) in rows.iter().zip([3, 6]) {
        let mut alone = Rig::new();
        let slot = if token == 3 { 1 } else { 2 };
        alone.prefill(&[Chunk::new(&prefix, 0, &A, slot)]).unwrap();
        assert_eq!(
            *row,
            alone.decode(&[Chunk::new(&[token], 6, &A, slot)]).unwrap()[0]
        );
    }
}

#[test]
fn greedy_rows_take_the_largest_logit() {
    let mut chunk = Chunk::new(&prompt(2, 9), 0, &A, 3);
    chunk.draw = GREEDY;
    for row in Rig::new().prefill(&[chunk]).unwrap() {
        let logits: Vec<f32> = row.logits.iter().map(|b| f32::from_bits(*b)).collect();
        let best = (0..VOCAB).fold(0, |best, i| if logits[i] > logits[best] { i } else { best });
        assert_eq!(row.token, best as i32);
    }
}
