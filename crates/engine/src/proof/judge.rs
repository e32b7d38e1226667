//! What an operation wrote, held against what it should have written.

use glim_plan::reference::moe::{might_route, route_weights};
use glim_plan::reference::recompute::{Live, Operands, Output, Recompute, Rows};
use glim_plan::{
    BackendError, BufferDecl, BufferId, BufferKind, Gather, GgmlType, Op, Plan, Rows as BufferRows,
};

use super::BadElement;
use super::bounds::{Arithmetic, RMS_SHARE, UNDERFLOW, factor, score_margin, weight_factor};
use super::seen::{RankRow, Seen};

/// Numbers that a buffer should hold, each with how far it may be off.
#[derive(Debug, Clone)]
pub(super) struct Expected {
    pub(super) buffer: BufferId,
    pub(super) rows: Vec<(usize, Vec<f32>)>,
    pub(super) bounds: Vec<Vec<f32>>,
    /// Whether its errors are independent, as those of a product's rows are.
    pub(super) independent: bool,
}

/// The first element outside its bound, and what is to be said of it.
#[derive(Debug, Clone)]
pub(super) struct Bad {
    pub(super) element: BadElement,
    /// `off by 0.3 where 0.001 is allowed`.
    pub(super) how: String,
    /// Elements of the operation that are outside.
    pub(super) wrong: u64,
}

/// How an operation did.
#[derive(Debug, Clone, Default)]
pub(super) struct Judged {
    pub(super) elements: u64,
    /// Largest share of its bound that an element was off.
    pub(super) worst: f32,
    pub(super) bad: Option<Bad>,
}

impl Judged {
    fn wrong(&mut self, how: impl FnOnce() -> String, element: impl FnOnce() -> BadElement) {
        match &mut self.bad {
            Some(bad) => bad.wrong += 1,
            None => {
                self.bad = Some(Bad {
                    element: element(),
                    how: how(),
                    wrong: 1,
                });
            }
        }
    }

    pub(super) fn add(&mut self, other: Self) {
        self.elements += other.elements;
        self.worst = self.worst.max(other.worst);
        match (&mut self.bad, other.bad) {
            (Some(bad), Some(more)) => bad.wrong += more.wrong,
            (bad @ None, more) => *bad = more,
            (Some(_), None) => {}
        }
    }
}

/// The arithmetic of one operation on given operands.
pub(super) struct Bench<'a> {
    pub(super) operands: &'a Seen<'a>,
    pub(super) live: Live,
    pub(super) label: &'a str,
    pub(super) arithmetic: Arithmetic,
    pub(super) threads: usize,
}

/// Rows that are looked at, of `n`.
pub(super) fn sampled(n: usize) -> Vec<usize> {
    let most = super::ROWS.min(n);
    (0..most).map(|i| i * n / most).collect()
}

impl Bench<'_> {
    fn plan(&self) -> &Plan {
        self.operands.plan
    }

    pub(super) fn recompute(&self) -> Recompute<'_> {
        Recompute::new(self.plan(), self.operands, self.live, self.threads)
    }

    /// The f32 results of an operation with their bounds, and its i32 results.
    pub(super) fn expected(&self, op: &Op) -> Result<(Vec<Expected>, Vec<Output>), BackendError> {
        match op {
            Op::AllReduce { wire, x, out, .. } => {
                let all_reduced = self.all_reduced(*wire, *x, *out)?;
                return Ok((vec![all_reduced], Vec::new()));
            }
            Op::AllGather { wire, gathers, .. } => return self.all_gathered(*wire, gathers),
            _ => {}
        }
        let recompute = self.recompute();
        let rows = sampled(recompute.live_rows(op));
        let mut spreads = recompute.spread(self.label, op, &rows)?.into_iter();
        let (mut floats, mut ints) = (Vec::new(), Vec::new());
        for output in recompute.op(self.label, op, &rows)? {
            let Rows::F32(rows) = output.rows else {
                ints.push(output);
                continue;
            };
            let factor = factor(self.plan(), op, floats.len(), self.arithmetic);
            let spread = match spreads.next().map(|s| s.rows) {
                Some(Rows::F32(spread)) => spread,
                _ => Vec::new(),
            };
            let bound = |(_, row): (usize, Vec<f32>)| row.iter().map(|s| factor * s).collect();
            floats.push(Expected {
                independent: is_product(op),
                buffer: output.buffer,
                rows,
                bounds: spread.into_iter().map(bound).collect(),
            });
        }
        Ok((floats, ints))
    }

    /// The sum of what the ranks brought, in their order.
    fn all_reduced(
        &self,
        wire: GgmlType,
        x: BufferId,
        out: BufferId,
    ) -> Result<Expected, BackendError> {
        let lens = vec![self.plan().buffer(x).row_elements(); self.plan().world_size];
        let (mut rows, mut bounds) = (Vec::new(), Vec::new());
        for t in sampled(self.rows_of(out)) {
            let (mut sum, mut bound) = (vec![0.0; lens[0]], vec![0.0; lens[0]]);
            for (rank, row) in self
                .operands
                .rank_rows(x, t, &lens)?
                .into_iter()
                .enumerate()
            {
                let RankRow::F32(row) = row else { continue };
                for ((sum, bound), value) in sum.iter_mut().zip(&mut bound).zip(row) {
                    *sum = if rank == 0 { *value } else { *sum + value };
                    *bound += wire_error(wire) * value.abs();
                }
            }
            rows.push((t, sum));
            bounds.push(bound);
        }
        Ok(Expected {
            independent: false,
            buffer: out,
            rows,
            bounds,
        })
    }

    /// What the ranks brought, side by side.
    fn all_gathered(
        &self,
        wire: GgmlType,
        gathers: &[Gather],
    ) -> Result<(Vec<Expected>, Vec<Output>), BackendError> {
        let (mut floats, mut ints) = (Vec::new(), Vec::new());
        for g in gathers {
            let own = g.lens[self.plan().rank].max(1);
            let inner = self.plan().buffer(g.x).row_elements() / own;
            let lens: Vec<usize> = g.lens.iter().map(|n| n * inner).collect();
            let (mut numbers, mut ids) = (Vec::new(), Vec::new());
            for t in sampled(self.rows_of(g.out)) {
                let (mut row, mut id_row) = (Vec::new(), Vec::new());
                for part in self.operands.rank_rows(g.x, t, &lens)? {
                    match part {
                        RankRow::F32(values) => row.extend_from_slice(values),
                        RankRow::I32(values) => id_row.extend_from_slice(values),
                    }
                }
                numbers.push((t, row));
                ids.push((t, id_row));
            }
            if self.plan().buffer(g.out).dtype != GgmlType::F32 {
                ints.push(Output {
                    buffer: g.out,
                    rows: Rows::I32(ids),
                });
                continue;
            }
            let bound = |(_, row): &(usize, Vec<f32>)| {
                row.iter().map(|v| wire_error(wire) * v.abs()).collect()
            };
            floats.push(Expected {
                independent: false,
                buffer: g.out,
                bounds: numbers.iter().map(bound).collect(),
                rows: numbers,
            });
        }
        Ok((floats, ints))
    }

    fn rows_of(&self, id: BufferId) -> usize {
        match self.plan().buffer(id).rows {
            BufferRows::Outputs => self.live.outputs,
            _ => self.live.tokens,
        }
    }

    /// The router's choice and weights.
    pub(super) fn judge_route(&self, op: &Op, found: &Seen<'_>) -> Result<Judged, BackendError> {
        let Op::Route {
            bias,
            spec,
            ids,
            expert_weights,
            ..
        } = op
        else {
            return Ok(Judged::default());
        };
        let recompute = self.recompute();
        let rows = sampled(recompute.live_rows(op));
        let logits = recompute.router_logits(self.label, op, &rows)?;
        let spreads = recompute.spread(self.label, op, &rows)?;
        let Some(Rows::F32(spreads)) = spreads.into_iter().next().map(|s| s.rows) else {
            return Ok(Judged::default());
        };
        let bias = bias.map(|b| self.operands.weight(b)).transpose()?;
        let bias = bias.as_ref().map(|b| b.vector()).transpose()?;
        let largest = |values: &[f32]| values.iter().fold(0f32, |m, v| m.max(v.abs()));
        let largest_bias = bias.as_deref().map_or(0.0, largest);
        let factor = factor(self.plan(), op, 0, self.arithmetic);
        let mut judged = Judged::default();
        for ((t, logits), (_, spread)) in rows.into_iter().zip(logits).zip(spreads) {
            let chosen = found.row_i32(*ids, t, spec.k)?;
            judged.elements += 2 * spec.k as u64;
            let error = factor * largest(&spread);
            let margin = score_margin(error, largest_bias);
            let mut distinct: Vec<usize> = chosen
                .iter()
                .filter_map(|e| usize::try_from(*e).ok().filter(|e| *e < logits.len()))
                .collect();
            distinct.dedup();
            let own = glim_plan::reference::moe::route(&logits, bias.as_deref(), spec);
            if !might_route(&logits, bias.as_deref(), spec, &distinct, margin) {
                let own: Vec<i32> = own.iter().map(|(e, _)| *e as i32).collect();
                let col = own.iter().zip(chosen).position(|(own, found)| own != found);
                judged.wrong(
                    || format!("the experts {chosen:?} were chosen, not {own:?}, and no score is within {margin:.1e} of a tie that would allow it"),
                    || element(self.plan().buffer(*ids), t, col.unwrap_or(0), &format!("{own:?}"), &format!("{chosen:?}")),
                );
                continue;
            }
            let weights = Expected {
                independent: false,
                buffer: *expert_weights,
                bounds: vec![
                    route_weights(&logits, &distinct, spec)
                        .iter()
                        .map(|w| w.abs() * weight_factor(error))
                        .collect(),
                ],
                rows: vec![(t, route_weights(&logits, &distinct, spec))],
            };
            judged.add(judge(&weights, found)?);
        }
        Ok(judged)
    }
}

/// Relative rounding error of a value on its way between ranks.
fn wire_error(wire: GgmlType) -> f32 {
    match wire {
        GgmlType::BF16 => 1.0 / 256.0,
        GgmlType::F16 => 1.0 / 2048.0,
        _ => 0.0,
    }
}

fn is_product(op: &Op) -> bool {
    matches!(
        op,
        Op::Linear { .. } | Op::LmHead { .. } | Op::HeadProject { .. } | Op::ExpertFfn { .. }
    )
}

/// Fewest elements whose mean error says something.
const MEAN_OF: u64 = 64;

/// Numbers against what was found: element by element, and where errors are independent all together.
pub(super) fn judge(expected: &Expected, found: &Seen<'_>) -> Result<Judged, BackendError> {
    let decl = found.plan.buffer(expected.buffer);
    let mut judged = Judged::default();
    let (mut squares, mut furthest) = (0f64, None);
    for ((row, values), bounds) in expected.rows.iter().zip(&expected.bounds) {
        let seen = found.row_f32(expected.buffer, *row, values.len())?;
        judged.elements += values.len() as u64;
        for (col, ((value, bound), seen)) in values.iter().zip(bounds).zip(seen).enumerate() {
            // Infinities have no difference.
            let off = if value == seen {
                0.0
            } else {
                (value - seen).abs()
            };
            let allowed = if *bound > 0.0 { bound + UNDERFLOW } else { 0.0 };
            let place = || element(decl, *row, col, &format!("{value:?}"), &format!("{seen:?}"));
            // Not `off > allowed`: what is not a number is wrong.
            if off <= allowed {
                let share = if off > 0.0 { off / allowed } else { 0.0 };
                squares += f64::from(share).powi(2);
                if share > judged.worst || furthest.is_none() {
                    (judged.worst, furthest) = (share, Some((*row, col, *value, *seen)));
                }
            } else {
                judged.wrong(
                    || match off.is_finite() {
                        true => format!("off by {off:.1e} where {allowed:.1e} is allowed"),
                        false => format!("{seen} where {value} is expected"),
                    },
                    place,
                );
            }
        }
    }
    let share = (squares / judged.elements.max(1) as f64).sqrt() as f32;
    if let (None, Some((row, col, value, seen))) = (&judged.bad, furthest)
        && expected.independent
        && judged.elements >= MEAN_OF
        && share > RMS_SHARE
    {
        judged.wrong(
            || format!("in the mean off by {:.0} % of what a single element may be, where {:.0} % is allowed", 100.0 * share, 100.0 * RMS_SHARE),
            || element(decl, row, col, &format!("{value:?}"), &format!("{seen:?}")),
        );
    }
    Ok(judged)
}

/// Positions and tokens, which have no freedom: they are chosen from numbers that were seen.
pub(super) fn judge_ints(expected: &Output, found: &Seen<'_>) -> Result<Judged, BackendError> {
    let Rows::I32(rows) = &expected.rows else {
        return Ok(Judged::default());
    };
    let decl = found.plan.buffer(expected.buffer);
    let mut judged = Judged::default();
    for (row, values) in rows {
        let seen = found.row_i32(expected.buffer, *row, values.len())?;
        judged.elements += values.len() as u64;
        for (col, (value, seen)) in values.iter().zip(seen).enumerate() {
            if value != seen {
                judged.wrong(
                    || format!("{seen} where the same numbers give {value}"),
                    || element(decl, *row, col, &value.to_string(), &seen.to_string()),
                );
            }
        }
    }
    Ok(judged)
}

/// An element of a buffer's row, in the coordinates of its last axis.
fn element(decl: &BufferDecl, row: usize, col: usize, expected: &str, found: &str) -> BadElement {
    let last = decl.shape.last().copied().unwrap_or(1).max(1);
    let rows = match decl.kind {
        BufferKind::State(_) => 1,
        _ => decl.row_elements() / last,
    };
    BadElement {
        tensor: decl.name.clone(),
        row: (row * rows.max(1) + col / last) as u64,
        col: (col % last) as u64,
        expected: expected.into(),
        found: found.into(),
    }
}
