//! Products with weights: which kernel, which grid.

use glim_plan::Op;

use super::Builder;

pub(super) fn embed(_b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    Err(format!("there is no kernel for {}", op.kind()))
}

pub(super) fn linear(_b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    Err(format!("there is no kernel for {}", op.kind()))
}

pub(super) fn head_project(_b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    Err(format!("there is no kernel for {}", op.kind()))
}

pub(super) fn lm_head(_b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    Err(format!("there is no kernel for {}", op.kind()))
}
