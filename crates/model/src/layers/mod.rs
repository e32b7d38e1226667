//! Parts of a decoder layer, each a function that emits operations.

pub(crate) mod ffn;
pub(crate) mod indexer;
pub(crate) mod mla;

use glim_plan::{
    BufferDecl, BufferId, BufferKind, CollectiveId, Cols, Gather, GgmlType, InputKind, Op, Paging,
    PlanBuilder, Precision, RopeSpec, Rows, StateDecl, StepKind,
};

use crate::arch::{EmitError, EmitRequest};
use crate::catalogue::Role;
use crate::config::Config;
use crate::inventory::Inventory;

/// What emitting a layer needs: the plan so far, the weights, and names made from the layer's number.
pub(crate) struct Emitter<'a> {
    pub(crate) b: PlanBuilder,
    pub(crate) inventory: &'a Inventory,
    pub(crate) request: &'a EmitRequest,
    /// The layer that is being emitted; `None` for what occurs once.
    pub(crate) layer: Option<usize>,
    /// Collectives so far.
    pub(crate) collectives: u32,
}

impl Emitter<'_> {
    pub(crate) fn config(&self) -> &Config {
        self.inventory.config()
    }

    /// Capacity in rows.
    pub(crate) fn rows(&self) -> usize {
        self.request.step.tokens()
    }

    /// `blk.N.what`, or `what` outside layers.
    pub(crate) fn name(&self, what: &str) -> String {
        match self.layer {
            Some(layer) => format!("blk.{layer}.{what}"),
            None => what.to_owned(),
        }
    }

    /// This rank's part of a weight.
    pub(crate) fn weight(&mut self, role: Role) -> Result<BufferId, EmitError> {
        let weight = self.inventory.weight(role, self.layer, self.request.rank);
        let weight = weight.ok_or_else(|| self.no_weight(role))?;
        Ok(self.b.declare(BufferDecl {
            name: weight.name,
            kind: BufferKind::Weight,
            dtype: weight.ty,
            shape: weight.shape.to_vec(),
            rows: Rows::Whole,
            placement: weight.placement,
        }))
    }

    /// Length of an axis of a weight on each rank.
    pub(crate) fn lens(&self, role: Role, axis: usize) -> Result<Vec<usize>, EmitError> {
        let lens = self.inventory.lens(role, self.layer, axis);
        lens.ok_or_else(|| self.no_weight(role))
    }

    /// The same on this rank.
    pub(crate) fn local(&self, role: Role, axis: usize) -> Result<usize, EmitError> {
        let lens = self.lens(role, axis)?;
        let own = lens.get(self.request.rank).copied();
        own.ok_or_else(|| self.no_weight(role))
    }

    fn no_weight(&self, role: Role) -> EmitError {
        EmitError::NoWeight {
            name: role.gguf_name(self.layer),
        }
    }

    /// The sum of the ranks' rows of the residual's width; of one rank alone, what it has.
    pub(crate) fn all_reduce(&mut self, what: &str, x: BufferId) -> BufferId {
        if self.request.world_size == 1 {
            return x;
        }
        let out = self.temp(&format!("{what}.out"), &[self.config().hidden_size]);
        let (id, wire) = (self.collective(), self.request.wire);
        self.op(what, Op::AllReduce { id, wire, x, out });
        out
    }

    /// Puts the ranks' parts side by side, if there are any.
    pub(crate) fn all_gather(&mut self, what: &str, gathers: Vec<Gather>) {
        if gathers.is_empty() {
            return;
        }
        let (id, wire) = (self.collective(), self.request.wire);
        self.op(what, Op::AllGather { id, wire, gathers });
    }

    fn collective(&mut self) -> CollectiveId {
        self.collectives += 1;
        CollectiveId(self.collectives - 1)
    }

    /// An f32 temporary with a row of `shape` for each row of the step.
    pub(crate) fn temp(&mut self, what: &str, shape: &[usize]) -> BufferId {
        let shape: Vec<usize> = std::iter::once(self.rows())
            .chain(shape.iter().copied())
            .collect();
        let name = self.name(what);
        self.b.temp(&name, GgmlType::F32, &shape, Rows::Tokens)
    }

    /// The same of i32.
    pub(crate) fn temp_i32(&mut self, what: &str, width: usize) -> BufferId {
        let (rows, name) = (self.rows(), self.name(what));
        self.b
            .temp(&name, GgmlType::I32, &[rows, width], Rows::Tokens)
    }

    pub(crate) fn state(&mut self, decl: &StateDecl) -> BufferId {
        self.b
            .paged_state(&decl.name, decl.dtype, decl.shape.iter().product())
    }

    pub(crate) fn op(&mut self, what: &str, op: Op) {
        let label = self.name(what);
        self.b.op(&label, op);
    }

    pub(crate) fn paging(&mut self) -> Paging {
        Paging {
            positions: self.b.input(InputKind::Positions),
            cu_seqlens: self.b.input(InputKind::CuSeqlens),
            block_tables: self.b.input(InputKind::BlockTables),
        }
    }

    /// RMSNorm of a range of columns; `what` names the operation, `what.out` its result.
    pub(crate) fn rms_norm(
        &mut self,
        what: &str,
        x: Cols,
        role: Role,
        eps: f32,
    ) -> Result<BufferId, EmitError> {
        let weight = self.weight(role)?;
        let out = self.temp(&format!("{what}.out"), &[x.len]);
        self.op(
            what,
            Op::RmsNorm {
                x,
                weight,
                eps,
                out,
            },
        );
        Ok(out)
    }

    /// Products of one input with several weights: `(role, shape of a result's row on this rank)` each. Results are named
    /// after the weights; the operation after all of them.
    pub(crate) fn linear(
        &mut self,
        x: BufferId,
        parts: &[(Role, &[usize])],
        precision: Precision,
    ) -> Result<Vec<BufferId>, EmitError> {
        let out =
            |(role, shape): &(Role, &[usize])| self.temp(&format!("{}.out", stem(*role)), shape);
        let outs: Vec<BufferId> = parts.iter().map(out).collect();
        let roles: Vec<Role> = parts.iter().map(|(role, _)| *role).collect();
        self.products(x, &roles, outs.clone(), precision)?;
        Ok(outs)
    }

    /// The same where each rank needs the results whole: `(role, shape of the whole result's row)`. What ranks hold a part of goes
    /// to `gathers`, and is there once these are gathered.
    pub(crate) fn linear_whole(
        &mut self,
        x: BufferId,
        parts: &[(Role, &[usize])],
        precision: Precision,
        gathers: &mut Vec<Gather>,
    ) -> Result<Vec<BufferId>, EmitError> {
        let mut outs = Vec::with_capacity(parts.len());
        let mut wholes = Vec::with_capacity(parts.len());
        for (role, shape) in parts {
            let whole = self.temp(&format!("{}.out", stem(*role)), shape);
            wholes.push(whole);
            let rows = self.local(*role, 0)?;
            if rows == shape.iter().product::<usize>() {
                outs.push(whole);
                continue;
            }
            // Whole heads, if a row has any.
            let inner: usize = shape[1..].iter().product();
            let lens: Vec<usize> = self.lens(*role, 0)?.iter().map(|n| n / inner).collect();
            if lens.contains(&0) {
                return Err(EmitError::IdleRank {
                    name: role.gguf_name(self.layer),
                    world_size: self.request.world_size,
                });
            }
            let mut own = shape.to_vec();
            own[0] = rows / inner;
            let part = self.temp(&format!("{}.part", stem(*role)), &own);
            outs.push(part);
            gathers.push(Gather {
                x: part,
                out: whole,
                lens,
            });
        }
        let roles: Vec<Role> = parts.iter().map(|(role, _)| *role).collect();
        self.products(x, &roles, outs, precision)?;
        Ok(wholes)
    }

    fn products(
        &mut self,
        x: BufferId,
        roles: &[Role],
        outs: Vec<BufferId>,
        precision: Precision,
    ) -> Result<(), EmitError> {
        let weights = roles.iter().map(|role| self.weight(*role));
        let weights = weights.collect::<Result<_, _>>()?;
        let names: Vec<&str> = roles.iter().map(|role| stem(*role)).collect();
        let label = names.join("+");
        self.op(
            &label,
            Op::Linear {
                x,
                weights,
                outs,
                precision,
            },
        );
        Ok(())
    }

    /// One product.
    pub(crate) fn linear1(
        &mut self,
        x: BufferId,
        role: Role,
        shape: &[usize],
    ) -> Result<BufferId, EmitError> {
        Ok(self.linear(x, &[(role, shape)], Precision::Fast)?[0])
    }

    pub(crate) fn add(&mut self, what: &str, a: BufferId, b: BufferId) -> BufferId {
        let out = self.temp(&format!("{what}.out"), &[self.config().hidden_size]);
        self.op(what, Op::Add { a, b, out });
        out
    }

    /// The model's rotation, of `qk_rope_head_dim` elements from `start` on.
    pub(crate) fn rope(
        &mut self,
        what: &str,
        x: BufferId,
        start: usize,
        style: glim_plan::RopeStyle,
    ) {
        let spec = RopeSpec {
            start,
            n: self.config().qk_rope_head_dim,
            theta: self.config().rope_theta,
            style,
        };
        let positions = self.b.input(InputKind::Positions);
        self.op(what, Op::Rope { x, positions, spec });
    }
}

/// What a weight is called in labels.
fn stem(role: Role) -> &'static str {
    role.gguf_suffix().trim_end_matches(".weight")
}

/// All columns of a buffer whose last axis has `len` elements.
pub(crate) fn all(buffer: BufferId, len: usize) -> Cols {
    Cols {
        buffer,
        start: 0,
        len,
    }
}

/// Output rows of a step that wants the last row of each sequence.
pub(crate) fn last_rows(step: StepKind) -> usize {
    match step {
        StepKind::Decode { rows } => rows,
        StepKind::Prefill { sequences, .. } => sequences,
    }
}
