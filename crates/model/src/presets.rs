//! The real models' sizes, for cost figures, shard tests and synthetic files.
//!
//! Source: the published `config.json` of each model.

use crate::config::{Config, IndexerConfig, IndexerKind, MoeConfig, RopeStyle, Scoring};

impl Config {
    /// GLM-5 and GLM-5.1: 78 layers, 744 billion parameters, an indexer in every layer.
    pub fn glm5() -> Config {
        let n_layers = 78;
        Config {
            arch: "glm-dsa".to_owned(),
            n_layers,
            n_mtp_layers: 1,
            hidden_size: 6144,
            vocab_size: 154_880,
            max_context: 202_752,
            rms_norm_eps: 1e-5,
            latent_norm_eps: 1e-5,
            n_heads: 64,
            q_lora_rank: 2048,
            kv_lora_rank: 512,
            qk_nope_head_dim: 192,
            qk_rope_head_dim: 64,
            v_head_dim: 256,
            rope_theta: 1e6,
            intermediate_size: 12_288,
            moe: MoeConfig {
                n_routed_experts: 256,
                num_experts_per_tok: 8,
                n_shared_experts: 1,
                moe_intermediate_size: 2048,
                first_dense_layers: 3,
                routed_scaling_factor: 2.5,
                norm_topk_prob: true,
                scoring: Scoring::Sigmoid,
                n_group: 1,
                topk_group: 1,
            },
            indexer: IndexerConfig {
                n_heads: 32,
                head_dim: 128,
                topk: 2048,
                norm_eps: 1e-6,
                rope_style: RopeStyle::Interleaved,
                kinds: vec![IndexerKind::Full; n_layers],
            },
        }
    }

    /// GLM-5.2: as GLM-5, with a million tokens of context and an indexer in 21 of the 78 layers.
    pub fn glm52() -> Config {
        let mut config = Config::glm5();
        config.max_context = 1_048_576;
        config.rope_theta = 8e6;
        config.indexer.kinds = scheduled_kinds(config.n_layers, 4, 3);
        config
    }
}

/// The schedule of `index_topk_freq` and `index_skip_topk_offset`: layer `l` is full where
/// `max(l - offset + 1, 0)` is a multiple of `freq`. Source: transformers' and vLLM's `glm_moe_dsa`.
pub(crate) fn scheduled_kinds(n_layers: usize, freq: usize, offset: usize) -> Vec<IndexerKind> {
    let full = |layer: usize| (layer + 1).saturating_sub(offset).is_multiple_of(freq);
    (0..n_layers)
        .map(|layer| {
            if full(layer) {
                IndexerKind::Full
            } else {
                IndexerKind::Shared
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::{TensorSpec, catalogue, mtp_catalogue};

    fn parameters(specs: &[TensorSpec]) -> u64 {
        specs.iter().map(TensorSpec::elements).sum()
    }

    /// A published load log of GLM-5 counts 751.961 billion parameters in repeating layers, MTP block included.
    #[test]
    fn glm5_has_as_many_parameters_as_published() {
        let config = Config::glm5();
        let (trunk, mtp) = (catalogue(&config), mtp_catalogue(&config));
        let (repeating, global): (Vec<_>, Vec<_>) = trunk
            .iter()
            .chain(&mtp)
            .cloned()
            .partition(|spec| spec.layer.is_some());
        assert_eq!(parameters(&repeating), 751_960_967_424);
        assert_eq!(parameters(&global), 2 * 951_582_720 + 6144);
        assert_eq!(parameters(&trunk), 743_911_218_432);
        assert_eq!(parameters(&trunk) + parameters(&mtp), 753_864_139_008);
    }

    #[test]
    fn glm52_lacks_the_indexers_of_57_layers() {
        let (glm5, glm52) = (Config::glm5(), Config::glm52());
        let full: Vec<usize> = (0..78)
            .filter(|&layer| glm52.indexer.kinds[layer] == IndexerKind::Full)
            .collect();
        assert_eq!(
            full,
            [0, 1]
                .into_iter()
                .chain((2..78).step_by(4))
                .collect::<Vec<_>>()
        );
        let saved = parameters(&catalogue(&glm5)) - parameters(&catalogue(&glm52));
        assert_eq!(saved, 57 * 9_371_904);
        assert_eq!(parameters(&catalogue(&glm52)), 743_377_019_904);
    }
}
