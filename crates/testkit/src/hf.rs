//! A tiny model as a Hugging Face folder: `config.json` and one or several safetensors files.
//!
//! The same bytes as the GGUF's, under transformers' names: experts apart, keys and values joined. Matrices may be turned
//! into FP8 with scales for blocks ([`TinyHf::fp8`]).

use std::path::Path;

use glim_quant::GgmlType;
use safetensors::Dtype;
use safetensors::tensor::TensorView;

use crate::encode::decode;
use crate::tiny::{TinyFile, TinyTensor};

/// A Hugging Face checkpoint, to be edited and written.
#[derive(Debug, Clone)]
pub struct TinyHf {
    /// Keys of `config.json` and their values as JSON text.
    pub config: Vec<(String, String)>,
    /// Tensors under their Hugging Face names.
    pub tensors: Vec<TinyTensor>,
    /// Tensors of types that GGUF has not.
    pub raw: Vec<RawTensor>,
}

/// A tensor as safetensors knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawTensor {
    /// Its name.
    pub name: String,
    /// Row-major shape.
    pub shape: Vec<usize>,
    /// Its type.
    pub dtype: Dtype,
    /// Elements, row-major.
    pub bytes: Vec<u8>,
}

impl TinyHf {
    /// The same model as `file`, which must be in the plain form and unquantised.
    ///
    /// # Panics
    /// If it is not.
    pub fn from_gguf(file: &TinyFile) -> Self {
        let file = file.clone().legacy_kv_b();
        let tensors = file
            .tensors()
            .iter()
            .flat_map(|tensor| renamed(tensor, file.dims().n_layers()))
            .collect();
        TinyHf {
            config: config(&file),
            tensors,
            raw: Vec::new(),
        }
    }

    /// Turns the matrices whose name ends with `ending` into F8_E4M3 with scales for blocks of 128 × 128.
    ///
    /// # Panics
    /// If there is none, or one that is no matrix.
    #[track_caller]
    pub fn fp8(mut self, ending: &str) -> Self {
        let (chosen, others): (Vec<_>, Vec<_>) = self
            .tensors
            .into_iter()
            .partition(|t| t.name.ends_with(ending));
        assert!(!chosen.is_empty(), "no tensor ends with {ending}");
        self.tensors = others;
        for tensor in &chosen {
            let (codes, scales) = fp8_blocks(tensor);
            self.raw.push(codes);
            self.tensors.push(scales);
        }
        self.set(
            "quantization_config",
            r#"{"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]}"#,
        )
    }

    /// Sets a key of `config.json` to JSON text.
    pub fn set(mut self, key: &str, json: &str) -> Self {
        self = self.unset(key);
        self.config.push((key.to_owned(), json.to_owned()));
        self
    }

    /// Removes a key of `config.json`.
    pub fn unset(mut self, key: &str) -> Self {
        self.config.retain(|(name, _)| name != key);
        self
    }

    /// Leaves the tensor `name` out.
    pub fn drop_tensor(mut self, name: &str) -> Self {
        let before = self.tensors.len();
        self.tensors.retain(|tensor| tensor.name != name);
        assert_ne!(self.tensors.len(), before, "no tensor {name}");
        self
    }

    /// Writes `config.json` and `model.safetensors`, or `shards` files and their index.
    pub fn write(&self, folder: &Path, shards: usize) {
        let fields: Vec<String> = self
            .config
            .iter()
            .map(|(key, json)| format!("  \"{key}\": {json}"))
            .collect();
        write(
            folder,
            "config.json",
            format!("{{\n{}\n}}\n", fields.join(",\n")).as_bytes(),
        );
        let views: Vec<_> = self
            .tensors
            .iter()
            .map(view)
            .chain(self.raw.iter().map(raw_view))
            .collect();
        if shards == 1 {
            write(folder, "model.safetensors", &serialize(views));
            return;
        }
        let mut map = Vec::new();
        for (i, views) in views.chunks(views.len().div_ceil(shards)).enumerate() {
            let file = format!("model-{:05}-of-{shards:05}.safetensors", i + 1);
            map.extend(
                views
                    .iter()
                    .map(|(name, _)| format!("    \"{name}\": \"{file}\"")),
            );
            write(folder, &file, &serialize(views.to_vec()));
        }
        let index = format!(
            "{{\n  \"metadata\": {{}},\n  \"weight_map\": {{\n{}\n  }}\n}}\n",
            map.join(",\n")
        );
        write(folder, "model.safetensors.index.json", index.as_bytes());
    }
}

/// `tensors` as the bytes of one safetensors file.
///
/// # Panics
/// If one is quantised.
pub fn safetensors_bytes(tensors: &[TinyTensor]) -> Vec<u8> {
    serialize(tensors.iter().map(view).collect())
}

fn serialize(views: Vec<(&str, TensorView<'_>)>) -> Vec<u8> {
    safetensors::serialize(views, None).unwrap_or_else(|error| panic!("{error}"))
}

fn view(tensor: &TinyTensor) -> (&str, TensorView<'_>) {
    let dtype = match tensor.ty {
        GgmlType::F32 => Dtype::F32,
        GgmlType::F16 => Dtype::F16,
        GgmlType::BF16 => Dtype::BF16,
        other => panic!("{}: safetensors has no type {}", tensor.name, other.name()),
    };
    let view = TensorView::new(dtype, tensor.shape.clone(), &tensor.bytes);
    (
        &tensor.name,
        view.unwrap_or_else(|error| panic!("{}: {error}", tensor.name)),
    )
}

fn raw_view(tensor: &RawTensor) -> (&str, TensorView<'_>) {
    let view = TensorView::new(tensor.dtype, tensor.shape.clone(), &tensor.bytes);
    (
        &tensor.name,
        view.unwrap_or_else(|error| panic!("{}: {error}", tensor.name)),
    )
}

fn write(folder: &Path, file: &str, bytes: &[u8]) {
    let path = folder.join(file);
    std::fs::write(&path, bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// Rows and columns that share a scale.
const FP8_BLOCK: usize = 128;
/// The largest number of E4M3.
const E4M3_MAX: f32 = 448.0;

/// The value of an E4M3 code, by the formula of the format.
pub fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7) / 8.0);
    let magnitude = match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa * 2f32.powi(-6),
        _ => (1.0 + mantissa) * 2f32.powi(exponent - 7),
    };
    if code < 128 { magnitude } else { -magnitude }
}

/// The matrix as codes and scales: the largest number of a block becomes the largest of the format.
fn fp8_blocks(tensor: &TinyTensor) -> (RawTensor, TinyTensor) {
    let &[rows, cols] = tensor.shape.as_slice() else {
        panic!("{} is no matrix", tensor.name)
    };
    let values = decode(tensor.ty, &tensor.bytes);
    let block_of =
        |i: usize| (i / cols / FP8_BLOCK) * cols.div_ceil(FP8_BLOCK) + i % cols / FP8_BLOCK;
    let shape = [rows.div_ceil(FP8_BLOCK), cols.div_ceil(FP8_BLOCK)];
    let mut scales = vec![0f32; shape[0] * shape[1]];
    for (i, value) in values.iter().enumerate() {
        let scale = &mut scales[block_of(i)];
        *scale = scale.max(value.abs() / E4M3_MAX);
    }
    let positive: Vec<f32> = (0..0x7F).map(e4m3).collect();
    let code = |(i, value): (usize, &f32)| {
        let wanted = value.abs() / scales[block_of(i)].max(f32::MIN_POSITIVE);
        let above = positive
            .partition_point(|x| *x < wanted)
            .min(positive.len() - 1);
        let nearest = match above.checked_sub(1) {
            Some(below) if wanted - positive[below] < positive[above] - wanted => below,
            _ => above,
        };
        nearest as u8 | u8::from(value.is_sign_negative()) << 7
    };
    let codes = RawTensor {
        name: tensor.name.clone(),
        shape: tensor.shape.clone(),
        dtype: Dtype::F8_E4M3,
        bytes: values.iter().enumerate().map(code).collect(),
    };
    let scales = TinyTensor {
        name: format!("{}_scale_inv", tensor.name),
        shape: shape.to_vec(),
        ty: GgmlType::F32,
        bytes: scales
            .iter()
            .flat_map(|scale| scale.to_le_bytes())
            .collect(),
    };
    (codes, scales)
}

/// Names in a layer; what is missing here is named in [`renamed`].
const IN_LAYER: [(&str, &str); 26] = [
    ("attn_norm.weight", "input_layernorm.weight"),
    ("ffn_norm.weight", "post_attention_layernorm.weight"),
    ("attn_q_a.weight", "self_attn.q_a_proj.weight"),
    ("attn_q_a_norm.weight", "self_attn.q_a_layernorm.weight"),
    ("attn_q_b.weight", "self_attn.q_b_proj.weight"),
    (
        "attn_kv_a_mqa.weight",
        "self_attn.kv_a_proj_with_mqa.weight",
    ),
    ("attn_kv_a_norm.weight", "self_attn.kv_a_layernorm.weight"),
    ("attn_kv_b.weight", "self_attn.kv_b_proj.weight"),
    ("attn_output.weight", "self_attn.o_proj.weight"),
    ("indexer.attn_q_b.weight", "self_attn.indexer.wq_b.weight"),
    ("indexer.attn_k.weight", "self_attn.indexer.wk.weight"),
    ("indexer.k_norm.weight", "self_attn.indexer.k_norm.weight"),
    ("indexer.k_norm.bias", "self_attn.indexer.k_norm.bias"),
    (
        "indexer.proj.weight",
        "self_attn.indexer.weights_proj.weight",
    ),
    ("ffn_gate.weight", "mlp.gate_proj.weight"),
    ("ffn_up.weight", "mlp.up_proj.weight"),
    ("ffn_down.weight", "mlp.down_proj.weight"),
    ("ffn_gate_inp.weight", "mlp.gate.weight"),
    ("exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),
    (
        "ffn_gate_shexp.weight",
        "mlp.shared_experts.gate_proj.weight",
    ),
    ("ffn_up_shexp.weight", "mlp.shared_experts.up_proj.weight"),
    (
        "ffn_down_shexp.weight",
        "mlp.shared_experts.down_proj.weight",
    ),
    ("nextn.eh_proj.weight", "eh_proj.weight"),
    ("nextn.enorm.weight", "enorm.weight"),
    ("nextn.hnorm.weight", "hnorm.weight"),
    ("nextn.shared_head_norm.weight", "shared_head.norm.weight"),
];

fn renamed(tensor: &TinyTensor, n_layers: usize) -> Vec<TinyTensor> {
    let with_name = |name: String| TinyTensor {
        name,
        ..tensor.clone()
    };
    let Some((layer, suffix)) = tensor
        .name
        .strip_prefix("blk.")
        .and_then(|rest| rest.split_once('.'))
    else {
        return vec![with_name(match tensor.name.as_str() {
            "token_embd.weight" => "model.embed_tokens.weight".to_owned(),
            "output_norm.weight" => "model.norm.weight".to_owned(),
            "output.weight" => "lm_head.weight".to_owned(),
            other => panic!("{other} has no Hugging Face name"),
        })];
    };
    assert!(
        layer.parse::<usize>().is_ok_and(|layer| layer <= n_layers),
        "{}",
        tensor.name
    );
    if let Some((_, name)) = IN_LAYER.iter().find(|(gguf, _)| *gguf == suffix) {
        return vec![with_name(format!("model.layers.{layer}.{name}"))];
    }
    let projection = match suffix {
        "ffn_gate_exps.weight" => "gate_proj",
        "ffn_up_exps.weight" => "up_proj",
        "ffn_down_exps.weight" => "down_proj",
        other => panic!("{other} has no Hugging Face name"),
    };
    let expert_bytes = tensor.bytes.len() / tensor.shape[0];
    let experts = tensor.bytes.chunks(expert_bytes).enumerate();
    experts
        .map(|(expert, bytes)| TinyTensor {
            name: format!("model.layers.{layer}.mlp.experts.{expert}.{projection}.weight"),
            shape: tensor.shape[1..].to_vec(),
            ty: tensor.ty,
            bytes: bytes.to_vec(),
        })
        .collect()
}

/// The keys of `config.json`, with lists where transformers writes lists.
fn config(file: &TinyFile) -> Vec<(String, String)> {
    let d = file.dims();
    let layers = |word: &dyn Fn(usize) -> &'static str| {
        let words: Vec<String> = (0..d.n_layers())
            .map(|layer| format!("\"{}\"", word(layer)))
            .collect();
        format!("[{}]", words.join(", "))
    };
    let mut config: Vec<(String, String)> = [
        ("num_hidden_layers", d.n_layers()),
        ("num_nextn_predict_layers", usize::from(d.mtp)),
        ("hidden_size", d.hidden_size),
        ("vocab_size", d.vocab_size),
        ("max_position_embeddings", 4096),
        ("num_attention_heads", d.n_heads),
        ("q_lora_rank", d.q_lora_rank),
        ("kv_lora_rank", d.kv_lora_rank),
        ("qk_nope_head_dim", d.qk_nope_head_dim),
        ("qk_rope_head_dim", d.qk_rope_head_dim),
        ("v_head_dim", d.v_head_dim),
        ("intermediate_size", d.intermediate_size),
        ("n_routed_experts", d.n_routed_experts),
        ("num_experts_per_tok", d.num_experts_per_tok),
        ("n_shared_experts", d.n_shared_experts),
        ("moe_intermediate_size", d.moe_intermediate_size),
        ("first_k_dense_replace", d.first_dense_layers),
        ("n_group", 1),
        ("topk_group", 1),
        ("index_n_heads", d.index_n_heads),
        ("index_head_dim", d.index_head_dim),
        ("index_topk", d.index_topk),
    ]
    .map(|(key, size)| (key.to_owned(), size.to_string()))
    .into();
    let mut set = |key: &str, json: &str| config.push((key.to_owned(), json.to_owned()));
    set("model_type", "\"glm_moe_dsa\"");
    set("hidden_act", "\"silu\"");
    set("rms_norm_eps", "1e-5");
    set("routed_scaling_factor", "2.5");
    set("norm_topk_prob", "true");
    set(
        "rope_parameters",
        "{\"rope_theta\": 1000000.0, \"rope_type\": \"default\"}",
    );
    set(
        "mlp_layer_types",
        &layers(&|layer| {
            if layer < d.first_dense_layers {
                "dense"
            } else {
                "sparse"
            }
        }),
    );
    set(
        "indexer_types",
        &layers(&|layer| if d.full[layer] { "full" } else { "shared" }),
    );
    config
}
