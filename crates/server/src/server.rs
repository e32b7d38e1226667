//! From a bound socket to the end of the process: load, serve, drain.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use glim_engine::{Engine, EngineError, GenerateRequest};
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};

use crate::config::ServerConfig;
use crate::engine_thread::{self, Commands, EngineHandle, Observers};
use crate::error::ApiError;
use crate::http::{listener, router};
use crate::kv_events::{KvEventsError, KvPublisher};
use crate::lifecycle::Lifecycle;
use crate::metrics::Metrics;
use crate::model::{Loaded, Model};
use crate::state::AppState;

/// Threads of the HTTP side. They wait more than they work; two, so that one that is busy does not hold up a probe.
const HTTP_THREADS: usize = 2;
/// Tokens that the self-test draws.
const SELF_TEST_TOKENS: usize = 2;
/// How often the threads of HTTP show that they come round.
const TURN: Duration = Duration::from_secs(1);
/// Time that answers get to reach their clients after the drain's limit has ended them.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Why the service could not start, or ended before it was told to.
#[derive(Debug, thiserror::Error)]
pub enum ServeError<E> {
    /// The address cannot be had.
    #[error("cannot listen on {address}: {source}")]
    Bind {
        /// Wanted.
        address: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
    /// The system has no threads, signals or sockets for us.
    #[error("the system refuses {what}: {source}")]
    System {
        /// What was asked for.
        what: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// Cache events cannot be published.
    #[error(transparent)]
    KvEvents(#[from] KvEventsError),
    /// The model could not be loaded.
    #[error("{0}")]
    Load(E),
    /// The model was loaded, but cannot draw a token.
    #[error("the self-test failed: {0}")]
    SelfTest(Box<EngineError>),
    /// The self-test came to its end without a token.
    #[error("the self-test drew no token")]
    NoToken,
    /// A step failed.
    #[error("the engine failed: {0}")]
    Engine(Box<EngineError>),
    /// The engine's thread panicked; it has said why.
    #[error("the engine's thread ended with a panic")]
    Panic,
}

/// A service that listens already.
pub struct Server {
    config: ServerConfig,
    lifecycle: Lifecycle,
    listener: std::net::TcpListener,
    address: SocketAddr,
    stop: watch::Sender<Stop>,
    hears_signals: bool,
}

/// How a server is told to end.
#[derive(Debug, Clone)]
pub struct Stopper(watch::Sender<Stop>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stop {
    No,
    /// No new requests; those that are there are finished.
    Drain,
    /// At once.
    Now,
}

impl Stopper {
    /// The first call drains, a second ends at once.
    pub fn stop(&self) {
        self.0.send_modify(|stop| {
            *stop = match stop {
                Stop::No => Stop::Drain,
                Stop::Drain | Stop::Now => Stop::Now,
            };
        });
    }
}

impl Server {
    /// Takes the address. Nothing is answered before [`Self::run`].
    ///
    /// # Errors
    /// If the address cannot be had.
    pub fn bind<E>(config: ServerConfig) -> Result<Self, ServeError<E>> {
        let address = config.address;
        let listener = std::net::TcpListener::bind(address)
            .map_err(|source| ServeError::Bind { address, source })?;
        Self::on(config, listener)
    }

    /// On a socket that listens already, as a service manager hands it over; the configuration's address counts for nothing.
    ///
    /// # Errors
    /// If the socket cannot be used.
    pub fn on<E>(
        config: ServerConfig,
        listener: std::net::TcpListener,
    ) -> Result<Self, ServeError<E>> {
        let system = |what| move |source| ServeError::System { what, source };
        listener
            .set_nonblocking(true)
            .map_err(system("a socket that does not block"))?;
        let address = listener.local_addr().map_err(system("an address"))?;
        Ok(Self {
            config,
            lifecycle: Lifecycle::new(),
            listener,
            address,
            stop: watch::channel(Stop::No).0,
            hears_signals: false,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it is in its life, for whoever watches it.
    pub fn lifecycle(&self) -> &Lifecycle {
        &self.lifecycle
    }

    /// How it is told to end: hand it to whatever hears signals.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.stop.clone())
    }

    /// From [`Self::run`] on it ends as SIGTERM and SIGINT say: the first drains, a second ends at once.
    #[must_use]
    pub fn with_signals(self) -> Self {
        Self {
            hears_signals: true,
            ..self
        }
    }

    /// Loads a model by `load`, on the thread that will run it, and serves it until it is told to end. Probes are answered from the
    /// start.
    ///
    /// # Errors
    /// If the model cannot be loaded or the engine fails. Requests that are under way then get an error.
    pub fn run<E, L>(self, load: L) -> Result<(), ServeError<E>>
    where
        E: Send + 'static,
        L: FnOnce(&Lifecycle) -> Result<Loaded, E> + Send + 'static,
    {
        let Self {
            config,
            lifecycle,
            listener,
            stop,
            hears_signals,
            ..
        } = self;
        let system = |what| move |source| ServeError::System { what, source };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(HTTP_THREADS)
            .thread_name("glim-http")
            .enable_all()
            .build()
            .map_err(system("threads"))?;
        let listener = {
            let _in_runtime = runtime.enter();
            if hears_signals {
                hear_signals(&Stopper(stop.clone())).map_err(system("to hear signals"))?;
            }
            TcpListener::from_std(listener).map_err(system("a socket"))?
        };
        let name = config.model_names.first().cloned().unwrap_or_default();
        let metrics = Arc::new(Metrics::new(&name));
        let kv_events = match &config.kv_events {
            None => None,
            Some(config) => Some(KvPublisher::start(config, metrics.kv_events())?),
        };
        let (handle, commands) = engine_thread::front_door();
        let state = AppState::new(config, lifecycle.clone(), metrics.clone(), handle.clone());
        let observers = Observers {
            lifecycle,
            metrics,
            kv_events,
        };
        let (ended, end) = oneshot::channel();
        let engine = Loading {
            state: state.clone(),
            commands,
            observers,
        };
        let thread = std::thread::Builder::new().name(engine_thread::THREAD.to_owned());
        let thread = thread.spawn(move || {
            yield_to_http();
            // Nobody listens any more only if the process is about to end.
            let _ = ended.send(engine.run(load));
        });
        thread.map_err(|source| ServeError::System {
            what: "a thread",
            source,
        })?;
        let (closed, close) = watch::channel(false);
        let router = router::router(state.clone());
        let connections = state.config().max_connections;
        runtime.spawn(turn(state.lifecycle().clone()));
        let listening = runtime.spawn(listener::serve(listener, router, connections, close));
        let result = runtime.block_on(async {
            let result = serve(&state, stop.subscribe(), handle, end).await;
            let at_once = *stop.borrow() == Stop::Now;
            if !at_once {
                // Its only receiver is the listener.
                let _ = closed.send(true);
                let _ = listening.await;
            }
            result
        });
        // Blocking work that is still there is of no use to anybody.
        runtime.shutdown_background();
        result
    }
}

/// Shows that the threads of HTTP come round.
async fn turn(lifecycle: Lifecycle) {
    loop {
        lifecycle.turned();
        tokio::time::sleep(TURN).await;
    }
}

/// Passes SIGTERM and SIGINT on. Runs within a runtime.
#[cfg(unix)]
fn hear_signals(stopper: &Stopper) -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    for kind in [SignalKind::terminate(), SignalKind::interrupt()] {
        let mut signals = signal(kind)?;
        let stopper = stopper.clone();
        tokio::spawn(async move {
            while signals.recv().await.is_some() {
                stopper.stop();
            }
        });
    }
    Ok(())
}

/// Passes Ctrl-C on. Runs within a runtime.
#[cfg(not(unix))]
fn hear_signals(stopper: &Stopper) -> io::Result<()> {
    let stopper = stopper.clone();
    tokio::spawn(async move {
        while tokio::signal::ctrl_c().await.is_ok() {
            stopper.stop();
        }
    });
    Ok(())
}

/// How the engine's thread ends.
type End<E> = oneshot::Receiver<Result<(), ServeError<E>>>;

/// Waits for the end: that of the engine, or the one that the server is told.
async fn serve<E>(
    state: &AppState,
    mut stop: watch::Receiver<Stop>,
    engine: EngineHandle,
    mut end: End<E>,
) -> Result<(), ServeError<E>> {
    let lifecycle = state.lifecycle();
    tokio::select! {
        ended = &mut end => {
            // Whoever waits for an answer has been told; let it arrive.
            let _ = tokio::time::timeout(LAST_WORDS, lifecycle.finished()).await;
            return ended.unwrap_or(Err(ServeError::Panic));
        }
        () = told(&mut stop, Stop::Drain) => {}
    }
    let was_ready = lifecycle.was_ready();
    lifecycle.set_draining();
    let limit = state.config().drain_timeout;
    tracing::info!(
        in_flight = lifecycle.in_flight(),
        limit_s = limit.as_secs(),
        "draining"
    );
    tokio::select! {
        () = lifecycle.finished() => {}
        () = told(&mut stop, Stop::Now) => {
            tracing::warn!(in_flight = lifecycle.in_flight(), "stopped at once");
            return Ok(());
        }
        () = tokio::time::sleep(limit) => {
            tracing::warn!(in_flight = lifecycle.in_flight(), "the drain's limit is over: requests are ended");
        }
        ended = &mut end => return ended.unwrap_or(Err(ServeError::Panic)),
    }
    engine.stop(ApiError::draining());
    let _ = tokio::time::timeout(LAST_WORDS, lifecycle.finished()).await;
    // A model on its way cannot be stopped: the process ends without it.
    match was_ready {
        true => tokio::select! {
            ended = end => ended.unwrap_or(Err(ServeError::Panic)),
            () = tokio::time::sleep(LAST_WORDS) => Ok(()),
            () = told(&mut stop, Stop::Now) => Ok(()),
        },
        false => Ok(()),
    }
}

/// Waits until the server is told so much.
async fn told(stop: &mut watch::Receiver<Stop>, least: Stop) {
    if stop.wait_for(|stop| *stop >= least).await.is_err() {
        // Nobody is left who could tell.
        std::future::pending::<()>().await;
    }
}

/// How much nicer the engine's threads are than those of HTTP: a probe that wakes one up shall not wait for a time slice of the model's.
#[cfg(target_os = "linux")]
const ENGINE_NICE: i32 = 5;

/// Gives the calling thread, and all that it will start (the backend's), less of the processors than the threads of HTTP wherever both want
/// one. On Linux the nice value is each thread's own, and inherited (`sched(7)`).
fn yield_to_http() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::getpriority_process(None)
        .and_then(|now| rustix::process::setpriority_process(None, (now + ENGINE_NICE).min(19)))
    {
        tracing::warn!(%error, "the engine's priority cannot be lowered: probes may wait for it");
    }
}

/// The engine's thread before it has an engine.
struct Loading {
    state: AppState,
    commands: Commands,
    observers: Observers,
}

impl Loading {
    fn run<E>(
        self,
        load: impl FnOnce(&Lifecycle) -> Result<Loaded, E>,
    ) -> Result<(), ServeError<E>> {
        let Self {
            state,
            commands,
            observers,
        } = self;
        let lifecycle = state.lifecycle();
        let Loaded {
            mut engine,
            text,
            template,
            info,
        } = load(lifecycle).map_err(ServeError::Load)?;
        lifecycle.loading("self-test");
        let drawn = self_test(&mut engine).map_err(|error| ServeError::SelfTest(Box::new(error)));
        let failed = match drawn {
            Err(error) => Some(error),
            Ok(0) => Some(ServeError::NoToken),
            Ok(_) => None,
        };
        if let Some(error) = failed {
            observers.metrics.selftest_failed();
            return Err(error);
        }
        let model = Model::new(&engine, text, template.as_deref(), info);
        let (blocks, block_size) = (model.blocks, model.block_size);
        state.set_model(model);
        lifecycle.set_ready();
        let took = lifecycle.time_to_ready().unwrap_or_default();
        observers.metrics.loaded(blocks, block_size, took);
        tracing::info!(seconds = took.as_secs_f64(), "ready");
        engine_thread::run(engine, commands, observers).map_err(|error| {
            lifecycle.set_failed();
            ServeError::Engine(Box::new(error))
        })
    }
}

/// Draws tokens on every rank, prefill and decode; gives how many.
fn self_test(engine: &mut Engine) -> Result<usize, EngineError> {
    let request = GenerateRequest {
        max_tokens: Some(
            SELF_TEST_TOKENS
                .min(engine.context().saturating_sub(1))
                .max(1),
        ),
        ..GenerateRequest::new(vec![glim_text::TokenId(0)])
    };
    let generation = engine.generate(&request, |_| std::ops::ControlFlow::Continue(()))?;
    engine.clear_prefix_cache();
    Ok(generation.tokens.len())
}
