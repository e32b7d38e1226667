//! The weights of a model as a plan sees them: name, type and shape, without bytes.
//!
//! Plans are emitted from an [`Inventory`], so they can be made, checked and priced for a model that is not on this machine:
//! from a catalogue and a rule for types, as well as from a [`Checkpoint`].

use std::collections::HashMap;

use glim_plan::{BackendError, GgmlType, WeightData, WeightSource};

use crate::catalogue::{Role, TensorSpec, catalogue};
use crate::checkpoint::Checkpoint;
use crate::config::Config;

/// What weights there are.
#[derive(Debug, Clone)]
pub struct Inventory {
    config: Config,
    types: HashMap<String, GgmlType>,
    shapes: HashMap<String, Vec<usize>>,
    tied: bool,
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
        }
    }

    /// Hyper-parameters.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Hyper-parameters, to be changed: for experiments, and for tests that break a model on purpose. Shapes stay as they are.
    pub fn config_mut(&mut self) -> &mut Config {
        &mut self.config
    }

    /// Name, type and shape of a weight; the head of a tied model is its embedding.
    pub(crate) fn weight(
        &self,
        role: Role,
        layer: Option<usize>,
    ) -> Option<(String, GgmlType, &[usize])> {
        let role = if self.tied && role == Role::Output {
            Role::TokenEmbd
        } else {
            role
        };
        let name = role.gguf_name(layer);
        let ty = *self.types.get(&name)?;
        let shape = self.shapes.get(&name)?;
        Some((name, ty, shape))
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
