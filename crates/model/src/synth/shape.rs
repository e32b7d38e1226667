//! The shapes that can be made up, and what may be changed about them.

use super::SynthError;
use crate::config::{Config, IndexerKind};
use crate::config_check::{MAX_EXPERTS, MAX_VOCAB};

/// Sizes of a published model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// GLM-5 and 5.1: 744 billion parameters, an indexer in each layer.
    Glm5,
    /// GLM-5.2: an indexer in 21 of 78 layers, a million tokens of context.
    Glm52,
    /// GLM-4.7-Flash: the same family without an indexer, which GGUF calls `deepseek2` and glim does not run; llama.cpp does.
    Glm47Flash,
    /// The model that is built into glim: 20 million parameters.
    Tiny,
}

/// Departures from a shape.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Changes {
    /// Trunk layers: the first so many.
    pub layers: Option<usize>,
    /// Routed experts in a layer.
    pub experts: Option<usize>,
    /// Rows of embedding and head.
    pub vocab: Option<usize>,
    /// Without MTP blocks.
    pub no_mtp: bool,
}

impl Shape {
    /// All shapes.
    pub const ALL: &'static [Shape] = &[Self::Glm5, Self::Glm52, Self::Glm47Flash, Self::Tiny];

    /// What the command line calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Glm5 => "glm-5",
            Self::Glm52 => "glm-5.2",
            Self::Glm47Flash => "glm-4.7-flash",
            Self::Tiny => "tiny",
        }
    }

    /// The configuration with these changes. Dense layers come first, so that fewer layers may mean no experts at all.
    ///
    /// # Errors
    /// [`SynthError::Size`] for a number that the shape cannot have.
    pub fn config(self, changes: Changes) -> Result<Config, SynthError> {
        let mut config = match self {
            Self::Glm5 => Config::glm5(),
            Self::Glm52 => Config::glm52(),
            Self::Glm47Flash => glm47_flash(),
            Self::Tiny => Config::tiny_glm5(),
        };
        if let Some(layers) = changes.layers {
            let most = config.n_layers;
            check("layers", layers, 1, most)?;
            config.n_layers = layers;
            config.indexer.kinds.truncate(layers);
            config.moe.first_dense_layers = config.moe.first_dense_layers.min(layers);
        }
        if let Some(experts) = changes.experts {
            let fewest = config.moe.num_experts_per_tok;
            check("experts", experts, fewest, MAX_EXPERTS)?;
            config.moe.n_routed_experts = experts;
        }
        if let Some(vocab) = changes.vocab {
            check("vocab", vocab, 1, MAX_VOCAB)?;
            config.vocab_size = vocab;
        }
        if changes.no_mtp {
            config.n_mtp_layers = 0;
        }
        Ok(config)
    }
}

/// Not a public [`Config`]: no plan is made of it.
fn glm47_flash() -> Config {
    let mut config = Config::glm5();
    config.arch = "deepseek2".to_owned();
    config.n_layers = 47;
    config.hidden_size = 2048;
    (config.n_heads, config.q_lora_rank) = (20, 768);
    config.intermediate_size = 10_240;
    config.moe.n_routed_experts = 64;
    config.moe.num_experts_per_tok = 4;
    config.moe.moe_intermediate_size = 1536;
    config.moe.first_dense_layers = 1;
    config.moe.routed_scaling_factor = 1.8;
    config.indexer.kinds = vec![IndexerKind::Shared; config.n_layers];
    config
}

fn check(what: &'static str, found: usize, fewest: usize, most: usize) -> Result<(), SynthError> {
    if (fewest..=most).contains(&found) {
        return Ok(());
    }
    Err(SynthError::Size {
        what,
        found,
        expected: format!("{fewest} to {most}"),
    })
}

impl Config {
    /// tiny-glm5, the model that is built into glim: `assets/tiny-glm5/MODEL_CARD.md`.
    pub fn tiny_glm5() -> Config {
        let n_layers = 6;
        let mut config = Config::glm5();
        config.n_layers = n_layers;
        config.hidden_size = 256;
        config.vocab_size = 4096;
        config.max_context = 4096;
        (config.n_heads, config.q_lora_rank, config.kv_lora_rank) = (8, 256, 128);
        config.qk_nope_head_dim = 96;
        config.qk_rope_head_dim = 32;
        config.v_head_dim = 128;
        config.intermediate_size = 768;
        config.moe.n_routed_experts = 8;
        config.moe.num_experts_per_tok = 2;
        config.moe.moe_intermediate_size = 256;
        config.moe.first_dense_layers = 1;
        (config.indexer.n_heads, config.indexer.head_dim) = (4, 64);
        config.indexer.topk = 128;
        config.indexer.kinds = vec![IndexerKind::Full; n_layers];
        config
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn fewer_layers_are_the_first_ones() {
        let changes = Changes {
            layers: Some(2),
            no_mtp: true,
            ..Changes::default()
        };
        let config = Shape::Glm52.config(changes).unwrap();
        assert_eq!((config.n_layers, config.n_mtp_layers), (2, 0));
        assert_eq!(config.moe.first_dense_layers, 2);
        assert_eq!(config.indexer.kinds, [IndexerKind::Full; 2]);
    }

    #[test]
    fn sizes_that_a_shape_cannot_have_are_refused() {
        let refused = |changes| Shape::Glm5.config(changes).unwrap_err().to_string();
        let none = Changes::default();
        let layers = Changes {
            layers: Some(79),
            ..none
        };
        assert_eq!(refused(layers), "layers 79: expected 1 to 78");
        let experts = Changes {
            experts: Some(7),
            ..none
        };
        assert_eq!(refused(experts), "experts 7: expected 8 to 65536");
        let vocab = Changes {
            vocab: Some(0),
            ..none
        };
        assert_eq!(refused(vocab), "vocab 0: expected 1 to 16777216");
    }

    #[test]
    fn glm47_flash_has_the_tensors_that_are_published() {
        let config = Shape::Glm47Flash.config(Changes::default()).unwrap();
        let rule = crate::synth::TypeRule::from_name("q8_0").unwrap();
        let text = glim_gguf::Metadata::new();
        let plan = crate::synth::SynthPlan::new(&config, rule, "Flash", &text).unwrap();
        let specs: Vec<_> = plan.tensors.into_iter().map(|tensor| tensor.spec).collect();
        assert_eq!(specs, crate::shard::PaperModel::glm47_flash().tensors);
        assert!(
            plan.metadata
                .iter()
                .all(|(key, _)| !key.contains("indexer"))
        );
    }
}
