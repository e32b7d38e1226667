//! GGUF files made by hand, field by field, so that they can be wrong in ways that the writer
//! refuses.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::path::{Path, PathBuf};

/// Value type ids, as the specification numbers them.
pub(crate) mod ty {
    pub(crate) const U32: u32 = 4;
    pub(crate) const BOOL: u32 = 7;
    pub(crate) const STRING: u32 = 8;
    pub(crate) const ARRAY: u32 = 9;
}

/// Tensor type ids.
pub(crate) const F32: u32 = 0;
pub(crate) const Q8_0: u32 = 8;

/// Bytes under construction.
#[derive(Clone)]
pub(crate) struct Raw(pub(crate) Vec<u8>);

impl Raw {
    /// Magic, version 3 and the counts.
    pub(crate) fn new(n_tensors: u64, n_keys: u64) -> Self {
        Self::with_version(3, n_tensors, n_keys)
    }

    pub(crate) fn with_version(version: u32, n_tensors: u64, n_keys: u64) -> Self {
        Raw(b"GGUF".to_vec())
            .u32(version)
            .u64(n_tensors)
            .u64(n_keys)
    }

    pub(crate) fn u8(mut self, x: u8) -> Self {
        self.0.push(x);
        self
    }

    pub(crate) fn u32(mut self, x: u32) -> Self {
        self.0.extend(x.to_le_bytes());
        self
    }

    pub(crate) fn u64(mut self, x: u64) -> Self {
        self.0.extend(x.to_le_bytes());
        self
    }

    /// A length and the bytes, which need not be UTF-8.
    pub(crate) fn string(mut self, bytes: impl AsRef<[u8]>) -> Self {
        self = self.u64(bytes.as_ref().len() as u64);
        self.0.extend(bytes.as_ref());
        self
    }

    /// A key and the type of its value.
    pub(crate) fn key(self, name: &str, ty: u32) -> Self {
        self.string(name).u32(ty)
    }

    pub(crate) fn u32_key(self, name: &str, x: u32) -> Self {
        self.key(name, ty::U32).u32(x)
    }

    pub(crate) fn tensor(self, name: &str, dims: &[u64], ty: u32, offset: u64) -> Self {
        let start = self.string(name).u32(dims.len() as u32);
        dims.iter()
            .fold(start, |raw, &dim| raw.u64(dim))
            .u32(ty)
            .u64(offset)
    }

    /// Pads to 32 bytes and appends `n` bytes of data: 0, 1, 2 …
    pub(crate) fn data(mut self, n: usize) -> Vec<u8> {
        self.0.resize(self.0.len().next_multiple_of(32), 0);
        self.0.extend((0..n).map(|i| i as u8));
        self.0
    }
}

/// The model that is built into glim, as llama.cpp's converter and quantiser wrote it.
pub(crate) fn tiny_model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/tiny-glm5/tiny-glm5-q8_0.gguf")
}
