//! The indexer and latent attention over cached rows.

use super::{At, Output, Rows};
use crate::backend::BackendError;
use crate::buffer::BufferId;
use crate::op::{Op, Paging};
use crate::reference::attention::{Cached, attend, index_scores, index_select};

impl<'a> At<'a> {
    /// Position of row `t` and its sequence's cached rows, checked to cover that position.
    pub(super) fn cached(
        &self,
        state: BufferId,
        paging: &Paging,
        t: usize,
    ) -> Result<(usize, Cached<'a>), BackendError> {
        let geometry = self.plan.geometry;
        let (rows, width) = (self.f32s(state)?, self.last(state));
        let slots = rows.len() / width;
        let positions = self.i32s(paging.positions)?;
        let position = self.index("position", positions[t], geometry.max_positions())?;
        let sequence = self.sequence(paging.cu_seqlens, t)?;
        let tables = self.i32s(paging.block_tables)?;
        let block_table = &tables[sequence * geometry.max_blocks..][..geometry.max_blocks];
        for block in &block_table[..=position / geometry.block_size] {
            self.index("block", *block, slots / geometry.block_size)?;
        }
        let cached = Cached {
            rows,
            width,
            block_table,
            block_size: geometry.block_size,
        };
        Ok((position, cached))
    }

    pub(super) fn index_score(&self, op: &Op, rows: &[usize]) -> Result<Vec<Output>, BackendError> {
        let Op::IndexScore {
            q,
            weights,
            keys,
            paging,
            scale,
            out,
        } = op
        else {
            return Ok(Vec::new());
        };
        self.rows(*out, rows, |t| {
            let (position, keys) = self.cached(*keys, paging, t)?;
            let mut scores = vec![0.0; position + 1];
            let (q, w) = (self.row(*q, t)?, self.row(*weights, t)?);
            index_scores(q, w, &keys, *scale, &mut scores);
            Ok(scores)
        })
    }

    pub(super) fn index_select(
        &self,
        op: &Op,
        rows: &[usize],
    ) -> Result<Vec<Output>, BackendError> {
        let Op::IndexSelect {
            scores,
            positions,
            topk,
            forced,
            out,
        } = op
        else {
            return Ok(Vec::new());
        };
        let (positions, width) = (self.i32s(*positions)?, self.row_len(*scores));
        let mut chosen = Vec::with_capacity(rows.len());
        for t in rows {
            let position = self.index("position", positions[*t], width)?;
            let forced = match forced {
                Some(f) => &self.i32s(f.buffer)?[t * self.row_len(f.buffer) + f.start..][..f.len],
                None => &[],
            };
            let row = if forced.first().is_some_and(|s| *s != -1) {
                forced.to_vec()
            } else {
                let visible = &self.row(*scores, *t)?[..=position];
                let mut row: Vec<i32> = index_select(visible, *topk)
                    .into_iter()
                    .map(|s| s as i32)
                    .collect();
                row.resize(*topk, -1);
                row
            };
            chosen.push((*t, row));
        }
        Ok(vec![Output {
            buffer: *out,
            rows: Rows::I32(chosen),
        }])
    }

    pub(super) fn attend(&self, op: &Op, rows: &[usize]) -> Result<Vec<Output>, BackendError> {
        let Op::MlaAttend {
            q_latent,
            q_rope,
            latent,
            topk,
            paging,
            scale,
            out,
        } = op
        else {
            return Ok(Vec::new());
        };
        let rank = self.last(*q_latent);
        self.rows(*out, rows, |t| {
            let (position, cached) = self.cached(*latent, paging, t)?;
            let positions = self.attended(*topk, t, position)?;
            let mut values = vec![0.0; self.row_len(*out)];
            let heads = self.row(*q_latent, t)?.chunks_exact(rank);
            let heads = heads.zip(self.cols(q_rope, t)?);
            for ((q, q_rope), out) in heads.zip(values.chunks_exact_mut(rank)) {
                attend(q, q_rope, &cached, &positions, *scale, out);
            }
            Ok(values)
        })
    }

    /// The positions that row `t` attends to.
    pub(super) fn attended(
        &self,
        topk: Option<BufferId>,
        t: usize,
        position: usize,
    ) -> Result<Vec<usize>, BackendError> {
        let Some(topk) = topk else {
            return Ok((0..=position).collect());
        };
        let n = self.row_len(topk);
        let row = &self.i32s(topk)?[t * n..][..n];
        row.iter()
            .take_while(|s| **s != -1)
            .map(|s| self.index("chosen position", *s, position + 1))
            .collect()
    }
}
