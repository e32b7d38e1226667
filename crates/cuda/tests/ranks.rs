//! Ranks that meet on a GPU: the bits of the exchange in memory, over replays; and what happens when one of them does not come.
//!
//! All of them on one GPU, as threads with streams of their own: that is what one GPU, or the emulator, can show.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use glim_cuda::{CudaBackend, CudaOptions, GpuGroup, Place, Transport};
use glim_plan::collective::Group;
use glim_plan::reference::{ReferenceBackend, ReferenceOptions};
use glim_plan::{
    Backend, BackendError, BufferKind, CacheGeometry, CollectiveId, Communicator, Gather, GgmlType,
    InputExtents, InputKind, Op, Plan, PlanBuilder, RankFailure, RankFault, Rows, StepId,
    StepInputs, StepKind, StepResults, WeightData, WeightSource, weight_groups,
};

const F32: GgmlType = GgmlType::F32;
const BF16: GgmlType = GgmlType::BF16;

/// For tests in which all come.
const PATIENT: Duration = Duration::from_secs(100);

/// For tests in which one does not: far longer than a step takes also on a busy machine.
const STALLED: Duration = Duration::from_secs(2);

/// Blocks of a kernel: few, so that what is large takes several meetings, and since the emulator keeps all blocks that wait.
const BLOCKS: usize = 3;

/// Rows of the tables that values come from.
const VOCAB: usize = 50;

// ---- plans -------------------------------------------------------------------------------------------------------------------------

/// Sizes of a plan.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    step: StepKind,
    width: usize,
    outputs: usize,
}

/// Sums and gathers of all kinds; ranks bring other numbers of columns.
fn plan(rank: usize, world_size: usize, sizes: Sizes) -> Plan {
    let geometry = CacheGeometry {
        block_size: 4,
        max_blocks: 4,
    };
    let mut b = PlanBuilder::new("meeting", sizes.step, geometry);
    let ids: Vec<usize> = (0..world_size).map(|r| 2 + r).collect();
    b.extents(InputExtents {
        outputs: sizes.outputs,
        vocab_size: VOCAB,
        forced: ids[rank],
    });
    b.rank(rank, world_size);
    let (t, d, n) = (sizes.step.tokens(), sizes.width, sizes.outputs);
    let tokens = b.input(InputKind::Tokens);
    b.input(InputKind::CuSeqlens);
    let forced = b.input(InputKind::ForcedTopk);
    let output_rows = b.input(InputKind::OutputRows);
    let embed = |b: &mut PlanBuilder, name: &str, width: usize| {
        let table = b.weight(&format!("{name}_table"), F32, &[VOCAB, width]);
        let out = b.temp(name, F32, &[t, width], Rows::Tokens);
        let op = Op::Embed {
            tokens,
            carry: None,
            table,
            out,
        };
        b.op(name, op);
        out
    };
    let x = embed(&mut b, "x", d);
    let lens: Vec<usize> = (0..world_size).map(|r| 3 + 2 * r).collect();
    let part = embed(&mut b, "part", lens[rank]);

    let mut id = 0;
    let mut next = || {
        id += 1;
        CollectiveId(id - 1)
    };
    for (name, wire) in [("sum", F32), ("sum_bf16", BF16)] {
        let out = b.result(name, F32, &[t, d], Rows::Tokens);
        let id = next();
        b.op(name, Op::AllReduce { id, wire, x, out });
    }
    // Five buffers, one of them of i32.
    let mut gathers = Vec::new();
    let mut gather = |b: &mut PlanBuilder, name: &str, x, ty, lens: &[usize]| {
        let out = b.result(name, ty, &[t, lens.iter().sum()], Rows::Tokens);
        let lens = lens.to_vec();
        gathers.push(Gather { x, out, lens });
    };
    gather(&mut b, "parts", part, F32, &lens);
    gather(&mut b, "ids", forced, GgmlType::I32, &ids);
    for name in ["again", "and_again", "once_more"] {
        gather(&mut b, name, part, F32, &lens);
    }
    let (id, wire) = (next(), BF16);
    b.op("gather", Op::AllGather { id, wire, gathers });
    let whole = b.result("whole", F32, &[t, d * world_size], Rows::Tokens);
    let gathers = vec![Gather {
        x,
        out: whole,
        lens: vec![d; world_size],
    }];
    let (id, wire) = (next(), F32);
    b.op("gather_whole", Op::AllGather { id, wire, gathers });

    let chosen = b.temp("chosen", F32, &[n, d], Rows::Outputs);
    let select = Op::SelectRows {
        x,
        output_rows,
        out: chosen,
    };
    b.op("select", select);
    let out = b.result("sum_of_outputs", F32, &[n, d], Rows::Outputs);
    let (id, wire, x) = (next(), BF16, chosen);
    b.op("sum_of_outputs", Op::AllReduce { id, wire, x, out });
    b.finish()
}

/// Random bits.
fn noise(seed: usize) -> u32 {
    (seed as u32 ^ 0x9e37_79b9)
        .wrapping_mul(0x85eb_ca6b)
        .rotate_left(13)
        .wrapping_mul(0xc2b2_ae35)
}

/// The tables of a rank's plan: its own numbers, some of them not finite.
struct Weights(HashMap<String, (Vec<usize>, Vec<f32>)>);

impl Weights {
    fn of(plan: &Plan) -> Self {
        let weights = plan.buffers_where(|kind| *kind == BufferKind::Weight);
        Self(
            weights
                .map(|(_, b)| {
                    let value = |i: usize| {
                        let bits = noise(i * 8 + plan.rank);
                        match bits % 997 {
                            0 => f32::NAN,
                            1 => f32::INFINITY,
                            2 => -0.0,
                            // Of all magnitudes, so that the order of a sum shows.
                            _ => {
                                (bits as f32 / 2.0_f32.powi(31) - 1.0)
                                    * 10.0_f32.powi(bits as i32 % 8)
                            }
                        }
                    };
                    let values = (0..b.shape.iter().product()).map(value).collect();
                    (b.name.clone(), (b.shape.clone(), values))
                })
                .collect(),
        )
    }
}

impl WeightSource for Weights {
    fn weight(&self, name: &str) -> Result<WeightData<'_>, BackendError> {
        let (shape, values) = &self.0[name];
        Ok(WeightData {
            ty: F32,
            shape: shape.clone(),
            bytes: Cow::Borrowed(bytemuck::cast_slice(values)),
        })
    }
}

/// Inputs of run `turn`: another number of rows each time.
fn inputs(plan: &Plan, turn: usize) -> StepInputs {
    let mut inputs = StepInputs::new(plan);
    let capacity = plan.step.tokens();
    let rows = [capacity, 1, capacity / 2, 0, capacity.saturating_sub(1)][turn % 5];
    let tokens = (0..rows).map(|t| noise(t + 1000 * turn) % VOCAB as u32);
    inputs.set(InputKind::Tokens, tokens).unwrap();
    let sequences = match plan.step {
        StepKind::Decode { .. } => (0..=rows as i32).collect(),
        StepKind::Prefill { .. } => vec![0, rows as i32 / 3, rows as i32],
    };
    inputs.set_i32(InputKind::CuSeqlens, sequences).unwrap();
    let width = inputs.get(InputKind::ForcedTopk).len() / capacity;
    let ids = (0..rows * width).map(|i| noise(i * 16 + plan.rank + turn));
    inputs.set(InputKind::ForcedTopk, ids).unwrap();
    let outputs = inputs.get(InputKind::OutputRows).len().min(rows);
    let chosen = (0..outputs).map(|i| ((i * 7 + turn) % rows) as i32);
    inputs.set_i32(InputKind::OutputRows, chosen).unwrap();
    inputs
}

// ---- ranks -------------------------------------------------------------------------------------------------------------------------

/// The exchange in memory: what [`Communicator`] says, and nothing else.
#[derive(Debug, Clone)]
struct Meeting {
    rank: usize,
    brought: Arc<Mutex<Vec<Vec<u32>>>>,
    barrier: Arc<Barrier>,
}

impl Communicator for Meeting {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.brought.lock().unwrap().len()
    }

    fn begin(&self, _op: usize) {}

    fn exchange(
        &self,
        _id: CollectiveId,
        mine: &[u32],
        each: &mut dyn FnMut(usize, &[u32]),
    ) -> Result<(), RankFailure> {
        self.brought.lock().unwrap()[self.rank] = mine.to_vec();
        self.barrier.wait();
        let all = self.brought.lock().unwrap().clone();
        self.barrier.wait();
        all.iter().enumerate().for_each(|(r, words)| each(r, words));
        Ok(())
    }
}

fn meetings(world_size: usize) -> Vec<Meeting> {
    let brought = Arc::new(Mutex::new(vec![Vec::new(); world_size]));
    let barrier = Arc::new(Barrier::new(world_size));
    let meeting = |rank| Meeting {
        rank,
        brought: Arc::clone(&brought),
        barrier: Arc::clone(&barrier),
    };
    (0..world_size).map(meeting).collect()
}

/// A backend with a plan's weights and the plan.
fn prepared(mut backend: Box<dyn Backend>, plan: &Plan) -> (Box<dyn Backend>, StepId) {
    let groups = weight_groups([plan]).unwrap();
    backend.load(&groups, &Weights::of(plan)).unwrap();
    backend.alloc_state(&[], 4, 4, 4).unwrap();
    let step = backend.prepare(plan).unwrap();
    (backend, step)
}

fn on_gpu(place: Place, options: CudaOptions) -> Box<dyn Backend> {
    let options = CudaOptions {
        ranks: place,
        ..options
    };
    Box::new(CudaBackend::new(options).unwrap())
}

/// Runs every turn on every rank, each on its thread; by rank and turn.
fn run_all(backends: Vec<Box<dyn Backend>>, plans: &[Plan], turns: usize) -> Vec<Vec<StepResults>> {
    std::thread::scope(|scope| {
        let ranks = backends.into_iter().zip(plans).map(|(backend, plan)| {
            scope.spawn(move || {
                let (mut backend, step) = prepared(backend, plan);
                let run = |turn| backend.run(step, &inputs(plan, turn)).unwrap();
                (0..turns).map(run).collect::<Vec<_>>()
            })
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn group(world_size: usize, deadline: Duration) -> GpuGroup {
    // The emulator has to be named before the first call of the driver.
    let gpu = common::options().gpu;
    group_on(&vec![gpu; world_size], deadline)
}

fn group_on(gpus: &[usize], deadline: Duration) -> GpuGroup {
    GpuGroup::with_blocks(gpus, Transport::Pull, deadline, BLOCKS).unwrap()
}

/// Holds each rank's results to those of the reference: all bits of all live rows, but any NaN for any NaN.
fn compare(plans: &[Plan], found: &[Vec<StepResults>], expected: &[Vec<StepResults>], what: &str) {
    for (plan, (found, expected)) in plans.iter().zip(found.iter().zip(expected)) {
        for (turn, (found, expected)) in found.iter().zip(expected).enumerate() {
            let given = inputs(plan, turn);
            let tokens = given.get(InputKind::CuSeqlens).iter().max().copied();
            let outputs = given.get(InputKind::OutputRows).iter();
            let outputs = outputs.filter(|row| **row != u32::MAX).count();
            for (_, b) in plan.buffers_where(|kind| *kind == BufferKind::Result) {
                let live = match b.rows {
                    Rows::Outputs => outputs,
                    _ => tokens.unwrap_or(0) as usize,
                };
                let words = live * b.row_elements();
                let (f, e) = (
                    found.words(&b.name).unwrap(),
                    expected.words(&b.name).unwrap(),
                );
                let is_float = b.dtype == F32;
                let same = |f: u32, e: u32| {
                    let are_nan = f32::from_bits(f).is_nan() && f32::from_bits(e).is_nan();
                    f == e || (is_float && are_nan)
                };
                let pairs = f.iter().zip(e).take(words);
                let wrong = pairs.enumerate().find(|(_, (f, e))| !same(**f, **e));
                assert!(
                    wrong.is_none(),
                    "{what}: rank {}, turn {turn}, {}: {wrong:?}",
                    plan.rank,
                    b.name
                );
            }
        }
    }
}

/// Ranks of these sizes against the reference.
fn check(world_size: usize, sizes: Sizes, turns: usize, options: &CudaOptions, what: &str) {
    check_on(&vec![options.gpu; world_size], sizes, turns, options, what);
}

/// Ranks on these GPUs.
fn check_on(gpus: &[usize], sizes: Sizes, turns: usize, options: &CudaOptions, what: &str) {
    let world_size = gpus.len();
    let plans: Vec<Plan> = (0..world_size)
        .map(|rank| plan(rank, world_size, sizes))
        .collect();
    glim_plan::check_ranks(&plans).unwrap();
    let reference = meetings(world_size).into_iter().map(|meeting| {
        let options = ReferenceOptions {
            ranks: Some(Arc::new(meeting)),
            ..ReferenceOptions::default()
        };
        Box::new(ReferenceBackend::new(options)) as Box<dyn Backend>
    });
    let expected = run_all(reference.collect(), &plans, turns);
    let group = group_on(gpus, PATIENT);
    let backends = gpus.iter().enumerate().map(|(rank, gpu)| {
        let options = CudaOptions {
            gpu: *gpu,
            ..options.clone()
        };
        on_gpu(group.rank(rank), options)
    });
    let found = run_all(backends.collect(), &plans, turns);
    assert_eq!(group.failure(), None);
    compare(&plans, &found, &expected, what);
}

const DECODE: Sizes = Sizes {
    step: StepKind::Decode { rows: 8 },
    width: 31,
    outputs: 8,
};

const PREFILL: Sizes = Sizes {
    step: StepKind::Prefill {
        tokens: 40,
        sequences: 2,
    },
    width: 64,
    outputs: 2,
};

// ---- what they agree on ------------------------------------------------------------------------------------------------------------

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn ranks_get_the_bits_of_the_exchange_in_memory_in_every_replay() {
    for graphs in [true, false] {
        let options = CudaOptions {
            graphs,
            ..common::options()
        };
        for world_size in [2, 3] {
            for sizes in [DECODE, PREFILL] {
                let what = format!("{world_size} ranks, {sizes:?}, graphs {graphs}");
                check(world_size, sizes, 12, &options, &what);
            }
        }
    }
}

#[test]
#[ignore = "needs two GPUs, or the emulator: cargo xtask emulate"]
fn ranks_on_gpus_of_their_own_do_too() {
    let options = common::options();
    let there = glim_cuda::probe().unwrap().len();
    if there < 2 {
        eprintln!("one GPU only: nothing was tried");
        return;
    }
    for gpus in [[0, 1], [1, 0]] {
        for sizes in [DECODE, PREFILL] {
            let what = format!("GPUs {gpus:?}, {sizes:?}");
            check_on(&gpus, sizes, 12, &options, &what);
        }
    }
    // Two on one, one on the other.
    check_on(&[0, 1, 0], DECODE, 12, &options, "three ranks on two GPUs");
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn what_does_not_fit_a_slice_goes_in_several_meetings() {
    // Three blocks take 192 KiB at a time.
    let sizes = Sizes {
        step: StepKind::Prefill {
            tokens: 100,
            sequences: 2,
        },
        width: 2052,
        outputs: 1,
    };
    check(2, sizes, 4, &common::options(), "large");
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn poison_is_looked_for_while_others_wait() {
    let options = CudaOptions {
        poison: true,
        ..common::options()
    };
    // Tables hold NaN, which is poison: all tokens are those of a row without any.
    let plans: Vec<Plan> = (0..2).map(|rank| plan(rank, 2, DECODE)).collect();
    let clean = |plan: &Plan| {
        let weights = Weights::of(plan);
        let rows = (0..VOCAB).filter(|row| {
            weights.0.values().all(|(shape, values)| {
                let width = shape[1];
                values[row * width..][..width].iter().all(|v| v.is_finite())
            })
        });
        rows.collect::<Vec<_>>()
    };
    let both = clean(&plans[0]);
    let other = clean(&plans[1]);
    let row = both.into_iter().find(|row| other.contains(row)).unwrap();
    let group = group(2, PATIENT);
    std::thread::scope(|scope| {
        for (rank, plan) in plans.iter().enumerate() {
            let (place, options) = (group.rank(rank), options.clone());
            scope.spawn(move || {
                let (mut backend, step) = prepared(on_gpu(place, options), plan);
                for turn in 0..4 {
                    let mut inputs = inputs(plan, turn);
                    let rows = inputs.get(InputKind::CuSeqlens).iter().max().copied();
                    let tokens = vec![row as u32; rows.unwrap() as usize];
                    inputs.set(InputKind::Tokens, tokens).unwrap();
                    backend.run(step, &inputs).unwrap();
                }
            });
        }
    });
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn without_others_a_rank_takes_itself_for_the_sum() {
    let plan = plan(1, 4, DECODE);
    let x = &Weights::of(&plan).0["x_table"].1;
    for latency in [None, Some(Duration::from_micros(50))] {
        let place = Place::without_others(1, 4, latency);
        let (mut backend, step) = prepared(on_gpu(place, common::options()), &plan);
        let inputs = inputs(&plan, 0);
        let results = backend.run(step, &inputs).unwrap();
        let (sum, whole) = (results.f32s("sum").unwrap(), results.f32s("whole").unwrap());
        for (t, token) in inputs.get(InputKind::Tokens).iter().enumerate() {
            let row = &x[*token as usize * 31..][..31];
            let bits = |row: &[f32]| row.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&sum[t * 31..][..31]), bits(row));
            for rank in 0..4 {
                assert_eq!(bits(&whole[(t * 4 + rank) * 31..][..31]), bits(row));
            }
        }
    }
}

// ---- what goes wrong ---------------------------------------------------------------------------------------------------------------

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn a_rank_that_does_not_come_is_named_with_where_it_was_missed() {
    let group = group(3, STALLED);
    let plans: Vec<Plan> = (0..3).map(|rank| plan(rank, 3, DECODE)).collect();
    let ready = Barrier::new(3);
    // All run a step; then rank 1 waits until the others have given up, and comes too late.
    let errors: Vec<String> = std::thread::scope(|scope| {
        let ranks = plans.iter().enumerate().map(|(rank, plan)| {
            let (group, ready) = (&group, &ready);
            scope.spawn(move || {
                let place = group.rank(rank);
                let (mut backend, step) = prepared(on_gpu(place, common::options()), plan);
                ready.wait();
                backend.run(step, &inputs(plan, 0)).unwrap();
                while rank == 1 && group.failure().is_none() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                let late = backend.run(step, &inputs(plan, 1)).unwrap_err();
                late.to_string()
            })
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    let failure = group.failure().unwrap();
    assert_eq!(failure.rank, 1);
    let RankFault::Stalled {
        waiter,
        waiter_op,
        waited,
    } = failure.fault
    else {
        panic!("{failure:?}");
    };
    assert!(waiter != 1 && waited == STALLED);
    assert_eq!(plans[0].ops[waiter_op].label, "sum");
    let start = "rank 1 did not go on within 2 s, while rank";
    assert!(errors[0].starts_with(start), "{errors:?}");
    assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn a_rank_that_never_begins_is_named_before_anything_is_launched() {
    let group = group(2, Duration::from_millis(100));
    let plan = plan(1, 2, DECODE);
    let (mut backend, step) = prepared(on_gpu(group.rank(1), common::options()), &plan);
    let error = backend.run(step, &inputs(&plan, 0)).unwrap_err();
    let start = "rank 0 did not go on within 0.1 s, while rank 1 waited";
    assert!(error.to_string().starts_with(start), "{error}");
    assert_eq!(group.failure().unwrap().rank, 0);
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn a_rank_that_leaves_in_the_middle_is_named_too() {
    let group = group(2, STALLED);
    let ready = Barrier::new(2);
    let whole = [0, 1].map(|rank| plan(rank, 2, DECODE));
    // Rank 1 enters the first sum only.
    let sum = whole[1].ops.iter().position(|node| node.label == "sum");
    let short = whole[1].cut(sum.unwrap() + 1);
    let plans = [whole[0].clone(), short];
    let outcomes: Vec<Result<StepResults, BackendError>> = std::thread::scope(|scope| {
        let ranks = plans.iter().enumerate().map(|(rank, plan)| {
            let (place, ready) = (group.rank(rank), &ready);
            scope.spawn(move || {
                let (mut backend, step) = prepared(on_gpu(place, common::options()), plan);
                ready.wait();
                backend.run(step, &inputs(plan, 0))
            })
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    let error = outcomes[0].as_ref().unwrap_err().to_string();
    assert!(error.contains("rank 1 did not go on"), "{error}");
    assert!(error.contains("while rank 0 waited in sum_bf16"), "{error}");
    assert_eq!(group.failure().unwrap().rank, 1);
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn a_failure_on_the_host_ends_the_wait_of_the_others() {
    let group = group(2, PATIENT);
    let plans = [0, 1].map(|rank| plan(rank, 2, DECODE));
    let fault = RankFault::Panicked("on purpose".into());
    // Both run a step; in the next one a kernel of rank 0 waits.
    let run = |rank: usize| {
        let place = group.rank(rank);
        let (mut backend, step) = prepared(on_gpu(place, common::options()), &plans[rank]);
        backend.run(step, &inputs(&plans[rank], 0)).unwrap();
        (backend, step)
    };
    let error = std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let (mut backend, step) = run(0);
            backend.run(step, &inputs(&plans[0], 1)).unwrap_err()
        });
        // Kept: freeing its memory waits for the GPU.
        let _other = run(1);
        std::thread::sleep(Duration::from_millis(50));
        group.fail(1, fault.clone());
        // A later one does not count.
        group.fail(0, RankFault::Failed("too late".into()));
        waits.join().unwrap()
    });
    let failure = group.failure().unwrap();
    assert_eq!((failure.rank, failure.fault), (1, fault));
    assert!(
        error.to_string().contains("rank 1 panicked: on purpose"),
        "{error}"
    );
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn a_rank_that_points_outside_does_not_keep_the_others_waiting() {
    let group = group(2, PATIENT);
    let plans = [0, 1].map(|rank| plan(rank, 2, DECODE));
    let outcomes: Vec<Result<StepResults, BackendError>> = std::thread::scope(|scope| {
        let ranks = plans.iter().enumerate().map(|(rank, plan)| {
            let place = group.rank(rank);
            scope.spawn(move || {
                let (mut backend, step) = prepared(on_gpu(place, common::options()), plan);
                let mut inputs = inputs(plan, 0);
                if rank == 1 {
                    let tokens = vec![VOCAB as u32 + 3; plan.step.tokens()];
                    inputs.set(InputKind::Tokens, tokens).unwrap();
                }
                backend.run(step, &inputs)
            })
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    assert!(outcomes[0].is_ok(), "{outcomes:?}");
    let error = outcomes[1].as_ref().unwrap_err();
    assert!(matches!(error, BackendError::OutOfRange { .. }), "{error}");
    assert_eq!(group.failure(), None, "that it failed, the engine says");
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn groups_that_cannot_be_are_refused() {
    let gpu = common::options().gpu;
    let new = |ranks: usize, transport| {
        let group = GpuGroup::new(&vec![gpu; ranks], transport, PATIENT);
        group.unwrap_err().to_string()
    };
    let error = new(9, Transport::Pull);
    assert!(error.contains("9 ranks are not 1 to 8"), "{error}");
    let error = new(4, Transport::Pull);
    let expected = "4 ranks share GPU 0, whose 8 queues are enough for 3";
    assert!(error.contains(expected), "{error}");
    // Before the library is asked, which need not be there.
    let error = new(2, Transport::Nccl);
    assert!(error.contains("ranks 0 and 1 share GPU 0"), "{error}");
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn a_plan_of_another_rank_is_refused() {
    let group = group(2, PATIENT);
    let mut backend = on_gpu(group.rank(0), common::options());
    let plan = plan(1, 2, DECODE);
    let groups = weight_groups([&plan]).unwrap();
    backend.load(&groups, &Weights::of(&plan)).unwrap();
    let error = backend.prepare(&plan).unwrap_err().to_string();
    assert!(error.contains("rank 0 of 2, not 1 of 2"), "{error}");
}
