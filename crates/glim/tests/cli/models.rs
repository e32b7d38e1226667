//! Variants of the built-in model as files: split, of another architecture, with a faulty tensor.

use std::path::{Path, PathBuf};

use glim_gguf::{Gguf, Metadata, Writer};
use glim_plan::GgmlType;
use glim_testkit::assets;

/// What a variant changes.
#[derive(Default)]
pub(crate) struct Changes {
    /// Keys with string values.
    pub(crate) keys: Vec<(&'static str, &'static str)>,
    /// Tensors with another type and other bytes.
    pub(crate) tensors: Vec<(&'static str, GgmlType, Vec<u8>)>,
}

/// Writes a changed copy of the built-in model and gives its path.
pub(crate) fn variant(dir: &Path, name: &str, changes: &Changes) -> PathBuf {
    let path = dir.join(name);
    with_copy(changes, |writer| writer.write(&path).unwrap());
    path
}

/// Writes the built-in model as `parts` files.
pub(crate) fn split(dir: &Path, parts: usize) -> Vec<PathBuf> {
    with_copy(&Changes::default(), |writer| {
        writer.write_split(dir, "tiny", parts).unwrap()
    })
}

fn with_copy<T>(changes: &Changes, write: impl FnOnce(Writer<'_>) -> T) -> T {
    let original = Gguf::open(&assets::tiny_glm5()).unwrap();
    let mut metadata: Metadata = original.metadata().clone();
    for (key, value) in &changes.keys {
        metadata.set(*key, *value);
    }
    let mut writer = Writer::with_metadata(metadata);
    for t in original.tensors() {
        match changes.tensors.iter().find(|(name, ..)| *name == t.name) {
            Some((_, ty, bytes)) => writer.tensor(&t.name, &t.ggml_dims, *ty, bytes),
            None => writer.tensor(&t.name, &t.ggml_dims, t.ty, original.data(t)),
        }
    }
    write(writer)
}
