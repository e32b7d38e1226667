//! Tiny random models of the GLM-5 architecture as GGUF.
//!
//! [`Tiny`] chooses sizes, seed and types and builds a [`TinyFile`]: keys and tensors in the plain form, as
//! llama.cpp's converter writes them. A [`TinyFile`] is then edited: into another stored form of the same model, or
//! into a faulty one. The same seed gives the same values, whatever the types.

mod file;

use glim_gguf::Value;
use glim_quant::GgmlType;

pub use self::file::{TinyFile, TinyTensor};
use crate::encode::encode;

/// Sizes of a tiny model. [`Dims::default`] has no two axes of one length that could be exchanged unseen.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "the names are those of the field; see glim-model's Config"
)]
pub struct Dims {
    pub first_dense_layers: usize,
    pub mtp: bool,
    pub hidden_size: usize,
    pub vocab_size: usize,
    pub n_heads: usize,
    pub q_lora_rank: usize,
    pub kv_lora_rank: usize,
    pub qk_nope_head_dim: usize,
    pub qk_rope_head_dim: usize,
    pub v_head_dim: usize,
    pub intermediate_size: usize,
    pub n_routed_experts: usize,
    pub num_experts_per_tok: usize,
    pub n_shared_experts: usize,
    pub moe_intermediate_size: usize,
    pub index_n_heads: usize,
    pub index_head_dim: usize,
    pub index_topk: usize,
    /// For each trunk layer, whether it has an indexer of its own; its length is the number of layers.
    pub full: Vec<bool>,
}

impl Default for Dims {
    /// Four layers, one of them dense, one shared. Every width is a multiple of 32, so that rows can be blocks, but for
    /// those of single heads.
    fn default() -> Self {
        Dims {
            first_dense_layers: 1,
            mtp: true,
            hidden_size: 96,
            vocab_size: 259,
            n_heads: 3,
            q_lora_rank: 64,
            kv_lora_rank: 128,
            qk_nope_head_dim: 32,
            qk_rope_head_dim: 10,
            v_head_dim: 224,
            intermediate_size: 160,
            n_routed_experts: 7,
            num_experts_per_tok: 2,
            n_shared_experts: 2,
            moe_intermediate_size: 288,
            index_n_heads: 5,
            index_head_dim: 14,
            index_topk: 9,
            full: vec![true, true, false, true],
        }
    }
}

impl Dims {
    /// Sizes whose rows are whole blocks of K-quants, and whose inner widths of 1024 can be cut into four of them: matrices in
    /// [`GgmlType::Q4_K`] but for `attn_k_b`, whose rows are narrower.
    pub fn k_quants() -> Self {
        Dims {
            first_dense_layers: 1,
            mtp: false,
            hidden_size: 256,
            vocab_size: 259,
            n_heads: 4,
            q_lora_rank: 512,
            kv_lora_rank: 256,
            qk_nope_head_dim: 64,
            qk_rope_head_dim: 10,
            v_head_dim: 256,
            intermediate_size: 2048,
            n_routed_experts: 5,
            num_experts_per_tok: 2,
            n_shared_experts: 1,
            moe_intermediate_size: 1024,
            index_n_heads: 6,
            index_head_dim: 14,
            index_topk: 9,
            full: vec![true, false, true],
        }
    }

    /// Trunk layers.
    pub fn n_layers(&self) -> usize {
        self.full.len()
    }
}

/// What to build.
#[derive(Debug, Clone)]
pub struct Tiny {
    dims: Dims,
    seed: u64,
    matrix_type: GgmlType,
    /// Ending of a name, and its type; the last match counts.
    types: Vec<(String, GgmlType)>,
}

impl Tiny {
    /// A model of default sizes; matrices in BF16, vectors and router in F32.
    pub fn new(seed: u64) -> Self {
        Tiny {
            dims: Dims::default(),
            seed,
            matrix_type: GgmlType::BF16,
            types: Vec::new(),
        }
    }

    /// Other sizes.
    pub fn dims(mut self, dims: Dims) -> Self {
        self.dims = dims;
        self
    }

    /// Another type for all matrices but the router.
    pub fn matrices(mut self, ty: GgmlType) -> Self {
        self.matrix_type = ty;
        self
    }

    /// Another type for the tensors whose name is or ends with `ending` (`attn_q_b.weight`,
    /// `blk.1.ffn_up_exps.weight`).
    pub fn ty(mut self, ending: &str, ty: GgmlType) -> Self {
        self.types.push((ending.to_owned(), ty));
        self
    }

    /// The model in its plain form.
    ///
    /// # Panics
    /// If rows are not whole blocks of the chosen type.
    pub fn build(&self) -> TinyFile {
        let dims = &self.dims;
        let mut file = TinyFile {
            dims: dims.clone(),
            keys: keys(dims),
            tensors: Vec::new(),
        };
        self.add(
            &mut file,
            "output.weight",
            &[dims.vocab_size, dims.hidden_size],
        );
        self.add(
            &mut file,
            "token_embd.weight",
            &[dims.vocab_size, dims.hidden_size],
        );
        for (layer, &full) in dims.full.iter().enumerate() {
            self.add_layer(&mut file, layer, full, layer >= dims.first_dense_layers);
        }
        if dims.mtp {
            let (layer, hidden) = (dims.n_layers(), dims.hidden_size);
            self.add(
                &mut file,
                &format!("blk.{layer}.nextn.eh_proj.weight"),
                &[hidden, 2 * hidden],
            );
            self.add(
                &mut file,
                &format!("blk.{layer}.nextn.enorm.weight"),
                &[hidden],
            );
            self.add(
                &mut file,
                &format!("blk.{layer}.nextn.hnorm.weight"),
                &[hidden],
            );
            self.add_layer(&mut file, layer, true, true);
            self.add(
                &mut file,
                &format!("blk.{layer}.nextn.shared_head_norm.weight"),
                &[hidden],
            );
        }
        self.add(&mut file, "output_norm.weight", &[dims.hidden_size]);
        file
    }

    fn add_layer(&self, file: &mut TinyFile, layer: usize, full: bool, moe: bool) {
        let d = &self.dims;
        let qk_head_dim = d.qk_nope_head_dim + d.qk_rope_head_dim;
        let mut add =
            |name: &str, shape: &[usize]| self.add(file, &format!("blk.{layer}.{name}"), shape);
        add("attn_norm.weight", &[d.hidden_size]);
        if moe {
            let shared = d.n_shared_experts * d.moe_intermediate_size;
            add(
                "ffn_down_exps.weight",
                &[d.n_routed_experts, d.hidden_size, d.moe_intermediate_size],
            );
            add(
                "ffn_gate_exps.weight",
                &[d.n_routed_experts, d.moe_intermediate_size, d.hidden_size],
            );
            add(
                "ffn_up_exps.weight",
                &[d.n_routed_experts, d.moe_intermediate_size, d.hidden_size],
            );
            add("exp_probs_b.bias", &[d.n_routed_experts]);
            add("ffn_gate_inp.weight", &[d.n_routed_experts, d.hidden_size]);
            add("ffn_down_shexp.weight", &[d.hidden_size, shared]);
            add("ffn_gate_shexp.weight", &[shared, d.hidden_size]);
            add("ffn_up_shexp.weight", &[shared, d.hidden_size]);
        } else {
            add("ffn_down.weight", &[d.hidden_size, d.intermediate_size]);
            add("ffn_gate.weight", &[d.intermediate_size, d.hidden_size]);
            add("ffn_up.weight", &[d.intermediate_size, d.hidden_size]);
        }
        add("ffn_norm.weight", &[d.hidden_size]);
        if full {
            add("indexer.k_norm.bias", &[d.index_head_dim]);
            add("indexer.k_norm.weight", &[d.index_head_dim]);
            add("indexer.proj.weight", &[d.index_n_heads, d.hidden_size]);
            add("indexer.attn_k.weight", &[d.index_head_dim, d.hidden_size]);
            add(
                "indexer.attn_q_b.weight",
                &[d.index_n_heads * d.index_head_dim, d.q_lora_rank],
            );
        }
        add("attn_kv_a_norm.weight", &[d.kv_lora_rank]);
        add(
            "attn_kv_a_mqa.weight",
            &[d.kv_lora_rank + d.qk_rope_head_dim, d.hidden_size],
        );
        add(
            "attn_k_b.weight",
            &[d.n_heads, d.kv_lora_rank, d.qk_nope_head_dim],
        );
        add(
            "attn_v_b.weight",
            &[d.n_heads, d.v_head_dim, d.kv_lora_rank],
        );
        add(
            "attn_output.weight",
            &[d.hidden_size, d.n_heads * d.v_head_dim],
        );
        add("attn_q_a_norm.weight", &[d.q_lora_rank]);
        add("attn_q_a.weight", &[d.q_lora_rank, d.hidden_size]);
        add("attn_q_b.weight", &[d.n_heads * qk_head_dim, d.q_lora_rank]);
    }

    fn add(&self, file: &mut TinyFile, name: &str, shape: &[usize]) {
        let is_float = shape.len() == 1 || name.ends_with("ffn_gate_inp.weight");
        let plain = if is_float {
            GgmlType::F32
        } else {
            self.matrix_type
        };
        let ty = self
            .types
            .iter()
            .rev()
            .find(|(ending, _)| name.ends_with(ending))
            .map_or(plain, |&(_, ty)| ty);
        let bytes = encode(ty, &random_values(self.seed, name, shape));
        file.tensors.push(TinyTensor {
            name: name.to_owned(),
            shape: shape.to_vec(),
            ty,
            bytes,
        });
    }
}

/// The keys that llama.cpp's converter writes for `glm-dsa`, without `attention.indexer.types`.
fn keys(dims: &Dims) -> Vec<(String, Value)> {
    let mtp = usize::from(dims.mtp);
    let sizes = [
        ("block_count", dims.n_layers() + mtp),
        ("nextn_predict_layers", mtp),
        ("context_length", 4096),
        ("embedding_length", dims.hidden_size),
        ("feed_forward_length", dims.intermediate_size),
        ("leading_dense_block_count", dims.first_dense_layers),
        ("vocab_size", dims.vocab_size),
        ("attention.head_count", dims.n_heads),
        ("attention.head_count_kv", 1),
        ("attention.q_lora_rank", dims.q_lora_rank),
        ("attention.kv_lora_rank", dims.kv_lora_rank),
        (
            "attention.key_length",
            dims.kv_lora_rank + dims.qk_rope_head_dim,
        ),
        ("attention.value_length", dims.kv_lora_rank),
        (
            "attention.key_length_mla",
            dims.qk_nope_head_dim + dims.qk_rope_head_dim,
        ),
        ("attention.value_length_mla", dims.v_head_dim),
        ("rope.dimension_count", dims.qk_rope_head_dim),
        ("expert_count", dims.n_routed_experts),
        ("expert_used_count", dims.num_experts_per_tok),
        ("expert_shared_count", dims.n_shared_experts),
        ("expert_feed_forward_length", dims.moe_intermediate_size),
        ("expert_group_count", 1),
        ("expert_group_used_count", 1),
        ("expert_gating_func", 2),
        ("attention.indexer.head_count", dims.index_n_heads),
        ("attention.indexer.key_length", dims.index_head_dim),
        ("attention.indexer.top_k", dims.index_topk),
    ];
    let own = |key: &str, value: Value| (format!("glm-dsa.{key}"), value);
    let mut keys = vec![("general.architecture".to_owned(), Value::from("glm-dsa"))];
    keys.extend(sizes.map(|(key, size)| own(key, Value::U32(size as u32))));
    keys.push(own("rope.freq_base", Value::F32(1e6)));
    keys.push(own("attention.layer_norm_rms_epsilon", Value::F32(1e-5)));
    keys.push(own("expert_weights_scale", Value::F32(2.5)));
    keys.push(own("expert_weights_norm", Value::Bool(true)));
    keys
}

/// Values of one tensor: norms around 1, the router's bias around 7 as in real checkpoints, matrices such that a
/// product with a unit-variance vector has unit variance.
fn random_values(seed: u64, name: &str, shape: &[usize]) -> Vec<f32> {
    let (centre, spread) = if name.ends_with("exp_probs_b.bias") {
        (7.0, 0.1)
    } else if name.ends_with("norm.weight") {
        (1.0, 0.2)
    } else if shape.len() == 1 {
        (0.0, 0.2)
    } else {
        // A uniform distribution over ±1 has variance 1/3.
        (0.0, (3.0 / shape[shape.len() - 1] as f32).sqrt())
    };
    let mut state = name.bytes().fold(seed ^ 0x9e37_79b9_7f4a_7c15, |h, b| {
        split_mix(h ^ u64::from(b))
    });
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        // 24 bits: every value is exact in f32.
        (split_mix(state) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..shape.iter().product())
        .map(|_| centre + spread * next())
        .collect()
}

/// SplitMix64's finaliser (Steele, Lea, Flood 2014).
fn split_mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encode::decode;

    #[test]
    fn a_seed_fixes_every_byte() {
        assert_eq!(Tiny::new(3).build().bytes(), Tiny::new(3).build().bytes());
        assert_ne!(Tiny::new(3).build().bytes(), Tiny::new(4).build().bytes());
    }

    #[test]
    fn types_change_the_encoding_and_not_the_values() {
        let name = "blk.1.ffn_up_exps.weight";
        let f32s = Tiny::new(3).matrices(GgmlType::F32).build();
        let mixed = Tiny::new(3)
            .ty("ffn_up_exps.weight", GgmlType::Q8_0)
            .build();
        assert_eq!(mixed.tensor(name).ty, GgmlType::Q8_0);
        assert_eq!(
            mixed.tensor("blk.1.ffn_down_exps.weight").ty,
            GgmlType::BF16
        );
        let (exact, rounded) = (f32s.tensor(name), mixed.tensor(name));
        let step = (3f32 / 96.0).sqrt() / 127.0;
        crate::close::assert_close(
            name,
            &decode(rounded.ty, &rounded.bytes),
            &decode(exact.ty, &exact.bytes),
            &exact.shape,
            step,
        );
    }

    #[test]
    fn what_is_written_can_be_opened() {
        let file = Tiny::new(1).build();
        let gguf = file.gguf();
        assert_eq!(gguf.tensors().len(), file.tensors().len());
        for tensor in file.tensors() {
            let info = gguf
                .tensor(&tensor.name)
                .unwrap_or_else(|| panic!("{} is lost", tensor.name));
            assert_eq!((info.shape(), info.ty), (tensor.shape.clone(), tensor.ty));
            assert_eq!(gguf.data(info), tensor.bytes);
        }
    }
}
