//! One run of a prepared step: operation after operation, each cut over the threads.
//!
//! Inputs were checked before ([`LiveStep`]), so operations follow them without looking. What an operation reads and writes in the
//! arena it gets from [`memory::Memory`], which keeps the two apart; how it is cut over the threads is in [`workers`].

mod attention;
mod clock;
mod memory;
mod moe;
mod poison;
mod ranks;
mod rows;
mod sample;
mod workers;

use glim_plan::{
    BackendError, BufferId, BufferKind, Communicator, LiveStep, Op, Precision, StepResults,
};

pub(crate) use self::clock::Clock;
use self::memory::Memory;
use self::rows::Angles;
pub(crate) use self::workers::{ELEMENTS, Workers};
use crate::backend::{Prepared, State};
use crate::matmul::Weight;
use crate::moe::ExpertBuffers;

/// A run of one step.
pub(crate) struct Run<'a> {
    pub(crate) prepared: &'a Prepared,
    pub(crate) live: &'a LiveStep,
    pub(crate) weights: &'a [Weight],
    pub(crate) states: &'a mut [State],
    pub(crate) carries: &'a mut [Vec<u32>],
    pub(crate) workers: Workers<'a>,
    pub(crate) experts: &'a mut ExpertBuffers,
    /// Room for rows that are gathered.
    pub(crate) room: &'a mut Vec<f32>,
    pub(crate) poison: bool,
    pub(crate) ranks: &'a dyn Communicator,
    memory: Memory<'a>,
    angles: Angles,
}

/// What a run borrows of its backend.
pub(crate) struct Parts<'a> {
    pub(crate) prepared: &'a Prepared,
    pub(crate) live: &'a LiveStep,
    pub(crate) arena: &'a mut [u32],
    pub(crate) weights: &'a [Weight],
    pub(crate) states: &'a mut [State],
    pub(crate) carries: &'a mut [Vec<u32>],
    pub(crate) workers: Workers<'a>,
    pub(crate) experts: &'a mut ExpertBuffers,
    pub(crate) room: &'a mut Vec<f32>,
    pub(crate) poison: bool,
    pub(crate) ranks: &'a dyn Communicator,
}

impl<'a> Run<'a> {
    pub(crate) fn new(parts: Parts<'a>) -> Self {
        let Parts {
            prepared,
            live,
            arena,
            weights,
            states,
            carries,
            workers,
            experts,
            room,
            poison,
            ranks,
        } = parts;
        Self {
            memory: Memory::new(prepared, live, arena),
            prepared,
            live,
            weights,
            states,
            carries,
            workers,
            experts,
            room,
            poison,
            ranks,
            angles: Angles::default(),
        }
    }

    /// Runs the operations; `clock` is told of each.
    pub(crate) fn step(
        mut self,
        mut clock: Option<&mut Clock>,
    ) -> Result<StepResults, BackendError> {
        for (index, node) in self.prepared.plan.ops.iter().enumerate() {
            self.ranks.begin(index);
            if let Some(clock) = clock.as_deref_mut() {
                clock.begin();
            }
            for part in node.op.parts() {
                match self.poison {
                    true => self.poisoned(&node.label, part)?,
                    false => self.op(&node.label, part)?,
                }
            }
            if let Some(clock) = clock.as_deref_mut() {
                clock.end();
            }
        }
        self.memory.begin();
        let plan = &self.prepared.plan;
        let results = plan.buffers_where(|k| *k == BufferKind::Result);
        let layout = &self.prepared.results;
        let mut words = Vec::with_capacity(layout.words());
        for (id, _) in results {
            words.extend_from_slice(self.memory.words(id));
        }
        Ok(StepResults::packed(layout, words))
    }

    fn weight(&self, id: BufferId) -> &'a Weight {
        &self.weights[self.prepared.bound[id.index()]]
    }

    fn op(&mut self, label: &str, op: &Op) -> Result<(), BackendError> {
        self.memory.begin();
        match op {
            Op::Embed {
                tokens,
                carry,
                table,
                out,
            } => return self.embed(label, *tokens, carry.as_ref(), *table, *out),
            Op::RmsNorm {
                x,
                weight,
                eps,
                out,
            } => self.rms_norm(x, *weight, *eps, *out),
            Op::LayerNorm {
                x,
                weight,
                bias,
                eps,
                out,
            } => self.layer_norm(x, *weight, *bias, *eps, *out),
            Op::Linear {
                x,
                weights,
                outs,
                precision,
            } => self.linear(*x, weights, outs, *precision),
            Op::LmHead { x, weight, out } => {
                self.linear(*x, &[*weight], &[*out], Precision::Fast);
            }
            Op::HeadProject { x, weight, out } => {
                let w = self.weight(*weight);
                let cols = x.start..x.start + x.len;
                let (x, out) = (self.memory.columns(x), self.memory.out(*out));
                self.workers.head_project(x, cols, w, self.room, out);
            }
            Op::Rope { x, spec, .. } => self.rope(*x, spec),
            Op::CacheAppend { parts, state, .. } => self.append(parts, *state),
            Op::IndexScore { .. } => self.index_score(op),
            Op::IndexSelect { .. } => self.index_select(op),
            Op::MlaAttend { .. } => return self.attend(label, op),
            Op::SwiGlu { gate, up, out } => self.swiglu(*gate, *up, *out),
            Op::Route { .. } => self.route(op),
            Op::ExpertFfn { .. } => return self.expert_ffn(label, op),
            Op::Add { a, b, out } => {
                let (a, b) = (self.memory.live(*a), self.memory.live(*b));
                let out = self.memory.out(*out);
                self.workers.map_pairs(a, b, out, |a, b| a + b);
            }
            Op::SelectRows { x, out, .. } => self.select_rows(*x, *out),
            Op::AllReduce { id, wire, x, out } => return self.all_reduce(*id, *wire, *x, *out),
            Op::AllGather { id, wire, gathers } => return self.all_gather(*id, *wire, gathers),
            Op::TopKMerge {
                values,
                ids,
                k,
                out_values,
                out_ids,
            } => self.top_k_merge([*values, *ids], *k, [*out_values, *out_ids]),
            Op::Shortlist { .. } => self.shortlist(op),
            Op::Sample { .. } => self.sample(op),
            Op::Fused { parts, .. } => {
                return parts.iter().try_for_each(|part| self.op(label, part));
            }
        }
        Ok(())
    }

    fn linear(
        &mut self,
        x: BufferId,
        weights: &[BufferId],
        outs: &[BufferId],
        precision: Precision,
    ) {
        let weights: Vec<&Weight> = weights.iter().map(|w| self.weight(*w)).collect();
        let x = self.memory.live(x);
        let outs = workers::parts(&self.memory, outs);
        self.workers
            .linear(x, precision == Precision::Fast, &weights, &outs);
    }

    fn out_of_range(&self, op: &str, what: &str, found: i32, bound: usize) -> BackendError {
        BackendError::OutOfRange {
            plan: self.prepared.plan.name.clone(),
            op: op.into(),
            what: what.into(),
            found: i64::from(found),
            bound,
        }
    }
}
