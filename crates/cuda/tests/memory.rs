//! The memory of a backend: what it says that it holds it holds, and once its steps are sealed it asks for no more.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::borrow::Cow;

use glim_cuda::{CudaBackend, CudaOptions};
use glim_plan::{
    Backend, BackendError, CacheGeometry, GgmlType, InputKind, Op, Plan, PlanBuilder, Rows,
    StateDecl, StateKind, StepInputs, StepKind, StepResults, WeightData, WeightSource,
    weight_groups,
};

const F32: GgmlType = GgmlType::F32;
const WIDTH: usize = 100;
const VOCAB: usize = 8;

/// Row `t` of the table holds `t` in every element.
struct Table;

impl WeightSource for Table {
    fn weight(&self, _name: &str) -> Result<WeightData<'_>, BackendError> {
        let row = |t: usize| (t as f32).to_le_bytes().repeat(WIDTH);
        Ok(WeightData {
            ty: F32,
            shape: vec![VOCAB, WIDTH],
            bytes: Cow::Owned((0..VOCAB).flat_map(row).collect()),
        })
    }
}

/// Gives rows of a table, twice added to themselves.
fn plan(rows: usize, table: &str) -> Plan {
    let geometry = CacheGeometry {
        block_size: 16,
        max_blocks: 1,
    };
    let mut b = PlanBuilder::new("rows", StepKind::Decode { rows }, geometry);
    b.input(InputKind::CuSeqlens);
    let tokens = b.input(InputKind::Tokens);
    let table = b.weight(table, F32, &[VOCAB, WIDTH]);
    let x = b.temp("x", F32, &[rows, WIDTH], Rows::Tokens);
    let embed = Op::Embed {
        tokens,
        carry: None,
        table,
        out: x,
    };
    b.op("embed", embed);
    let twice = b.temp("twice", F32, &[rows, WIDTH], Rows::Tokens);
    let out = b.result("out", F32, &[rows, WIDTH], Rows::Tokens);
    for (label, x, out) in [("double", x, twice), ("again", twice, out)] {
        b.op(label, Op::Add { a: x, b: x, out });
    }
    b.finish()
}

fn inputs(plan: &Plan, token: i32) -> StepInputs {
    let rows = plan.step.tokens() as i32;
    let mut inputs = StepInputs::new(plan);
    let tokens = (0..rows).map(|_| token);
    inputs.set_i32(InputKind::Tokens, tokens).unwrap();
    inputs.set_i32(InputKind::CuSeqlens, 0..=rows).unwrap();
    inputs
}

fn assert_is(results: &StepResults, token: i32) {
    let out = results.f32s("out").unwrap();
    assert!(out.iter().all(|v| *v == 4.0 * token as f32), "{out:?}");
}

fn loaded(options: CudaOptions, plans: &[Plan]) -> CudaBackend {
    let mut backend = CudaBackend::new(options).unwrap();
    backend
        .load(&weight_groups(plans).unwrap(), &Table)
        .unwrap();
    let cache = StateDecl {
        name: "cache".into(),
        kind: StateKind::Paged {
            bytes_per_token: 20,
        },
        dtype: F32,
        shape: vec![5],
    };
    backend.alloc_state(&[cache], 16, 3, 1).unwrap();
    backend
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn nothing_is_asked_for_once_the_steps_are_sealed() {
    let plans = [plan(2, "a"), plan(5, "a"), plan(1, "b")];
    for graphs in [true, false] {
        for apart in [true, false] {
            let options = CudaOptions {
                graphs,
                apart,
                ..common::options()
            };
            let mut backend = loaded(options, &plans);
            let steps = plans.each_ref().map(|plan| backend.prepare(plan).unwrap());
            let prepared = backend.held();
            backend.seal().unwrap();
            let sealed = backend.held();
            assert!(sealed.asked > prepared.asked, "{sealed:?} {prepared:?}");
            for (plan, step) in plans.iter().zip(steps) {
                let nodes = graphs.then_some(plan.ops.len());
                assert_eq!(backend.nodes(step), nodes);
            }
            for turn in 0..50 {
                let (plan, step) = (&plans[turn % 3], steps[turn % 3]);
                let token = (turn % VOCAB) as i32;
                let results = match turn % 2 {
                    0 => backend.run(step, &inputs(plan, token)).unwrap(),
                    _ => {
                        let ticket = backend.submit(step, &inputs(plan, token)).unwrap();
                        backend.wait(ticket).unwrap()
                    }
                };
                assert_is(&results, token);
                assert_eq!(backend.held(), sealed, "turn {turn}");
            }
            backend.seal().unwrap();
            assert_eq!(backend.held(), sealed, "a second seal finds all done");
        }
    }
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn what_it_says_that_it_holds_is_what_it_holds() {
    let plans = [plan(2, "a"), plan(5, "b")];
    let weights = (2 * VOCAB * WIDTH * 4) as u64;
    for apart in [true, false] {
        let options = CudaOptions {
            apart,
            ..common::options()
        };
        let mut backend = loaded(options, &plans);
        for plan in &plans {
            backend.prepare(plan).unwrap();
        }
        backend.seal().unwrap();
        let said = backend.allocated().unwrap();
        let held = backend.held();
        assert_eq!(said.total(), held.device_bytes, "{said:?}");
        assert_eq!(said.pinned, held.pinned_bytes);
        // Beginnings are aligned.
        assert!((weights..weights + 256).contains(&said.weights), "{said:?}");
        let cache = 16 * 3 * 5 * 4;
        assert!((cache..cache + 256).contains(&said.states), "{said:?}");
        let arenas = plans.iter().map(|p| glim_plan::arrange(p).arena_bytes);
        assert_eq!(said.arena, arenas.max().unwrap() as u64);
        // Loaded again, weights take the room that they had.
        backend
            .load(&weight_groups(&plans).unwrap(), &Table)
            .unwrap();
        let again = backend.allocated().unwrap();
        assert_eq!(again.weights, said.weights);
        assert_eq!(again.total(), backend.held().device_bytes);
    }
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn a_step_on_its_way_keeps_its_results_while_a_larger_one_is_prepared() {
    let plans = [plan(1, "a"), plan(7, "a")];
    let mut backend = loaded(common::options(), &plans);
    let small = backend.prepare(&plans[0]).unwrap();
    let ticket = backend.submit(small, &inputs(&plans[0], 3)).unwrap();
    let large = backend.prepare(&plans[1]).unwrap();
    let results = backend.run(large, &inputs(&plans[1], 5)).unwrap();
    assert_is(&results, 5);
    assert_is(&backend.wait(ticket).unwrap(), 3);
    let results = backend.run(small, &inputs(&plans[0], 6)).unwrap();
    assert_is(&results, 6);
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn a_ticket_whose_results_are_gone_is_refused() {
    let plan = plan(1, "a");
    let mut backend = loaded(common::options(), std::slice::from_ref(&plan));
    let step = backend.prepare(&plan).unwrap();
    let ticket = backend.submit(step, &inputs(&plan, 3)).unwrap();
    for token in 0..4 {
        let results = backend.run(step, &inputs(&plan, token)).unwrap();
        assert_is(&results, token);
    }
    let refused = |found: Result<StepResults, BackendError>| match found {
        Err(BackendError::Missing { what: "ticket", .. }) => {}
        other => panic!("{other:?}"),
    };
    refused(backend.wait(ticket));
    // Nor is one worth anything whose step is gone.
    let ticket = backend.submit(step, &inputs(&plan, 3)).unwrap();
    backend.alloc_state(&[], 16, 1, 1).unwrap();
    refused(backend.wait(ticket));
}
