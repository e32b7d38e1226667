//! From the engine's thread to the publisher's: bounded, and never waited for.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use glim_engine::KvEvent;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::Notify;

/// Batches that may wait for the publisher. It only falls behind while it gets no processor at all.
pub(super) const QUEUE_BATCHES: usize = 10_000;

/// Events of one step of the engine, with their number.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) sequence: u64,
    /// Since the Unix epoch.
    pub(super) seconds: f64,
    pub(super) events: Vec<KvEvent>,
}

/// Batches that are not encoded yet. The lock is held to move pointers only.
#[derive(Debug)]
pub(super) struct Queue {
    inner: Mutex<Inner>,
    more: Notify,
    max: usize,
    /// Batches that found no room.
    dropped: Counter,
}

#[derive(Debug, Default)]
struct Inner {
    batches: VecDeque<Pending>,
    next: u64,
    closed: bool,
}

impl Queue {
    pub(super) fn new(max: usize, dropped: Counter) -> Self {
        Self {
            inner: Mutex::default(),
            more: Notify::new(),
            max,
            dropped,
        }
    }

    /// Adds a batch; if there is no room, the oldest goes.
    pub(super) fn push(&self, events: Vec<KvEvent>) {
        let seconds = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs_f64();
        let mut inner = self.lock();
        let oldest = if inner.batches.len() < self.max {
            None
        } else {
            self.dropped.inc();
            inner.batches.pop_front()
        };
        let sequence = inner.next;
        inner.next += 1;
        inner.batches.push_back(Pending {
            sequence,
            seconds,
            events,
        });
        drop(inner);
        drop(oldest);
        self.more.notify_one();
    }

    /// All that waits; waits itself for the first. `None` once the queue is closed and empty.
    pub(super) async fn take(&self) -> Option<VecDeque<Pending>> {
        loop {
            {
                let mut inner = self.lock();
                if !inner.batches.is_empty() {
                    return Some(mem::take(&mut inner.batches));
                }
                if inner.closed {
                    return None;
                }
            }
            self.more.notified().await;
        }
    }

    /// No batch will come after those that are here.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.more.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[tokio::test]
    async fn a_full_queue_drops_the_oldest_and_the_numbers_show_it() {
        let queue = Queue::new(3, Counter::default());
        for _ in 0..5 {
            queue.push(vec![KvEvent::AllBlocksCleared]);
        }
        let batches = queue.take().await.unwrap();
        let numbers: Vec<u64> = batches.iter().map(|batch| batch.sequence).collect();
        assert_eq!(numbers, [2, 3, 4]);
        assert_eq!(queue.dropped.get(), 2);
    }

    #[tokio::test]
    async fn what_was_pushed_before_the_end_is_still_taken() {
        let queue = Queue::new(3, Counter::default());
        queue.push(vec![KvEvent::AllBlocksCleared]);
        queue.close();
        assert_eq!(queue.take().await.unwrap().len(), 1);
        assert!(queue.take().await.is_none());
    }
}
