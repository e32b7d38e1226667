//! Products for many rows: kernels/gemm.cu and what prepares activations for it (kernels/activations.cu).
//!
//! The arithmetic is that of the step's math and of the weight's type; the number of rows, and so the bucket, chooses a tile only.

mod experts;
mod tiles;

use glim_plan::{BufferId, GgmlType, Op, Precision};

pub(super) use self::experts::experts;
use self::tiles::{Path, choose};
use super::{Arg, Builder, grid, int};
use crate::backend::Math;
use crate::kernels::Kernel;
use crate::weights::WeightInfo;

/// Prepared rows are a multiple of this, the rows of the largest tile: a tile reads all of its rows.
const ROWS: usize = 128;
/// Elements that a block of `quantise` and `split` takes.
const PREPARED: usize = 1024;

/// Rows of activations, by head: where they lie, in elements.
#[derive(Debug, Clone, Copy)]
struct Input {
    /// The first element.
    x: Arg,
    /// Whose rows are live.
    rows_of: BufferId,
    /// Where not null: the number of rows that are live, whatever `rows_of` says.
    count: Arg,
    rows: usize,
    heads: usize,
    k: usize,
    row_stride: usize,
    head_stride: usize,
}

/// Activations as one of the paths takes them.
#[derive(Debug, Clone, Copy)]
struct Prepared {
    x: Arg,
    scales: Arg,
    /// Rows of each head.
    padded: usize,
}

/// How a weight is multiplied.
fn path(b: &Builder<'_>, ty: GgmlType, precision: Precision) -> Path {
    let plain = matches!(ty, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16);
    match (b.math(), precision, plain) {
        (Math::Fast, Precision::Fast, false) => Path::Integer,
        _ => Path::Float,
    }
}

fn prepare(b: &mut Builder<'_>, input: &Input, path: Path) -> Result<Prepared, String> {
    let Input { rows, heads, k, .. } = *input;
    let padded = rows.next_multiple_of(ROWS);
    let all = heads * padded;
    let (entry, width, x, scales) = match path {
        Path::Integer => {
            let width = k.next_multiple_of(64);
            let x = b.scratch(all * width);
            let scales = b.scratch(all * width / 32 * 16);
            ("quantise", width, x, Arg::Scratch(scales))
        }
        Path::Float => {
            let width = k.next_multiple_of(32);
            ("split", width, b.scratch(all * width * 3 * 2), Arg::Null)
        }
    };
    let mut args = vec![input.x, Arg::Scratch(x)];
    args.extend((path == Path::Integer).then_some(scales));
    args.extend([
        Arg::Rows(input.rows_of),
        input.count,
        Arg::U64(input.row_stride as u64),
        Arg::U64(input.head_stride as u64),
        Arg::I32(int(k)?),
        Arg::I32(int(padded)?),
    ]);
    let blocks = [grid(padded)?, grid(width.div_ceil(PREPARED))?, grid(heads)?];
    b.launch(Kernel::new("activations", entry, &[]), blocks, 256, 0, args);
    Ok(Prepared {
        x: Arg::Scratch(x),
        scales,
        padded,
    })
}

/// One product of prepared activations; a row of `out` is `[heads, n]`.
fn product(
    b: &mut Builder<'_>,
    input: &Input,
    prepared: &Prepared,
    path: Path,
    (weight, address): (&WeightInfo, BufferId),
    n: usize,
    out: BufferId,
) -> Result<(), String> {
    let Input { rows, heads, k, .. } = *input;
    let pieces = |tile: usize| rows.div_ceil(tile) * heads;
    let tiles = path.tiles().iter().copied();
    let tile = choose(tiles, pieces, n, b.gpu().multiprocessors).ok_or("there is no tile")?;
    let blocks = [
        grid(n.div_ceil(tile.outputs))?,
        grid(rows.div_ceil(tile.rows))?,
        grid(heads)?,
    ];
    let defines = [
        ("TYPE", weight.ty.name()),
        ("FLOATS", path.define()),
        ("TILE", &tile.define()),
    ];
    let args = vec![
        prepared.x,
        prepared.scales,
        Arg::Buffer(address),
        Arg::Buffer(out),
        Arg::Rows(out),
        Arg::I32(int(k)?),
        Arg::I32(int(n)?),
        Arg::I32(int(heads)?),
        Arg::I32(int(prepared.padded)?),
    ];
    let shared = tile.shared(path, weight.ty);
    let kernel = Kernel::new("gemm", "gemm", &defines);
    b.launch(kernel, blocks, tile.threads(), shared, args);
    Ok(())
}

fn other(op: &Op) -> String {
    format!("{} is no product", op.kind())
}

pub(super) fn linear(b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    match op {
        Op::Linear {
            x,
            weights,
            outs,
            precision,
        } => products(b, *x, weights, outs, *precision),
        op => Err(other(op)),
    }
}

pub(super) fn lm_head(b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    match op {
        Op::LmHead { x, weight, out } => products(b, *x, &[*weight], &[*out], Precision::Fast),
        op => Err(other(op)),
    }
}

/// Products of one input; it is prepared once for all weights that take the same path.
fn products(
    b: &mut Builder<'_>,
    x: BufferId,
    weights: &[BufferId],
    outs: &[BufferId],
    precision: Precision,
) -> Result<(), String> {
    let k = b.decl(x).row_elements();
    let input = Input {
        x: Arg::Buffer(x),
        rows_of: x,
        count: Arg::Null,
        rows: b.rows(x),
        heads: 1,
        k,
        row_stride: k,
        head_stride: 0,
    };
    let mut ready: Vec<(Path, Prepared)> = Vec::new();
    for (id, out) in weights.iter().zip(outs) {
        let weight = b.weight(*id)?;
        let path = path(b, weight.ty, precision);
        let prepared = match ready.iter().find(|(p, _)| *p == path) {
            Some((_, prepared)) => *prepared,
            None => {
                let prepared = prepare(b, &input, path)?;
                ready.push((path, prepared));
                prepared
            }
        };
        let n = b.decl(*out).row_elements();
        product(b, &input, &prepared, path, (weight, *id), n, *out)?;
    }
    Ok(())
}

pub(super) fn head_project(b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    let Op::HeadProject { x, weight, out } = op else {
        return Err(other(op));
    };
    let (heads, wide) = (b.axis(x.buffer, 1), b.last(x.buffer));
    let input = Input {
        x: Arg::BufferAt(x.buffer, x.start * size_of::<f32>()),
        rows_of: x.buffer,
        count: Arg::Null,
        rows: b.rows(x.buffer),
        heads,
        k: x.len,
        row_stride: heads * wide,
        head_stride: wide,
    };
    let info = b.weight(*weight)?;
    let path = path(b, info.ty, Precision::Fast);
    let prepared = prepare(b, &input, path)?;
    let n = b.last(*out);
    product(b, &input, &prepared, path, (info, *weight), n, *out)
}
