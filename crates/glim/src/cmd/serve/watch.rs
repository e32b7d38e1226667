//! A thread that watches the server and tells those who supervise it: the service manager by its socket, other glims by the locks'
//! signs of life. What is due is decided by [`glim_service::report`].

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use glim_server::{Lifecycle, Phase};
use glim_service::notify::{Notify, watchdog};
use glim_service::report::{Reporter, Stage, View};
use listenfd::ListenFd;

use super::claim::Shared;
use crate::exit::{Exit, Failure};

/// Time between two signs of life.
const BEAT: Duration = Duration::from_secs(1);

/// The socket that the service manager listens on for us (`sd_listen_fds(3)`).
///
/// # Errors
/// If it hands over something else, or more.
pub(super) fn inherited_socket() -> Result<Option<TcpListener>, Failure> {
    let mut inherited = ListenFd::from_env();
    match inherited.len() {
        0 => Ok(None),
        1 => inherited.take_tcp_listener(0).map_err(|error| {
            let message = format!("the socket of the service manager cannot be used: {error}");
            Failure::new(Exit::Config, message)
                .hint("expected one ListenStream= with an address and a port")
        }),
        n => Err(Failure::new(
            Exit::Config,
            format!("the service manager hands over {n} sockets, and one is expected"),
        )),
    }
}

/// Watches until it is told to end.
pub(super) struct Watch {
    ends: Arc<AtomicBool>,
    thread: JoinHandle<Option<Notify>>,
}

impl Watch {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the manager's socket is named and not there, or the system gives no thread.
    pub(super) fn start(
        lifecycle: Lifecycle,
        step_timeout: Duration,
        locks: Shared,
    ) -> Result<Self, Failure> {
        let socket = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty());
        let notify = socket.as_deref().map(Notify::open).transpose();
        let notify = notify.map_err(|error| {
            let message = format!("NOTIFY_SOCKET is set, and nobody listens there: {error}");
            Failure::new(Exit::Config, message)
        })?;
        let variable = |name| std::env::var(name).ok();
        let watchdog = watchdog(
            variable("WATCHDOG_USEC").as_deref(),
            variable("WATCHDOG_PID").as_deref(),
        );
        let reporter = Reporter::new(Instant::now(), watchdog, step_timeout);
        let ends = Arc::new(AtomicBool::new(false));
        let watcher = Watcher {
            lifecycle,
            reporter,
            notify,
            locks,
            beaten: None,
            ends: ends.clone(),
        };
        let thread = std::thread::Builder::new().name("glim-watch".to_owned());
        let thread = thread.spawn(move || watcher.run()).map_err(|error| {
            Failure::new(
                Exit::Temporary,
                format!("the system refuses a thread: {error}"),
            )
        })?;
        Ok(Self { ends, thread })
    }

    /// Says the last word: why the service failed, if it did.
    pub(super) fn end(self, failure: Option<&Failure>) {
        self.ends.store(true, Ordering::SeqCst);
        self.thread.thread().unpark();
        if let (Ok(Some(notify)), Some(failure)) = (self.thread.join(), failure) {
            let _ = notify.send(&[format!("STATUS={}", failure.message())]);
        }
    }
}

struct Watcher {
    lifecycle: Lifecycle,
    reporter: Reporter,
    notify: Option<Notify>,
    locks: Shared,
    beaten: Option<Instant>,
    ends: Arc<AtomicBool>,
}

impl Watcher {
    /// Gives the socket back for the last word.
    fn run(mut self) -> Option<Notify> {
        loop {
            // Read before the look, so that what is last seen is the end.
            let is_last = self.ends.load(Ordering::SeqCst);
            self.tick();
            if is_last {
                return self.notify;
            }
            std::thread::park_timeout(self.reporter.interval());
        }
    }

    fn tick(&mut self) {
        let now = Instant::now();
        let due = self.reporter.tick(now, &view(&self.lifecycle));
        if let Some(notify) = &self.notify
            && !due.is_empty()
            && let Err(error) = notify.send(&due)
        {
            tracing::warn!(%error, "the service manager cannot be told");
        }
        let is_due = self.beaten.is_none_or(|at| now.duration_since(at) >= BEAT);
        if let Some(locks) = self.locks.get()
            && is_due
            && self.reporter.is_well(now)
        {
            self.beaten = Some(now);
            if let Err(error) = locks.beat() {
                tracing::warn!(%error, "no sign of life can be given");
            }
        }
    }
}

fn view(lifecycle: &Lifecycle) -> View {
    let look = lifecycle.look();
    View {
        stage: match look.phase {
            Phase::Loading(phase) => Stage::Loading {
                phase,
                done: look.bytes_done,
                total: look.bytes_total,
                work: look.work,
            },
            Phase::Ready => Stage::Ready,
            Phase::Draining => Stage::Draining,
            Phase::Failed => Stage::Failed,
        },
        step: look.step,
        silence: look.silence,
        in_flight: look.in_flight,
    }
}
