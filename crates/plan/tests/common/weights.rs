//! An in-memory source of F32 weights, and the generator that seeds them.

use std::borrow::Cow;
use std::collections::HashMap;

use glim_plan::{BackendError, BufferKind, GgmlType, Plan, WeightData, WeightSource};

/// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in −1..1.
    pub(crate) fn unit(&mut self) -> f32 {
        (self.word() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub(crate) fn units(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.unit()).collect()
    }
}

/// Weights by name.
#[derive(Default, Clone)]
pub(crate) struct Weights {
    tensors: HashMap<String, (Vec<usize>, Vec<f32>)>,
}

impl Weights {
    /// Random weights for every weight that the plans declare; a weight's values depend on its name, shape and the seed alone.
    pub(crate) fn seeded(plans: &[&Plan], seed: u64) -> Self {
        let mut all = Self::default();
        for plan in plans {
            for (_, b) in plan.buffers_where(|k| *k == BufferKind::Weight) {
                let name_seed = b
                    .name
                    .bytes()
                    .fold(seed, |h, c| h.wrapping_mul(0x100_0000_01B3) ^ u64::from(c));
                let mut random = Random(name_seed);
                let fan_in = b.shape.last().copied().unwrap() as f32;
                let values = (0..b.elements())
                    .map(|_| match b.name.ends_with("norm.weight") {
                        true => 1.0 + 0.3 * random.unit(),
                        false => random.unit() * (6.0 / fan_in).sqrt(),
                    })
                    .collect();
                all.insert(&b.name, &b.shape, values);
            }
        }
        all
    }

    pub(crate) fn insert(&mut self, name: &str, shape: &[usize], values: Vec<f32>) {
        assert_eq!(values.len(), shape.iter().product::<usize>(), "{name}");
        self.tensors.insert(name.into(), (shape.to_vec(), values));
    }

    pub(crate) fn values(&self, name: &str) -> &[f32] {
        &self.tensors[name].1
    }
}

impl WeightSource for Weights {
    fn weight(&self, name: &str) -> Result<WeightData<'_>, BackendError> {
        let (shape, values) = self.tensors.get(name).ok_or_else(|| BackendError::Source {
            weight: name.into(),
            reason: "the test has no such weight".into(),
        })?;
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Ok(WeightData {
            ty: GgmlType::F32,
            shape: shape.clone(),
            bytes: Cow::Owned(bytes),
        })
    }
}
