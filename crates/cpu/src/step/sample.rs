//! The draw, by the specification in `glim_plan::sample`.

use glim_plan::sample::{SampleParams, sample_row, sample_shortlist, shortlist};
use glim_plan::{LiveStep, Op, SampleInputs};

use super::Run;
use super::memory::Memory;
use crate::shared::Parts;

/// How the output rows are drawn.
struct Draws<'a> {
    temperature: &'a [f32],
    top_k: &'a [i32],
    top_p: &'a [f32],
    min_p: &'a [f32],
    seeds: &'a [u32],
    masks: &'a [u32],
    /// Words of a mask.
    words: usize,
    live: &'a LiveStep,
}

impl<'a> Draws<'a> {
    fn new(memory: &'a Memory<'_>, i: &SampleInputs, live: &'a LiveStep) -> Self {
        Self {
            temperature: memory.f32s(i.temperature),
            top_k: memory.i32s(i.top_k),
            top_p: memory.f32s(i.top_p),
            min_p: memory.f32s(i.min_p),
            seeds: memory.words(i.seeds),
            masks: memory.words(i.token_mask),
            words: memory.row(i.token_mask),
            live,
        }
    }

    /// Parameters and mask of output row `n`.
    fn row(&self, n: usize) -> (SampleParams, &'a [u32]) {
        let seed = &self.seeds[n * 3..][..3];
        let params = SampleParams {
            temperature: self.temperature[n],
            top_k: self.top_k[n].max(0) as usize,
            top_p: self.top_p[n],
            min_p: self.min_p[n],
            seed: u64::from(seed[0]) | u64::from(seed[1]) << 32,
            choice: seed[2],
            position: self.live.positions[self.live.output_rows[n]] as u32 + 1,
        };
        (params, &self.masks[n * self.words..][..self.words])
    }
}

impl Run<'_> {
    pub(super) fn sample(&mut self, op: &Op) {
        let Op::Sample {
            logits,
            ids,
            inputs,
            carry,
            out,
        } = op
        else {
            return;
        };
        let (memory, live) = (&self.memory, self.live);
        let width = memory.row(*logits);
        let logits = memory.f32s(*logits);
        let ids = ids.map(|ids| memory.i32s(ids));
        let draws = Draws::new(memory, inputs, live);
        let tokens = memory.out::<i32>(*out);
        let parts = Parts::new(tokens);
        self.workers.pool.ranges(live.outputs, 1, |_, range| {
            for n in range {
                let (params, mask) = draws.row(n);
                let logits = &logits[n * width..][..width];
                let token = match ids {
                    Some(ids) => sample_shortlist(&ids[n * width..][..width], logits, &params),
                    None => sample_row(logits, mask, &params),
                };
                // SAFETY: one range owns element `n`.
                unsafe { parts.set(n, token) };
            }
        });
        if let Some(c) = carry {
            let carry = &mut self.carries[self.prepared.bound[c.carry.index()]];
            for (row, token) in live.output_rows.iter().zip(tokens) {
                carry[live.sequence_slots[live.sequences[*row]]] = *token as u32;
            }
        }
    }

    pub(super) fn shortlist(&mut self, op: &Op) {
        let Op::Shortlist {
            logits,
            first_id,
            inputs,
            k,
            out_values,
            out_ids,
        } = op
        else {
            return;
        };
        let (memory, live) = (&self.memory, self.live);
        let width = memory.row(*logits);
        let logits = memory.f32s(*logits);
        let draws = Draws::new(memory, inputs, live);
        let values = Parts::new(memory.out::<f32>(*out_values));
        let ids = Parts::new(memory.out::<i32>(*out_ids));
        self.workers.pool.ranges(live.outputs, 1, |_, range| {
            for n in range {
                let (params, mask) = draws.row(n);
                let kept = shortlist(&logits[n * width..][..width], *first_id, mask, &params, *k);
                // SAFETY: one range owns row `n` of both outputs.
                let (values, ids) = unsafe { (values.part(n * k, *k), ids.part(n * k, *k)) };
                values.fill(f32::NEG_INFINITY);
                ids.fill(-1);
                for (i, (id, value)) in kept.into_iter().enumerate() {
                    (values[i], ids[i]) = (value, i32::try_from(id).unwrap_or(-1));
                }
            }
        });
    }
}
