//! Steps over cached rows: sequences whose rows were appended before the step that is looked at.
//!
//! Activations are columns of F32 weights, chosen by one-hot rows of a table: each token has values of its own, and both backends
//! get them exactly.

use std::borrow::Cow;
use std::collections::HashMap;

use glim_plan::{
    Backend, BackendError, BufferId, BufferKind, CacheGeometry, Cols, GgmlType, InputExtents,
    InputKind, Op, Paging, Plan, PlanBuilder, Precision, Rows, StateDecl, StateKind, StepId,
    StepInputs, StepKind, StepResults, WeightData, WeightSource, weight_groups,
};

const F32: GgmlType = GgmlType::F32;

/// Rows that one step appends.
const APPENDED: usize = 256;

const BLOCK_SIZE: usize = 16;

#[derive(Default)]
struct Weights(HashMap<String, (Vec<usize>, Vec<u8>)>);

impl WeightSource for Weights {
    fn weight(&self, name: &str) -> Result<WeightData<'_>, BackendError> {
        let (shape, bytes) = &self.0[name];
        Ok(WeightData {
            ty: F32,
            shape: shape.clone(),
            bytes: Cow::Borrowed(bytes),
        })
    }
}

impl Weights {
    fn add(&mut self, name: &str, shape: &[usize], values: &[f32]) {
        assert_eq!(shape.iter().product::<usize>(), values.len(), "{name}");
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.0.insert(name.into(), (shape.to_vec(), bytes));
    }
}

/// A row of the step: its sequence, its position there, and the token that says what its activations are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    pub(crate) sequence: usize,
    pub(crate) position: usize,
    pub(crate) token: usize,
}

/// One row of each sequence of so many positions, the last; row `i` is token `i`.
pub(crate) fn last_rows(lens: &[usize]) -> Vec<Row> {
    let row = |(sequence, len): (usize, &usize)| Row {
        sequence,
        position: len - 1,
        token: sequence,
    };
    lens.iter().enumerate().map(row).collect()
}

/// Builds a step whose rows see cached rows.
pub(crate) struct Paged {
    pub(crate) b: PlanBuilder,
    step: StepKind,
    geometry: CacheGeometry,
    lens: Vec<usize>,
    tokens: usize,
    weights: Weights,
    /// A plan that appends, and the name of its state.
    fills: Vec<Plan>,
}

impl Paged {
    /// `lens`: positions of each sequence; `tokens`: how many there are; `forced`: columns of the input that serves as a choice.
    pub(crate) fn new(step: StepKind, lens: &[usize], tokens: usize, forced: usize) -> Self {
        let longest = lens.iter().max().copied().unwrap_or(1);
        Self::with(step, lens, tokens, forced, longest)
    }

    /// For rows at positions below `most` that read no cache.
    pub(crate) fn of_positions(step: StepKind, lens: &[usize], most: usize) -> Self {
        Self::with(step, lens, lens.len(), 0, most)
    }

    fn with(step: StepKind, lens: &[usize], tokens: usize, forced: usize, longest: usize) -> Self {
        let geometry = CacheGeometry {
            block_size: BLOCK_SIZE,
            // A plan has room for more than its longest row.
            max_blocks: longest.div_ceil(BLOCK_SIZE) + 3,
        };
        let mut b = PlanBuilder::new("paged", step, geometry);
        b.extents(InputExtents {
            forced,
            ..InputExtents::default()
        });
        b.input(InputKind::CuSeqlens);
        let mut weights = Weights::default();
        let mut one_hot = vec![0.0; tokens * tokens];
        one_hot
            .iter_mut()
            .step_by(tokens + 1)
            .for_each(|v| *v = 1.0);
        weights.add("one_hot", &[tokens, tokens], &one_hot);
        Self {
            b,
            step,
            geometry,
            lens: lens.to_vec(),
            tokens,
            weights,
            fills: Vec::new(),
        }
    }

    pub(crate) fn max_positions(&self) -> usize {
        self.geometry.max_positions()
    }

    /// A buffer `[T, axes…]` of the step.
    pub(crate) fn result(&mut self, name: &str, ty: GgmlType, axes: &[usize]) -> BufferId {
        let shape = [&[self.step.tokens()], axes].concat();
        self.b.result(name, ty, &shape, Rows::Tokens)
    }

    fn temp(&mut self, name: &str, axes: &[usize]) -> BufferId {
        let shape = [&[self.step.tokens()], axes].concat();
        self.b.temp(name, F32, &shape, Rows::Tokens)
    }

    /// An activation `[T, width]`: row `t` of `values` for token `t`.
    pub(crate) fn flat(&mut self, name: &str, width: usize, values: &[f32]) -> BufferId {
        let rows = values.len() / width;
        let table = format!("{name}.table");
        self.weights.add(&table, &[rows, width], values);
        let table = self.b.weight(&table, F32, &[rows, width]);
        let out = self.temp(name, &[width]);
        let tokens = self.b.input(InputKind::Tokens);
        let embed = Op::Embed {
            tokens,
            carry: None,
            table,
            out,
        };
        self.b.op(&format!("{name}.embed"), embed);
        out
    }

    /// An activation `[T, axes…]`: row `t` of `values` for token `t`.
    pub(crate) fn activation(&mut self, name: &str, axes: &[usize], values: &[f32]) -> BufferId {
        let (width, tokens) = (axes.iter().product::<usize>(), self.tokens);
        let table = self.b.weight("one_hot", F32, &[tokens, tokens]);
        let one_hot = self.temp(&format!("{name}.one_hot"), &[tokens]);
        let embed = Op::Embed {
            tokens: self.b.input(InputKind::Tokens),
            carry: None,
            table,
            out: one_hot,
        };
        self.b.op(&format!("{name}.embed"), embed);
        // A product with a one-hot row is a column.
        let columns: Vec<f32> = (0..width * tokens)
            .map(|i| values[i % tokens * width + i / tokens])
            .collect();
        let weight = format!("{name}.columns");
        self.weights.add(&weight, &[width, tokens], &columns);
        let weight = self.b.weight(&weight, F32, &[width, tokens]);
        let out = self.temp(name, axes);
        let linear = Op::Linear {
            x: one_hot,
            weights: vec![weight],
            outs: vec![out],
            precision: Precision::F32,
        };
        self.b.op(&format!("{name}.column"), linear);
        out
    }

    /// A paged state that holds these rows of `width` values, sequence after sequence. The last of each is appended by the step
    /// itself, by the row that is token `i` of sequence `i`; before, something else lies there.
    pub(crate) fn state(&mut self, name: &str, width: usize, values: &[f32]) -> BufferId {
        let rows: usize = self.lens.iter().sum();
        let table = format!("{name}.rows");
        self.weights.add(&table, &[rows, width], values);
        let step = StepKind::Prefill {
            tokens: APPENDED,
            sequences: 1,
        };
        let mut b = PlanBuilder::new(&format!("{name}.fill"), step, self.geometry);
        b.input(InputKind::CuSeqlens);
        let x = b.temp("x", F32, &[APPENDED, width], Rows::Tokens);
        let embed = Op::Embed {
            tokens: b.input(InputKind::Tokens),
            carry: None,
            table: b.weight(&table, F32, &[rows, width]),
            out: x,
        };
        b.op("embed", embed);
        let append = Op::CacheAppend {
            parts: vec![all(x, width)],
            slots: b.input(InputKind::SlotMapping),
            state: b.paged_state(name, F32, width),
        };
        b.op("append", append);
        self.fills.push(b.finish());

        // Of token `i`: the last row of sequence `i`.
        let mut last = Vec::with_capacity(self.tokens * width);
        let mut end = 0;
        for len in &self.lens {
            end += len;
            last.extend_from_slice(&values[(end - 1) * width..][..width]);
        }
        last.resize(self.tokens * width, 0.0);
        let own = self.flat(&format!("{name}.own"), width, &last);
        let state = self.b.paged_state(name, F32, width);
        let append = Op::CacheAppend {
            parts: vec![all(own, width)],
            slots: self.b.input(InputKind::SlotMapping),
            state,
        };
        self.b.op(&format!("{name}.append"), append);
        state
    }

    pub(crate) fn paging(&mut self) -> Paging {
        Paging {
            positions: self.b.input(InputKind::Positions),
            cu_seqlens: self.b.input(InputKind::CuSeqlens),
            block_tables: self.b.input(InputKind::BlockTables),
        }
    }

    /// Prepares the step on a backend and appends the sequences' rows.
    pub(crate) fn on(self, mut backend: Box<dyn Backend>) -> Session {
        let plan = self.b.finish();
        let plans: Vec<&Plan> = self.fills.iter().chain([&plan]).collect();
        let groups = weight_groups(plans.iter().copied()).unwrap();
        backend.load(&groups, &self.weights).unwrap();
        let tables = Tables::new(&self.lens, self.geometry);
        let decls: Vec<StateDecl> = self.fills.iter().flat_map(state_of).collect();
        let slots = self.lens.len() + 1;
        backend
            .alloc_state(&decls, BLOCK_SIZE, tables.blocks, slots)
            .unwrap();
        for fill in &self.fills {
            let step = backend.prepare(fill).unwrap();
            let mut first = 0;
            for (sequence, len) in self.lens.iter().enumerate() {
                for start in (0..*len).step_by(APPENDED) {
                    let positions = start..(start + APPENDED).min(*len);
                    let mut inputs = StepInputs::new(fill);
                    let ends = [0, positions.len() as u32];
                    inputs.set(InputKind::CuSeqlens, ends).unwrap();
                    let tokens = positions.clone().map(|p| match p + 1 == *len {
                        true => first as u32,
                        false => (first + p) as u32,
                    });
                    inputs.set(InputKind::Tokens, tokens).unwrap();
                    let slots = positions.map(|p| tables.slot(sequence, p) as u32);
                    inputs.set(InputKind::SlotMapping, slots).unwrap();
                    backend.run(step, &inputs).unwrap();
                }
                first += len;
            }
        }
        let step = backend.prepare(&plan).unwrap();
        Session {
            backend,
            plan,
            step,
            tables,
            lens: self.lens,
        }
    }
}

/// All columns of a buffer.
fn all(buffer: BufferId, len: usize) -> Cols {
    Cols {
        buffer,
        start: 0,
        len,
    }
}

fn state_of(plan: &Plan) -> Vec<StateDecl> {
    let states = plan.states();
    assert!(
        states
            .iter()
            .all(|s| matches!(s.kind, StateKind::Paged { .. }))
    );
    states
}

/// Blocks of each sequence, scattered over all of them.
struct Tables {
    blocks: usize,
    tables: Vec<Vec<usize>>,
}

impl Tables {
    fn new(lens: &[usize], geometry: CacheGeometry) -> Self {
        let needed: Vec<usize> = lens.iter().map(|n| n.div_ceil(BLOCK_SIZE)).collect();
        // A prime, so that multiples of a smaller number visit every block once.
        let is_prime = |n: &usize| {
            (2..*n)
                .take_while(|d| d * d <= *n)
                .all(|d| !n.is_multiple_of(d))
        };
        let least = needed.iter().sum::<usize>().max(7) + 1;
        let blocks = (least..).find(is_prime).unwrap_or(least);
        let stride = blocks * 3 / 8 + 1;
        let mut next = 0;
        let tables = needed.into_iter().map(|n| {
            let table = (next + 1..=next + n).map(|i| i * stride % blocks);
            next += n;
            let mut table: Vec<usize> = table.collect();
            table.resize(geometry.max_blocks, usize::MAX);
            table
        });
        Self {
            blocks,
            tables: tables.collect(),
        }
    }

    fn slot(&self, sequence: usize, position: usize) -> usize {
        self.tables[sequence][position / BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
    }
}

/// A prepared step.
pub(crate) struct Session {
    backend: Box<dyn Backend>,
    plan: Plan,
    step: StepId,
    tables: Tables,
    lens: Vec<usize>,
}

impl Session {
    /// Runs the step with these rows, sequence after sequence, and with their columns of the input that serves as a choice.
    pub(crate) fn run(
        &mut self,
        rows: &[Row],
        forced: &[Vec<i32>],
    ) -> Result<StepResults, BackendError> {
        let mut inputs = StepInputs::new(&self.plan);
        // What a step does not set must not be looked at.
        inputs.fill(0x7fc0_dead);
        let mut set = |kind, words: Vec<u32>| {
            if inputs.has(kind) {
                inputs.set(kind, words).unwrap();
            }
        };
        let sequences: Vec<&[Row]> = rows.chunk_by(|a, b| a.sequence == b.sequence).collect();
        set(
            InputKind::Tokens,
            rows.iter().map(|r| r.token as u32).collect(),
        );
        set(
            InputKind::Positions,
            rows.iter().map(|r| r.position as u32).collect(),
        );
        let slots = rows.iter().map(|r| {
            let appends = r.token == r.sequence && r.position + 1 == self.lens[r.sequence];
            match appends {
                true => self.tables.slot(r.sequence, r.position) as u32,
                false => u32::MAX,
            }
        });
        set(InputKind::SlotMapping, slots.collect());
        let mut end = 0;
        let ends = sequences.iter().map(|rows| {
            end += rows.len() as u32;
            end
        });
        set(InputKind::CuSeqlens, [0].into_iter().chain(ends).collect());
        let tables = sequences
            .iter()
            .flat_map(|rows| &self.tables.tables[rows[0].sequence]);
        // No block is -1.
        let tables = tables.map(|block| u32::try_from(*block).unwrap_or(u32::MAX));
        set(InputKind::BlockTables, tables.collect());
        let forced = forced.iter().flatten().map(|s| *s as u32);
        set(InputKind::ForcedTopk, forced.collect());
        self.backend.run(self.step, &inputs)
    }

    /// Elements of a row of a result.
    pub(crate) fn width(&self, name: &str) -> usize {
        let mut buffers = self.plan.buffers_where(|k| *k == BufferKind::Result);
        let found = buffers.find(|(_, b)| b.name == name);
        found.map_or(0, |(_, b)| b.row_elements())
    }
}
