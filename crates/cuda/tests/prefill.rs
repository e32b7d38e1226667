//! Products of prefill steps at sizes of several tiles: against the reference, and the same bits in every bucket.
//!
//! The parity table has few rows, which get the smallest tile. Sizes here are those for which a GPU of 132 multiprocessors takes the
//! larger ones (`program/gemm/tiles.rs` tests that they are), with ends in the middle of a tile in every direction. A bucket's size
//! chooses the tile, so rows that have the same bits in all buckets have them in all tiles.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use glim_cuda::{CudaBackend, CudaOptions, Math};
use glim_plan::reference::{ReferenceBackend, ReferenceOptions};
use glim_plan::{
    Backend, BackendError, BufferId, CacheGeometry, Cols, GgmlType, InputExtents, InputKind, Op,
    Plan, PlanBuilder, Precision, Rows, StepInputs, StepKind, weight_groups,
};
use glim_testkit::parity::blocks::{Random, weight};
use glim_testkit::weights::Weights;

const F32: GgmlType = GgmlType::F32;
const GEOMETRY: CacheGeometry = CacheGeometry {
    block_size: 16,
    max_blocks: 64,
};

/// Mean square of the error of a product with 8-bit activations, over that of the values (see the parity table's bounds).
const EIGHT_BIT: f64 = 32.0 / (12.0 * 127.0 * 127.0);
/// That of a sum of f32 in another order.
const SUM: f64 = 4096.0 / (1u64 << 50) as f64;

/// Adds a weight of random values, of such size that a product keeps the size of its input.
fn add_random(weights: &mut Weights, name: &str, ty: GgmlType, shape: &[usize]) {
    let elements = shape.iter().product();
    let size = (*shape.last().unwrap() as f32).sqrt().recip();
    let bytes = weight(ty, elements, size, &mut Random::named(3, name));
    weights.insert(name, ty, shape, bytes);
}

/// A prefill step of so many tokens whose activations are rows of a table, `x [T, width]`.
fn plan(tokens: usize, forced: usize, rows: usize, width: usize) -> (PlanBuilder, BufferId) {
    let step = StepKind::Prefill {
        tokens,
        sequences: 1,
    };
    let mut b = PlanBuilder::new("prefill", step, GEOMETRY);
    b.extents(InputExtents {
        forced,
        ..InputExtents::default()
    });
    b.input(InputKind::CuSeqlens);
    let ids = b.input(InputKind::Tokens);
    let table = b.weight("table", F32, &[rows, width]);
    let x = b.temp("x", F32, &[tokens, width], Rows::Tokens);
    let embed = Op::Embed {
        tokens: ids,
        carry: None,
        table,
        out: x,
    };
    b.op("embed", embed);
    (b, x)
}

/// Rows 0..live of the result `out`.
fn run(
    mut backend: Box<dyn Backend>,
    plan: &Plan,
    weights: &Weights,
    live: usize,
    forced: &[i32],
) -> Result<Vec<f32>, BackendError> {
    backend.load(&weight_groups([plan]).unwrap(), weights)?;
    backend.alloc_state(&plan.states(), GEOMETRY.block_size, 1, 1)?;
    let step = backend.prepare(plan)?;
    let mut inputs = StepInputs::new(plan);
    inputs.set_i32(InputKind::Tokens, 0..live as i32).unwrap();
    let ends = [0, live as i32];
    inputs.set_i32(InputKind::CuSeqlens, ends).unwrap();
    if inputs.has(InputKind::ForcedTopk) {
        let width = plan
            .buffer(plan.input(InputKind::ForcedTopk).unwrap())
            .row_elements();
        let forced = forced[..live * width].iter().copied();
        inputs.set_i32(InputKind::ForcedTopk, forced).unwrap();
    }
    let results = backend.run(step, &inputs)?;
    let width = plan.buffer(plan.find("out").unwrap()).row_elements();
    Ok(results.f32s("out").unwrap()[..live * width].to_vec())
}

fn cuda(math: Math) -> Box<dyn Backend> {
    let options = CudaOptions {
        math,
        ..common::options()
    };
    Box::new(CudaBackend::new(options).unwrap())
}

fn reference() -> Box<dyn Backend> {
    Box::new(ReferenceBackend::new(ReferenceOptions::default()))
}

fn check(what: &str, found: &[f32], expected: &[f32], bound: f64) {
    assert_eq!(found.len(), expected.len());
    let square = |x: f32, y: f32| (f64::from(x) - f64::from(y)).powi(2);
    let pairs = || found.iter().zip(expected);
    let error: f64 = pairs().map(|(x, y)| square(*x, *y)).sum();
    let size: f64 = expected.iter().map(|y| square(*y, 0.0)).sum();
    let worst = pairs().map(|(x, y)| square(*x, *y)).fold(0.0, f64::max);
    let mean = size / found.len() as f64;
    println!("{what}: {:.1e}, worst {:.1e}", error / size, worst / mean);
    assert!(error <= bound * size, "{what}: {:e}", error / size);
    // Six standard deviations.
    assert!(worst <= 36.0 * bound * mean, "{what}: {:e}", worst / mean);
}

/// The same rows in buckets of each size: the first must be right, the others have its bits.
fn check_buckets(
    what: &str,
    math: Math,
    buckets: &[(usize, usize)],
    make: &dyn Fn(usize) -> Plan,
    weights: &Weights,
    forced: &[i32],
    bound: f64,
) {
    let (most, live) = buckets[0];
    let all = run(cuda(math), &make(most), weights, live, forced).unwrap();
    let right = run(reference(), &make(most), weights, live, forced).unwrap();
    check(what, &all, &right, bound);
    for (bucket, live) in &buckets[1..] {
        let found = run(cuda(math), &make(*bucket), weights, *live, forced).unwrap();
        let same = found.iter().zip(&all);
        let differ = same.filter(|(x, y)| x.to_bits() != y.to_bits()).count();
        assert_eq!(differ, 0, "{what}: {live} rows in a bucket of {bucket}");
    }
}

/// One product of `rows` activations at most.
fn linear_plan(ty: GgmlType, tokens: usize, rows: usize, k: usize, n: usize) -> Plan {
    let (mut b, x) = plan(tokens, 0, rows, k);
    let w = b.weight("w", ty, &[n, k]);
    let out = b.result("out", F32, &[tokens, n], Rows::Tokens);
    let op = Op::Linear {
        x,
        weights: vec![w],
        outs: vec![out],
        precision: Precision::Fast,
    };
    b.op("linear", op);
    b.finish()
}

fn check_linear(
    ty: GgmlType,
    math: Math,
    k: usize,
    n: usize,
    buckets: &[(usize, usize)],
    bound: f64,
) {
    let rows = buckets[0].1;
    let mut weights = Weights::default();
    add_random(&mut weights, "table", F32, &[rows, k]);
    add_random(&mut weights, "w", ty, &[n, k]);
    let make = |tokens: usize| linear_plan(ty, tokens, rows, k, n);
    let what = format!("{ty} {math:?} K {k} N {n}");
    check_buckets(&what, math, buckets, &make, &weights, &[], bound);
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn products_of_8_bit_integers_have_the_same_bits_in_every_tile() {
    let buckets = [(200, 197), (100, 99), (16, 13)];
    // One scale and no offset; an offset; two scales; two offsets. Rows that end in the middle of a stage where a type has such.
    for (ty, k) in [
        (GgmlType::Q8_0, 160),
        (GgmlType::Q4_1, 96),
        (GgmlType::Q6_K, 256),
        (GgmlType::Q2_K, 256),
    ] {
        check_linear(ty, Math::Fast, k, 8443, &buckets, EIGHT_BIT);
    }
}

/// A scale of 2^112 times the offset that sums of integers carry is beyond f32.
#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn large_scales_keep_sums_finite() {
    let (k, n, rows) = (64, 70, 20);
    let mut weights = Weights::default();
    add_random(&mut weights, "table", F32, &[rows, k]);
    add_random(&mut weights, "w", GgmlType::MXFP4, &[n, k]);
    let table = weights.bytes_mut("table");
    for value in table.as_chunks_mut::<4>().0 {
        *value = (f32::from_le_bytes(*value) * 1e-30).to_le_bytes();
    }
    let blocks = weights.bytes_mut("w");
    blocks.chunks_mut(17).for_each(|block| block[0] = 240);
    let make = |tokens: usize| linear_plan(GgmlType::MXFP4, tokens, rows, k, n);
    let buckets = [(20, 20), (16, 9)];
    let what = "MXFP4 of large scales";
    check_buckets(what, Math::Fast, &buckets, &make, &weights, &[], EIGHT_BIT);
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn products_of_floats_have_the_same_bits_in_every_tile() {
    let buckets = [(100, 97), (16, 13)];
    for (ty, k) in [
        (GgmlType::F32, 97),
        (GgmlType::F16, 97),
        (GgmlType::BF16, 200),
    ] {
        check_linear(ty, Math::Fast, k, 16891, &buckets, SUM);
    }
    let exact = Math::Exact;
    check_linear(GgmlType::Q4_K, exact, 256, 16891, &buckets, SUM);
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn heads_read_their_own_columns_in_every_tile() {
    const HEADS: usize = 2;
    const WIDE: usize = 75;
    const INNER: usize = 8;
    const OUT: usize = 70;
    let mut weights = Weights::default();
    add_random(&mut weights, "table", F32, &[90, INNER]);
    add_random(&mut weights, "spread", F32, &[HEADS * WIDE, INNER]);
    add_random(&mut weights, "w", GgmlType::Q8_0, &[HEADS, OUT, 64]);
    let make = |tokens: usize| {
        let (mut b, x) = plan(tokens, 0, 90, INNER);
        let spread = b.weight("spread", F32, &[HEADS * WIDE, INNER]);
        let heads = b.temp("heads", F32, &[tokens, HEADS, WIDE], Rows::Tokens);
        let op = Op::Linear {
            x,
            weights: vec![spread],
            outs: vec![heads],
            precision: Precision::F32,
        };
        b.op("spread", op);
        let weight = b.weight("w", GgmlType::Q8_0, &[HEADS, OUT, 64]);
        let out = b.result("out", F32, &[tokens, HEADS, OUT], Rows::Tokens);
        let x = Cols {
            buffer: heads,
            start: 5,
            len: 64,
        };
        b.op("project", Op::HeadProject { x, weight, out });
        b.finish()
    };
    let buckets = [(90, 90), (33, 20)];
    let what = "HeadProject";
    check_buckets(what, Math::Fast, &buckets, &make, &weights, &[], EIGHT_BIT);
}

/// Experts of `ids [rows, k]`, weighed by columns of the activations.
struct Experts {
    ty: GgmlType,
    d: usize,
    inner: usize,
    experts: usize,
    k: usize,
}

impl Experts {
    fn weights(&self, rows: usize) -> Weights {
        let Self { ty, d, inner, .. } = *self;
        let mut weights = Weights::default();
        add_random(&mut weights, "table", F32, &[rows, d]);
        add_random(&mut weights, "choice", F32, &[self.k, d]);
        add_random(&mut weights, "gate", ty, &[self.experts, inner, d]);
        add_random(&mut weights, "up", ty, &[self.experts, inner, d]);
        add_random(&mut weights, "down", ty, &[self.experts, d, inner]);
        weights
    }

    fn plan(&self, tokens: usize, rows: usize) -> Plan {
        let Self {
            ty,
            d,
            inner,
            experts,
            k,
        } = *self;
        let (mut b, x) = plan(tokens, k, rows, d);
        let choice = b.weight("choice", F32, &[k, d]);
        let expert_weights = b.temp("weights", F32, &[tokens, k], Rows::Tokens);
        let op = Op::Linear {
            x,
            weights: vec![choice],
            outs: vec![expert_weights],
            precision: Precision::F32,
        };
        b.op("choice", op);
        let ids = b.input(InputKind::ForcedTopk);
        let gate = b.weight("gate", ty, &[experts, inner, d]);
        let up = b.weight("up", ty, &[experts, inner, d]);
        let down = b.weight("down", ty, &[experts, d, inner]);
        let out = b.result("out", F32, &[tokens, d], Rows::Tokens);
        let op = Op::ExpertFfn {
            x,
            ids,
            expert_weights,
            gate,
            up,
            down,
            out,
        };
        b.op("experts", op);
        b.finish()
    }
}

/// Ids of a row: most choose the first expert, some it twice; the last but one has nobody.
fn ids(rows: usize, experts: usize, k: usize) -> Vec<i32> {
    let mut random = Random::named(5, "ids");
    let id = |_| match random.below(3) {
        0 => 0,
        _ => [random.below(experts - 2), experts - 1][random.below(2)] as i32,
    };
    (0..rows * k).map(id).collect()
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn experts_have_the_same_bits_in_every_tile_and_company() {
    for (ty, bound) in [
        (GgmlType::Q8_0, 4.0 * EIGHT_BIT),
        (GgmlType::BF16, 4.0 * SUM),
    ] {
        let case = Experts {
            ty,
            d: 96,
            inner: 704,
            experts: 3,
            k: 2,
        };
        let buckets = [(600, 597), (300, 280), (16, 7)];
        let make = |tokens: usize| case.plan(tokens, 597);
        let ids = ids(597, case.experts, case.k);
        let (what, weights) = (format!("ExpertFfn {ty}"), case.weights(597));
        check_buckets(&what, Math::Fast, &buckets, &make, &weights, &ids, bound);
    }
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn an_id_that_is_no_expert_is_named() {
    let case = Experts {
        ty: GgmlType::Q8_0,
        d: 32,
        inner: 32,
        experts: 4,
        k: 2,
    };
    let (weights, plan) = (case.weights(5), case.plan(16, 5));
    for bad in [4, -1, i32::MIN] {
        let mut ids = vec![0, 1, 2, 3, 0, 1, 2, 3, 1, 2];
        ids[5] = bad;
        let expected = run(reference(), &plan, &weights, 5, &ids).unwrap_err();
        let found = run(cuda(Math::Fast), &plan, &weights, 5, &ids).unwrap_err();
        assert_eq!(found.to_string(), expected.to_string());
    }
}
