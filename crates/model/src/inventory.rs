//! The weights of a model as a plan sees them: name, type and shape, without bytes.
//!
//! Plans are emitted from an [`Inventory`], so they can be made, checked and priced for a model that is not on this machine:
//! from a catalogue and a rule for types, as well as from a [`Checkpoint`]. [`Inventory::over`] cuts it over ranks.

use std::collections::HashMap;
use std::sync::Arc;

use glim_plan::{BackendError, GgmlType, Placement, WeightData, WeightSource};

use crate::catalogue::{Role, TensorSpec, catalogue};
use crate::checkpoint::Checkpoint;
use crate::config::Config;
use crate::shard::{Options, ShardError, ShardedWeight, Shards, Weight};

/// What weights there are.
#[derive(Debug, Clone)]
pub struct Inventory {
    config: Config,
    types: HashMap<String, GgmlType>,
    shapes: HashMap<String, Vec<usize>>,
    tied: bool,
    ranks: Option<Arc<Ranks>>,
}

/// What each rank holds.
#[derive(Debug)]
struct Ranks {
    shards: Shards,
    /// By name, the shape on each rank.
    shapes: HashMap<String, Vec<Vec<usize>>>,
}

/// A weight as one rank holds it.
pub(crate) struct RankWeight<'a> {
    pub(crate) name: String,
    pub(crate) ty: GgmlType,
    pub(crate) shape: &'a [usize],
    pub(crate) placement: Placement,
}

impl Inventory {
    /// The trunk of a checkpoint.
    pub fn of(checkpoint: &Checkpoint) -> Self {
        let types = checkpoint
            .tensors()
            .iter()
            .map(|t| (t.name.clone(), t.ty))
            .collect();
        let shapes = checkpoint
            .tensors()
            .iter()
            .map(|t| (t.name.clone(), t.shape.clone()))
            .collect();
        Self {
            config: checkpoint.config().clone(),
            types,
            shapes,
            tied: checkpoint.is_tied(),
            ranks: None,
        }
    }

    /// A model that exists on paper: the catalogue of `config`, types by `rule`.
    pub fn on_paper(config: &Config, rule: impl Fn(&TensorSpec) -> GgmlType) -> Self {
        let specs = catalogue(config);
        let types = specs.iter().map(|s| (s.name.clone(), rule(s))).collect();
        let shapes = specs.into_iter().map(|s| (s.name, s.shape)).collect();
        Self {
            config: config.clone(),
            types,
            shapes,
            tied: false,
            ranks: None,
        }
    }

    /// The same model over `world_size` ranks, each of which holds its share of what can be cut. A head that is tied to the
    /// embedding table is not cut: each rank has the table whole.
    ///
    /// # Errors
    /// If the model cannot be cut so: heads that do not divide, fewer blocks than ranks.
    pub fn over(mut self, world_size: usize, options: &Options) -> Result<Self, ShardError> {
        self.ranks = None;
        if world_size == 1 {
            return Ok(self);
        }
        let mut weights = Vec::new();
        for spec in catalogue(&self.config) {
            if self.tied && spec.role == Role::Output {
                continue;
            }
            let (Some(ty), Some(shape)) = (self.types.get(&spec.name), self.shapes.get(&spec.name))
            else {
                continue;
            };
            weights.push(Weight {
                shape: shape.clone(),
                ..Weight::on_paper(&spec, *ty)
            });
        }
        let shards = Shards::new((&self.config).into(), weights, world_size, options)?;
        shards.check()?;
        let shapes = |weight: &ShardedWeight| -> Result<_, ShardError> {
            let shapes = (0..world_size).map(|rank| weight.shape(rank));
            Ok((
                weight.weight().name.clone(),
                shapes.collect::<Result<_, _>>()?,
            ))
        };
        let shapes = shards
            .weights()
            .iter()
            .map(shapes)
            .collect::<Result<_, _>>()?;
        self.ranks = Some(Arc::new(Ranks { shards, shapes }));
        Ok(self)
    }

    /// The same model on one rank.
    pub fn whole(&self) -> Self {
        Self {
            ranks: None,
            ..self.clone()
        }
    }

    /// Ranks that the model is cut over.
    pub fn world_size(&self) -> usize {
        self.ranks
            .as_ref()
            .map_or(1, |ranks| ranks.shards.world_size())
    }

    /// What each rank holds; `None` of a model that is whole.
    pub fn shards(&self) -> Option<&Shards> {
        self.ranks.as_ref().map(|ranks| &ranks.shards)
    }

    /// Hyper-parameters.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Hyper-parameters, to be changed: for experiments, and for tests that break a model on purpose. Shapes stay as they are.
    pub fn config_mut(&mut self) -> &mut Config {
        &mut self.config
    }

    /// A weight as `rank` holds it; the head of a tied model is its embedding.
    pub(crate) fn weight(
        &self,
        role: Role,
        layer: Option<usize>,
        rank: usize,
    ) -> Option<RankWeight<'_>> {
        let name = self.name_of(role, layer);
        let ty = *self.types.get(&name)?;
        let whole = self.shapes.get(&name)?;
        let own = self.ranks.as_ref().and_then(|ranks| {
            let placement = ranks.shards.weight(&name)?.placement();
            Some((ranks.shapes.get(&name)?.get(rank)?, placement))
        });
        let (shape, placement) = own.unwrap_or((whole, Placement::Replicated));
        Some(RankWeight {
            name,
            ty,
            shape,
            placement,
        })
    }

    /// Length of an axis of a weight on each rank.
    pub(crate) fn lens(&self, role: Role, layer: Option<usize>, axis: usize) -> Option<Vec<usize>> {
        let name = self.name_of(role, layer);
        match &self.ranks {
            Some(ranks) if ranks.shapes.contains_key(&name) => {
                let shapes = ranks.shapes.get(&name)?.iter();
                shapes.map(|shape| shape.get(axis).copied()).collect()
            }
            _ => Some(vec![*self.shapes.get(&name)?.get(axis)?; self.world_size()]),
        }
    }

    fn name_of(&self, role: Role, layer: Option<usize>) -> String {
        match role {
            Role::Output if self.tied => Role::TokenEmbd,
            role => role,
        }
        .gguf_name(layer)
    }
}

impl WeightSource for Checkpoint {
    fn weight(&self, name: &str) -> Result<WeightData<'_>, BackendError> {
        let source = |reason: String| BackendError::Source {
            weight: name.into(),
            reason,
        };
        let desc = self
            .tensor(name)
            .ok_or_else(|| source("the checkpoint has no such tensor".into()))?;
        let bytes = self.data(desc).map_err(|e| source(e.to_string()))?;
        Ok(WeightData {
            ty: desc.ty,
            shape: desc.shape.clone(),
            bytes,
        })
    }
}
