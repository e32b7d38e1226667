//! The scalar reference executor: every operation in plain f32, one row after the other.
//!
//! It is the truth that other backends are compared with, so it favours the obvious over the fast. It implements [`Backend`] in
//! the replay form all the same: a prepared step holds no counts, its inputs are copied into one block of its own memory, and
//! temporaries live in one arena at the offsets that [`arrange()`] chose.

pub mod attention;
mod exec;
pub mod math;
pub mod moe;
pub mod recompute;

use std::collections::HashMap;
use std::sync::Arc;

use glim_quant::{GgmlType, dequantize};

use crate::arrange::{Arrangement, arrange, check_arrangement};
use crate::backend::{Backend, BackendError, Caps, ReadTarget, StepId, WeightSource};
use crate::bind::{Resident, bind};
use crate::buffer::StateKind;
use crate::check::check;
use crate::collective::{Alone, Communicator};
use crate::fuse::ADD_RMS_NORM;
use crate::groups::WeightGroup;
use crate::inputs::StepInputs;
use crate::plan::{Plan, StateDecl};
use crate::results::StepResults;

/// What every i32 of a poisoned buffer holds; every f32 holds NaN.
const POISON_I32: u32 = i32::MIN as u32;
const POISON_F32: u32 = f32::NAN.to_bits();

fn poison_of(ty: GgmlType) -> u32 {
    if ty == GgmlType::F32 {
        POISON_F32
    } else {
        POISON_I32
    }
}

/// How the executor runs.
#[derive(Debug, Clone, Default)]
pub struct ReferenceOptions {
    /// Fill every output with NaN before its operation and state with NaN before its first row; an output that still holds NaN
    /// in a live row afterwards is an error that names the operation.
    pub poison: bool,
    /// Label of an operation to leave out: shows in tests that a check sees it.
    pub skip: Option<String>,
    /// The other ranks; `None`: there are none.
    pub ranks: Option<Arc<dyn Communicator>>,
}

struct Weight {
    ty: GgmlType,
    shape: Vec<usize>,
    /// As loaded.
    blocks: Vec<u8>,
    values: Vec<f32>,
}

struct State {
    decl: StateDecl,
    rows: Vec<f32>,
}

struct Prepared {
    plan: Plan,
    arrangement: Arrangement,
    inputs: StepInputs,
}

/// Runs plans in f32 on one thread.
#[derive(Default)]
pub struct ReferenceBackend {
    options: ReferenceOptions,
    weights: HashMap<String, Weight>,
    states: HashMap<String, State>,
    carries: HashMap<String, Vec<u32>>,
    block_size: usize,
    sequence_slots: usize,
    steps: Vec<Prepared>,
    arena: Vec<u32>,
}

impl ReferenceBackend {
    /// A backend without weights.
    pub fn new(options: ReferenceOptions) -> Self {
        Self {
            options,
            ..Self::default()
        }
    }

    fn ranks(&self) -> Arc<dyn Communicator> {
        let alone = || Arc::new(Alone) as Arc<dyn Communicator>;
        self.options.ranks.clone().unwrap_or_else(alone)
    }

    fn missing(plan: &str, what: &'static str, name: &str, action: &'static str) -> BackendError {
        BackendError::Missing {
            plan: plan.into(),
            what,
            name: name.into(),
            action,
        }
    }
}

impl Resident for ReferenceBackend {
    /// All is found by name.
    type Place = ();

    fn name(&self) -> String {
        self.caps().name
    }

    fn rank(&self) -> (usize, usize) {
        let ranks = self.ranks();
        (ranks.rank(), ranks.world_size())
    }

    fn block_size(&self) -> usize {
        self.block_size
    }

    fn sequence_slots(&self) -> usize {
        self.sequence_slots
    }

    fn weight(&self, name: &str) -> Option<(GgmlType, &[usize], ())> {
        let weight = self.weights.get(name)?;
        Some((weight.ty, &weight.shape, ()))
    }

    fn state(&self, name: &str) -> Option<(&StateDecl, ())> {
        self.states.get(name).map(|state| (&state.decl, ()))
    }

    fn carry(&mut self, name: &str) -> Result<(), BackendError> {
        let words = vec![0; self.sequence_slots];
        self.carries.entry(name.to_owned()).or_insert(words);
        Ok(())
    }
}

impl Backend for ReferenceBackend {
    fn caps(&self) -> Caps {
        Caps {
            name: "reference".into(),
            // It runs the parts; the pattern is there so that plans with fused operations are exercised.
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
        for name in groups.iter().flat_map(|g| &g.names) {
            let data = source.weight(name)?;
            let elements = data.shape.iter().product();
            let mut values = vec![0.0; elements];
            dequantize(data.ty, &data.bytes, &mut values).map_err(|source| {
                BackendError::Decode {
                    weight: name.clone(),
                    source,
                }
            })?;
            let weight = Weight {
                ty: data.ty,
                shape: data.shape,
                blocks: data.bytes.into_owned(),
                values,
            };
            self.weights.insert(name.clone(), weight);
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
        self.block_size = block_size;
        self.sequence_slots = sequence_slots;
        self.carries.clear();
        let fill = if self.options.poison { f32::NAN } else { 0.0 };
        for decl in decls {
            let rows = match decl.kind {
                StateKind::Paged { .. } => block_size * blocks,
                StateKind::Slot { .. } => sequence_slots,
            };
            let rows = vec![fill; rows * decl.shape.iter().product::<usize>()];
            self.states.insert(
                decl.name.clone(),
                State {
                    decl: decl.clone(),
                    rows,
                },
            );
        }
        Ok(())
    }

    fn prepare(&mut self, plan: &Plan) -> Result<StepId, BackendError> {
        check(plan)?;
        bind(plan, self)?;
        let arrangement = arrange(plan);
        check_arrangement(plan, &arrangement)?;
        let words = arrangement.arena_bytes / size_of::<u32>();
        if self.arena.len() < words {
            self.arena.resize(words, POISON_F32);
        }
        let id = StepId(self.steps.len() as u32);
        self.steps.push(Prepared {
            plan: plan.clone(),
            arrangement,
            inputs: StepInputs::new(plan),
        });
        Ok(id)
    }

    fn run(&mut self, step: StepId, inputs: &StepInputs) -> Result<StepResults, BackendError> {
        let Some(prepared) = self.steps.get_mut(step.0 as usize) else {
            return Err(Self::missing(
                "of this call",
                "step",
                &step.0.to_string(),
                "prepared",
            ));
        };
        prepared.inputs.copy_from(inputs)?;
        exec::Run::new(self, step)?.steps()
    }

    fn read(&self, target: ReadTarget<'_>) -> Result<Vec<u8>, BackendError> {
        let missing = |what, name: &str| Self::missing("of this call", what, name, "loaded");
        match target {
            ReadTarget::Weight(name) => self
                .weights
                .get(name)
                .map(|w| w.blocks.clone())
                .ok_or_else(|| missing("weight", name)),
            ReadTarget::State(name) => {
                let state = self
                    .states
                    .get(name)
                    .ok_or_else(|| missing("state", name))?;
                Ok(bytemuck::cast_slice(&state.rows).to_vec())
            }
            ReadTarget::Carry(name) => {
                let carry = self
                    .carries
                    .get(name)
                    .ok_or_else(|| missing("carry", name))?;
                Ok(bytemuck::cast_slice(carry).to_vec())
            }
            ReadTarget::Buffer(step, id) => {
                let prepared = self
                    .steps
                    .get(step.0 as usize)
                    .ok_or_else(|| missing("step", &step.0.to_string()))?;
                let buffer = prepared.plan.buffer(id);
                match prepared.arrangement.offsets[id.index()] {
                    Some(offset) => Ok(bytemuck::cast_slice(
                        &self.arena[offset / 4..][..buffer.elements()],
                    )
                    .to_vec()),
                    None => Err(missing("arena buffer", &buffer.name)),
                }
            }
        }
    }
}
