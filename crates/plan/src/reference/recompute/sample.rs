//! The draw of tokens, and where they are carried to.

use super::{At, Output, Rows};
use crate::backend::BackendError;
use crate::op::Op;
use crate::sample::{SampleParams, sample_row};

impl At<'_> {
    pub(super) fn sample(&self, op: &Op, rows: &[usize]) -> Result<Vec<Output>, BackendError> {
        let Op::Sample {
            logits,
            inputs: i,
            carry,
            out,
        } = op
        else {
            return Ok(Vec::new());
        };
        let (words, mask) = (self.row_len(i.token_mask), self.i32s(i.token_mask)?);
        let (mut tokens, mut carried) = (Vec::new(), Vec::new());
        for n in rows.iter().copied() {
            let row = self.index("output row", self.i32s(i.output_rows)?[n], self.live.tokens)?;
            let seed = &self.i32s(i.seeds)?[n * 3..][..3];
            let params = SampleParams {
                temperature: self.f32s(i.temperature)?[n],
                top_k: self.i32s(i.top_k)?[n].max(0) as usize,
                top_p: self.f32s(i.top_p)?[n],
                min_p: self.f32s(i.min_p)?[n],
                seed: u64::from(seed[0] as u32) | u64::from(seed[1] as u32) << 32,
                choice: seed[2] as u32,
                position: (self.i32s(i.positions)?[row] as u32).wrapping_add(1),
            };
            let mask = bytemuck::cast_slice(&mask[n * words..][..words]);
            let token = sample_row(self.row(*logits, n)?, mask, &params);
            tokens.push((n, vec![token]));
            if let Some(c) = carry {
                let sequence = self.sequence(c.cu_seqlens, row)?;
                carried.push((self.carry_slot(c, sequence)?, vec![token]));
            }
        }
        let mut outputs = vec![Output {
            buffer: *out,
            rows: Rows::I32(tokens),
        }];
        outputs.extend(carry.map(|c| Output {
            buffer: c.carry,
            rows: Rows::I32(carried),
        }));
        Ok(outputs)
    }
}
