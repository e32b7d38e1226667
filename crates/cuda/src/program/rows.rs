//! Operations that work row by row: norms, rotary embedding, caches, element by element.

use glim_plan::Op;

use super::Builder;

pub(super) fn rms_norm(_b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    Err(format!("there is no kernel for {}", op.kind()))
}

pub(super) fn layer_norm(_b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    Err(format!("there is no kernel for {}", op.kind()))
}

pub(super) fn rope(_b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    Err(format!("there is no kernel for {}", op.kind()))
}

pub(super) fn append(_b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    Err(format!("there is no kernel for {}", op.kind()))
}

pub(super) fn swiglu(_b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    Err(format!("there is no kernel for {}", op.kind()))
}

pub(super) fn add(_b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    Err(format!("there is no kernel for {}", op.kind()))
}

pub(super) fn select_rows(_b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    Err(format!("there is no kernel for {}", op.kind()))
}

pub(super) fn add_rms_norm(_b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    Err(format!("there is no kernel for {}", op.kind()))
}
