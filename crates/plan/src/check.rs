//! What must hold of a plan before anything runs it.
//!
//! The walk follows the operations in order and keeps, for each buffer, when it was written and when it was read last. The
//! faults it finds are those that otherwise show as garbage text: an output buffer that nobody read, a buffer read before it
//! was written, a cache that a step forgot to append, ranks that enter different collectives.

use std::collections::HashMap;

use thiserror::Error;

use crate::buffer::{BufferId, BufferKind, StateKind};
use crate::op::{Op, OpNode};
use crate::plan::{Plan, StateDecl};
use crate::shape::validate;

/// A rule that a plan breaks. Every message names the plan, the operation and the buffer.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum CheckError {
    /// Nothing wrote the buffer before this operation reads it.
    #[error("plan {plan}: {op} reads {buffer} before anything has written it")]
    ReadBeforeWrite {
        /// Plan.
        plan: String,
        /// Label of the operation.
        op: String,
        /// Buffer.
        buffer: String,
    },
    /// A temporary is written, and nothing reads it afterwards: a phantom output.
    #[error("plan {plan}: {op} writes {buffer}, and nothing reads it: a phantom output")]
    PhantomOutput {
        /// Plan.
        plan: String,
        /// Label of the last writer.
        op: String,
        /// Buffer.
        buffer: String,
    },
    /// The operation names one buffer in two roles without declaring an update in place.
    #[error(
        "plan {plan}: {op} uses {buffer} both as {first} and as {second} without declaring an update in place"
    )]
    Aliasing {
        /// Plan.
        plan: String,
        /// Label.
        op: String,
        /// Buffer.
        buffer: String,
        /// One role.
        first: &'static str,
        /// The other.
        second: &'static str,
    },
    /// A buffer is written twice; only an update in place may change a written buffer.
    #[error(
        "plan {plan}: {op} overwrites {buffer}, which {earlier} wrote; only an update in place may change it"
    )]
    Overwrite {
        /// Plan.
        plan: String,
        /// Label.
        op: String,
        /// Buffer.
        buffer: String,
        /// First writer.
        earlier: String,
    },
    /// A weight or an input is written, or state is written past its append.
    #[error(
        "plan {plan}: {op} writes {buffer}, which is {kind} and cannot be written by an operation in this way"
    )]
    Immutable {
        /// Plan.
        plan: String,
        /// Label.
        op: String,
        /// Buffer.
        buffer: String,
        /// Its kind.
        kind: String,
    },
    /// Shapes, types or rows of an operation do not match.
    #[error("plan {plan}: {op} ({kind}): {rule}")]
    Shape {
        /// Plan.
        plan: String,
        /// Label.
        op: String,
        /// Kind of operation.
        kind: String,
        /// What was found and what was expected.
        rule: String,
    },
    /// A buffer's last axis is not a whole number of blocks of its type.
    #[error(
        "plan {plan}: {buffer} is {shape:?} of {dtype}: a row must be a whole number of blocks of {block}"
    )]
    Block {
        /// Plan.
        plan: String,
        /// Buffer.
        buffer: String,
        /// Shape.
        shape: Vec<usize>,
        /// Type.
        dtype: String,
        /// Elements of a block.
        block: usize,
    },
    /// A result that nothing writes.
    #[error("plan {plan}: nothing writes the result {buffer}")]
    MissingResult {
        /// Plan.
        plan: String,
        /// Buffer.
        buffer: String,
    },
    /// A state of the model that the plan does not append.
    #[error(
        "plan {plan} does not append the state {state}: later steps would read rows that were never written"
    )]
    StateNotAppended {
        /// Plan.
        plan: String,
        /// State.
        state: String,
    },
    /// A state is not what the model declares.
    #[error("plan {plan}: state {state} is {found}, but the model declares {expected}")]
    StateDiffers {
        /// Plan.
        plan: String,
        /// State.
        state: String,
        /// In the plan.
        found: String,
        /// In the model.
        expected: String,
    },
    /// Ranks enter different collectives.
    #[error(
        "rank {rank} of plan {plan} enters {found} as collective {index}, but rank {first_rank} enters {expected}: they would wait for each other for ever"
    )]
    CollectivesDiffer {
        /// Plan.
        plan: String,
        /// The rank that differs.
        rank: usize,
        /// The rank compared with.
        first_rank: usize,
        /// Index in the list.
        index: usize,
        /// What it enters.
        found: String,
        /// What the first rank enters.
        expected: String,
    },
}

#[derive(Default, Clone)]
struct Life {
    written_by: Option<usize>,
    last_change: Option<usize>,
    read_since_change: bool,
    appended: bool,
}

/// Checks one plan: order of reads and writes, phantom outputs, aliasing, shapes, results, appended states.
///
/// # Errors
/// The first rule that is broken, in the order of the operations.
pub fn check(plan: &Plan) -> Result<(), CheckError> {
    Walk {
        plan,
        lives: vec![Life::default(); plan.buffers.len()],
    }
    .run()
}

struct Walk<'a> {
    plan: &'a Plan,
    lives: Vec<Life>,
}

impl Walk<'_> {
    fn run(mut self) -> Result<(), CheckError> {
        self.blocks()?;
        for (i, node) in self.plan.ops.iter().enumerate() {
            self.aliasing(node)?;
            validate(self.plan, &node.op).map_err(|rule| CheckError::Shape {
                plan: self.plan.name.clone(),
                op: node.label.clone(),
                kind: node.op.kind().into(),
                rule,
            })?;
            // Part by part, so that a fused operation is held to the order of its parts.
            for part in node.op.parts() {
                let access = part.access();
                for id in &access.reads {
                    self.read(node, *id)?;
                }
                for id in &access.updates {
                    self.read(node, *id)?;
                    self.change(i, node, *id, true)?;
                }
                for id in &access.appends {
                    self.append(node, *id)?;
                }
                for id in &access.writes {
                    self.change(i, node, *id, false)?;
                }
            }
        }
        self.end()
    }

    fn blocks(&self) -> Result<(), CheckError> {
        for b in &self.plan.buffers {
            let cols = b.shape.last().copied().unwrap_or(0);
            if cols == 0 || b.dtype.row_bytes(cols).is_none() {
                return Err(CheckError::Block {
                    plan: self.plan.name.clone(),
                    buffer: b.name.clone(),
                    shape: b.shape.clone(),
                    dtype: b.dtype.to_string(),
                    block: b.dtype.block_elems(),
                });
            }
        }
        Ok(())
    }

    fn aliasing(&self, node: &OpNode) -> Result<(), CheckError> {
        for part in node.op.parts() {
            let access = part.access();
            let mut roles: Vec<(BufferId, &'static str)> = Vec::new();
            for (list, role) in [
                (&access.writes, "an output"),
                (&access.updates, "an update"),
                (&access.appends, "an append"),
            ] {
                for id in list {
                    if let Some((_, first)) = roles.iter().find(|(other, _)| other == id) {
                        return Err(self.alias(node, *id, first, role));
                    }
                    roles.push((*id, role));
                }
            }
            for id in &access.reads {
                if let Some((_, first)) = roles.iter().find(|(other, _)| other == id) {
                    return Err(self.alias(node, *id, first, "an input"));
                }
            }
        }
        Ok(())
    }

    fn alias(
        &self,
        node: &OpNode,
        id: BufferId,
        first: &'static str,
        second: &'static str,
    ) -> CheckError {
        CheckError::Aliasing {
            plan: self.plan.name.clone(),
            op: node.label.clone(),
            buffer: self.plan.buffer(id).name.clone(),
            first,
            second,
        }
    }

    fn read(&mut self, node: &OpNode, id: BufferId) -> Result<(), CheckError> {
        let life = &mut self.lives[id.index()];
        let unwritten = match self.plan.buffer(id).kind {
            BufferKind::Temp | BufferKind::Result => life.written_by.is_none(),
            // A row attends to itself: paged state is read after this step's rows are in it.
            BufferKind::State(StateKind::Paged { .. }) => !life.appended,
            _ => false,
        };
        if unwritten {
            return Err(CheckError::ReadBeforeWrite {
                plan: self.plan.name.clone(),
                op: node.label.clone(),
                buffer: self.plan.buffer(id).name.clone(),
            });
        }
        life.read_since_change = true;
        Ok(())
    }

    fn change(
        &mut self,
        index: usize,
        node: &OpNode,
        id: BufferId,
        update: bool,
    ) -> Result<(), CheckError> {
        let buffer = self.plan.buffer(id);
        let allowed = match buffer.kind {
            BufferKind::Temp | BufferKind::Result => true,
            BufferKind::Carry => update,
            BufferKind::Weight | BufferKind::Input(_) | BufferKind::State(_) => false,
        };
        if !allowed {
            return Err(CheckError::Immutable {
                plan: self.plan.name.clone(),
                op: node.label.clone(),
                buffer: buffer.name.clone(),
                kind: format!("{:?}", buffer.kind),
            });
        }
        let life = &mut self.lives[id.index()];
        match life.written_by {
            Some(earlier) if !update => Err(CheckError::Overwrite {
                plan: self.plan.name.clone(),
                op: node.label.clone(),
                buffer: buffer.name.clone(),
                earlier: self.plan.ops[earlier].label.clone(),
            }),
            _ => {
                life.written_by.get_or_insert(index);
                life.last_change = Some(index);
                life.read_since_change = false;
                Ok(())
            }
        }
    }

    fn append(&mut self, node: &OpNode, id: BufferId) -> Result<(), CheckError> {
        let buffer = self.plan.buffer(id);
        if !matches!(buffer.kind, BufferKind::State(_)) {
            return Err(CheckError::Immutable {
                plan: self.plan.name.clone(),
                op: node.label.clone(),
                buffer: buffer.name.clone(),
                kind: format!("{:?}", buffer.kind),
            });
        }
        self.lives[id.index()].appended = true;
        Ok(())
    }

    fn end(self) -> Result<(), CheckError> {
        for (buffer, life) in self.plan.buffers.iter().zip(&self.lives) {
            let plan = self.plan.name.clone();
            match buffer.kind {
                BufferKind::Temp => {
                    if let (Some(op), false) = (life.last_change, life.read_since_change) {
                        let op = self.plan.ops[op].label.clone();
                        return Err(CheckError::PhantomOutput {
                            plan,
                            op,
                            buffer: buffer.name.clone(),
                        });
                    }
                }
                BufferKind::Result if life.written_by.is_none() => {
                    return Err(CheckError::MissingResult {
                        plan,
                        buffer: buffer.name.clone(),
                    });
                }
                BufferKind::State(_) if !life.appended => {
                    return Err(CheckError::StateNotAppended {
                        plan,
                        state: buffer.name.clone(),
                    });
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Checks that a plan appends every state that the model owns, and that both mean the same rows.
///
/// # Errors
/// The first state that the plan lacks or declares differently.
pub fn check_states(plan: &Plan, model: &[StateDecl]) -> Result<(), CheckError> {
    let own: HashMap<String, StateDecl> = plan
        .states()
        .into_iter()
        .map(|s| (s.name.clone(), s))
        .collect();
    for state in model {
        match own.get(&state.name) {
            None => {
                return Err(CheckError::StateNotAppended {
                    plan: plan.name.clone(),
                    state: state.name.clone(),
                });
            }
            Some(found) if found != state => {
                return Err(CheckError::StateDiffers {
                    plan: plan.name.clone(),
                    state: state.name.clone(),
                    found: format!("{found:?}"),
                    expected: format!("{state:?}"),
                });
            }
            Some(_) => {}
        }
    }
    check(plan)
}

/// Checks that all ranks' plans of one step enter the same collectives in the same order, with the same wire types and shapes.
///
/// # Errors
/// The first collective that differs from rank 0's list.
pub fn check_ranks(plans: &[Plan]) -> Result<(), CheckError> {
    let Some((first, rest)) = plans.split_first() else {
        return Ok(());
    };
    let expected = collectives(first);
    for plan in rest {
        let found = collectives(plan);
        for index in 0..expected.len().max(found.len()) {
            let none = || "no collective".to_string();
            let (f, e) = (found.get(index), expected.get(index));
            if f != e {
                return Err(CheckError::CollectivesDiffer {
                    plan: plan.name.clone(),
                    rank: plan.rank,
                    first_rank: first.rank,
                    index,
                    found: f.cloned().unwrap_or_else(none),
                    expected: e.cloned().unwrap_or_else(none),
                });
            }
        }
    }
    Ok(())
}

fn collectives(plan: &Plan) -> Vec<String> {
    let mut list = Vec::new();
    for part in plan.ops.iter().flat_map(|node| node.op.parts()) {
        if let Some((id, wire)) = part.collective() {
            let whole = |id: &BufferId| format!("{:?}", plan.buffer(*id).shape);
            let mut shapes: Vec<String> = part.access().writes.iter().map(whole).collect();
            // A gathered whole does not tell what each rank brings to it.
            if let Op::AllGather { gathers, .. } = part {
                let parts = shapes.iter_mut().zip(gathers);
                parts.for_each(|(shape, g)| shape.push_str(&format!(" in {:?}", g.lens)));
            }
            let shapes = shapes.join(", ");
            list.push(format!("{} {} of {shapes} as {wire}", part.kind(), id.0));
        }
    }
    list
}
