//! What follows from a model's tensors and tokenizer: sizes, memory, end tokens.

use glim_engine::Budget;
use glim_model::catalogue::Role;
use glim_model::config::IndexerKind;
use glim_model::{Checkpoint, Config, TensorDesc, states};
use glim_plan::{GgmlType, StateKind};
use serde_json::{Map, Value as Json, json};
use sha2::{Digest, Sha256};

use super::values::float;
use crate::loader::Text;

/// What is known once the tensors are understood.
pub(super) struct Architecture {
    pub(super) config: Config,
    pub(super) params_trunk: u64,
    pub(super) params_mtp: u64,
    /// Weights of the trunk that one token reads: of the routed experts only the chosen ones, of the embedding nothing.
    pub(super) params_active: u64,
    pub(super) cache: CacheFacts,
    pub(super) memory: Memory,
}

/// Bytes that a token takes in the caches.
pub(super) struct CacheFacts {
    pub(super) latent: u64,
    pub(super) index_key: u64,
}

impl CacheFacts {
    pub(super) fn total(&self) -> u64 {
        self.latent + self.index_key
    }
}

/// What a run of one sequence keeps in memory on the CPU: the blocks as they are stored, f32 caches and activations.
pub(super) struct Memory {
    pub(super) context: usize,
    /// Of each rank; there is one at least.
    pub(super) ranks: Vec<Budget>,
    /// Bytes that the user has for a rank, and the longest context that fits into them, if any does.
    pub(super) fits: Option<(u64, Option<usize>)>,
}

/// Tokenizer and template.
pub(super) struct TokenizerFacts {
    pub(super) vocab_size: usize,
    pub(super) pre: &'static str,
    pub(super) stop: Vec<(u32, String)>,
    /// Characters, and the beginning of the SHA-256.
    pub(super) template: Option<(usize, String)>,
}

impl Architecture {
    pub(super) fn of(checkpoint: &Checkpoint, memory: Memory) -> Self {
        let config = checkpoint.config();
        // A tied head is the embedding once more, and resident once.
        let trunk: Vec<&TensorDesc> = checkpoint
            .tensors()
            .iter()
            .filter(|t| !(checkpoint.is_tied() && t.role == Role::Output))
            .collect();
        let sum = |f: &dyn Fn(&TensorDesc) -> u64| trunk.iter().map(|t| f(t)).sum::<u64>();
        let active = |t: &TensorDesc| match t.role {
            Role::TokenEmbd if checkpoint.is_tied() => t.elements() as u64,
            Role::TokenEmbd => 0,
            Role::FfnGateExps | Role::FfnUpExps | Role::FfnDownExps => {
                let experts = config.moe.n_routed_experts.max(1);
                (t.elements() / experts * config.moe.num_experts_per_tok) as u64
            }
            _ => t.elements() as u64,
        };
        let cache = CacheFacts::of(config);
        let params_trunk = sum(&|t| t.elements() as u64);
        Self {
            config: config.clone(),
            params_trunk,
            params_mtp: checkpoint
                .mtp_tensors()
                .iter()
                .map(|t| t.elements() as u64)
                .sum(),
            params_active: sum(&active),
            cache,
            memory,
        }
    }

    /// Layers that have an indexer of their own, and layers that reuse an earlier one's choice.
    pub(super) fn indexer_layers(&self) -> (usize, usize) {
        let kinds = &self.config.indexer.kinds;
        let full = kinds
            .iter()
            .filter(|kind| **kind == IndexerKind::Full)
            .count();
        (full, kinds.len() - full)
    }

    /// Hyper-parameters by name.
    pub(super) fn hyper_parameters(&self) -> Vec<(&'static str, Json)> {
        let (c, moe, indexer) = (&self.config, &self.config.moe, &self.config.indexer);
        let (full, shared) = self.indexer_layers();
        vec![
            ("n_layers", c.n_layers.into()),
            ("n_mtp_layers", c.n_mtp_layers.into()),
            ("hidden_size", c.hidden_size.into()),
            ("vocab_size", c.vocab_size.into()),
            ("max_context", c.max_context.into()),
            ("rms_norm_eps", float(c.rms_norm_eps)),
            ("latent_norm_eps", float(c.latent_norm_eps)),
            ("n_heads", c.n_heads.into()),
            ("q_lora_rank", c.q_lora_rank.into()),
            ("kv_lora_rank", c.kv_lora_rank.into()),
            ("qk_nope_head_dim", c.qk_nope_head_dim.into()),
            ("qk_rope_head_dim", c.qk_rope_head_dim.into()),
            ("v_head_dim", c.v_head_dim.into()),
            ("rope_theta", float(c.rope_theta)),
            ("intermediate_size", c.intermediate_size.into()),
            ("first_dense_layers", moe.first_dense_layers.into()),
            ("n_routed_experts", moe.n_routed_experts.into()),
            ("num_experts_per_tok", moe.num_experts_per_tok.into()),
            ("n_shared_experts", moe.n_shared_experts.into()),
            ("moe_intermediate_size", moe.moe_intermediate_size.into()),
            ("routed_scaling_factor", float(moe.routed_scaling_factor)),
            ("norm_topk_prob", moe.norm_topk_prob.into()),
            (
                "scoring",
                format!("{:?}", moe.scoring).to_lowercase().into(),
            ),
            ("index_n_heads", indexer.n_heads.into()),
            ("index_head_dim", indexer.head_dim.into()),
            ("index_topk", indexer.topk.into()),
            ("indexer_full_layers", full.into()),
            ("indexer_shared_layers", shared.into()),
        ]
    }

    pub(super) fn to_json(&self) -> Json {
        let parameters: Map<String, Json> = self
            .hyper_parameters()
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect();
        let (cache, memory) = (&self.cache, &self.memory);
        let class = |of: fn(&Budget) -> u64| memory.ranks.iter().map(of).max().unwrap_or(0);
        let rank = |budget: &Budget| {
            json!({
                "weights_bytes": budget.weights,
                "latent_cache_bytes": budget.latent_cache,
                "index_cache_bytes": budget.index_cache,
                "arena_bytes": budget.arena,
                "total_bytes": budget.total(),
            })
        };
        let fits = memory
            .fits
            .map(|(bytes, context)| json!({ "bytes": bytes, "context": context }));
        json!({
            "name": self.config.arch,
            "hyper_parameters": parameters,
            "params": { "trunk": self.params_trunk, "mtp": self.params_mtp, "active": self.params_active },
            "cache_bytes_per_token": {
                "latent": cache.latent, "index_key": cache.index_key, "total": cache.total(),
            },
            "memory": {
                "context": memory.context,
                "weights_bytes": class(|budget| budget.weights),
                "cache_bytes": class(|budget| budget.latent_cache + budget.index_cache),
                "arena_bytes": class(|budget| budget.arena),
                "total_bytes": class(Budget::total),
                "ranks": memory.ranks.iter().map(rank).collect::<Vec<_>>(),
                "fits": fits,
            },
        })
    }
}

impl CacheFacts {
    /// With the f32 caches that the CPU keeps in either math.
    fn of(config: &Config) -> Self {
        let (mut latent, mut index_key) = (0, 0);
        for state in states(config, GgmlType::F32, GgmlType::F32) {
            if let StateKind::Paged { bytes_per_token } = state.kind {
                let kind = if state.name.starts_with("index_key.") {
                    &mut index_key
                } else {
                    &mut latent
                };
                *kind += bytes_per_token as u64;
            }
        }
        Self { latent, index_key }
    }
}

impl TokenizerFacts {
    pub(super) fn of(text: &Text) -> Self {
        let tokenizer = &text.model.tokenizer;
        let spelled = |id: &glim_text::TokenId| {
            (
                id.0,
                tokenizer.token_text(*id).unwrap_or_default().into_owned(),
            )
        };
        let digest = |source: &String| {
            let sha256: String = Sha256::digest(source.as_bytes())
                .iter()
                .take(6)
                .map(|b| format!("{b:02x}"))
                .collect();
            (source.chars().count(), sha256)
        };
        Self {
            vocab_size: tokenizer.vocab_size(),
            pre: tokenizer.vocab().pre_tokenizer.name,
            stop: tokenizer.stop_ids().iter().map(spelled).collect(),
            template: text.template.as_ref().map(digest),
        }
    }

    pub(super) fn to_json(&self) -> Json {
        let stop = self
            .stop
            .iter()
            .map(|(id, text)| json!({ "id": id, "text": text }));
        let template = self
            .template
            .as_ref()
            .map(|(chars, sha256)| json!({ "chars": chars, "sha256": sha256 }));
        json!({
            "vocab_size": self.vocab_size, "pre": self.pre, "stop": stop.collect::<Vec<_>>(), "template": template,
        })
    }
}
