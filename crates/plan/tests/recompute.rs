//! One operation on chosen rows, from operands that lie anywhere: what a proof holds another backend against.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::HashMap;

use common::drive::{Chunk, Rig, fill};
use common::toy::{self, SLOTS};
use common::weights::Weights;
use glim_plan::reference::ReferenceOptions;
use glim_plan::reference::recompute::{Live, Matrix, Operands, Output, Recompute, Rows};
use glim_plan::{
    Backend, BackendError, BufferId, BufferKind, Op, Plan, ReadTarget, StepInputs, StepResults,
    WeightSource, check,
};

/// A run, seen from outside: results, inputs, states and carries as they were read, weights as blocks.
struct Seen {
    plan: Plan,
    weights: Weights,
    f32s: HashMap<BufferId, Vec<f32>>,
    i32s: HashMap<BufferId, Vec<i32>>,
}

impl Operands for Seen {
    fn f32s(&self, id: BufferId) -> Result<&[f32], BackendError> {
        Ok(&self.f32s[&id])
    }

    fn i32s(&self, id: BufferId) -> Result<&[i32], BackendError> {
        Ok(&self.i32s[&id])
    }

    fn weight(&self, id: BufferId) -> Result<Matrix<'_>, BackendError> {
        let name = &self.plan.buffer(id).name;
        Matrix::blocks(name, self.weights.weight(name)?)
    }
}

impl Seen {
    fn of(
        plan: &Plan,
        rig: &Rig,
        inputs: &StepInputs,
        results: &StepResults,
        carry: &[i32],
    ) -> Self {
        let mut seen = Self {
            plan: plan.clone(),
            weights: Weights::seeded(&[&toy::decode(4), &toy::prefill(16, 3)], 20_260_301),
            f32s: HashMap::new(),
            i32s: HashMap::new(),
        };
        let floats = |bytes: Vec<u8>| {
            let words = bytes.as_chunks::<4>().0.iter();
            words.map(|b| f32::from_le_bytes(*b)).collect::<Vec<f32>>()
        };
        for (id, b) in plan.buffers_where(|_| true) {
            match b.kind {
                BufferKind::Result => {
                    seen.f32s
                        .insert(id, results.f32s(&b.name).unwrap().to_vec());
                    seen.i32s
                        .insert(id, results.i32s(&b.name).unwrap().to_vec());
                }
                BufferKind::Input(kind) => {
                    let words = inputs.get(kind).iter();
                    seen.f32s
                        .insert(id, words.clone().map(|w| f32::from_bits(*w)).collect());
                    seen.i32s.insert(id, words.map(|w| *w as i32).collect());
                }
                BufferKind::State(_) => {
                    let bytes = rig.backend.read(ReadTarget::State(&b.name)).unwrap();
                    seen.f32s.insert(id, floats(bytes));
                }
                BufferKind::Carry => {
                    seen.i32s.insert(id, carry.to_vec());
                }
                BufferKind::Weight | BufferKind::Temp => {}
            }
        }
        seen
    }

    /// The same rows as the run left them.
    fn found(&self, output: &Output) -> Rows {
        let b = self.plan.buffer(output.buffer);
        let width = match b.kind {
            BufferKind::State(_) => b.elements(),
            _ => b.row_elements(),
        };
        match &output.rows {
            Rows::F32(rows) => {
                let all = &self.f32s[&output.buffer];
                let row = |(r, v): &(usize, Vec<f32>)| (*r, all[r * width..][..v.len()].to_vec());
                Rows::F32(rows.iter().map(row).collect())
            }
            Rows::I32(rows) => {
                let all = &self.i32s[&output.buffer];
                let row = |(r, v): &(usize, Vec<i32>)| (*r, all[r * width..][..v.len()].to_vec());
                Rows::I32(rows.iter().map(row).collect())
            }
        }
    }
}

fn tapped(mut plan: Plan) -> Plan {
    for b in &mut plan.buffers {
        if b.kind == BufferKind::Temp {
            b.kind = BufferKind::Result;
        }
    }
    plan
}

fn chunks() -> [Chunk; 2] {
    let prompt = |seed: i32| {
        (0..9)
            .map(|i| (seed + 7 * i + i * i) % 41)
            .collect::<Vec<i32>>()
    };
    [
        Chunk::new(&prompt(1)[..8], 0, &[5, 2, 9, 11], 3),
        Chunk::new(&prompt(2)[..7], 0, &[0, 7, 3], 0),
    ]
}

/// Runs a prefill of two sequences with every temporary a result.
fn run() -> Seen {
    let mut rig = Rig::with(
        ReferenceOptions::default(),
        toy::decode(4),
        tapped(toy::prefill(16, 3)),
    );
    fill(&mut rig.prefill.inputs, &chunks()).unwrap();
    let results = rig
        .backend
        .run(rig.prefill.step, &rig.prefill.inputs)
        .unwrap();
    Seen::of(
        &rig.prefill.plan,
        &rig,
        &rig.prefill.inputs,
        &results,
        &[0; SLOTS],
    )
}

/// Whether an operation's operands and results stayed as they were: nothing updates them in place at or after it.
fn settled(plan: &Plan, index: usize, op: &Op) -> bool {
    let later = plan.ops[index..].iter();
    let updates: Vec<BufferId> = later.flat_map(|n| n.op.access().updates).collect();
    let access = op.access();
    let mut touched = access
        .reads
        .iter()
        .chain(&access.writes)
        .chain(&access.updates);
    !touched.any(|id| updates.contains(id) && plan.buffer(*id).kind != BufferKind::Carry)
}

#[test]
fn chosen_rows_of_every_operation_are_those_of_the_run_bit_for_bit() {
    let seen = run();
    let live = Live::read(&seen.plan, &seen).unwrap();
    assert_eq!((live.tokens, live.outputs), (15, 15));
    let mut kinds = Vec::new();
    for threads in [1, 3] {
        let recompute = Recompute::new(&seen.plan, &seen, live, threads);
        for (i, node) in seen.plan.ops.iter().enumerate() {
            let parts = node.op.parts().iter();
            for part in parts.filter(|op| settled(&seen.plan, i, op)) {
                for output in recompute.op(&node.label, part, &[1, 9, 14]).unwrap() {
                    if seen.plan.buffer(output.buffer).kind != BufferKind::Carry {
                        assert_eq!(output.rows, seen.found(&output), "{}", node.label);
                    }
                }
                kinds.push(part.kind());
            }
        }
    }
    for kind in [
        "Linear",
        "IndexScore",
        "IndexSelect",
        "MlaAttend",
        "Route",
        "ExpertFfn",
        "CacheAppend",
        "Sample",
    ] {
        assert!(kinds.contains(&kind), "{kind} was not compared: {kinds:?}");
    }
}

/// The spread stands for the size of what is summed: it is never below the result's own error, whatever the order of the sum.
#[test]
fn spread_bounds_the_result_of_another_order_of_summation() {
    let seen = run();
    let live = Live::read(&seen.plan, &seen).unwrap();
    let recompute = Recompute::new(&seen.plan, &seen, live, 1);
    let mut products = 0;
    for node in &seen.plan.ops {
        let Op::Linear { x, weights, .. } = &node.op else {
            continue;
        };
        let (values, spread) = (
            recompute.op(&node.label, &node.op, &[2]).unwrap(),
            recompute.spread(&node.label, &node.op, &[2]).unwrap(),
        );
        for ((weight, values), spread) in weights.iter().zip(values).zip(spread) {
            let k = seen.plan.buffer(*x).row_elements();
            let w = seen.weights.values(&seen.plan.buffer(*weight).name);
            let x = &seen.f32s[x][2 * k..][..k];
            let (Rows::F32(values), Rows::F32(spread)) = (&values.rows, &spread.rows) else {
                panic!("products are numbers");
            };
            for ((w, value), spread) in w.chunks_exact(k).zip(&values[0].1).zip(&spread[0].1) {
                let exact: f64 = w
                    .iter()
                    .zip(x)
                    .map(|(w, x)| f64::from(*w) * f64::from(*x))
                    .sum();
                let squares: f64 = w.iter().zip(x).map(|(w, x)| f64::from(w * x).powi(2)).sum();
                assert!(
                    f64::from(*spread) >= squares.sqrt() * 0.999,
                    "{}",
                    node.label
                );
                let rounding = (k as f64).sqrt() * f64::from(*spread) * f64::from(f32::EPSILON);
                assert!((exact - f64::from(*value)).abs() <= 6.0 * rounding);
                products += 1;
            }
        }
    }
    assert!(products > 100);
}

#[test]
fn a_weight_of_the_wrong_length_is_refused() {
    let mut data = Weights::default();
    data.insert("w", &[2, 3], vec![1.0; 6]);
    let mut data = data.weight("w").unwrap();
    data.bytes.to_mut().pop();
    let error = Matrix::blocks("w", data.clone()).unwrap_err().to_string();
    assert_eq!(
        error,
        "weight w could not be read: 23 bytes for [2, 3] of F32, expected 24"
    );
}

#[test]
fn every_cut_of_a_plan_keeps_the_rules_and_gives_what_the_next_operation_would_read() {
    let plan = toy::prefill(16, 3);
    for ops in 1..=plan.ops.len() {
        let cut = plan.cut(ops);
        check(&cut).unwrap_or_else(|error| panic!("{ops}: {error}"));
        assert_eq!(
            StepInputs::new(&cut).words().len(),
            StepInputs::new(&plan).words().len()
        );
        let last = &cut.ops[ops - 1].op.access();
        for id in last.writes.iter().chain(&last.updates) {
            let kind = cut.buffer(*id).kind;
            assert!(
                matches!(kind, BufferKind::Result | BufferKind::Carry),
                "{ops}: {kind:?}"
            );
        }
    }
    assert_eq!(plan.cut(plan.ops.len()), plan);
}
