//! Memory of the CPU backend, and the [`Backend`] contract over it.

use std::collections::HashMap;
use std::sync::Arc;

use glim_plan::collective::Alone;
use glim_plan::fuse::ADD_RMS_NORM;
use glim_plan::{
    Allocated, Arrangement, Backend, BackendError, Caps, Communicator, GgmlType, LiveBounds,
    LiveStep, Plan, Profile, ReadTarget, Resident, ResultLayout, StateDecl, StateKind, StepId,
    StepInputs, StepResults, WeightGroup, WeightSource, arrange, bind, check, check_arrangement,
};

use crate::detect::Isa;
use crate::matmul::q8::Q8;
use crate::matmul::{Kernels, Math, Scratch, Weight, WeightError};
use crate::moe::ExpertBuffers;
use crate::pool::Pool;
use crate::step::{Clock, Parts, Run, Workers};

/// How the backend runs.
#[derive(Debug, Clone)]
pub struct CpuOptions {
    /// Arithmetic.
    pub math: Math,
    /// Threads; `None`: as many as the process may use.
    pub threads: Option<usize>,
    /// Kernels; `None`: the best that this machine has.
    pub isa: Option<Isa>,
    /// Fill every output with NaN before its operation; one that still holds NaN afterwards is an error.
    pub poison: bool,
    /// The other ranks; `None`: there are none.
    pub ranks: Option<Arc<dyn Communicator>>,
}

impl Default for CpuOptions {
    fn default() -> Self {
        Self {
            math: Math::Fast,
            threads: None,
            isa: None,
            poison: false,
            ranks: None,
        }
    }
}

/// A state's rows.
pub(crate) struct State {
    decl: StateDecl,
    pub(crate) rows: Vec<f32>,
}

impl State {
    /// Elements of a row.
    pub(crate) fn width(&self) -> usize {
        self.decl.shape.iter().product()
    }
}

pub(crate) struct Prepared {
    pub(crate) plan: Plan,
    pub(crate) arrangement: Arrangement,
    pub(crate) inputs: StepInputs,
    pub(crate) results: Arc<ResultLayout>,
    /// By buffer: index of the weight, state or carry that it is.
    pub(crate) bound: Vec<usize>,
    /// By buffer: where it lies in the arena, in words.
    pub(crate) starts: Vec<Option<usize>>,
    /// By buffer: a row of scores that sees at most this many positions is read by nobody.
    pub(crate) selects: Vec<usize>,
}

/// Weights, states and arena of one rank, and the threads that work on them.
pub struct CpuBackend {
    kernels: Kernels,
    poison: bool,
    ranks: Arc<dyn Communicator>,
    pool: Pool,
    weights: Vec<Weight>,
    weight_index: HashMap<String, usize>,
    states: Vec<State>,
    state_index: HashMap<String, usize>,
    carries: Vec<Vec<u32>>,
    carry_index: HashMap<String, usize>,
    block_size: usize,
    blocks: usize,
    sequence_slots: usize,
    steps: Vec<Prepared>,
    arena: Vec<u32>,
    /// Buffers that steps use and keep, so that a step allocates nothing of size.
    q8: Q8,
    scratch: Vec<Scratch>,
    experts: ExpertBuffers,
    room: Vec<f32>,
}

impl CpuBackend {
    /// A backend without weights.
    pub fn new(options: CpuOptions) -> Self {
        let available = std::thread::available_parallelism().map_or(1, usize::from);
        let pool = Pool::new(options.threads.unwrap_or(available));
        let isa = options.isa.unwrap_or_else(Isa::detect);
        Self {
            kernels: Kernels {
                isa,
                math: options.math,
            },
            poison: options.poison,
            ranks: options.ranks.unwrap_or_else(|| Arc::new(Alone)),
            scratch: (0..pool.threads()).map(|_| Scratch::default()).collect(),
            pool,
            weights: Vec::new(),
            weight_index: HashMap::new(),
            states: Vec::new(),
            state_index: HashMap::new(),
            carries: Vec::new(),
            carry_index: HashMap::new(),
            block_size: 0,
            blocks: 0,
            sequence_slots: 0,
            steps: Vec::new(),
            arena: Vec::new(),
            q8: Q8::default(),
            experts: ExpertBuffers::default(),
            room: Vec::new(),
        }
    }

    /// The threads, for measurements beside the steps.
    pub fn pool(&mut self) -> &mut Pool {
        &mut self.pool
    }

    /// Where a step lies that was prepared.
    fn index_of(&self, step: StepId) -> Result<usize, BackendError> {
        let index = step.0 as usize;
        match index < self.steps.len() {
            true => Ok(index),
            false => Err(BackendError::Missing {
                plan: "of this call".into(),
                what: "step",
                name: index.to_string(),
                action: "prepared",
            }),
        }
    }

    /// Runs a step; `clock` is told of each operation.
    fn run_watched(
        &mut self,
        index: usize,
        inputs: &StepInputs,
        clock: Option<&mut Clock>,
    ) -> Result<StepResults, BackendError> {
        self.steps[index].inputs.copy_from(inputs)?;
        let bounds = LiveBounds {
            blocks: self.blocks,
            sequence_slots: self.sequence_slots,
        };
        let live = LiveStep::read(&self.steps[index].plan, &self.steps[index].inputs, bounds)?;
        let workers = Workers {
            kernels: self.kernels,
            pool: &mut self.pool,
            scratch: &mut self.scratch,
            q8: &mut self.q8,
        };
        let run = Run::new(Parts {
            prepared: &self.steps[index],
            live: &live,
            arena: &mut self.arena,
            weights: &self.weights,
            states: &mut self.states,
            carries: &mut self.carries,
            workers,
            experts: &mut self.experts,
            room: &mut self.room,
            poison: self.poison,
            ranks: &*self.ranks,
        });
        run.step(clock)
    }
}

impl Resident for CpuBackend {
    /// Its index among the weights, states or carries.
    type Place = usize;

    fn name(&self) -> String {
        self.caps().name
    }

    fn rank(&self) -> (usize, usize) {
        (self.ranks.rank(), self.ranks.world_size())
    }

    fn block_size(&self) -> usize {
        self.block_size
    }

    fn sequence_slots(&self) -> usize {
        self.sequence_slots
    }

    fn weight(&self, name: &str) -> Option<(GgmlType, &[usize], usize)> {
        let index = *self.weight_index.get(name)?;
        let weight = &self.weights[index];
        Some((weight.ty, &weight.shape, index))
    }

    fn state(&self, name: &str) -> Option<(&StateDecl, usize)> {
        let index = *self.state_index.get(name)?;
        Some((&self.states[index].decl, index))
    }

    fn carry(&mut self, name: &str) -> Result<usize, BackendError> {
        if let Some(index) = self.carry_index.get(name) {
            return Ok(*index);
        }
        self.carries.push(vec![0; self.sequence_slots]);
        let index = self.carries.len() - 1;
        self.carry_index.insert(name.to_owned(), index);
        Ok(index)
    }
}

impl Backend for CpuBackend {
    fn caps(&self) -> Caps {
        let math = match self.kernels.math {
            Math::Exact => "exact",
            Math::Fast => "fast",
        };
        let threads = self.pool.threads();
        let plural = if threads == 1 { "" } else { "s" };
        Caps {
            name: format!(
                "cpu ({}, {math} math, {threads} thread{plural})",
                self.kernels.isa
            ),
            patterns: vec![ADD_RMS_NORM],
            weight_types: GgmlType::ALL
                .iter()
                .copied()
                .filter(|ty| ty.can_decode())
                .collect(),
            launch_ahead: false,
        }
    }

    fn load(
        &mut self,
        groups: &[WeightGroup],
        source: &dyn WeightSource,
    ) -> Result<(), BackendError> {
        // Steps that were prepared before point to weights by number.
        self.steps.clear();
        for name in groups.iter().flat_map(|g| &g.names) {
            let data = source.weight(name)?;
            let (ty, shape, bytes) = (data.ty, data.shape.clone(), data.bytes.len());
            let weight = Weight::new(data.ty, data.shape, data.bytes.into_owned());
            let weight = weight.map_err(|error| match error {
                WeightError::Decode(source) => BackendError::Decode {
                    weight: name.clone(),
                    source,
                },
                WeightError::Length(expected) => {
                    let expected = expected.map_or("whole blocks".into(), |n| n.to_string());
                    BackendError::Source {
                        weight: name.clone(),
                        reason: format!("{bytes} bytes for {shape:?} of {ty}, expected {expected}"),
                    }
                }
            })?;
            match self.weight_index.get(name) {
                Some(index) => self.weights[*index] = weight,
                None => {
                    self.weight_index.insert(name.clone(), self.weights.len());
                    self.weights.push(weight);
                }
            }
        }
        Ok(())
    }

    fn alloc_state(
        &mut self,
        decls: &[StateDecl],
        block_size: usize,
        blocks: usize,
        sequence_slots: usize,
    ) -> Result<(), BackendError> {
        // What there was before is gone, and with it the steps that pointed to it.
        self.steps.clear();
        self.states.clear();
        self.state_index.clear();
        self.carries.clear();
        self.carry_index.clear();
        (self.block_size, self.blocks, self.sequence_slots) = (block_size, blocks, sequence_slots);
        let fill = if self.poison { f32::NAN } else { 0.0 };
        for decl in decls {
            let rows = match decl.kind {
                StateKind::Paged { .. } => block_size * blocks,
                StateKind::Slot { .. } => sequence_slots,
            };
            let rows = vec![fill; rows * decl.shape.iter().product::<usize>()];
            self.state_index
                .insert(decl.name.clone(), self.states.len());
            self.states.push(State {
                decl: decl.clone(),
                rows,
            });
        }
        Ok(())
    }

    fn prepare(&mut self, plan: &Plan) -> Result<StepId, BackendError> {
        check(plan)?;
        let bound = bind(plan, self)?.into_iter();
        let bound = bound.map(|place| place.unwrap_or(usize::MAX)).collect();
        let arrangement = arrange(plan);
        check_arrangement(plan, &arrangement)?;
        let words = |offset: &Option<usize>| offset.map(|offset| offset / size_of::<u32>());
        let starts = arrangement.offsets.iter().map(words).collect();
        let words = arrangement.arena_bytes / size_of::<u32>();
        if self.arena.len() < words {
            self.arena.resize(words, f32::NAN.to_bits());
        }
        let id = StepId(self.steps.len() as u32);
        let inputs = StepInputs::new(plan);
        self.steps.push(Prepared {
            plan: plan.clone(),
            arrangement,
            inputs,
            results: Arc::new(ResultLayout::of(plan)),
            bound,
            starts,
            selects: plan.unread_below(),
        });
        Ok(id)
    }

    fn run(&mut self, step: StepId, inputs: &StepInputs) -> Result<StepResults, BackendError> {
        let index = self.index_of(step)?;
        self.run_watched(index, inputs, None)
    }

    fn profile(
        &mut self,
        step: StepId,
        inputs: &StepInputs,
        repeats: usize,
    ) -> Result<Vec<Profile>, BackendError> {
        let index = self.index_of(step)?;
        let mut profiles = Vec::with_capacity(repeats);
        for _ in 0..repeats {
            let mut clock = Clock::start(self.steps[index].plan.ops.len());
            self.run_watched(index, inputs, Some(&mut clock))?;
            profiles.push(clock.stop());
        }
        Ok(profiles)
    }

    fn allocated(&self) -> Option<Allocated> {
        let states = self.states.iter().map(|state| state.rows.len());
        let carries = self.carries.iter().map(Vec::len);
        let bytes = |words: usize| (words * size_of::<u32>()) as u64;
        Some(Allocated {
            weights: self.weights.iter().map(|w| w.bytes.len() as u64).sum(),
            states: bytes(states.chain(carries).sum()),
            arena: bytes(self.arena.len()),
            ..Allocated::default()
        })
    }

    fn read(&self, target: ReadTarget<'_>) -> Result<Vec<u8>, BackendError> {
        let missing = |what, name: &str| BackendError::Missing {
            plan: "of this call".into(),
            what,
            name: name.into(),
            action: "loaded",
        };
        match target {
            ReadTarget::Weight(name) => {
                let index = self
                    .weight_index
                    .get(name)
                    .ok_or_else(|| missing("weight", name))?;
                Ok(self.weights[*index].bytes.clone())
            }
            ReadTarget::State(name) => {
                let index = self
                    .state_index
                    .get(name)
                    .ok_or_else(|| missing("state", name))?;
                Ok(bytemuck::cast_slice(&self.states[*index].rows).to_vec())
            }
            ReadTarget::Carry(name) => {
                let index = self
                    .carry_index
                    .get(name)
                    .ok_or_else(|| missing("carry", name))?;
                Ok(bytemuck::cast_slice(&self.carries[*index]).to_vec())
            }
            ReadTarget::Buffer(step, id) => {
                let prepared = self
                    .steps
                    .get(step.0 as usize)
                    .ok_or_else(|| missing("step", &step.0.to_string()))?;
                let buffer = prepared.plan.buffer(id);
                let offset = prepared.arrangement.offsets[id.index()]
                    .ok_or_else(|| missing("arena buffer", &buffer.name))?;
                Ok(bytemuck::cast_slice(&self.arena[offset / 4..][..buffer.elements()]).to_vec())
            }
        }
    }
}
