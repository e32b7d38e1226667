//! The plan itself, and the builder that `glim-model` emits with.

use std::collections::HashMap;

use glim_quant::GgmlType;
use thiserror::Error;

use crate::buffer::{
    BufferDecl, BufferId, BufferKind, InputExtents, InputKind, Placement, Rows, StateKind,
};
use crate::op::{Op, OpNode};

/// What a step does; the two kinds are never mixed. Numbers are capacities (buckets).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StepKind {
    /// One row for each sequence (times `1 + drafts`): every row's logits matter.
    Decode {
        /// Rows.
        rows: usize,
    },
    /// Chunks of prompts, ragged by `cu_seqlens`.
    Prefill {
        /// Rows over all sequences.
        tokens: usize,
        /// Sequences.
        sequences: usize,
    },
}

impl StepKind {
    /// Capacity in rows.
    pub fn tokens(self) -> usize {
        match self {
            Self::Decode { rows } => rows,
            Self::Prefill { tokens, .. } => tokens,
        }
    }

    /// Capacity in sequences.
    pub fn sequences(self) -> usize {
        match self {
            Self::Decode { rows } => rows,
            Self::Prefill { sequences, .. } => sequences,
        }
    }
}

/// The shape of paged state that plans are made for. The number of blocks is the backend's affair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CacheGeometry {
    /// Tokens in a block.
    pub block_size: usize,
    /// Longest block table of a sequence.
    pub max_blocks: usize,
}

impl CacheGeometry {
    /// Longest sequence, in tokens.
    pub fn max_positions(self) -> usize {
        self.block_size * self.max_blocks
    }
}

/// A state buffer of a model, the same in all its plans.
#[derive(Debug, Clone, PartialEq)]
pub struct StateDecl {
    /// Name, e.g. `latent.3`.
    pub name: String,
    /// How it is kept.
    pub kind: StateKind,
    /// Element type.
    pub dtype: GgmlType,
    /// Shape of one row.
    pub shape: Vec<usize>,
}

/// A step as straight-line data, for one rank.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Names the plan in prints and errors.
    pub name: String,
    /// Step kind and bucket.
    pub step: StepKind,
    /// Cache shape.
    pub geometry: CacheGeometry,
    /// This rank.
    pub rank: usize,
    /// Ranks.
    pub world_size: usize,
    /// Buffers; a [`BufferId`] is an index.
    pub buffers: Vec<BufferDecl>,
    /// Operations, in order.
    pub ops: Vec<OpNode>,
}

/// Misuse of a plan by its caller.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum PlanError {
    /// No buffer of that name.
    #[error("plan {plan} has no buffer {name}")]
    NoSuchBuffer {
        /// The plan.
        plan: String,
        /// The name asked for.
        name: String,
    },
    /// Only temporaries can be tapped.
    #[error(
        "buffer {name} of plan {plan} cannot be tapped: it is {kind}, and only a temporary can become a result"
    )]
    NotATemp {
        /// The plan.
        plan: String,
        /// The buffer.
        name: String,
        /// What it is.
        kind: String,
    },
}

impl Plan {
    /// The declaration of a buffer.
    pub fn buffer(&self, id: BufferId) -> &BufferDecl {
        &self.buffers[id.index()]
    }

    /// Finds a buffer by name.
    pub fn find(&self, name: &str) -> Option<BufferId> {
        self.buffers
            .iter()
            .position(|b| b.name == name)
            .map(|i| BufferId(i as u32))
    }

    /// Makes a temporary a result, so that it can be read after a step. To be called before [`crate::arrange()`].
    ///
    /// # Errors
    /// If there is no such buffer, or it is not a temporary (a result is left as it is).
    pub fn tap(&mut self, name: &str) -> Result<BufferId, PlanError> {
        let id = self.find(name).ok_or_else(|| PlanError::NoSuchBuffer {
            plan: self.name.clone(),
            name: name.into(),
        })?;
        match self.buffers[id.index()].kind {
            BufferKind::Temp => self.buffers[id.index()].kind = BufferKind::Result,
            BufferKind::Result => {}
            kind => {
                return Err(PlanError::NotATemp {
                    plan: self.name.clone(),
                    name: name.into(),
                    kind: format!("{kind:?}").to_lowercase(),
                });
            }
        }
        Ok(id)
    }

    /// The plan's first `ops` operations as a plan of their own, with the same inputs: temporaries that are read by nobody any more
    /// become results, and what is no longer written is dropped. It is for looking into a step, at a moment: a buffer that is
    /// updated in place can be read as it was before.
    pub fn cut(&self, ops: usize) -> Self {
        let mut plan = self.clone();
        plan.ops.truncate(ops);
        let (mut written, mut unread) = (
            vec![false; plan.buffers.len()],
            vec![false; plan.buffers.len()],
        );
        for part in plan.ops.iter().flat_map(|node| node.op.parts()) {
            let access = part.access();
            access
                .reads
                .iter()
                .for_each(|id| unread[id.index()] = false);
            for id in access
                .writes
                .iter()
                .chain(&access.updates)
                .chain(&access.appends)
            {
                (written[id.index()], unread[id.index()]) = (true, true);
            }
        }
        for ((buffer, written), unread) in plan.buffers.iter_mut().zip(written).zip(unread) {
            match buffer.kind {
                BufferKind::Temp if unread => buffer.kind = BufferKind::Result,
                BufferKind::Result | BufferKind::State(_) if !written => {
                    buffer.kind = BufferKind::Temp
                }
                _ => {}
            }
        }
        plan
    }

    /// Buffers of one kind, with their ids.
    pub fn buffers_where(
        &self,
        keep: impl Fn(&BufferKind) -> bool,
    ) -> impl Iterator<Item = (BufferId, &BufferDecl)> {
        self.buffers
            .iter()
            .enumerate()
            .filter(move |(_, b)| keep(&b.kind))
            .map(|(i, b)| (BufferId(i as u32), b))
    }

    /// The input buffer of a kind.
    pub fn input(&self, kind: InputKind) -> Option<BufferId> {
        self.buffers_where(|k| *k == BufferKind::Input(kind))
            .next()
            .map(|(id, _)| id)
    }

    /// For each buffer: how many positions a row must see before somebody looks at its scores. A choice of `topk` takes all there
    /// are up to `topk`, so scores below that need not be computed. 0 if they are a result, or read by anything but such choices.
    pub fn unread_below(&self) -> Vec<usize> {
        let mut least: Vec<Option<usize>> = vec![None; self.buffers.len()];
        for part in self.ops.iter().flat_map(|node| node.op.parts()) {
            for id in part.access().reads {
                let topk = match part {
                    Op::IndexSelect { scores, topk, .. } if *scores == id => *topk,
                    _ => 0,
                };
                let least = &mut least[id.index()];
                *least = Some(least.map_or(topk, |n| n.min(topk)));
            }
        }
        let temp = |b: &BufferDecl| b.kind == BufferKind::Temp;
        let pairs = self.buffers.iter().zip(least);
        pairs
            .map(|(b, least)| least.filter(|_| temp(b)).unwrap_or(0))
            .collect()
    }

    /// The states that the plan touches.
    pub fn states(&self) -> Vec<StateDecl> {
        self.buffers
            .iter()
            .filter_map(|b| match b.kind {
                BufferKind::State(kind) => Some(StateDecl {
                    name: b.name.clone(),
                    kind,
                    dtype: b.dtype,
                    shape: b.shape.clone(),
                }),
                _ => None,
            })
            .collect()
    }
}

/// Builds a plan; weights, states and inputs are declared on first use.
#[derive(Debug)]
pub struct PlanBuilder {
    plan: Plan,
    by_name: HashMap<String, BufferId>,
    extents: InputExtents,
}

impl PlanBuilder {
    /// An empty plan for rank 0 of 1, with as many output rows as rows.
    pub fn new(name: &str, step: StepKind, geometry: CacheGeometry) -> Self {
        let plan = Plan {
            name: name.into(),
            step,
            geometry,
            rank: 0,
            world_size: 1,
            buffers: Vec::new(),
            ops: Vec::new(),
        };
        Self {
            plan,
            by_name: HashMap::new(),
            extents: InputExtents {
                outputs: step.tokens(),
                ..InputExtents::default()
            },
        }
    }

    /// Sets what the capacity of inputs depends on; to be called before such inputs are declared.
    pub fn extents(&mut self, extents: InputExtents) {
        self.extents = extents;
    }

    /// Sets rank and world size.
    pub fn rank(&mut self, rank: usize, world_size: usize) {
        self.plan.rank = rank;
        self.plan.world_size = world_size;
    }

    /// Declares a buffer.
    ///
    /// # Panics
    /// If the name is taken by a different declaration: a bug in the emitter.
    pub fn declare(&mut self, decl: BufferDecl) -> BufferId {
        if let Some(&id) = self.by_name.get(&decl.name) {
            assert_eq!(
                self.plan.buffers[id.index()],
                decl,
                "buffer {} is declared twice, differently",
                decl.name
            );
            return id;
        }
        let id = BufferId(u32::try_from(self.plan.buffers.len()).expect("fewer than 2^32 buffers"));
        self.by_name.insert(decl.name.clone(), id);
        self.plan.buffers.push(decl);
        id
    }

    fn simple(
        &mut self,
        name: &str,
        kind: BufferKind,
        dtype: GgmlType,
        shape: &[usize],
        rows: Rows,
    ) -> BufferId {
        self.declare(BufferDecl {
            name: name.into(),
            kind,
            dtype,
            shape: shape.to_vec(),
            rows,
            placement: Placement::Replicated,
        })
    }

    /// A weight.
    pub fn weight(&mut self, name: &str, dtype: GgmlType, shape: &[usize]) -> BufferId {
        self.simple(name, BufferKind::Weight, dtype, shape, Rows::Whole)
    }

    /// Paged state with rows of `width` elements of `dtype`.
    pub fn paged_state(&mut self, name: &str, dtype: GgmlType, width: usize) -> BufferId {
        let bytes_per_token = dtype.row_bytes(width).unwrap_or(0);
        self.simple(
            name,
            BufferKind::State(StateKind::Paged { bytes_per_token }),
            dtype,
            &[width],
            Rows::Whole,
        )
    }

    /// An input; the same one at every call.
    pub fn input(&mut self, kind: InputKind) -> BufferId {
        let shape = kind.shape(self.plan.step, self.plan.geometry, self.extents);
        self.simple(
            kind.name(),
            BufferKind::Input(kind),
            kind.dtype(),
            &shape,
            kind.rows(),
        )
    }

    /// A carry of one i32 for each of `slots` sequence slots.
    pub fn carry(&mut self, name: &str, slots: usize) -> BufferId {
        self.simple(
            name,
            BufferKind::Carry,
            GgmlType::I32,
            &[slots],
            Rows::Whole,
        )
    }

    /// A temporary.
    pub fn temp(&mut self, name: &str, dtype: GgmlType, shape: &[usize], rows: Rows) -> BufferId {
        self.simple(name, BufferKind::Temp, dtype, shape, rows)
    }

    /// A result.
    pub fn result(&mut self, name: &str, dtype: GgmlType, shape: &[usize], rows: Rows) -> BufferId {
        self.simple(name, BufferKind::Result, dtype, shape, rows)
    }

    /// Appends an operation.
    pub fn op(&mut self, label: &str, op: Op) {
        self.plan.ops.push(OpNode {
            label: label.into(),
            op,
        });
    }

    /// The plan so far.
    pub fn finish(self) -> Plan {
        self.plan
    }
}
