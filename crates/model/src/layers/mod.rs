//! Parts of a decoder layer, each a function that emits operations.

pub(crate) mod ffn;
pub(crate) mod indexer;
pub(crate) mod mla;

use glim_plan::{
    BufferId, Cols, GgmlType, InputKind, Op, Paging, PlanBuilder, Precision, RopeSpec, Rows,
    StateDecl, StepKind,
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

    pub(crate) fn weight(&mut self, role: Role) -> Result<BufferId, EmitError> {
        match self.inventory.weight(role, self.layer) {
            Some((name, ty, shape)) => Ok(self.b.weight(&name, ty, shape)),
            None => Err(EmitError::NoWeight {
                name: role.gguf_name(self.layer),
            }),
        }
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

    /// Products of one input with several weights: `(role, shape of a result's row)` each. Results are named
    /// after the weights; the operation after the first of them.
    pub(crate) fn linear(
        &mut self,
        x: BufferId,
        parts: &[(Role, &[usize])],
        precision: Precision,
    ) -> Result<Vec<BufferId>, EmitError> {
        let mut weights = Vec::with_capacity(parts.len());
        let mut outs = Vec::with_capacity(parts.len());
        let mut names = Vec::with_capacity(parts.len());
        for (role, shape) in parts {
            let what = role.gguf_suffix().trim_end_matches(".weight");
            weights.push(self.weight(*role)?);
            outs.push(self.temp(&format!("{what}.out"), shape));
            names.push(what);
        }
        self.op(
            &names.join("+"),
            Op::Linear {
                x,
                weights,
                outs: outs.clone(),
                precision,
            },
        );
        Ok(outs)
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
