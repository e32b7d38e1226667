//! Weights on a GPU: where each lies, in which layout, and back to the bytes of the file.

use std::collections::HashMap;

use glim_plan::{BackendError, GgmlType, WeightGroup, WeightSource};

use crate::driver::{DeviceMemory, Gpu};
use crate::error::CudaError;

/// How a weight's blocks lie in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// As in the file.
    Raw,
}

/// A resident weight.
#[derive(Debug, Clone)]
pub(crate) struct WeightInfo {
    /// Block type.
    pub(crate) ty: GgmlType,
    /// Row-major, slowest first.
    pub(crate) shape: Vec<usize>,
    /// How it lies.
    pub(crate) layout: Layout,
    /// Where it begins, 256-byte aligned.
    pub(crate) address: u64,
}

/// All weights of a rank.
#[derive(Debug, Default)]
pub(crate) struct Weights {
    infos: HashMap<String, WeightInfo>,
    memory: HashMap<String, DeviceMemory>,
}

impl Weights {
    /// Uploads the weights of all groups.
    pub(crate) fn load(
        &mut self,
        gpu: &Gpu,
        groups: &[WeightGroup],
        source: &dyn WeightSource,
    ) -> Result<(), BackendError> {
        for name in groups.iter().flat_map(|g| &g.names) {
            let data = source.weight(name)?;
            let expected = expected_bytes(data.ty, &data.shape);
            if expected != Some(data.bytes.len()) {
                let expected = expected.map_or("whole blocks".into(), |n| n.to_string());
                let (bytes, shape, ty) = (data.bytes.len(), &data.shape, data.ty);
                return Err(BackendError::Source {
                    weight: name.clone(),
                    reason: format!("{bytes} bytes for {shape:?} of {ty}, expected {expected}"),
                });
            }
            let fail = |e: CudaError| BackendError::Device {
                device: format!("GPU {}", gpu.ordinal()),
                reason: e.to_string(),
            };
            let memory = DeviceMemory::new(gpu, data.bytes.len(), &format!("weight {name}"))
                .map_err(fail)?;
            memory.write(0, &data.bytes).map_err(fail)?;
            let info = WeightInfo {
                ty: data.ty,
                shape: data.shape,
                layout: Layout::Raw,
                address: memory.address(),
            };
            self.infos.insert(name.clone(), info);
            self.memory.insert(name.clone(), memory);
        }
        Ok(())
    }

    pub(crate) fn get(&self, name: &str) -> Option<&WeightInfo> {
        self.infos.get(name)
    }

    /// The bytes of the file.
    pub(crate) fn read(&self, name: &str) -> Option<Result<Vec<u8>, CudaError>> {
        let memory = self.memory.get(name)?;
        let mut bytes = vec![0; memory.bytes()];
        Some(memory.read(0, &mut bytes).map(|()| bytes))
    }
}

/// Bytes of whole blocks, or `None` if a row is none.
fn expected_bytes(ty: GgmlType, shape: &[usize]) -> Option<usize> {
    let (cols, rows) = shape.split_last()?;
    let rows = rows
        .iter()
        .try_fold(1usize, |n, axis| n.checked_mul(*axis))?;
    ty.row_bytes(*cols)?.checked_mul(rows)
}
