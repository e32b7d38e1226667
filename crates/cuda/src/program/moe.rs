//! The router and the experts.

use glim_plan::{BufferId, GgmlType, Op, Scoring};

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
            Arg::Rows(*x),
        ],
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

/// Weight rows that a block of `experts_hidden` takes at a time: one a warp.
const HIDDEN_ROWS: usize = 16;
/// Output elements that a block of `experts_down` takes at a time: two a warp.
const DOWN_ROWS: usize = 16;
/// Pairs of one expert that are multiplied at a time where a step has several rows.
const SHARED_PAIRS: usize = 4;

/// The weights of all experts, and what is multiplied with them.
struct Experts {
    x: BufferId,
    ids: BufferId,
    expert_weights: BufferId,
    gate: BufferId,
    up: BufferId,
    down: BufferId,
    out: BufferId,
}

pub(super) fn expert_ffn(b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    let Op::ExpertFfn {
        x,
        ids,
        expert_weights,
        gate,
        up,
        down,
        out,
    } = op
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
    };
    // Many rows go through tensor cores; the kernels for it read gate and up as one type, as they nearly always are.
    if !b.is_decode() && b.weight(*gate)?.ty == b.weight(*up)?.ty {
        return gemm::experts(b, op);
    }
    let pairs = b.rows(*ids) * b.last(*ids);
    let hidden = b.scratch(pairs * b.axis(*gate, 1) * size_of::<f32>());
    gate_and_up(b, &e, hidden)?;
    down_and_sum(b, &e, hidden)
}

/// Whether products with this type take activations of 8 bits.
fn is_rounded(b: &Builder<'_>, ty: GgmlType) -> bool {
    b.math() == Math::Fast && ty.block_elems() > 1
}

/// A kernel of `experts.cu` for weights of a type.
fn kernel(b: &Builder<'_>, entry: &'static str, ty: GgmlType, pairs: usize) -> Kernel {
    let fast = if is_rounded(b, ty) { "1" } else { "0" };
    let pairs = if pairs == 1 { "1" } else { "4" };
    Kernel::new(
        "experts",
        entry,
        &[("TYPE", ty.name()), ("FAST", fast), ("ROWS", pairs)],
    )
}

/// Bytes of a row of `k` activations in shared memory (`bytes` of `Ints` and of `Floats`).
fn row_bytes(is_rounded: bool, k: usize) -> usize {
    match is_rounded {
        true => k.div_ceil(64) * 64 + 16 + (k / 32).next_multiple_of(2) * 8,
        false => k.next_multiple_of(4) * 4,
    }
}

fn gate_and_up(b: &mut Builder<'_>, e: &Experts, hidden: usize) -> Result<(), String> {
    let (experts, inner, d) = (b.axis(e.gate, 0), b.axis(e.gate, 1), b.last(e.gate));
    let (rows, k) = (b.rows(e.ids), b.last(e.ids));
    let pairs = rows * k;
    // A few waves of blocks: more rows of weights in a block share its rounding of the activations.
    let blocks = pairs * inner.div_ceil(HIDDEN_ROWS);
    let waves = blocks / (2 * b.gpu().multiprocessors as usize);
    let tile = HIDDEN_ROWS * waves.clamp(1, 8);
    let size = [grid(pairs)?, grid(inner.div_ceil(tile))?, 1];
    let types = [e.gate, e.up].map(|w| b.weight(w).map(|w| w.ty));
    let [gate, up] = types;
    let (gate, up) = (gate?, up?);

    let launch = |b: &mut Builder<'_>, entry, ty, first: Vec<Arg>| -> Result<(), String> {
        let bytes = row_bytes(is_rounded(b, ty), d);
        // Prefill has too many pairs to look through for those of an expert.
        let shares = b.is_decode() && rows > 1 && is_rounded(b, ty);
        let shared = [SHARED_PAIRS * bytes + pairs * 4, bytes];
        let (at_once, shared) = match shared_memory(b, shared[0]) {
            Ok(shared) if shares => (SHARED_PAIRS, shared),
            _ => (1, shared_memory(b, shared[1])?),
        };
        let sizes = [experts, d, inner, k, tile].map(int);
        let mut args = first;
        for size in sizes {
            args.push(Arg::I32(size?));
        }
        args.extend([Arg::Rows(e.ids), Arg::Fault, Arg::OpIndex]);
        b.launch(kernel(b, entry, ty, at_once), size, 512, shared, args);
        Ok(())
    };
    let (x, ids, hidden) = (Arg::Buffer(e.x), Arg::Buffer(e.ids), Arg::Scratch(hidden));
    let [gates, ups] = [e.gate, e.up].map(Arg::Buffer);
    if gate == up {
        let args = vec![gates, ups, x, ids, hidden];
        return launch(b, "experts_hidden", gate, args);
    }
    let args = vec![gates, x, ids, Arg::Null, hidden];
    launch(b, "experts_half", gate, args)?;
    launch(b, "experts_half", up, vec![ups, x, ids, hidden, hidden])
}

fn down_and_sum(b: &mut Builder<'_>, e: &Experts, hidden: usize) -> Result<(), String> {
    let (experts, d, inner) = (b.axis(e.down, 0), b.axis(e.down, 1), b.last(e.down));
    let (rows, k) = (b.rows(e.ids), b.last(e.ids));
    let ty = b.weight(e.down)?.ty;
    // As above; a block that rounds much for itself should have much to multiply it with.
    let blocks = rows * d.div_ceil(DOWN_ROWS);
    let wanted = if k * inner <= 4096 { 3 } else { 1 };
    let waves = blocks.div_ceil(wanted * b.gpu().multiprocessors as usize);
    let tile = DOWN_ROWS * waves.clamp(1, 8);
    // The hidden rows, then the experts and their weights.
    let shared = shared_memory(b, k * (row_bytes(is_rounded(b, ty), inner) + 8))?;
    b.launch(
        kernel(b, "experts_down", ty, 1),
        [grid(rows)?, grid(d.div_ceil(tile))?, 1],
        256,
        shared,
        vec![
            Arg::Buffer(e.down),
            Arg::Scratch(hidden),
            Arg::Buffer(e.ids),
            Arg::Buffer(e.expert_weights),
            Arg::Buffer(e.out),
            Arg::I32(int(experts)?),
            Arg::I32(int(inner)?),
            Arg::I32(int(d)?),
            Arg::I32(int(k)?),
            Arg::I32(int(tile)?),
            Arg::Rows(e.ids),
        ],
    );
    Ok(())
}
