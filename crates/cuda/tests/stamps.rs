//! Time stamps: every operation of a step has its time, in order, and together they are the step's.
//!
//! Whether they add up to what the graph takes is asked on a GPU only: it compares two measurements of one run, and wants no speed; but the
//! emulator's events say when its host came by.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::borrow::Cow;
use std::time::Duration;

use glim_cuda::{CudaBackend, CudaOptions, GpuGroup, Transport};
use glim_plan::{
    Backend, BackendError, CacheGeometry, CollectiveId, Cols, GgmlType, InputKind, Op, Plan,
    PlanBuilder, Profile, Rows, StepId, StepInputs, StepKind, WeightData, WeightSource,
    weight_groups,
};

const F32: GgmlType = GgmlType::F32;
const WIDTH: usize = 256;

struct Ones;

impl WeightSource for Ones {
    fn weight(&self, name: &str) -> Result<WeightData<'_>, BackendError> {
        let shape = match name {
            "table" => vec![8, WIDTH],
            _ => vec![WIDTH],
        };
        let bytes = 1f32.to_le_bytes().repeat(shape.iter().product());
        Ok(WeightData {
            ty: F32,
            shape,
            bytes: Cow::Owned(bytes),
        })
    }
}

/// A chain of norms behind an embedding; if there are several ranks, with a sum over them before each.
fn chain(norms: usize, rank: usize, world_size: usize) -> Plan {
    let geometry = CacheGeometry {
        block_size: 16,
        max_blocks: 1,
    };
    let mut b = PlanBuilder::new("chain", StepKind::Decode { rows: 2 }, geometry);
    b.rank(rank, world_size);
    b.input(InputKind::CuSeqlens);
    let tokens = b.input(InputKind::Tokens);
    let table = b.weight("table", F32, &[8, WIDTH]);
    let weight = b.weight("weight", F32, &[WIDTH]);
    let mut x = b.temp("x", F32, &[2, WIDTH], Rows::Tokens);
    let embed = Op::Embed {
        tokens,
        carry: None,
        table,
        out: x,
    };
    b.op("embed", embed);
    for i in 0..norms {
        if world_size > 1 {
            let out = b.temp(&format!("sum{i}"), F32, &[2, WIDTH], Rows::Tokens);
            let (id, wire) = (CollectiveId(i as u32), F32);
            b.op(&format!("sum{i}"), Op::AllReduce { id, wire, x, out });
            x = out;
        }
        let out = match i + 1 == norms {
            true => b.result("out", F32, &[2, WIDTH], Rows::Tokens),
            false => b.temp(&format!("x{i}"), F32, &[2, WIDTH], Rows::Tokens),
        };
        let x_cols = Cols {
            buffer: x,
            start: 0,
            len: WIDTH,
        };
        let norm = Op::RmsNorm {
            x: x_cols,
            weight,
            eps: 1e-5,
            out,
        };
        b.op(&format!("norm{i}"), norm);
        x = out;
    }
    b.finish()
}

/// A backend that has prepared a plan, and inputs for it.
fn prepared(plan: &Plan, options: CudaOptions) -> (CudaBackend, StepId, StepInputs) {
    let mut backend = CudaBackend::new(options).unwrap();
    let groups = weight_groups([plan]).unwrap();
    backend.load(&groups, &Ones).unwrap();
    backend.alloc_state(&[], 16, 1, 1).unwrap();
    let step = backend.prepare(plan).unwrap();
    let mut inputs = StepInputs::new(plan);
    inputs.set_i32(InputKind::Tokens, [3, 4]).unwrap();
    inputs.set_i32(InputKind::CuSeqlens, [0, 1, 2]).unwrap();
    (backend, step, inputs)
}

fn check(plan: &Plan, profiles: &[Profile], expected: usize) {
    assert_eq!(profiles.len(), expected);
    for profile in profiles {
        assert_eq!(profile.ops.len(), plan.ops.len());
        for pair in profile.ops.windows(2) {
            assert!(pair[0].end_ns <= pair[1].end_ns, "{profile:?}");
            assert!(pair[0].start_ns <= pair[1].start_ns, "{profile:?}");
        }
        assert!(profile.step_ns > 0);
        assert!(profile.ops.last().unwrap().end_ns > 0);
    }
}

/// The stamps are off again, and the step still gives what it should.
fn check_result(backend: &mut CudaBackend, step: StepId, inputs: &StepInputs) {
    let results = backend.run(step, inputs).unwrap();
    let out = results.f32s("out").unwrap();
    assert!(
        out.iter().all(|v| (v - 1.0).abs() < 1e-3),
        "{:?}",
        &out[..4]
    );
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn every_operation_has_its_time_in_order() {
    let plan = chain(40, 0, 1);
    for graphs in [true, false] {
        let options = CudaOptions {
            graphs,
            ..common::options()
        };
        let (mut backend, step, inputs) = prepared(&plan, options);
        let profiles = backend.profile(step, &inputs, 3).unwrap();
        check(&plan, &profiles, 3);
        check_result(&mut backend, step, &inputs);
        // A kernel for each operation.
        assert_eq!(backend.nodes(step), graphs.then_some(plan.ops.len()));
    }
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn operations_and_gaps_are_the_time_of_the_graph() {
    let plan = chain(400, 0, 1);
    let (mut backend, step, inputs) = prepared(&plan, common::options());
    let profiles = backend.profile(step, &inputs, 9).unwrap();
    check(&plan, &profiles, 9);
    let share = |run: &Profile| run.accounted_ns() as f64 / run.step_ns as f64;
    let mut shares: Vec<f64> = profiles.iter().map(share).collect();
    shares.sort_by(f64::total_cmp);
    println!("operations and gaps over the graph's own time: {shares:.3?}");
    if !common::is_emulated() {
        let median = shares[shares.len() / 2];
        assert!((0.95..1.05).contains(&median), "{shares:?}");
    }
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn ranks_that_share_a_gpu_meet_in_every_watched_run() {
    const RANKS: usize = 2;
    let options = common::options();
    let gpus = [options.gpu; RANKS];
    let group = GpuGroup::new(&gpus, Transport::Pull, Duration::from_secs(100)).unwrap();
    let run = |rank: usize| {
        let plan = chain(12, rank, RANKS);
        let options = CudaOptions {
            ranks: group.rank(rank),
            ..options.clone()
        };
        let (mut backend, step, inputs) = prepared(&plan, options);
        // Watched twice: what the first time took is given back while the other rank is there too.
        for _ in 0..2 {
            let profiles = backend.profile(step, &inputs, 4).unwrap();
            check(&plan, &profiles, 4);
            check_result(&mut backend, step, &inputs);
        }
    };
    let run = &run;
    std::thread::scope(|scope| {
        for rank in 0..RANKS {
            scope.spawn(move || run(rank));
        }
    });
}
