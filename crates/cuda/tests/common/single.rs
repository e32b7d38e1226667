//! Plans around one operation. Activations are rows of an embedding table, one for each token.
//! Rows are sequences of their own in a decode step, and one sequence in a prefill step; all of them are output rows.

use glim_plan::fuse::{FusePattern, fuse};
use glim_plan::sample::SampleParams;
use glim_plan::{
    Backend, BackendError, BufferId, CacheGeometry, GgmlType, InputExtents, InputKind, Op, Plan,
    PlanBuilder, Rows, StepId, StepInputs, StepKind, StepResults, weight_groups,
};
use glim_testkit::weights::Weights;

/// Builds such a plan.
pub(crate) struct Single {
    pub(crate) b: PlanBuilder,
    /// What is fused when the plan is done.
    pub(crate) patterns: Vec<FusePattern>,
    step: StepKind,
    weights: Weights,
}

impl Single {
    /// `vocab`: tokens of the mask; `forced`: columns of the input that serves as a choice.
    pub(crate) fn new(step: StepKind, vocab: usize, forced: usize) -> Self {
        let geometry = CacheGeometry {
            block_size: 4,
            max_blocks: 64,
        };
        let mut b = PlanBuilder::new("single", step, geometry);
        b.extents(InputExtents {
            outputs: step.tokens(),
            vocab_size: vocab,
            forced,
        });
        b.input(InputKind::CuSeqlens);
        Self {
            b,
            patterns: Vec::new(),
            step,
            weights: Weights::default(),
        }
    }

    pub(crate) fn weight(
        &mut self,
        name: &str,
        ty: GgmlType,
        shape: &[usize],
        bytes: Vec<u8>,
    ) -> BufferId {
        self.weights.insert(name, ty, shape, bytes);
        self.b.weight(name, ty, shape)
    }

    /// An F32 weight.
    pub(crate) fn values(&mut self, name: &str, shape: &[usize], values: &[f32]) -> BufferId {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.weight(name, GgmlType::F32, shape, bytes)
    }

    /// An activation of `width` elements a row: row `t` of `table` for token `t`.
    pub(crate) fn activation(&mut self, width: usize, table: &[f32]) -> BufferId {
        let table = self.values("table", &[table.len() / width, width], table);
        let shape = [self.step.tokens(), width];
        let out = self.b.temp("x", GgmlType::F32, &shape, Rows::Tokens);
        let tokens = self.b.input(InputKind::Tokens);
        let embed = Op::Embed {
            tokens,
            carry: None,
            table,
            out,
        };
        self.b.op("embed", embed);
        out
    }

    /// Its output rows.
    #[allow(dead_code, reason = "not every test looks at output rows")]
    pub(crate) fn outputs(&mut self, x: BufferId, width: usize) -> BufferId {
        let shape = [self.step.tokens(), width];
        let out = self.b.temp("rows", GgmlType::F32, &shape, Rows::Outputs);
        let output_rows = self.b.input(InputKind::OutputRows);
        let select = Op::SelectRows {
            x,
            output_rows,
            out,
        };
        self.b.op("select", select);
        out
    }

    /// A result with a row for each token or output row.
    pub(crate) fn result(
        &mut self,
        name: &str,
        ty: GgmlType,
        width: usize,
        rows: Rows,
    ) -> BufferId {
        let shape = [self.step.tokens(), width];
        self.b.result(name, ty, &shape, rows)
    }

    /// Prepares the plan on a backend.
    pub(crate) fn on(self, mut backend: Box<dyn Backend>) -> Session {
        let mut plan = self.b.finish();
        fuse(&mut plan, &self.patterns);
        for pattern in &self.patterns {
            let fused = |op: &Op| matches!(op, Op::Fused { name, .. } if *name == pattern.name);
            assert!(plan.ops.iter().any(|node| fused(&node.op)), "{pattern:?}");
        }
        let groups = weight_groups(std::slice::from_ref(&plan)).unwrap();
        backend.load(&groups, &self.weights).unwrap();
        backend.alloc_state(&[], 4, 4, 4).unwrap();
        let step = backend.prepare(&plan).unwrap();
        Session {
            backend,
            plan,
            step,
        }
    }
}

/// A prepared plan.
pub(crate) struct Session {
    backend: Box<dyn Backend>,
    plan: Plan,
    step: StepId,
}

/// What a step is about: tokens, and what belongs to each row.
#[derive(Default, Clone)]
pub(crate) struct Inputs {
    pub(crate) tokens: Vec<i32>,
    pub(crate) forced: Vec<i32>,
    pub(crate) draws: Vec<SampleParams>,
    pub(crate) masks: Vec<u32>,
}

impl Session {
    pub(crate) fn run(&mut self, inputs: &Inputs) -> Result<StepResults, BackendError> {
        let mut block = StepInputs::new(&self.plan);
        let n = inputs.tokens.len() as u32;
        let mut set = |kind, words: Vec<u32>| {
            if block.has(kind) {
                block.set(kind, words).unwrap();
            }
        };
        let words = |values: &[i32]| values.iter().map(|v| *v as u32).collect::<Vec<u32>>();
        let draws = &inputs.draws;
        set(InputKind::Tokens, words(&inputs.tokens));
        set(InputKind::ForcedTopk, words(&inputs.forced));
        let (ends, positions) = match self.plan.step {
            StepKind::Decode { .. } => ((0..=n).collect(), vec![3; n as usize]),
            StepKind::Prefill { .. } => (vec![0, n], (0..n).collect()),
        };
        set(InputKind::CuSeqlens, ends);
        set(
            InputKind::Positions,
            match draws.is_empty() {
                true => positions,
                false => draws.iter().map(|d| d.position - 1).collect(),
            },
        );
        set(InputKind::OutputRows, (0..n).collect());
        let of_draws = |get: fn(&SampleParams) -> u32| draws.iter().map(get).collect::<Vec<u32>>();
        set(
            InputKind::Temperature,
            of_draws(|d| d.temperature.to_bits()),
        );
        set(InputKind::TopK, of_draws(|d| d.top_k as u32));
        set(InputKind::TopP, of_draws(|d| d.top_p.to_bits()));
        set(InputKind::MinP, of_draws(|d| d.min_p.to_bits()));
        let seeds = draws.iter();
        let seeds = seeds.flat_map(|d| [d.seed as u32, (d.seed >> 32) as u32, d.choice]);
        set(InputKind::Seeds, seeds.collect());
        set(InputKind::TokenMask, inputs.masks.clone());
        self.backend.run(self.step, &block)
    }
}
