//! Weights by name, for plans of a few operations.

use std::borrow::Cow;
use std::collections::HashMap;

use glim_plan::{BackendError, GgmlType, WeightData, WeightSource};

/// Tensors in memory, as a backend loads them.
#[derive(Debug, Clone, Default)]
pub struct Weights(HashMap<String, (GgmlType, Vec<usize>, Vec<u8>)>);

impl Weights {
    /// Adds a tensor of `ty`, `shape` slowest axis first.
    pub fn insert(&mut self, name: &str, ty: GgmlType, shape: &[usize], bytes: Vec<u8>) {
        self.0.insert(name.into(), (ty, shape.to_vec(), bytes));
    }

    /// Adds a tensor of F32.
    pub fn insert_f32(&mut self, name: &str, shape: &[usize], values: &[f32]) {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.insert(name, GgmlType::F32, shape, bytes);
    }

    /// The bytes of a tensor that was added.
    ///
    /// # Panics
    /// If there is no such tensor.
    pub fn bytes_mut(&mut self, name: &str) -> &mut [u8] {
        let tensor = self.0.get_mut(name);
        &mut tensor.unwrap_or_else(|| panic!("no weight {name}")).2
    }
}

impl WeightSource for Weights {
    fn weight(&self, name: &str) -> Result<WeightData<'_>, BackendError> {
        let tensor = self.0.get(name);
        let (ty, shape, bytes) = tensor.ok_or_else(|| BackendError::Source {
            weight: name.into(),
            reason: "the test has no such weight".into(),
        })?;
        Ok(WeightData {
            ty: *ty,
            shape: shape.clone(),
            bytes: Cow::Borrowed(bytes),
        })
    }
}
