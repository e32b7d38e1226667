//! Feeds any values to an operation: a plan's only way in is token ids, so each activation is an embedding table whose row `t`
//! holds row `t` of the values, and an identity product where it needs more axes. Both are exact.

use glim_plan::reference::{ReferenceBackend, ReferenceOptions};
use glim_plan::{
    Backend, BufferId, CacheGeometry, GgmlType, InputExtents, InputKind, Op, Paging, Plan,
    PlanBuilder, Precision, Rows, StepInputs, StepKind, StepResults, check, weight_groups,
};

use super::weights::Weights;

/// Blocks of paged state; every position of the one sequence has its block, in descending order.
const BLOCKS: usize = 6;
pub(crate) const GEOMETRY: CacheGeometry = CacheGeometry {
    block_size: 4,
    max_blocks: BLOCKS,
};

/// Builds a plan for one sequence of `rows` rows at positions 0, 1, 2, …
pub(crate) struct Feed {
    pub(crate) b: PlanBuilder,
    pub(crate) rows: usize,
    weights: Weights,
}

impl Feed {
    pub(crate) fn new(rows: usize) -> Self {
        let b = PlanBuilder::new(
            "feed",
            StepKind::Prefill {
                tokens: rows,
                sequences: 1,
            },
            GEOMETRY,
        );
        Self {
            b,
            rows,
            weights: Weights::default(),
        }
    }

    /// Output rows, and the vocabulary of the token mask.
    pub(crate) fn outputs(&mut self, outputs: usize, vocab_size: usize) {
        self.b.extents(InputExtents {
            outputs,
            vocab_size,
            ..InputExtents::default()
        });
    }

    pub(crate) fn weight(&mut self, name: &str, shape: &[usize], values: &[f32]) -> BufferId {
        self.weights.insert(name, shape, values.to_vec());
        self.b.weight(name, GgmlType::F32, shape)
    }

    /// An activation `[rows, axes…]` with these values.
    pub(crate) fn values(&mut self, name: &str, axes: &[usize], values: &[f32]) -> BufferId {
        let width = axes.iter().product();
        let table = self.weight(&format!("{name}.table"), &[self.rows, width], values);
        let tokens = self.b.input(InputKind::Tokens);
        let flat = self.b.temp(
            &format!("{name}.flat"),
            GgmlType::F32,
            &[self.rows, width],
            Rows::Tokens,
        );
        self.b.op(
            &format!("{name}.embed"),
            Op::Embed {
                tokens,
                carry: None,
                table,
                out: flat,
            },
        );
        if axes.len() == 1 {
            return flat;
        }
        let mut one = vec![0.0; width * width];
        one.iter_mut().step_by(width + 1).for_each(|v| *v = 1.0);
        let one = self.weight(&format!("{name}.one"), &[width, width], &one);
        let out = self.b.temp(
            name,
            GgmlType::F32,
            &[&[self.rows], axes].concat(),
            Rows::Tokens,
        );
        let op = Op::Linear {
            x: flat,
            weights: vec![one],
            outs: vec![out],
            precision: Precision::F32,
        };
        self.b.op(&format!("{name}.shape"), op);
        out
    }

    /// A result `[rows, axes…]` named `out`.
    pub(crate) fn out(&mut self, axes: &[usize]) -> BufferId {
        self.b.result(
            "out",
            GgmlType::F32,
            &[&[self.rows], axes].concat(),
            Rows::Tokens,
        )
    }

    /// An i32 result `[rows, width]` named `name`.
    pub(crate) fn out_i32(&mut self, name: &str, width: usize) -> BufferId {
        self.b
            .result(name, GgmlType::I32, &[self.rows, width], Rows::Tokens)
    }

    pub(crate) fn paging(&mut self) -> Paging {
        Paging {
            positions: self.b.input(InputKind::Positions),
            cu_seqlens: self.b.input(InputKind::CuSeqlens),
            block_tables: self.b.input(InputKind::BlockTables),
        }
    }

    pub(crate) fn run(self) -> StepResults {
        self.run_with(|_| {})
    }

    /// Runs the plan; `set` fills what is not of one sequence at positions 0, 1, 2, …
    pub(crate) fn run_with(self, set: impl FnOnce(&mut StepInputs)) -> StepResults {
        let plan: Plan = self.b.finish();
        check(&plan).unwrap();
        let mut backend = ReferenceBackend::new(ReferenceOptions {
            poison: true,
            ..ReferenceOptions::default()
        });
        backend
            .load(
                &weight_groups(std::slice::from_ref(&plan)).unwrap(),
                &self.weights,
            )
            .unwrap();
        backend
            .alloc_state(&plan.states(), GEOMETRY.block_size, BLOCKS, 1)
            .unwrap();
        let step = backend.prepare(&plan).unwrap();
        let mut inputs = StepInputs::new(&plan);
        let rows = self.rows as i32;
        let block = |p: i32| BLOCKS as i32 - 1 - p / GEOMETRY.block_size as i32;
        let slot = |p: i32| block(p) * GEOMETRY.block_size as i32 + p % GEOMETRY.block_size as i32;
        let outputs = inputs.get(InputKind::OutputRows).len() as i32;
        let mut give = |kind, values: Vec<i32>| {
            if inputs.has(kind) {
                inputs.set_i32(kind, values).unwrap();
            }
        };
        give(InputKind::Tokens, (0..rows).collect());
        give(InputKind::Positions, (0..rows).collect());
        give(InputKind::SlotMapping, (0..rows).map(slot).collect());
        give(InputKind::CuSeqlens, vec![0, rows]);
        give(InputKind::BlockTables, (0..BLOCKS as i32).rev().collect());
        give(InputKind::OutputRows, (0..rows.min(outputs)).collect());
        set(&mut inputs);
        backend.run(step, &inputs).unwrap()
    }
}
