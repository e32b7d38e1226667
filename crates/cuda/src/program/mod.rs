//! A plan as a list of kernel launches.
//!
//! What a step launches, with which grid and which arguments, is the same in every run: all that changes lies in the memory of the
//! GPU. So a plan is turned into plain data once. Arguments name buffers; where these lie is filled in when all memory is there
//! ([`crate::run`]), since the arena grows with the plans that are prepared.
//!
//! One file for each family of operations; each function says in launches what [`Op`] says in a formula, and refuses by a reason what its
//! kernels cannot do.

mod attention;
mod gemm;
mod head;
mod kept;
mod library;
mod linear;
mod moe;
mod norms;
mod poison;
mod ranks;
mod ropes;
mod rounded;
mod rows;

pub(crate) use library::{Library, LibraryCall};
pub(crate) use poison::{check as poison_check, fill_word as poison_word};

use std::sync::Arc;

use self::kept::Kept;
use self::ropes::Angles;
use self::rounded::Roundings;
use glim_plan::fuse::{ADD_RMS_NORM, EXPERTS_ADD, FusePattern, NORMS, ROPES, SWIGLU_LINEAR};
use glim_plan::{BufferDecl, BufferId, BufferKind, CacheGeometry, Op, Plan, StepKind};

use crate::backend::Math;
use crate::collective::Collective;
use crate::driver::GpuFacts;
use crate::kernels::Kernel;
use crate::weights::{WeightInfo, Weights};

/// Fused operations that there are kernels for; of two that match, the first.
pub(crate) const PATTERNS: [FusePattern; 5] =
    [ADD_RMS_NORM, NORMS, ROPES, SWIGLU_LINEAR, EXPERTS_ADD];

/// An argument of a kernel, before it is known where buffers lie.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Arg {
    /// Address of a buffer of the plan, whatever its kind.
    Buffer(BufferId),
    /// The same, so many bytes further.
    BufferAt(BufferId, usize),
    /// The struct `Rows`: which rows of this buffer are live.
    Rows(BufferId),
    /// Address in the scratch region, which an operation has for itself.
    Scratch(usize),
    /// Address in the region behind it, where operations leave things for later ones.
    Kept(usize),
    /// Address of the step's `Fault`.
    Fault,
    /// Index of the operation, for `Fault`.
    OpIndex,
    /// A struct by value, of [`Program::structures`].
    Struct(usize),
    /// A null pointer.
    Null,
    I32(i32),
    U32(u32),
    U64(u64),
    F32(f32),
}

impl Arg {
    /// Whether it has eight bytes, and not four.
    pub(crate) fn is_wide(self) -> bool {
        !matches!(
            self,
            Self::OpIndex | Self::I32(_) | Self::U32(_) | Self::F32(_)
        )
    }
}

/// One launch.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Launch {
    pub(crate) kernel: Kernel,
    pub(crate) grid: [u32; 3],
    pub(crate) threads: u32,
    /// Bytes of dynamic shared memory.
    pub(crate) shared: u32,
    pub(crate) args: Vec<Arg>,
    /// Whether it may begin before its predecessor has ended. Kernels that wait for other ranks may not.
    pub(crate) dependent: bool,
}

/// What a step puts into its stream.
#[derive(Debug, Clone)]
pub(crate) enum Work {
    Kernel(Launch),
    Library(Library),
}

impl Work {
    /// The launch, if it is one of our kernels.
    pub(crate) fn kernel(&self) -> Option<&Launch> {
        match self {
            Self::Kernel(launch) => Some(launch),
            Self::Library(_) => None,
        }
    }
}

/// The work of one operation of the plan (of all parts of a fused one).
#[derive(Debug, Clone)]
pub(crate) struct ProgramOp {
    pub(crate) work: Vec<Work>,
}

/// A plan as launches, operation by operation.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    pub(crate) ops: Vec<ProgramOp>,
    /// Fields of the structs that kernels get by value.
    pub(crate) structures: Vec<Vec<Arg>>,
    /// Bytes of scratch that it needs, with those of what is kept behind it.
    pub(crate) scratch: usize,
    /// Where that begins.
    pub(crate) kept: usize,
}

/// What a program is made for.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) gpu: &'a GpuFacts,
    pub(crate) math: Math,
    pub(crate) weights: &'a Weights,
    pub(crate) ranks: &'a dyn Collective,
    /// Whether outputs are looked through for poison: then all of them is written.
    pub(crate) poison: bool,
}

/// Collects the launches of a plan.
pub(crate) struct Builder<'a> {
    plan: &'a Plan,
    target: Target<'a>,
    unread_below: Vec<usize>,
    work: Vec<Work>,
    structures: Vec<Vec<Arg>>,
    /// Bytes of scratch that the current operation uses.
    scratch: usize,
    most_scratch: usize,
    /// Index of the operation.
    now: usize,
    /// How much work the one before it is.
    work_before: usize,
    kept: Kept,
    roundings: Roundings,
    angles: Vec<Angles>,
}

/// Scratch areas begin at multiples of this.
const SCRATCH_ALIGN: usize = 256;

impl Program {
    /// The launches of a plan; an error says which operation cannot be run, and why.
    pub(crate) fn new(plan: &Plan, target: Target<'_>) -> Result<Self, String> {
        let mut builder = Builder {
            plan,
            target,
            unread_below: plan.unread_below(),
            work: Vec::new(),
            structures: Vec::new(),
            scratch: 0,
            most_scratch: 0,
            now: 0,
            work_before: 0,
            kept: Kept::default(),
            roundings: Roundings::default(),
            angles: Vec::new(),
        };
        builder.roundings = Roundings::of(&builder);
        let mut ops = Vec::with_capacity(plan.ops.len());
        for (i, node) in plan.ops.iter().enumerate() {
            builder.now = i;
            let built = builder.op(&node.op);
            built.map_err(|reason| format!("{} ({}): {reason}", node.label, node.op.kind()))?;
            builder.work_before = builder.work.len();
            ops.push(ProgramOp {
                work: std::mem::take(&mut builder.work),
            });
        }
        Ok(Self {
            ops,
            structures: builder.structures,
            scratch: builder.most_scratch + builder.kept.bytes,
            kept: builder.most_scratch,
        })
    }
}

impl<'a> Builder<'a> {
    /// Adds the launches of an operation.
    fn op(&mut self, op: &Op) -> Result<(), String> {
        self.scratch = 0;
        let access = op.access();
        for id in access.writes.into_iter().chain(access.updates) {
            self.roundings.forget(id);
        }
        let prefill = !self.is_decode();
        match op {
            // Few rows are multiplied as weights stream, many on tensor cores; the kind of step decides, and not their number.
            Op::Linear { .. } if prefill => gemm::linear(self, op),
            Op::HeadProject { .. } if prefill => gemm::head_project(self, op),
            Op::LmHead { .. } if prefill => gemm::lm_head(self, op),
            Op::Embed { .. } => linear::embed(self, op),
            Op::RmsNorm { .. } => norms::rms_norm(self, op),
            Op::LayerNorm { .. } => norms::layer_norm(self, op),
            Op::Linear { .. } => linear::linear(self, op),
            Op::Rope { .. } => ropes::ropes(self, op),
            Op::CacheAppend { .. } => rows::append(self, op),
            Op::IndexScore { .. } => attention::index_score(self, op),
            Op::IndexSelect { .. } => attention::index_select(self, op),
            Op::MlaAttend { .. } => attention::attend(self, op),
            Op::HeadProject { .. } => linear::head_project(self, op),
            Op::SwiGlu { .. } => rows::swiglu(self, op),
            Op::Route { .. } => moe::route(self, op),
            Op::ExpertFfn { .. } => moe::expert_ffn(self, op),
            Op::Add { .. } => rows::add(self, op),
            Op::SelectRows { .. } => rows::select_rows(self, op),
            Op::LmHead { .. } => linear::lm_head(self, op),
            Op::AllReduce { .. } => ranks::all_reduce(self, op),
            Op::AllGather { .. } => ranks::all_gather(self, op),
            Op::TopKMerge { .. } => head::top_k_merge(self, op),
            Op::Shortlist { .. } => head::shortlist(self, op),
            Op::Sample { .. } => head::sample(self, op),
            Op::Fused { name, .. } if *name == ADD_RMS_NORM.name => norms::add_rms_norm(self, op),
            Op::Fused { name, .. } if *name == NORMS.name => norms::norms(self, op),
            Op::Fused { name, .. } if *name == ROPES.name => ropes::ropes(self, op),
            Op::Fused { name, .. } if *name == SWIGLU_LINEAR.name => {
                linear::swiglu_linear(self, op)
            }
            Op::Fused { name, .. } if *name == EXPERTS_ADD.name => moe::experts_add(self, op),
            Op::Fused { .. } => self.parts(op),
        }
    }

    /// Adds the launches of a fused operation's parts, one after the other.
    fn parts(&mut self, op: &Op) -> Result<(), String> {
        op.parts().iter().try_for_each(|part| self.op(part))
    }

    /// Adds a launch, which may begin before its predecessor has ended.
    pub(crate) fn launch(
        &mut self,
        kernel: Kernel,
        grid: [u32; 3],
        threads: u32,
        shared: u32,
        args: Vec<Arg>,
    ) -> &mut Launch {
        self.work.push(Work::Kernel(Launch {
            kernel,
            grid,
            threads,
            shared,
            args,
            dependent: true,
        }));
        match self.work.last_mut() {
            Some(Work::Kernel(launch)) => launch,
            _ => unreachable!("it was just added"),
        }
    }

    /// Adds work that a library puts into the stream, with the addresses that it gets.
    pub(crate) fn library(&mut self, call: Arc<dyn LibraryCall>, addresses: Vec<Arg>) {
        self.work.push(Work::Library(Library { call, addresses }));
    }

    /// An argument that is a struct with these fields.
    pub(crate) fn structure(&mut self, fields: Vec<Arg>) -> Arg {
        self.structures.push(fields);
        Arg::Struct(self.structures.len() - 1)
    }

    /// Room that the current operation has for itself, 256-byte aligned: its offset in the scratch region.
    pub(crate) fn scratch(&mut self, bytes: usize) -> usize {
        let at = self.scratch;
        self.scratch += bytes.next_multiple_of(SCRATCH_ALIGN);
        self.most_scratch = self.most_scratch.max(self.scratch);
        at
    }

    /// Room for what this operation leaves for later ones, up to operation `until`: its offset behind the scratch region.
    pub(crate) fn keep(&mut self, bytes: usize, until: usize) -> usize {
        self.kept.take(bytes, self.now, until)
    }

    /// The operation before `op`, if it is certain that a kernel of it runs between those before it and the first of `op`: then
    /// what it does not write is complete when that one starts, even before its wait. (A kernel lets its successor start only
    /// after its own wait, at which all before it had ended. Kernels that wait for other ranks are launched otherwise.)
    pub(crate) fn before(&self, op: &Op) -> Option<&'a Op> {
        let is_first = std::ptr::eq(self.plan.ops.get(self.now).map(|node| &node.op)?, op);
        let before = &self.plan.ops.get(self.now.checked_sub(1)?)?.op;
        (is_first && self.work_before > 0 && before.collective().is_none()).then_some(before)
    }

    /// Whether a kernel of `op`, its first, may read `x` before its wait: the operation before does not write it.
    pub(crate) fn is_settled(&self, op: &Op, x: BufferId) -> bool {
        self.before(op).is_some_and(|before| !writes(before, x))
    }

    pub(crate) fn plan(&self) -> &'a Plan {
        self.plan
    }

    pub(crate) fn decl(&self, id: BufferId) -> &'a BufferDecl {
        self.plan.buffer(id)
    }

    /// Elements of the `axis`th axis; 1 beyond the last.
    pub(crate) fn axis(&self, id: BufferId, axis: usize) -> usize {
        self.decl(id).shape.get(axis).copied().unwrap_or(1)
    }

    /// Elements of the last axis.
    pub(crate) fn last(&self, id: BufferId) -> usize {
        self.decl(id).shape.last().copied().unwrap_or(1)
    }

    /// Entries of axis 0: the rows that a grid must cover.
    pub(crate) fn rows(&self, id: BufferId) -> usize {
        self.axis(id, 0)
    }

    /// The weight that a buffer stands for.
    pub(crate) fn weight(&self, id: BufferId) -> Result<&'a WeightInfo, String> {
        let decl = self.decl(id);
        debug_assert_eq!(decl.kind, BufferKind::Weight);
        let weight = self.target.weights.get(&decl.name);
        weight.ok_or_else(|| format!("weight {} is not resident", decl.name))
    }

    /// Whether it is a decode step, whose kernels are made for few rows.
    pub(crate) fn is_decode(&self) -> bool {
        matches!(self.plan.step, StepKind::Decode { .. })
    }

    pub(crate) fn math(&self) -> Math {
        self.target.math
    }

    /// How this rank meets the others.
    pub(crate) fn ranks(&self) -> &'a dyn Collective {
        self.target.ranks
    }

    pub(crate) fn gpu(&self) -> &'a GpuFacts {
        self.target.gpu
    }

    pub(crate) fn geometry(&self) -> CacheGeometry {
        self.plan.geometry
    }

    /// How many positions a row of scores must see before it is read ([`Plan::unread_below`]).
    pub(crate) fn unread_below(&self, scores: BufferId) -> usize {
        match self.target.poison {
            true => 0,
            false => self.unread_below[scores.index()],
        }
    }
}

/// A number of an argument or a grid: sizes that do not fit are refused when the plan is prepared.
pub(crate) fn int(value: usize) -> Result<i32, String> {
    i32::try_from(value).map_err(|_| format!("{value} is beyond what kernels count with (2^31)"))
}

/// As [`int`], for grids.
pub(crate) fn grid(value: usize) -> Result<u32, String> {
    u32::try_from(value).map_err(|_| format!("a grid of {value} blocks is beyond 2^32"))
}

/// Whether `op` writes any part of `id`.
pub(crate) fn writes(op: &Op, id: BufferId) -> bool {
    let access = op.access();
    let mut written = access.writes.iter().chain(&access.updates);
    written.any(|w| *w == id) || access.appends.contains(&id)
}
