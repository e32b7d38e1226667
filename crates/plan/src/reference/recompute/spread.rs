//! How large the numbers were that a result was summed from.

use super::operands::ranges;
use super::{At, Matrix, Output, Rows};
use crate::backend::BackendError;
use crate::op::{Op, RopeSpec, RopeStyle};
use crate::reference::math::{dot, sigmoid, softmax, swiglu};

/// Elements that share a scale where activations are rounded to integers.
const BLOCK: usize = 32;

/// Squares of the largest magnitudes of an activation's blocks.
fn largest_squares(x: &[f32]) -> Vec<f32> {
    let largest = |block: &[f32]| block.iter().fold(0f32, |m, x| m.max(x.abs()));
    x.chunks(BLOCK)
        .map(|block| largest(block).powi(2))
        .collect()
}

/// `√(Σ_b x²[b] · Σ_b w²)` for `n` rows of a weight: `x` holds a square for each block.
fn product_spread(
    x: &[Vec<f32>],
    w: &Matrix<'_>,
    first: usize,
    n: usize,
    threads: usize,
) -> Result<Vec<Vec<f32>>, BackendError> {
    let pieces = ranges(n, (1usize << 20).div_ceil(w.k().max(1)), threads, |range| {
        let (mut room, mut squares) = (Vec::new(), Vec::new());
        let mut values = Vec::with_capacity(range.len() * x.len());
        for j in range {
            let row = w.row(first + j, &mut room)?;
            squares.clear();
            squares.extend(row.chunks(BLOCK).map(|block| dot(block, block)));
            values.extend(x.iter().map(|x| dot(x, &squares).sqrt()));
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

fn norm(x: &[f32]) -> f32 {
    dot(x, x).sqrt()
}

fn max_abs(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |m, x| m.max(x.abs()))
}

impl At<'_> {
    pub(super) fn spread(&self, op: &Op, rows: &[usize]) -> Result<Vec<Output>, BackendError> {
        match op {
            Op::Linear {
                x, weights, outs, ..
            } => {
                let x = self.squares(rows, |t| Ok(largest_squares(self.row(*x, t)?)))?;
                let one = |(weight, out): (&_, &_)| {
                    let w = self.operands.weight(*weight)?;
                    let values = product_spread(&x, &w, 0, w.rows(), self.threads)?;
                    Ok(output(*out, rows, values))
                };
                weights.iter().zip(outs).map(one).collect()
            }
            Op::LmHead { x, weight, out }
            | Op::Route {
                x,
                weight,
                expert_weights: out,
                ..
            } => {
                let x = self.squares(rows, |t| Ok(largest_squares(self.row(*x, t)?)))?;
                let w = self.operands.weight(*weight)?;
                let values = product_spread(&x, &w, 0, w.rows(), self.threads)?;
                Ok(vec![output(*out, rows, values)])
            }
            Op::HeadProject { x, weight, out } => {
                let (heads, m) = (self.axis(*weight, 0), self.axis(*weight, 1));
                let w = self.operands.weight(*weight)?;
                let mut values = vec![Vec::with_capacity(heads * m); rows.len()];
                for h in 0..heads {
                    let x = self.squares(rows, |t| {
                        Ok(self
                            .cols(x, t)?
                            .nth(h)
                            .map(largest_squares)
                            .unwrap_or_default())
                    })?;
                    let head = product_spread(&x, &w, h * m, m, self.threads)?;
                    values
                        .iter_mut()
                        .zip(head)
                        .for_each(|(all, head)| all.extend(head));
                }
                Ok(vec![output(*out, rows, values)])
            }
            Op::ExpertFfn { .. } => self.expert_spread(op, rows),
            Op::IndexScore {
                q,
                weights,
                keys,
                paging,
                scale,
                out,
            } => self.rows(*out, rows, |t| {
                let (position, keys) = self.cached(*keys, paging, t)?;
                let heads = self.row(*q, t)?.chunks_exact(keys.width);
                let heads = heads.zip(self.row(*weights, t)?);
                let size: f32 = heads.map(|(q, w)| w.abs() * scale * max_abs(q)).sum();
                Ok((0..=position).map(|s| size * norm(keys.row(s))).collect())
            }),
            Op::MlaAttend { .. } => self.attend_spread(op, rows),
            Op::LayerNorm {
                x,
                weight,
                bias,
                eps,
                ..
            } => {
                let (w, b) = (self.operands.weight(*weight)?, self.operands.weight(*bias)?);
                let (w, b) = (w.vector()?, b.vector()?);
                let x: Vec<Vec<&[f32]>> = rows
                    .iter()
                    .map(|t| Ok(self.cols(x, *t)?.collect()))
                    .collect::<Result<_, BackendError>>()?;
                let mut x = x.into_iter().flatten();
                self.of_values(op, rows, |row| {
                    for out in row.chunks_exact_mut(w.len()) {
                        let x = x.next().unwrap_or_default();
                        let n = x.len() as f32;
                        let mean = x.iter().sum::<f32>() / n;
                        let var = x.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / n;
                        let size = max_abs(x) / (var + eps).sqrt();
                        for ((o, w), b) in out.iter_mut().zip(w.iter()).zip(b.iter()) {
                            *o = w.abs() * size + o.abs() + b.abs();
                        }
                    }
                })
            }
            Op::Rope { x, spec, .. } => {
                let width = self.last(*x);
                self.of_values(op, rows, |row| {
                    row.chunks_exact_mut(width)
                        .for_each(|head| pair_lengths(head, spec));
                })
            }
            Op::Add { a, b, out } => self.pairs(*a, *b, *out, rows, |a, b| a.abs() + b.abs()),
            Op::RmsNorm { .. } | Op::SwiGlu { .. } | Op::Embed { .. } => {
                self.of_values(op, rows, |row| row.iter_mut().for_each(|v| *v = v.abs()))
            }
            _ => self.of_values(op, rows, |row| row.fill(0.0)),
        }
    }

    /// The operation's own results, changed.
    fn of_values(
        &self,
        op: &Op,
        rows: &[usize],
        mut change: impl FnMut(&mut [f32]),
    ) -> Result<Vec<Output>, BackendError> {
        let mut outputs = self.op(op, rows)?;
        outputs.retain_mut(|output| match &mut output.rows {
            Rows::F32(rows) => {
                rows.iter_mut().for_each(|(_, row)| change(row));
                true
            }
            Rows::I32(_) => false,
        });
        Ok(outputs)
    }

    fn squares(
        &self,
        rows: &[usize],
        of: impl Fn(usize) -> Result<Vec<f32>, BackendError>,
    ) -> Result<Vec<Vec<f32>>, BackendError> {
        rows.iter().map(|t| of(*t)).collect()
    }

    fn expert_spread(&self, op: &Op, rows: &[usize]) -> Result<Vec<Output>, BackendError> {
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
        /// Largest slope of silu.
        const SLOPE: f32 = 1.1;
        let inner = self.axis(*gate, 1);
        let m = self.row_len(*out);
        let (gate, up, down) = (
            self.operands.weight(*gate)?,
            self.operands.weight(*up)?,
            self.operands.weight(*down)?,
        );
        let mut sums = vec![vec![0f32; m]; rows.len()];
        for (e, choices) in self.choices(*ids, self.axis_of_experts(op), rows)? {
            let x: Vec<&[f32]> = choices
                .iter()
                .map(|(i, _)| self.row(*x, rows[*i]))
                .collect::<Result<_, _>>()?;
            let squares: Vec<_> = x.iter().map(|x| largest_squares(x)).collect();
            let both = |w: &Matrix<'_>| {
                Ok::<_, BackendError>((
                    super::products::product(&x, w, e * inner, inner, self.threads)?,
                    product_spread(&squares, w, e * inner, inner, self.threads)?,
                ))
            };
            let ((gate, gate_spread), (up, up_spread)) = (both(&gate)?, both(&up)?);
            let mut hidden = Vec::with_capacity(choices.len());
            for c in 0..choices.len() {
                let (mut values, mut spread) = (Vec::new(), Vec::new());
                for i in 0..inner {
                    let (g, u) = (gate[c][i], up[c][i]);
                    values.push(swiglu(g, u));
                    let silu = g * sigmoid(g);
                    spread.push(SLOPE * gate_spread[c][i] * u.abs() + silu.abs() * up_spread[c][i]);
                }
                let pairs = largest_squares(&values)
                    .into_iter()
                    .zip(largest_squares(&spread));
                hidden.push(pairs.map(|(a, b)| a + b).collect::<Vec<f32>>());
            }
            let y = product_spread(&hidden, &down, e * m, m, self.threads)?;
            for ((i, choice), y) in choices.into_iter().zip(y) {
                let weight = self.row(*expert_weights, rows[i])?[choice];
                let squares = y.iter().map(|y| (weight * y).powi(2));
                sums[i]
                    .iter_mut()
                    .zip(squares)
                    .for_each(|(sum, y)| *sum += y);
            }
        }
        sums.iter_mut().flatten().for_each(|v| *v = v.sqrt());
        Ok(vec![output(*out, rows, sums)])
    }

    fn attend_spread(&self, op: &Op, rows: &[usize]) -> Result<Vec<Output>, BackendError> {
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
            let longest = positions.iter().map(|s| norm(cached.row(*s)));
            let longest = longest.fold(0.0, f32::max);
            let mut values = vec![0.0; self.row_len(*out)];
            let heads = self.row(*q_latent, t)?.chunks_exact(rank);
            let heads = heads.zip(self.cols(q_rope, t)?);
            for ((q, q_rope), out) in heads.zip(values.chunks_exact_mut(rank)) {
                let score = |s: &usize| {
                    let row = cached.row(*s);
                    scale * (dot(q, &row[..rank]) + dot(q_rope, &row[rank..]))
                };
                let mut p: Vec<f32> = positions.iter().map(score).collect();
                softmax(&mut p);
                for (s, p) in positions.iter().zip(p) {
                    let c = &cached.row(*s)[..rank];
                    out.iter_mut().zip(c).for_each(|(o, c)| *o += p * c.abs());
                }
                let of_score = scale * max_abs(q).max(max_abs(q_rope)) * longest;
                out.iter_mut().for_each(|o| *o *= 1.0 + 2.0 * of_score);
            }
            Ok(values)
        })
    }
}

/// Replaces each rotated element by the length of its pair, and all others by 0.
fn pair_lengths(head: &mut [f32], spec: &RopeSpec) {
    let (before, rest) = head.split_at_mut(spec.start);
    let (x, after) = rest.split_at_mut(spec.n);
    before.fill(0.0);
    after.fill(0.0);
    for i in 0..spec.n / 2 {
        let (a, b) = match spec.style {
            RopeStyle::HalfSplit => (i, i + spec.n / 2),
            RopeStyle::Interleaved => (2 * i, 2 * i + 1),
        };
        let length = x[a].hypot(x[b]);
        (x[a], x[b]) = (length, length);
    }
}

fn output(buffer: crate::BufferId, rows: &[usize], values: Vec<Vec<f32>>) -> Output {
    Output {
        buffer,
        rows: Rows::F32(rows.iter().copied().zip(values).collect()),
    }
}
