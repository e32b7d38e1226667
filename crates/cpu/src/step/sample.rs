//! The draw, by the specification in `glim_plan::sample`.

use glim_plan::Op;
use glim_plan::sample::{SampleParams, sample_row};

use super::Run;
use crate::shared::Parts;

impl Run<'_> {
    pub(super) fn sample(&mut self, op: &Op) {
        let Op::Sample {
            logits,
            inputs: i,
            carry,
            out,
        } = op
        else {
            return;
        };
        let (memory, live) = (&self.memory, self.live);
        let (vocab, words) = (memory.row(*logits), memory.row(i.token_mask));
        let (logits, masks) = (memory.f32s(*logits), memory.words(i.token_mask));
        let (temperature, top_p) = (memory.f32s(i.temperature), memory.f32s(i.top_p));
        let (top_k, min_p) = (memory.i32s(i.top_k), memory.f32s(i.min_p));
        let seeds = memory.words(i.seeds);
        let tokens = memory.out::<i32>(*out);
        let parts = Parts::new(tokens);
        self.workers.pool.ranges(live.outputs, 1, |_, range| {
            for n in range {
                let seed = &seeds[n * 3..][..3];
                let params = SampleParams {
                    temperature: temperature[n],
                    top_k: top_k[n].max(0) as usize,
                    top_p: top_p[n],
                    min_p: min_p[n],
                    seed: u64::from(seed[0]) | u64::from(seed[1]) << 32,
                    choice: seed[2],
                    position: live.positions[live.output_rows[n]] as u32 + 1,
                };
                let mask = &masks[n * words..][..words];
                let token = sample_row(&logits[n * vocab..][..vocab], mask, &params);
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
}
