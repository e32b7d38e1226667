//! The router and the experts.

use glim_plan::Op;

use super::Builder;

pub(super) fn route(_b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    Err(format!("there is no kernel for {}", op.kind()))
}

pub(super) fn expert_ffn(_b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    Err(format!("there is no kernel for {}", op.kind()))
}
