//! Where the server is between its start and its end, and whether its engine moves: what the probes answer from.
//!
//! All of it is read from memory and never waits for the engine.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// A stage of the server's life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The model is on its way; the name says what is being done.
    Loading(&'static str),
    /// Requests are served.
    Ready,
    /// No new requests; those that are there are finished.
    Draining,
    /// The engine is gone, and the process about to end.
    Failed,
}

/// Shared by all who ask and all who know.
#[derive(Debug, Clone)]
pub struct Lifecycle(Arc<State>);

#[derive(Debug)]
struct State {
    started: Instant,
    phase: RwLock<Phase>,
    /// When it became ready first.
    ready: OnceLock<Instant>,
    bytes_done: AtomicU64,
    bytes_total: AtomicU64,
    /// Milliseconds from `started` at which the running step began, plus one; 0: the engine is idle.
    step_began: AtomicU64,
    in_flight: AtomicUsize,
    /// Told when `in_flight` falls to 0.
    finished: Notify,
}

/// How far the loading is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LoadProgress {
    pub(crate) bytes_done: u64,
    pub(crate) bytes_total: u64,
    /// By the speed so far; `None` before the first byte.
    pub(crate) eta: Option<Duration>,
}

impl Lifecycle {
    pub(crate) fn new() -> Self {
        Self(Arc::new(State {
            started: Instant::now(),
            phase: RwLock::new(Phase::Loading("starting")),
            ready: OnceLock::new(),
            bytes_done: AtomicU64::new(0),
            bytes_total: AtomicU64::new(0),
            step_began: AtomicU64::new(0),
            in_flight: AtomicUsize::new(0),
            finished: Notify::new(),
        }))
    }

    // --- for the loader ---

    /// Says what is being done on the way to the first request.
    pub fn loading(&self, what: &'static str) {
        self.change(|phase| {
            if let Phase::Loading(name) = phase {
                *name = what;
            }
        });
        tracing::info!(phase = what, "loading");
    }

    /// Sets how many bytes will be loaded.
    pub fn expect_bytes(&self, bytes: u64) {
        self.0.bytes_total.store(bytes, Ordering::Relaxed);
    }

    /// Notes that so many more bytes are loaded.
    pub fn loaded_bytes(&self, bytes: u64) {
        self.0.bytes_done.fetch_add(bytes, Ordering::Relaxed);
    }

    // --- for the server ---

    pub(crate) fn phase(&self) -> Phase {
        let phase = self.0.phase.read();
        phase.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn change(&self, edit: impl FnOnce(&mut Phase)) {
        let phase = self.0.phase.write();
        edit(&mut phase.unwrap_or_else(PoisonError::into_inner));
    }

    /// From now on requests are served, unless the end has come already.
    pub(crate) fn set_ready(&self) {
        self.change(|phase| {
            if let Phase::Loading(_) = phase {
                *phase = Phase::Ready;
            }
        });
        let _ = self.0.ready.set(Instant::now());
    }

    /// From now on no new requests are taken.
    pub(crate) fn set_draining(&self) {
        self.change(|phase| {
            if *phase != Phase::Failed {
                *phase = Phase::Draining;
            }
        });
    }

    /// The engine is gone.
    pub(crate) fn set_failed(&self) {
        self.change(|phase| *phase = Phase::Failed);
    }

    /// Whether it was ever ready.
    pub(crate) fn was_ready(&self) -> bool {
        self.0.ready.get().is_some()
    }

    /// Time from the start until it was ready.
    pub(crate) fn time_to_ready(&self) -> Option<Duration> {
        Some(self.0.ready.get()?.duration_since(self.0.started))
    }

    pub(crate) fn progress(&self) -> LoadProgress {
        let done = self.0.bytes_done.load(Ordering::Relaxed);
        let total = self.0.bytes_total.load(Ordering::Relaxed);
        let left = total.saturating_sub(done) as f64;
        let eta = (done > 0).then(|| self.0.started.elapsed().mul_f64(left / done as f64));
        LoadProgress {
            bytes_done: done,
            bytes_total: total,
            eta,
        }
    }

    // --- for the engine's thread ---

    /// A step begins.
    pub(crate) fn step_begins(&self) {
        let ms = self.0.started.elapsed().as_millis() as u64;
        self.0.step_began.store(ms + 1, Ordering::Relaxed);
    }

    /// The engine has nothing to do.
    pub(crate) fn idle(&self) {
        self.0.step_began.store(0, Ordering::Relaxed);
    }

    /// How long the running step has taken so far; `None` if the engine is idle.
    pub(crate) fn step_runs(&self) -> Option<Duration> {
        let began = self.0.step_began.load(Ordering::Relaxed).checked_sub(1)?;
        Some(
            self.0
                .started
                .elapsed()
                .saturating_sub(Duration::from_millis(began)),
        )
    }

    // --- for the drain ---

    /// Counts a request until the guard is dropped.
    pub(crate) fn request(&self) -> InFlight {
        self.0.in_flight.fetch_add(1, Ordering::SeqCst);
        InFlight(self.clone())
    }

    /// Requests that are being served.
    pub(crate) fn in_flight(&self) -> usize {
        self.0.in_flight.load(Ordering::SeqCst)
    }

    /// Waits until no request is being served.
    pub(crate) async fn finished(&self) {
        loop {
            let told = self.0.finished.notified();
            if self.in_flight() == 0 {
                return;
            }
            told.await;
        }
    }
}

/// A request that is being served.
#[derive(Debug)]
pub(crate) struct InFlight(Lifecycle);

impl Drop for InFlight {
    fn drop(&mut self) {
        let state = &self.0.0;
        if state.in_flight.fetch_sub(1, Ordering::SeqCst) == 1 {
            state.finished.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_going_down_does_not_become_ready() {
        let life = Lifecycle::new();
        assert_eq!(life.phase(), Phase::Loading("starting"));
        life.loading("weights");
        assert_eq!(life.phase(), Phase::Loading("weights"));
        life.set_draining();
        life.set_ready();
        assert_eq!(life.phase(), Phase::Draining);
        life.set_failed();
        life.set_draining();
        assert_eq!(life.phase(), Phase::Failed);
    }

    #[test]
    fn an_idle_engine_has_no_running_step() {
        let life = Lifecycle::new();
        assert_eq!(life.step_runs(), None);
        life.step_begins();
        assert!(life.step_runs().is_some());
        life.idle();
        assert_eq!(life.step_runs(), None);
    }

    #[tokio::test]
    async fn the_last_request_ends_the_wait() {
        let life = Lifecycle::new();
        life.finished().await;
        let (first, second) = (life.request(), life.request());
        let waiting = tokio::spawn({
            let life = life.clone();
            async move { life.finished().await }
        });
        drop(first);
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(second);
        assert!(waiting.await.is_ok());
    }
}
