//! Random weights straight into a backend, without a file: one rank of a model that exists on paper only.

use std::borrow::Cow;

use glim_plan::{BackendError, GgmlType, RandomBlocks, WeightData, WeightSource};

use super::write::vector;
use super::{Blocks, Fill, Stream};
use crate::catalogue::{TensorSpec, catalogue};
use crate::inventory::Inventory;

/// Bytes that are worth a thread.
const CHUNK_BYTES: usize = 1 << 20;
/// Most threads.
const MAX_THREADS: usize = 64;

/// The weights of one rank, made when they are asked for. They are as large as the rank's, and have the spread of a whole model's; but a
/// rank's are not a part of what another number of ranks would get.
#[derive(Debug)]
pub struct RandomWeights<'a> {
    inventory: &'a Inventory,
    rank: usize,
    seed: u64,
    specs: Vec<TensorSpec>,
}

impl<'a> RandomWeights<'a> {
    /// Weights of `rank`, which is one of the inventory's.
    pub fn new(inventory: &'a Inventory, rank: usize, seed: u64) -> Self {
        Self {
            specs: catalogue(inventory.config()),
            inventory,
            rank,
            seed,
        }
    }
}

/// A weight, before it is made.
struct Wanted<'a> {
    ty: GgmlType,
    shape: &'a [usize],
    fill: Fill,
    stream: Stream,
}

impl RandomWeights<'_> {
    fn wanted(&self, name: &str) -> Result<Wanted<'_>, BackendError> {
        let failed = |reason: String| BackendError::Source {
            weight: name.into(),
            reason,
        };
        let spec = self.specs.iter().find(|spec| spec.name == name);
        let spec = spec.ok_or_else(|| failed("the model has no such tensor".into()))?;
        let own = self.inventory.weight(spec.role, spec.layer, self.rank);
        let own = own.ok_or_else(|| failed(format!("rank {} does not have it", self.rank)))?;
        Ok(Wanted {
            ty: own.ty,
            shape: own.shape,
            fill: Fill::of(spec),
            stream: Stream::new(self.seed ^ self.rank as u64, name),
        })
    }
}

/// Blocks of a type and deviation, for the weight of that name.
fn blocks(name: &str, ty: GgmlType, sigma: f32) -> Result<Blocks, BackendError> {
    Blocks::new(ty, sigma).map_err(|source| BackendError::Decode {
        weight: name.into(),
        source,
    })
}

impl WeightSource for RandomWeights<'_> {
    fn weight(&self, name: &str) -> Result<WeightData<'_>, BackendError> {
        let wanted = self.wanted(name)?;
        let elements: usize = wanted.shape.iter().product();
        let (ty, stream) = (wanted.ty, wanted.stream);
        let bytes = match wanted.fill {
            Fill::Random(sigma) => {
                let blocks = blocks(name, ty, sigma)?;
                let mut bytes = vec![0; elements / ty.block_elems() * ty.block_bytes()];
                fill(&mut bytes, ty.block_bytes(), blocks, stream);
                bytes
            }
            other => vector(elements as u64, other, stream),
        };
        Ok(WeightData {
            ty,
            shape: wanted.shape.to_vec(),
            bytes: Cow::Owned(bytes),
        })
    }

    fn random(&self, name: &str) -> Result<Option<RandomBlocks>, BackendError> {
        let wanted = self.wanted(name)?;
        let Fill::Random(sigma) = wanted.fill else {
            return Ok(None);
        };
        Ok(Some(RandomBlocks {
            ty: wanted.ty,
            shape: wanted.shape.to_vec(),
            key: wanted.stream.key(),
            scale: blocks(name, wanted.ty, sigma)?.scale(),
        }))
    }
}

/// Fills whole blocks from all cores.
fn fill(bytes: &mut [u8], block_bytes: usize, blocks: Blocks, stream: Stream) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let chunk = bytes
        .len()
        .div_ceil(threads.min(MAX_THREADS))
        .max(CHUNK_BYTES);
    let chunk = chunk.next_multiple_of(block_bytes);
    std::thread::scope(|scope| {
        for (i, part) in bytes.chunks_mut(chunk).enumerate() {
            let first = (i * chunk / block_bytes) as u64;
            scope.spawn(move || blocks.fill(stream, first, part));
        }
    });
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::super::{Changes, Classes, Shape};
    use super::*;
    use crate::shard::Options;

    #[test]
    fn a_rank_gets_weights_of_its_own_sizes() {
        let changes = Changes {
            layers: Some(4),
            experts: Some(8),
            vocab: Some(512),
            no_mtp: true,
        };
        let config = Shape::Glm5.config(changes).unwrap();
        let classes = Classes {
            dense: GgmlType::Q8_0,
            experts: GgmlType::Q4_K,
            router: GgmlType::F32,
        };
        let inventory = Inventory::on_paper(&config, |spec| classes.type_of(spec));
        let inventory = inventory.over(8, &Options::default()).unwrap();
        let weights = RandomWeights::new(&inventory, 3, 1);
        let shape = |name: &str| {
            let weight = weights.weight(name).unwrap();
            let elements: usize = weight.shape.iter().product();
            assert_eq!(
                weight.bytes.len(),
                elements / weight.ty.block_elems() * weight.ty.block_bytes()
            );
            (weight.ty, weight.shape)
        };
        assert_eq!(
            shape("blk.3.ffn_down_exps.weight"),
            (GgmlType::Q4_K, vec![8, 6144, 256])
        );
        assert_eq!(
            shape("blk.3.ffn_gate_inp.weight"),
            (GgmlType::F32, vec![8, 6144])
        );
        assert_eq!(
            shape("blk.0.attn_k_b.weight"),
            (GgmlType::Q8_0, vec![8, 512, 192])
        );
        assert_eq!(shape("blk.0.attn_norm.weight"), (GgmlType::F32, vec![6144]));
        assert_eq!(shape("blk.3.exp_probs_b.bias"), (GgmlType::F32, vec![8]));
        assert!(weights.weight("blk.4.attn_norm.weight").is_err());
    }
}
