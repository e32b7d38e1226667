//! Faulty files: a sound GGUF is read into memory, spoiled in one place, and written.
//!
//! These are the faults that users of this model class meet: converters that forget a transposition, shards put together in the
//! wrong order, parts of two models in one folder, a byte that a disk lost. Each is a method that takes the file and gives it back,
//! so that a test reads as what it does: `GgufFile::read(&path).swapped_kv(2).exchanged_experts(3, 0, 5)`. Every faulty file opens
//! (but for [`GgufFile::bytes_without_end`]): names, shapes and types stay as they were, and only a proof can tell.
//!
//! ```
//! use glim_testkit::{assets, faults::GgufFile};
//!
//! let sound = GgufFile::read(&assets::tiny_glm5());
//! let faulty = sound.clone().nan_scale("blk.1.attn_q_b.weight", 7);
//! assert_ne!(sound.tensor("blk.1.attn_q_b.weight"), faulty.tensor("blk.1.attn_q_b.weight"));
//! ```

use std::path::{Path, PathBuf};

use glim_gguf::{Gguf, Metadata, Value, Writer};
use glim_quant::GgmlType;

use crate::encode::{decode, encode};
use crate::tiny::TinyTensor;

/// Keys and tensors of one GGUF file in memory.
#[derive(Debug, Clone)]
pub struct GgufFile {
    metadata: Metadata,
    tensors: Vec<TinyTensor>,
}

/// Reading and writing.
impl GgufFile {
    /// The file at `path`.
    ///
    /// # Panics
    /// If it cannot be opened.
    #[track_caller]
    pub fn read(path: &Path) -> Self {
        Self::of(&Gguf::open(path).unwrap_or_else(|error| panic!("{error}")))
    }

    /// An opened file.
    pub fn of(gguf: &Gguf) -> Self {
        let tensor = |info: &glim_gguf::TensorInfo| TinyTensor {
            name: info.name.clone(),
            shape: info.shape(),
            ty: info.ty,
            bytes: gguf.data(info).to_vec(),
        };
        GgufFile {
            metadata: gguf.metadata().clone(),
            tensors: gguf.tensors().iter().map(tensor).collect(),
        }
    }

    /// The keys.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
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
        let tensor = self.tensors.iter().find(|tensor| tensor.name == name);
        tensor.unwrap_or_else(|| panic!("no tensor {name}"))
    }

    /// The file's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let bytes = self.writer().to_bytes("faulty.gguf");
        bytes.unwrap_or_else(|error| panic!("{error}"))
    }

    /// The file, opened from memory under the name `faulty.gguf`.
    pub fn gguf(&self) -> Gguf {
        Gguf::from_bytes("faulty.gguf", self.bytes()).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Writes the file.
    pub fn write(&self, path: &Path) {
        let written = self.writer().write(path);
        written.unwrap_or_else(|error| panic!("{error}"));
    }

    /// Writes a split set `STEM-0000i-of-0000n.gguf` into `folder` and returns its parts.
    pub fn write_split(&self, folder: &Path, stem: &str, parts: usize) -> Vec<PathBuf> {
        let written = self.writer().write_split(folder, stem, parts);
        written.unwrap_or_else(|error| panic!("{error}"))
    }

    fn writer(&self) -> Writer<'_> {
        let mut writer = Writer::with_metadata(self.metadata.clone());
        for tensor in &self.tensors {
            let ggml_dims: Vec<u64> = tensor.shape.iter().rev().map(|&n| n as u64).collect();
            writer.tensor(&tensor.name, &ggml_dims, tensor.ty, &tensor.bytes);
        }
        writer
    }
}

/// Edits that are no faults.
impl GgufFile {
    /// Sets a key.
    pub fn set(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.metadata.set(key, value);
        self
    }

    /// Any change of the tensor `name`.
    #[track_caller]
    pub fn change(mut self, name: &str, change: impl FnOnce(&mut TinyTensor)) -> Self {
        let tensor = self.tensors.iter_mut().find(|tensor| tensor.name == name);
        change(tensor.unwrap_or_else(|| panic!("no tensor {name}")));
        self
    }

    /// A change of the values of the tensor `name`, which must be F32, F16, BF16 or Q8_0.
    #[track_caller]
    pub fn change_values(self, name: &str, change: impl FnOnce(&mut Vec<f32>)) -> Self {
        self.change(name, |tensor| {
            let mut values = decode(tensor.ty, &tensor.bytes);
            change(&mut values);
            tensor.bytes = encode(tensor.ty, &values);
        })
    }

    /// A size by its key, without the architecture's prefix.
    #[track_caller]
    fn size(&self, key: &str) -> usize {
        let arch = match self.metadata.str("general.architecture") {
            Ok(Some(arch)) => arch,
            other => panic!("general.architecture: {other:?}"),
        };
        match self.metadata.uint(&format!("{arch}.{key}")) {
            Ok(Some(size)) => size as usize,
            other => panic!("{key}: {other:?}"),
        }
    }

    /// `[n_heads, nope, v, rank]`.
    #[track_caller]
    fn kv_dims(&self) -> [usize; 4] {
        [
            self.size("attention.head_count"),
            self.size("attention.key_length_mla") - self.size("rope.dimension_count"),
            self.size("attention.value_length_mla"),
            self.size("attention.kv_lora_rank"),
        ]
    }
}

/// Faults.
impl GgufFile {
    /// The bits `mask` of byte `at` of a tensor are turned over: what a bad disk or cable does.
    #[track_caller]
    pub fn flipped_byte(self, name: &str, at: usize, mask: u8) -> Self {
        assert_ne!(mask, 0, "a mask of 0 is no fault");
        self.change(name, |tensor| tensor.bytes[at] ^= mask)
    }

    /// The scale of block `block` of a quantised tensor is NaN; in a plain type its element `block` is.
    #[track_caller]
    pub fn nan_scale(self, name: &str, block: usize) -> Self {
        self.change(name, |tensor| {
            let ty = tensor.ty;
            let (at, nan): (usize, &[u8]) = match ty {
                GgmlType::F32 => (0, &[0, 0, 0xc0, 0x7f]),
                GgmlType::BF16 => (0, &[0xc0, 0x7f]),
                GgmlType::MXFP4 => (0, &[0xff]),
                GgmlType::Q2_K => (80, &[0, 0x7e]),
                GgmlType::Q3_K => (108, &[0, 0x7e]),
                GgmlType::Q6_K => (208, &[0, 0x7e]),
                // The scale comes first in all other types that tests use.
                _ => (0, &[0, 0x7e]),
            };
            tensor.bytes[block * ty.block_bytes() + at..][..nan.len()].copy_from_slice(nan);
        })
    }

    /// `attn_k_b` of `layer` lies in each head as `[nope, rank]`, as it does in `kv_b`, instead of `[rank, nope]`.
    #[track_caller]
    pub fn untransposed_k_b(self, layer: usize) -> Self {
        let [heads, nope, _, rank] = self.kv_dims();
        self.change_values(&format!("blk.{layer}.attn_k_b.weight"), |values| {
            *values = transposed(values, heads, rank, nope);
        })
    }

    /// Whoever split `kv_b` of `layer` took the values of each head to come first, and then the keys.
    #[track_caller]
    pub fn swapped_kv(self, layer: usize) -> Self {
        let [heads, nope, v, rank] = self.kv_dims();
        let (k_b, v_b) = (
            format!("blk.{layer}.attn_k_b.weight"),
            format!("blk.{layer}.attn_v_b.weight"),
        );
        let values_of = |name: &str| decode(self.tensor(name).ty, &self.tensor(name).bytes);
        let keys = transposed(&values_of(&k_b), heads, rank, nope);
        let values = values_of(&v_b);
        let (mut first, mut second) = (Vec::new(), Vec::new());
        for h in 0..heads {
            let head = [
                &keys[h * nope * rank..][..nope * rank],
                &values[h * v * rank..][..v * rank],
            ]
            .concat();
            // As if the head were [v rows of values, nope rows of keys].
            first.extend_from_slice(&head[..v * rank]);
            second.extend_from_slice(&head[v * rank..]);
        }
        let keys = transposed(&second, heads, nope, rank);
        self.change_values(&k_b, |values| *values = keys)
            .change_values(&v_b, |values| *values = first)
    }

    /// Routed experts `a` and `b` of `layer` have changed places, all three matrices; the router has not.
    #[track_caller]
    pub fn exchanged_experts(mut self, layer: usize, a: usize, b: usize) -> Self {
        for matrix in ["gate", "up", "down"] {
            let name = format!("blk.{layer}.ffn_{matrix}_exps.weight");
            self = self.change(&name, |tensor| {
                let expert_bytes = tensor.bytes.len() / tensor.shape[0];
                let (low, high) = (a.min(b), a.max(b));
                let (head, tail) = tensor.bytes.split_at_mut(high * expert_bytes);
                head[low * expert_bytes..][..expert_bytes]
                    .swap_with_slice(&mut tail[..expert_bytes]);
            });
        }
        self
    }

    /// Gate and up of `layer` (dense, or of every routed expert) came as shards `[gate_r; up_r]` of `ranks` ranks; they were put
    /// one after the other and cut in the middle, as if they were `[gate; up]`.
    #[track_caller]
    pub fn interleaved_gate_up(mut self, layer: usize, ranks: usize) -> Self {
        let has = |name: &str| self.tensors.iter().any(|tensor| tensor.name == name);
        let name = |matrix: &str| match format!("blk.{layer}.ffn_{matrix}_exps.weight") {
            exps if has(&exps) => exps,
            _ => format!("blk.{layer}.ffn_{matrix}.weight"),
        };
        let (gate_name, up_name) = (name("gate"), name("up"));
        let (gate, up) = (
            self.tensor(&gate_name).clone(),
            self.tensor(&up_name).clone(),
        );
        assert_eq!(gate.ty, up.ty, "gate and up must have one type");
        let [experts @ .., rows, _] = gate.shape.as_slice() else {
            panic!("{gate_name} is no matrix");
        };
        let experts: usize = experts.iter().product();
        let row_bytes = gate.bytes.len() / (experts * rows);
        let (mut first, mut second) = (Vec::new(), Vec::new());
        for expert in 0..experts {
            let mut shards = Vec::new();
            for rank in 0..ranks {
                let share = rank * rows / ranks..(rank + 1) * rows / ranks;
                let bytes = (expert * rows + share.start) * row_bytes
                    ..(expert * rows + share.end) * row_bytes;
                shards.extend_from_slice(&gate.bytes[bytes.clone()]);
                shards.extend_from_slice(&up.bytes[bytes]);
            }
            let (a, b) = shards.split_at(rows * row_bytes);
            first.extend_from_slice(a);
            second.extend_from_slice(b);
        }
        self = self.change(&gate_name, |tensor| tensor.bytes = first);
        self.change(&up_name, |tensor| tensor.bytes = second)
    }

    /// All of a norm's weights are larger by `by`: by 1, where a converter took them for offsets from 1.
    #[track_caller]
    pub fn shifted_norm(self, name: &str, by: f32) -> Self {
        self.change_values(name, |values| values.iter_mut().for_each(|x| *x += by))
    }

    /// The router's bias of `layer` has passed through BF16.
    #[track_caller]
    pub fn rounded_router_bias(self, layer: usize) -> Self {
        self.change_values(&format!("blk.{layer}.exp_probs_b.bias"), |values| {
            *values = decode(GgmlType::BF16, &encode(GgmlType::BF16, values));
        })
    }

    /// The indexer of layer `to` is that of layer `from`, byte for byte.
    #[track_caller]
    pub fn copied_indexer(mut self, to: usize, from: usize) -> Self {
        let prefix = format!("blk.{from}.indexer.");
        let originals: Vec<TinyTensor> = (self.tensors.iter())
            .filter(|tensor| tensor.name.starts_with(&prefix))
            .cloned()
            .collect();
        assert!(!originals.is_empty(), "layer {from} has no indexer");
        for original in originals {
            let name = original
                .name
                .replace(&prefix, &format!("blk.{to}.indexer."));
            self = self.change(&name, |tensor| tensor.bytes = original.bytes);
        }
        self
    }

    /// The file's bytes without the last `missing` of them: a download that was cut short.
    pub fn bytes_without_end(&self, missing: usize) -> Vec<u8> {
        let mut bytes = self.bytes();
        bytes.truncate(bytes.len().saturating_sub(missing));
        bytes
    }

    /// As [`Self::write_split`], but part `number` (from 1) is that of `other`: two models were downloaded into one folder.
    pub fn write_split_with_part_of(
        &self,
        other: &GgufFile,
        number: usize,
        folder: &Path,
        stem: &str,
        parts: usize,
    ) -> Vec<PathBuf> {
        let paths = self.write_split(folder, stem, parts);
        let elsewhere = folder.join("other");
        let made = std::fs::create_dir(&elsewhere);
        made.unwrap_or_else(|error| panic!("{}: {error}", elsewhere.display()));
        let theirs = other.write_split(&elsewhere, stem, parts);
        let (from, to) = (&theirs[number - 1], &paths[number - 1]);
        std::fs::copy(from, to).unwrap_or_else(|error| panic!("{}: {error}", to.display()));
        std::fs::remove_dir_all(&elsewhere).unwrap_or_else(|error| panic!("{error}"));
        paths
    }
}

/// Each of `outer` matrices `[rows, cols]` turned to `[cols, rows]`.
fn transposed(values: &[f32], outer: usize, rows: usize, cols: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(values.len());
    for matrix in values.chunks_exact(rows * cols).take(outer) {
        for c in 0..cols {
            out.extend((0..rows).map(|r| matrix[r * cols + c]));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiny::Tiny;

    fn sound() -> GgufFile {
        GgufFile::of(&Tiny::new(5).matrices(GgmlType::F32).build().gguf())
    }

    /// Names of the tensors that differ.
    fn changed(faulty: &GgufFile) -> Vec<String> {
        let sound = sound();
        let pairs = sound.tensors().iter().zip(faulty.tensors());
        pairs
            .filter(|(a, b)| a != b)
            .map(|(a, _)| a.name.clone())
            .collect()
    }

    #[test]
    fn a_file_survives_reading_and_writing() {
        let file = sound();
        let again = GgufFile::of(&file.gguf());
        assert_eq!(file.tensors(), again.tensors());
        assert_eq!(file.metadata(), again.metadata());
    }

    #[test]
    fn each_fault_changes_the_tensors_that_it_names_and_no_others() {
        let experts = |layer: usize| {
            ["down", "gate", "up"].map(|matrix| format!("blk.{layer}.ffn_{matrix}_exps.weight"))
        };
        let cases: [(GgufFile, Vec<String>); 8] = [
            (
                sound().flipped_byte("output.weight", 9, 4),
                vec!["output.weight".into()],
            ),
            (
                sound().nan_scale("blk.0.ffn_up.weight", 3),
                vec!["blk.0.ffn_up.weight".into()],
            ),
            (
                sound().untransposed_k_b(1),
                vec!["blk.1.attn_k_b.weight".into()],
            ),
            (
                sound().swapped_kv(2),
                vec![
                    "blk.2.attn_k_b.weight".into(),
                    "blk.2.attn_v_b.weight".into(),
                ],
            ),
            (sound().exchanged_experts(1, 0, 5), experts(1).into()),
            (sound().interleaved_gate_up(2, 2), experts(2)[1..].to_vec()),
            (
                sound().shifted_norm("blk.3.ffn_norm.weight", 1.0),
                vec!["blk.3.ffn_norm.weight".into()],
            ),
            (
                sound().rounded_router_bias(1),
                vec!["blk.1.exp_probs_b.bias".into()],
            ),
        ];
        for (faulty, names) in cases {
            assert_eq!(changed(&faulty), names);
        }
        let copied = changed(&sound().copied_indexer(3, 1));
        assert_eq!(copied.len(), 5);
        assert!(copied.iter().all(|name| name.starts_with("blk.3.indexer.")));
    }

    /// The fault by its own words, for one element: key row 0 of head 0 is now value row 0.
    #[test]
    fn swapped_keys_are_the_values_rows() {
        let file = sound();
        let [_, nope, v, rank] = file.kv_dims();
        assert_ne!(nope, v);
        let values = decode(GgmlType::F32, &file.tensor("blk.2.attn_v_b.weight").bytes);
        let keys = decode(GgmlType::F32, &file.tensor("blk.2.attn_k_b.weight").bytes);
        let faulty = file.clone().swapped_kv(2);
        let new_values = decode(GgmlType::F32, &faulty.tensor("blk.2.attn_v_b.weight").bytes);
        let new_keys = decode(GgmlType::F32, &faulty.tensor("blk.2.attn_k_b.weight").bytes);
        // The head [keys; values] was read as [values; keys]: its first row, key 0, is value row 0 now...
        for r in 0..rank {
            assert_eq!(new_values[r], keys[r * nope]);
        }
        // ... and its last row, value v - 1, is key nope - 1.
        for r in 0..rank {
            assert_eq!(new_keys[r * nope + nope - 1], values[(v - 1) * rank + r]);
        }
    }

    #[test]
    fn interleaving_over_one_rank_is_no_fault() {
        assert_eq!(changed(&sound().interleaved_gate_up(0, 1)), [] as [&str; 0]);
        let two = sound().interleaved_gate_up(0, 2);
        let (gate, up) = ("blk.0.ffn_gate.weight", "blk.0.ffn_up.weight");
        let half = sound().tensor(gate).bytes.len() / 2;
        assert_eq!(
            two.tensor(gate).bytes[half..],
            sound().tensor(up).bytes[..half]
        );
        assert_eq!(
            two.tensor(up).bytes[..half],
            sound().tensor(gate).bytes[half..]
        );
    }
}
