//! Time stamps: every operation of a step has its time, in order, and together they are the step's.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::borrow::Cow;

use glim_cuda::{CudaBackend, CudaOptions};
use glim_plan::{
    Backend, BackendError, CacheGeometry, Cols, GgmlType, InputKind, Op, Plan, PlanBuilder, Rows,
    StepInputs, StepKind, WeightData, WeightSource, weight_groups,
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

/// A chain of norms behind an embedding.
fn chain(norms: usize) -> Plan {
    let geometry = CacheGeometry {
        block_size: 16,
        max_blocks: 1,
    };
    let mut b = PlanBuilder::new("chain", StepKind::Decode { rows: 2 }, geometry);
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

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn every_operation_has_its_time_in_order() {
    let plan = chain(40);
    for graphs in [true, false] {
        let options = CudaOptions {
            graphs,
            ..common::options()
        };
        let mut backend = CudaBackend::new(options).unwrap();
        let groups = weight_groups([&plan]).unwrap();
        backend.load(&groups, &Ones).unwrap();
        backend.alloc_state(&[], 16, 1, 1).unwrap();
        let step = backend.prepare(&plan).unwrap();
        let mut inputs = StepInputs::new(&plan);
        inputs.set_i32(InputKind::Tokens, [3, 4]).unwrap();
        inputs.set_i32(InputKind::CuSeqlens, [0, 1, 2]).unwrap();
        let profiles = backend.profile(step, &inputs, 3).unwrap();
        assert_eq!(profiles.len(), 3);
        for profile in profiles {
            assert_eq!(profile.ops.len(), plan.ops.len());
            for pair in profile.ops.windows(2) {
                assert!(pair[0].end_ns <= pair[1].end_ns, "{profile:?}");
                assert!(pair[0].start_ns <= pair[1].start_ns, "{profile:?}");
            }
            assert!(profile.step_ns > 0);
            assert!(profile.ops.last().unwrap().end_ns > 0);
        }
        // The stamps are off again, and the step still gives what it should.
        let results = backend.run(step, &inputs).unwrap();
        let out = results.f32s("out").unwrap();
        assert!(
            out.iter().all(|v| (v - 1.0).abs() < 1e-3),
            "{:?}",
            &out[..4]
        );
        // A kernel for each operation.
        assert_eq!(backend.nodes(step), graphs.then_some(plan.ops.len()));
    }
}
