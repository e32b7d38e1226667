//! Which rows a step has: sequences, their positions and blocks, and the batches that a case is run with.

use glim_plan::{CacheGeometry, InputKind, Plan, StepInputs, StepKind};

use super::blocks::Random;

/// Blocks of a few tokens, so that short sequences cross borders.
pub(super) const GEOMETRY: CacheGeometry = CacheGeometry {
    block_size: 4,
    max_blocks: 5,
};

/// Rows that feed an operation, by name for the report.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    pub(super) name: &'static str,
    pub(super) step: StepKind,
    /// First position and number of rows of each sequence; the positions before the first are run as history.
    pub(super) sequences: Vec<(usize, usize)>,
}

impl Layout {
    /// One row of one sequence, alone in its plan.
    pub(super) fn one() -> Self {
        Self {
            name: "1 row",
            step: StepKind::Decode { rows: 1 },
            sequences: vec![(6, 1)],
        }
    }

    /// Fewer rows than the capacity, at different depths.
    pub(super) fn decode() -> Self {
        Self {
            name: "decode 3 of 4",
            step: StepKind::Decode { rows: 4 },
            sequences: vec![(9, 1), (0, 1), (18, 1)],
        }
    }

    /// An odd number of rows of one sequence, from its beginning.
    pub(super) fn odd() -> Self {
        Self {
            name: "7 rows",
            step: StepKind::Prefill {
                tokens: 7,
                sequences: 1,
            },
            sequences: vec![(0, 7)],
        }
    }

    /// Several sequences of different length, some with history, in less than the capacity.
    pub(super) fn ragged() -> Self {
        Self {
            name: "ragged 5 + 1 + 6",
            step: StepKind::Prefill {
                tokens: 16,
                sequences: 4,
            },
            sequences: vec![(0, 5), (9, 1), (3, 6)],
        }
    }

    /// Every row, sequence, block and position that the plan and the cache have room for.
    pub(super) fn full() -> Self {
        let n = GEOMETRY.max_positions();
        Self {
            name: "capacity full",
            step: StepKind::Prefill {
                tokens: 2 * n,
                sequences: 2,
            },
            sequences: vec![(0, n), (0, n)],
        }
    }

    /// All rows, history included; a row's index here is its token id.
    pub(super) fn rows(&self) -> Vec<Row> {
        let rows = |(sequence, (start, len)): (usize, &(usize, usize))| {
            (0..start + len).map(move |position| Row {
                sequence,
                position,
                token: 0,
            })
        };
        let rows = self.sequences.iter().enumerate().flat_map(rows);
        rows.enumerate()
            .map(|(i, row)| Row {
                token: i as i32,
                ..row
            })
            .collect()
    }

    /// The rows that the measured step runs.
    pub(super) fn batch(&self) -> Vec<Row> {
        let rows = self.rows().into_iter();
        rows.filter(|r| r.position >= self.sequences[r.sequence].0)
            .collect()
    }

    /// The steps that bring the earlier rows into the cache.
    pub(super) fn history(&self) -> Vec<Vec<Row>> {
        let rows = self.rows().into_iter();
        let rows: Vec<Row> = rows
            .filter(|r| r.position < self.sequences[r.sequence].0)
            .collect();
        match self.step {
            StepKind::Decode { .. } => rows.into_iter().map(|r| vec![r]).collect(),
            StepKind::Prefill { tokens, .. } => rows.chunks(tokens).map(<[Row]>::to_vec).collect(),
        }
    }

    /// Blocks that the backend allocates: as many as all sequences can have, and one that nobody has.
    pub(super) fn blocks(&self) -> usize {
        self.sequences.len() * GEOMETRY.max_blocks + 1
    }

    /// Sequence slots: one more than sequences.
    pub(super) fn slots(&self) -> usize {
        self.sequences.len() + 1
    }

    /// A sequence's blocks: scattered over all of them, so that neighbours in a table are far apart in memory.
    fn table(&self, sequence: usize) -> Vec<i32> {
        let blocks = self.blocks();
        let stride = (2..).find(|s| coprime(*s, blocks)).unwrap_or(1);
        let (start, len) = self.sequences[sequence];
        let used = (start + len).div_ceil(GEOMETRY.block_size);
        (0..GEOMETRY.max_blocks)
            .map(|i| match i < used {
                true => (((sequence * GEOMETRY.max_blocks + i + 1) * stride) % blocks) as i32,
                false => -1,
            })
            .collect()
    }
}

fn coprime(a: usize, b: usize) -> bool {
    if b == 0 { a == 1 } else { coprime(b, a % b) }
}

/// One row of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Row {
    pub(super) sequence: usize,
    pub(super) position: usize,
    pub(super) token: i32,
}

/// What inputs hold besides rows.
#[derive(Debug, Clone, Default)]
pub(super) struct Extras {
    /// Columns of `forced_topk` by token id; all −1 where there is no row.
    pub(super) forced: Vec<Vec<i32>>,
    /// Rows whose token is a multiple of this are not kept in paged state.
    pub(super) drop_every: Option<i32>,
}

/// The rows that are output rows: in another order than the rows, and not all of them.
pub(super) fn output_rows(rows: usize, capacity: usize) -> Vec<usize> {
    let mut outputs: Vec<usize> = (0..rows).rev().filter(|r| rows < 3 || r % 3 != 1).collect();
    outputs.truncate(capacity);
    outputs
}

/// Describes rows (sequence after sequence, positions ascending) to a plan. The block holds garbage
/// until then, so that a step which keeps old inputs, or looks at pads, shows.
pub(super) fn fill(plan: &Plan, layout: &Layout, extras: &Extras, rows: &[Row]) -> StepInputs {
    let mut inputs = StepInputs::new(plan);
    inputs.fill(0x7fc0_dead);
    let mut give = |kind: InputKind, words: Vec<u32>| {
        if inputs.has(kind) {
            let filled = inputs.set(kind, words);
            filled.unwrap_or_else(|error| panic!("{error}"));
        }
    };
    let ints = |values: Vec<i32>| values.into_iter().map(|v| v as u32).collect::<Vec<u32>>();
    let sequences: Vec<&[Row]> = rows.chunk_by(|a, b| a.sequence == b.sequence).collect();
    let slot = |r: &Row| {
        let block = layout.table(r.sequence)[r.position / GEOMETRY.block_size];
        match extras.drop_every {
            Some(n) if r.token % n == 0 => -1,
            _ => block * GEOMETRY.block_size as i32 + (r.position % GEOMETRY.block_size) as i32,
        }
    };
    give(
        InputKind::Tokens,
        ints(rows.iter().map(|r| r.token).collect()),
    );
    give(
        InputKind::Positions,
        ints(rows.iter().map(|r| r.position as i32).collect()),
    );
    give(
        InputKind::SlotMapping,
        ints(rows.iter().map(slot).collect()),
    );
    let mut ends = vec![0];
    let mut end = 0;
    ends.extend(sequences.iter().map(|s| {
        end += s.len() as i32;
        end
    }));
    give(InputKind::CuSeqlens, ints(ends));
    let tables = sequences.iter().flat_map(|s| layout.table(s[0].sequence));
    give(InputKind::BlockTables, ints(tables.collect()));
    // In another order than the sequences.
    let slots = sequences
        .iter()
        .map(|s| (layout.slots() - 1 - s[0].sequence) as i32);
    give(InputKind::SequenceSlots, ints(slots.collect()));

    let width = |kind| {
        plan.input(kind)
            .map_or(0, |id| plan.buffer(id).row_elements())
    };
    let forced = width(InputKind::ForcedTopk);
    let forced = rows.iter().flat_map(|r| {
        let row = usize::try_from(r.token)
            .ok()
            .and_then(|t| extras.forced.get(t));
        row.cloned().unwrap_or_else(|| vec![-1; forced])
    });
    give(InputKind::ForcedTopk, ints(forced.collect()));

    let capacity = plan
        .input(InputKind::OutputRows)
        .map_or(0, |id| plan.buffer(id).elements());
    let outputs = output_rows(rows.len(), capacity);
    give(
        InputKind::OutputRows,
        ints(outputs.iter().map(|r| *r as i32).collect()),
    );
    // Parameters of a draw follow from the row alone.
    let draws = outputs.iter().map(|r| {
        let row = &rows[*r];
        Draw::of(row.sequence * 64 + row.position)
    });
    let draws: Vec<Draw> = draws.collect();
    let f32s = |get: fn(&Draw) -> f32| draws.iter().map(|d| get(d).to_bits()).collect();
    give(InputKind::Temperature, f32s(|d| d.temperature));
    give(InputKind::TopP, f32s(|d| d.top_p));
    give(InputKind::MinP, f32s(|d| d.min_p));
    give(InputKind::TopK, draws.iter().map(|d| d.top_k).collect());
    give(
        InputKind::Seeds,
        draws.iter().flat_map(|d| d.seed).collect(),
    );
    let words = width(InputKind::TokenMask);
    let mask = |d: &Draw| {
        let mut random = d.random.clone();
        (0..words)
            .map(|_| random.word() as u32 | 1 << random.below(32))
            .collect::<Vec<u32>>()
    };
    give(InputKind::TokenMask, draws.iter().flat_map(mask).collect());
    inputs
}

struct Draw {
    temperature: f32,
    top_k: u32,
    top_p: f32,
    min_p: f32,
    seed: [u32; 3],
    random: Random,
}

impl Draw {
    /// Greedy, plain, and cut in three ways, in turn.
    fn of(row: usize) -> Self {
        let mut random = Random::named(row as u64, "draw");
        let pick = |values: [f32; 5]| values[row % 5];
        Self {
            temperature: pick([0.0, 1.0, 0.7, 1.3, 1.0]),
            top_k: pick([0.0, 0.0, 3.0, 0.0, 0.0]) as u32,
            top_p: pick([1.0, 1.0, 1.0, 0.8, 1.0]),
            min_p: pick([0.0, 0.0, 0.0, 0.0, 0.2]),
            seed: [random.word() as u32, random.word() as u32, row as u32 % 3],
            random,
        }
    }
}
