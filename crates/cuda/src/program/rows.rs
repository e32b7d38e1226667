//! Operations that work row by row: norms, rotary embedding, caches, element by element.

use glim_plan::{BufferId, Cols, GgmlType, Op, RopeStyle};

use super::rounded::{NOWHERE, Rounded, offer};
use super::{Arg, Builder, grid, int};
use crate::kernels::Kernel;

/// Elements that a thread of the element-wise kernels has, and its block's threads.
const EACH: usize = 4;
const THREADS: usize = 256;

/// How many pieces of four elements a thread of a norm has (`PIECES`), up to which width: wide rows are read by more threads at a time.
const NORM_PIECES: [(&str, usize, usize); 3] = [("1", 1, 1024), ("2", 2, 8192), ("4", 4, 16_384)];
/// A row of this many elements is written by this many blocks, in steps of few rows.
const NORM_PART: usize = 1536;

/// Pairs of a rotary embedding.
const MOST_PAIRS: usize = 512;

/// How a norm's rows are shared out: by the width alone, since the order of its sum follows from it.
struct Norm {
    pieces: &'static str,
    threads: u32,
    /// Blocks of a row.
    parts: u32,
}

impl Norm {
    fn new(b: &Builder<'_>, width: usize) -> Result<Self, String> {
        let fitting = NORM_PIECES.iter().find(|(.., most)| width <= *most);
        let (name, pieces, _) = fitting.ok_or_else(|| {
            let most = NORM_PIECES.map(|(.., most)| most)[NORM_PIECES.len() - 1];
            format!("rows of {width} elements are wider than {most}")
        })?;
        Ok(Self {
            pieces: name,
            threads: grid(width.div_ceil(4 * pieces).next_multiple_of(32))?,
            parts: match b.is_decode() {
                true => grid((width / NORM_PART).max(1))?,
                false => 1,
            },
        })
    }

    fn launch(
        &self,
        b: &mut Builder<'_>,
        entry: &'static str,
        rows: usize,
        args: Vec<Arg>,
    ) -> Result<(), String> {
        let kernel = Kernel::new("norm", entry, &[("PIECES", self.pieces)]);
        let blocks = [grid(rows)?, self.parts, 1];
        b.launch(kernel, blocks, self.threads, 0, args);
        Ok(())
    }
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

/// The innermost rows of a column range: the first element, stride, how many to a row of the step.
fn columns(b: &Builder<'_>, x: &Cols) -> Result<([Arg; 3], usize), String> {
    let stride = b.last(x.buffer);
    let inner = b.decl(x.buffer).row_elements() / stride.max(1);
    let args = [
        Arg::BufferAt(x.buffer, x.start * size_of::<f32>()),
        Arg::I32(int(stride)?),
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
    args.extend([Arg::F32(*eps), Arg::I32(int(x.len)?), Arg::Buffer(*out)]);
    args.extend(offered(b, *out, inner));
    args.push(Arg::Rows(*out));
    let rows = b.rows(*out) * inner;
    Norm::new(b, x.len)?.launch(b, "rms_norm", rows, args)
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
    args.extend([Arg::F32(*eps), Arg::I32(int(x.len)?), Arg::Buffer(*out)]);
    args.extend(offered(b, *out, inner));
    args.push(Arg::Rows(*out));
    let rows = b.rows(*out) * inner;
    Norm::new(b, x.len)?.launch(b, "layer_norm", rows, args)
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
    ]);
    args.extend(offer(b, *out));
    args.push(Arg::Rows(*out));
    let rows = b.rows(*out);
    Norm::new(b, width)?.launch(b, "add_rms_norm", rows, args)
}

/// Where a norm leaves its rows rounded: heads are rounded by who multiplies them.
fn offered(b: &mut Builder<'_>, out: BufferId, inner: usize) -> Rounded {
    match inner {
        1 => offer(b, out),
        _ => NOWHERE,
    }
}

/// A grid that covers rows of `width` elements.
fn elements(width: usize, rows: usize) -> Result<[u32; 3], String> {
    Ok([grid(width.div_ceil(EACH * THREADS).max(1))?, grid(rows)?, 1])
}

pub(super) fn add(b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    match op {
        Op::Add { a, b: other, out } => pairs(b, "add", [*a, *other, *out], &[]),
        _ => Ok(()),
    }
}

pub(super) fn swiglu(b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    let Op::SwiGlu { gate, up, out } = op else {
        return Ok(());
    };
    let rounded = offer(b, *out);
    pairs(b, "swiglu", [*gate, *up, *out], &rounded)
}

/// A launch of `[left, right, out, width, more…, rows]`.
fn pairs(
    b: &mut Builder<'_>,
    entry: &'static str,
    buffers: [BufferId; 3],
    more: &[Arg],
) -> Result<(), String> {
    let [.., out] = buffers;
    let width = b.decl(out).row_elements();
    let mut args = buffers.map(Arg::Buffer).to_vec();
    args.push(Arg::I32(int(width)?));
    args.extend(more);
    args.push(Arg::Rows(out));
    let grid = elements(width, b.rows(out))?;
    let kernel = Kernel::new("rows", entry, &[]);
    b.launch(kernel, grid, THREADS as u32, 0, args);
    Ok(())
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
