//! Activations as 8-bit integers (kernels/include/q8.cuh): rounded once for all products that take them.
//!
//! Which inputs of a plan are multiplied as integers is known beforehand. So an operation that computes such a row can write it in
//! both forms ([`offer`]), and what nobody has offered is rounded by the first product that needs it ([`round`]). Either form is
//! kept until the last product of the same input, or until its buffer is written anew.

use std::ops::Range;
use std::slice::from_ref;

use glim_plan::{BufferId, Op, Precision};

use super::linear::{Input, head_rows, input_args, rows_of_grid, whole_rows};
use super::{Arg, Builder, grid};
use crate::backend::Math;
use crate::kernels::Kernel;

/// Where rounded rows lie: integers, scales, sums.
pub(super) type Rounded = [Arg; 3];

/// Nowhere: nobody wants them.
pub(super) const NOWHERE: Rounded = [Arg::Null; 3];

/// What is multiplied as integers, and what of it is there.
#[derive(Debug, Default)]
pub(super) struct Roundings {
    /// Each input, with the last operation that multiplies it.
    wanted: Vec<(Input, usize)>,
    there: Vec<(Input, Rounded)>,
}

impl Roundings {
    /// Looks through the plan.
    pub(super) fn of(b: &Builder<'_>) -> Self {
        let mut wanted: Vec<(Input, usize)> = Vec::new();
        for (i, node) in b.plan().ops.iter().enumerate() {
            for input in node.op.parts().iter().filter_map(|part| input_of(b, part)) {
                match wanted.iter_mut().find(|(known, _)| *known == input) {
                    Some((_, last)) => *last = i,
                    None => wanted.push((input, i)),
                }
            }
        }
        Self {
            wanted,
            there: Vec::new(),
        }
    }

    /// Forgets what an operation is about to change.
    pub(super) fn forget(&mut self, buffer: BufferId) {
        self.there.retain(|(input, _)| input.buffer != buffer);
    }
}

/// What an operation multiplies as integers, if it does. Prompts have kernels, and a form of rounded activations, of their own.
fn input_of(b: &Builder<'_>, op: &Op) -> Option<Input> {
    if b.math() != Math::Fast || !b.is_decode() {
        return None;
    }
    let (input, weights) = match op {
        Op::Linear {
            x,
            weights,
            precision: Precision::Fast,
            ..
        } => (whole_rows(b, *x), weights.as_slice()),
        Op::LmHead { x, weight, .. } => (whole_rows(b, *x), from_ref(weight)),
        Op::HeadProject { x, weight, .. } => (head_rows(b, x), from_ref(weight)),
        Op::ExpertFfn { x, gate, .. } => (whole_rows(b, *x), from_ref(gate)),
        _ => return None,
    };
    let is_quantised = |id| b.weight(id).is_ok_and(|w| w.ty.block_elems() > 1);
    let mut weights = weights.iter().copied();
    weights.any(is_quantised).then_some(input)
}

/// Where the operation that writes whole rows of `out` leaves them rounded; [`NOWHERE`] if no product takes them.
pub(super) fn offer(b: &mut Builder<'_>, out: BufferId) -> Rounded {
    let input = whole_rows(b, out);
    match b.roundings.wanted.iter().any(|(known, _)| *known == input) {
        true => room(b, input),
        false => NOWHERE,
    }
}

/// The same for columns of each head of `x`, written before, that are clear of those which the operation changes.
pub(super) fn offer_columns(
    b: &mut Builder<'_>,
    x: BufferId,
    changed: Range<usize>,
) -> Vec<(Range<usize>, Rounded)> {
    let (row, head) = (b.decl(x).row_elements(), b.last(x));
    let wanted = b.roundings.wanted.iter().filter_map(|(input, _)| {
        let start = input.offset / size_of::<f32>();
        let columns = start..start + input.k;
        let is_clear = columns.end <= changed.start || changed.end <= columns.start;
        let is_of = input.buffer == x && (input.row, input.head) == (row, head);
        (is_of && is_clear).then_some((columns, *input))
    });
    let wanted: Vec<_> = wanted.collect();
    let wanted = wanted.into_iter();
    wanted
        .map(|(columns, input)| (columns, room(b, input)))
        .collect()
}

/// The input of a product, if it has been rounded: by whoever wrote it, or by an earlier product.
pub(super) fn rounded(b: &Builder<'_>, input: Input) -> Option<Rounded> {
    let mut there = b.roundings.there.iter();
    let found = there.find(|(known, _)| *known == input);
    found.map(|(_, rounded)| *rounded)
}

/// The same, or else rounded by a launch of its own.
pub(super) fn round(b: &mut Builder<'_>, input: Input) -> Result<Rounded, String> {
    if let Some(rounded) = rounded(b, input) {
        return Ok(rounded);
    }
    let rounded = room(b, input);
    let threads = (input.k / 4).next_multiple_of(32).min(256);
    let parts = grid((input.k / 4).div_ceil(threads))?;
    let mut args = input_args(input)?;
    args.extend(rounded);
    let size = [parts, rows_of_grid(input.rows)?, rows_of_grid(input.heads)?];
    b.launch(Kernel::new("q8", "q8", &[]), size, threads as u32, 0, args);
    Ok(rounded)
}

/// Room for an input's rounded rows, until the last product that takes them.
fn room(b: &mut Builder<'_>, input: Input) -> Rounded {
    let mut wanted = b.roundings.wanted.iter();
    let last = wanted.find(|(known, _)| *known == input);
    let until = last.map_or(b.now, |(_, last)| *last);
    let n = input.rows * input.heads * input.k;
    let rounded = [n, n / 32 * 4, n / 16 * 4].map(|bytes| Arg::Kept(b.keep(bytes, until)));
    b.roundings.there.push((input, rounded));
    rounded
}
