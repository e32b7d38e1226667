//! Work over many items on all cores, with results in the order of the items.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Memory that all threads of a proof may take together, in bytes: what is mapped does not count.
pub(super) const MAX_BYTES: usize = 768 << 20;

/// `work` for each item, on as many threads as there are cores and as [`MAX_BYTES`] allows if each thread takes `bytes_each`.
/// The results come in the order of the items, whichever thread was done first.
pub(super) fn map<T: Sync, R: Send>(
    items: &[T],
    bytes_each: usize,
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = cores
        .min(MAX_BYTES / bytes_each.max(1))
        .clamp(1, items.len().max(1));
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, R)>> = Mutex::new(Vec::with_capacity(items.len()));
    let run = || {
        let mut mine = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else { break };
            mine.push((index, work(item)));
        }
        // A thread that panicked has not held the lock: nothing is half written.
        let mut done = done.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        done.append(&mut mine);
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(run);
        }
        run();
    });
    let mut done = done
        .into_inner()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    done.sort_unstable_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_the_items() {
        let items: Vec<usize> = (0..1000).collect();
        let squares = map(&items, 1, |n| n * n);
        assert_eq!(squares, items.iter().map(|n| n * n).collect::<Vec<_>>());
        assert_eq!(map(&[] as &[usize], 1, |n| *n), [] as [usize; 0]);
        assert_eq!(map(&[3], usize::MAX, |n| n + 1), [4], "one thread at least");
    }
}
