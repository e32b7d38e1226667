//! Operation by operation: what the serving path wrote against what the file's bytes say.
//!
//! A step's temporaries are made results a few operations at a time, so that what is copied out stays below [`TAP_BYTES`](super::TAP_BYTES), and the
//! step runs once for each such window. An operation is then computed anew from the operands that it had, on all its rows, or
//! [`ROWS`](super::ROWS) of them.
//!
//! A buffer that is updated in place shows only its last value. Its producer and the update are judged together: the update is
//! computed on what the producer should have given, with the producer's bound. When that fails, or an operation that read the
//! buffer before its update, the step is cut right before and right after each suspect, which shows its own operands and
//! results.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use glim_plan::reference::recompute::{Live, Rows};
use glim_plan::{BufferId, BufferKind, Op, Plan, WeightSource};
use glim_text::TokenId;

use super::bounds::{Arithmetic, factor};
use super::judge::{Bad, Bench, Expected, Judged, judge, judge_ints};
use super::seen::Seen;
use super::stage::{Stage, Which, at_end_of_prompt};
use super::windows::{cut, tapped, temps, windows};
use super::{Check, Level, Progress, Timer};
use crate::engine::Engine;
use crate::error::EngineError;

/// Failed operations that are named beside the first.
const NAMED: usize = 4;

/// Operations that are looked at together in a step that stops with an error.
const FEW: usize = 16;

/// How the steps are looked at.
#[derive(Debug, Clone, Copy)]
pub struct Probe<'a> {
    /// How the backend multiplies.
    pub arithmetic: Arithmetic,
    /// Threads of the recomputation.
    pub threads: usize,
    /// A text that the steps run on, repeated as often as the prompt needs; its end is what is looked at. Any ids will do, but only
    /// a text is like what a model reads.
    pub ids: &'a [TokenId],
}

/// Checks `prefill` and `decode`: each operation of a step on each rank, recomputed from that rank's of `sources`. The engine must be idle.
/// `progress` counts chunks of the prompt and operations.
///
/// # Panics
/// If there are fewer sources than ranks.
pub fn function(
    engine: &mut Engine,
    sources: &[&dyn WeightSource],
    probe: &Probe<'_>,
    progress: Progress<'_>,
) -> Vec<Check> {
    let world_size = engine.inventory().world_size();
    let steps: Vec<(usize, Which)> = (0..world_size)
        .flat_map(|rank| [(rank, Which::Prefill), (rank, Which::Decode)])
        .collect();
    let name = |rank: usize, which: Which| match world_size {
        1 => which.name().to_owned(),
        _ => format!("{}, rank {rank} of {world_size}", which.name()),
    };
    let mut checks = Vec::with_capacity(steps.len());
    let timer = Timer::start(Level::Function, name(0, Which::Prefill));
    let (mut done, mut all) = (0, 0);
    let run = at_end_of_prompt(engine, probe.ids, |stage| {
        let plans = steps
            .iter()
            .map(|(rank, which)| plan_of(stage, *which, *rank));
        let plans: Vec<_> = plans.collect();
        let ops = plans.iter().flatten().map(|plan| plan.ops.len());
        all = stage.chunks() + ops.sum::<usize>();
        while stage.next_chunk()? {
            done += 1;
            progress(done as u64, all as u64);
        }
        for ((rank, which), plan) in steps.into_iter().zip(plans) {
            let timer = Timer::start(Level::Function, name(rank, which));
            stage.look_at(which, rank);
            let plan = plan?;
            let mut examiner = Examiner::new(&plan, sources[rank], *probe);
            let mut progress = |ops: usize| progress((done + ops) as u64, all as u64);
            checks.push(match examiner.run(stage, &mut progress) {
                Ok(()) => examiner.check(timer, stage),
                Err(error) => {
                    let step = which.name();
                    let detail = format!("the {step} step does not run to its end: {error}");
                    timer.failed("", 0, detail, None)
                }
            });
            done += plan.ops.len();
        }
        Ok(())
    });
    if let Err(error) = run {
        let detail = format!("the prompt before the steps does not run: {error}");
        checks.push(timer.failed("", 0, detail, None));
    }
    checks
}

fn plan_of(stage: &mut Stage<'_>, which: Which, rank: usize) -> Result<Plan, EngineError> {
    stage.look_at(which, rank);
    let kind = stage.kind();
    Ok(stage.engine().step_of(kind)?.plan_of(rank).clone())
}

/// An operation, and a part of it.
type Place = (usize, usize);

/// What a buffer should hold that is yet to be updated in place, and which operations made it so.
struct Pending {
    expected: Expected,
    ops: Vec<usize>,
}

struct Examiner<'a> {
    plan: &'a Plan,
    source: &'a dyn WeightSource,
    probe: Probe<'a>,
    /// For each buffer, the parts of operations that update it in place, in order.
    updates: HashMap<BufferId, Vec<Place>>,
    pending: HashMap<BufferId, Pending>,
    ops: usize,
    kinds: BTreeSet<&'static str>,
    elements: u64,
    /// Largest share of its bound, and whose it is.
    worst: (f32, String),
    /// Failed operations by their place in the plan (updates in place are judged late): kind, and what is wrong.
    failed: BTreeMap<usize, (&'static str, Bad)>,
    /// Bytes of each weight that were read.
    bytes: BTreeMap<BufferId, u64>,
}

impl<'a> Examiner<'a> {
    fn new(plan: &'a Plan, source: &'a dyn WeightSource, probe: Probe<'a>) -> Self {
        let mut updates: HashMap<BufferId, Vec<Place>> = HashMap::new();
        for (i, node) in plan.ops.iter().enumerate() {
            for (p, part) in node.op.parts().iter().enumerate() {
                for id in part.access().updates {
                    if plan.buffer(id).kind != BufferKind::Carry {
                        updates.entry(id).or_default().push((i, p));
                    }
                }
            }
        }
        Self {
            plan,
            source,
            probe,
            updates,
            pending: HashMap::new(),
            ops: 0,
            kinds: BTreeSet::new(),
            elements: 0,
            worst: (0.0, String::new()),
            failed: BTreeMap::new(),
            bytes: BTreeMap::new(),
        }
    }

    /// Examines the step. If it stops with an error, the operation that says so may only have read what an earlier one got wrong: then
    /// it is examined piecemeal.
    fn run(
        &mut self,
        stage: &mut Stage<'_>,
        progress: &mut dyn FnMut(usize),
    ) -> Result<(), EngineError> {
        let Err(error) = self.examine(stage, progress) else {
            return Ok(());
        };
        *self = Self::new(self.plan, self.source, self.probe);
        self.piecemeal(stage)?;
        match self.failed.is_empty() {
            true => Err(error),
            false => Ok(()),
        }
    }

    /// Examines the step, in windows of its operations.
    fn examine(
        &mut self,
        stage: &mut Stage<'_>,
        progress: &mut dyn FnMut(usize),
    ) -> Result<(), EngineError> {
        let kind = stage.kind();
        for window in windows(self.plan) {
            let taps = temps(self.plan, window.clone());
            let tap = |plan: Plan| tapped(plan, &taps);
            let mut prepared = stage.engine().prepare_edited(kind, tap)?;
            let mut seen = Seen::run(stage, &mut prepared, self.source, window.clone())?;
            let live = Live::read(self.plan, &seen)?;
            for i in window {
                self.op(stage, &mut seen, live, i)?;
                progress(i + 1);
            }
        }
        Ok(())
    }

    /// Examines a few operations at a time in runs that end with them, and one by one where even that stops, up to the first that
    /// fails.
    fn piecemeal(&mut self, stage: &mut Stage<'_>) -> Result<(), EngineError> {
        let (kind, all) = (stage.kind(), self.plan.ops.len());
        for start in (0..all).step_by(FEW) {
            let window = start..(start + FEW).min(all);
            let taps = temps(self.plan, window.clone());
            let mut prepared = cut(stage, kind, window.end, &taps)?;
            match Seen::run(stage, &mut prepared, self.source, window.clone()) {
                Ok(mut seen) => {
                    let live = Live::read(self.plan, &seen)?;
                    for i in window {
                        self.op(stage, &mut seen, live, i)?;
                    }
                }
                Err(_) => {
                    for i in window {
                        self.single_out(stage, &[i])?;
                        if !self.failed.is_empty() {
                            break;
                        }
                    }
                }
            }
            if !self.failed.is_empty() {
                break;
            }
        }
        Ok(())
    }

    /// Judges an operation by what a window's run has shown.
    fn op(
        &mut self,
        stage: &mut Stage<'_>,
        seen: &mut Seen<'_>,
        live: Live,
        i: usize,
    ) -> Result<(), EngineError> {
        let plan = self.plan;
        let node = &plan.ops[i];
        self.ops += 1;
        for (p, part) in node.op.parts().iter().enumerate() {
            self.kinds.insert(part.kind());
            self.count_bytes(part, seen)?;
            let place = (i, p);
            let later = |id: &BufferId| self.updates.get(id).and_then(|u| u.last()) > Some(&place);
            let access = part.access();
            let updated = access
                .updates
                .iter()
                .find(|id| self.updates.contains_key(id));
            if let Some(buffer) = updated {
                let (expected, mut suspects) = match self.pending.remove(buffer) {
                    Some(Pending { expected, ops }) => {
                        (self.update(seen, live, i, part, &expected)?, ops)
                    }
                    None => (None, Vec::new()),
                };
                if suspects.last() != Some(&i) {
                    suspects.push(i);
                }
                match expected {
                    Some(expected) if later(buffer) => {
                        let pending = Pending {
                            expected,
                            ops: suspects,
                        };
                        self.pending.insert(*buffer, pending);
                    }
                    Some(expected) => {
                        let judged = judge(&expected, seen)?;
                        match judged.bad {
                            None => self.note(i, part, judged),
                            Some(_) => self.single_out(stage, &suspects)?,
                        }
                    }
                    None => self.single_out(stage, &suspects)?,
                }
                continue;
            }
            let early: Vec<BufferId> = access.reads.iter().copied().filter(later).collect();
            if early.iter().any(|id| !self.untouched(part, *id, place)) {
                self.single_out(stage, &[i])?;
                continue;
            }
            let mut judged = Judged::default();
            let bench = self.bench(seen, live, i);
            if let Op::Route { .. } = part {
                judged.add(bench.judge_route(part, seen)?);
            } else {
                let (floats, ints) = bench.expected(part)?;
                for output in &ints {
                    judged.add(judge_ints(output, seen)?);
                }
                for expected in floats {
                    match self.updates.contains_key(&expected.buffer) {
                        false => judged.add(judge(&expected, seen)?),
                        true => {
                            let pending = Pending {
                                expected,
                                ops: vec![i],
                            };
                            self.pending.insert(pending.expected.buffer, pending);
                        }
                    }
                }
            }
            match judged.bad {
                Some(_) if !early.is_empty() => self.single_out(stage, &[i])?,
                _ => self.note(i, part, judged),
            }
        }
        Ok(())
    }

    fn bench<'b>(&self, operands: &'b Seen<'b>, live: Live, i: usize) -> Bench<'b>
    where
        'a: 'b,
    {
        Bench {
            operands,
            live,
            label: &self.plan.ops[i].label,
            arithmetic: self.probe.arithmetic,
            threads: self.probe.threads,
        }
    }

    /// What an update in place gives on what its operand should have been. Rotations carry a pair's errors along.
    fn update(
        &self,
        seen: &mut Seen<'_>,
        live: Live,
        i: usize,
        op: &Op,
        before: &Expected,
    ) -> Result<Option<Expected>, EngineError> {
        let Op::Rope { x, .. } = op else {
            return Ok(None);
        };
        let label = &self.plan.ops[i].label;
        let rows: Vec<usize> = before.rows.iter().map(|(row, _)| *row).collect();
        let decl = self.plan.buffer(*x);
        let whole = |values: &mut dyn Iterator<Item = &Vec<f32>>| {
            let mut all = vec![0.0; decl.elements()];
            for (row, values) in rows.iter().zip(values) {
                all[row * decl.row_elements()..][..values.len()].copy_from_slice(values);
            }
            Some((*x, all))
        };
        seen.supposed = whole(&mut before.rows.iter().map(|(_, values)| values));
        let recompute = self.bench(seen, live, i).recompute().op(label, op, &rows);
        let lengths = self
            .bench(seen, live, i)
            .recompute()
            .spread(label, op, &rows);
        seen.supposed = whole(&mut before.bounds.iter());
        let carried = self
            .bench(seen, live, i)
            .recompute()
            .spread(label, op, &rows);
        seen.supposed = None;
        let mut f32s =
            [recompute?, lengths?, carried?]
                .into_iter()
                .map(
                    |mut outputs| match outputs.pop().map(|output| output.rows) {
                        Some(Rows::F32(rows)) => rows,
                        _ => Vec::new(),
                    },
                );
        let mut next = || f32s.next().unwrap_or_default();
        let (rows, lengths, carried) = (next(), next(), next());
        let own = factor(self.plan, op, 0, self.probe.arithmetic);
        let bounds = lengths.iter().zip(&carried).zip(&before.bounds);
        let bound =
            |((length, carried), before): ((&f32, &f32), &f32)| carried.max(*before) + own * length;
        Ok(Some(Expected {
            independent: before.independent,
            buffer: *x,
            rows,
            bounds: bounds
                .map(|(((_, l), (_, c)), b)| l.iter().zip(c).zip(b).map(bound).collect())
                .collect(),
        }))
    }

    /// Whether the columns of `id` that an operation reads are left alone by all later updates.
    fn untouched(&self, op: &Op, id: BufferId, place: Place) -> bool {
        // First column, and the one after the last.
        let read: Vec<(usize, usize)> = match op {
            Op::RmsNorm { x, .. } | Op::LayerNorm { x, .. } | Op::HeadProject { x, .. } => {
                vec![(x.start, x.start + x.len)]
            }
            Op::CacheAppend { parts, .. } => parts
                .iter()
                .filter(|part| part.buffer == id)
                .map(|part| (part.start, part.start + part.len))
                .collect(),
            _ => return false,
        };
        let later = self.updates[&id].iter().filter(|update| **update > place);
        let mut later = later.map(|(i, p)| &self.plan.ops[*i].op.parts()[*p]);
        later.all(|part| match part {
            Op::Rope { x, spec, .. } if *x == id => read
                .iter()
                .all(|(start, end)| *end <= spec.start || spec.start + spec.n <= *start),
            part => !part.access().updates.contains(&id),
        })
    }

    /// Judges each of these operations by itself, in runs that are cut right before and right after it, up to the first that fails.
    fn single_out(&mut self, stage: &mut Stage<'_>, suspects: &[usize]) -> Result<(), EngineError> {
        let (plan, kind) = (self.plan, stage.kind());
        for i in suspects.iter().copied() {
            let taps = temps(plan, i..i + 1);
            let mut after = cut(stage, kind, i + 1, &taps)?;
            let after = Seen::run(stage, &mut after, self.source, i..i + 1)?;
            let mut prepared = match i {
                0 => None,
                _ => Some(cut(stage, kind, i, &taps)?),
            };
            let mut before = match &mut prepared {
                Some(prepared) => {
                    let mut before = Seen::run(stage, prepared, self.source, i..i)?;
                    before.after = Some(&after);
                    before
                }
                None => after.clone(),
            };
            let live = Live::read(plan, &after)?;
            // What a later part of the same operation updates, as it should be by then, and the part that wrote it.
            let mut pending: HashMap<BufferId, (&Op, Expected)> = HashMap::new();
            for (p, part) in plan.ops[i].op.parts().iter().enumerate() {
                let waits = |id: BufferId| {
                    let mut updates = self.updates.get(&id).into_iter().flatten();
                    updates.any(|update| update.0 == i && update.1 > p)
                };
                let access = part.access();
                let mut judged = Judged::default();
                if let Op::Route { .. } = part {
                    judged = self.bench(&before, live, i).judge_route(part, &after)?;
                } else {
                    let held = access.updates.iter().find_map(|id| pending.remove(id));
                    let updated = match &held {
                        Some((_, held)) => self.update(&mut before, live, i, part, held)?,
                        None => None,
                    };
                    // What the update leaves alone shows who is to blame.
                    if let (Some((writer, _)), Some(updated)) = (&held, &updated)
                        && !waits(updated.buffer)
                    {
                        let alone = judge(&beside(plan, part, updated.clone()), &after)?;
                        if alone.bad.is_some() {
                            self.note(i, writer, alone);
                            return Ok(());
                        }
                    }
                    let (floats, ints) = match updated {
                        Some(expected) => (vec![expected], Vec::new()),
                        None => self.bench(&before, live, i).expected(part)?,
                    };
                    for expected in floats {
                        if waits(expected.buffer) {
                            pending.insert(expected.buffer, (part, expected));
                        } else {
                            judged.add(judge(&expected, &after)?);
                        }
                    }
                    for output in ints {
                        judged.add(judge_ints(&output, &after)?);
                    }
                }
                // Later parts have read what this one has made, and not what was there before.
                before.made.extend(access.writes);
                before.made.extend(access.updates);
                let failed = judged.bad.is_some();
                self.note(i, part, judged);
                if failed {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn note(&mut self, i: usize, part: &Op, judged: Judged) {
        let label = &self.plan.ops[i].label;
        self.elements += judged.elements;
        if judged.worst > self.worst.0 {
            self.worst = (judged.worst, format!("{label} ({})", part.kind()));
        }
        if let Some(bad) = judged.bad {
            self.failed.entry(i).or_insert((part.kind(), bad));
        }
    }

    /// Bytes of weights that an operation is recomputed from: of experts those that were chosen, of the embedding its rows.
    fn count_bytes(&mut self, part: &Op, seen: &Seen<'_>) -> Result<(), EngineError> {
        for id in part.access().reads {
            let decl = self.plan.buffer(id);
            if decl.kind != BufferKind::Weight {
                continue;
            }
            let first = decl.shape.first().copied().unwrap_or(1).max(1);
            let used = match part {
                Op::Embed { out, .. } => self.plan.buffer(*out).shape[0].min(first),
                Op::ExpertFfn { ids, .. } => {
                    let k = self.plan.buffer(*ids).row_elements();
                    let rows = Live::read(self.plan, seen)?.tokens;
                    let chosen = (0..rows).map(|row| seen.row_i32(*ids, row, k));
                    let chosen = chosen.collect::<Result<Vec<_>, _>>()?;
                    let distinct: BTreeSet<i32> = chosen.into_iter().flatten().copied().collect();
                    distinct.len().min(first)
                }
                _ => first,
            };
            let bytes = decl.bytes() as u64 / first as u64 * used as u64;
            self.bytes.insert(id, bytes);
        }
        Ok(())
    }

    fn check(&self, timer: Timer, stage: &Stage<'_>) -> Check {
        let (rows, step) = (stage.positions(), stage.which().name());
        let at = match rows.len() {
            1 => format!("1 row at position {}", rows.start),
            n => format!("{n} rows at positions {} to {}", rows.start, rows.end - 1),
        };
        let covered = format!(
            "{} operations of {} kinds in a {step} step of {at}: {} elements",
            self.ops,
            self.kinds.len(),
            grouped(self.elements)
        );
        let bytes = self.bytes.values().sum();
        let Some((first, (kind, bad))) = self.failed.first_key_value() else {
            let detail = match &self.worst {
                (0.0, _) => "every element is that of the recomputation, bit for bit".to_owned(),
                (share, who) => format!(
                    "furthest from the file's bytes: {who}, at {:.0} % of its bound",
                    100.0 * share
                ),
            };
            return timer.passed(covered, bytes, detail);
        };
        let label = &self.plan.ops[*first].label;
        let others = self.failed.keys().skip(1);
        let others: Vec<&str> = others.map(|i| self.plan.ops[*i].label.as_str()).collect();
        let more = match others.as_slice() {
            [] => String::new(),
            [other] => format!("; so does {other}"),
            others if others.len() <= NAMED => format!("; so do {}", others.join(", ")),
            others => format!(
                "; so do {} and {} more",
                others[..NAMED].join(", "),
                others.len() - NAMED
            ),
        };
        let detail = format!(
            "{label} ({kind}) leaves its bound in {}: {}, {}{more}. The weights in the backend's memory are not the file's, or its kernel is wrong",
            bad.element.tensor,
            bad.how,
            match bad.wrong {
                1 => "in 1 element".to_owned(),
                n => format!("in {} elements", grouped(n)),
            }
        );
        timer.failed(covered, bytes, detail, Some(bad.element.clone()))
    }
}

/// The same expectation, of the columns that a rotation does not touch; any value will do for the others.
fn beside(plan: &Plan, op: &Op, mut expected: Expected) -> Expected {
    if let Op::Rope { x, spec, .. } = op {
        let head = plan.buffer(*x).shape.last().copied().unwrap_or(1).max(1);
        for bounds in &mut expected.bounds {
            for (col, bound) in bounds.iter_mut().enumerate() {
                if (spec.start..spec.start + spec.n).contains(&(col % head)) {
                    *bound = f32::INFINITY;
                }
            }
        }
    }
    expected
}

/// `1,234,567`.
fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_counts_are_grouped() {
        let counts = [0, 999, 1000, 1_234_567].map(grouped);
        assert_eq!(counts, ["0", "999", "1,000", "1,234,567"]);
    }
}
