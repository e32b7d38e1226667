//! The indexer and latent attention.

use glim_plan::Op;

use super::Builder;

pub(super) fn index_score(_b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    Err(format!("there is no kernel for {}", op.kind()))
}

pub(super) fn index_select(_b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    Err(format!("there is no kernel for {}", op.kind()))
}

pub(super) fn attend(_b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    Err(format!("there is no kernel for {}", op.kind()))
}
