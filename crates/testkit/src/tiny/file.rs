//! A tiny model's keys and tensors: other stored forms of the same model, and faults.
//!
//! Each edit takes the file and gives it back, so that a test reads as what it does:
//! `Tiny::new(1).build().fuse_gate_up().drop_tensor("output_norm.weight")`.

use std::path::{Path, PathBuf};

use glim_gguf::{Gguf, Value, Writer};
use glim_quant::GgmlType;

use super::Dims;
use crate::encode::{decode, encode};

/// One tensor of a [`TinyFile`].
#[derive(Debug, Clone, PartialEq)]
pub struct TinyTensor {
    /// GGUF name.
    pub name: String,
    /// Row-major shape.
    pub shape: Vec<usize>,
    /// Type.
    pub ty: GgmlType,
    /// Blocks, row-major.
    pub bytes: Vec<u8>,
}

/// Keys and tensors of one GGUF file, to be edited and written.
#[derive(Debug, Clone)]
pub struct TinyFile {
    pub(super) dims: Dims,
    pub(super) keys: Vec<(String, Value)>,
    pub(super) tensors: Vec<TinyTensor>,
}

/// Reading and writing.
impl TinyFile {
    /// The sizes that it was built with.
    pub fn dims(&self) -> &Dims {
        &self.dims
    }

    /// The tensors, in the file's order.
    pub fn tensors(&self) -> &[TinyTensor] {
        &self.tensors
    }

    /// The tensor `name`.
    ///
    /// # Panics
    /// If there is none.
    #[track_caller]
    pub fn tensor(&self, name: &str) -> &TinyTensor {
        self.tensors
            .iter()
            .find(|t| t.name == name)
            .unwrap_or_else(|| panic!("no tensor {name}"))
    }

    /// The file's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        self.writer()
            .to_bytes("tiny.gguf")
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// The file, opened from memory under the name `tiny.gguf`.
    pub fn gguf(&self) -> Gguf {
        Gguf::from_bytes("tiny.gguf", self.bytes()).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Writes the file.
    pub fn write(&self, path: &Path) {
        self.writer()
            .write(path)
            .unwrap_or_else(|error| panic!("{error}"));
    }

    /// Writes a split set `STEM-0000i-of-0000n.gguf` into `folder` and returns its parts.
    pub fn write_split(&self, folder: &Path, stem: &str, parts: usize) -> Vec<PathBuf> {
        self.writer()
            .write_split(folder, stem, parts)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    fn writer(&self) -> Writer<'_> {
        let mut writer = Writer::new();
        for (key, value) in &self.keys {
            writer.set(key, value.clone());
        }
        for tensor in &self.tensors {
            let ggml_dims: Vec<u64> = tensor.shape.iter().rev().map(|&n| n as u64).collect();
            writer.tensor(&tensor.name, &ggml_dims, tensor.ty, &tensor.bytes);
        }
        writer
    }
}

/// Edits of keys. Names are without the architecture's prefix.
impl TinyFile {
    /// Sets the key `glm-dsa.{key}`.
    pub fn set(mut self, key: &str, value: impl Into<Value>) -> Self {
        self = self.unset(key);
        self.keys.push((format!("glm-dsa.{key}"), value.into()));
        self
    }

    /// Removes the key `glm-dsa.{key}`.
    pub fn unset(mut self, key: &str) -> Self {
        let key = format!("glm-dsa.{key}");
        self.keys.retain(|(name, _)| *name != key);
        self
    }

    /// Sets a key by its whole name.
    pub fn set_whole(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.keys.retain(|(name, _)| name != key);
        self.keys.push((key.to_owned(), value.into()));
        self
    }

    /// Adds `attention.indexer.types`, as newer converters do.
    pub fn with_indexer_types(self) -> Self {
        let full = self.dims.full.clone();
        self.set("attention.indexer.types", full)
    }
}

/// Other stored forms of the same model.
impl TinyFile {
    /// `ffn_gate_exps` and `ffn_up_exps` become `ffn_gate_up_exps`, gate rows first in each expert.
    pub fn fuse_gate_up(mut self) -> Self {
        for layer in self.layers_with("ffn_gate_exps.weight") {
            let gate = self.take(&format!("blk.{layer}.ffn_gate_exps.weight"));
            let up = self.take(&format!("blk.{layer}.ffn_up_exps.weight"));
            assert_eq!(gate.ty, up.ty, "gate and up must have one type to be fused");
            let expert_bytes = gate.bytes.len() / gate.shape[0];
            let experts = gate
                .bytes
                .chunks(expert_bytes)
                .zip(up.bytes.chunks(expert_bytes));
            self.tensors.push(TinyTensor {
                name: format!("blk.{layer}.ffn_gate_up_exps.weight"),
                shape: vec![gate.shape[0], 2 * gate.shape[1], gate.shape[2]],
                ty: gate.ty,
                bytes: experts.flat_map(|(gate, up)| [gate, up].concat()).collect(),
            });
        }
        self
    }

    /// `attn_k_b` and `attn_v_b` become `attn_kv_b`. Keys need an unquantised type, and values the same.
    pub fn legacy_kv_b(self) -> Self {
        let mut file = self.with_kv_b();
        file.tensors.retain(|t| {
            !t.name.ends_with(".attn_k_b.weight") && !t.name.ends_with(".attn_v_b.weight")
        });
        file
    }

    /// Adds `attn_kv_b` beside its halves.
    pub fn with_kv_b(mut self) -> Self {
        for layer in self.layers_with("attn_k_b.weight") {
            let kv_b = self.kv_b(layer);
            self.tensors.push(kv_b);
        }
        self
    }

    /// `kv_b` of `layer` by the book: for each head its key rows, then its value rows.
    fn kv_b(&self, layer: usize) -> TinyTensor {
        let k_b = self.tensor(&format!("blk.{layer}.attn_k_b.weight"));
        let v_b = self.tensor(&format!("blk.{layer}.attn_v_b.weight"));
        assert_eq!(
            k_b.ty, v_b.ty,
            "keys and values must have one type to be joined"
        );
        assert_eq!(
            k_b.ty.block_elems(),
            1,
            "keys must be unquantised to be joined"
        );
        let Dims {
            n_heads,
            qk_nope_head_dim: nope,
            v_head_dim: v,
            kv_lora_rank: rank,
            ..
        } = self.dims;
        let elem = k_b.ty.block_bytes();
        let mut bytes = Vec::new();
        for h in 0..n_heads {
            for d in 0..nope {
                for r in 0..rank {
                    bytes.extend_from_slice(
                        &k_b.bytes[((h * rank + r) * nope + d) * elem..][..elem],
                    );
                }
            }
            bytes.extend_from_slice(&v_b.bytes[h * v * rank * elem..][..v * rank * elem]);
        }
        let name = format!("blk.{layer}.attn_kv_b.weight");
        TinyTensor {
            name,
            shape: vec![n_heads * (nope + v), rank],
            ty: k_b.ty,
            bytes,
        }
    }

    /// `attn_k_b` and `attn_v_b` become matrices: heads and rows in one axis, the same bytes.
    pub fn flat_kv_b(mut self) -> Self {
        for tensor in &mut self.tensors {
            if tensor.name.ends_with(".attn_k_b.weight")
                || tensor.name.ends_with(".attn_v_b.weight")
            {
                tensor.shape = vec![tensor.shape[0] * tensor.shape[1], tensor.shape[2]];
            }
        }
        self
    }

    /// Drops the MTP block's tensors; the keys still declare it.
    pub fn strip_mtp(mut self) -> Self {
        let prefix = format!("blk.{}.", self.dims.n_layers());
        self.tensors.retain(|t| !t.name.starts_with(&prefix));
        self
    }

    /// Drops everything but the MTP block.
    pub fn only_mtp(mut self) -> Self {
        let prefix = format!("blk.{}.", self.dims.n_layers());
        self.tensors.retain(|t| t.name.starts_with(&prefix));
        self
    }

    /// Gives each shared layer a copy of the nearest earlier full layer's indexer.
    pub fn copy_indexers(mut self) -> Self {
        let mut source = 0;
        for (layer, &full) in self.dims.full.clone().iter().enumerate() {
            if full {
                source = layer;
                continue;
            }
            let prefix = format!("blk.{source}.indexer.");
            let copies: Vec<TinyTensor> = self
                .tensors
                .iter()
                .filter(|t| t.name.starts_with(&prefix))
                .cloned()
                .collect();
            self.tensors.extend(copies.into_iter().map(|tensor| {
                TinyTensor {
                    name: tensor
                        .name
                        .replace(&prefix, &format!("blk.{layer}.indexer.")),
                    ..tensor
                }
            }));
        }
        self
    }

    /// Drops `output.weight`: the head is the embedding table.
    pub fn tie_output(self) -> Self {
        self.drop_tensor("output.weight")
    }

    /// Stores the tensors whose name ends with `ending` in another type.
    pub fn retype(mut self, ending: &str, ty: GgmlType) -> Self {
        let mut any = false;
        for tensor in self.tensors.iter_mut().filter(|t| t.name.ends_with(ending)) {
            tensor.bytes = encode(ty, &decode(tensor.ty, &tensor.bytes));
            tensor.ty = ty;
            any = true;
        }
        assert!(any, "no tensor ends with {ending}");
        self
    }

    /// Puts the tensors into another order.
    pub fn reverse_order(mut self) -> Self {
        self.tensors.reverse();
        self
    }
}

/// Faults.
impl TinyFile {
    /// Leaves the tensor `name` out.
    #[track_caller]
    pub fn drop_tensor(mut self, name: &str) -> Self {
        self.take(name);
        self
    }

    /// Renames a tensor.
    #[track_caller]
    pub fn rename(mut self, from: &str, to: &str) -> Self {
        let tensor = self.take(from);
        self.tensors.push(TinyTensor {
            name: to.to_owned(),
            ..tensor
        });
        self
    }

    /// Adds a tensor of zeros in F32.
    pub fn add_tensor(mut self, name: &str, shape: &[usize]) -> Self {
        let bytes = vec![0; shape.iter().product::<usize>() * 4];
        self.tensors.push(TinyTensor {
            name: name.to_owned(),
            shape: shape.to_vec(),
            ty: GgmlType::F32,
            bytes,
        });
        self
    }

    /// Gives the tensor `name` another shape of as many elements.
    #[track_caller]
    pub fn reshape(self, name: &str, shape: &[usize]) -> Self {
        let elements = |shape: &[usize]| shape.iter().product::<usize>();
        assert_eq!(
            elements(&self.tensor(name).shape),
            elements(shape),
            "elements of {name}"
        );
        self.change(name, |tensor| tensor.shape = shape.to_vec())
    }

    /// Replaces the tensor `name` by zero bytes in any type, e.g. one without a decoder.
    #[track_caller]
    pub fn zeroed(self, name: &str, ty: GgmlType) -> Self {
        self.change(name, |tensor| {
            tensor.ty = ty;
            tensor.bytes = vec![
                0;
                tensor.shape.iter().product::<usize>() / ty.block_elems()
                    * ty.block_bytes()
            ];
        })
    }

    /// Any other change of the tensor `name`.
    #[track_caller]
    pub fn change(mut self, name: &str, change: impl FnOnce(&mut TinyTensor)) -> Self {
        let tensor = self.tensors.iter_mut().find(|t| t.name == name);
        change(tensor.unwrap_or_else(|| panic!("no tensor {name}")));
        self
    }

    #[track_caller]
    fn take(&mut self, name: &str) -> TinyTensor {
        let index = self.tensors.iter().position(|t| t.name == name);
        self.tensors
            .remove(index.unwrap_or_else(|| panic!("no tensor {name}")))
    }

    fn layers_with(&self, suffix: &str) -> Vec<usize> {
        (0..=self.dims.n_layers())
            .filter(|layer| {
                self.tensors
                    .iter()
                    .any(|t| t.name == format!("blk.{layer}.{suffix}"))
            })
            .collect()
    }
}
