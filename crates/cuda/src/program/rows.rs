//! Operations on elements: sums, SwiGlu, caches, choice of rows.

use glim_plan::{BufferId, Cols, Op};

use super::rounded::offer;
use super::{Arg, Builder, grid, int};
use crate::kernels::Kernel;

/// Elements that a thread has, and its block's threads.
const EACH: usize = 4;
const THREADS: usize = 256;

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
