//! The router and the experts where the parity table does not look: many experts, rows that share them, mixed weight types, and
//! choices that are none.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;
#[path = "common/single.rs"]
mod single;

use glim_cuda::CudaBackend;
use glim_plan::reference::{ReferenceBackend, ReferenceOptions};
use glim_plan::{
    Backend, BackendError, GgmlType, InputKind, Op, RouterSpec, Rows, Scoring, StepKind,
};
use glim_testkit::parity::blocks::{self, Random};

use self::single::{Inputs, Session, Single};

const F32: GgmlType = GgmlType::F32;
const I32: GgmlType = GgmlType::I32;

fn backend() -> Box<dyn Backend> {
    Box::new(CudaBackend::new(common::options()).unwrap())
}

fn reference() -> Box<dyn Backend> {
    Box::new(ReferenceBackend::new(ReferenceOptions::default()))
}

const DECODE: StepKind = StepKind::Decode { rows: 16 };
const PREFILL: StepKind = StepKind::Prefill {
    tokens: 80,
    sequences: 1,
};

// ---- experts ---------------------------------------------------------------------------------------------------------------------

const EXPERTS: usize = 4;
const K: usize = 3;
const D: usize = 512;
const INNER: usize = 256;

/// Experts whose gate, up and down are of these types; rows are those of a table of `rows`.
fn experts(step: StepKind, types: [GgmlType; 3], rows: usize, on: Box<dyn Backend>) -> Session {
    let mut random = Random::named(21, "experts");
    let mut plan = Single::new(step, 0, K);
    let x = plan.activation(D, &random.units(rows * D));
    let ids = plan.b.input(InputKind::ForcedTopk);
    let mut weight = |name: &str, ty, shape: [usize; 3]| {
        let size = (shape[2] as f32).sqrt().recip();
        let bytes = blocks::weight(ty, shape.iter().product(), size, &mut random);
        plan.weight(name, ty, &shape, bytes)
    };
    let gate = weight("gate", types[0], [EXPERTS, INNER, D]);
    let up = weight("up", types[1], [EXPERTS, INNER, D]);
    let down = weight("down", types[2], [EXPERTS, D, INNER]);
    // Weights of the choices, by token.
    let table = plan.values("weights.table", &[rows, K], &random.units(rows * K));
    let shape = [step.tokens(), K];
    let expert_weights = plan.b.temp("weights", F32, &shape, Rows::Tokens);
    let tokens = plan.b.input(InputKind::Tokens);
    let embed = Op::Embed {
        tokens,
        carry: None,
        table,
        out: expert_weights,
    };
    plan.b.op("weights", embed);
    let out = plan.result("out", F32, D, Rows::Tokens);
    let op = Op::ExpertFfn {
        x,
        ids,
        expert_weights,
        gate,
        up,
        down,
        out,
    };
    plan.b.op("experts", op);
    plan.on(on)
}

/// Tokens `0..rows`, with choices among few experts.
fn choices(rows: usize) -> Inputs {
    Inputs {
        tokens: (0..rows as i32).collect(),
        forced: (0..rows as i32)
            .flat_map(|t| [0, 1 + t % 2, 3 - t % 3 % 2])
            .collect(),
        ..Inputs::default()
    }
}

fn of_row(inputs: &Inputs, t: usize) -> Inputs {
    Inputs {
        tokens: vec![inputs.tokens[t]],
        forced: inputs.forced[t * K..][..K].to_vec(),
        ..Inputs::default()
    }
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn rows_that_share_experts_keep_their_own_bits() {
    for ty in [GgmlType::Q4_K, GgmlType::IQ4_XS, GgmlType::BF16] {
        let mut session = experts(DECODE, [ty; 3], 16, backend());
        let inputs = choices(16);
        let all = session.run(&inputs).unwrap();
        let all = all.f32s("out").unwrap();
        for t in [0, 5, 15] {
            let alone = session.run(&of_row(&inputs, t)).unwrap();
            let (alone, all) = (&alone.f32s("out").unwrap()[..D], &all[t * D..][..D]);
            let differs = (0..D).find(|i| alone[*i].to_bits() != all[*i].to_bits());
            assert_eq!(differs, None, "{ty}, row {t}");
        }
        // A plan for one row is compiled for one row.
        let mut single = experts(StepKind::Decode { rows: 1 }, [ty; 3], 16, backend());
        let alone = single.run(&of_row(&inputs, 5)).unwrap();
        assert_eq!(alone.f32s("out").unwrap()[..D], all[5 * D..][..D], "{ty}");
    }
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn gate_up_and_down_may_be_of_different_types() {
    use GgmlType as T;
    for types in [
        [T::Q4_K, T::Q6_K, T::Q8_0],
        [T::Q8_0, T::F32, T::Q4_K],
        [T::BF16, T::Q4_K, T::F16],
    ] {
        for step in [DECODE, PREFILL] {
            let inputs = choices(16);
            let [found, expected] = [backend(), reference()].map(|on| {
                let results = experts(step, types, 16, on).run(&inputs).unwrap();
                results.f32s("out").unwrap()[..16 * D].to_vec()
            });
            let squares = |values: &mut dyn Iterator<Item = f32>| {
                values.map(|v| f64::from(v).powi(2)).sum::<f64>()
            };
            let error = squares(&mut found.iter().zip(&expected).map(|(f, e)| f - e));
            let error = error / squares(&mut expected.iter().copied());
            // Three products with 8-bit activations, as in the parity table.
            assert!(error < 5.3e-4, "{types:?} {step:?}: {error:e}");
        }
    }
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn an_expert_out_of_range_is_named() {
    for step in [DECODE, PREFILL] {
        let mut session = experts(step, [GgmlType::Q4_K; 3], 16, backend());
        let good = choices(5);
        let before = session.run(&good).unwrap();
        for wrong in [-1, EXPERTS as i32, i32::MIN] {
            let mut inputs = good.clone();
            inputs.forced[7] = wrong;
            match session.run(&inputs) {
                Err(BackendError::OutOfRange {
                    op,
                    what,
                    found,
                    bound,
                    ..
                }) => {
                    assert_eq!((&*op, &*what, bound), ("experts", "expert", EXPERTS));
                    assert_eq!(found, i64::from(wrong));
                }
                other => panic!("{other:?}"),
            }
        }
        let after = session.run(&good).unwrap();
        let bits = |r: &glim_plan::StepResults| r.words("out").unwrap()[..5 * D].to_vec();
        assert_eq!(bits(&after), bits(&before), "a fault leaves nothing behind");
    }
}

/// Threads run in an order of their own; which of several wrong choices is named does not depend on it.
#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn of_several_that_point_outside_the_first_is_named_as_the_reference_does() {
    let named = |step, inputs: &Inputs| {
        [backend(), reference()].map(|on| {
            let mut session = experts(step, [GgmlType::Q8_0; 3], 16, on);
            (0..3)
                .map(|_| session.run(inputs).unwrap_err().to_string())
                .collect::<Vec<_>>()
        })
    };
    for step in [DECODE, PREFILL] {
        let mut inputs = choices(16);
        for (at, wrong) in [(47, 90), (22, 70), (13, 80), (14, 60), (30, -5)] {
            inputs.forced[at] = wrong;
        }
        let [found, expected] = named(step, &inputs);
        assert_eq!(found, expected);
        assert!(found[0].contains("expert 80 "), "{found:?}");
        // An earlier operation comes first.
        for (t, wrong) in [(15, 200), (9, 300), (4, 100), (11, -7)] {
            inputs.tokens[t] = wrong;
        }
        let [found, expected] = named(step, &inputs);
        assert_eq!(found, expected);
        assert!(found[0].contains("token 100 "), "{found:?}");
    }
}

// ---- the router ------------------------------------------------------------------------------------------------------------------

/// A router over rows of a table.
fn router(
    step: StepKind,
    d: usize,
    table: &[f32],
    (weight, bias): (&[f32], Option<&[f32]>),
    spec: RouterSpec,
    on: Box<dyn Backend>,
) -> Session {
    let mut plan = Single::new(step, 0, 0);
    let x = plan.activation(d, table);
    let experts = weight.len() / d;
    let weight = plan.values("router", &[experts, d], weight);
    let bias = bias.map(|bias| plan.values("bias", &[experts], bias));
    let ids = plan.result("ids", I32, spec.k, Rows::Tokens);
    let expert_weights = plan.result("weights", F32, spec.k, Rows::Tokens);
    let op = Op::Route {
        x,
        weight,
        bias,
        spec,
        ids,
        expert_weights,
    };
    plan.b.op("route", op);
    plan.on(on)
}

fn spec(k: usize, n_group: usize, topk_group: usize) -> RouterSpec {
    RouterSpec {
        k,
        scoring: Scoring::Sigmoid,
        n_group,
        topk_group,
        norm: true,
        scale: 2.5,
    }
}

/// Choices and weights of the first `rows` rows, on the GPU and in the reference.
fn both(
    step: StepKind,
    d: usize,
    table: &[f32],
    weights: (&[f32], Option<&[f32]>),
    spec: RouterSpec,
    rows: usize,
) -> [(Vec<i32>, Vec<f32>); 2] {
    [backend(), reference()].map(|on| {
        let inputs = Inputs {
            tokens: (0..rows as i32).collect(),
            ..Inputs::default()
        };
        let mut session = router(step, d, table, weights, spec, on);
        let results = session.run(&inputs).unwrap();
        let (ids, weights) = (
            results.i32s("ids").unwrap(),
            results.f32s("weights").unwrap(),
        );
        let n = rows * spec.k;
        (ids[..n].to_vec(), weights[..n].to_vec())
    })
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn hundreds_of_experts_are_chosen_as_in_the_reference() {
    let random = &mut Random::named(22, "router");
    for (step, rows) in [(DECODE, 5), (PREFILL, 70)] {
        for (experts, d, spec, has_bias) in [
            (256, 1600, spec(8, 1, 1), true),
            (256, 800, spec(8, 8, 4), true),
            (300, 130, spec(20, 1, 1), false),
            (40, 64, spec(6, 10, 3), true),
        ] {
            let table = random.units(rows * d);
            let mut weight = random.units(experts * d);
            let size = (d as f32).sqrt().recip();
            weight.iter_mut().for_each(|w| *w *= size);
            let bias = random.units(experts);
            let weights = (&*weight, has_bias.then_some(&*bias));
            for scoring in [Scoring::Sigmoid, Scoring::Softmax] {
                let spec = RouterSpec { scoring, ..spec };
                let [found, expected] = both(step, d, &table, weights, spec, rows);
                assert_eq!(found.0, expected.0, "{experts} experts, {step:?}, {spec:?}");
                for (f, e) in found.1.iter().zip(&expected.1) {
                    assert!((f - e).abs() <= 1e-5 * e.abs(), "{f} for {e}, {spec:?}");
                }
            }
        }
    }
}

/// Where no scores are apart the lower expert wins, in either step; a row that is not a number still names experts that there are,
/// and weighs them with NaN.
#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn ties_go_to_the_lower_expert_and_nan_is_passed_on() {
    let (d, experts) = (33, 260);
    let mut table = vec![0.0f32; 4 * d];
    table[d..2 * d].fill(0.5);
    table[2 * d + 5] = f32::NAN;
    table[3 * d + 7] = f32::INFINITY;
    // All experts alike, but for one whose last weight shows.
    let mut weight = vec![0.25f32; experts * d];
    weight[131 * d + 32] = 0.5;
    for step in [DECODE, PREFILL] {
        for (spec, scoring) in [
            (spec(8, 1, 1), Scoring::Sigmoid),
            (spec(8, 1, 1), Scoring::Softmax),
            (spec(9, 10, 4), Scoring::Sigmoid),
        ] {
            let spec = RouterSpec { scoring, ..spec };
            let [found, expected] = both(step, d, &table, (&weight, None), spec, 4);
            for row in 0..4 {
                let at = row * spec.k..(row + 1) * spec.k;
                let (ids, weights) = (&found.0[at.clone()], &found.1[at.clone()]);
                if expected.1[at.clone()].iter().any(|w| w.is_nan()) {
                    // Which of several NaN is larger depends on the processor's signs of NaN.
                    let inside = |e: &i32| (0..experts as i32).contains(e);
                    assert!(ids.is_sorted_by(|a, b| a < b) && ids.iter().all(inside));
                    assert!(weights.iter().all(|w| w.is_nan()), "row {row}, {spec:?}");
                    continue;
                }
                assert_eq!(
                    *ids,
                    expected.0[at.clone()],
                    "row {row}, {step:?}, {spec:?}"
                );
                for (f, e) in weights.iter().zip(&expected.1[at]) {
                    assert!((f - e).abs() <= 1e-6 * e.abs(), "{f} for {e}, {spec:?}");
                }
            }
        }
    }
}
