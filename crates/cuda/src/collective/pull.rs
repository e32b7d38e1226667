//! Our own collectives: one-shot pull by kernels that meet in each other's memory (`kernels/collective.cu`).
//!
//! Every rank has a region that all address: ranks on one GPU share its context, GPUs see each other's memory by peer access. What a
//! region holds says `kernels/include/ranks.cuh`; here it is allocated, by the same numbers. Its size does not depend on what is
//! summed: what does not fit a slice goes in several meetings of one kernel.

use std::sync::Arc;

use glim_plan::RankFailure;

use super::group::Shared;
use super::pieces::Pieces;
use super::{Collective, Gathering, MAX_RANKS, Sum};
use crate::driver::{DeviceMemory, Gpu};
use crate::error::CudaError;
use crate::kernels::Kernel;
use crate::program::{Arg, Builder, int};

// As in `ranks.cuh`.
const THREADS: u32 = 512;
const MAX_BLOCKS: usize = 64;
const SLICE_BYTES: usize = 65536;
const REGION_SLICES: usize = 4096;
const REGION_BYTES: usize = REGION_SLICES + 2 * MAX_BLOCKS * SLICE_BYTES;

/// Where `Own::entered` lies.
const ENTERED_AT: usize = 4;

/// Blocks of these kernels that a multiprocessor holds, by their registers.
const BLOCKS_ON_A_MULTIPROCESSOR: usize = 2;

/// Streams of a rank: that of its steps, and one while it loads.
const STREAMS_OF_A_RANK: usize = 2;

/// Queues of a GPU that the driver spreads streams over, unless it is told otherwise (CUDA programming guide, `CUDA_DEVICE_MAX_CONNECTIONS`).
const QUEUES: usize = 8;

/// Why so many ranks cannot share a GPU, if so: what stands in one queue runs in its order, whichever streams it came by, and a rank's kernels
/// must never stand behind one that waits for them.
pub(super) fn too_many(ranks: usize, gpu: usize) -> Option<String> {
    // And one for the default stream.
    let most = (QUEUES - 1) / STREAMS_OF_A_RANK;
    (ranks > most).then(|| {
        format!(
            "{ranks} ranks share GPU {gpu}, whose {QUEUES} queues are enough for {most}; spread them over more GPUs"
        )
    })
}

/// What the ranks meet in.
#[derive(Debug)]
pub(super) struct Regions {
    /// One for each rank, on its GPU.
    memory: Vec<DeviceMemory>,
    /// Blocks of a kernel: those of all ranks on a GPU are resident there at once.
    max_blocks: usize,
    /// Whether some ranks share a GPU.
    are_shared: bool,
}

impl Regions {
    pub(super) fn new(gpus: &[Gpu], blocks: usize) -> Result<Self, CudaError> {
        for gpu in gpus {
            for peer in gpus.iter().filter(|peer| peer.ordinal() != gpu.ordinal()) {
                gpu.see(peer)?;
            }
        }
        let region = |gpu: &Gpu| {
            let memory = DeviceMemory::new(gpu, REGION_BYTES, "where ranks meet")?;
            // Slices are read only after they were written.
            memory.write(0, &[0; REGION_SLICES])?;
            Ok(memory)
        };
        let on = |gpu: &Gpu| {
            let same = gpus.iter().filter(|other| other.ordinal() == gpu.ordinal());
            same.count()
        };
        let room = gpus.iter().map(|gpu| {
            let multiprocessors = gpu.facts().multiprocessors as usize;
            multiprocessors * BLOCKS_ON_A_MULTIPROCESSOR / on(gpu)
        });
        Ok(Self {
            max_blocks: room.min().unwrap_or(1).min(blocks).clamp(1, MAX_BLOCKS),
            are_shared: gpus.iter().any(|gpu| on(gpu) > 1),
            memory: gpus.iter().map(region).collect::<Result<_, CudaError>>()?,
        })
    }

    /// The operation of the last collective that a rank has begun in this step, while it is inside one.
    pub(super) fn entered(&self, rank: usize) -> Option<usize> {
        let mut word = [0; 4];
        // Without the GPU there is no answer, and who asks is about to learn that anyway.
        self.memory[rank].read(ENTERED_AT, &mut word).ok()?;
        (u32::from_le_bytes(word) as usize).checked_sub(1)
    }
}

/// One rank of a group that meets so.
#[derive(Debug)]
pub(super) struct Pull {
    pub(super) group: Arc<Shared>,
    pub(super) regions: Arc<Regions>,
    pub(super) rank: usize,
}

impl Pull {
    /// The struct `Peers`.
    fn peers(&self, b: &mut Builder<'_>) -> Result<Arg, String> {
        let mut fields: Vec<Arg> = (0..MAX_RANKS)
            .map(|rank| self.regions.memory.get(rank))
            .map(|region| Arg::U64(region.map_or(0, DeviceMemory::address)))
            .collect();
        let limit = u64::try_from(self.group.deadline.as_nanos()).unwrap_or(u64::MAX);
        fields.push(Arg::U64(self.group.word_address()));
        fields.push(Arg::U64(limit));
        fields.push(Arg::I32(int(self.rank)?));
        fields.push(Arg::I32(int(self.world_size())?));
        Ok(b.structure(fields))
    }

    fn launch(
        &self,
        b: &mut Builder<'_>,
        kernel: Kernel,
        // 16-byte pieces, or what else a thread takes at a time.
        pieces: usize,
        args: Vec<Arg>,
    ) -> Result<(), String> {
        let blocks = pieces.div_ceil(THREADS as usize);
        let grid = int(blocks.clamp(1, self.regions.max_blocks))? as u32;
        let launch = b.launch(kernel, [grid, 1, 1], THREADS, 0, args);
        // It waits for others while it holds room on its GPU: with the attribute, two ranks on one GPU hung.
        launch.dependent = !self.regions.are_shared;
        Ok(())
    }
}

impl Collective for Pull {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.regions.memory.len()
    }

    fn sum(&self, b: &mut Builder<'_>, sum: &Sum) -> Result<(), String> {
        let defines = [sum.wire.define(), ("UNIT", "4")];
        let kernel = Kernel::new("collective", "all_reduce_pull", &defines);
        let elements = b.rows(sum.x).saturating_mul(sum.width);
        // Pieces are counted with 32 bits.
        int(elements / sum.wire.elements())?;
        let args = vec![
            self.peers(b)?,
            Arg::Buffer(sum.x),
            Arg::Buffer(sum.out),
            Arg::Rows(sum.x),
            Arg::I32(int(sum.width)?),
            Arg::OpIndex,
            Arg::I32(sum.is_last.into()),
            Arg::Fault,
        ];
        self.launch(b, kernel, elements.div_ceil(sum.wire.elements()), args)
    }

    fn gather(&self, b: &mut Builder<'_>, gathering: &Gathering) -> Result<(), String> {
        let groups: Vec<_> = Pieces::all(gathering, self.world_size()).collect();
        for (i, pieces) in groups.iter().enumerate() {
            let is_last = gathering.is_last && i + 1 == groups.len();
            let defines = pieces.defines(gathering.wire);
            let kernel = Kernel::new("collective", "all_gather_pull", &defines);
            let args = vec![
                self.peers(b)?,
                pieces.argument(b)?,
                Arg::Rows(pieces.rows()),
                Arg::OpIndex,
                Arg::I32(is_last.into()),
                Arg::Fault,
            ];
            let units = b.rows(pieces.rows()).saturating_mul(pieces.widest());
            self.launch(b, kernel, units, args)?;
        }
        Ok(())
    }

    fn bytes(&self) -> usize {
        REGION_BYTES
    }

    fn assemble(&self) -> Result<(), RankFailure> {
        self.group.assemble(self.rank)
    }

    fn begin(&self, op: usize) {
        self.group.begin(self.rank, op);
    }

    fn failure(&self) -> Option<RankFailure> {
        self.group.failure()
    }
}
