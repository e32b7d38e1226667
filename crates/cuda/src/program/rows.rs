//! Operations that work row by row: norms, rotary embedding, caches, element by element.

use glim_plan::{BufferId, Cols, GgmlType, Op, RopeStyle};

use super::{Arg, Builder, grid, int};
use crate::kernels::Kernel;

/// Elements that a thread of the element-wise kernels has, and its block's threads.
const EACH: usize = 4;
const THREADS: usize = 256;

/// Elements that a thread of a norm can keep, and those that it should have.
const NORM_MOST: usize = 16;
const NORM_EACH: usize = 4;

/// Pairs of a rotary embedding.
const MOST_PAIRS: usize = 512;

/// Threads of a norm's block: by the width alone, since the order of its sum follows from it.
fn norm_threads(width: usize) -> Result<u32, String> {
    let threads = width.div_ceil(NORM_EACH).next_multiple_of(32).min(1024);
    if threads * NORM_MOST < width {
        let most = 1024 * NORM_MOST;
        return Err(format!("rows of {width} elements are wider than {most}"));
    }
    grid(threads)
}

/// A vector of weights: its address and its type's number in `norm.cu`.
fn vector(b: &Builder<'_>, id: BufferId) -> Result<[Arg; 2], String> {
    let ty = match b.weight(id)?.ty {
        GgmlType::F32 => 0,
        GgmlType::F16 => 1,
        GgmlType::BF16 => 2,
        other => return Err(format!("a norm's weight is {other}, not F32, F16 or BF16")),
    };
    Ok([Arg::Buffer(id), Arg::I32(ty)])
}

/// The innermost rows of a column range: buffer, stride, first column, how many to a row of the step.
fn columns(b: &Builder<'_>, x: &Cols) -> Result<([Arg; 4], usize), String> {
    let stride = b.last(x.buffer);
    let inner = b.decl(x.buffer).row_elements() / stride.max(1);
    let args = [
        Arg::Buffer(x.buffer),
        Arg::I32(int(stride)?),
        Arg::I32(int(x.start)?),
        Arg::I32(int(inner)?),
    ];
    Ok((args, inner))
}

pub(super) fn rms_norm(b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    let Op::RmsNorm {
        x,
        weight,
        eps,
        out,
    } = op
    else {
        return Ok(());
    };
    let (x_args, inner) = columns(b, x)?;
    let mut args = x_args.to_vec();
    args.extend(vector(b, *weight)?);
    args.extend([
        Arg::F32(*eps),
        Arg::I32(int(x.len)?),
        Arg::Buffer(*out),
        Arg::Rows(*out),
    ]);
    let blocks = grid(b.rows(*out) * inner)?;
    let kernel = Kernel::new("norm", "rms_norm", &[]);
    b.launch(kernel, [blocks, 1, 1], norm_threads(x.len)?, 0, args);
    Ok(())
}

pub(super) fn layer_norm(b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    let Op::LayerNorm {
        x,
        weight,
        bias,
        eps,
        out,
    } = op
    else {
        return Ok(());
    };
    let (x_args, inner) = columns(b, x)?;
    let mut args = x_args.to_vec();
    args.extend(vector(b, *weight)?);
    args.extend(vector(b, *bias)?);
    args.extend([
        Arg::F32(*eps),
        Arg::I32(int(x.len)?),
        Arg::Buffer(*out),
        Arg::Rows(*out),
    ]);
    let blocks = grid(b.rows(*out) * inner)?;
    let kernel = Kernel::new("norm", "layer_norm", &[]);
    b.launch(kernel, [blocks, 1, 1], norm_threads(x.len)?, 0, args);
    Ok(())
}

/// The fused pattern where the norm is of the whole sum; its parts otherwise.
pub(super) fn add_rms_norm(b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    let Op::Fused { parts, .. } = op else {
        return Ok(());
    };
    let [
        Op::Add {
            a,
            b: addend,
            out: sum,
        },
        Op::RmsNorm {
            x,
            weight,
            eps,
            out,
        },
    ] = parts.as_slice()
    else {
        return Err("it is not an Add and a RmsNorm".into());
    };
    let width = b.decl(*sum).row_elements();
    if x.buffer != *sum || (x.start, x.len) != (0, width) || b.last(*sum) != width {
        add(b, &parts[0])?;
        return rms_norm(b, &parts[1]);
    }
    let mut args = vec![Arg::Buffer(*a), Arg::Buffer(*addend)];
    args.extend(vector(b, *weight)?);
    args.extend([
        Arg::F32(*eps),
        Arg::I32(int(width)?),
        Arg::Buffer(*sum),
        Arg::Buffer(*out),
        Arg::Rows(*out),
    ]);
    let blocks = grid(b.rows(*out))?;
    let kernel = Kernel::new("norm", "add_rms_norm", &[]);
    b.launch(kernel, [blocks, 1, 1], norm_threads(width)?, 0, args);
    Ok(())
}

/// A grid that covers rows of `width` elements.
fn elements(width: usize, rows: usize) -> Result<[u32; 3], String> {
    Ok([grid(width.div_ceil(EACH * THREADS).max(1))?, grid(rows)?, 1])
}

/// A launch of `[left, right, out, width, rows]`.
fn pairs(
    b: &mut Builder<'_>,
    entry: &'static str,
    left: BufferId,
    right: BufferId,
    out: BufferId,
) -> Result<(), String> {
    let width = b.decl(out).row_elements();
    let args = vec![
        Arg::Buffer(left),
        Arg::Buffer(right),
        Arg::Buffer(out),
        Arg::I32(int(width)?),
        Arg::Rows(out),
    ];
    let grid = elements(width, b.rows(out))?;
    let kernel = Kernel::new("rows", entry, &[]);
    b.launch(kernel, grid, THREADS as u32, 0, args);
    Ok(())
}

pub(super) fn add(b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    match op {
        Op::Add { a, b: other, out } => pairs(b, "add", *a, *other, *out),
        _ => Ok(()),
    }
}

pub(super) fn swiglu(b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    match op {
        Op::SwiGlu { gate, up, out } => pairs(b, "swiglu", *gate, *up, *out),
        _ => Ok(()),
    }
}

pub(super) fn select_rows(b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    let Op::SelectRows {
        x,
        output_rows,
        out,
    } = op
    else {
        return Ok(());
    };
    let width = b.decl(*out).row_elements();
    let args = vec![
        Arg::Buffer(*x),
        Arg::Buffer(*output_rows),
        Arg::Buffer(*out),
        Arg::I32(int(width)?),
    ];
    let grid = elements(width, b.rows(*out))?;
    let kernel = Kernel::new("rows", "select_rows", &[]);
    b.launch(kernel, grid, THREADS as u32, 0, args);
    Ok(())
}

/// Two parts, which a latent's row has, in one launch; otherwise a launch for each.
pub(super) fn append(b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    let Op::CacheAppend {
        parts,
        slots,
        state,
    } = op
    else {
        return Ok(());
    };
    // A state's shape is that of one token's row.
    let width = b.decl(*state).elements();
    let part = |p: &Cols| -> Result<[Arg; 4], String> {
        Ok([
            Arg::Buffer(p.buffer),
            Arg::I32(int(b.last(p.buffer))?),
            Arg::I32(int(p.start)?),
            Arg::I32(int(p.len)?),
        ])
    };
    let mut launches = Vec::new();
    if let [x, y] = parts.as_slice() {
        let mut args = part(x)?.to_vec();
        args.extend(part(y)?);
        args.extend([Arg::Buffer(*state), Arg::I32(int(width)?)]);
        launches.push(("append_two", x.buffer, x.len + y.len, args));
    } else {
        let mut to = 0;
        for p in parts {
            let mut args = part(p)?.to_vec();
            args.extend([
                Arg::Buffer(*state),
                Arg::I32(int(width)?),
                Arg::I32(int(to)?),
            ]);
            launches.push(("append", p.buffer, p.len, args));
            to += p.len;
        }
    }
    for (entry, rows_of, len, mut args) in launches {
        args.extend([Arg::Buffer(*slots), Arg::Rows(rows_of)]);
        let grid = elements(len, b.rows(rows_of))?;
        let kernel = Kernel::new("rows", entry, &[]);
        b.launch(kernel, grid, THREADS as u32, 0, args);
    }
    Ok(())
}

pub(super) fn rope(b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    let Op::Rope { x, positions, spec } = op else {
        return Ok(());
    };
    if spec.n / 2 > MOST_PAIRS {
        let (n, most) = (spec.n, 2 * MOST_PAIRS);
        return Err(format!("{n} rotated elements are more than {most}"));
    }
    let width = b.last(*x);
    let heads = b.decl(*x).row_elements() / width.max(1);
    let args = vec![
        Arg::Buffer(*x),
        Arg::I32(int(heads)?),
        Arg::I32(int(width)?),
        Arg::I32(int(spec.start)?),
        Arg::I32(int(spec.n)?),
        Arg::F32(spec.theta),
        Arg::I32(i32::from(spec.style == RopeStyle::HalfSplit)),
        Arg::Buffer(*positions),
        Arg::Rows(*x),
    ];
    let blocks = grid(b.rows(*x))?;
    let kernel = Kernel::new("rows", "rope", &[]);
    b.launch(kernel, [blocks, 1, 1], THREADS as u32, 0, args);
    Ok(())
}
