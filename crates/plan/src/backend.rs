//! The contract of a backend: it owns memory and runs plans; it knows neither requests nor layers.

use std::borrow::Cow;

use glim_quant::{GgmlType, QuantError};
use thiserror::Error;

use crate::BufferId;
use crate::arrange::ArrangeError;
use crate::check::CheckError;
use crate::fuse::FusePattern;
use crate::groups::WeightGroup;
use crate::inputs::{InputError, StepInputs};
use crate::plan::{Plan, StateDecl};
use crate::profile::Profile;
use crate::results::StepResults;

/// A weight's bytes on the way into a backend.
#[derive(Debug, Clone)]
pub struct WeightData<'a> {
    /// Block type.
    pub ty: GgmlType,
    /// Row-major shape, slowest first.
    pub shape: Vec<usize>,
    /// Blocks, row after row.
    pub bytes: Cow<'a, [u8]>,
}

/// A weight of random blocks that a backend can make where it wants them, in place of their bytes: for measuring models of which there is
/// no file. Block `n` is made of the words of SplitMix64 from number `64 n` on (an element of a float type of word `n`), whose counter starts
/// at `key`, as the source that offers it does on the host (`glim_model::synth`): both give the same bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct RandomBlocks {
    /// Block type.
    pub ty: GgmlType,
    /// Row-major shape, slowest first.
    pub shape: Vec<usize>,
    /// Where the counter starts.
    pub key: u64,
    /// Scale of blocks; the standard deviation of floats.
    pub scale: f32,
}

/// Where a backend gets weights from.
pub trait WeightSource: Sync {
    /// The weight of that name, as this rank holds it.
    ///
    /// # Errors
    /// [`BackendError::Source`] with the reason.
    fn weight(&self, name: &str) -> Result<WeightData<'_>, BackendError>;

    /// How the same bytes can be made without them, if they are random.
    ///
    /// # Errors
    /// As [`Self::weight`].
    fn random(&self, _name: &str) -> Result<Option<RandomBlocks>, BackendError> {
        Ok(None)
    }
}

impl<S: WeightSource + ?Sized> WeightSource for &S {
    fn weight(&self, name: &str) -> Result<WeightData<'_>, BackendError> {
        (**self).weight(name)
    }

    fn random(&self, name: &str) -> Result<Option<RandomBlocks>, BackendError> {
        (**self).random(name)
    }
}

/// What a backend can do.
#[derive(Debug, Clone)]
pub struct Caps {
    /// Name for people.
    pub name: String,
    /// Fused operations that it has a kernel for.
    pub patterns: Vec<FusePattern>,
    /// Weight types that it reads.
    pub weight_types: Vec<GgmlType>,
    /// [`Backend::submit`] comes back before the step is done, so that it gains by being handed the next one meanwhile.
    pub launch_ahead: bool,
}

/// A prepared plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StepId(pub u32);

/// Something to read back from a backend's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadTarget<'a> {
    /// A weight, un-repacked: the bytes that were loaded.
    Weight(&'a str),
    /// All of a state, row after row.
    State(&'a str),
    /// A carry.
    Carry(&'a str),
    /// A buffer of the arena, as the last run of the step left it.
    Buffer(StepId, BufferId),
}

/// Bytes that a backend holds, by what they are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Allocated {
    /// Weights, as they lie there.
    pub weights: u64,
    /// State of all blocks and slots, and carries.
    pub states: u64,
    /// Temporaries and results of the largest step.
    pub arena: u64,
    /// What operations need while they run, inputs, and where ranks meet.
    pub working: u64,
    /// Of the host's memory: what a device copies from and to.
    pub pinned: u64,
}

impl Allocated {
    /// All that lies where the backend computes.
    pub fn total(&self) -> u64 {
        self.weights + self.states + self.arena + self.working
    }
}

/// A step that was handed over, and that is to be waited for.
#[derive(Debug)]
#[must_use = "a step's results are kept until it is waited for"]
pub enum Ticket {
    /// It runs, under a number of the backend's own.
    Running(u64),
    /// It is done.
    Done(StepResults),
}

/// Why a backend could not do as asked.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BackendError {
    /// The plan breaks a rule.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// The arena is laid out wrongly.
    #[error(transparent)]
    Arrange(#[from] ArrangeError),
    /// The inputs do not fit the plan.
    #[error(transparent)]
    Input(#[from] InputError),
    /// A weight could not be read from its source.
    #[error("weight {weight} could not be read: {reason}")]
    Source {
        /// Weight.
        weight: String,
        /// Why.
        reason: String,
    },
    /// A weight's blocks could not be decoded.
    #[error("weight {weight}: {source}")]
    Decode {
        /// Weight.
        weight: String,
        /// Why.
        source: QuantError,
    },
    /// A weight is not what the plan says.
    #[error("weight {weight} is {found}, but plan {plan} expects {expected}")]
    WeightDiffers {
        /// Weight.
        weight: String,
        /// Plan.
        plan: String,
        /// As loaded.
        found: String,
        /// As planned.
        expected: String,
    },
    /// A plan names something that was not loaded or allocated.
    #[error("plan {plan} uses {what} {name}, which was not {action} first")]
    Missing {
        /// Plan, or what asks for it.
        plan: String,
        /// Kind of thing.
        what: &'static str,
        /// Name.
        name: String,
        /// What should have happened.
        action: &'static str,
    },
    /// The backend cannot run this plan.
    #[error("backend {backend} cannot run plan {plan}: {reason}")]
    Unsupported {
        /// Backend.
        backend: String,
        /// Plan.
        plan: String,
        /// Why.
        reason: String,
    },
    /// An input holds an index that points outside.
    #[error("plan {plan}, {op}: {what} {found} lies outside 0..{bound}")]
    OutOfRange {
        /// Plan.
        plan: String,
        /// Operation.
        op: String,
        /// What is indexed.
        what: String,
        /// Index.
        found: i64,
        /// Bound.
        bound: usize,
    },
    /// A rank failed, and the others cannot go on without it.
    #[error("rank {rank} {what} (plan {plan}, in {op})")]
    Rank {
        /// Plan.
        plan: String,
        /// The rank that failed.
        rank: usize,
        /// Label of the operation that it was in.
        op: String,
        /// What it did.
        what: String,
    },
    /// The device failed, or is not what was asked for.
    #[error("{device}: {reason}")]
    Device {
        /// The device.
        device: String,
        /// What happened, and where.
        reason: String,
    },
    /// The device failed in an operation.
    #[error("{device}: in {op} of plan {plan}: {reason}")]
    Operation {
        /// The device.
        device: String,
        /// Plan.
        plan: String,
        /// Label of the operation.
        op: String,
        /// What happened.
        reason: String,
    },
    /// A poisoned value was left in an output: the operation skipped it, or computed NaN.
    #[error(
        "plan {plan}: {op} left poison in {buffer} at row {row}, element {element}: it was never written, or is NaN"
    )]
    Poison {
        /// Plan.
        plan: String,
        /// Operation.
        op: String,
        /// Buffer.
        buffer: String,
        /// Live row.
        row: usize,
        /// Element of the row.
        element: usize,
    },
}

impl BackendError {
    /// The rank that failed, where several are and it is known.
    pub fn rank(&self) -> Option<usize> {
        match self {
            Self::Rank { rank, .. } => Some(*rank),
            _ => None,
        }
    }

    /// Label of the operation that it happened in, if it is known.
    pub fn op(&self) -> Option<&str> {
        match self {
            Self::OutOfRange { op, .. }
            | Self::Rank { op, .. }
            | Self::Operation { op, .. }
            | Self::Poison { op, .. } => Some(op),
            _ => None,
        }
    }
}

/// Steps that are handed over at a time, the one that is waited for among them.
pub const MAX_IN_FLIGHT: usize = 2;

/// Runs plans on one rank's memory.
///
/// Order of calls: `load`, `alloc_state`, `prepare` for each plan, `seal`, then `run` in any order. After `seal` nothing is allocated any
/// more; the arena is that of the largest plan.
pub trait Backend: Send {
    /// What it can do.
    fn caps(&self) -> Caps;

    /// Makes weights resident, each group in the layout of the kernel that reads it.
    ///
    /// # Errors
    /// If a weight cannot be read or has a type that the backend does not take.
    fn load(
        &mut self,
        groups: &[WeightGroup],
        source: &dyn WeightSource,
    ) -> Result<(), BackendError>;

    /// Allocates state: `blocks` blocks of `block_size` tokens for paged state, `sequence_slots` rows for slot state and carries.
    ///
    /// # Errors
    /// If it does not fit in memory.
    fn alloc_state(
        &mut self,
        decls: &[StateDecl],
        block_size: usize,
        blocks: usize,
        sequence_slots: usize,
    ) -> Result<(), BackendError>;

    /// Checks a plan and makes it ready to be replayed. Reads no inputs: the step serves every run of its bucket.
    ///
    /// # Errors
    /// If the plan breaks a rule, or names weights or states that are not there.
    fn prepare(&mut self, plan: &Plan) -> Result<StepId, BackendError>;

    /// Makes all that the prepared steps run with, so that none of their runs has to: called after the last `prepare`, by all ranks
    /// together. A plan that is prepared later is sealed by its first run, if not by another call.
    ///
    /// # Errors
    /// If there is no room, or another rank does not come.
    fn seal(&mut self) -> Result<(), BackendError> {
        Ok(())
    }

    /// What it holds now; `None` if it keeps no account.
    fn allocated(&self) -> Option<Allocated> {
        None
    }

    /// Runs a prepared step. It comes after those that were submitted, whether or not they have been waited for.
    ///
    /// # Errors
    /// If an input points outside, or an operation fails.
    fn run(&mut self, step: StepId, inputs: &StepInputs) -> Result<StepResults, BackendError>;

    /// Runs a prepared step `repeats` times as [`Self::run`] would, watching the clock: when each operation began and ended, in each
    /// of the runs, and what each run took as a whole. Ranks must ask for the same number of runs, since they meet in each.
    ///
    /// # Errors
    /// As [`Self::run`]; [`BackendError::Unsupported`] from a backend that has no clock.
    fn profile(
        &mut self,
        step: StepId,
        inputs: &StepInputs,
        repeats: usize,
    ) -> Result<Vec<Profile>, BackendError> {
        let _ = (inputs, repeats);
        Err(BackendError::Unsupported {
            backend: self.caps().name,
            plan: format!("number {}", step.0),
            reason: "it cannot time the operations of a step".into(),
        })
    }

    /// Nodes of the graph that the step's runs replay, as the driver counts them: kernels, and copies among them if any. `None` if the
    /// step is not replayed as a graph, or not [sealed](Self::seal) yet.
    fn nodes(&self, step: StepId) -> Option<usize> {
        let _ = step;
        None
    }

    /// Hands a prepared step over: it runs after all that was handed over before, and reads the carries that these leave. The inputs
    /// may be written again once this returns. At most [`MAX_IN_FLIGHT`] steps are handed over and not waited for.
    ///
    /// # Errors
    /// As [`Self::run`], as far as it is known yet.
    fn submit(&mut self, step: StepId, inputs: &StepInputs) -> Result<Ticket, BackendError> {
        self.run(step, inputs).map(Ticket::Done)
    }

    /// The results of a step that was handed over. Steps are waited for in the order in which they were handed over.
    ///
    /// # Errors
    /// As [`Self::run`].
    fn wait(&mut self, ticket: Ticket) -> Result<StepResults, BackendError> {
        match ticket {
            Ticket::Done(results) => Ok(results),
            Ticket::Running(number) => Err(BackendError::Unsupported {
                backend: self.caps().name,
                plan: "of a ticket".into(),
                reason: format!("it has handed out no ticket {number}"),
            }),
        }
    }

    /// The hash of a weight where it lies ([`crate::fingerprint`]), so that its bytes need not come back to be compared; `None` from a backend
    /// that has no better way than [`Self::read`].
    ///
    /// # Errors
    /// If there is no such weight, or the device fails.
    fn hash(&self, _weight: &str) -> Result<Option<u64>, BackendError> {
        Ok(None)
    }

    /// Reads memory back, as bytes.
    ///
    /// # Errors
    /// If there is no such thing.
    fn read(&self, target: ReadTarget<'_>) -> Result<Vec<u8>, BackendError>;
}
