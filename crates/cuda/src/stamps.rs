//! When each operation of a step ran, by the GPU's own clock, inside the replayed graph.
//!
//! The step's kernels are compiled once more, with stamps (`GLIM_STAMPS` in `kernels/include/common.cuh`), and captured as the graph is that
//! generation replays: same launches, same order, same overlap of a kernel's start with its predecessor's end. Every block notes when
//! its wait was over and when it left. Blocks are numbered in the order of launches, so that the grids tell whose each is.

use std::collections::VecDeque;

use glim_plan::{BackendError, OpTime, Profile, StepId, StepInputs};

use crate::backend::CudaBackend;
use crate::code::Code;
use crate::driver::{DeviceMemory, Event};
use crate::error::CudaError;
use crate::kernels::Kernel;
use crate::run::{Prepared, launch_step};

/// The define that stamps are compiled with, and the variable that says where they go.
const DEFINE: &str = "GLIM_STAMPS";
const VARIABLE: &str = "glim_stamps";

/// Bytes of a block's two stamps.
const BLOCK_BYTES: usize = 16;

/// The form of a kernel that stamps.
fn stamped(kernel: &Kernel) -> Kernel {
    let mut kernel = kernel.clone();
    kernel.unit.defines.push((DEFINE, "1".into()));
    kernel
}

/// Blocks of each launch, by operation.
fn blocks(prepared: &Prepared) -> Vec<Vec<usize>> {
    let launches = prepared.grids();
    let count = |grid: &[u32; 3]| grid.iter().map(|n| *n as usize).product();
    launches
        .iter()
        .map(|op| op.iter().map(count).collect())
        .collect()
}

impl CudaBackend {
    /// Runs a step `repeats` times with stamps.
    pub(crate) fn profile_step(
        &mut self,
        step: StepId,
        inputs: &StepInputs,
        repeats: usize,
    ) -> Result<Vec<Profile>, BackendError> {
        let mut profiles = Vec::with_capacity(repeats);
        for _ in 0..repeats {
            // A plain run first: it checks, and brings clocks and caches to where generation has them.
            self.run_once(step, inputs)?;
            let profile = self.profile_once(step, inputs)?;
            profiles.push(profile);
        }
        Ok(profiles)
    }

    fn run_once(&mut self, step: StepId, inputs: &StepInputs) -> Result<(), BackendError> {
        let flight = self.enqueue(step, inputs)?;
        self.collect(flight).map(|_| ())
    }

    fn profile_once(&mut self, step: StepId, inputs: &StepInputs) -> Result<Profile, BackendError> {
        let (index, _) = self.begin(step, inputs)?;
        let timed = self.timed(index);
        timed.map_err(|e| self.failed(e))
    }

    fn timed(&mut self, index: usize) -> Result<Profile, CudaError> {
        let blocks = blocks(&self.steps[index]);
        let all: usize = blocks.iter().flatten().sum();
        let kernels: Vec<(Kernel, u32)> = self.steps[index].kernels(stamped);
        let code = self
            .stamped
            .get_or_insert_with(|| Code::own(&self.gpu, self.options.cache.clone()));
        code.load(kernels.iter().map(|(kernel, shared)| (kernel, *shared)))?;
        let stamps = DeviceMemory::new(&self.gpu, 8 + all * BLOCK_BYTES, "time stamps")?;
        code.point(VARIABLE, stamps.address())?;
        stamps.fill(0, self.runner.stream())?;
        let (begin, end) = (Event::new(&self.gpu)?, Event::new(&self.gpu)?);
        let code = &*code;
        let launched = launch_step(
            &self.steps[index],
            &self.runner,
            code,
            stamped,
            self.options.graphs,
            [&begin, &end],
        );
        // Also if it failed in between: the stamps' memory is let go of below.
        self.runner.stream().synchronise()?;
        launched?;
        let mut bytes = vec![0u8; stamps.bytes()];
        stamps.read(0, &mut bytes)?;
        code.point(VARIABLE, 0)?;
        let step_ns = (end.seconds_since(&begin)? * 1e9) as u64;
        Ok(profile(&blocks, &bytes[8..], step_ns))
    }
}

/// First and last stamp of each operation, counted from the first of all.
fn profile(blocks: &[Vec<usize>], stamps: &[u8], step_ns: u64) -> Profile {
    let words: VecDeque<u64> = stamps
        .chunks_exact(8)
        .map(|b| u64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]))
        .collect();
    let pairs: Vec<(u64, u64)> = words
        .iter()
        .zip(words.iter().skip(1))
        .step_by(2)
        .map(|(begin, end)| (*begin, *end))
        .collect();
    let origin = pairs.iter().map(|(begin, _)| *begin).min().unwrap_or(0);
    let (mut at, mut last) = (0, 0);
    let ops = blocks.iter().map(|launches| {
        let n: usize = launches.iter().sum();
        let own = &pairs[at.min(pairs.len())..(at + n).min(pairs.len())];
        at += n;
        let start = own.iter().map(|(begin, _)| begin - origin).min();
        let end = own.iter().map(|(_, end)| end.saturating_sub(origin)).max();
        let time = match (start, end) {
            // The clock is coarse: an operation ends no sooner than it begins.
            (Some(start_ns), Some(end)) => OpTime {
                start_ns,
                end_ns: end.max(start_ns),
            },
            // No kernel: it takes no time.
            _ => OpTime {
                start_ns: last,
                end_ns: last,
            },
        };
        last = time.end_ns;
        time
    });
    Profile {
        ops: ops.collect(),
        step_ns,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_told_apart_by_the_grids() {
        // Two launches of the first operation (two blocks and one), none of the second, one of the third.
        let stamps: Vec<u8> = [(100u64, 130u64), (101, 125), (140, 150), (152, 170)]
            .iter()
            .flat_map(|(b, e)| [b.to_le_bytes(), e.to_le_bytes()].concat())
            .collect();
        let found = profile(&[vec![2, 1], vec![], vec![1]], &stamps, 75);
        let times: Vec<_> = found.ops.iter().map(|o| (o.start_ns, o.end_ns)).collect();
        assert_eq!(times, [(0, 50), (50, 50), (52, 70)]);
        assert_eq!(found.step_ns, 75);
    }
}
