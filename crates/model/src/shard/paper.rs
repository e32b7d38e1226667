//! Real models as shapes only: what their tensors are, for proofs and budgets that need no file.
//!
//! GLM-5 and 5.2 have a [`Config`] of their own. The others of the family are not models that this crate emits plans for, so
//! they get no `Config` that could be mistaken for one. Their lists are what the catalogue says of their sizes, without what
//! they lack:
//!
//! - no indexer (all three): its tensors are left out, in the MTP block too;
//! - no query latent (DeepSeek-V2-Lite): `attn_q_a` and its norm are left out, and the direct `attn_q`, `[H * (nope +
//!   rope), D]`, has the role of `attn_q_b`: rows by head, whatever the input is.
//!
//! Sizes: the published `config.json` of each model.

use super::{HeadCounts, Weight};
use crate::catalogue::{Role, TensorSpec, catalogue, mtp_catalogue};
use crate::config::{Config, IndexerKind, Scoring};
use glim_quant::GgmlType;

/// The tensors of a model, by name, role and shape.
#[derive(Debug, Clone)]
pub struct PaperModel {
    /// As its publisher writes it.
    pub name: &'static str,
    /// Its heads.
    pub heads: HeadCounts,
    /// Trunk, then MTP block.
    pub tensors: Vec<TensorSpec>,
}

impl PaperModel {
    /// GLM-5 and GLM-5.1.
    pub fn glm5() -> Self {
        Self::of("GLM-5", &Config::glm5())
    }

    /// GLM-5.2.
    pub fn glm52() -> Self {
        Self::of("GLM-5.2", &Config::glm52())
    }

    /// GLM-4.7-Flash: 20 heads.
    pub fn glm47_flash() -> Self {
        let mut config = without_indexer(47);
        config.n_mtp_layers = 1;
        config.hidden_size = 2048;
        config.vocab_size = 154_880;
        (config.n_heads, config.q_lora_rank) = (20, 768);
        (config.qk_nope_head_dim, config.v_head_dim) = (192, 256);
        config.intermediate_size = 10_240;
        config.moe.first_dense_layers = 1;
        config.moe.n_routed_experts = 64;
        config.moe.moe_intermediate_size = 1536;
        Self::of("GLM-4.7-Flash", &config).retain(|role| !role.is_indexer())
    }

    /// DeepSeek-V3.
    pub fn deepseek_v3() -> Self {
        let mut config = without_indexer(61);
        config.n_mtp_layers = 1;
        config.hidden_size = 7168;
        config.vocab_size = 129_280;
        (config.n_heads, config.q_lora_rank) = (128, 1536);
        (config.qk_nope_head_dim, config.v_head_dim) = (128, 128);
        config.intermediate_size = 18_432;
        config.moe.first_dense_layers = 3;
        config.moe.n_routed_experts = 256;
        config.moe.moe_intermediate_size = 2048;
        Self::of("DeepSeek-V3", &config).retain(|role| !role.is_indexer())
    }

    /// DeepSeek-V2-Lite: no query latent, two shared experts, and inner widths that are no multiples of 256.
    pub fn deepseek_v2_lite() -> Self {
        let mut config = without_indexer(27);
        config.n_mtp_layers = 0;
        config.hidden_size = 2048;
        config.vocab_size = 102_400;
        config.n_heads = 16;
        // The direct projection reads the hidden state.
        config.q_lora_rank = config.hidden_size;
        (config.qk_nope_head_dim, config.v_head_dim) = (128, 128);
        config.intermediate_size = 10_944;
        config.moe.first_dense_layers = 1;
        config.moe.n_routed_experts = 64;
        config.moe.n_shared_experts = 2;
        config.moe.moe_intermediate_size = 1408;
        config.moe.scoring = Scoring::Softmax;
        let mut model = Self::of("DeepSeek-V2-Lite", &config)
            .retain(|role| !matches!(role, Role::AttnQA | Role::AttnQANorm));
        for spec in model
            .tensors
            .iter_mut()
            .filter(|spec| spec.role == Role::AttnQB)
        {
            spec.name = spec.name.replace("attn_q_b.", "attn_q.");
        }
        model
    }

    /// All of these.
    pub fn all() -> Vec<Self> {
        vec![
            Self::glm5(),
            Self::glm52(),
            Self::glm47_flash(),
            Self::deepseek_v2_lite(),
            Self::deepseek_v3(),
        ]
    }

    /// The same tensors in types by `rule`.
    pub fn weights(&self, rule: impl Fn(&TensorSpec) -> GgmlType) -> Vec<Weight> {
        self.tensors
            .iter()
            .map(|spec| Weight::on_paper(spec, rule(spec)))
            .collect()
    }

    fn of(name: &'static str, config: &Config) -> Self {
        let tensors = catalogue(config)
            .into_iter()
            .chain(mtp_catalogue(config))
            .collect();
        PaperModel {
            name,
            heads: config.into(),
            tensors,
        }
    }

    fn retain(mut self, has: impl Fn(Role) -> bool) -> Self {
        self.tensors.retain(|spec| has(spec.role));
        self
    }
}

/// Sizes to start from: the catalogue lists no indexer for a shared layer.
fn without_indexer(n_layers: usize) -> Config {
    let mut config = Config::glm5();
    config.n_layers = n_layers;
    config.indexer.kinds = vec![IndexerKind::Shared; n_layers];
    config
}
