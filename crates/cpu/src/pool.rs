//! Threads for decode: all enter one parallel section after the other, with nothing allocated and no queue in between.
//!
//! A step is a few hundred short sections. Between two of them a worker spins for a bounded while and then sleeps, so that a
//! step costs about a microsecond a section, and an idle engine costs nothing. More threads than the process has cores are not
//! refused, but cost time: who waits longer than the bounded while sleeps (workers) or yields (the caller).
//!
//! # Memory ordering
//! A section is published by `epoch` and ended by `remaining`:
//! - the caller writes `job` and `remaining`, then adds to `epoch` (a release); a worker that sees the new epoch (an acquire) sees
//!   both, and all that the caller wrote before the section;
//! - each worker subtracts from `remaining` (a release) after its last access to the job; these form one release sequence, so
//!   the caller that reads 0 (an acquire) sees what every worker wrote, and may write `job` again;
//! - a worker sleeps only if the epoch is old while it holds the lock and is counted in `sleepers`. Count, epoch and both checks
//!   are sequentially consistent, so either the worker sees the new epoch, or the caller sees the sleeper; then the caller takes
//!   the lock once, which the worker gives up only by waiting, and the notification cannot come too early.

use std::cell::UnsafeCell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Rounds of [`std::hint::spin_loop`] before a worker sleeps: some tens of microseconds.
const SPINS: usize = 2_000;

/// What the names of a pool's threads begin with.
pub const POOL_THREAD: &str = "glim-cpu-";

/// A parallel section, borrowed from the thread that runs it.
#[derive(Clone, Copy)]
struct Job {
    data: *const (),
    call: unsafe fn(*const (), usize),
}

struct Shared {
    /// Number of the current section; a change is the signal to run `job`.
    epoch: AtomicUsize,
    job: UnsafeCell<Option<Job>>,
    /// Workers that have not finished the current section.
    remaining: AtomicUsize,
    panicked: AtomicBool,
    stop: AtomicBool,
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
}

// SAFETY: `job` is written by the thread that owns the pool, while no worker runs (`remaining` is 0), and read by workers
// only after they have seen the new `epoch`, which is stored after the write.
unsafe impl Sync for Shared {}
// SAFETY: a `Job` points to a closure that is `Sync` and outlives the section (see `Pool::run`).
unsafe impl Send for Shared {}

/// A fixed set of threads; the calling thread is one of them.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl Pool {
    /// `threads` threads, the caller included; at least one.
    pub fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared {
            epoch: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            remaining: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            lock: Mutex::new(()),
            wake: Condvar::new(),
        });
        let worker = |index| {
            let shared = Arc::clone(&shared);
            let builder = std::thread::Builder::new().name(format!("{POOL_THREAD}{index}"));
            builder.spawn(move || work(&shared, index)).ok()
        };
        // A thread that cannot be had is one fewer, not an error: the sections are the same, and `threads` says how many there are.
        let workers = (1..threads.max(1)).map_while(worker).collect();
        Self { shared, workers }
    }

    /// Threads, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `f(thread)` on every thread and waits for all of them.
    ///
    /// # Panics
    /// If `f` panics on any thread; the pool stays usable.
    pub fn run<F: Fn(usize) + Sync>(&mut self, f: F) {
        unsafe fn call<F: Fn(usize) + Sync>(data: *const (), thread: usize) {
            // SAFETY: `data` is the `&F` that `run` has put into the job, and `run` does not return before this does.
            unsafe { (*data.cast::<F>())(thread) }
        }
        if self.workers.is_empty() {
            return f(0);
        }
        let shared = &*self.shared;
        // SAFETY: `&mut self` and `remaining == 0` at the end of the last section: no worker reads the job now.
        unsafe {
            *shared.job.get() = Some(Job {
                data: (&raw const f).cast(),
                call: call::<F>,
            });
        }
        shared
            .remaining
            .store(self.workers.len(), Ordering::Relaxed);
        // SeqCst here and in `sleep`: either the worker sees the new epoch, or this thread sees the sleeper.
        shared.epoch.fetch_add(1, Ordering::SeqCst);
        if shared.sleepers.load(Ordering::SeqCst) > 0 {
            drop(shared.lock.lock().unwrap_or_else(PoisonError::into_inner));
            shared.wake.notify_all();
        }
        let own = catch_unwind(AssertUnwindSafe(|| f(0)));
        let mut spins = 0;
        while shared.remaining.load(Ordering::Acquire) > 0 {
            spins += 1;
            if spins < SPINS {
                std::hint::spin_loop()
            } else {
                std::thread::yield_now()
            }
        }
        // Taken in any case, so that it does not fail the next section.
        let panicked = shared.panicked.swap(false, Ordering::Relaxed);
        if let Err(panic) = own {
            resume_unwind(panic);
        }
        assert!(!panicked, "a thread of the pool panicked");
    }

    /// Cuts `0..n` into ranges of `grain` and more, and runs `f(thread, range)` on each, on whichever thread is free. What a
    /// range computes must not depend on how the whole was cut.
    pub fn ranges<F: Fn(usize, Range<usize>) + Sync>(&mut self, n: usize, grain: usize, f: F) {
        let grain = grain.max(1);
        if n <= grain || self.workers.is_empty() {
            if n > 0 {
                f(0, 0..n);
            }
            return;
        }
        // A few ranges for each thread even out what the others are held up by.
        let step = grain.max(n.div_ceil(self.threads() * 4));
        let next = AtomicUsize::new(0);
        self.run(|thread| {
            loop {
                let start = next.fetch_add(step, Ordering::Relaxed);
                if start >= n {
                    break;
                }
                f(thread, start..(start + step).min(n));
            }
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.epoch.fetch_add(1, Ordering::SeqCst);
        drop(
            self.shared
                .lock
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        );
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches the panics of sections, so it ends in order.
            let _ = worker.join();
        }
    }
}

fn work(shared: &Shared, index: usize) {
    let mut seen = 0;
    loop {
        let mut spins = 0;
        while shared.epoch.load(Ordering::Acquire) == seen {
            spins += 1;
            if spins < SPINS {
                std::hint::spin_loop()
            } else {
                sleep(shared, seen)
            }
        }
        seen = shared.epoch.load(Ordering::Acquire);
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        // SAFETY: the epoch changed, so the job is the current section's, and it is not written again before `remaining` is 0.
        if let Some(job) = unsafe { *shared.job.get() } {
            // SAFETY: `Pool::run` keeps the closure alive until `remaining` is 0.
            let result = catch_unwind(AssertUnwindSafe(|| unsafe { (job.call)(job.data, index) }));
            if result.is_err() {
                shared.panicked.store(true, Ordering::Relaxed);
            }
        }
        shared.remaining.fetch_sub(1, Ordering::Release);
    }
}

fn sleep(shared: &Shared, seen: usize) {
    let mut guard = shared.lock.lock().unwrap_or_else(PoisonError::into_inner);
    shared.sleepers.fetch_add(1, Ordering::SeqCst);
    while shared.epoch.load(Ordering::SeqCst) == seen {
        guard = shared
            .wake
            .wait(guard)
            .unwrap_or_else(PoisonError::into_inner);
    }
    shared.sleepers.fetch_sub(1, Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_runs_every_section_once() {
        let mut pool = Pool::new(3);
        let counts: Vec<AtomicUsize> = (0..pool.threads()).map(|_| AtomicUsize::new(0)).collect();
        for round in 1..=5_000 {
            pool.run(|thread| {
                counts[thread].fetch_add(1, Ordering::Relaxed);
            });
            assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == round));
            // Long enough, now and then, for workers to fall asleep.
            if round % 1_000 == 0 {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        }
    }

    #[test]
    fn ranges_tile_the_whole() {
        let mut pool = Pool::new(2);
        for (n, grain) in [(0, 1), (1, 1), (7, 3), (1000, 1), (1000, 64), (5, 100)] {
            let hits: Vec<AtomicUsize> = (0..n).map(|_| AtomicUsize::new(0)).collect();
            pool.ranges(n, grain, |_, range| {
                for i in range {
                    hits[i].fetch_add(1, Ordering::Relaxed);
                }
            });
            assert!(
                hits.iter().all(|h| h.load(Ordering::Relaxed) == 1),
                "{n} by {grain}"
            );
        }
    }

    #[test]
    fn sections_see_what_was_written_before_and_are_seen_after() {
        // Plain data, no atomics: handed to the workers by one section and back by its end, over and over, with workers awake and
        // asleep.
        let mut pool = Pool::new(4);
        let threads = pool.threads();
        let mut values = vec![0u64; threads];
        for round in 0..20_000u64 {
            let parts = crate::shared::Parts::new(&mut values);
            pool.run(|thread| {
                // SAFETY: each thread has its own element.
                let own = unsafe { &mut parts.part(thread, 1)[0] };
                assert_eq!(*own, round * (thread as u64 + 1));
                *own += thread as u64 + 1;
            });
            if round % 5_000 == 0 {
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
        }
        let expected: Vec<u64> = (1..=threads as u64).map(|t| t * 20_000).collect();
        assert_eq!(values, expected);
    }

    #[test]
    fn pools_come_and_go() {
        for round in 0..200 {
            let mut pool = Pool::new(1 + round % 4);
            let n = pool.threads();
            let sum = AtomicUsize::new(0);
            // Some are dropped without a section, some with workers asleep.
            if round % 3 > 0 {
                pool.run(|_| {
                    sum.fetch_add(1, Ordering::Relaxed);
                });
                assert_eq!(sum.into_inner(), n);
            }
            if round % 50 == 0 {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let mut pool = Pool::new(2);
        // On the caller, on the worker, on both.
        for who in [[true, false], [false, true], [true, true]] {
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.run(|t| assert!(!who[t], "on purpose"));
            }));
            assert!(result.is_err());
            let sum = AtomicUsize::new(0);
            pool.run(|t| {
                sum.fetch_add(t + 1, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 3);
        }
    }
}
