//! Products with weights that are decoded row by row.

use std::collections::BTreeMap;

use super::operands::ranges;
use super::{At, Matrix, Output, Rows};
use crate::backend::BackendError;
use crate::buffer::BufferId;
use crate::op::{Cols, Op};
use crate::reference::math::{axpy, dot, swiglu};

/// Multiply-adds that are worth a thread of their own.
const GRAIN: usize = 1 << 20;

/// `out[t][j] = x[t] · w[first + j]` for `n` rows of the weight.
pub(super) fn product(
    x: &[&[f32]],
    w: &Matrix<'_>,
    first: usize,
    n: usize,
    threads: usize,
) -> Result<Vec<Vec<f32>>, BackendError> {
    let work = w.k() * (x.len() + 1);
    let pieces = ranges(n, GRAIN.div_ceil(work.max(1)), threads, |range| {
        let (mut room, mut values) = (Vec::new(), Vec::with_capacity(range.len() * x.len()));
        for j in range {
            let row = w.row(first + j, &mut room)?;
            values.extend(x.iter().map(|x| dot(x, row)));
        }
        Ok::<_, BackendError>(values)
    });
    let mut out = vec![Vec::with_capacity(n); x.len()];
    for piece in pieces {
        for of_row in piece?.chunks_exact(x.len().max(1)) {
            out.iter_mut().zip(of_row).for_each(|(out, v)| out.push(*v));
        }
    }
    Ok(out)
}

impl At<'_> {
    pub(super) fn product(
        &self,
        x: BufferId,
        weight: BufferId,
        rows: &[usize],
    ) -> Result<Vec<Vec<f32>>, BackendError> {
        let x: Vec<&[f32]> = rows
            .iter()
            .map(|t| self.row(x, *t))
            .collect::<Result<_, _>>()?;
        let w = self.operands.weight(weight)?;
        product(&x, &w, 0, w.rows(), self.threads)
    }

    pub(super) fn linear(
        &self,
        x: BufferId,
        weight: BufferId,
        out: BufferId,
        rows: &[usize],
    ) -> Result<Output, BackendError> {
        let values = self.product(x, weight, rows)?;
        Ok(Output {
            buffer: out,
            rows: Rows::F32(rows.iter().copied().zip(values).collect()),
        })
    }

    /// Head by head, over all rows.
    pub(super) fn head_project(
        &self,
        x: &Cols,
        weight: BufferId,
        out: BufferId,
        rows: &[usize],
    ) -> Result<Vec<Output>, BackendError> {
        let (heads, m) = (self.axis(weight, 0), self.axis(weight, 1));
        let w = self.operands.weight(weight)?;
        let x: Vec<Vec<&[f32]>> = rows
            .iter()
            .map(|t| Ok(self.cols(x, *t)?.collect()))
            .collect::<Result<_, BackendError>>()?;
        let mut values = vec![Vec::with_capacity(heads * m); rows.len()];
        for h in 0..heads {
            let x: Vec<&[f32]> = x.iter().map(|heads| heads[h]).collect();
            let head = product(&x, &w, h * m, m, self.threads)?;
            values
                .iter_mut()
                .zip(head)
                .for_each(|(all, head)| all.extend(head));
        }
        Ok(vec![Output {
            buffer: out,
            rows: Rows::F32(rows.iter().copied().zip(values).collect()),
        }])
    }

    /// Rows by expert, so that each expert's weights are decoded once; the sum of a row is in the order of its choices.
    pub(super) fn experts(&self, op: &Op, rows: &[usize]) -> Result<Vec<Output>, BackendError> {
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
            return Ok(Vec::new());
        };
        let inner = self.axis(*gate, 1);
        let (k, m) = (self.row_len(*ids), self.row_len(*out));
        let (gate, up, down) = (
            self.operands.weight(*gate)?,
            self.operands.weight(*up)?,
            self.operands.weight(*down)?,
        );
        let mut parts: Vec<Vec<Vec<f32>>> = vec![vec![Vec::new(); k]; rows.len()];
        for (e, choices) in self.choices(*ids, self.axis_of_experts(op), rows)? {
            let x: Vec<&[f32]> = choices
                .iter()
                .map(|(i, _)| self.row(*x, rows[*i]))
                .collect::<Result<_, _>>()?;
            let mut hidden = product(&x, &gate, e * inner, inner, self.threads)?;
            let up = product(&x, &up, e * inner, inner, self.threads)?;
            for (g, u) in hidden.iter_mut().flatten().zip(up.iter().flatten()) {
                *g = swiglu(*g, *u);
            }
            let hidden: Vec<&[f32]> = hidden.iter().map(Vec::as_slice).collect();
            let y = product(&hidden, &down, e * m, m, self.threads)?;
            for ((i, choice), y) in choices.into_iter().zip(y) {
                parts[i][choice] = y;
            }
        }
        let mut parts = parts.into_iter();
        self.rows(*out, rows, |t| {
            let weights = self.row(*expert_weights, t)?;
            let mut sum = vec![0.0; m];
            for (part, w) in parts.next().iter().flatten().zip(weights) {
                axpy(&mut sum, *w, part);
            }
            Ok(sum)
        })
    }

    pub(super) fn axis_of_experts(&self, op: &Op) -> usize {
        match op {
            Op::ExpertFfn { gate, .. } => self.axis(*gate, 0),
            _ => 0,
        }
    }

    /// For each expert that was chosen: indices into `rows`, and which choice of that row it is.
    pub(super) fn choices(
        &self,
        ids: BufferId,
        n_experts: usize,
        rows: &[usize],
    ) -> Result<BTreeMap<usize, Vec<(usize, usize)>>, BackendError> {
        let (k, ids) = (self.row_len(ids), self.i32s(ids)?);
        let mut choices: BTreeMap<usize, Vec<(usize, usize)>> = BTreeMap::new();
        for (i, t) in rows.iter().enumerate() {
            for (choice, id) in ids[t * k..][..k].iter().enumerate() {
                let e = self.index("expert", *id, n_experts)?;
                choices.entry(e).or_default().push((i, choice));
            }
        }
        Ok(choices)
    }
}
