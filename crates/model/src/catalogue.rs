//! The tensor catalogue: every tensor that a checkpoint of a given [`Config`] must hold, with its role and shape.
//!
//! Names are GGUF's own, verbatim, and so is the *logical form*: keys and values split (`attn_k_b` transposed),
//! experts stacked, gate and up apart. A file may store another form ([`crate::checkpoint`] resolves it); everything
//! above the checkpoint sees the logical tensors only. What a tensor is *for* is its [`Role`]: shards and plans go by
//! role, never by name. Names and shapes: llama.cpp's `glm-dsa`.
//!
//! Shapes are row-major, the last axis contiguous. With `D` hidden, `E` experts, `I` inner width of an expert, `H`
//! heads: a matrix that maps `in` to `out` is `[out, in]`, stacked experts are `[E, out, in]`, `attn_k_b` is `[H,
//! kv_lora, nope]`, `attn_v_b` is `[H, v, kv_lora]`.

use crate::config::{Config, IndexerKind, Scoring};

macro_rules! roles {
    ($($(#[doc = $doc:literal])+ $variant:ident $suffix:literal;)*) => {
        /// What a tensor is for. Order and shape of the documentation: `[out, in]`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Role { $($(#[doc = $doc])+ $variant,)* }

        impl Role {
            /// Every role.
            pub const ALL: &'static [Role] = &[$(Role::$variant,)*];

            /// The GGUF name, without `blk.N.` for roles that occur in each layer.
            pub fn gguf_suffix(self) -> &'static str {
                match self { $(Role::$variant => $suffix,)* }
            }
        }
    };
}

roles! {
    /// Embedding table `[vocab, D]`.
    TokenEmbd "token_embd.weight";
    /// Last RMSNorm of the trunk `[D]`.
    OutputNorm "output_norm.weight";
    /// Output head `[vocab, D]`.
    Output "output.weight";
    /// RMSNorm before attention `[D]`.
    AttnNorm "attn_norm.weight";
    /// RMSNorm before the feed-forward part `[D]`.
    FfnNorm "ffn_norm.weight";
    /// Down-projection to the query latent `[q_lora, D]`.
    AttnQA "attn_q_a.weight";
    /// RMSNorm of the query latent `[q_lora]`.
    AttnQANorm "attn_q_a_norm.weight";
    /// Queries from their latent `[H * (nope + rope), q_lora]`; in a head, rotation-free part first.
    AttnQB "attn_q_b.weight";
    /// Down-projection to latent and rotated key part `[kv_lora + rope, D]`.
    AttnKvAMqa "attn_kv_a_mqa.weight";
    /// RMSNorm of the latent `[kv_lora]`.
    AttnKvANorm "attn_kv_a_norm.weight";
    /// Absorbed key projection `[H, kv_lora, nope]`: transposed in each head.
    AttnKB "attn_k_b.weight";
    /// Absorbed value projection `[H, v, kv_lora]`.
    AttnVB "attn_v_b.weight";
    /// Output projection of attention `[D, H * v]`.
    AttnOutput "attn_output.weight";
    /// Index queries from the query latent `[index heads * index dim, q_lora]`.
    IndexerAttnQB "indexer.attn_q_b.weight";
    /// Index key `[index dim, D]`.
    IndexerAttnK "indexer.attn_k.weight";
    /// Scale of the LayerNorm over index keys `[index dim]`.
    IndexerKNormWeight "indexer.k_norm.weight";
    /// Shift of the LayerNorm over index keys `[index dim]`.
    IndexerKNormBias "indexer.k_norm.bias";
    /// Weights of the index heads `[index heads, D]`.
    IndexerProj "indexer.proj.weight";
    /// Dense MLP, gate `[I, D]`.
    FfnGate "ffn_gate.weight";
    /// Dense MLP, up `[I, D]`.
    FfnUp "ffn_up.weight";
    /// Dense MLP, down `[D, I]`.
    FfnDown "ffn_down.weight";
    /// Router `[E, D]`.
    FfnGateInp "ffn_gate_inp.weight";
    /// Router bias, for choosing only `[E]`.
    ExpProbsB "exp_probs_b.bias";
    /// Routed experts, gate `[E, I, D]`.
    FfnGateExps "ffn_gate_exps.weight";
    /// Routed experts, up `[E, I, D]`.
    FfnUpExps "ffn_up_exps.weight";
    /// Routed experts, down `[E, D, I]`.
    FfnDownExps "ffn_down_exps.weight";
    /// Shared experts as one MLP, gate `[n_shared * I, D]`.
    FfnGateShexp "ffn_gate_shexp.weight";
    /// Shared experts as one MLP, up `[n_shared * I, D]`.
    FfnUpShexp "ffn_up_shexp.weight";
    /// Shared experts as one MLP, down `[D, n_shared * I]`.
    FfnDownShexp "ffn_down_shexp.weight";
    /// MTP: projection of embedding and hidden state, in this order `[D, 2 * D]`.
    NextnEhProj "nextn.eh_proj.weight";
    /// MTP: RMSNorm of the next token's embedding `[D]`.
    NextnEnorm "nextn.enorm.weight";
    /// MTP: RMSNorm of the trunk's hidden state `[D]`.
    NextnHnorm "nextn.hnorm.weight";
    /// MTP: RMSNorm before the head `[D]`.
    NextnSharedHeadNorm "nextn.shared_head_norm.weight";
    /// MTP: an embedding table of its own `[vocab, D]`; GLM-5 has none.
    NextnEmbedTokens "nextn.embed_tokens.weight";
    /// MTP: an output head of its own `[vocab, D]`; GLM-5 has none.
    NextnSharedHeadHead "nextn.shared_head_head.weight";
}

impl Role {
    /// Whether the tensor belongs to the lightning indexer.
    pub fn is_indexer(self) -> bool {
        matches!(
            self,
            Role::IndexerAttnQB
                | Role::IndexerAttnK
                | Role::IndexerKNormWeight
                | Role::IndexerKNormBias
                | Role::IndexerProj
        )
    }

    /// Whether the tensor occurs once in a model, not once in a layer.
    pub fn is_global(self) -> bool {
        matches!(self, Role::TokenEmbd | Role::OutputNorm | Role::Output)
    }

    /// Whether files hold it in F32, F16 or BF16 only: vectors, and the router, whose choices depend on every digit.
    pub fn is_float_only(self) -> bool {
        matches!(
            self,
            Role::OutputNorm
                | Role::AttnNorm
                | Role::FfnNorm
                | Role::AttnQANorm
                | Role::AttnKvANorm
                | Role::IndexerKNormWeight
                | Role::IndexerKNormBias
                | Role::FfnGateInp
                | Role::ExpProbsB
                | Role::NextnEnorm
                | Role::NextnHnorm
                | Role::NextnSharedHeadNorm
        )
    }

    /// The GGUF name: `blk.{layer}.SUFFIX`, or the suffix alone without a layer.
    pub fn gguf_name(self, layer: Option<usize>) -> String {
        match layer {
            Some(layer) => format!("blk.{layer}.{}", self.gguf_suffix()),
            None => self.gguf_suffix().to_owned(),
        }
    }
}

/// One logical tensor of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// GGUF's name of the logical form.
    pub name: String,
    /// What it is for.
    pub role: Role,
    /// Its layer; MTP blocks count on from the trunk, `n_layers..n_layers + n_mtp_layers`.
    pub layer: Option<usize>,
    /// Row-major shape, in elements.
    pub shape: Vec<usize>,
}

impl TensorSpec {
    fn new(role: Role, layer: Option<usize>, shape: &[usize]) -> Self {
        TensorSpec {
            name: role.gguf_name(layer),
            role,
            layer,
            shape: shape.to_vec(),
        }
    }

    /// Elements. Cannot overflow for a [`Config`] that was read from a checkpoint: its sizes are bounded.
    pub fn elements(&self) -> u64 {
        self.shape.iter().map(|&n| n as u64).product()
    }
}

/// The tensors of the trunk, in a fixed order: embedding, layers, last norm, head.
pub fn catalogue(config: &Config) -> Vec<TensorSpec> {
    let (vocab, hidden) = (config.vocab_size, config.hidden_size);
    let mut specs = vec![TensorSpec::new(Role::TokenEmbd, None, &[vocab, hidden])];
    for layer in 0..config.n_layers {
        let indexer = config.indexer.kinds.get(layer) == Some(&IndexerKind::Full);
        push_layer(&mut specs, config, layer, indexer, config.is_moe(layer));
    }
    specs.push(TensorSpec::new(Role::OutputNorm, None, &[hidden]));
    specs.push(TensorSpec::new(Role::Output, None, &[vocab, hidden]));
    specs
}

/// The tensors of the MTP blocks. Each is a sparse layer with an indexer of its own, plus what feeds it and reads it.
///
/// Embedding and head are the trunk's; [`mtp_optional`] lists what a block may bring along.
pub fn mtp_catalogue(config: &Config) -> Vec<TensorSpec> {
    let hidden = config.hidden_size;
    let mut specs = Vec::new();
    for layer in mtp_layers(config) {
        specs.push(TensorSpec::new(
            Role::NextnEhProj,
            Some(layer),
            &[hidden, 2 * hidden],
        ));
        specs.push(TensorSpec::new(Role::NextnEnorm, Some(layer), &[hidden]));
        specs.push(TensorSpec::new(Role::NextnHnorm, Some(layer), &[hidden]));
        push_layer(&mut specs, config, layer, true, true);
        specs.push(TensorSpec::new(
            Role::NextnSharedHeadNorm,
            Some(layer),
            &[hidden],
        ));
    }
    specs
}

/// Tensors that an MTP block may have and GLM-5's has not: an embedding table and a head of its own.
pub fn mtp_optional(config: &Config) -> Vec<TensorSpec> {
    let shape = [config.vocab_size, config.hidden_size];
    mtp_layers(config)
        .flat_map(|layer| {
            [Role::NextnEmbedTokens, Role::NextnSharedHeadHead].map(|role| (role, layer))
        })
        .map(|(role, layer)| TensorSpec::new(role, Some(layer), &shape))
        .collect()
}

fn mtp_layers(config: &Config) -> std::ops::Range<usize> {
    config.n_layers..config.n_layers + config.n_mtp_layers
}

/// One decoder layer. `indexer`: it has one of its own; `moe`: experts rather than a dense MLP.
fn push_layer(
    specs: &mut Vec<TensorSpec>,
    config: &Config,
    layer: usize,
    indexer: bool,
    moe: bool,
) {
    let Config {
        hidden_size: hidden,
        n_heads: heads,
        q_lora_rank: q_lora,
        kv_lora_rank: kv_lora,
        ..
    } = *config;
    let mut push = |role, shape: &[usize]| specs.push(TensorSpec::new(role, Some(layer), shape));

    push(Role::AttnNorm, &[hidden]);
    push(Role::AttnQA, &[q_lora, hidden]);
    push(Role::AttnQANorm, &[q_lora]);
    push(Role::AttnQB, &[heads * config.qk_head_dim(), q_lora]);
    push(Role::AttnKvAMqa, &[config.latent_dim(), hidden]);
    push(Role::AttnKvANorm, &[kv_lora]);
    push(Role::AttnKB, &[heads, kv_lora, config.qk_nope_head_dim]);
    push(Role::AttnVB, &[heads, config.v_head_dim, kv_lora]);
    push(Role::AttnOutput, &[hidden, heads * config.v_head_dim]);

    if indexer {
        let (n_heads, head_dim) = (config.indexer.n_heads, config.indexer.head_dim);
        push(Role::IndexerAttnQB, &[n_heads * head_dim, q_lora]);
        push(Role::IndexerAttnK, &[head_dim, hidden]);
        push(Role::IndexerKNormWeight, &[head_dim]);
        push(Role::IndexerKNormBias, &[head_dim]);
        push(Role::IndexerProj, &[n_heads, hidden]);
    }

    push(Role::FfnNorm, &[hidden]);
    if moe {
        let moe = &config.moe;
        let (experts, inner) = (moe.n_routed_experts, moe.moe_intermediate_size);
        let shared = moe.n_shared_experts * inner;
        push(Role::FfnGateInp, &[experts, hidden]);
        if moe.scoring == Scoring::Sigmoid {
            push(Role::ExpProbsB, &[experts]);
        }
        push(Role::FfnGateExps, &[experts, inner, hidden]);
        push(Role::FfnUpExps, &[experts, inner, hidden]);
        push(Role::FfnDownExps, &[experts, hidden, inner]);
        push(Role::FfnGateShexp, &[shared, hidden]);
        push(Role::FfnUpShexp, &[shared, hidden]);
        push(Role::FfnDownShexp, &[hidden, shared]);
    } else {
        push(Role::FfnGate, &[config.intermediate_size, hidden]);
        push(Role::FfnUp, &[config.intermediate_size, hidden]);
        push(Role::FfnDown, &[hidden, config.intermediate_size]);
    }
}
