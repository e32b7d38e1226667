//! The forms in which GGUF files hold the logical tensors.
//!
//! Besides the logical form itself: gate and up of the experts fused (`ffn_gate_up_exps`), `attn_kv_b` from before it
//! was split, and an output head tied to the embedding.

use glim_gguf::{Gguf, TensorInfo};

use super::Half;
use super::resolve::{Form, Stored};
use crate::catalogue::{Role, TensorSpec};

/// Name of the legacy, unsplit `kv_b` of `layer`.
pub(super) fn kv_b_name(layer: usize) -> String {
    format!("blk.{layer}.attn_kv_b.weight")
}

/// Where `spec` may come from, the preferred form first.
pub(super) fn forms(spec: &TensorSpec) -> Vec<Form> {
    let whole = Form::Whole(spec.name.clone());
    let Some(layer) = spec.layer else {
        return match spec.role {
            Role::Output => vec![whole, Form::Tied(Role::TokenEmbd.gguf_name(None))],
            _ => vec![whole],
        };
    };
    let gate_up = || format!("blk.{layer}.ffn_gate_up_exps.weight");
    match spec.role {
        Role::FfnGateExps => vec![whole, Form::GateUp(gate_up(), Half::First)],
        Role::FfnUpExps => vec![whole, Form::GateUp(gate_up(), Half::Second)],
        Role::AttnKB => vec![whole, Form::KvB(kv_b_name(layer), Half::First)],
        Role::AttnVB => vec![whole, Form::KvB(kv_b_name(layer), Half::Second)],
        Role::NextnSharedHeadNorm => vec![whole, Form::Tied(Role::OutputNorm.gguf_name(None))],
        _ => vec![whole],
    }
}

/// The file's tensors; an index into the result is one into [`Gguf::tensors`].
pub(super) fn stored(gguf: &Gguf) -> Vec<Stored> {
    let file = |part: usize| {
        let parts = gguf.parts();
        let name = parts
            .get(part)
            .filter(|_| parts.len() > 1)?
            .path
            .file_name()?;
        Some(name.display().to_string())
    };
    let tensor = |t: &TensorInfo| Stored {
        name: t.name.clone(),
        ty: t.ty,
        shape: t.shape(),
        is_fp8: false,
        file: file(t.part),
    };
    gguf.tensors().iter().map(tensor).collect()
}
