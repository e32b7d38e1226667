//! The draw of tokens, and where they are carried to.

use super::{At, Output, Rows};
use crate::backend::BackendError;
use crate::op::{Op, SampleInputs};
use crate::sample::{SampleParams, sample_row, sample_shortlist, shortlist};

impl At<'_> {
    pub(super) fn sample(&self, op: &Op, rows: &[usize]) -> Result<Vec<Output>, BackendError> {
        let Op::Sample {
            logits,
            ids,
            inputs: i,
            carry,
            out,
        } = op
        else {
            return Ok(Vec::new());
        };
        let (mut tokens, mut carried) = (Vec::new(), Vec::new());
        for n in rows.iter().copied() {
            let (row, params, mask) = self.draw(i, n)?;
            let logits = self.row(*logits, n)?;
            let token = match ids {
                Some(ids) => {
                    let ids = &self.i32s(*ids)?[n * logits.len()..][..logits.len()];
                    sample_shortlist(ids, logits, &params)
                }
                None => sample_row(logits, mask, &params),
            };
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

    pub(super) fn shortlist(&self, op: &Op, rows: &[usize]) -> Result<Vec<Output>, BackendError> {
        let Op::Shortlist {
            logits,
            first_id,
            inputs,
            k,
            out_values,
            out_ids,
        } = op
        else {
            return Ok(Vec::new());
        };
        let (mut values, mut ids) = (Vec::new(), Vec::new());
        for n in rows.iter().copied() {
            let (_, params, mask) = self.draw(inputs, n)?;
            let kept = shortlist(self.row(*logits, n)?, *first_id, mask, &params, *k);
            let (mut row, mut row_ids) = (vec![f32::NEG_INFINITY; *k], vec![-1; *k]);
            for (i, (id, value)) in kept.into_iter().enumerate() {
                (row[i], row_ids[i]) = (value, i32::try_from(id).unwrap_or(-1));
            }
            values.push((n, row));
            ids.push((n, row_ids));
        }
        Ok(vec![
            Output {
                buffer: *out_values,
                rows: Rows::F32(values),
            },
            Output {
                buffer: *out_ids,
                rows: Rows::I32(ids),
            },
        ])
    }

    /// How output row `n` is drawn: its source row, parameters and mask.
    fn draw(
        &self,
        i: &SampleInputs,
        n: usize,
    ) -> Result<(usize, SampleParams, &[u32]), BackendError> {
        let (words, mask) = (self.row_len(i.token_mask), self.i32s(i.token_mask)?);
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
        Ok((
            row,
            params,
            bytemuck::cast_slice(&mask[n * words..][..words]),
        ))
    }
}
