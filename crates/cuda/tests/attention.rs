//! Attention and the indexer where the parity table does not look: rows that are cut into several chunks, long contexts, many ties,
//! lists that end early, large positions. The scalar reference says what is right.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;
#[path = "common/paged.rs"]
mod paged;

use glim_cuda::CudaBackend;
use glim_plan::reference::{ReferenceBackend, ReferenceOptions, attention::index_select};
use glim_plan::{
    Backend, BackendError, Cols, GgmlType, InputKind, Op, RopeSpec, RopeStyle, StepKind,
    StepResults,
};
use glim_testkit::parity::blocks::Random;

use self::paged::{Paged, Row, Session, last_rows};

const F32: GgmlType = GgmlType::F32;
const I32: GgmlType = GgmlType::I32;

fn backend() -> Box<dyn Backend> {
    Box::new(CudaBackend::new(common::options()).unwrap())
}

fn reference() -> Box<dyn Backend> {
    Box::new(ReferenceBackend::new(ReferenceOptions::default()))
}

const fn decode(rows: usize) -> StepKind {
    StepKind::Decode { rows }
}

/// The bits of the first `rows` rows of a result.
fn bits(session: &Session, results: &StepResults, name: &str, rows: usize) -> Vec<Vec<u32>> {
    let width = session.width(name);
    let words = results.words(name).unwrap();
    words
        .chunks_exact(width)
        .take(rows)
        .map(<[u32]>::to_vec)
        .collect()
}

/// Row by row, the error's mean square against that of the values: within the parity table's bound of a softmax.
fn assert_close(found: &[Vec<u32>], expected: &[Vec<u32>], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (row, (found, expected)) in found.iter().zip(expected).enumerate() {
        let (mut error, mut square) = (0.0, 0.0);
        for (i, (f, e)) in found.iter().zip(expected).enumerate() {
            let (f, e) = (f32::from_bits(*f), f32::from_bits(*e));
            assert_eq!(
                f.is_finite(),
                e.is_finite(),
                "{what}, row {row}, element {i}"
            );
            if e.is_finite() {
                error += f64::from(f - e).powi(2);
                square += f64::from(e).powi(2);
            }
        }
        // 80 sums of up to 2^12 products (testkit, parity/bounds.rs).
        let bound = 80.0 * 4096.0 / (1u64 << 50) as f64;
        assert!(
            error <= bound * square,
            "{what}, row {row}: {:e}",
            error / square
        );
    }
}

// ---- latent attention ------------------------------------------------------------------------------------------------------------

#[derive(Debug, Clone, Copy)]
struct Shape {
    heads: usize,
    rank: usize,
    rope: usize,
}

const SMALL: Shape = Shape {
    heads: 8,
    rank: 24,
    rope: 8,
};

/// Attention of rows over sequences of these lengths; with `topk`, over positions of an input of so many columns.
fn attention(
    step: StepKind,
    shape: Shape,
    lens: &[usize],
    topk: Option<usize>,
    on: Box<dyn Backend>,
) -> Session {
    let Shape { heads, rank, rope } = shape;
    let tokens = lens.len();
    let mut random = Random::named(31, "attention");
    let mut plan = Paged::new(step, lens, tokens, topk.unwrap_or(0));
    let cached: usize = lens.iter().sum();
    let latent = plan.state("latent", rank + rope, &random.units(cached * (rank + rope)));
    let q_latent = plan.activation(
        "q_latent",
        &[heads, rank],
        &random.units(tokens * heads * rank),
    );
    // The rotated columns come after four that are not.
    let q = plan.activation(
        "q",
        &[heads, rope + 4],
        &random.units(tokens * heads * (rope + 4)),
    );
    let topk = topk.map(|_| plan.b.input(InputKind::ForcedTopk));
    let out = plan.result("out", F32, &[heads, rank]);
    let op = Op::MlaAttend {
        q_latent,
        q_rope: Cols {
            buffer: q,
            start: 4,
            len: rope,
        },
        latent,
        topk,
        paging: plan.paging(),
        // Scores of size 3: the softmax has a few peaks, and chunks differ in their maximum.
        scale: 9.0 / ((rank + rope) as f32).sqrt(),
        out,
    };
    plan.b.op("attend", op);
    plan.on(on)
}

/// Lengths around the borders of a chunk, of all chunks of the smallest size, and of a doubled chunk.
const LENS: [usize; 7] = [31, 32, 33, 2047, 2048, 2049, 5000];

/// Attention on the GPU and in the reference.
fn both(
    step: StepKind,
    shape: Shape,
    lens: &[usize],
    rows: &[Row],
    choice: Option<&[Vec<i32>]>,
) -> [Vec<Vec<u32>>; 2] {
    let topk = choice.map(|rows| rows[0].len());
    [backend(), reference()].map(|on| {
        let mut session = attention(step, shape, lens, topk, on);
        let results = session.run(rows, choice.unwrap_or_default()).unwrap();
        bits(&session, &results, "out", rows.len())
    })
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn rows_of_every_length_attend_to_all_their_positions() {
    let rows = last_rows(&LENS);
    let [found, expected] = both(decode(8), SMALL, &LENS, &rows, None);
    assert_close(&found, &expected, "8 heads");

    let lens = [2049, 33];
    for shape in [
        // A tile of heads that is not full, and parts that are not whole vectors.
        Shape {
            heads: 11,
            rank: 21,
            rope: 6,
        },
        Shape { heads: 64, ..SMALL },
        Shape { heads: 3, ..SMALL },
    ] {
        let [found, expected] = both(decode(2), shape, &lens, &last_rows(&lens), None);
        assert_close(&found, &expected, &format!("{shape:?}"));
    }
    // The shape that it is made for.
    let lens = [300, 16];
    let shape = Shape {
        heads: 8,
        rank: 512,
        rope: 64,
    };
    let [found, expected] = both(decode(2), shape, &lens, &last_rows(&lens), None);
    assert_close(&found, &expected, &format!("{shape:?}"));
}

/// A choice of at most `count` of a row's positions, ascending, in a list of `width`.
fn choice(position: usize, count: usize, width: usize, random: &mut Random) -> Vec<i32> {
    let mut all: Vec<i32> = (0..=position as i32).collect();
    // The first of a shuffle.
    let count = count.min(all.len());
    for i in 0..count {
        let other = i + random.below(all.len() - i);
        all.swap(i, other);
    }
    all.truncate(count);
    all.sort_unstable();
    all.resize(width, -1);
    all
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn rows_attend_to_the_positions_that_were_chosen() {
    let random = &mut Random::named(32, "choices");
    let rows = last_rows(&LENS);
    let mut choose = |count: usize, width: usize| -> Vec<Vec<i32>> {
        let rows = rows.iter();
        rows.map(|row| choice(row.position, count, width, random))
            .collect()
    };
    // As many as there is room for; fewer than a row sees; one; in a list that is no whole vector.
    for (count, width) in [(2048, 2048), (700, 2048), (1, 2048), (97, 97)] {
        let choice = choose(count, width);
        let [found, expected] = both(decode(8), SMALL, &LENS, &rows, Some(&choice));
        assert_close(&found, &expected, &format!("{count} of {width}"));
    }
    // Unordered, and with a position twice: whatever a list says.
    let mut lists = choose(2048, 2048);
    for list in &mut lists {
        let end = list.iter().position(|s| *s == -1).unwrap_or(list.len());
        list[..end].reverse();
        list[0] = list[end - 1];
    }
    let [found, expected] = both(decode(8), SMALL, &LENS, &rows, Some(&lists));
    assert_close(&found, &expected, "unordered");
    let shape = Shape { heads: 64, ..SMALL };
    let lens = [5000, 40];
    let rows = last_rows(&lens);
    let lists: Vec<Vec<i32>> = rows
        .iter()
        .map(|row| choice(row.position, 2048, 2048, &mut Random::named(33, "64")))
        .collect();
    let [found, expected] = both(decode(2), shape, &lens, &rows, Some(&lists));
    assert_close(&found, &expected, "64 heads");
}

/// A list ends at its first -1, wherever that is; what comes after is not looked at.
#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn a_list_ends_at_its_first_gap() {
    let ends = [0, 1, 31, 32, 33, 64, 100, 511];
    let lens = [600; 8];
    let rows = last_rows(&lens);
    let random = &mut Random::named(34, "gaps");
    for after in [3, i32::MAX, -7] {
        let lists: Vec<Vec<i32>> = rows
            .iter()
            .zip(ends)
            .map(|(row, end)| {
                let mut list = choice(row.position, 512, 512, random);
                list[end] = -1;
                list[end + 1..].fill(after);
                list
            })
            .collect();
        let prefill = StepKind::Prefill {
            tokens: 8,
            sequences: 8,
        };
        for step in [decode(8), prefill] {
            let [found, expected] = both(step, SMALL, &lens, &rows, Some(&lists));
            assert_close(
                &found,
                &expected,
                &format!("{after} after the end, {step:?}"),
            );
            assert!(found[0].iter().all(|v| *v == 0), "nothing gives zeros");
        }
    }
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn a_chosen_position_that_the_row_does_not_see_is_named() {
    let lens = [400, 90];
    let rows = last_rows(&lens);
    let good: Vec<Vec<i32>> = rows
        .iter()
        .map(|row| choice(row.position, 256, 256, &mut Random::named(35, "outside")))
        .collect();
    let mut session = attention(decode(2), SMALL, &lens, Some(256), backend());
    let before = session.run(&rows, &good).unwrap();
    for (row, at, wrong) in [(0, 200, 400), (0, 0, -2), (1, 40, 90), (1, 3, i32::MIN)] {
        let mut lists = good.clone();
        lists[row][at] = wrong;
        match session.run(&rows, &lists) {
            Err(BackendError::OutOfRange {
                op, found, bound, ..
            }) => {
                assert_eq!(
                    (&*op, found, bound),
                    ("attend", i64::from(wrong), lens[row])
                );
            }
            other => panic!("{other:?}"),
        }
    }
    // Of several the first, in whichever block of threads it is.
    let mut lists = good.clone();
    for (row, at, wrong) in [
        (1, 7, 95),
        (0, 250, 401),
        (0, 31, 403),
        (0, 64, 402),
        (0, 33, -9),
    ] {
        lists[row][at] = wrong;
    }
    for _ in 0..3 {
        match session.run(&rows, &lists) {
            Err(BackendError::OutOfRange { found: 403, .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    let after = session.run(&rows, &good).unwrap();
    assert_eq!(
        bits(&session, &after, "out", 2),
        bits(&session, &before, "out", 2),
        "a fault leaves nothing behind"
    );
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn a_row_of_attention_keeps_its_bits_in_any_company() {
    let lens = [5000, 17, 33, 900, 2048, 64, 2100, 1];
    let rows = last_rows(&lens);
    let lists: Vec<Vec<i32>> = rows
        .iter()
        .map(|row| choice(row.position, 1024, 1024, &mut Random::named(36, "company")))
        .collect();
    for topk in [None, Some(1024)] {
        let mut session = attention(decode(8), SMALL, &lens, topk, backend());
        let all = session.run(&rows, &lists).unwrap();
        let all = bits(&session, &all, "out", 8);
        let mut single = attention(decode(1), SMALL, &lens, topk, backend());
        for row in [0, 3, 4, 6, 7] {
            let (alone, list) = (&rows[row..=row], &lists[row..=row]);
            for session in [&mut session, &mut single] {
                let results = session.run(alone, list).unwrap();
                let found = bits(session, &results, "out", 1);
                assert_eq!(found[0], all[row], "row {row}, {topk:?}");
            }
        }
    }
}

/// Several rows of a sequence, as drafts are checked: each sees those before it.
#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn rows_of_one_sequence_see_their_own_part_of_it() {
    let lens = [70, 40];
    let row = |sequence, position, token| Row {
        sequence,
        position,
        token,
    };
    let rows = [
        row(0, 66, 0),
        row(0, 67, 1),
        row(0, 68, 0),
        row(0, 69, 1),
        row(1, 0, 1),
        row(1, 1, 0),
    ];
    for step in [
        decode(6),
        StepKind::Prefill {
            tokens: 9,
            sequences: 3,
        },
    ] {
        let [found, expected] = both(step, SMALL, &lens, &rows, None);
        assert_close(&found, &expected, &format!("{step:?}"));
    }
}

// ---- the indexer -----------------------------------------------------------------------------------------------------------------

/// Scores and the choice among them: queries, head weights and keys from these values.
struct Index<'a> {
    heads: usize,
    dim: usize,
    q: &'a [f32],
    weights: &'a [f32],
    keys: &'a [f32],
    topk: usize,
}

impl Index<'_> {
    fn on(&self, step: StepKind, lens: &[usize], on: Box<dyn Backend>) -> Session {
        let mut plan = Paged::new(step, lens, self.weights.len() / self.heads, 0);
        let keys = plan.state("keys", self.dim, self.keys);
        let q = plan.activation("q", &[self.heads, self.dim], self.q);
        let weights = plan.activation("weights", &[self.heads], self.weights);
        let scores = plan.max_positions();
        let scores = plan.result("scores", F32, &[scores]);
        let paging = plan.paging();
        let score = Op::IndexScore {
            q,
            weights,
            keys,
            paging,
            scale: 0.25,
            out: scores,
        };
        plan.b.op("score", score);
        let out = plan.result("topk", I32, &[self.topk]);
        let select = Op::IndexSelect {
            scores,
            positions: paging.positions,
            topk: self.topk,
            forced: None,
            out,
        };
        plan.b.op("select", select);
        plan.on(on)
    }
}

/// What a row is to choose among its scores.
fn expected_choice(scores: &[u32], visible: usize, topk: usize) -> Vec<u32> {
    let scores: Vec<f32> = scores[..visible]
        .iter()
        .map(|v| f32::from_bits(*v))
        .collect();
    let mut chosen: Vec<u32> = index_select(&scores, topk)
        .into_iter()
        .map(|s| s as u32)
        .collect();
    chosen.resize(topk, u32::MAX);
    chosen
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn long_rows_are_scored_and_chosen_as_in_the_reference() {
    let random = &mut Random::named(37, "index");
    let lens = [5100, 31, 2049, 2048, 65];
    let rows = last_rows(&lens);
    let cached: usize = lens.iter().sum();
    for (heads, dim, topk) in [(32, 128, 2048), (5, 20, 64), (9, 33, 2048)] {
        let index = Index {
            heads,
            dim,
            q: &random.units(lens.len() * heads * dim),
            weights: &random.units(lens.len() * heads),
            keys: &random.units(cached * dim),
            topk,
        };
        let [found, expected] = [backend(), reference()].map(|on| {
            let mut session = index.on(decode(6), &lens, on);
            let results = session.run(&rows, &[]).unwrap();
            ["scores", "topk"].map(|name| bits(&session, &results, name, rows.len()))
        });
        for (row, len) in lens.iter().enumerate() {
            let visible = |scores: &[Vec<u32>]| vec![scores[row][..*len].to_vec()];
            let what = format!("{heads} heads of {dim}, row {row}");
            assert_close(&visible(&found[0]), &visible(&expected[0]), &what);
            // Near-ties may have been rounded differently: the choice is held against the GPU's own scores.
            let choice = expected_choice(&found[0][row], *len, topk);
            assert_eq!(found[1][row], choice, "{what}");
        }
    }
}

/// Sums of small integers are exact, in any order: so are the scores, of which a few values come many times.
#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn ties_among_exact_scores_go_to_the_lower_positions() {
    let random = &mut Random::named(38, "ties");
    let (heads, dim, topk) = (32, 128, 2048);
    let lens = [5100, 2100];
    let rows = last_rows(&lens);
    let mut small = |n: usize| -> Vec<f32> {
        // Mostly zeros.
        let value = |r: usize| [1.0, -1.0].get(r).copied().unwrap_or(0.0);
        (0..n).map(|_| value(random.below(30))).collect()
    };
    let index = Index {
        heads,
        dim,
        q: &small(2 * heads * dim),
        weights: &small(2 * heads),
        keys: &small(7200 * dim),
        topk,
    };
    let prefill = StepKind::Prefill {
        tokens: 3,
        sequences: 2,
    };
    for step in [decode(2), prefill] {
        let [found, expected] = [backend(), reference()].map(|on| {
            let mut session = index.on(step, &lens, on);
            let results = session.run(&rows, &[]).unwrap();
            ["scores", "topk"].map(|name| bits(&session, &results, name, rows.len()))
        });
        for (row, len) in lens.iter().enumerate() {
            let [found_scores, scores] = [&found, &expected].map(|x| {
                let visible = x[0][row][..*len].iter();
                visible.map(|v| f32::from_bits(*v)).collect::<Vec<f32>>()
            });
            assert_eq!(found_scores, scores, "row {row}, {step:?}");
            let mut values: Vec<u32> = scores.iter().map(|v| (v + 0.0).to_bits()).collect();
            values.sort_unstable();
            values.dedup();
            assert!(values.len() < 100, "{} different scores", values.len());
        }
        assert_eq!(found[1], expected[1], "{step:?}");
    }
}

/// The choice alone, of given scores by token.
fn select(step: StepKind, topk: usize, lens: &[usize], scores: &[f32]) -> [Vec<Vec<u32>>; 2] {
    [backend(), reference()].map(|on| {
        let mut plan = Paged::new(step, lens, lens.len(), 0);
        let width = plan.max_positions();
        assert_eq!(width * lens.len(), scores.len());
        let scores = plan.flat("scores", width, scores);
        let out = plan.result("topk", I32, &[topk]);
        let op = Op::IndexSelect {
            scores,
            positions: plan.paging().positions,
            topk,
            forced: None,
            out,
        };
        plan.b.op("select", op);
        let mut session = plan.on(on);
        let results = session.run(&last_rows(lens), &[]).unwrap();
        bits(&session, &results, "topk", lens.len())
    })
}

/// Scores of one kind: by number, position and randomness.
type Kind = (&'static str, fn(usize, &mut Random) -> f32);

const KINDS: [Kind; 8] = [
    ("spread", |_, r| r.unit() * 30.0),
    ("nine values", |_, r| r.below(9) as f32 - 4.0),
    ("all equal", |_, _| 1.5),
    ("mostly zeros of both signs", |i, r| match r.below(40) {
        0 => r.unit(),
        1 => -0.0,
        _ => [0.0, -0.0][i % 2],
    }),
    ("close together", |_, r| {
        f32::from_bits(0x3f80_0000 + r.below(40) as u32)
    }),
    ("of all sizes", |_, r| {
        f32::from_bits(r.word() as u32 & 0xff7f_ffff)
    }),
    ("rising", |i, _| i as f32),
    ("infinities and NaN", |_, r| match r.below(12) {
        0 => f32::INFINITY,
        1 => f32::NEG_INFINITY,
        2 => f32::NAN,
        3 => -f32::NAN,
        4 => f32::from_bits(0x7fc0_0000 + r.below(5) as u32),
        _ => r.unit(),
    }),
];

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn the_choice_is_exact_whatever_the_scores_are() {
    let random = &mut Random::named(39, "scores");
    // One length for each kind; the plan has room for more.
    let lens = [5003, 5000, 4999, 5003, 2049, 5001, 2050, 5003];
    let width = 5003usize.div_ceil(16) * 16 + 48;
    let mut scores = Vec::new();
    for ((_, of), len) in KINDS.iter().zip(lens) {
        scores.extend((0..len).map(|i| of(i, random)));
        // What a row does not see would be chosen first.
        scores.resize(scores.len().div_ceil(width) * width, f32::NAN);
    }
    let prefill = StepKind::Prefill {
        tokens: 8,
        sequences: 8,
    };
    for (step, topk) in [
        (decode(8), 2048),
        (decode(8), 1),
        (decode(8), 2049),
        (prefill, 2048),
        (prefill, 5),
    ] {
        let [found, expected] = select(step, topk, &lens, &scores);
        for (row, (kind, _)) in KINDS.iter().enumerate() {
            assert_eq!(found[row], expected[row], "{topk} of {kind}, {step:?}");
        }
    }
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn the_choice_is_exact_among_seventy_thousand() {
    let random = &mut Random::named(40, "many");
    let kinds = [KINDS[0], KINDS[1], KINDS[3], KINDS[7]];
    let lens = [70_001; 4];
    let width = 70_001usize.div_ceil(16) * 16 + 48;
    let mut scores = Vec::new();
    for (_, of) in kinds {
        scores.extend((0..width).map(|i| of(i, random)));
    }
    let [found, expected] = select(decode(4), 2048, &lens, &scores);
    for (row, (kind, _)) in kinds.iter().enumerate() {
        assert_eq!(found[row], expected[row], "{kind}");
    }
}

/// The whole way: chosen by score, or by force, then attended to; forced rows beside others.
#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn forced_rows_attend_to_what_they_are_given() {
    const TOPK: usize = 128;
    let lens = [1500, 700, 100];
    let rows = last_rows(&lens);
    let mut random = Random::named(41, "forced");
    let forced = vec![
        choice(lens[0] - 1, TOPK, TOPK, &mut random),
        vec![-1; TOPK],
        choice(lens[2] - 1, 50, TOPK, &mut random),
    ];
    let [found, expected] = [backend(), reference()].map(|on| {
        let mut random = Random::named(42, "values");
        let Shape { heads, rank, rope } = SMALL;
        let mut plan = Paged::new(decode(4), &lens, 3, TOPK);
        let cached = 2300 * (rank + rope);
        let latent = plan.state("latent", rank + rope, &random.units(cached));
        let width = plan.max_positions();
        let scores = plan.flat("scores", width, &random.units(3 * width));
        let paging = plan.paging();
        let topk = plan.result("topk", I32, &[TOPK]);
        let select = Op::IndexSelect {
            scores,
            positions: paging.positions,
            topk: TOPK,
            forced: Some(Cols {
                buffer: plan.b.input(InputKind::ForcedTopk),
                start: 0,
                len: TOPK,
            }),
            out: topk,
        };
        plan.b.op("select", select);
        let q_latent = plan.activation("q", &[heads, rank], &random.units(3 * heads * rank));
        let q_rope = plan.activation("q_rope", &[heads, rope], &random.units(3 * heads * rope));
        let out = plan.result("out", F32, &[heads, rank]);
        let attend = Op::MlaAttend {
            q_latent,
            q_rope: Cols {
                buffer: q_rope,
                start: 0,
                len: rope,
            },
            latent,
            topk: Some(topk),
            paging,
            scale: 0.5,
            out,
        };
        plan.b.op("attend", attend);
        let mut session = plan.on(on);
        let results = session.run(&rows, &forced).unwrap();
        ["topk", "out"].map(|name| bits(&session, &results, name, rows.len()))
    });
    assert_eq!(found[0], expected[0]);
    assert_close(&found[1], &expected[1], "values");
}

// ---- rotary embedding --------------------------------------------------------------------------------------------------------------

/// Angles grow with the position: what is lost of them shows far out.
#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn angles_are_exact_far_out() {
    const POSITIONS: [usize; 6] = [0, 1, 4097, 131_071, 150_000, 1_048_575];
    let lens = POSITIONS.map(|_| 1);
    let (heads, width, start, n) = (3, 72, 6, 64);
    let values = Random::named(43, "rope").units(POSITIONS.len() * heads * width);
    let prefill = StepKind::Prefill {
        tokens: 7,
        sequences: 6,
    };
    for step in [decode(6), prefill] {
        for (theta, style) in [
            (1e4, RopeStyle::Interleaved),
            (1e6, RopeStyle::HalfSplit),
            (8e6, RopeStyle::Interleaved),
        ] {
            let [found, expected] = [backend(), reference()].map(|on| {
                // Rope reads no cache, so positions are bound by nothing but the plan's geometry.
                let mut plan = Paged::of_positions(step, &lens, 1 << 20);
                let x = plan.activation("x", &[heads, width], &values);
                let positions = plan.b.input(InputKind::Positions);
                let spec = RopeSpec {
                    start,
                    n,
                    theta,
                    style,
                };
                plan.b.op("rope", Op::Rope { x, positions, spec });
                let zeros = vec![0.0; values.len()];
                let zero = plan.activation("zero", &[heads, width], &zeros);
                let out = plan.result("out", F32, &[heads, width]);
                plan.b.op("show", Op::Add { a: x, b: zero, out });
                let mut session = plan.on(on);
                let rows: Vec<Row> = POSITIONS
                    .iter()
                    .enumerate()
                    .map(|(i, position)| Row {
                        sequence: i,
                        position: *position,
                        token: i,
                    })
                    .collect();
                let results = session.run(&rows, &[]).unwrap();
                bits(&session, &results, "out", rows.len())
            });
            for (row, (found, expected)) in found.iter().zip(&expected).enumerate() {
                for (i, (f, e)) in found.iter().zip(expected).enumerate() {
                    let (f, e) = (f32::from_bits(*f), f32::from_bits(*e));
                    // Values up to 1 turn by sines and cosines that may be rounded the other way.
                    let position = POSITIONS[row];
                    assert!(
                        (f - e).abs() <= 2.5e-7,
                        "{f} for {e}, element {i} at {position}, theta {theta}, {step:?}"
                    );
                }
            }
        }
    }
}
