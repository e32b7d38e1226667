//! End to end: the logits of a short prompt, against a pass over the file's bytes that shares nothing with the backend.
//!
//! The plan is computed operation by operation in the reference's arithmetic, each on what the last one gave, with caches of its own;
//! weights are decoded row by row. So it needs little memory, and time in proportion to the weights that the prompt uses.

use std::collections::HashMap;

use glim_model::names;
use glim_plan::reference::recompute::{Live, Matrix, Operands, Output, Recompute, Rows};
use glim_plan::{BackendError, BufferId, BufferKind, InputKind, Plan, StepInputs, WeightSource};

use super::bounds::Arithmetic;
use super::function::Probe;
use super::{BadElement, Check, Level, Progress, Timer};
use crate::buckets::bucket_for;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::eval::distance::{arg_max, kl};
use crate::eval::perplexity::log_probability;

/// Largest weights for which this is done: more would take too long for a check.
pub const WHOLE_BYTES: u64 = 64_000_000_000;

/// Weights up to which the prompt is the longer one.
const SMALL_BYTES: u64 = 1 << 30;
/// Rows of the prompt for a small model, and for others.
const PROMPT: [usize; 2] = [64, 16];

/// Largest mean of `KL(file ‖ backend)` over the rows, in nats. In f32 another order of summation moves logits by about 1e-4, and so
/// a distribution by 1e-8; a near-tie of experts may then fall otherwise in a row. Activations of 8 bits cost trained models
/// 1e-5 to 1e-3 in the mean over many rows, with up to 3 in a single one where an expert changed; weights in the wrong place cost
/// nats.
fn kl_bound(arithmetic: Arithmetic) -> f64 {
    match arithmetic {
        Arithmetic::Exact => 1e-4,
        Arithmetic::EightBit => 0.1,
    }
}

/// Share of clear rows whose likeliest token must be the same.
const TOP1: f64 = 0.9;
/// A row is clear if the likeliest token leads by this, in nats.
const CLEAR: f64 = 0.5;

/// Checks `end to end`: likeliest tokens and distributions. The engine must be idle. `progress` counts operations.
pub fn whole(
    engine: &mut Engine,
    source: &dyn WeightSource,
    probe: &Probe<'_>,
    progress: Progress<'_>,
) -> Check {
    let timer = Timer::start(Level::Function, "end to end");
    let bytes = engine.budget().weights;
    if bytes > WHOLE_BYTES {
        return timer.skipped(format!(
            "the weights take {bytes} bytes, and a pass in exact arithmetic is made for at most {WHOLE_BYTES}"
        ));
    }
    match compare(engine, source, probe, progress) {
        Ok(distance) => distance.check(timer, bytes, probe.arithmetic),
        Err(error) => timer.failed(
            "",
            0,
            format!("the pass does not come to its end: {error}"),
            None,
        ),
    }
}

struct Distance {
    rows: usize,
    mean_kl: f64,
    /// Rows with a clear first choice, and those of them that agree.
    clear: usize,
    agreed: usize,
    /// The row furthest away, with the likeliest tokens and their logits.
    furthest: Option<(f64, BadElement)>,
}

impl Distance {
    fn check(self, timer: Timer, bytes: u64, arithmetic: Arithmetic) -> Check {
        let Self {
            rows,
            mean_kl,
            clear,
            agreed,
            ..
        } = self;
        let covered = format!("logits of {rows} rows of a prompt, all layers");
        let bound = kl_bound(arithmetic);
        let enough = agreed as f64 >= TOP1 * clear as f64;
        let found = format!(
            "mean KL {mean_kl:.1e} (bound {bound:.0e}); likeliest token the same in {agreed} of {clear} rows where it is clear"
        );
        // Not `>`: what is not a number is wrong.
        if mean_kl <= bound && enough {
            return timer.passed(covered, bytes, found);
        }
        let detail = format!(
            "{found}: the model does not compute what its file says; the checks of single operations tell where"
        );
        timer.failed(
            covered,
            bytes,
            detail,
            self.furthest.map(|(_, element)| element),
        )
    }
}

fn compare(
    engine: &mut Engine,
    source: &dyn WeightSource,
    probe: &Probe<'_>,
    progress: Progress<'_>,
) -> Result<Distance, EngineError> {
    let longest = PROMPT[usize::from(engine.budget().weights > SMALL_BYTES)];
    let length = longest.min(engine.context()).min(engine.max_chunk());
    let vocab = engine.inventory().config().vocab_size;
    let ids = super::stage::prompt(probe.ids, length, vocab);
    let bucket = bucket_for(engine.buckets(), length);
    let mut prepared = engine.prepare_every_row(bucket, false, |_| Ok(()))?;
    let results =
        engine.with_sequence(|engine, sequence| engine.run_rows(&mut prepared, sequence, &ids))?;
    let plan = &engine.whole_plan(bucket)?;
    let missing = || EngineError::NoResult {
        plan: plan.name.clone(),
        name: names::LOGITS.into(),
    };
    let found = results.f32s(names::LOGITS).ok_or_else(missing)?;

    let mut inputs = StepInputs::new(plan);
    let rows = 0..length as i32;
    inputs.set(InputKind::Tokens, ids.iter().map(|id| id.0))?;
    inputs.set_i32(InputKind::Positions, rows.clone())?;
    inputs.set_i32(InputKind::SlotMapping, rows.clone())?;
    inputs.set_i32(InputKind::CuSeqlens, [0, length as i32])?;
    let blocks = length.div_ceil(plan.geometry.block_size);
    inputs.set_i32(InputKind::BlockTables, 0..blocks as i32)?;
    inputs.set_i32(InputKind::OutputRows, rows)?;
    let mut pass = Pass::new(plan, source, inputs, blocks);
    pass.run(probe.threads, progress)?;
    let expected = pass.f32s(plan.find(names::LOGITS).ok_or_else(missing)?)?;

    let mut distance = Distance {
        rows: length,
        mean_kl: 0.0,
        clear: 0,
        agreed: 0,
        furthest: None,
    };
    let pairs = expected.chunks_exact(vocab).zip(found.chunks_exact(vocab));
    for (row, (expected, found)) in pairs.take(length).enumerate() {
        let far = kl(expected, found);
        distance.mean_kl += far / length as f64;
        let (likeliest, other) = (arg_max(expected), arg_max(found));
        if lead(expected, likeliest) >= CLEAR {
            distance.clear += 1;
            distance.agreed += usize::from(likeliest == other);
        }
        let further = |(most, _): &(f64, BadElement)| far > *most || far.is_nan();
        if distance.furthest.as_ref().is_none_or(further) {
            let element = BadElement {
                tensor: names::LOGITS.into(),
                row: row as u64,
                col: likeliest as u64,
                expected: format!("{:?}", expected[likeliest]),
                found: format!("{:?}", found[likeliest]),
            };
            distance.furthest = Some((far, element));
        }
    }
    Ok(distance)
}

/// By how much the likeliest token is ahead of the next, in nats.
fn lead(logits: &[f32], likeliest: usize) -> f64 {
    let others = logits.iter().enumerate().filter(|(id, _)| *id != likeliest);
    let next = others
        .max_by(|a, b| a.1.total_cmp(b.1))
        .map_or(likeliest, |(id, _)| id);
    log_probability(logits, likeliest) - log_probability(logits, next)
}

/// A step that is computed from the file alone.
struct Pass<'a> {
    plan: &'a Plan,
    source: &'a dyn WeightSource,
    inputs: StepInputs,
    /// Temporaries, results, states.
    values: HashMap<BufferId, Vec<u32>>,
    carry: Vec<i32>,
    blocks: usize,
}

impl<'a> Pass<'a> {
    fn new(
        plan: &'a Plan,
        source: &'a dyn WeightSource,
        inputs: StepInputs,
        blocks: usize,
    ) -> Self {
        let carries = plan.buffers_where(|kind| *kind == BufferKind::Carry);
        let slots = carries.map(|(_, b)| b.elements()).max().unwrap_or(0);
        Self {
            plan,
            source,
            inputs,
            values: HashMap::new(),
            carry: vec![0; slots],
            blocks,
        }
    }

    fn run(&mut self, threads: usize, progress: Progress<'_>) -> Result<(), EngineError> {
        for (id, b) in self
            .plan
            .buffers_where(|kind| matches!(kind, BufferKind::State(_)))
        {
            let rows = self.blocks * self.plan.geometry.block_size;
            self.values.insert(id, vec![0; rows * b.elements()]);
        }
        let live = Live::read(self.plan, self)?;
        let mut last_use = HashMap::new();
        for (i, node) in self.plan.ops.iter().enumerate() {
            let access = node.op.access();
            for id in access
                .reads
                .iter()
                .chain(&access.writes)
                .chain(&access.updates)
            {
                last_use.insert(*id, i);
            }
        }
        for (i, node) in self.plan.ops.iter().enumerate() {
            for part in node.op.parts() {
                let recompute = Recompute::new(self.plan, self, live, threads);
                let rows: Vec<usize> = (0..recompute.live_rows(part)).collect();
                for output in recompute.op(&node.label, part, &rows)? {
                    self.store(output);
                }
            }
            self.values.retain(|id, _| {
                self.plan.buffer(*id).kind != BufferKind::Temp
                    || last_use.get(id).is_some_and(|last| *last > i)
            });
            progress(i as u64 + 1, self.plan.ops.len() as u64);
        }
        Ok(())
    }

    fn store(&mut self, output: Output) {
        let b = self.plan.buffer(output.buffer);
        let (elements, width) = match b.kind {
            BufferKind::State(_) => (0, b.elements()),
            _ => (b.elements(), b.row_elements()),
        };
        let all = self.values.entry(output.buffer);
        let all = all.or_insert_with(|| vec![0; elements]);
        let mut put =
            |row: usize, words: &[u32]| all[row * width..][..words.len()].copy_from_slice(words);
        match output.rows {
            Rows::F32(rows) => {
                let rows = rows.iter();
                rows.for_each(|(row, values)| put(*row, bytemuck::cast_slice(values)));
            }
            Rows::I32(rows) => {
                let rows = rows.iter();
                rows.for_each(|(row, values)| put(*row, bytemuck::cast_slice(values)));
            }
        }
    }

    fn words(&self, id: BufferId) -> Result<&[u32], BackendError> {
        let b = self.plan.buffer(id);
        let missing = || BackendError::Missing {
            plan: self.plan.name.clone(),
            what: "buffer",
            name: b.name.clone(),
            action: "computed",
        };
        match b.kind {
            BufferKind::Input(kind) => Ok(self.inputs.get(kind)),
            BufferKind::Carry => Ok(bytemuck::cast_slice(&self.carry)),
            _ => self.values.get(&id).map(Vec::as_slice).ok_or_else(missing),
        }
    }
}

impl Operands for Pass<'_> {
    fn f32s(&self, id: BufferId) -> Result<&[f32], BackendError> {
        Ok(bytemuck::cast_slice(self.words(id)?))
    }

    fn i32s(&self, id: BufferId) -> Result<&[i32], BackendError> {
        Ok(bytemuck::cast_slice(self.words(id)?))
    }

    fn weight(&self, id: BufferId) -> Result<Matrix<'_>, BackendError> {
        let name = &self.plan.buffer(id).name;
        Matrix::blocks(name, self.source.weight(name)?)
    }
}
