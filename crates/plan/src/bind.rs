//! What a plan names, found in a backend's memory.
//!
//! Every backend makes the same checks before it runs a plan: that the plan is for its rank, that each weight is there with the type and
//! the shape that the plan reads, each state as it was allocated, and as many carries as there are sequences. They stand here once; a
//! backend says what it holds ([`Resident`]), and gets the place of each buffer that [`arrange()`](crate::arrange()) does not place.

use glim_quant::GgmlType;

use crate::backend::BackendError;
use crate::buffer::{BufferDecl, BufferKind, StateKind};
use crate::plan::{Plan, StateDecl};

/// A backend's memory, as far as plans name it.
pub trait Resident {
    /// Where something lies: an index, an address.
    type Place;

    /// Name for people.
    fn name(&self) -> String;

    /// This rank, and how many there are.
    fn rank(&self) -> (usize, usize);

    /// Tokens of a block of paged state.
    fn block_size(&self) -> usize;

    /// Rows of a carry.
    fn sequence_slots(&self) -> usize;

    /// A weight that was loaded: type, shape and place.
    fn weight(&self, name: &str) -> Option<(GgmlType, &[usize], Self::Place)>;

    /// A state that was allocated.
    fn state(&self, name: &str) -> Option<(&StateDecl, Self::Place)>;

    /// A carry, made when it is first asked for.
    ///
    /// # Errors
    /// If there is no room for it.
    fn carry(&mut self, name: &str) -> Result<Self::Place, BackendError>;
}

/// Where each of a plan's weights, states and carries lies, by buffer; `None` for its inputs, temporaries and results.
///
/// # Errors
/// If the plan is for another rank, names something that is not there or is something else, or has a buffer that backends do not run on.
pub fn bind<R: Resident>(
    plan: &Plan,
    resident: &mut R,
) -> Result<Vec<Option<R::Place>>, BackendError> {
    let (rank, world_size) = resident.rank();
    if (plan.rank, plan.world_size) != (rank, world_size) {
        let (other, of) = (plan.rank, plan.world_size);
        let reason = format!("it is rank {rank} of {world_size}, not {other} of {of}");
        return Err(unsupported(resident, plan, reason));
    }
    plan.buffers
        .iter()
        .map(|b| place(plan, b, resident))
        .collect()
}

fn place<R: Resident>(
    plan: &Plan,
    b: &BufferDecl,
    resident: &mut R,
) -> Result<Option<R::Place>, BackendError> {
    let missing = |what, action| BackendError::Missing {
        plan: plan.name.clone(),
        what,
        name: b.name.clone(),
        action,
    };
    match b.kind {
        BufferKind::Weight => {
            let weight = resident.weight(&b.name);
            let (ty, shape, place) = weight.ok_or_else(|| missing("weight", "loaded"))?;
            if ty != b.dtype || shape != b.shape {
                return Err(BackendError::WeightDiffers {
                    weight: b.name.clone(),
                    plan: plan.name.clone(),
                    found: format!("{ty} {shape:?}"),
                    expected: format!("{} {:?}", b.dtype, b.shape),
                });
            }
            Ok(Some(place))
        }
        BufferKind::State(kind) => {
            let state = resident.state(&b.name);
            let same = |decl: &StateDecl| {
                (decl.kind, decl.dtype, &decl.shape) == (kind, b.dtype, &b.shape)
            };
            let state = state.filter(|(decl, _)| same(decl));
            let (_, place) = state.ok_or_else(|| missing("state", "allocated"))?;
            if b.dtype != GgmlType::F32 || !matches!(kind, StateKind::Paged { .. }) {
                let reason = format!("state {} is not paged F32", b.name);
                return Err(unsupported(resident, plan, reason));
            }
            if plan.geometry.block_size != resident.block_size() {
                let reason = format!("its blocks are not of {} tokens", resident.block_size());
                return Err(unsupported(resident, plan, reason));
            }
            Ok(Some(place))
        }
        BufferKind::Carry => {
            let slots = resident.sequence_slots();
            if b.elements() != slots {
                let reason = format!("carry {} does not have {slots} slots", b.name);
                return Err(unsupported(resident, plan, reason));
            }
            resident.carry(&b.name).map(Some)
        }
        // Operations read and write words of four bytes.
        BufferKind::Temp | BufferKind::Result if !is_of_words(b.dtype) => {
            let reason = format!("its buffer {} is {}, not F32 or I32", b.name, b.dtype);
            Err(unsupported(resident, plan, reason))
        }
        BufferKind::Input(_) | BufferKind::Temp | BufferKind::Result => Ok(None),
    }
}

fn is_of_words(ty: GgmlType) -> bool {
    matches!(ty, GgmlType::F32 | GgmlType::I32)
}

fn unsupported<R: Resident>(resident: &R, plan: &Plan, reason: String) -> BackendError {
    BackendError::Unsupported {
        backend: resident.name(),
        plan: plan.name.clone(),
        reason,
    }
}
