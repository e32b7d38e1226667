//! How far an operation's results may be from those of the reference, and why.
//!
//! A bound is a factor times the *spread* of a result ([`Recompute::spread`]): the size of what it was summed from. Spread follows the
//! data element by element; the factor depends on the arithmetic and on the number of addends alone:
//!
//! - **A sum of `n` products in another order.** Each addition rounds by at most half a unit in the last place, `u = 2⁻²⁴`, of the
//!   running sum; the errors are independent, and the running sum is no larger than `√n` times the root sum of squares. So the
//!   error's standard deviation is at most `√n · u` of the spread, and twice that with the recomputation's own.
//! - **8-bit activations.** A value is rounded to a step of `max / 127`, `max` that of its block of 32: it is off by at most
//!   `max / 254`. Errors of this size with independent signs add to `1 / 254` of the spread. (Evenly spread errors reach `1/√3` of it.)
//! - Both are standard deviations; [`SIGMAS`] of them are allowed, since a step has 10⁶ to 10⁸ elements. The elements of a product's
//!   result err independently, so their root mean square must come close to one: [`RMS_SHARE`] of the bound is allowed.
//! - Operations of one element, or of a few roundings: so many `u`.
//!
//! What only moves or chooses numbers (embedding aside, which decodes) has no freedom. The router decides between near-equal
//! experts: its choice may be another one if its scores could be, by these bounds.

use glim_plan::{BufferId, GgmlType, Op, Plan};

#[cfg(doc)]
use glim_plan::reference::recompute::Recompute;

/// How a backend multiplies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arithmetic {
    /// F32 throughout.
    Exact,
    /// Activations are rounded to 8 bits, with a scale for each 32, where a weight is quantised; f32 elsewhere.
    EightBit,
}

/// Standard deviations that an element may be off.
pub const SIGMAS: f32 = 6.0;

/// Share of its bound that the elements of a product may be off in the root mean square: two standard deviations, where the worst
/// case is one.
pub const RMS_SHARE: f32 = 2.0 / SIGMAS;

/// Half a unit in the last place of 1.
const U: f32 = 0.5 * f32::EPSILON;

/// `1 / 254`: half a step of an 8-bit activation, of the largest in its block.
const HALF_STEP: f32 = 0.5 / 127.0;

/// Roundings of silu or another function of one element, with two units for the exponential.
const ELEMENT: f32 = 16.0 * U;

/// Errors of an expert's hidden values come through two factors; what the product of both errors adds is less than this.
const SECOND_ORDER: f32 = 1.25;

/// Below this a number may be flushed to zero.
pub(super) const UNDERFLOW: f32 = f32::MIN_POSITIVE;

/// A sum of `n` products, computed twice.
fn sum(n: usize) -> f32 {
    2.0 * SIGMAS * (n as f32).sqrt() * U
}

/// A product with rows of a weight.
fn product(plan: &Plan, weight: BufferId, arithmetic: Arithmetic) -> f32 {
    let w = plan.buffer(weight);
    let float = matches!(
        w.dtype,
        GgmlType::F32 | GgmlType::F16 | GgmlType::BF16 | GgmlType::F64
    );
    let rounded = arithmetic == Arithmetic::EightBit && !float;
    sum(w.shape.last().copied().unwrap_or(1)) + if rounded { SIGMAS * HALF_STEP } else { 0.0 }
}

/// Factor on the spread of the `output`th f32 result of an operation (no fused one).
pub fn factor(plan: &Plan, op: &Op, output: usize, arithmetic: Arithmetic) -> f32 {
    let last = |id: BufferId| plan.buffer(id).shape.last().copied().unwrap_or(1);
    match op {
        Op::Embed { .. } => 4.0 * U,
        Op::RmsNorm { x, .. } => sum(x.len) + 8.0 * U,
        Op::LayerNorm { x, .. } => 2.0 * sum(x.len) + 8.0 * U,
        Op::Linear {
            weights, precision, ..
        } => {
            let arithmetic = match precision {
                glim_plan::Precision::F32 => Arithmetic::Exact,
                glim_plan::Precision::Fast => arithmetic,
            };
            let weight = weights.get(output).or(weights.first());
            weight.map_or(0.0, |w| product(plan, *w, arithmetic))
        }
        Op::LmHead { weight, .. } | Op::HeadProject { weight, .. } => {
            product(plan, *weight, arithmetic)
        }
        Op::ExpertFfn { gate, up, down, .. } => {
            let factors = [gate, up, down].map(|w| product(plan, *w, arithmetic));
            SECOND_ORDER * factors.into_iter().fold(ELEMENT, f32::max)
        }
        // Logits are f32 in any arithmetic.
        Op::Route { weight, .. } => product(plan, *weight, Arithmetic::Exact),
        Op::Rope { .. } => 8.0 * U,
        Op::Add { .. } => U,
        Op::SwiGlu { .. } => ELEMENT,
        Op::IndexScore { q, weights, .. } => sum(last(*q)) + sum(last(*weights)),
        // Scores, their exponentials, and the sum over positions, of which there are no more than the cache has.
        Op::MlaAttend { latent, paging, .. } => {
            let positions = last(paging.block_tables) * plan.geometry.block_size;
            sum(last(*latent)) + sum(positions) + ELEMENT
        }
        Op::CacheAppend { .. }
        | Op::IndexSelect { .. }
        | Op::SelectRows { .. }
        | Op::AllReduce { .. }
        | Op::AllGather { .. }
        | Op::TopKMerge { .. }
        | Op::Shortlist { .. }
        | Op::Sample { .. }
        | Op::Fused { .. } => 0.0,
    }
}

/// How far a router's score may be off whose logit is off by `logit`: sigmoid's and softmax's slopes are at most a quarter, softmax has
/// the other logits' errors too; and a score is rounded after the largest bias was added.
pub fn score_margin(logit: f32, bias: f32) -> f32 {
    0.5 * logit + 4.0 * U * (1.0 + bias)
}

/// How far a chosen expert's weight may be off, relatively: its own score and the sum that it is divided by.
pub fn weight_factor(logit: f32) -> f32 {
    4.0 * logit + ELEMENT
}
