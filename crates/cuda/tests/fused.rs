//! What is fused, or left rounded for a later product, has the bits of the operations one by one.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;
#[path = "common/single.rs"]
mod single;

use glim_cuda::CudaBackend;
use glim_plan::fuse::{EXPERTS_ADD, NORMS, ROPES, SWIGLU_LINEAR};
use glim_plan::{
    BufferId, Cols, GgmlType, InputKind, Op, Precision, RopeSpec, RopeStyle, Rows, StepKind,
    StepResults,
};
use glim_testkit::parity::blocks::{self, Random};

use self::single::{Inputs, Single};

const F32: GgmlType = GgmlType::F32;
const ROWS: usize = 3;
const STEP: StepKind = StepKind::Decode { rows: ROWS };

fn all(buffer: BufferId, len: usize) -> Cols {
    Cols {
        buffer,
        start: 0,
        len,
    }
}

fn run(plan: Single) -> StepResults {
    let backend = Box::new(CudaBackend::new(common::options()).unwrap());
    let inputs = Inputs {
        tokens: (0..ROWS as i32).collect(),
        ..Inputs::default()
    };
    plan.on(backend).run(&inputs).unwrap()
}

fn bits(results: &StepResults, name: &str) -> Vec<u32> {
    let values = results.f32s(name).unwrap();
    assert!(values.iter().any(|v| *v != 0.0), "{name} is empty");
    values.iter().map(|v| v.to_bits()).collect()
}

fn norm(plan: &mut Single, name: &str, x: Cols, out: BufferId) {
    let weight = vec![1.25f32; x.len];
    let bytes = weight.iter().flat_map(|w| w.to_le_bytes()).collect();
    let weight = plan.weight(&format!("{name}.weight"), F32, &[x.len], bytes);
    let op = Op::RmsNorm {
        x,
        weight,
        eps: 1e-5,
        out,
    };
    plan.b.op(name, op);
}

/// A row is multiplied as its producer has rounded it, and once more as a copy that only the product itself can round. The wide one is
/// written by several blocks.
#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn a_row_rounded_by_its_producer_is_that_of_a_kernel_of_its_own() {
    for (width, producer) in [
        (96, "norm"),
        (3072, "norm"),
        (96, "swiglu"),
        (2080, "swiglu"),
    ] {
        let mut random = Random::named(7, producer);
        let mut plan = Single::new(STEP, 0, 0);
        let table = random.units(ROWS * width);
        let x = plan.activation(width, &table);
        let shape = [ROWS, width];
        let out = plan.b.temp("out", F32, &shape, Rows::Tokens);
        match producer {
            "norm" => norm(&mut plan, "norm", all(x, width), out),
            _ => plan.b.op(
                "swiglu",
                Op::SwiGlu {
                    gate: x,
                    up: x,
                    out,
                },
            ),
        }
        let outputs = 40;
        let bytes = blocks::weight(GgmlType::Q8_0, outputs * width, 0.1, &mut random);
        let weight = plan.weight("w", GgmlType::Q8_0, &[outputs, width], bytes);
        let own = plan.result("own", F32, outputs, Rows::Tokens);
        let op = Op::Linear {
            x: out,
            weights: vec![weight],
            outs: vec![own],
            precision: Precision::Fast,
        };
        plan.b.op("own", op);
        let x = plan.outputs(out, width);
        let out = plan.result("copied", F32, outputs, Rows::Outputs);
        plan.b.op("copied", Op::LmHead { x, weight, out });
        let results = run(plan);
        assert_eq!(
            bits(&results, "own"),
            bits(&results, "copied"),
            "{producer} {width}"
        );
    }
}

/// Two norms, one with a rotation of what it reads beside its columns; two rotations, of which one leaves columns for a product.
#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn fused_norms_and_rotations_have_the_bits_of_their_parts() {
    let results = [vec![], vec![NORMS, ROPES]].map(|patterns| {
        let mut random = Random::named(7, "fused");
        let mut plan = Single::new(STEP, 0, 0);
        plan.patterns = patterns;
        let table = random.units(ROWS * 24);
        let x = plan.activation(24, &table);
        let mut identity = |name: &str, width: usize, axes: &[usize]| {
            let bytes = blocks::weight(F32, width * 24, 0.1, &mut random);
            let weight = plan.weight(&format!("{name}.weight"), F32, &[width, 24], bytes);
            let shape = [&[ROWS], axes].concat();
            let out = plan.b.temp(name, F32, &shape, Rows::Tokens);
            let op = Op::Linear {
                x,
                weights: vec![weight],
                outs: vec![out],
                precision: Precision::F32,
            };
            plan.b.op(name, op);
            out
        };
        let (q_a, kv) = (identity("q_a", 2048, &[2048]), identity("kv", 72, &[72]));
        let (q, k) = (identity("q", 80, &[2, 40]), identity("k", 51, &[3, 17]));
        let wide = plan.result("wide", F32, 2048, Rows::Tokens);
        norm(&mut plan, "wide", all(q_a, 2048), wide);
        let narrow = plan.result("narrow", F32, 64, Rows::Tokens);
        norm(&mut plan, "narrow", all(kv, 64), narrow);
        let positions = plan.b.input(InputKind::Positions);
        for (name, x, start, style) in [
            ("kv.rope", kv, 64, RopeStyle::Interleaved),
            ("q.rope", q, 32, RopeStyle::Interleaved),
            ("k.rope", k, 3, RopeStyle::HalfSplit),
        ] {
            let spec = RopeSpec {
                start,
                n: 8,
                theta: 1000.0,
                style,
            };
            plan.b.op(name, Op::Rope { x, positions, spec });
        }
        let mut random = Random::named(8, "fused");
        let bytes = blocks::weight(GgmlType::Q8_0, 2 * 24 * 32, 0.1, &mut random);
        let weight = plan.weight("w", GgmlType::Q8_0, &[2, 24, 32], bytes);
        let out = plan.b.result("product", F32, &[ROWS, 2, 24], Rows::Tokens);
        let x = all(q, 32);
        plan.b.op("product", Op::HeadProject { x, weight, out });
        // What is updated in place is seen as a sum with itself.
        for (name, x, axes) in [
            ("kv2", kv, &[72][..]),
            ("q2", q, &[2, 40]),
            ("k2", k, &[3, 17]),
        ] {
            let shape = [&[ROWS], axes].concat();
            let out = plan.b.result(name, F32, &shape, Rows::Tokens);
            plan.b.op(name, Op::Add { a: x, b: x, out });
        }
        run(plan)
    });
    for name in ["wide", "narrow", "product", "kv2", "q2", "k2"] {
        assert_eq!(bits(&results[0], name), bits(&results[1], name), "{name}");
    }
}

/// A shared expert whose product computes what it takes, and the sum with the routed experts, which is theirs.
#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn fused_experts_have_the_bits_of_their_parts() {
    const D: usize = 512;
    const INNER: usize = 256;
    const K: usize = 2;
    for (rows, ty) in [
        (1, GgmlType::Q4_K),
        (ROWS, GgmlType::Q4_K),
        (ROWS, GgmlType::IQ4_XS),
        (ROWS, GgmlType::BF16),
    ] {
        let results = [vec![], vec![SWIGLU_LINEAR, EXPERTS_ADD]].map(|patterns| {
            let mut random = Random::named(9, "fused");
            let mut plan = Single::new(StepKind::Decode { rows }, 0, K);
            plan.patterns = patterns;
            let x = plan.activation(D, &random.units(rows * D));
            let ids = plan.b.input(InputKind::ForcedTopk);
            let mut weight = |plan: &mut Single, name: &str, shape: &[usize]| {
                let size = (shape[shape.len() - 1] as f32).sqrt().recip();
                let bytes = blocks::weight(ty, shape.iter().product(), size, &mut random);
                plan.weight(name, ty, shape, bytes)
            };
            let both = ["shared_gate", "shared_up"].map(|name| {
                let weight = weight(&mut plan, name, &[INNER, D]);
                let out = format!("{name}.out");
                let out = plan.b.temp(&out, F32, &[rows, INNER], Rows::Tokens);
                (weight, out)
            });
            let op = Op::Linear {
                x,
                weights: both.map(|(weight, _)| weight).to_vec(),
                outs: both.map(|(_, out)| out).to_vec(),
                precision: Precision::Fast,
            };
            plan.b.op("gate_and_up", op);
            // Between the two products, so that what is gated is settled when the second begins.
            let tokens = plan.b.input(InputKind::Tokens);
            let table: Vec<f32> = (0..rows * K).map(|i| 0.25 + i as f32).collect();
            let table = plan.values("weights.table", &[rows, K], &table);
            let expert_weights = plan.b.temp("weights.out", F32, &[rows, K], Rows::Tokens);
            let op = Op::Embed {
                tokens,
                carry: None,
                table,
                out: expert_weights,
            };
            plan.b.op("weights", op);
            let gated = plan.b.temp("gated.out", F32, &[rows, INNER], Rows::Tokens);
            let [(_, gate), (_, up)] = both;
            let out = gated;
            plan.b.op("gated", Op::SwiGlu { gate, up, out });
            let down = weight(&mut plan, "shared_down", &[D, INNER]);
            let shared = plan.result("shared", F32, D, Rows::Tokens);
            let op = Op::Linear {
                x: gated,
                weights: vec![down],
                outs: vec![shared],
                precision: Precision::Fast,
            };
            plan.b.op("shared", op);
            let gate = weight(&mut plan, "gate", &[4, INNER, D]);
            let up = weight(&mut plan, "up", &[4, INNER, D]);
            let down = weight(&mut plan, "down", &[4, D, INNER]);
            let routed = plan.result("routed", F32, D, Rows::Tokens);
            let op = Op::ExpertFfn {
                x,
                ids,
                expert_weights,
                gate,
                up,
                down,
                out: routed,
            };
            plan.b.op("experts", op);
            for (name, a, b, width) in [("sum", routed, shared, D), ("twice", gated, gated, INNER)]
            {
                let out = plan.result(name, F32, width, Rows::Tokens);
                plan.b.op(name, Op::Add { a, b, out });
            }
            let backend = Box::new(CudaBackend::new(common::options()).unwrap());
            let inputs = Inputs {
                tokens: (0..rows as i32).collect(),
                forced: (0..rows as i32).flat_map(|t| [3, t % 3]).collect(),
                ..Inputs::default()
            };
            plan.on(backend).run(&inputs).unwrap()
        });
        for name in ["twice", "shared", "routed", "sum"] {
            let [parts, fused] = results.each_ref().map(|results| bits(results, name));
            assert_eq!(parts, fused, "{ty}, {rows} rows, {name}");
        }
    }
}
