//! Where ranks meet.

use glim_plan::Op;

use super::Builder;

pub(super) fn all_reduce(_b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    Err(format!("there is no kernel for {}", op.kind()))
}

pub(super) fn all_gather(_b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    Err(format!("there is no kernel for {}", op.kind()))
}
