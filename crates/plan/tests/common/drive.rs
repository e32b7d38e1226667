//! Drives the toy model through the reference executor: chunks of sequences in, logits and tokens out.

use glim_plan::reference::{ReferenceBackend, ReferenceOptions};
use glim_plan::{
    Backend, BackendError, InputError, InputKind, Plan, StepId, StepInputs, weight_groups,
};

use super::toy::{self, GEOMETRY, SLOTS, VOCAB};
use super::weights::Weights;

/// Blocks of paged state that a rig allocates.
pub(crate) const BLOCKS: usize = 32;
const SEED: u64 = 20_260_301;
/// A quiet NaN as f32, a huge index as i32.
const POISON_NAN: u32 = 0x7fc0_0000;
const POISON_MIN: u32 = i32::MIN as u32;

/// How a row's token is drawn.
#[derive(Clone, Copy)]
pub(crate) struct Draw {
    pub(crate) temperature: f32,
    pub(crate) top_k: i32,
    pub(crate) top_p: f32,
    pub(crate) seed: u64,
    pub(crate) choice: u32,
}

pub(crate) const GREEDY: Draw = Draw {
    temperature: 0.0,
    top_k: 0,
    top_p: 1.0,
    seed: 0,
    choice: 0,
};

/// Consecutive tokens of one sequence.
#[derive(Clone)]
pub(crate) struct Chunk {
    pub(crate) tokens: Vec<i32>,
    /// Position of the first.
    pub(crate) start: usize,
    /// The sequence's physical blocks.
    pub(crate) blocks: Vec<i32>,
    /// The sequence's slot.
    pub(crate) slot: i32,
    pub(crate) draw: Draw,
}

impl Chunk {
    pub(crate) fn new(tokens: &[i32], start: usize, blocks: &[i32], slot: i32) -> Self {
        // Drawn with a temperature, so that seed, position and every logit matter.
        let draw = Draw {
            temperature: 0.8,
            top_k: 11,
            top_p: 0.95,
            seed: 77 << 30 | slot as u64,
            choice: 1,
        };
        Self {
            tokens: tokens.to_vec(),
            start,
            blocks: blocks.to_vec(),
            slot,
            draw,
        }
    }

    fn positions(&self) -> impl Iterator<Item = usize> + '_ {
        self.start..self.start + self.tokens.len()
    }

    fn slots(&self) -> impl Iterator<Item = i32> + '_ {
        let size = GEOMETRY.block_size;
        self.positions()
            .map(move |p| self.blocks[p / size] * size as i32 + (p % size) as i32)
    }
}

/// Describes the chunks to a plan; every row is an output row.
pub(crate) fn fill(inputs: &mut StepInputs, chunks: &[Chunk]) -> Result<(), InputError> {
    let rows: usize = chunks.iter().map(|c| c.tokens.len()).sum();
    let draws = || {
        chunks
            .iter()
            .flat_map(|c| std::iter::repeat_n(c.draw, c.tokens.len()))
    };
    let ends = chunks.iter().scan(0, |end, c| {
        *end += c.tokens.len() as i32;
        Some(*end)
    });
    let tables = chunks.iter().flat_map(|c| {
        let pads = GEOMETRY.max_blocks - c.blocks.len();
        c.blocks
            .iter()
            .copied()
            .chain(std::iter::repeat_n(-1, pads))
    });
    inputs.set_i32(
        InputKind::Tokens,
        chunks.iter().flat_map(|c| c.tokens.iter().copied()),
    )?;
    inputs.set_i32(InputKind::ForcedTopk, [])?;
    inputs.set_i32(
        InputKind::Positions,
        chunks.iter().flat_map(Chunk::positions).map(|p| p as i32),
    )?;
    inputs.set_i32(InputKind::SlotMapping, chunks.iter().flat_map(Chunk::slots))?;
    inputs.set_i32(InputKind::CuSeqlens, std::iter::once(0).chain(ends))?;
    inputs.set_i32(InputKind::BlockTables, tables)?;
    inputs.set_i32(InputKind::SequenceSlots, chunks.iter().map(|c| c.slot))?;
    inputs.set_i32(InputKind::OutputRows, 0..rows as i32)?;
    inputs.set_f32(InputKind::Temperature, draws().map(|d| d.temperature))?;
    inputs.set_i32(InputKind::TopK, draws().map(|d| d.top_k))?;
    inputs.set_f32(InputKind::TopP, draws().map(|d| d.top_p))?;
    inputs.set(
        InputKind::Seeds,
        draws().flat_map(|d| [d.seed as u32, (d.seed >> 32) as u32, d.choice]),
    )?;
    inputs.set(
        InputKind::TokenMask,
        std::iter::repeat_n(u32::MAX, rows * VOCAB.div_ceil(32)),
    )
}

/// What a step says about one row, bit by bit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) logits: Vec<u32>,
    pub(crate) token: i32,
}

/// A plan that is ready to run, with its input block.
pub(crate) struct Prepared {
    pub(crate) plan: Plan,
    pub(crate) step: StepId,
    pub(crate) inputs: StepInputs,
    runs: usize,
}

/// The toy model on a backend of its own.
pub(crate) struct Rig {
    pub(crate) backend: ReferenceBackend,
    pub(crate) decode: Prepared,
    pub(crate) prefill: Prepared,
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::with(
            ReferenceOptions::default(),
            toy::decode(4),
            toy::prefill(16, 3),
        )
    }

    pub(crate) fn with(options: ReferenceOptions, decode: Plan, prefill: Plan) -> Self {
        let mut backend = ReferenceBackend::new(options);
        let groups = weight_groups(&[decode.clone(), prefill.clone()]).unwrap();
        backend
            .load(&groups, &Weights::seeded(&[&decode, &prefill], SEED))
            .unwrap();
        backend
            .alloc_state(&decode.states(), GEOMETRY.block_size, BLOCKS, SLOTS)
            .unwrap();
        let decode = prepare(&mut backend, decode);
        let prefill = prepare(&mut backend, prefill);
        Self {
            backend,
            decode,
            prefill,
        }
    }

    pub(crate) fn decode(&mut self, chunks: &[Chunk]) -> Result<Vec<Row>, BackendError> {
        run(&mut self.backend, &mut self.decode, chunks)
    }

    pub(crate) fn prefill(&mut self, chunks: &[Chunk]) -> Result<Vec<Row>, BackendError> {
        run(&mut self.backend, &mut self.prefill, chunks)
    }
}

pub(crate) fn prepare(backend: &mut ReferenceBackend, plan: Plan) -> Prepared {
    let step = backend.prepare(&plan).unwrap();
    Prepared {
        step,
        inputs: StepInputs::new(&plan),
        plan,
        runs: 0,
    }
}

/// Poisons the input block, fills it anew and runs the step.
pub(crate) fn run(
    backend: &mut ReferenceBackend,
    to: &mut Prepared,
    chunks: &[Chunk],
) -> Result<Vec<Row>, BackendError> {
    to.inputs.fill(if to.runs.is_multiple_of(2) {
        POISON_NAN
    } else {
        POISON_MIN
    });
    to.runs += 1;
    fill(&mut to.inputs, chunks)?;
    run_filled(backend, to)
}

/// Runs the step with the inputs as they are.
pub(crate) fn run_filled(
    backend: &mut ReferenceBackend,
    to: &mut Prepared,
) -> Result<Vec<Row>, BackendError> {
    let results = backend.run(to.step, &to.inputs)?;
    let live = to
        .inputs
        .get(InputKind::OutputRows)
        .iter()
        .filter(|row| **row != u32::MAX)
        .count();
    let (logits, tokens) = (
        results.f32s("logits").unwrap(),
        results.i32s("token").unwrap(),
    );
    let rows = logits.chunks_exact(VOCAB).zip(tokens).take(live);
    Ok(rows
        .map(|(l, token)| Row {
            logits: l.iter().map(|v| v.to_bits()).collect(),
            token: *token,
        })
        .collect())
}
