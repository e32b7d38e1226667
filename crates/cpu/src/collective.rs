//! Ranks that share memory: the exchange between threads of one process.
//!
//! Each rank has two mailboxes and uses them in turn. It puts its words into one, waits until all ranks have come, and reads the
//! others' boxes in the order of ranks. No second barrier is needed before a box is filled again: a rank that fills it has come
//! out of the next exchange, which nobody can enter before having read this one's boxes.
//!
//! Waiting spins for a while and then sleeps, up to the deadline. Who gives up writes down who was missing, and where; every
//! other rank that waits or comes later gets the same failure. The group is then of no more use: its ranks are made anew.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use glim_plan::collective::Group;
use glim_plan::{CollectiveId, Communicator, RankFailure, RankFault};

/// Rounds of [`std::hint::spin_loop`] before a rank sleeps, if each rank can have a core of its own.
const SPINS: usize = 5_000;

/// Ranks that meet in this process's memory.
#[derive(Debug, Clone)]
pub struct RankGroup {
    shared: Arc<Shared>,
}

struct Shared {
    deadline: Duration,
    spins: usize,
    /// For each rank the operation that it is in.
    ops: Vec<AtomicUsize>,
    /// For each rank, what it brings to even and to odd exchanges.
    boxes: Vec<[RwLock<Vec<u32>>; 2]>,
    meeting: Mutex<Meeting>,
    /// The number of exchanges that all ranks have come to: what `meeting.round` is, to be looked at without the lock.
    round: AtomicU64,
    wake: Condvar,
}

/// The exchange that ranks are coming to.
struct Meeting {
    round: u64,
    /// Who has come.
    here: Vec<bool>,
    /// What the first one entered.
    entered: Option<CollectiveId>,
    failure: Option<RankFailure>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("ranks", &self.ops.len())
            .field("round", &self.round)
            .finish_non_exhaustive()
    }
}

impl RankGroup {
    /// A group of `world_size` ranks, of which none waits for another longer than `deadline`.
    pub fn new(world_size: usize, deadline: Duration) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let shared = Shared {
            deadline,
            spins: if world_size <= cores { SPINS } else { 0 },
            ops: (0..world_size).map(|_| AtomicUsize::new(0)).collect(),
            boxes: (0..world_size).map(|_| Default::default()).collect(),
            meeting: Mutex::new(Meeting {
                round: 0,
                here: vec![false; world_size],
                entered: None,
                failure: None,
            }),
            round: AtomicU64::new(0),
            wake: Condvar::new(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// What rank `rank` meets the others by. Each rank takes one.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn rank(&self, rank: usize) -> Arc<dyn Communicator> {
        assert!(
            rank < self.world_size(),
            "rank {rank} of {}",
            self.world_size()
        );
        Arc::new(SharedMemory {
            shared: Arc::clone(&self.shared),
            rank,
            rounds: AtomicU64::new(0),
        })
    }
}

impl Group for RankGroup {
    fn world_size(&self) -> usize {
        self.shared.ops.len()
    }

    fn deadline(&self) -> Duration {
        self.shared.deadline
    }

    fn fail(&self, rank: usize, fault: RankFault) {
        let op = self.shared.ops[rank].load(Ordering::Relaxed);
        self.shared
            .fail(&mut self.shared.lock(), RankFailure { rank, op, fault });
    }

    fn failure(&self) -> Option<RankFailure> {
        self.shared.lock().failure.clone()
    }

    fn op_of(&self, rank: usize) -> usize {
        self.shared.ops[rank].load(Ordering::Relaxed)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Meeting> {
        // Nothing in here panics with the lock held; and what a panic elsewhere left is sound.
        self.meeting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fail(&self, meeting: &mut Meeting, failure: RankFailure) -> RankFailure {
        let first = meeting.failure.get_or_insert(failure).clone();
        self.wake.notify_all();
        first
    }
}

/// One rank of a [`RankGroup`].
#[derive(Debug)]
struct SharedMemory {
    shared: Arc<Shared>,
    rank: usize,
    /// Exchanges that this rank has entered.
    rounds: AtomicU64,
}

impl SharedMemory {
    fn op(&self) -> usize {
        self.shared.ops[self.rank].load(Ordering::Relaxed)
    }

    /// Waits until all ranks have come to exchange `round`.
    fn meet(&self, round: u64, id: CollectiveId) -> Result<(), RankFailure> {
        let shared = &*self.shared;
        {
            let mut meeting = shared.lock();
            if let Some(failure) = &meeting.failure {
                return Err(failure.clone());
            }
            let expected = *meeting.entered.get_or_insert(id);
            if expected != id {
                let what = format!(
                    "entered collective {}, while another entered {}",
                    id.0, expected.0
                );
                let fault = RankFault::Differs(what);
                let failure = RankFailure {
                    rank: self.rank,
                    op: self.op(),
                    fault,
                };
                return Err(shared.fail(&mut meeting, failure));
            }
            meeting.here[self.rank] = true;
            if meeting.here.iter().all(|here| *here) {
                meeting.here.fill(false);
                meeting.entered = None;
                meeting.round = round + 1;
                shared.round.store(round + 1, Ordering::Release);
                shared.wake.notify_all();
                return Ok(());
            }
        }
        for _ in 0..shared.spins {
            if shared.round.load(Ordering::Acquire) > round {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        self.sleep(round)
    }

    fn sleep(&self, round: u64) -> Result<(), RankFailure> {
        let shared = &*self.shared;
        let start = Instant::now();
        let mut meeting = shared.lock();
        while meeting.round <= round {
            if let Some(failure) = &meeting.failure {
                return Err(failure.clone());
            }
            let waited = start.elapsed();
            let Some(left) = shared.deadline.checked_sub(waited).filter(|d| !d.is_zero()) else {
                let missing = meeting.here.iter().position(|here| !here);
                let missing = missing.unwrap_or(self.rank);
                let fault = RankFault::Stalled {
                    waiter: self.rank,
                    waiter_op: self.op(),
                    waited: shared.deadline,
                };
                let failure = RankFailure {
                    rank: missing,
                    op: shared.ops[missing].load(Ordering::Relaxed),
                    fault,
                };
                return Err(shared.fail(&mut meeting, failure));
            };
            let waiting = shared.wake.wait_timeout(meeting, left);
            meeting = waiting.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }
}

impl Communicator for SharedMemory {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.shared.ops.len()
    }

    fn begin(&self, op: usize) {
        self.shared.ops[self.rank].store(op, Ordering::Relaxed);
    }

    fn exchange(
        &self,
        id: CollectiveId,
        mine: &[u32],
        each: &mut dyn FnMut(usize, &[u32]),
    ) -> Result<(), RankFailure> {
        let round = self.rounds.fetch_add(1, Ordering::Relaxed);
        let turn = (round % 2) as usize;
        {
            let own = &self.shared.boxes[self.rank][turn];
            let mut own = own.write().unwrap_or_else(PoisonError::into_inner);
            own.clear();
            own.extend_from_slice(mine);
        }
        self.meet(round, id)?;
        for (rank, boxes) in self.shared.boxes.iter().enumerate() {
            let words = boxes[turn].read().unwrap_or_else(PoisonError::into_inner);
            each(rank, &words);
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    const PATIENT: Duration = Duration::from_secs(60);

    /// Runs `f(rank, communicator)` on a thread for each rank.
    fn on_ranks<T: Send>(
        group: &RankGroup,
        f: impl Fn(usize, &dyn Communicator) -> T + Sync,
    ) -> Vec<T> {
        std::thread::scope(|scope| {
            let f = &f;
            let ranks: Vec<_> = (0..group.world_size())
                .map(|rank| {
                    let own = group.rank(rank);
                    scope.spawn(move || f(rank, &*own))
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    #[test]
    fn every_rank_sees_what_all_brought_in_the_order_of_ranks() {
        for world_size in [1, 2, 3, 8] {
            let group = RankGroup::new(world_size, PATIENT);
            let seen = on_ranks(&group, |rank, ranks| {
                let mut seen = Vec::new();
                for round in 0..500u32 {
                    // Lengths differ by rank: gathered parts need not be equal.
                    let mine = vec![round * 10 + rank as u32; 1 + rank];
                    let mut all = Vec::new();
                    let id = CollectiveId(round);
                    ranks
                        .exchange(id, &mine, &mut |from, words| {
                            all.push((from, words.to_vec()))
                        })
                        .unwrap();
                    seen.push(all);
                }
                seen
            });
            for (round, all) in seen[0].iter().enumerate() {
                let expected: Vec<_> = (0..world_size)
                    .map(|rank| (rank, vec![round as u32 * 10 + rank as u32; 1 + rank]))
                    .collect();
                assert_eq!(all, &expected);
            }
            assert!(seen.iter().all(|rank| *rank == seen[0]));
        }
    }

    #[test]
    fn a_rank_that_does_not_come_is_named_with_the_operation_it_is_in() {
        let group = RankGroup::new(3, Duration::from_millis(50));
        let failures = on_ranks(&group, |rank, ranks| {
            ranks.begin(if rank == 1 { 7 } else { 9 });
            if rank == 1 {
                return None;
            }
            ranks.exchange(CollectiveId(0), &[], &mut |_, _| {}).err()
        });
        let failure = failures[0].clone().unwrap();
        assert_eq!((failure.rank, failure.op), (1, 7));
        assert!(
            matches!(failure.fault, RankFault::Stalled { waiter_op: 9, .. }),
            "{failure:?}"
        );
        assert_eq!(failures[2], failures[0]);
        // The late one learns of it at its next collective, and so does anybody after.
        assert_eq!(
            group.rank(1).exchange(CollectiveId(0), &[], &mut |_, _| {}),
            Err(failure)
        );
    }

    #[test]
    fn a_failure_wakes_those_who_wait() {
        let group = RankGroup::new(2, PATIENT);
        let failures = on_ranks(&group, |rank, ranks| {
            if rank == 1 {
                ranks.begin(3);
                group.fail(1, RankFault::Panicked("on purpose".into()));
                return None;
            }
            ranks.exchange(CollectiveId(0), &[1], &mut |_, _| {}).err()
        });
        let expected = RankFailure {
            rank: 1,
            op: 3,
            fault: RankFault::Panicked("on purpose".into()),
        };
        assert_eq!(failures[0], Some(expected));
    }

    #[test]
    fn ranks_that_enter_different_collectives_are_told_so() {
        let group = RankGroup::new(2, PATIENT);
        let failures = on_ranks(&group, |rank, ranks| {
            let id = CollectiveId(rank as u32);
            ranks.exchange(id, &[], &mut |_, _| {}).unwrap_err()
        });
        assert_eq!(failures[0], failures[1]);
        assert!(matches!(failures[0].fault, RankFault::Differs(_)));
    }
}
