//! The last batches, encoded: what subscribers are sent from and what can be replayed.
//!
//! Each reader has a position of its own, so a slow one holds nothing back and costs no memory. It is bounded twice, in batches and in
//! bytes, since the batch of a long prompt is a thousand times that of a step of decoding.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::metrics::KvEventCounters;

/// Bytes of all payloads together. The oldest go first.
pub(super) const BUFFER_BYTES: usize = 256 << 20;

/// One encoded batch.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) sequence: u64,
    pub(super) payload: Vec<u8>,
}

/// The last batches in order.
#[derive(Debug)]
pub(super) struct Buffer {
    inner: Mutex<Inner>,
    /// Batches that were ever appended, and whether it is over.
    state: watch::Sender<State>,
    counters: KvEventCounters,
    max_batches: usize,
    max_bytes: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    appended: u64,
    closed: bool,
}

#[derive(Debug, Default)]
struct Inner {
    batches: VecDeque<Arc<Batch>>,
    /// Batches that were here before the first of `batches`.
    gone: u64,
    bytes: usize,
}

impl Buffer {
    pub(super) fn new(max_batches: usize, max_bytes: usize, counters: KvEventCounters) -> Self {
        Self {
            inner: Mutex::default(),
            state: watch::Sender::new(State::default()),
            counters,
            max_batches: max_batches.max(1),
            max_bytes,
        }
    }

    /// Appends a batch and lets the oldest go where there is no room; the newest always stays.
    pub(super) fn append(&self, batch: Batch) {
        let mut inner = self.lock();
        inner.bytes += batch.payload.len();
        inner.batches.push_back(Arc::new(batch));
        while inner.batches.len() > self.max_batches
            || (inner.bytes > self.max_bytes && inner.batches.len() > 1)
        {
            if let Some(oldest) = inner.batches.pop_front() {
                inner.bytes -= oldest.payload.len();
                inner.gone += 1;
            }
        }
        let appended = inner.gone + inner.batches.len() as u64;
        drop(inner);
        self.counters.published.inc();
        self.state.send_modify(|state| state.appended = appended);
    }

    /// No batch will come any more.
    pub(super) fn close(&self) {
        self.state.send_modify(|state| state.closed = true);
    }

    /// Waits for [`Self::close`].
    pub(super) async fn closed(&self) {
        // An error would mean that the sender is gone, which is a field of this.
        let _ = self.state.subscribe().wait_for(|state| state.closed).await;
    }

    /// What is here from this number on, at this moment.
    pub(super) fn since(&self, sequence: u64) -> Vec<Arc<Batch>> {
        let inner = self.lock();
        let start = inner
            .batches
            .partition_point(|batch| batch.sequence < sequence);
        inner.batches.iter().skip(start).cloned().collect()
    }

    /// A reader of all that comes from now on.
    pub(super) fn reader(self: &Arc<Self>) -> Reader {
        let state = self.state.subscribe();
        let position = state.borrow().appended;
        Reader {
            buffer: Arc::clone(self),
            state,
            position,
        }
    }

    /// Moves a position over what is gone, and counts that.
    fn skip_lost(&self, inner: &Inner, position: &mut u64) {
        if let Some(lost) = inner.gone.checked_sub(*position) {
            self.counters.dropped.inc_by(lost);
            *position = inner.gone;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads every batch once, at its own pace.
#[derive(Debug)]
pub(super) struct Reader {
    buffer: Arc<Buffer>,
    state: watch::Receiver<State>,
    /// Batches that were appended before the next one.
    position: u64,
}

impl Reader {
    /// The next batch that is still here; waits for it. `None` after the last. Nothing is lost if the future is dropped.
    pub(super) async fn next(&mut self) -> Option<Arc<Batch>> {
        loop {
            let state = *self.state.borrow_and_update();
            if let Some(batch) = self.ready() {
                return Some(batch);
            }
            if state.closed || self.state.changed().await.is_err() {
                return None;
            }
        }
    }

    fn ready(&mut self) -> Option<Arc<Batch>> {
        let Self {
            buffer, position, ..
        } = self;
        let inner = buffer.lock();
        buffer.skip_lost(&inner, position);
        let index = usize::try_from(*position - inner.gone).ok()?;
        let batch = inner.batches.get(index).cloned()?;
        *position += 1;
        Some(batch)
    }
}

/// A reader that could not go on loses what went meanwhile.
impl Drop for Reader {
    fn drop(&mut self) {
        let Self {
            buffer, position, ..
        } = self;
        buffer.skip_lost(&buffer.lock(), position);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn append(buffer: &Buffer, sequences: impl IntoIterator<Item = u64>, bytes: usize) {
        for sequence in sequences {
            buffer.append(Batch {
                sequence,
                payload: vec![0; bytes],
            });
        }
    }

    fn numbers(batches: &[Arc<Batch>]) -> Vec<u64> {
        batches.iter().map(|batch| batch.sequence).collect()
    }

    #[test]
    fn a_replay_begins_at_the_number_or_after_it() {
        let buffer = Buffer::new(3, 1000, KvEventCounters::default());
        append(&buffer, [0, 1, 2, 5, 6], 10);
        assert_eq!(numbers(&buffer.since(0)), [2, 5, 6]);
        assert_eq!(numbers(&buffer.since(3)), [5, 6]);
        assert_eq!(numbers(&buffer.since(6)), [6]);
        assert!(buffer.since(7).is_empty());
    }

    #[test]
    fn bytes_are_bounded_and_the_newest_stays() {
        let buffer = Buffer::new(100, 25, KvEventCounters::default());
        append(&buffer, 0..5, 10);
        assert_eq!(numbers(&buffer.since(0)), [3, 4]);
        append(&buffer, [5], 1000);
        assert_eq!(numbers(&buffer.since(0)), [5]);
    }

    #[tokio::test]
    async fn a_reader_gets_what_comes_after_it_and_its_losses_are_counted() {
        let buffer = Arc::new(Buffer::new(3, 1000, KvEventCounters::default()));
        append(&buffer, 0..2, 10);
        let mut reader = buffer.reader();
        append(&buffer, 2..9, 10);
        assert_eq!(reader.next().await.unwrap().sequence, 6);
        assert_eq!(buffer.counters.dropped.get(), 4);
        append(&buffer, 9..10, 10);
        buffer.close();
        let mut rest = Vec::new();
        while let Some(batch) = reader.next().await {
            rest.push(batch.sequence);
        }
        assert_eq!((rest, buffer.counters.dropped.get()), (vec![7, 8, 9], 4));
    }

    #[test]
    fn a_reader_that_never_went_on_has_lost_what_is_gone() {
        let buffer = Arc::new(Buffer::new(3, 1000, KvEventCounters::default()));
        let reader = buffer.reader();
        append(&buffer, 0..5, 10);
        drop(reader);
        assert_eq!(buffer.counters.dropped.get(), 2);
    }
}
