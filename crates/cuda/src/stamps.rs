//! When each operation of a step ran, by the GPU's own clock, inside the replayed graph.
//!
//! The step's kernels are compiled once more, with stamps (`GLIM_STAMPS` in `kernels/include/common.cuh`), and captured as the graph is that
//! generation replays: same launches, same order, same overlap of a kernel's start with its predecessor's end. Every block notes when
//! its wait was over and when it left. Blocks are numbered in the order of launches, so that the grids tell whose each is.
//!
//! A watched run goes as a step of generation that is launched ahead: its graph lies on the GPU, and is put into the stream while plain
//! runs of the same step are still going on there, so that no time of the host is in it. Its own time is that between two events around
//! the graph. The stamps count from a kernel that reads the clock just before the first event: what the graph takes to
//! start is the gap before its first operation.
//!
//! Ranks make what they need together, and give it back together, since the driver may wait for the whole GPU in both; in between they
//! only wait for their own streams.

use glim_plan::backend::MAX_IN_FLIGHT;
use glim_plan::{BackendError, OpTime, Profile, StepId, StepInputs};

use crate::backend::CudaBackend;
use crate::code::Code;
use crate::driver::{Config, DeviceMemory, Event, Function, Param, Stream, launch};
use crate::error::CudaError;
use crate::kernels::Kernel;
use crate::run::{Made, Prepared};

/// The define that stamps are compiled with, and the variable that says where they go.
const DEFINE: &str = "GLIM_STAMPS";
const VARIABLE: &str = "glim_stamps";

/// Bytes of the counter of blocks, of a block's two stamps, and of the stamp before the graph, which comes last.
const COUNTER_BYTES: usize = 8;
const BLOCK_BYTES: usize = 16;
const ORIGIN_BYTES: usize = 8;

/// The form of a kernel that stamps.
fn stamped(kernel: &Kernel) -> Kernel {
    let mut kernel = kernel.clone();
    kernel.unit.defines.push((DEFINE, "1".into()));
    kernel
}

/// Blocks of each launch, by operation; `None` for what a library launches, which stamps nothing.
type Blocks = Vec<Vec<Option<usize>>>;

fn blocks(prepared: &Prepared) -> Blocks {
    let count = |grid: &[u32; 3]| grid.iter().map(|n| *n as usize).product();
    let of_op = |launches: Vec<Option<[u32; 3]>>| {
        let launches = launches.iter();
        launches.map(|grid| grid.as_ref().map(count)).collect()
    };
    prepared.grids().into_iter().map(of_op).collect()
}

/// What it takes to watch a step.
struct Watch {
    blocks: Blocks,
    variant: Made,
    /// Reads the clock.
    clock: Function,
    stamps: DeviceMemory,
    begin: Event,
    end: Event,
}

impl Watch {
    /// Puts a watched run into the stream.
    fn launch(&self, stream: &Stream) -> Result<(), CudaError> {
        self.stamps.fill(0, stream)?;
        let config = Config {
            grid: [1, 1, 1],
            threads: 1,
            shared: 0,
            dependent: false,
        };
        let origin = self.stamps.address() + (self.stamps.bytes() - ORIGIN_BYTES) as u64;
        launch(&self.clock, config, &[Param::u64(origin)], stream)?;
        self.begin.record(stream)?;
        self.variant.launch(stream)?;
        self.end.record(stream)
    }

    /// What the run was like, once it is over.
    fn profile(&self) -> Result<Profile, CudaError> {
        let step_ns = (self.end.seconds_since(&self.begin)? * 1e9) as u64;
        let mut stamps = vec![0; self.stamps.bytes()];
        self.stamps.read(0, &mut stamps)?;
        let words = stamps[COUNTER_BYTES..].chunks_exact(8);
        let words =
            words.map(|b| u64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]));
        let mut words: Vec<u64> = words.collect();
        let origin = words.pop().unwrap_or(0);
        let stamps: Vec<(u64, u64)> = words
            .chunks_exact(2)
            .map(|stamps| (stamps[0], stamps[1]))
            .collect();
        Ok(profile(&self.blocks, &stamps, origin, step_ns))
    }
}

impl CudaBackend {
    /// Runs a step `repeats` times with stamps.
    pub(crate) fn profile_step(
        &mut self,
        step: StepId,
        inputs: &StepInputs,
        repeats: usize,
    ) -> Result<Vec<Profile>, BackendError> {
        // A plain run checks the step, and makes it ready.
        let plain = self.enqueue(step, inputs)?;
        self.collect(plain)?;
        let index = step.0 as usize;
        self.assemble()?;
        let mut watch = self.watch(index).map_err(|e| self.failed(e))?;
        self.assemble()?;
        let profiles = (0..repeats)
            .map(|_| self.watched(step, inputs, &mut watch))
            .collect::<Result<Vec<_>, _>>()?;
        self.assemble()?;
        drop(watch);
        self.assemble()?;
        Ok(profiles)
    }

    /// A watched run behind as many plain ones as can be on their way.
    fn watched(
        &mut self,
        step: StepId,
        inputs: &StepInputs,
        watch: &mut Watch,
    ) -> Result<Profile, BackendError> {
        let plain = (0..MAX_IN_FLIGHT).map(|_| self.enqueue(step, inputs));
        let plain = plain.collect::<Result<Vec<_>, _>>()?;
        let (index, ticket) = self.begin(step, inputs)?;
        let launched = watch.launch(self.runner.stream());
        launched.map_err(|e| self.failed(e))?;
        let fetched = self.runner.fetch(&self.steps[index], ticket, step);
        fetched.map_err(|e| self.failed(e))?;
        for ticket in plain.into_iter().chain([ticket]) {
            self.collect(ticket)?;
        }
        watch.profile().map_err(|e| self.failed(e))
    }

    fn watch(&mut self, index: usize) -> Result<Watch, CudaError> {
        let graph = self.captures();
        let blocks = blocks(&self.steps[index]);
        let all: usize = blocks.iter().flatten().flatten().sum();
        let mut kernels = self.steps[index].kernels(stamped);
        let clock = Kernel::new("clock", "read_clock", &[]);
        kernels.push((clock.clone(), 0));
        let code = self
            .stamped
            .get_or_insert_with(|| Code::own(&self.gpu, self.options.cache.clone()));
        code.load(kernels.iter().map(|(kernel, shared)| (kernel, *shared)))?;
        let bytes = COUNTER_BYTES + all * BLOCK_BYTES + ORIGIN_BYTES;
        let stamps = DeviceMemory::new(&self.gpu, bytes, "time stamps")?;
        code.point(VARIABLE, stamps.address())?;
        let code = &*code;
        let variant = Made::new(&self.steps[index], &self.runner, code, stamped, graph)?;
        let watch = Watch {
            blocks,
            variant,
            clock: code.function(&clock)?.clone(),
            begin: Event::new(&self.gpu)?,
            end: Event::new(&self.gpu)?,
            stamps,
        };
        self.runner.stream().synchronise()?;
        Ok(watch)
    }
}

/// First and last stamp of each operation, counted from `origin`. What a library does lies between its neighbours.
fn profile(blocks: &Blocks, stamps: &[(u64, u64)], origin: u64, step_ns: u64) -> Profile {
    let mut left = stamps;
    let own = blocks.iter().map(|launches| {
        let n: usize = launches.iter().flatten().sum();
        let (own, rest) = left.split_at(n.min(left.len()));
        left = rest;
        let begin = own.iter().map(|(begin, _)| *begin).min();
        let end = own.iter().map(|(_, end)| *end).max();
        let (begin, end) = begin.zip(end)?;
        Some((begin.saturating_sub(origin), end.saturating_sub(origin)))
    });
    let own: Vec<Option<(u64, u64)>> = own.collect();
    let mut last = 0;
    let ops = blocks.iter().enumerate().map(|(i, launches)| {
        let is_library = |launch: Option<&Option<usize>>| launch.is_some_and(Option::is_none);
        let next = own[i + 1..].iter().flatten().next();
        let start_ns = match own[i] {
            Some((begin, _)) if !is_library(launches.first()) => begin,
            _ => last,
        };
        let end = match own[i] {
            _ if is_library(launches.last()) => next.map_or(step_ns, |(begin, _)| *begin),
            Some((_, end)) => end,
            // No kernel: it takes no time.
            None => start_ns,
        };
        // The clock is coarse: an operation ends no sooner than it begins.
        let end_ns = end.max(start_ns);
        last = end_ns;
        OpTime { start_ns, end_ns }
    });
    Profile {
        ops: ops.collect(),
        step_ns,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(blocks: &Blocks, stamps: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let found = profile(blocks, stamps, 100, 75);
        assert_eq!(found.step_ns, 75);
        found.ops.iter().map(|o| (o.start_ns, o.end_ns)).collect()
    }

    #[test]
    fn blocks_are_told_apart_by_the_grids() {
        // Two launches of the first operation (two blocks and one), none of the second, one of the third.
        let stamps = [(103, 130), (104, 125), (140, 150), (152, 170)];
        let blocks = vec![vec![Some(2), Some(1)], vec![], vec![Some(1)]];
        assert_eq!(times(&blocks, &stamps), [(3, 50), (50, 50), (52, 70)]);
    }

    #[test]
    fn what_a_library_does_lies_between_its_neighbours() {
        let stamps = [(103, 110), (130, 140), (145, 150)];
        // A kernel, a library's call, a kernel before a call, a kernel.
        let blocks = vec![
            vec![Some(1)],
            vec![None],
            vec![Some(1), None],
            vec![Some(1)],
        ];
        let expected = [(3, 10), (10, 30), (30, 45), (45, 50)];
        assert_eq!(times(&blocks, &stamps), expected);
        // Nothing behind it: it ends with the step.
        let blocks = vec![vec![Some(2)], vec![None]];
        assert_eq!(times(&blocks, &stamps[..2]), [(3, 40), (40, 75)]);
    }
}
