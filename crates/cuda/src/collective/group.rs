//! The ranks of a model on their GPUs, together.
//!
//! What ends them is one word of pinned memory, which the host and every kernel that waits can see, and the failure that it stands
//! for. A kernel whose wait is over writes whom it missed; a host whose rank fails writes that it did. The first one counts, and whoever waits anywhere
//! sees it soon and gives up.
//!
//! Hosts meet too, now and then ([`Collective::assemble`]): a rank that allocates, loads or instantiates may have to wait until its GPU is
//! idle, which never is while another rank's kernel there waits for this one.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use glim_plan::collective::Group;
use glim_plan::{RankFailure, RankFault};

use super::nccl::{Comms, NcclRank};
use super::pull::{self, Pull, Regions};
use super::{Collective, MAX_RANKS, Place};
use crate::driver::{Gpu, Pinned};
use crate::error::CudaError;

/// The failure word if the host has ended the group; what kernels write, `ranks.cuh` says.
const ENDED_BY_HOST: u64 = 1 << 63;

/// How the ranks of a group meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transport {
    /// By our own kernels, in each other's memory.
    #[default]
    Pull,
    /// By NVIDIA's library; each rank on a GPU of its own.
    Nccl,
}

/// Ranks that meet on GPUs.
#[derive(Debug, Clone)]
pub struct GpuGroup {
    shared: Arc<Shared>,
}

/// What they meet by.
#[derive(Debug)]
enum Means {
    Pull(Arc<Regions>),
    Nccl(Arc<Comms>),
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) deadline: Duration,
    /// For each rank the operation that its host is in.
    ops: Vec<AtomicUsize>,
    /// Holds the failure word.
    word: Pinned,
    state: Mutex<State>,
    changed: Condvar,
    means: Means,
}

#[derive(Debug)]
struct State {
    failure: Option<RankFailure>,
    /// Whose host has come to the assembly.
    here: Vec<bool>,
    /// Assemblies that all have come to.
    assemblies: u64,
}

impl GpuGroup {
    /// A rank on each of these GPUs, which may be the same one for several, of whom none waits for another longer than `deadline`.
    ///
    /// # Errors
    /// If there are too many ranks, a GPU cannot be opened or read another's memory, or NCCL is asked for and is missing or has two ranks on a GPU.
    pub fn new(
        gpus: &[usize],
        transport: Transport,
        deadline: Duration,
    ) -> Result<Self, CudaError> {
        Self::with_blocks(gpus, transport, deadline, usize::MAX)
    }

    /// The same with at most so many blocks in our own kernels. Fewer leave room for other work, more fill a link; what does not fit them
    /// at once goes in several meetings.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_blocks(
        gpus: &[usize],
        transport: Transport,
        deadline: Duration,
        blocks: usize,
    ) -> Result<Self, CudaError> {
        let refused = |reason: String| CudaError::Ranks {
            gpus: gpus.to_vec(),
            reason,
        };
        if gpus.is_empty() || gpus.len() > MAX_RANKS {
            let n = gpus.len();
            return Err(refused(format!("{n} ranks are not 1 to {MAX_RANKS}")));
        }
        if transport == Transport::Pull {
            let on = |gpu: &usize| gpus.iter().filter(|other| *other == gpu).count();
            let crowded = gpus.iter().find_map(|gpu| pull::too_many(on(gpu), *gpu));
            if let Some(reason) = crowded {
                return Err(refused(reason));
            }
        }
        crate::driver::start(gpus[0])?;
        let opened = gpus.iter().map(|ordinal| Gpu::open(*ordinal));
        let opened = opened.collect::<Result<Vec<_>, _>>()?;
        let means = match transport {
            Transport::Pull => Means::Pull(Arc::new(Regions::new(&opened, blocks)?)),
            Transport::Nccl => Means::Nccl(Arc::new(Comms::new(gpus)?)),
        };
        let shared = Shared {
            deadline,
            ops: gpus.iter().map(|_| AtomicUsize::new(0)).collect(),
            word: Pinned::new(&opened[0], size_of::<u64>())?,
            state: Mutex::new(State {
                failure: None,
                here: vec![false; gpus.len()],
                assemblies: 0,
            }),
            changed: Condvar::new(),
            means,
        };
        let shared = Arc::new(shared);
        Ok(Self { shared })
    }

    /// What rank `rank` meets the others by. Each rank takes one.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn rank(&self, rank: usize) -> Place {
        assert!(
            rank < self.world_size(),
            "rank {rank} of {}",
            self.world_size()
        );
        let group = Arc::clone(&self.shared);
        let place: Arc<dyn Collective> = match &self.shared.means {
            Means::Pull(regions) => Arc::new(Pull {
                group,
                regions: Arc::clone(regions),
                rank,
            }),
            Means::Nccl(comms) => Arc::new(NcclRank {
                group,
                comms: Arc::clone(comms),
                rank,
            }),
        };
        Place(place)
    }
}

impl Group for GpuGroup {
    fn world_size(&self) -> usize {
        self.shared.ops.len()
    }

    fn deadline(&self) -> Duration {
        self.shared.deadline
    }

    fn op_of(&self, rank: usize) -> usize {
        self.shared.op_of(rank)
    }

    fn fail(&self, rank: usize, fault: RankFault) {
        let op = self.shared.op_of(rank);
        self.shared.fail(RankFailure { rank, op, fault });
    }

    fn failure(&self) -> Option<RankFailure> {
        self.shared.failure()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics with the lock held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn word(&self) -> &AtomicU64 {
        self.word.word()
    }

    /// Where kernels find the failure word.
    pub(super) fn word_address(&self) -> u64 {
        self.word.address()
    }

    pub(super) fn begin(&self, rank: usize, op: usize) {
        self.ops[rank].store(op, Ordering::Relaxed);
    }

    /// The operation that a rank is in: as far as its GPU has come in the collectives of a step, or else what its host has said.
    fn op_of(&self, rank: usize) -> usize {
        let entered = match &self.means {
            Means::Pull(regions) => regions.entered(rank),
            Means::Nccl(_) => None,
        };
        entered.unwrap_or_else(|| self.ops[rank].load(Ordering::Relaxed))
    }

    fn fail(&self, failure: RankFailure) {
        // What a kernel has found before counts.
        if self.failure().is_some() {
            return;
        }
        self.lock().failure.get_or_insert(failure);
        self.changed.notify_all();
        let nobody = Ordering::Relaxed;
        let _ = self
            .word()
            .compare_exchange(0, ENDED_BY_HOST, Ordering::SeqCst, nobody);
        if let Means::Nccl(comms) = &self.means {
            comms.abort();
        }
    }

    /// Why the group has ended.
    pub(super) fn failure(&self) -> Option<RankFailure> {
        if let Some(failure) = &self.lock().failure {
            return Some(failure.clone());
        }
        let found = Missed::read(self.word().load(Ordering::SeqCst), self.ops.len())?;
        let failure = RankFailure {
            rank: found.rank,
            op: self.op_of(found.rank),
            fault: RankFault::Stalled {
                waiter: found.waiter,
                waiter_op: found.waiter_op,
                waited: self.deadline,
            },
        };
        Some(self.lock().failure.get_or_insert(failure).clone())
    }

    /// Waits until the hosts of all ranks have come here.
    pub(super) fn assemble(&self, rank: usize) -> Result<(), RankFailure> {
        let start = Instant::now();
        let mut state = self.lock();
        let round = state.assemblies;
        state.here[rank] = true;
        if state.here.iter().all(|here| *here) {
            state.here.fill(false);
            state.assemblies += 1;
            self.changed.notify_all();
            return Ok(());
        }
        while state.assemblies == round {
            if let Some(failure) = &state.failure {
                return Err(failure.clone());
            }
            let left = self.deadline.checked_sub(start.elapsed());
            let Some(left) = left.filter(|left| !left.is_zero()) else {
                let missing = state.here.iter().position(|here| !here).unwrap_or(rank);
                drop(state);
                let op = |rank: usize| self.ops[rank].load(Ordering::Relaxed);
                let failure = RankFailure {
                    rank: missing,
                    op: op(missing),
                    fault: RankFault::Stalled {
                        waiter: rank,
                        waiter_op: op(rank),
                        waited: self.deadline,
                    },
                };
                self.fail(failure.clone());
                return Err(self.failure().unwrap_or(failure));
            };
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }
}

/// What a kernel writes that has waited long enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Missed {
    rank: usize,
    waiter: usize,
    waiter_op: usize,
}

impl Missed {
    fn read(word: u64, world_size: usize) -> Option<Self> {
        let rank = |byte: u64| (byte as usize & 0xff).checked_sub(1);
        let found = Self {
            rank: rank(word)?,
            waiter: rank(word >> 8)?,
            waiter_op: (word >> 32) as usize,
        };
        (found.rank < world_size && found.waiter < world_size).then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_failure_word_names_who_was_missed_by_whom_and_where() {
        let word = 2 | 1 << 8 | 77 << 32;
        let expected = Missed {
            rank: 1,
            waiter: 0,
            waiter_op: 77,
        };
        assert_eq!(Missed::read(word, 2), Some(expected));
        // Nobody, the host, and ranks that there are not.
        for word in [0, ENDED_BY_HOST, word] {
            assert_eq!(Missed::read(word, 1), None);
        }
    }
}
