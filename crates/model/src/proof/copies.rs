//! Tensors of two layers that hold the same bytes: what is left when a script wrote one layer twice.
//!
//! Tensors are compared by role, by the hash of their bytes. One kind of copy is sound: indexers of GLM-5.2, of which a layer may use
//! an earlier layer's. Some converters gave each such layer a copy of the tensors. That is believed where the metadata says
//! which layers share, and without metadata only where the copies are exactly GLM-5.2's published schedule (every fourth layer
//! from the second on has an indexer of its own): a lone copied indexer would otherwise pass for sharing.

use std::collections::HashMap;

use super::digest::Hash;
use super::report::{BadElement, Check, Level, Timer};
use super::stored::StoredTensor;
use super::words::counted;
use crate::checkpoint::{Checkpoint, Source};
use crate::config::{Config, IndexerKind};
use crate::presets::scheduled_kinds;

/// GLM-5.2's `index_topk_freq` and offset.
const PUBLISHED_SCHEDULE: (usize, usize) = (4, 3);

pub(super) fn check(checkpoint: &Checkpoint, tensors: &[StoredTensor<'_>], data: &[Hash]) -> Check {
    let timer = Timer::start(Level::File, "copies");
    let mut seen: HashMap<(&str, Hash), (usize, usize)> = HashMap::new();
    let (mut compared, mut shared) = (0, 0);
    let mut bad: Vec<(usize, usize)> = Vec::new();
    let sharing = Sharing::of(checkpoint);
    for (index, (tensor, data)) in tensors.iter().zip(data).enumerate() {
        let Some((layer, suffix)) = layer_and_suffix(tensor.name) else {
            continue;
        };
        compared += 1;
        let Some(&(earlier, first)) = seen.get(&(suffix, *data)) else {
            seen.insert((suffix, *data), (layer, index));
            continue;
        };
        // The hash is of bytes alone.
        if (tensors[first].ty, &tensors[first].shape) != (tensor.ty, &tensor.shape)
            || is_constant(tensor)
        {
            continue;
        }
        if suffix.contains("indexer.") && sharing.allows(layer, earlier) {
            shared += 1;
        } else {
            bad.push((first, index));
        }
    }
    let covered = format!("{} of layers, by role", counted(compared, "tensor"));
    let Some(&(first, copy)) = bad.first() else {
        let detail = match shared {
            0 => String::new(),
            _ => format!(
                "{} of shared indexers are copies, as {}",
                counted(shared, "tensor"),
                sharing.source()
            ),
        };
        return timer.passed(covered, 0, detail);
    };
    let (original, copy) = (&tensors[first], &tensors[copy]);
    let others = match bad.len() - 1 {
        0 => String::new(),
        n => format!(", and so for {n} more"),
    };
    let detail = format!(
        "`{}` holds the bytes of `{}`{others}; convert the file again from the original",
        copy.name, original.name
    );
    let first_bad = BadElement {
        tensor: copy.name.to_owned(),
        row: 0,
        col: 0,
        expected: "values of its own".to_owned(),
        found: format!("the bytes of {}", original.name),
    };
    timer.failed(covered, 0, detail, Some(first_bad))
}

/// `blk.3.attn_k_b.weight` is layer 3's `attn_k_b.weight`; of Hugging Face likewise.
fn layer_and_suffix(name: &str) -> Option<(usize, &str)> {
    let rest = name
        .strip_prefix("blk.")
        .or_else(|| name.strip_prefix("model.layers."))?;
    let (layer, suffix) = rest.split_once('.')?;
    Some((layer.parse().ok()?, suffix))
}

/// Whether all blocks of a tensor are the same: a bias of zeros, a norm of ones. Such tensors may be equal.
fn is_constant(tensor: &StoredTensor<'_>) -> bool {
    if tensor.data_len() < tensor.len {
        // Holes are zeros; what is written beside them, such as the rest of a page, must be too.
        let is_zero = |extent| tensor.read(extent).iter().all(|&byte| byte == 0);
        return tensor.extents.iter().all(is_zero);
    }
    let bytes = tensor.bytes();
    let rest = bytes.get(tensor.ty.block_bytes()..).unwrap_or_default();
    *rest == bytes[..rest.len()]
}

/// Which indexers may be copies of which.
struct Sharing<'a> {
    kinds: &'a [IndexerKind],
    /// The metadata says so; else it is the published schedule, or nothing is believed.
    is_declared: bool,
    is_published: bool,
}

impl<'a> Sharing<'a> {
    fn of(checkpoint: &'a Checkpoint) -> Self {
        let config: &Config = checkpoint.config();
        let is_declared = match checkpoint.source() {
            Source::Gguf(gguf) => {
                let key = format!("{}.attention.indexer.types", config.arch);
                gguf.metadata().get(&key).is_some()
            }
            Source::Hf(_) => true,
        };
        let (freq, offset) = PUBLISHED_SCHEDULE;
        let kinds = &config.indexer.kinds;
        Sharing {
            kinds,
            is_declared,
            is_published: *kinds == scheduled_kinds(kinds.len(), freq, offset),
        }
    }

    /// Whether `layer` may hold what `earlier` holds: it is shared, and both belong to the same full layer.
    fn allows(&self, layer: usize, earlier: usize) -> bool {
        let full_of = |layer: usize| {
            let kinds = self.kinds.get(..=layer)?;
            kinds.iter().rposition(|kind| *kind == IndexerKind::Full)
        };
        (self.is_declared || self.is_published)
            && self.kinds.get(layer) == Some(&IndexerKind::Shared)
            && full_of(layer) == full_of(earlier)
    }

    fn source(&self) -> &'static str {
        if self.is_declared {
            "the metadata declares"
        } else {
            "in the published GLM-5.2"
        }
    }
}
