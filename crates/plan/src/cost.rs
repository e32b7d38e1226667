//! What an operation costs: bytes it must move and arithmetic it must do, for real counts rather than capacities.
//!
//! Bytes are the minimum: each weight once, each cached row once for a sequence that scans it (once for a row that gathers it).
//! Activations count reads and writes. A multiply-add is two FLOPs.

use glim_quant::GgmlType;

use crate::buffer::{BufferId, Rows};
use crate::op::Op;
use crate::plan::Plan;

/// The real size of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// Live rows.
    pub rows: usize,
    /// Live output rows.
    pub outputs: usize,
    /// Live sequences.
    pub sequences: usize,
    /// Positions that a row sees, on average over the rows.
    pub context: usize,
}

/// Bytes and FLOPs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cost {
    /// Weight bytes read.
    pub weight_bytes: f64,
    /// Cache bytes read and written.
    pub state_bytes: f64,
    /// Activation bytes read and written.
    pub activation_bytes: f64,
    /// Bytes that this rank sends, at least.
    pub wire_bytes: f64,
    /// Floating-point operations.
    pub flops: f64,
}

impl std::ops::Add for Cost {
    type Output = Self;

    fn add(self, o: Self) -> Self {
        Self {
            weight_bytes: self.weight_bytes + o.weight_bytes,
            state_bytes: self.state_bytes + o.state_bytes,
            activation_bytes: self.activation_bytes + o.activation_bytes,
            wire_bytes: self.wire_bytes + o.wire_bytes,
            flops: self.flops + o.flops,
        }
    }
}

/// Cost of a whole step.
pub fn plan_cost(plan: &Plan, load: &Load) -> Cost {
    plan.ops
        .iter()
        .map(|node| op_cost(plan, &node.op, load))
        .fold(Cost::default(), |a, b| a + b)
}

/// Cost of one operation (of a fused one: the sum of its parts').
pub fn op_cost(plan: &Plan, op: &Op, load: &Load) -> Cost {
    op.parts()
        .iter()
        .map(|part| Pricer { plan, load }.part(part))
        .fold(Cost::default(), |a, b| a + b)
}

struct Pricer<'a> {
    plan: &'a Plan,
    load: &'a Load,
}

impl Pricer<'_> {
    fn bytes(&self, id: BufferId) -> f64 {
        self.plan.buffer(id).bytes() as f64
    }

    fn elements(&self, id: BufferId) -> f64 {
        self.plan.buffer(id).elements() as f64
    }

    /// Bytes that a rank sends of a buffer.
    fn wire(&self, id: BufferId, wire: GgmlType) -> f64 {
        let b = self.plan.buffer(id);
        let wire = if b.dtype == GgmlType::F32 {
            wire
        } else {
            b.dtype
        };
        let row = wire.row_bytes(b.row_elements()).unwrap_or(0);
        self.live(id) * row as f64
    }

    fn live(&self, id: BufferId) -> f64 {
        match self.plan.buffer(id).rows {
            Rows::Tokens => self.load.rows as f64,
            Rows::Outputs => self.load.outputs as f64,
            Rows::Whole => 1.0,
        }
    }

    /// Live rows of activations, in bytes.
    fn rows(&self, ids: &[BufferId]) -> f64 {
        let row = |id: &BufferId| {
            let b = self.plan.buffer(*id);
            b.bytes() as f64 / b.shape.first().copied().unwrap_or(1).max(1) as f64
        };
        ids.iter().map(|id| row(id) * self.live(*id)).sum()
    }

    fn part(&self, op: &Op) -> Cost {
        let (rows, context, sequences) = (
            self.load.rows as f64,
            self.load.context as f64,
            self.load.sequences as f64,
        );
        let dense = |weights: &[BufferId], rows: f64| Cost {
            weight_bytes: weights.iter().map(|w| self.bytes(*w)).sum(),
            flops: weights.iter().map(|w| 2.0 * rows * self.elements(*w)).sum(),
            ..Cost::default()
        };
        let mut cost = match op {
            Op::Embed { table, .. } => {
                let vocab = self.plan.buffer(*table).shape.first().copied().unwrap_or(1) as f64;
                Cost {
                    weight_bytes: rows * self.bytes(*table) / vocab,
                    ..Cost::default()
                }
            }
            Op::RmsNorm { weight, out, .. } | Op::LayerNorm { weight, out, .. } => Cost {
                weight_bytes: self.bytes(*weight),
                flops: 4.0 * self.live(*out) * self.plan.buffer(*out).row_elements() as f64,
                ..Cost::default()
            },
            Op::Linear { x, weights, .. } => dense(weights, self.live(*x)),
            Op::LmHead { x, weight, .. } => dense(&[*weight], self.live(*x)),
            Op::HeadProject { weight, .. } => dense(&[*weight], rows),
            Op::Route { weight, bias, .. } => {
                let mut cost = dense(&[*weight], rows);
                cost.weight_bytes += bias.map_or(0.0, |b| self.bytes(b));
                cost
            }
            Op::ExpertFfn {
                ids,
                gate,
                up,
                down,
                ..
            } => {
                let experts = self.plan.buffer(*gate).shape.first().copied().unwrap_or(1) as f64;
                let k = self.plan.buffer(*ids).row_elements() as f64;
                // Distinct experts that `rows` independent uniform choices of k touch.
                let touched = experts * (1.0 - (1.0 - k / experts).powf(rows));
                let all: f64 = [gate, up, down].iter().map(|w| self.bytes(**w)).sum();
                let elements: f64 = [gate, up, down].iter().map(|w| self.elements(**w)).sum();
                Cost {
                    weight_bytes: all / experts * touched,
                    flops: 2.0 * rows * k * elements / experts,
                    ..Cost::default()
                }
            }
            Op::CacheAppend { state, .. } => Cost {
                state_bytes: rows * self.bytes(*state),
                ..Cost::default()
            },
            Op::IndexScore { q, keys, .. } => Cost {
                state_bytes: sequences * context * self.bytes(*keys),
                flops: 2.0 * rows * context * self.plan.buffer(*q).row_elements() as f64,
                ..Cost::default()
            },
            Op::MlaAttend {
                q_latent,
                latent,
                topk,
                ..
            } => {
                let q = self.plan.buffer(*q_latent);
                let heads = q.shape.get(1).copied().unwrap_or(1) as f64;
                let value = q.shape.last().copied().unwrap_or(1) as f64;
                let (seen, readers) = match topk {
                    Some(t) => (
                        context.min(self.plan.buffer(*t).row_elements() as f64),
                        rows,
                    ),
                    None => (context, sequences),
                };
                Cost {
                    state_bytes: readers * seen * self.bytes(*latent),
                    flops: 2.0 * rows * heads * seen * (self.elements(*latent) + value),
                    ..Cost::default()
                }
            }
            Op::AllReduce { x, wire, .. } => Cost {
                wire_bytes: self.wire(*x, *wire),
                ..Cost::default()
            },
            Op::AllGather { gathers, wire, .. } => Cost {
                wire_bytes: gathers.iter().map(|g| self.wire(g.x, *wire)).sum(),
                ..Cost::default()
            },
            Op::Rope { .. }
            | Op::IndexSelect { .. }
            | Op::SwiGlu { .. }
            | Op::Add { .. }
            | Op::SelectRows { .. }
            | Op::TopKMerge { .. }
            | Op::Shortlist { .. }
            | Op::Sample { .. }
            | Op::Fused { .. } => Cost::default(),
        };
        cost.activation_bytes = self.activations(op);
        cost
    }

    fn activations(&self, op: &Op) -> f64 {
        // Only the visible part of a row of scores is written and read.
        let scores = 4.0 * self.load.rows as f64 * self.load.context as f64;
        match op {
            Op::IndexScore { q, weights, .. } => return self.rows(&[*q, *weights]) + scores,
            Op::IndexSelect { out, .. } => return self.rows(&[*out]) + scores,
            // Of the step's rows, only the selected ones are read.
            Op::SelectRows {
                output_rows, out, ..
            } => return self.rows(&[*output_rows]) + 2.0 * self.rows(&[*out]),
            _ => {}
        }
        let step = |id: &&BufferId| self.plan.buffer(**id).rows != Rows::Whole;
        let access = op.access();
        let once: Vec<BufferId> = access
            .reads
            .iter()
            .chain(&access.writes)
            .filter(step)
            .copied()
            .collect();
        let twice: Vec<BufferId> = access.updates.iter().filter(step).copied().collect();
        self.rows(&once) + 2.0 * self.rows(&twice)
    }
}
