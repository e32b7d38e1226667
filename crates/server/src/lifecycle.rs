//! Where the server is between its start and its end, and whether its engine moves: what the probes answer from.
//!
//! All of it is read from memory and never waits for the engine.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// A stage of the server's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
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
    /// When the phase began that the server is in.
    phase_began: Mutex<Instant>,
    /// Grows with all work of the start, whatever it is.
    work: AtomicU64,
    /// Milliseconds from `started` at which the threads of HTTP came round last.
    turned: AtomicU64,
    bytes_done: AtomicU64,
    bytes_total: AtomicU64,
    /// Milliseconds from `started` at which the running step began, plus one; 0: the engine is idle.
    step_began: AtomicU64,
    in_flight: AtomicUsize,
    /// Told when `in_flight` falls to 0.
    finished: Notify,
}

/// What the server looks like to whoever watches it: a service manager, a lock's heartbeat.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Look {
    /// Where it is in its life.
    pub phase: Phase,
    /// Bytes of weights that are loaded, and all.
    pub bytes_done: u64,
    /// All bytes of weights.
    pub bytes_total: u64,
    /// A number that grows with all work on the way to the first request.
    pub work: u64,
    /// How long the engine's step has been running; `None`: it is idle.
    pub step: Option<Duration>,
    /// For how long the threads that answer requests have not come round.
    pub silence: Duration,
    /// Requests that are being served.
    pub in_flight: usize,
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
            phase_began: Mutex::new(Instant::now()),
            work: AtomicU64::new(0),
            turned: AtomicU64::new(0),
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
        let mut before = None;
        self.change(|phase| {
            if let Phase::Loading(name) = phase {
                before = Some(std::mem::replace(name, what));
            }
        });
        if let Some(before) = before {
            self.tell_phase(before);
        }
        tracing::debug!(phase = what, "begins");
    }

    /// One line for each phase of the start, at its end.
    fn tell_phase(&self, phase: &'static str) {
        let began = self.0.phase_began.lock();
        let mut began = began.unwrap_or_else(PoisonError::into_inner);
        let seconds = std::mem::replace(&mut *began, Instant::now()).elapsed();
        tracing::info!(phase, seconds = seconds.as_secs_f64(), "phase of the start");
    }

    /// Notes that work was done: bytes were read, a text was computed. Whoever watches the start sees that it is not stuck.
    pub fn worked(&self, amount: u64) {
        self.0.work.fetch_add(amount, Ordering::Relaxed);
    }

    /// What the server looks like now.
    pub fn look(&self) -> Look {
        let now = self.0.started.elapsed();
        let turned = Duration::from_millis(self.0.turned.load(Ordering::Relaxed));
        Look {
            phase: self.phase(),
            bytes_done: self.0.bytes_done.load(Ordering::Relaxed),
            bytes_total: self.0.bytes_total.load(Ordering::Relaxed),
            work: self.0.work.load(Ordering::Relaxed),
            step: self.step_runs(),
            silence: now.saturating_sub(turned),
            in_flight: self.in_flight(),
        }
    }

    /// Sets how many bytes will be loaded.
    pub fn expect_bytes(&self, bytes: u64) {
        self.0.bytes_total.store(bytes, Ordering::Relaxed);
    }

    /// Notes that so many more bytes are loaded.
    pub fn loaded_bytes(&self, bytes: u64) {
        self.0.bytes_done.fetch_add(bytes, Ordering::Relaxed);
        self.worked(bytes);
    }

    // --- for the server ---

    pub(crate) fn phase(&self) -> Phase {
        let phase = self.0.phase.read();
        *phase.unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, edit: impl FnOnce(&mut Phase)) {
        let phase = self.0.phase.write();
        edit(&mut phase.unwrap_or_else(PoisonError::into_inner));
    }

    /// From now on requests are served, unless the end has come already.
    pub(crate) fn set_ready(&self) {
        let mut last = None;
        self.change(|phase| {
            if let Phase::Loading(name) = *phase {
                last = Some(name);
                *phase = Phase::Ready;
            }
        });
        if let Some(last) = last {
            self.tell_phase(last);
        }
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

    /// The threads of HTTP came round.
    pub(crate) fn turned(&self) {
        let ms = self.0.started.elapsed().as_millis() as u64;
        self.0.turned.store(ms, Ordering::Relaxed);
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
