//! NVIDIA's library: each rank on a GPU of its own, its calls in the step's stream or graph.
//!
//! What it does differs from our own kernels in two points. It adds in an order of its own, though in the same one on all ranks;
//! with bf16 on the wire it also rounds sums between ranks. And it knows no deadline: the engine notices that a step takes too long, and
//! ending the group aborts what waits. It moves whole capacities, since it is told constant counts; rows that are not live are nobody's.

mod library;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use glim_plan::RankFailure;

use self::library::{Comm, DataType, Nccl, UniqueId};
use super::alone::blocks;
use super::group::Shared;
use super::pieces::Pieces;
use super::{Collective, Gathering, Sum, Wire};
use crate::driver::{DeviceMemory, Stream};
use crate::error::CudaError;
use crate::kernels::Kernel;
use crate::program::{Arg, Builder, LibraryCall, int};

const THREADS: u32 = 256;

/// What the ranks find each other by, and each one's communicator once it has.
#[derive(Debug)]
pub(super) struct Comms {
    gpus: Vec<usize>,
    id: UniqueId,
    of_ranks: Vec<Mutex<Option<Comm>>>,
}

impl Comms {
    pub(super) fn new(gpus: &[usize]) -> Result<Self, CudaError> {
        for (rank, gpu) in gpus.iter().enumerate() {
            if let Some(other) = gpus[..rank].iter().position(|g| g == gpu) {
                return Err(CudaError::Ranks {
                    gpus: gpus.to_vec(),
                    reason: format!(
                        "NCCL needs a GPU for each rank, and ranks {other} and {rank} share GPU {gpu}"
                    ),
                });
            }
        }
        Ok(Self {
            id: Nccl::get()?.unique_id(gpus[0])?,
            gpus: gpus.to_vec(),
            of_ranks: gpus.iter().map(|_| Mutex::default()).collect(),
        })
    }

    fn lock(&self, rank: usize) -> MutexGuard<'_, Option<Comm>> {
        let comm = &self.of_ranks[rank];
        comm.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends what is going on between the ranks.
    pub(super) fn abort(&self) {
        for rank in 0..self.gpus.len() {
            if let Some(comm) = &mut *self.lock(rank) {
                comm.abort();
            }
        }
    }

    fn with<T>(
        &self,
        rank: usize,
        f: impl FnOnce(&Comm) -> Result<T, CudaError>,
    ) -> Result<T, CudaError> {
        match &*self.lock(rank) {
            Some(comm) => f(comm),
            None => Err(CudaError::Ranks {
                gpus: self.gpus.clone(),
                reason: format!("rank {rank} has not joined the others"),
            }),
        }
    }
}

/// One rank of a group that meets so.
#[derive(Debug)]
pub(super) struct NcclRank {
    pub(super) group: Arc<Shared>,
    pub(super) comms: Arc<Comms>,
    pub(super) rank: usize,
}

/// A call in a step.
#[derive(Debug)]
struct Call {
    comms: Arc<Comms>,
    rank: usize,
    what: What,
    /// Elements of this rank.
    count: usize,
}

#[derive(Debug, Clone, Copy)]
enum What {
    Sum(DataType),
    Gather,
}

impl LibraryCall for Call {
    fn enqueue(&self, addresses: &[u64], stream: &Stream) -> Result<(), CudaError> {
        let &[x, out] = addresses else {
            return Err(CudaError::Kernel {
                kernel: "a collective of NCCL".into(),
                reason: format!("{} addresses are not two", addresses.len()),
            });
        };
        stream.gpu().bind()?;
        self.comms.with(self.rank, |comm| match self.what {
            What::Sum(ty) => comm.sum(ty, [x, out], self.count, stream.handle()),
            What::Gather => comm.gather([x, out], self.count, stream.handle()),
        })
    }
}

impl NcclRank {
    fn call(&self, b: &mut Builder<'_>, what: What, count: usize, addresses: Vec<Arg>) {
        let call = Call {
            comms: Arc::clone(&self.comms),
            rank: self.rank,
            what,
            count,
        };
        b.library(Arc::new(call), addresses);
    }
}

impl Collective for NcclRank {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.comms.gpus.len()
    }

    fn connect(&self, stream: &Stream) -> Result<(), CudaError> {
        if self.comms.lock(self.rank).is_some() {
            return Ok(());
        }
        let gpu = stream.gpu();
        gpu.bind()?;
        let (world_size, id) = (self.world_size(), self.comms.id);
        // Without the lock: it waits for the other ranks.
        let comm = Nccl::get()?.join(id, self.rank, world_size, gpu.ordinal())?;
        // What the library allocates at its first call cannot be captured.
        let word = DeviceMemory::new(gpu, 4, "a first meeting")?;
        word.fill(0, stream)?;
        let both = [word.address(); 2];
        comm.sum(DataType::F32, both, 1, stream.handle())?;
        stream.synchronise()?;
        *self.comms.lock(self.rank) = Some(comm);
        Ok(())
    }

    fn sum(&self, b: &mut Builder<'_>, sum: &Sum) -> Result<(), String> {
        let count = b.rows(sum.x).saturating_mul(sum.width);
        if sum.wire == Wire::F32 {
            let addresses = vec![Arg::Buffer(sum.x), Arg::Buffer(sum.out)];
            self.call(b, What::Sum(DataType::F32), count, addresses);
            return Ok(());
        }
        let packed = Arg::Scratch(b.scratch(count.saturating_mul(2)));
        let grid = [blocks(b, count), 1, 1];
        let defines = [sum.wire.define(), ("UNIT", "4")];
        let kernel = |entry| Kernel::new("collective_local", entry, &defines);
        let n = Arg::U64(count as u64);
        let args = vec![Arg::Buffer(sum.x), packed, n];
        b.launch(kernel("wire_pack"), grid, THREADS, 0, args);
        self.call(b, What::Sum(DataType::Bf16), count, vec![packed, packed]);
        let args = vec![packed, Arg::Buffer(sum.out), n];
        b.launch(kernel("wire_unpack"), grid, THREADS, 0, args);
        Ok(())
    }

    fn gather(&self, b: &mut Builder<'_>, gathering: &Gathering) -> Result<(), String> {
        for pieces in Pieces::all(gathering, self.world_size()) {
            // All ranks bring equally much: as much as the widest.
            let units = b.rows(pieces.rows()).saturating_mul(pieces.widest());
            let words = units.saturating_mul(pieces.unit);
            let stream = Arg::Scratch(b.scratch(words.saturating_mul(4)));
            let all = words.saturating_mul(4 * self.world_size());
            let all = Arg::Scratch(b.scratch(all));
            let parts = pieces.argument(b)?;
            let grid = [blocks(b, units), 1, 1];
            let defines = pieces.defines(gathering.wire);
            let kernel = |entry| Kernel::new("collective_local", entry, &defines);
            let rows = Arg::Rows(pieces.rows());
            let args = vec![parts, rows, Arg::I32(int(self.rank)?), stream];
            b.launch(kernel("gather_pack"), grid, THREADS, 0, args);
            self.call(b, What::Gather, words, vec![stream, all]);
            let world_size = Arg::I32(int(self.world_size())?);
            let stride = Arg::U64(words as u64 * 4);
            let args = vec![parts, rows, world_size, all, stride];
            b.launch(kernel("gather_unpack"), grid, THREADS, 0, args);
        }
        Ok(())
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
