//! Products with weights, and the embedding: which kernel, which grid.
//!
//! How a weight is multiplied depends on its type, the arithmetic and the kind of step, never on the number of rows:
//!
//! | weight | fast | exact, or an operation that asks for f32 |
//! | --- | --- | --- |
//! | quantised | rounded by who wrote it, by `q8`, or by the product itself if rows are short; `gemv_int`: 8-bit activations, integer dot products | `gemv_float`: decoded, f32 activations |
//! | F32, F16, BF16 | `gemv_float` | `gemv_float` |
//!
//! Weights of one type that share an input go in one launch.
//! `gemv_int` multiplies tiles of 16 weight rows on tensor cores, `gemv_float` a row at a time on the others.

use glim_plan::{BufferId, Cols, GgmlType, Op, Precision};

use super::rounded::{NOWHERE, Rounded, round, rounded};
use super::{Arg, Builder, grid, int};
use crate::backend::Math;
use crate::kernels::Kernel;

/// Weights of one launch, as in `gemv.cuh`.
const WEIGHTS: usize = 4;
/// The largest second or third axis of a grid.
const GRID_AXIS: usize = 65_535;
/// Threads that share a weight row, at least and at most; more where there are few rows.
const LANES: [usize; 2] = [4, 128];
const LANES_OF_FEW_ROWS: usize = 512;
/// Threads of all rows below which a row gets more of them: enough for a quarter of a large GPU. A constant, since the order of
/// summation follows from it.
const FEW_THREADS: usize = 32 * 1024;
/// Units that a thread requests at once (about; `FLIGHT` in the kernels).
const FLIGHT: usize = 4;
/// Threads of a multiprocessor that a product is meant to fill.
const RESIDENT: usize = 1024;

/// Rows of activations: where they are, and how they lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Input {
    /// Whose rows are live.
    pub(super) buffer: BufferId,
    /// Bytes before the first element.
    pub(super) offset: usize,
    /// Rows of the step.
    pub(super) rows: usize,
    /// Heads, each with a weight of its own.
    pub(super) heads: usize,
    /// Elements from one row to the next, and from one head to the next.
    pub(super) row: usize,
    pub(super) head: usize,
    /// Elements of a row of a head.
    pub(super) k: usize,
}

/// A weight and where its products go.
#[derive(Clone, Copy)]
struct Product {
    weight: BufferId,
    out: BufferId,
    ty: GgmlType,
    /// Rows of a head.
    m: usize,
}

pub(super) fn embed(b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    let Op::Embed {
        tokens,
        carry,
        table,
        out,
    } = op
    else {
        return Err("it is not an Embed".into());
    };
    let ty = b.weight(*table)?.ty;
    let (vocab, d) = (b.axis(*table, 0), b.last(*table));
    let rows = rows_of_grid(b.rows(*out))?;
    let per_thread = if ty.block_elems() == 1 { 1 } else { 32 };
    const THREADS: usize = 128;
    let parts = grid(d.div_ceil(per_thread * THREADS))?;
    let mut args = vec![
        Arg::Rows(*out),
        Arg::Buffer(*tokens),
        Arg::Buffer(*table),
        Arg::Buffer(*out),
        Arg::I32(int(vocab)?),
        Arg::I32(int(d)?),
    ];
    match carry {
        Some(c) => {
            let sequences = b.decl(c.cu_seqlens).elements().saturating_sub(1);
            args.extend([c.carry, c.sequence_slots, c.cu_seqlens].map(Arg::Buffer));
            args.push(Arg::I32(int(sequences)?));
            args.push(Arg::I32(int(b.decl(c.carry).elements())?));
        }
        None => args.extend([Arg::Null, Arg::Null, Arg::Null, Arg::I32(0), Arg::I32(0)]),
    }
    args.extend([Arg::Fault, Arg::OpIndex]);
    let kernel = Kernel::new("embed", "embed", &[("TYPE", ty.name())]);
    b.launch(kernel, [parts, rows, 1], THREADS as u32, 0, args);
    Ok(())
}

pub(super) fn linear(b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    let Op::Linear {
        x,
        weights,
        outs,
        precision,
    } = op
    else {
        return Err("it is not a Linear".into());
    };
    let input = whole_rows(b, *x);
    let products = weights.iter().zip(outs);
    let products: Result<Vec<Product>, String> =
        products.map(|(w, out)| product(b, *w, *out)).collect();
    multiply(b, op, input, &products?, *precision)
}

/// The product computes what it takes itself, where its rows are short; otherwise the parts, one after the other.
pub(super) fn swiglu_linear(b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    let [
        Op::SwiGlu { gate, up, out },
        Op::Linear {
            weights,
            outs,
            precision,
            ..
        },
    ] = op.parts()
    else {
        return Err("it is not a SwiGlu and a Linear".into());
    };
    let input = whole_rows(b, *gate);
    let products = weights.iter().zip(outs);
    let products: Result<Vec<Product>, String> =
        products.map(|(w, out)| product(b, *w, *out)).collect();
    let products = products?;
    let [first, rest @ ..] = products.as_slice() else {
        return b.parts(op);
    };
    let is_integer = b.math() == Math::Fast
        && *precision == Precision::Fast
        && first.ty.block_elems() > 1
        && rest.iter().all(|p| p.ty == first.ty)
        && products.len() <= WEIGHTS;
    if !b.is_decode() || !is_integer || !is_short(input) || !input.k.is_multiple_of(4) {
        return b.parts(op);
    }
    let early = b.is_settled(op, *gate) && b.is_settled(op, *up);
    let activations = Activations::Gated {
        gate: *gate,
        up: *up,
        out: *out,
    };
    gemv_int(b, input, activations, early, &products)
}

pub(super) fn lm_head(b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    let Op::LmHead { x, weight, out } = op else {
        return Err("it is not an LmHead".into());
    };
    let input = whole_rows(b, *x);
    let product = product(b, *weight, *out)?;
    multiply(b, op, input, &[product], Precision::Fast)
}

pub(super) fn head_project(b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    let Op::HeadProject { x, weight, out } = op else {
        return Err("it is not a HeadProject".into());
    };
    let input = head_rows(b, x);
    let product = Product {
        m: b.axis(*weight, 1),
        ..product(b, *weight, *out)?
    };
    multiply(b, op, input, &[product], Precision::Fast)
}

/// Columns of each head.
pub(super) fn head_rows(b: &Builder<'_>, x: &Cols) -> Input {
    let (heads, width) = (b.axis(x.buffer, 1), b.last(x.buffer));
    Input {
        buffer: x.buffer,
        offset: x.start * size_of::<f32>(),
        rows: b.rows(x.buffer),
        heads,
        row: heads * width,
        head: width,
        k: x.len,
    }
}

pub(super) fn whole_rows(b: &Builder<'_>, x: BufferId) -> Input {
    let k = b.decl(x).row_elements();
    Input {
        buffer: x,
        offset: 0,
        rows: b.rows(x),
        heads: 1,
        row: k,
        head: 0,
        k,
    }
}

fn product(b: &Builder<'_>, weight: BufferId, out: BufferId) -> Result<Product, String> {
    Ok(Product {
        weight,
        out,
        ty: b.weight(weight)?.ty,
        m: b.axis(weight, 0),
    })
}

/// Adds the launches of an operation's products, which share an input.
fn multiply(
    b: &mut Builder<'_>,
    op: &Op,
    input: Input,
    products: &[Product],
    precision: Precision,
) -> Result<(), String> {
    let fast = b.math() == Math::Fast && precision == Precision::Fast;
    let is_integer = |p: &Product| fast && p.ty.block_elems() > 1;
    let known = rounded(b, input);
    let rounded = match products.iter().any(is_integer) {
        true if known.is_some() || is_short(input) => known,
        true => Some(round(b, input)?),
        false => None,
    };
    // Behind an operation that leaves the input alone, or behind a product of it; not behind its rounding.
    let is_rounding = rounded.is_some() && known.is_none();
    let mut early = !is_rounding && b.is_settled(op, input.buffer);
    let mut left: Vec<Product> = products.to_vec();
    while let Some(first) = left.first().copied() {
        let same: Vec<Product> = left.iter().copied().filter(|p| p.ty == first.ty).collect();
        left.retain(|p| p.ty != first.ty);
        for group in same.chunks(WEIGHTS) {
            match is_integer(&first) {
                true => {
                    let activations = rounded.map_or(Activations::Plain, Activations::Rounded);
                    gemv_int(b, input, activations, early, group)?;
                }
                false => gemv_float(b, input, early, group)?,
            }
            early = true;
        }
    }
    Ok(())
}

/// Activations of a pass that every block of `gemv_int` rounds for itself, at most: for more of them a kernel takes less time.
const SHORT: usize = 4096;

/// Whether `gemv_int` rounds its input, if nobody has.
fn is_short(input: Input) -> bool {
    input.rows.min(16) * input.k <= SHORT
}

/// In what form `gemv_int` finds its activations.
#[derive(Clone, Copy)]
enum Activations {
    /// Rounded by somebody before.
    Rounded(Rounded),
    /// As they are: the product rounds them.
    Plain,
    /// As `silu(gate) ⊙ up`, in whole rows of 16-byte pieces: the product computes them, leaves them at `out`, and rounds them.
    Gated {
        gate: BufferId,
        up: BufferId,
        out: BufferId,
    },
}

fn gemv_int(
    b: &mut Builder<'_>,
    input: Input,
    activations: Activations,
    early: bool,
    products: &[Product],
) -> Result<(), String> {
    let ty = products[0].ty;
    let tiles = Tiles::new(b, input, products)?;
    // Whole units are copied past L1, as is what is gated; and other passes have to hear whether their rows are live.
    let is_whole = input.k.is_multiple_of(span(ty));
    let bypasses = match activations {
        Activations::Rounded(_) => is_whole,
        Activations::Plain => false,
        Activations::Gated { .. } => true,
    };
    let early = early && bypasses && tiles.grid[1] == 1;
    let mut args = input_args(input)?;
    let (gated, rounded) = match activations {
        Activations::Rounded(rounded) => {
            args[1] = Arg::Null;
            ([Arg::Null; 2], rounded)
        }
        Activations::Plain => ([Arg::Null; 2], NOWHERE),
        Activations::Gated { gate, up, out } => {
            args[1] = Arg::Buffer(gate);
            ([up, out].map(Arg::Buffer), NOWHERE)
        }
    };
    let k = args.pop();
    args.extend(gated);
    args.extend(rounded);
    args.extend(k);
    args.push(Arg::U32(tiles.ways.trailing_zeros()));
    args.push(Arg::I32(int(tiles.turns)?));
    args.push(Arg::I32(i32::from(early)));
    args.push(targets(b, products, TILE)?);
    let rows = tiles.rows.to_string();
    let defines = [("TYPE", ty.name()), ("ROWS", rows.as_str())];
    let kernel = Kernel::new("gemv_int", "gemv_int", &defines);
    b.launch(kernel, tiles.grid, tiles.threads, tiles.shared, args);
    Ok(())
}

fn gemv_float(
    b: &mut Builder<'_>,
    input: Input,
    early: bool,
    products: &[Product],
) -> Result<(), String> {
    let ty = products[0].ty;
    let is_quantised = ty.block_elems() > 1;
    let is_whole = is_quantised || (input.k * ty.block_bytes()).is_multiple_of(16);
    let (unit, passes): (usize, &[usize]) = match (is_quantised, is_whole) {
        // Decoded, a unit takes 32 registers.
        (true, _) => (32, &[1, 4]),
        (false, true) => (16 / ty.block_bytes(), &[1, 2, 4, 8]),
        (false, false) => (1, &[1, 2, 4, 8]),
    };
    let shape = Shape::new(b, input, products, unit, passes)?;
    let in_fours = [input.offset / size_of::<f32>(), input.row, input.head, unit];
    let in_fours = in_fours.iter().all(|n| n.is_multiple_of(4));
    let early = early && in_fours && shape.grid[1] == 1;
    let mut args = input_args(input)?;
    args.push(Arg::I32(i32::from(early)));
    let rows = shape.rows.to_string();
    let defines = [
        ("TYPE", ty.name()),
        ("ROWS", rows.as_str()),
        ("WHOLE", if is_whole { "1" } else { "0" }),
    ];
    shape.launch(
        b,
        Kernel::new("gemv_float", "gemv_float", &defines),
        args,
        products,
    )
}

/// Live rows, address, distance of rows and of heads, elements.
pub(super) fn input_args(input: Input) -> Result<Vec<Arg>, String> {
    let word = |n: usize| u32::try_from(n).map_err(|_| format!("a row of {n} elements"));
    Ok(vec![
        Arg::Rows(input.buffer),
        Arg::BufferAt(input.buffer, input.offset),
        Arg::U32(word(input.row)?),
        Arg::U32(word(input.head)?),
        Arg::I32(int(input.k)?),
    ])
}

/// The struct `GemvTargets` of both kernels: weights, results, and where each weight's groups of `unit` rows begin.
fn targets(b: &mut Builder<'_>, products: &[Product], unit: usize) -> Result<Arg, String> {
    let groups = |p: &Product| p.m.div_ceil(unit);
    let all = int(products.iter().map(groups).sum())?;
    let each = |arg: &dyn Fn(&Product) -> Arg, none: Arg| {
        let mut args: Vec<Arg> = products.iter().map(arg).collect();
        args.resize(WEIGHTS, none);
        args
    };
    let mut fields = each(&|p| Arg::Buffer(p.weight), Arg::Null);
    fields.extend(each(&|p| Arg::Buffer(p.out), Arg::Null));
    for i in 0..WEIGHTS {
        let m = products.get(i).map_or(0, |p| p.m);
        fields.push(Arg::I32(int(m)?));
    }
    for i in 0..WEIGHTS {
        let before = products.get(..i).filter(|_| i < products.len());
        let before = before.map(|before| int(before.iter().map(groups).sum()));
        fields.push(Arg::I32(before.unwrap_or(Ok(all))?));
    }
    fields.extend([Arg::I32(all), Arg::I32(0)]);
    Ok(b.structure(fields))
}

/// Weight rows of a tile of `gemv_int` (`TILE` in `gemv_tile.cuh`).
pub(super) const TILE: usize = 16;
/// Warps that share a tile, at most.
const WAYS: usize = 8;
/// Warps of `gemv_int` that a multiprocessor has registers for (`RESIDENT` there).
fn resident_warps(rows: usize, flight: usize) -> usize {
    if rows == 1 && flight > 0 { 24 } else { 16 }
}

/// Elements of a unit of `gemv_int`: `SPAN` in `units.cuh`.
pub(super) fn span(ty: GgmlType) -> usize {
    match ty {
        GgmlType::Q4_K | GgmlType::Q5_K | GgmlType::Q8_0 => 256,
        _ => 128,
    }
}

/// Bytes of shared memory for the units of a warp that are on their way: `SLOT` and `FLIGHT` in `units.cuh`.
pub(super) fn flight(b: &Builder<'_>, ty: GgmlType) -> usize {
    /// `ROOMY` there.
    const ROOMY: u32 = 200 * 1024;
    let is_roomy = b.gpu().shared_memory >= ROOMY;
    let (slot, [few, many]) = match ty {
        GgmlType::Q4_K => (16 * 144, [2, 3]),
        GgmlType::Q5_K => (16 * 176, [2, 3]),
        GgmlType::Q8_0 => (16 * 272, [1, 2]),
        // In registers.
        _ => return 0,
    };
    slot * if is_roomy { many } else { few }
}

/// Warps that share a tile of weight rows of `units` units. The order of summation follows from it, so it depends on nothing else.
pub(super) fn ways(units: usize) -> usize {
    units.next_power_of_two().clamp(1, WAYS)
}

/// Bytes of shared memory for the sums of tiles of `warps` warps, for `rows` rows of activations, twice (`put_sums`).
pub(super) fn sums_bytes(warps: usize, rows: usize) -> usize {
    2 * warps * rows * TILE * size_of::<f32>()
}

/// Rows of activations that `gemv_int` multiplies in a pass.
const PASSES: [usize; 4] = [1, 4, 8, 16];

/// Those of a pass over `rows` rows.
fn passes(rows: usize) -> usize {
    let enough = PASSES.into_iter().find(|n| *n >= rows);
    enough.unwrap_or(PASSES[PASSES.len() - 1])
}

/// Threads and blocks of `gemv_int`.
struct Tiles {
    /// Rows of activations in a pass.
    rows: usize,
    ways: usize,
    /// Groups of tiles that a block takes at most.
    turns: usize,
    threads: u32,
    shared: u32,
    grid: [u32; 3],
}

impl Tiles {
    fn new(b: &Builder<'_>, input: Input, products: &[Product]) -> Result<Self, String> {
        let span = span(products[0].ty);
        let units = input.k.div_ceil(span);
        let tiles: usize = products.iter().map(|p| p.m.div_ceil(TILE)).sum();
        let ways = ways(units);
        let multiprocessors = b.gpu().multiprocessors as usize;
        let is_many = |warps: usize| tiles * ways * input.heads >= warps * multiprocessors;
        // Blocks are large where they are enough for all multiprocessors. Many rows of activations take so much shared memory that
        // more warps should have it together.
        let warps = |rows: usize| {
            let most = match rows > 4 {
                true if is_many(8) => 16,
                false if !is_many(16) => 4,
                _ => 8,
            };
            ways * (most / ways).max(1)
        };
        let flight = flight(b, products[0].ty);
        let shared = |rows: usize| {
            let activations = staged_bytes(units * span, rows.min(input.rows));
            sums_bytes(warps(rows), rows) + warps(rows) * flight + activations
        };
        let most = b.gpu().shared_memory as usize;
        let wanted = passes(input.rows);
        let fits = |n: &usize| *n <= wanted && shared(*n) <= most;
        let rows = PASSES.into_iter().rev().find(fits).ok_or_else(|| {
            let k = input.k;
            format!("activations of {k} elements do not fit into shared memory of {most} bytes")
        })?;

        let warps = warps(rows);
        let at_once = warps / ways;
        let blocks = tiles.div_ceil(at_once);
        // As many as can be resident; each takes as many tiles as the others, or one less.
        let by_memory = most / shared(rows);
        let by_registers = resident_warps(rows, flight) / warps;
        let resident = multiprocessors * by_memory.min(by_registers).max(1) / input.heads;
        let turns = blocks.div_ceil(resident.max(1));
        Ok(Self {
            rows,
            ways,
            turns,
            threads: grid(32 * warps)?,
            shared: grid(shared(rows))?,
            grid: [
                grid(blocks.div_ceil(turns))?,
                rows_of_grid(input.rows.div_ceil(rows))?,
                rows_of_grid(input.heads)?,
            ],
        })
    }
}

/// Bytes of `rows` rows of `span` activations in shared memory (`staged.cuh`).
pub(super) fn staged_bytes(span: usize, rows: usize) -> usize {
    let room = if rows == 1 {
        1
    } else {
        rows.next_multiple_of(2)
    };
    16 + room * (span + 4 * (span / 32 + 4) + 4 * (span / 16 + 8))
}

/// Threads and blocks of `gemv_float`.
struct Shape {
    /// Rows of activations in a pass.
    rows: usize,
    /// Logarithm of the threads that share a weight row.
    lanes_log: u32,
    threads: u32,
    grid: [u32; 3],
}

impl Shape {
    fn new(
        b: &Builder<'_>,
        input: Input,
        products: &[Product],
        unit: usize,
        passes: &[usize],
    ) -> Result<Self, String> {
        let m: usize = products.iter().map(|p| p.m).sum();
        let lanes = lanes(input.k / unit, m * input.heads);
        let largest = passes.last().copied().unwrap_or(1);
        let rows = passes.iter().copied().find(|n| *n >= input.rows);
        let rows = rows.unwrap_or(largest);
        let passes = rows_of_grid(input.rows.div_ceil(rows))?;
        let multiprocessors = b.gpu().multiprocessors as usize;
        // Large blocks where they are enough for two on each multiprocessor.
        let blocks = |threads: usize| m.div_ceil(threads / lanes);
        let mut threads = [512, 256, 128].into_iter().filter(|n| *n >= lanes);
        let threads = threads
            .clone()
            .find(|n| blocks(*n) * input.heads >= 2 * multiprocessors)
            .or(threads.next_back())
            .unwrap_or(lanes);
        // As many as can be resident; each takes as many groups of rows as the others, or one less.
        let resident = (multiprocessors * RESIDENT / threads / input.heads.max(1)).max(1);
        let turns = blocks(threads).div_ceil(resident).max(1);
        Ok(Self {
            rows,
            lanes_log: lanes.trailing_zeros(),
            threads: threads as u32,
            grid: [
                grid(blocks(threads).div_ceil(turns))?,
                passes,
                rows_of_grid(input.heads)?,
            ],
        })
    }

    /// Adds the launch.
    fn launch(
        &self,
        b: &mut Builder<'_>,
        kernel: Kernel,
        mut args: Vec<Arg>,
        products: &[Product],
    ) -> Result<(), String> {
        args.push(Arg::I32(self.lanes_log as i32));
        args.push(targets(b, products, 1)?);
        b.launch(kernel, self.grid, self.threads, 0, args);
        Ok(())
    }
}

/// Threads that share a weight row of `units` units, of `rows` rows: as few as have all of it requested at once, or more where few
/// rows would leave most of a GPU idle.
fn lanes(units: usize, rows: usize) -> usize {
    let [least, most] = LANES;
    let wanted = units.div_ceil(FLIGHT).next_power_of_two();
    let mut lanes = wanted.clamp(least, most);
    while lanes < LANES_OF_FEW_ROWS && 2 * lanes <= units && rows * lanes < FEW_THREADS {
        lanes *= 2;
    }
    lanes
}

/// A number of rows or heads as an axis of a grid.
pub(super) fn rows_of_grid(n: usize) -> Result<u32, String> {
    match n <= GRID_AXIS {
        true => grid(n),
        false => Err(format!("{n} rows or heads are beyond a grid's {GRID_AXIS}")),
    }
}

#[cfg(test)]
mod tests {
    use super::{lanes, ways};

    #[test]
    fn warps_of_a_tile_follow_from_the_weights() {
        // Q4_K rows of 6144, 2048 and 512 elements.
        assert_eq!([24, 8, 2, 1].map(ways), [8, 8, 2, 1]);
    }

    #[test]
    fn a_row_is_requested_at_once_if_there_are_many_and_shared_by_more_threads_if_few() {
        // Q8_0 rows of 6144 and 2048 elements, and of one head of 192.
        assert_eq!(
            [384, 128, 12].map(|units| lanes(units, 16_384)),
            [128, 32, 4]
        );
        // 32 rows of 6144 f32.
        assert_eq!(lanes(1536, 32), 512);
        // Not more threads than half of the units.
        assert_eq!(lanes(8, 1), 8);
        assert_eq!(lanes(1, 1), 4);
    }
}
