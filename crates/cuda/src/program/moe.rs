//! The router and the experts.

use glim_plan::{BufferId, GgmlType, Op, Scoring};

use super::linear;
use super::rounded::{Rounded, round, rounded};
use super::{Arg, Builder, gemm, grid, int};
use crate::backend::Math;
use crate::kernels::Kernel;

/// Inputs that a warp of `route_logits` multiplies, and experts that a block has.
const SLICE: usize = 768;
const SLICE_EXPERTS: usize = 16;
/// Rows and experts of a block of `route_logits_tiled`.
const TILE_ROWS: usize = 64;
const TILE_EXPERTS: usize = 32;

pub(super) fn route(b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    let Op::Route {
        x,
        weight,
        bias,
        spec,
        ids,
        expert_weights,
    } = op
    else {
        return Err("it is not a Route".into());
    };
    let w = b.weight(*weight)?;
    let (experts, d, rows) = (b.axis(*weight, 0), b.last(*weight), b.rows(*ids));
    if let Some(bias) = bias
        && b.weight(*bias)?.ty != GgmlType::F32
    {
        let ty = b.weight(*bias)?.ty;
        return Err(format!("the router's bias is {ty}: expected F32"));
    }
    let slices = if b.is_decode() { d.div_ceil(SLICE) } else { 1 };
    let parts = b.scratch(rows * slices * experts * size_of::<f32>());
    let (entry, blocks, threads) = match b.is_decode() {
        true => (
            "route_logits",
            [experts.div_ceil(SLICE_EXPERTS), slices],
            256,
        ),
        false => {
            let blocks = [experts.div_ceil(TILE_EXPERTS), rows.div_ceil(TILE_ROWS)];
            ("route_logits_tiled", blocks, 128)
        }
    };
    let early = b.is_settled(op, *x);
    let early = b.is_decode().then_some(Arg::I32(i32::from(early)));
    b.launch(
        Kernel::new("route", entry, &[("TYPE", w.ty.name())]),
        [grid(blocks[0])?, grid(blocks[1])?, 1],
        threads,
        0,
        vec![
            Arg::Buffer(*weight),
            Arg::Buffer(*x),
            Arg::Scratch(parts),
            Arg::I32(int(experts)?),
            Arg::I32(int(d)?),
        ]
        .into_iter()
        .chain(early)
        .chain([Arg::Rows(*x)])
        .collect(),
    );
    // Scores, choices and keys of the experts, keys of the groups, a bit for each chosen expert, the chosen scores.
    let words = 3 * experts.next_multiple_of(4)
        + spec.n_group.next_multiple_of(4)
        + experts.div_ceil(32)
        + spec.k;
    let shared = shared_memory(b, words * 4)?;
    b.launch(
        Kernel::new("route_select", "route_select", &[]),
        [grid(rows)?, 1, 1],
        256,
        shared,
        vec![
            Arg::Scratch(parts),
            bias.map_or(Arg::Null, Arg::Buffer),
            Arg::Buffer(*ids),
            Arg::Buffer(*expert_weights),
            Arg::I32(int(experts)?),
            Arg::I32(int(slices)?),
            Arg::I32(int(spec.k)?),
            Arg::I32(i32::from(spec.scoring == Scoring::Softmax)),
            Arg::I32(int(spec.n_group)?),
            Arg::I32(int(spec.topk_group)?),
            Arg::I32(i32::from(spec.norm)),
            Arg::F32(spec.scale),
            Arg::Rows(*ids),
        ],
    );
    Ok(())
}

/// Bytes that a launch asks for, if the GPU has as many beside what the kernel itself declares.
fn shared_memory(b: &Builder<'_>, bytes: usize) -> Result<u32, String> {
    /// More than any kernel of these files declares.
    const DECLARED: usize = 1024;
    let most = b.gpu().shared_memory as usize;
    match bytes + DECLARED <= most {
        true => grid(bytes),
        false => Err(format!(
            "a block needs {bytes} bytes of shared memory beside {DECLARED}, the GPU has {most}"
        )),
    }
}

/// Weight rows that a block of `experts.cu` takes at a time: one a warp.
const HIDDEN_ROWS: usize = 16;
/// Output elements that a block of its `experts_down` takes at a time: two a warp.
const DOWN_ROWS: usize = 16;

/// The weights of all experts, and what is multiplied with them.
struct Experts {
    x: BufferId,
    ids: BufferId,
    expert_weights: BufferId,
    gate: BufferId,
    up: BufferId,
    down: BufferId,
    out: BufferId,
    /// What is added to it, and where the sum goes.
    sum: Option<(BufferId, BufferId)>,
}

pub(super) fn expert_ffn(b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    experts(b, op, op, None)
}

/// The sum is a part of the last kernel where that multiplies integers; otherwise an operation of its own.
pub(super) fn experts_add(b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    let [
        ffn @ Op::ExpertFfn { out, down, .. },
        Op::Add {
            a,
            b: other,
            out: sum,
        },
    ] = op.parts()
    else {
        return Err("it is not an ExpertFfn and an Add".into());
    };
    let other = if a == out { *other } else { *a };
    match b.is_decode() && is_rounded(b, b.weight(*down)?.ty) {
        true => experts(b, op, ffn, Some((other, *sum))),
        false => b.parts(op),
    }
}

/// The experts `ffn`, which `op` is or begins with.
fn experts(
    b: &mut Builder<'_>,
    op: &Op,
    ffn: &Op,
    sum: Option<(BufferId, BufferId)>,
) -> Result<(), String> {
    let Op::ExpertFfn {
        x,
        ids,
        expert_weights,
        gate,
        up,
        down,
        out,
    } = ffn
    else {
        return Err("it is not an ExpertFfn".into());
    };
    let e = Experts {
        x: *x,
        ids: *ids,
        expert_weights: *expert_weights,
        gate: *gate,
        up: *up,
        down: *down,
        out: *out,
        sum,
    };
    // Many rows go through tensor cores; the kernels for it read gate and up as one type, as they nearly always are.
    if !b.is_decode() && b.weight(*gate)?.ty == b.weight(*up)?.ty {
        return gemm::experts(b, ffn);
    }
    let pairs = b.rows(*ids) * b.last(*ids);
    let hidden = b.scratch(pairs * b.axis(*gate, 1) * size_of::<f32>());
    gate_and_up(b, op, &e, hidden)?;
    match is_rounded(b, b.weight(e.down)?.ty) {
        true => down_rounded(b, &e, hidden),
        false => down_float(b, &e, hidden),
    }
}

/// Whether products with this type take activations of 8 bits.
fn is_rounded(b: &Builder<'_>, ty: GgmlType) -> bool {
    b.math() == Math::Fast && ty.block_elems() > 1
}

/// A kernel of `experts.cu` for weights of a type.
fn kernel(entry: &'static str, ty: GgmlType) -> Kernel {
    Kernel::new("experts", entry, &[("TYPE", ty.name())])
}

/// A kernel of `experts_int.cu`, for so many rows of activations at a time.
fn kernel_rounded(entry: &'static str, ty: GgmlType, rows: usize) -> Kernel {
    let rows = if rows == 1 { "1" } else { "8" };
    Kernel::new("experts_int", entry, &[("TYPE", ty.name()), ("ROWS", rows)])
}

/// Bytes of a row of `k` activations in shared memory (`bytes` of `Floats`).
fn row_bytes(k: usize) -> usize {
    k.next_multiple_of(4) * 4
}

/// Adds the launches that leave `silu(gate x) ⊙ up x` of every pair at `hidden`.
fn gate_and_up(b: &mut Builder<'_>, op: &Op, e: &Experts, hidden: usize) -> Result<(), String> {
    let types = [e.gate, e.up].map(|w| b.weight(w).map(|w| w.ty));
    let [gate, up] = types;
    let (gate, up) = (gate?, up?);
    if is_rounded(b, gate) || is_rounded(b, up) {
        let input = linear::whole_rows(b, e.x);
        // Behind an operation that leaves alone all that is read, also by the kernel behind, which may begin then; not behind the rounding.
        let is_known = rounded(b, input).is_some();
        let read = [e.x, e.ids, e.expert_weights];
        let early = is_known && read.iter().all(|id| b.is_settled(op, *id));
        let rounded = round(b, input)?;
        return match gate == up {
            true => hidden_rounded(b, e, &[e.gate, e.up], (rounded, early), hidden),
            false => {
                half(b, e, e.gate, rounded, hidden)?;
                half(b, e, e.up, rounded, hidden)
            }
        };
    }
    match gate == up {
        true => hidden_float(b, e, &[e.gate, e.up], hidden),
        false => {
            hidden_float(b, e, &[e.gate], hidden)?;
            hidden_float(b, e, &[e.up], hidden)
        }
    }
}

/// One of two matrices of different types.
fn half(
    b: &mut Builder<'_>,
    e: &Experts,
    weight: BufferId,
    rounded: Rounded,
    hidden: usize,
) -> Result<(), String> {
    match is_rounded(b, b.weight(weight)?.ty) {
        true => hidden_rounded(b, e, &[weight], (rounded, false), hidden),
        false => hidden_float(b, e, &[weight], hidden),
    }
}

/// Gate and up with activations of 8 bits, or one of the two; `early`, if they may be read before the first kernel's wait.
fn hidden_rounded(
    b: &mut Builder<'_>,
    e: &Experts,
    weights: &[BufferId],
    (rounded, early): (Rounded, bool),
    hidden: usize,
) -> Result<(), String> {
    let (experts, inner, d) = (b.axis(e.gate, 0), b.axis(e.gate, 1), b.last(e.gate));
    let (rows, k) = (b.rows(e.ids), b.last(e.ids));
    let pairs = rows * k;
    let ty = b.weight(weights[0])?.ty;
    let span = linear::span(ty);
    let units = d.div_ceil(span);
    let ways = linear::ways(units);
    let warps = ways * weights.len();
    // Prefill has too many pairs to look through for those of an expert.
    let shares = b.is_decode() && rows > 1;
    let at_once = if shares { 8 } else { 1 };
    let kernel = kernel_rounded("experts_hidden", ty, at_once);
    let list = if shares {
        pairs.next_multiple_of(4) * 4
    } else {
        0
    };
    let staged = linear::staged_bytes(units * span, rows.min(at_once));
    let flight = warps * linear::flight(b, ty);
    let shared = linear::sums_bytes(warps, at_once) + list + flight + staged;
    let shared = shared_memory(b, shared)?;
    let tiles = inner.div_ceil(linear::TILE);
    // As many blocks as multiprocessors: weights of the next tile are on their way while one is summed up.
    let waves = (pairs * tiles).div_ceil(b.gpu().multiprocessors as usize);
    let turns = waves.clamp(1, 8).min(tiles);
    let given = |w: BufferId| match weights.contains(&w) {
        true => Arg::Buffer(w),
        false => Arg::Null,
    };
    let mut args = vec![given(e.gate), given(e.up)];
    args.extend(rounded);
    args.extend([Arg::Buffer(e.ids), Arg::Scratch(hidden)]);
    for size in [experts, d, inner, k, turns] {
        args.push(Arg::I32(int(size)?));
    }
    // Whole units are copied past L1.
    let early = early && !shares && d.is_multiple_of(span);
    args.push(Arg::I32(i32::from(early)));
    args.extend([Arg::Rows(e.ids), Arg::Fault, Arg::OpIndex]);
    let size = [grid(pairs)?, grid(tiles.div_ceil(turns))?, 1];
    b.launch(kernel, size, grid(32 * warps)?, shared, args);
    Ok(())
}

/// The same with activations of f32.
fn hidden_float(
    b: &mut Builder<'_>,
    e: &Experts,
    weights: &[BufferId],
    hidden: usize,
) -> Result<(), String> {
    let (experts, inner, d) = (b.axis(e.gate, 0), b.axis(e.gate, 1), b.last(e.gate));
    let k = b.last(e.ids);
    let pairs = b.rows(e.ids) * k;
    // A few waves of blocks: more rows of weights in a block share its copy of the activations.
    let blocks = pairs * inner.div_ceil(HIDDEN_ROWS);
    let waves = blocks / (2 * b.gpu().multiprocessors as usize);
    let tile = HIDDEN_ROWS * waves.clamp(1, 8);
    let shared = shared_memory(b, row_bytes(d))?;
    let ty = b.weight(weights[0])?.ty;
    let (entry, mut args) = match weights {
        [weight] => {
            let gated = if *weight == e.up {
                Arg::Scratch(hidden)
            } else {
                Arg::Null
            };
            let args = [*weight, e.x, e.ids].map(Arg::Buffer);
            ("experts_half", [&args[..], &[gated]].concat())
        }
        _ => {
            let args = [e.gate, e.up, e.x, e.ids].map(Arg::Buffer);
            ("experts_hidden", args.to_vec())
        }
    };
    args.push(Arg::Scratch(hidden));
    for size in [experts, d, inner, k, tile] {
        args.push(Arg::I32(int(size)?));
    }
    args.extend([Arg::Rows(e.ids), Arg::Fault, Arg::OpIndex]);
    let size = [grid(pairs)?, grid(inner.div_ceil(tile))?, 1];
    b.launch(kernel(entry, ty), size, 512, shared, args);
    Ok(())
}

/// Tiles of a block of `experts_down` at most, as there.
const MOST_TURNS: usize = 8;

/// Down with activations of 8 bits, and the sum over a row's pairs.
fn down_rounded(b: &mut Builder<'_>, e: &Experts, hidden: usize) -> Result<(), String> {
    let (experts, d, inner) = (b.axis(e.down, 0), b.axis(e.down, 1), b.last(e.down));
    let (rows, k) = (b.rows(e.ids), b.last(e.ids));
    let ty = b.weight(e.down)?.ty;
    let span = linear::span(ty);
    let units = k * inner.div_ceil(span);
    let ways = linear::ways(units);
    let chosen = 2 * k.next_multiple_of(4) * 4;
    let flight = ways * linear::flight(b, ty);
    let staged = linear::staged_bytes(units * span, 1);
    let shared = linear::sums_bytes(ways, 1) + chosen + flight + staged;
    let shared = shared_memory(b, shared)?;
    let tiles = d.div_ceil(linear::TILE);
    // As above. For one row one block on each, which has room beside a block of the kernel before, and asks for all its weights while that
    // one reads; for more, three.
    let beside = if rows == 1 { 1 } else { 3 };
    let waves = (rows * tiles).div_ceil(beside * b.gpu().multiprocessors as usize);
    let turns = waves.clamp(1, MOST_TURNS);
    let mut args = vec![Arg::Buffer(e.down), Arg::Scratch(hidden)];
    args.extend([e.ids, e.expert_weights, e.out].map(Arg::Buffer));
    args.extend(match e.sum {
        Some((other, sum)) => [Arg::Buffer(other), Arg::Buffer(sum)],
        None => [Arg::Null; 2],
    });
    for size in [experts, inner, d, k, turns] {
        args.push(Arg::I32(int(size)?));
    }
    args.push(Arg::Rows(e.ids));
    let size = [grid(rows)?, grid(tiles.div_ceil(turns))?, 1];
    let kernel = kernel_rounded("experts_down", ty, 1);
    b.launch(kernel, size, grid(32 * ways)?, shared, args);
    Ok(())
}

/// The same with activations of f32.
fn down_float(b: &mut Builder<'_>, e: &Experts, hidden: usize) -> Result<(), String> {
    let (experts, d, inner) = (b.axis(e.down, 0), b.axis(e.down, 1), b.last(e.down));
    let (rows, k) = (b.rows(e.ids), b.last(e.ids));
    let ty = b.weight(e.down)?.ty;
    // As above; a block that copies much for itself should have much to multiply it with.
    let blocks = rows * d.div_ceil(DOWN_ROWS);
    let wanted = if k * inner <= 4096 { 3 } else { 1 };
    let waves = blocks.div_ceil(wanted * b.gpu().multiprocessors as usize);
    let tile = DOWN_ROWS * waves.clamp(1, 8);
    // The hidden rows, then the experts and their weights.
    let shared = shared_memory(b, k * (row_bytes(inner) + 8))?;
    let mut args = vec![Arg::Buffer(e.down), Arg::Scratch(hidden)];
    args.extend([e.ids, e.expert_weights, e.out].map(Arg::Buffer));
    for size in [experts, inner, d, k, tile] {
        args.push(Arg::I32(int(size)?));
    }
    args.push(Arg::Rows(e.ids));
    let size = [grid(rows)?, grid(d.div_ceil(tile))?, 1];
    b.launch(kernel("experts_down", ty), size, 256, shared, args);
    Ok(())
}
