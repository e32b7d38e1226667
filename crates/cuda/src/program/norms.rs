//! Norms, alone and with what comes before or behind them: the residual sum, rotation, append to a cache.

use std::ops::Range;

use glim_plan::{BufferId, Cols, GgmlType, Op, RopeSpec, RopeStyle};

use super::ropes::angles;
use super::rounded::{NOWHERE, Rounded, offer};
use super::rows::add;
use super::{Arg, Builder, grid, int};
use crate::kernels::Kernel;

/// How many pieces of four elements a thread of a norm has (`PIECES`), up to which width: wide rows are read by more threads at a time.
static NORM_PIECES: [(&str, usize, usize); 3] = [("1", 1, 1024), ("2", 2, 8192), ("4", 4, 16_384)];
/// A row of this many elements is written by this many blocks, in steps of few rows.
const NORM_PART: usize = 1536;

/// How a norm's rows are shared out: by the width alone, since the order of its sum follows from it.
struct Shape {
    pieces: &'static (&'static str, usize, usize),
    threads: u32,
    /// Blocks of a row.
    parts: u32,
}

impl Shape {
    fn new(b: &Builder<'_>, width: usize) -> Result<Self, String> {
        let fitting = NORM_PIECES.iter().find(|(.., most)| width <= *most);
        let pieces = fitting.ok_or_else(|| {
            let most = NORM_PIECES.map(|(.., most)| most)[NORM_PIECES.len() - 1];
            format!("rows of {width} elements are wider than {most}")
        })?;
        Ok(Self {
            pieces,
            threads: grid(width.div_ceil(4 * pieces.1).next_multiple_of(32))?,
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
        let kernel = Kernel::new("norm", entry, &[("PIECES", self.pieces.0)]);
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
    norm(b, "rms_norm", x, &[*weight], *eps, *out)
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
    norm(b, "layer_norm", x, &[*weight, *bias], *eps, *out)
}

/// One norm with its vectors.
fn norm(
    b: &mut Builder<'_>,
    entry: &'static str,
    x: &Cols,
    vectors: &[BufferId],
    eps: f32,
    out: BufferId,
) -> Result<(), String> {
    let (x_args, inner) = columns(b, x)?;
    let mut args = x_args.to_vec();
    for id in vectors {
        args.extend(vector(b, *id)?);
    }
    args.extend([Arg::F32(eps), Arg::I32(int(x.len)?), Arg::Buffer(out)]);
    args.extend(offered(b, out, inner));
    args.push(Arg::Rows(out));
    let rows = b.rows(out) * inner;
    Shape::new(b, x.len)?.launch(b, entry, rows, args)
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
    Shape::new(b, width)?.launch(b, "add_rms_norm", rows, args)
}

/// Where a norm leaves its rows rounded: heads are rounded by who multiplies them.
fn offered(b: &mut Builder<'_>, out: BufferId, inner: usize) -> Rounded {
    match inner {
        1 => offer(b, out),
        _ => NOWHERE,
    }
}

/// Chains of one launch, as in `norm.cu`.
const CHAINS: usize = 3;
/// Threads of a block.
const MOST_THREADS: usize = 1024;

/// A norm, the rotation of its result or of other columns of what it reads, and the append of both.
struct Chain<'a> {
    x: &'a Cols,
    weight: BufferId,
    bias: Option<BufferId>,
    eps: f32,
    out: BufferId,
    rope: Option<Rotation<'a>>,
    append: Option<(&'a [Cols], BufferId, BufferId)>,
}

struct Rotation<'a> {
    x: BufferId,
    positions: BufferId,
    spec: &'a RopeSpec,
}

impl Rotation<'_> {
    fn columns(&self) -> Range<usize> {
        self.spec.start..self.spec.start + self.spec.n
    }
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}

impl Chain<'_> {
    fn columns(&self) -> Range<usize> {
        self.x.start..self.x.start + self.x.len
    }

    /// Whether the kernel does all of it. It reads whole rows and no heads, and rotates what no other thread is still to read.
    fn fits(&self, b: &Builder<'_>) -> bool {
        let is_row = |id| b.decl(id).row_elements() == b.last(id);
        let is_turned = |rope: &Rotation<'_>| {
            let is_apart = rope.x == self.out || !overlap(&rope.columns(), &self.columns());
            is_row(rope.x) && is_apart && rope.spec.n / 2 <= MOST_THREADS
        };
        is_row(self.x.buffer)
            && is_row(self.out)
            && self.rope.as_ref().is_none_or(is_turned)
            && self.places().is_some()
    }

    /// The columns of the state where the result and what is rotated beside it begin; `None` if anything else is appended.
    fn places(&self) -> Option<[usize; 2]> {
        let (mut places, mut at) = ([0; 2], 0);
        let parts = self.append.map_or(&[][..], |(parts, ..)| parts);
        for part in parts {
            let columns = part.start..part.start + part.len;
            let beside = self.rope.as_ref().filter(|rope| rope.x != self.out);
            let is_beside =
                |rope: &Rotation<'_>| rope.x == part.buffer && rope.columns() == columns;
            if part.buffer == self.out && columns == (0..self.x.len) {
                places[0] = at;
            } else if beside.is_some_and(is_beside) {
                places[1] = at;
            } else {
                return None;
            }
            at += part.len;
        }
        // What is computed is appended whole, or not at all.
        let both = usize::from(self.rope.as_ref().is_some_and(|rope| rope.x != self.out)) + 1;
        (parts.is_empty() || parts.len() == both).then_some(places)
    }

    /// The fields of `Chain` in `norm.cu`.
    fn fields(&self, b: &mut Builder<'_>, threads: u32) -> Result<Vec<Arg>, String> {
        let [weight, ty] = vector(b, self.weight)?;
        let [bias, bias_ty] = match self.bias {
            Some(bias) => vector(b, bias)?,
            None => [Arg::Null, Arg::I32(0)],
        };
        let x = Arg::BufferAt(self.x.buffer, self.x.start * size_of::<f32>());
        let mut fields = vec![x, weight, bias, Arg::Buffer(self.out)];
        fields.extend(offer(b, self.out));
        let (mut turned_stride, mut turned_from, mut pairs, mut half_split) = (0, 0, 0, false);
        match &self.rope {
            Some(rope) => {
                let (start, is_result) = (rope.spec.start, rope.x == self.out);
                fields.push(Arg::BufferAt(rope.x, start * size_of::<f32>()));
                fields.push(angles(b, rope.positions, rope.spec)?);
                turned_stride = int(b.last(rope.x))?;
                turned_from = if is_result { int(start)? } else { -1 };
                pairs = int(rope.spec.n / 2)?;
                half_split = rope.spec.style == RopeStyle::HalfSplit;
            }
            None => fields.extend([Arg::Null, Arg::Null]),
        }
        let mut state_width = 0;
        match self.append {
            Some((_, slots, state)) => {
                fields.extend([Arg::Buffer(state), Arg::Buffer(slots)]);
                // A state's shape is that of one token's row.
                state_width = int(b.decl(state).elements())?;
            }
            None => fields.extend([Arg::Null, Arg::Null]),
        }
        fields.extend([
            Arg::I32(int(b.last(self.x.buffer))?),
            Arg::I32(int(self.x.len)?),
            Arg::U32(threads),
            ty,
            bias_ty,
            Arg::F32(self.eps),
            Arg::I32(turned_stride),
            Arg::I32(turned_from),
            Arg::I32(pairs),
            Arg::I32(i32::from(half_split)),
            Arg::I32(state_width),
        ]);
        for place in self.places().unwrap_or_default() {
            fields.push(Arg::I32(int(place)?));
        }
        Ok(fields)
    }
}

/// The chains that the parts of a fused operation form; `None` if a part belongs to none.
fn chains(parts: &[Op]) -> Option<Vec<Chain<'_>>> {
    let mut chains: Vec<Chain<'_>> = Vec::new();
    for part in parts {
        match part {
            Op::RmsNorm {
                x,
                weight,
                eps,
                out,
            } => chains.push(Chain {
                x,
                weight: *weight,
                bias: None,
                eps: *eps,
                out: *out,
                rope: None,
                append: None,
            }),
            Op::LayerNorm {
                x,
                weight,
                bias,
                eps,
                out,
            } => chains.push(Chain {
                x,
                weight: *weight,
                bias: Some(*bias),
                eps: *eps,
                out: *out,
                rope: None,
                append: None,
            }),
            Op::Rope { x, positions, spec } => {
                let is_of = |c: &&mut Chain<'_>| c.out == *x || c.x.buffer == *x;
                let chain = chains.iter_mut().find(is_of)?;
                if chain.rope.is_some() || chain.append.is_some() {
                    return None;
                }
                chain.rope = Some(Rotation {
                    x: *x,
                    positions: *positions,
                    spec,
                });
            }
            Op::CacheAppend {
                parts,
                slots,
                state,
            } => {
                let is_of = |c: &&mut Chain<'_>| parts.iter().any(|part| part.buffer == c.out);
                let chain = chains.iter_mut().find(is_of)?;
                if chain.append.is_some() {
                    return None;
                }
                chain.append = Some((parts, *slots, *state));
            }
            _ => return None,
        }
    }
    Some(chains)
}

/// The fused pattern where a launch can do it; its parts otherwise.
pub(super) fn norms(b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    let fitting = chains(op.parts()).filter(|chains| {
        // What one chain rotates no other may read.
        let is_read = |rope: &Rotation<'_>, by: &Chain<'_>| {
            rope.x == by.x.buffer && overlap(&rope.columns(), &by.columns())
        };
        let turned = || chains.iter().filter_map(|c| c.rope.as_ref());
        let is_safe = |c: &Chain<'_>| !turned().any(|rope| is_read(rope, c));
        chains.iter().all(|c| c.fits(b) && is_safe(c))
    });
    let Some(chains) = fitting else {
        return op.parts().iter().try_for_each(|part| b.op(part));
    };
    for chains in chains.chunks(CHAINS) {
        launch(b, chains)?;
    }
    Ok(())
}

fn launch(b: &mut Builder<'_>, chains: &[Chain<'_>]) -> Result<(), String> {
    let Some(rows) = chains.first().map(|chain| chain.out) else {
        return Ok(());
    };
    let mut pieces = &NORM_PIECES[0];
    let (mut threads, mut shared, mut fields) = (0, 0, Vec::new());
    for chain in chains {
        let shape = Shape::new(b, chain.x.len)?;
        if shape.pieces.1 > pieces.1 {
            pieces = shape.pieces;
        }
        let rope = chain.rope.as_ref();
        let pairs = rope.map_or(0, |rope| rope.spec.n / 2);
        threads = shape
            .threads
            .max(grid(pairs.next_multiple_of(32))?)
            .max(threads);
        if rope.is_some_and(|rope| rope.x == chain.out) {
            shared = shared.max(chain.x.len * size_of::<f32>());
        }
        fields.extend(chain.fields(b, shape.threads)?);
    }
    // The places of chains that are not there.
    let each = fields.len() / chains.len();
    let first: Vec<Arg> = fields.iter().take(each).copied().collect();
    for _ in chains.len()..CHAINS {
        let nothing = |field: &Arg| {
            if field.is_wide() {
                Arg::Null
            } else {
                Arg::I32(0)
            }
        };
        fields.extend(first.iter().map(nothing));
    }
    let args = vec![b.structure(fields), Arg::Rows(rows)];
    let blocks = [grid(b.rows(rows))?, grid(chains.len())?, 1];
    let kernel = Kernel::new("norm", "norms", &[("PIECES", pieces.0)]);
    b.launch(kernel, blocks, threads, grid(shared)?, args);
    Ok(())
}
