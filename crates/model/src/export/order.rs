//! The order of the tensors.
//!
//! llama.cpp's converter goes through the safetensors files by name, in each through the tensors by name, and emits a
//! tensor when its last part has come: the three stacks of experts, down before gate before up, when the last of a
//! layer's expert matrices has come; keys and values when `kv_b` has. A GGUF's tensors keep their order.

use std::collections::HashMap;
use std::path::Path;

use super::Mtp;
use crate::catalogue::Role;
use crate::checkpoint::{Checkpoint, HfFolder, Source, TensorDesc};

/// The checkpoint's tensors in the order of the file, each stored one once.
pub(super) fn order(checkpoint: &Checkpoint, mtp: Mtp) -> Vec<&TensorDesc> {
    let (place, experts_are_apart) = match checkpoint.source() {
        Source::Gguf(gguf) => ((0..gguf.tensors().len()).collect(), false),
        Source::Hf(folder) => (places(folder), true),
    };
    let descs = own_tensors(checkpoint, mtp);
    let last_part = |desc: &TensorDesc| {
        let parts = desc.stored().iter();
        parts.filter_map(|&index| place.get(index)).max().copied()
    };
    let mut last_expert: HashMap<Option<usize>, Option<usize>> = HashMap::new();
    if experts_are_apart {
        for desc in descs.iter().filter(|desc| is_experts(desc.role)) {
            let last = last_expert.entry(desc.layer).or_default();
            *last = (*last).max(last_part(desc));
        }
    }
    let complete_at = |desc: &TensorDesc| match last_expert.get(&desc.layer) {
        Some(last) if is_experts(desc.role) => *last,
        _ => last_part(desc),
    };
    let mut keyed: Vec<_> = descs
        .into_iter()
        .map(|desc| ((complete_at(desc), rank(desc.role)), desc))
        .collect();
    keyed.sort_by_key(|(key, _)| *key);
    keyed.into_iter().map(|(_, desc)| desc).collect()
}

/// All tensors but those that are another one once more.
pub(super) fn own_tensors(checkpoint: &Checkpoint, mtp: Mtp) -> Vec<&TensorDesc> {
    let mtp_tensors = match mtp {
        Mtp::Keep => checkpoint.mtp_tensors(),
        Mtp::Drop => &[],
    };
    let all: Vec<&TensorDesc> = checkpoint.tensors().iter().chain(mtp_tensors).collect();
    let stored_as = |role: Role| {
        all.iter()
            .find(|desc| desc.role == role)
            .map(|desc| desc.stored())
    };
    let is_copy = |desc: &TensorDesc| {
        let original = match desc.role {
            Role::Output => Role::TokenEmbd,
            Role::NextnSharedHeadNorm => Role::OutputNorm,
            _ => return false,
        };
        stored_as(original) == Some(desc.stored())
    };
    all.iter().copied().filter(|desc| !is_copy(desc)).collect()
}

/// For each of the folder's tensors its place in the order of files, then names.
fn places(folder: &HfFolder) -> Vec<usize> {
    let tensors = folder.tensors();
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    let key =
        |&index: &usize| -> (&Path, &str) { (folder.file(&tensors[index]), &tensors[index].name) };
    order.sort_by(|a, b| key(a).cmp(&key(b)));
    let mut places = vec![0; tensors.len()];
    for (place, index) in order.into_iter().enumerate() {
        places[index] = place;
    }
    places
}

fn is_experts(role: Role) -> bool {
    matches!(
        role,
        Role::FfnGateExps | Role::FfnUpExps | Role::FfnDownExps
    )
}

/// Order among tensors that are complete at the same moment.
fn rank(role: Role) -> u8 {
    match role {
        Role::FfnGateExps | Role::AttnVB => 1,
        Role::FfnUpExps => 2,
        _ => 0,
    }
}
