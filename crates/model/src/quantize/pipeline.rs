//! Many threads work, one writes, in order.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Results that may wait for their turn, for each thread: bounds the memory.
const WAITING_PER_THREAD: usize = 2;

/// Calls `work(i, scratch, out)` for all `i` below `n`, on as many threads as there are `scratches` (at least one), and
/// `sink` with what it put into `out`, in the order of `i`, on this thread. Buffers are used again; `out` is empty when `work` gets it.
///
/// # Errors
/// That of the first `i`, in order, for which `work` or `sink` fails; nothing after it reaches `sink`.
pub(super) fn in_order<S: Send, E: Send>(
    n: usize,
    scratches: &mut [S],
    work: impl Fn(usize, &mut S, &mut Vec<u8>) -> Result<(), E> + Sync,
    mut sink: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let threads = scratches.len().min(n);
    if let ([scratch, ..], 0 | 1) = (&mut *scratches, threads) {
        let mut out = Vec::new();
        return (0..n).try_for_each(|i| {
            out.clear();
            work(i, scratch, &mut out)?;
            sink(&out)
        });
    }
    let line = Line {
        limit: WAITING_PER_THREAD * threads,
        n,
        state: Mutex::new(State::default()),
        changed: Condvar::new(),
    };
    std::thread::scope(|scope| {
        for scratch in scratches.iter_mut().take(threads) {
            let (line, work) = (&line, &work);
            scope.spawn(move || {
                // Also if `work` panics nobody waits for ever; the scope then panics.
                let _stop = StopOnPanic(line);
                while let Some((i, mut out)) = line.next_job() {
                    let done = work(i, scratch, &mut out).map(|()| out);
                    line.put(i, done);
                }
            });
        }
        let written = (0..n).try_for_each(|i| match line.take(i) {
            Some(Ok(out)) => {
                sink(&out)?;
                line.give_back(out);
                Ok(())
            }
            Some(Err(error)) => Err(error),
            None => Ok(()),
        });
        line.stop();
        written
    })
}

/// What the threads share.
struct Line<E> {
    limit: usize,
    n: usize,
    state: Mutex<State<E>>,
    changed: Condvar,
}

struct State<E> {
    /// The next job that nobody has.
    next: usize,
    /// Jobs that have been written.
    written: usize,
    done: BTreeMap<usize, Result<Vec<u8>, E>>,
    free: Vec<Vec<u8>>,
    stopped: bool,
}

impl<E> Default for State<E> {
    fn default() -> Self {
        Self {
            next: 0,
            written: 0,
            done: BTreeMap::new(),
            free: Vec::new(),
            stopped: false,
        }
    }
}

impl<E> Line<E> {
    /// No code panics while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, State<E>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State<E>>) -> MutexGuard<'a, State<E>> {
        self.changed
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// A job and an empty buffer, once there is room for its result; none at the end.
    fn next_job(&self) -> Option<(usize, Vec<u8>)> {
        let mut state = self.lock();
        loop {
            if state.stopped || state.next == self.n {
                return None;
            }
            if state.next < state.written + self.limit {
                break;
            }
            state = self.wait(state);
        }
        let job = state.next;
        state.next += 1;
        let mut out = state.free.pop().unwrap_or_default();
        out.clear();
        Some((job, out))
    }

    fn put(&self, job: usize, result: Result<Vec<u8>, E>) {
        self.lock().done.insert(job, result);
        self.changed.notify_all();
    }

    /// The result of this job; none if the threads have stopped without it.
    fn take(&self, job: usize) -> Option<Result<Vec<u8>, E>> {
        let mut state = self.lock();
        loop {
            if let Some(result) = state.done.remove(&job) {
                return Some(result);
            }
            if state.stopped {
                return None;
            }
            state = self.wait(state);
        }
    }

    fn give_back(&self, out: Vec<u8>) {
        let mut state = self.lock();
        state.written += 1;
        state.free.push(out);
        drop(state);
        self.changed.notify_all();
    }

    fn stop(&self) {
        self.lock().stopped = true;
        self.changed.notify_all();
    }
}

struct StopOnPanic<'a, E>(&'a Line<E>);

impl<E> Drop for StopOnPanic<'_, E> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(n: usize, threads: usize, fails_at: Option<usize>) -> (Vec<u8>, Result<(), usize>) {
        let mut written = Vec::new();
        let work = |i: usize, calls: &mut usize, out: &mut Vec<u8>| {
            *calls += 1;
            // Later jobs are done sooner.
            std::thread::sleep(std::time::Duration::from_micros(50 * (3 - i as u64 % 4)));
            out.push(i as u8);
            if fails_at == Some(i) { Err(i) } else { Ok(()) }
        };
        let done = in_order(n, &mut vec![0; threads], work, |out| {
            written.extend(out);
            Ok(())
        });
        (written, done)
    }

    #[test]
    fn results_come_in_order_whoever_is_first() {
        for (n, threads) in [(0, 3), (1, 3), (100, 1), (100, 2), (100, 7), (2, 7)] {
            let (written, done) = run(n, threads, None);
            assert_eq!(done, Ok(()));
            assert_eq!(
                written,
                (0..n as u8).collect::<Vec<_>>(),
                "{n} on {threads}"
            );
        }
    }

    #[test]
    fn the_first_failure_ends_it_and_nothing_later_is_written() {
        for threads in [1, 4] {
            let (written, done) = run(100, threads, Some(40));
            assert_eq!(done, Err(40));
            assert_eq!(written, (0..40).collect::<Vec<_>>(), "{threads} threads");
        }
    }

    #[test]
    fn a_sink_that_fails_ends_it() {
        let mut count = 0;
        let done = in_order(
            1000,
            &mut [(); 4],
            |_, (), _| Ok(()),
            |_| {
                count += 1;
                if count == 5 { Err("full") } else { Ok(()) }
            },
        );
        assert_eq!((done, count), (Err("full"), 5));
    }

    #[test]
    #[should_panic(expected = "a scoped thread panicked")]
    fn a_thread_that_panics_does_not_leave_the_others_waiting() {
        let work = |i: usize, (): &mut (), _: &mut Vec<u8>| -> Result<(), ()> {
            assert!(i != 20, "a bug");
            Ok(())
        };
        let _ = in_order(1000, &mut [(); 3], work, |_| Ok(()));
    }
}
