//! Faults on purpose do what they say, and nothing else: what must find them is tested with the engine.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::borrow::Cow;

use glim_cuda::{CudaBackend, CudaOptions, Faults};
use glim_plan::{
    Backend, BackendError, CacheGeometry, GgmlType, InputKind, Op, Plan, PlanBuilder, Precision,
    ReadTarget, Rows, StepInputs, StepKind, WeightData, WeightSource, weight_groups,
};

const F32: GgmlType = GgmlType::F32;
const VOCAB: usize = 4;
const WIDTH: usize = 256;
const OUT: usize = 2000;

/// Tables of numbers from 0.5 to 1.5, and blocks of bytes that make such of Q8_0.
struct Weights;

impl WeightSource for Weights {
    fn weight(&self, name: &str) -> Result<WeightData<'_>, BackendError> {
        let byte = |i: usize| (i * 37 % 101) as u8 + 1;
        let (ty, shape, bytes) = match name {
            "table" => {
                let value = |i: usize| 0.5 + f32::from(byte(i)) / 102.0;
                let values = (0..VOCAB * WIDTH).flat_map(|i| value(i).to_le_bytes());
                (F32, vec![VOCAB, WIDTH], values.collect())
            }
            _ => {
                // A scale of 2^-7, and 32 integers.
                let block = |b: usize| {
                    let numbers = (0..32).map(move |i| byte(b * 32 + i));
                    0x2000u16.to_le_bytes().into_iter().chain(numbers)
                };
                let blocks = (0..OUT * WIDTH / 32).flat_map(block);
                (GgmlType::Q8_0, vec![OUT, WIDTH], blocks.collect())
            }
        };
        Ok(WeightData {
            ty,
            shape,
            bytes: Cow::<[u8]>::Owned(bytes),
        })
    }
}

/// Two products of an embedding, with other weights of the same bytes.
fn plan(step: StepKind) -> Plan {
    let geometry = CacheGeometry {
        block_size: 16,
        max_blocks: 1,
    };
    let mut b = PlanBuilder::new("products", step, geometry);
    let rows = step.tokens();
    b.input(InputKind::CuSeqlens);
    let tokens = b.input(InputKind::Tokens);
    let table = b.weight("table", F32, &[VOCAB, WIDTH]);
    let x = b.temp("x", F32, &[rows, WIDTH], Rows::Tokens);
    let embed = Op::Embed {
        tokens,
        carry: None,
        table,
        out: x,
    };
    b.op("embed", embed);
    for name in ["first", "second"] {
        let weight = b.weight(&format!("{name}.weight"), GgmlType::Q8_0, &[OUT, WIDTH]);
        let out = b.result(name, F32, &[rows, OUT], Rows::Tokens);
        let op = Op::Linear {
            x,
            weights: vec![weight],
            outs: vec![out],
            precision: Precision::Fast,
        };
        b.op(name, op);
    }
    b.finish()
}

fn backend(plan: &Plan, faults: Faults) -> CudaBackend {
    let options = CudaOptions {
        faults,
        ..common::options()
    };
    let mut backend = CudaBackend::new(options).unwrap();
    backend
        .load(&weight_groups([plan]).unwrap(), &Weights)
        .unwrap();
    backend.alloc_state(&[], 16, 1, 1).unwrap();
    backend
}

/// Both products of one row.
fn products(plan: &Plan, mut backend: CudaBackend) -> [Vec<f32>; 2] {
    let step = backend.prepare(plan).unwrap();
    let mut inputs = StepInputs::new(plan);
    inputs.set_i32(InputKind::Tokens, [3]).unwrap();
    inputs.set_i32(InputKind::CuSeqlens, [0, 1]).unwrap();
    let results = backend.run(step, &inputs).unwrap();
    ["first", "second"].map(|name| results.f32s(name).unwrap()[..OUT].to_vec())
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn a_flipped_byte_is_that_byte() {
    let plan = plan(StepKind::Decode { rows: 1 });
    let read = |backend: &CudaBackend, name| backend.read(ReadTarget::Weight(name)).unwrap();
    let good = read(&backend(&plan, Faults::default()), "second.weight");
    // A scale and a number, of the first row and of the last.
    for byte in [1, good.len() - 1] {
        let faults = Faults {
            flipped: vec![("second.weight".into(), byte)],
            ..Faults::default()
        };
        let bad = backend(&plan, faults);
        let mut expected = good.clone();
        expected[byte] = !expected[byte];
        assert!(read(&bad, "second.weight") == expected, "byte {byte}");
        assert!(read(&bad, "first.weight") == good);
    }
    let unknown = Faults {
        flipped: vec![("third.weight".into(), 0)],
        ..Faults::default()
    };
    let options = CudaOptions {
        faults: unknown,
        ..common::options()
    };
    let mut backend = CudaBackend::new(options).unwrap();
    let refused = backend.load(&weight_groups([&plan]).unwrap(), &Weights);
    assert!(matches!(refused, Err(BackendError::Missing { .. })));
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn a_skipped_tile_is_the_last_of_that_operation_only() {
    let decode = StepKind::Decode { rows: 1 };
    let prefill = StepKind::Prefill {
        tokens: 16,
        sequences: 1,
    };
    for step in [decode, prefill] {
        let plan = plan(step);
        let good = products(&plan, backend(&plan, Faults::default()));
        assert_eq!(good[0], good[1]);
        let faults = Faults {
            skips_last_tile: vec!["second".into()],
            ..Faults::default()
        };
        let bad = products(&plan, backend(&plan, faults));
        assert_eq!(bad[0], good[0]);
        let differs = |i: &usize| bad[1][*i].to_bits() != good[1][*i].to_bits();
        let skipped: Vec<usize> = (0..OUT).filter(differs).collect();
        assert!(!skipped.is_empty() && skipped.len() < OUT, "{step}");
        // Nothing has written there: the arena begins as NaN.
        assert!(skipped.iter().all(|i| bad[1][*i].is_nan()), "{step}");
    }
}
