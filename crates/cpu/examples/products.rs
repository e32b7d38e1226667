//! Products of each weight type beside what memory allows: `cargo run --release -p glim-cpu --example products [TYPE…]`.
//!
//! One row of activations goes through a chain of square weights, several times the size of any cache in all: what a decode
//! step does; then four rows do. The ratio is the time that reading the weights' bytes takes at the machine's read bandwidth, over the time taken.
//! Last, weights serve 512 rows: what a prefill step does.
#![allow(clippy::unwrap_used, reason = "an example")]

use std::borrow::Cow;
use std::time::Instant;

use glim_cpu::{CpuBackend, CpuOptions, machine};
use glim_plan::{
    Backend, BackendError, BufferKind, CacheGeometry, GgmlType, InputKind, Op, Plan, PlanBuilder,
    Precision, Rows, StepInputs, StepKind, WeightData, WeightSource, weight_groups,
};
use glim_testkit::parity::blocks::{self, Random};

const K: usize = 4096;
/// Bytes of all weights together.
const BYTES: usize = 320 << 20;
const PASSES: usize = 7;

/// The same random rows in all weights: their values do not matter, their places do.
struct Weights {
    ty: GgmlType,
    one: Vec<u8>,
}

impl WeightSource for Weights {
    fn weight(&self, name: &str) -> Result<WeightData<'_>, BackendError> {
        Ok(match name {
            "table" => WeightData {
                ty: GgmlType::F32,
                shape: vec![1, K],
                bytes: Cow::Owned(blocks::weight(
                    GgmlType::F32,
                    K,
                    1.0,
                    &mut Random::named(1, "x"),
                )),
            },
            _ => WeightData {
                ty: self.ty,
                shape: vec![K, K],
                bytes: Cow::Borrowed(&self.one),
            },
        })
    }
}

fn chain(ty: GgmlType, rows: usize, weights: usize) -> Plan {
    let step = StepKind::Prefill {
        tokens: rows,
        sequences: 1,
    };
    let geometry = CacheGeometry {
        block_size: 1,
        max_blocks: 1,
    };
    let mut b = PlanBuilder::new("chain", step, geometry);
    let tokens = b.input(InputKind::Tokens);
    let table = b.weight("table", GgmlType::F32, &[1, K]);
    let mut x = b.temp("x", GgmlType::F32, &[rows, K], Rows::Tokens);
    let embed = Op::Embed {
        tokens,
        carry: None,
        table,
        out: x,
    };
    b.op("embed", embed);
    for i in 0..weights {
        let w = b.weight(&format!("w{i}"), ty, &[K, K]);
        let out = match i + 1 == weights {
            true => b.result("y", GgmlType::F32, &[rows, K], Rows::Tokens),
            false => b.temp(&format!("y{i}"), GgmlType::F32, &[rows, K], Rows::Tokens),
        };
        let op = Op::Linear {
            x,
            weights: vec![w],
            outs: vec![out],
            precision: Precision::Fast,
        };
        b.op(&format!("linear{i}"), op);
        x = out;
    }
    b.finish()
}

fn measure(ty: GgmlType, bandwidth: f64) {
    let one = blocks::weight(
        ty,
        K * K,
        (K as f32).sqrt().recip(),
        &mut Random::named(2, ty.name()),
    );
    let n = BYTES / one.len() + 1;
    let bytes = (n * one.len()) as f64;
    let mut backend = CpuBackend::new(CpuOptions::default());
    let plans = [chain(ty, 1, n), chain(ty, 4, n), chain(ty, 512, 2)];
    let source = Weights { ty, one };
    backend
        .load(&weight_groups(&plans).unwrap(), &source)
        .unwrap();
    backend.alloc_state(&[], 1, 1, 1).unwrap();
    let mut best = [f64::INFINITY; 3];
    for (plan, best) in plans.iter().zip(&mut best) {
        let step = backend.prepare(plan).unwrap();
        let inputs = StepInputs::new(plan);
        for _ in 0..PASSES {
            let start = Instant::now();
            backend.run(step, &inputs).unwrap();
            *best = best.min(start.elapsed().as_secs_f64());
        }
    }
    let weights = |p: &Plan| p.buffers_where(|k| *k == BufferKind::Weight).count() - 1;
    let operations = 2.0 * (512 * K * K * weights(&plans[2])) as f64;
    println!(
        "{:8} {:7.1} GB/s  {:5.1} % of read bandwidth, {:5.1} % with 4 rows  {:7.0} GOP/s at 512 rows",
        ty.name(),
        bytes / best[0] / 1e9,
        100.0 * bytes / best[0] / bandwidth,
        100.0 * bytes / best[1] / bandwidth,
        operations / best[2] / 1e9
    );
}

fn main() {
    let mut backend = CpuBackend::new(CpuOptions::default());
    println!("{}", backend.caps().name);
    let bandwidth = machine::read_bandwidth(backend.pool());
    println!("read bandwidth {:.1} GB/s", bandwidth / 1e9);
    let named: Vec<GgmlType> = std::env::args()
        .skip(1)
        .map(|name| GgmlType::from_name(&name).unwrap_or_else(|| panic!("{name} is no type")))
        .collect();
    use GgmlType as T;
    let usual = vec![T::Q8_0, T::Q4_K, T::Q6_K, T::BF16];
    for ty in if named.is_empty() { usual } else { named } {
        measure(ty, bandwidth);
    }
    let again = machine::read_bandwidth(backend.pool());
    println!("read bandwidth, once more {:.1} GB/s", again / 1e9);
}
