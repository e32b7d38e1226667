//! Faults on purpose, for tests of what must find them: a byte of a resident weight that is not the file's, a kernel that leaves its last
//! tile out.
//!
//! No option of the program leads here. A test puts them into [`CudaOptions::faults`](crate::CudaOptions), so that they are there
//! when a backend, built anywhere and owned by an engine, has loaded and prepared.

use crate::program::{Program, Work};

/// The define by which a kernel leaves its last tile out (`kernels/include/common.cuh`).
const SKIP_LAST_TILE: &str = "GLIM_FAULT_SKIP_LAST_TILE";

/// What is to be wrong.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Faults {
    /// Weights with a byte of theirs, in the order of the file, whose bits are inverted on the GPU once they are loaded.
    pub flipped: Vec<(String, usize)>,
    /// Labels of operations whose last kernel does nothing in the last block of its grid's first axis. What should stand there is
    /// what the arena held before.
    pub skips_last_tile: Vec<String>,
}

impl Faults {
    /// Chooses the kernels that are wrong. `labels` are those of the plan's operations, in order.
    pub(crate) fn apply<'a>(
        &self,
        program: &mut Program,
        labels: impl Iterator<Item = &'a String>,
    ) {
        let ops = program.ops.iter_mut().zip(labels);
        for (op, _) in ops.filter(|(_, label)| self.skips_last_tile.contains(label)) {
            let last = op.work.iter_mut().rev().find_map(|work| match work {
                Work::Kernel(launch) => Some(launch),
                Work::Library(_) => None,
            });
            if let Some(launch) = last {
                launch
                    .kernel
                    .unit
                    .defines
                    .push((SKIP_LAST_TILE, "1".into()));
            }
        }
    }
}
