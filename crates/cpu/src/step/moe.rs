//! The router and the experts.

use glim_plan::reference::moe::route;
use glim_plan::{BackendError, Op};

use super::Run;
use crate::moe::{Choice, ExpertWeights, experts};
use crate::shared::Parts;

/// Rows whose choice of experts is worth a piece of its own.
const ROUTED_ROWS: usize = 16;

impl Run<'_> {
    pub(super) fn route(&mut self, op: &Op) {
        let Op::Route {
            x,
            weight,
            bias,
            spec,
            ids,
            expert_weights,
        } = op
        else {
            return;
        };
        let w = self.weight(*weight);
        let bias = bias.map(|b| self.weight(b).vector.as_slice());
        let (n, tokens, k) = (w.shape[0], self.live.tokens, spec.k);
        let logits = &mut *self.room;
        logits.clear();
        logits.resize(tokens * n, 0.0);
        let x = self.memory.live(*x);
        self.workers.linear(x, false, &[w], &[Parts::new(logits)]);
        let ids = Parts::new(self.memory.out::<i32>(*ids));
        let weights = Parts::new(self.memory.out::<f32>(*expert_weights));
        let logits = &*logits;
        self.workers.pool.ranges(tokens, ROUTED_ROWS, |_, range| {
            for t in range {
                // SAFETY: one range owns row `t`.
                let (ids, weights) = unsafe { (ids.part(t * k, k), weights.part(t * k, k)) };
                let chosen = route(&logits[t * n..][..n], bias, spec);
                let slots = ids.iter_mut().zip(weights);
                for ((id, weight), (expert, w)) in slots.zip(chosen) {
                    (*id, *weight) = (expert as i32, w);
                }
            }
        });
    }

    pub(super) fn expert_ffn(&mut self, label: &str, op: &Op) -> Result<(), BackendError> {
        let Op::ExpertFfn {
            x,
            ids,
            expert_weights,
            gate,
            up,
            down,
            out,
        } = op
        else {
            return Ok(());
        };
        let w = ExpertWeights {
            gate: self.weight(*gate),
            up: self.weight(*up),
            down: self.weight(*down),
        };
        let memory = &self.memory;
        let (k, tokens) = (memory.row(*ids), self.live.tokens);
        let ids = &memory.i32s(*ids)[..tokens * k];
        let bound = w.gate.shape[0];
        let inside = |e: &i32| usize::try_from(*e).is_ok_and(|e| e < bound);
        if let Some(e) = ids.iter().find(|e| !inside(e)) {
            return Err(self.out_of_range(label, "expert", *e, bound));
        }
        let choice = Choice {
            ids,
            weights: &memory.f32s(*expert_weights)[..tokens * k],
            k,
        };
        let (x, n) = (memory.live(*x), tokens * memory.row(*out));
        let out = &mut memory.out::<f32>(*out)[..n];
        experts(&mut self.workers, self.experts, w, x, choice, out);
        Ok(())
    }
}
