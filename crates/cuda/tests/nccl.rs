//! NVIDIA's collectives, in steps and in captured graphs, with one rank: what one GPU can show.
//!
//! The emulator has no NCCL, and `cargo xtask emulate` leaves this out. `GLIM_NCCL` names the folder of the library if it is nowhere usual.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::borrow::Cow;
use std::path::PathBuf;
use std::time::Duration;

use glim_cuda::{CudaBackend, CudaOptions, GpuGroup, Transport, libraries};
use glim_plan::{
    Backend, BackendError, CacheGeometry, CollectiveId, Gather, GgmlType, InputKind, Op, Plan,
    PlanBuilder, Rows, StepInputs, StepKind, WeightData, WeightSource, weight_groups,
};

const ROWS: usize = 6;
const WIDTH: usize = 36;
const VOCAB: usize = 9;

/// `x → sum, sum over bf16, gathered`.
fn plan() -> Plan {
    let geometry = CacheGeometry {
        block_size: 4,
        max_blocks: 4,
    };
    let mut b = PlanBuilder::new("alone", StepKind::Decode { rows: ROWS }, geometry);
    let tokens = b.input(InputKind::Tokens);
    b.input(InputKind::CuSeqlens);
    let table = b.weight("table", GgmlType::F32, &[VOCAB, WIDTH]);
    let buffer = |b: &mut PlanBuilder, name: &str| {
        b.result(name, GgmlType::F32, &[ROWS, WIDTH], Rows::Tokens)
    };
    let x = b.temp("x", GgmlType::F32, &[ROWS, WIDTH], Rows::Tokens);
    let embed = Op::Embed {
        tokens,
        carry: None,
        table,
        out: x,
    };
    b.op("embed", embed);
    let wires = [("sum", GgmlType::F32), ("sum_bf16", GgmlType::BF16)];
    for (i, (name, wire)) in wires.into_iter().enumerate() {
        let (id, out) = (CollectiveId(i as u32), buffer(&mut b, name));
        b.op(name, Op::AllReduce { id, wire, x, out });
    }
    let out = buffer(&mut b, "gathered");
    let gather = Op::AllGather {
        id: CollectiveId(2),
        wire: GgmlType::F32,
        gathers: vec![Gather {
            x,
            out,
            lens: vec![WIDTH],
        }],
    };
    b.op("gather", gather);
    b.finish()
}

struct Table(Vec<f32>);

impl WeightSource for Table {
    fn weight(&self, _name: &str) -> Result<WeightData<'_>, BackendError> {
        Ok(WeightData {
            ty: GgmlType::F32,
            shape: vec![VOCAB, WIDTH],
            bytes: Cow::Borrowed(bytemuck::cast_slice(&self.0)),
        })
    }
}

#[test]
#[ignore = "needs a GPU with NCCL"]
fn one_rank_sums_and_gathers_itself_in_every_replay() {
    let options = common::options();
    if let Some(folder) = std::env::var_os("GLIM_NCCL") {
        libraries::preload(&PathBuf::from(folder));
    }
    // bf16 keeps 8 bits: multiples of 1/16 below 16 travel as they are, those of 1/64 do not all.
    let table = Table(
        (0..VOCAB * WIDTH)
            .map(|i| (i as f32 - 100.0) / 64.0)
            .collect(),
    );
    let plan = plan();
    for graphs in [false, true] {
        let deadline = Duration::from_secs(60);
        let group = GpuGroup::new(&[options.gpu], Transport::Nccl, deadline).unwrap();
        let options = CudaOptions {
            graphs,
            ranks: group.rank(0),
            ..options.clone()
        };
        let mut backend = CudaBackend::new(options).unwrap();
        let groups = weight_groups([&plan]).unwrap();
        backend.load(&groups, &table).unwrap();
        backend.alloc_state(&[], 4, 4, ROWS).unwrap();
        let step = backend.prepare(&plan).unwrap();
        for turn in 0..20 {
            let rows = 1 + turn % ROWS;
            let tokens: Vec<u32> = (0..rows).map(|t| ((t * 5 + turn) % VOCAB) as u32).collect();
            let mut inputs = StepInputs::new(&plan);
            inputs
                .set(InputKind::Tokens, tokens.iter().copied())
                .unwrap();
            inputs
                .set_i32(InputKind::CuSeqlens, 0..=rows as i32)
                .unwrap();
            let results = backend.run(step, &inputs).unwrap();
            for (t, token) in tokens.iter().enumerate() {
                let expected = &table.0[*token as usize * WIDTH..][..WIDTH];
                let row = |name: &str| &results.f32s(name).unwrap()[t * WIDTH..][..WIDTH];
                assert_eq!(row("sum"), expected, "turn {turn}, graphs {graphs}");
                assert_eq!(row("gathered"), expected, "turn {turn}, graphs {graphs}");
                let rounded = expected.iter().map(|v| half::bf16::from_f32(*v).to_f32());
                let rounded: Vec<f32> = rounded.collect();
                assert_eq!(row("sum_bf16"), rounded, "turn {turn}, graphs {graphs}");
            }
        }
    }
}
