//! Faults on purpose, on the device: tests show with them that a proof finds what it is there to find.
//!
//! They are made where real ones would be: a byte is flipped in the GPU's memory after all weights are there, and a tile is missing since
//! no block of threads computes it. Nothing but tests asks for them, and nothing else behaves differently.

use crate::backend::CudaBackend;
use crate::error::CudaError;
use crate::program::{Program, Work};
use crate::weights::Weights;

/// The define that makes a kernel believe in one block more than there are (`kernels/include/common.cuh`): otherwise those that divide work
/// by the number of blocks would share what the missing one leaves.
const SKIPPED_TILE: &str = "GLIM_SKIPPED_TILE";

/// A fault that a backend has from its next [`load`](glim_plan::Backend::load) and [`prepare`](glim_plan::Backend::prepare) on.
#[doc(hidden)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceFault {
    /// Bits of one byte of a weight, by its offset where the weight lies on the GPU.
    FlippedBits {
        /// Weight.
        weight: String,
        /// Byte.
        at: usize,
        /// Bits.
        mask: u8,
    },
    /// In the last launch of each operation of this label the last block along x is missing: its tiles are never written.
    SkippedTile {
        /// Label.
        op: String,
    },
}

impl CudaBackend {
    /// Adds a fault.
    #[doc(hidden)]
    pub fn inject(&mut self, fault: DeviceFault) {
        self.faults.push(fault);
    }

    /// Makes those of weights, which are all there.
    pub(crate) fn spoil_weights(&self) -> Result<(), CudaError> {
        for fault in &self.faults {
            if let DeviceFault::FlippedBits { weight, at, mask } = fault {
                self.weights.flip(weight, *at, *mask)?;
            }
        }
        Ok(())
    }

    /// Makes those of operations; `labels` are the program's.
    pub(crate) fn spoil_program<'a>(
        &self,
        program: &mut Program,
        labels: impl Iterator<Item = &'a str>,
    ) {
        for (op, label) in program.ops.iter_mut().zip(labels) {
            let is_meant = |fault: &DeviceFault| matches!(fault, DeviceFault::SkippedTile { op } if op == label);
            if !self.faults.iter().any(is_meant) {
                continue;
            }
            let mut launches = op.work.iter_mut().rev().filter_map(|work| match work {
                Work::Kernel(launch) => Some(launch),
                Work::Library(_) => None,
            });
            // A grid of one block stays: without it there would be no launch.
            if let Some(last) = launches.next().filter(|l| l.grid[0] > 1) {
                last.grid[0] -= 1;
                last.kernel.unit.defines.push((SKIPPED_TILE, "1".into()));
            }
        }
    }
}

impl Weights {
    /// Flips bits of a byte of a weight, if there is such a byte.
    fn flip(&self, name: &str, at: usize, mask: u8) -> Result<(), CudaError> {
        let Some((memory, start, _)) = self.place(name).filter(|(_, _, bytes)| at < *bytes) else {
            return Ok(());
        };
        let mut byte = [0];
        memory.read(start + at, &mut byte)?;
        memory.write(start + at, &[byte[0] ^ mask])
    }
}
