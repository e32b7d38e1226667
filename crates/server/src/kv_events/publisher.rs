//! The publisher: a thread of its own that encodes and serves the sockets.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use glim_engine::KvEvent;
use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{sleep, timeout};

use super::buffer::{BUFFER_BYTES, Batch, Buffer};
use super::encode::Form;
use super::endpoint::Endpoint;
use super::peers;
use super::queue::{QUEUE_BATCHES, Queue};
use super::zmtp::{Stream, ZmtpError};
use super::{KvEventsConfig, KvEventsError};
use crate::metrics::KvEventCounters;

/// The publisher's thread, as debuggers show it.
const THREAD: &str = "glim-kv-events";

/// Connections to one socket at a time.
const MAX_PEERS: usize = 64;

/// What subscribers get at the end to take the last batches; vLLM's `SHUTDOWN_TIMEOUT`.
const LINGER: Duration = Duration::from_secs(1);

/// Waits between attempts to connect double from the first to the last.
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(5);

/// Publishes the events of one engine's cache. Dropping it sends what is left, for a second at most.
#[derive(Debug)]
pub(crate) struct KvPublisher {
    queue: Arc<Queue>,
    endpoint: Endpoint,
    replay_endpoint: Option<Endpoint>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread works on.
struct Shared {
    queue: Arc<Queue>,
    buffer: Arc<Buffer>,
    topic: Arc<[u8]>,
    form: Form,
}

/// What the thread listens on or connects to.
struct Sockets {
    publish: Publish,
    replay: Option<Listener>,
}

enum Publish {
    Listen(Listener),
    Connect(Endpoint),
}

enum Listener {
    Tcp(TcpListener),
    #[cfg(unix)]
    Ipc(std::os::unix::net::UnixListener),
}

impl KvPublisher {
    /// Opens the sockets and starts the thread. The first batch, number 0, says that all blocks are gone: what a router knew of an
    /// earlier process at this address is void.
    ///
    /// # Errors
    /// An address or a topic that is none, an address that is taken.
    pub(crate) fn start(
        config: &KvEventsConfig,
        counters: KvEventCounters,
    ) -> Result<Self, KvEventsError> {
        check_topic(&config.topic)?;
        let rank = config.data_parallel_rank;
        let endpoint = Endpoint::parse(&config.endpoint, rank)?;
        let (publish, endpoint) = if endpoint.listens() {
            let (listener, endpoint) = listen(&endpoint)?;
            (Publish::Listen(listener), endpoint)
        } else {
            (Publish::Connect(endpoint.clone()), endpoint)
        };
        let (replay, replay_endpoint) = match &config.replay_endpoint {
            None => (None, None),
            Some(text) => {
                let wanted = Endpoint::parse(text, rank)?;
                let (listener, endpoint) = listen(&wanted)?;
                (Some(listener), Some(endpoint))
            }
        };

        let queue = Arc::new(Queue::new(QUEUE_BATCHES, counters.dropped.clone()));
        queue.push(vec![KvEvent::AllBlocksCleared]);
        let buffer = Arc::new(Buffer::new(config.buffer_batches, BUFFER_BYTES, counters));
        let shared = Shared {
            queue: Arc::clone(&queue),
            buffer,
            topic: config.topic.as_bytes().into(),
            form: Form {
                encoding: config.encoding,
                hashes: config.hashes,
                rank,
            },
        };
        let sockets = Sockets { publish, replay };
        let thread = Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .and_then(|runtime| spawn(runtime, sockets, shared))
            .map_err(|source| KvEventsError::Thread { source })?;
        let publisher = Self {
            queue,
            endpoint,
            replay_endpoint,
            thread: Some(thread),
        };
        tracing::info!(
            endpoint = publisher.endpoint(),
            replay_endpoint = publisher.replay_endpoint(),
            topic = config.topic,
            "publishing events of the prefix cache"
        );
        Ok(publisher)
    }

    /// Publishes the events of a step as one batch; nothing if there are none. Never waits.
    pub(crate) fn publish(&self, events: Vec<KvEvent>) {
        if !events.is_empty() {
            self.queue.push(events);
        }
    }

    /// Where batches are published, with the port that the system chose if 0 was asked for.
    pub(crate) fn endpoint(&self) -> String {
        self.endpoint.to_string()
    }

    /// Where replays are served.
    pub(crate) fn replay_endpoint(&self) -> Option<String> {
        self.replay_endpoint.as_ref().map(Endpoint::to_string)
    }
}

impl Drop for KvPublisher {
    fn drop(&mut self) {
        self.queue.close();
        if self
            .thread
            .take()
            .is_some_and(|thread| thread.join().is_err())
        {
            tracing::error!("the publisher of kv events panicked");
        }
        for endpoint in [Some(&self.endpoint), self.replay_endpoint.as_ref()] {
            if let Some(Endpoint::Ipc(path)) = endpoint {
                // Somebody else may have removed it.
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

/// llm-d takes topics that begin with `kv@` and splits them at two `@`.
fn check_topic(topic: &str) -> Result<(), KvEventsError> {
    let found = topic.matches('@').count();
    if topic.starts_with("kv@") && found != 2 {
        return Err(KvEventsError::Topic {
            topic: topic.to_owned(),
            found,
        });
    }
    Ok(())
}

/// A listener, and the address that it has in the end. A host without a star is an address of this machine, or the system refuses it.
fn listen(endpoint: &Endpoint) -> Result<(Listener, Endpoint), KvEventsError> {
    let fault = |source| KvEventsError::Listen {
        endpoint: endpoint.to_string(),
        source,
    };
    match endpoint {
        Endpoint::Tcp { host, port } => {
            let listener = TcpListener::bind((Endpoint::bind_host(host), *port)).map_err(fault)?;
            listener.set_nonblocking(true).map_err(fault)?;
            let port = listener.local_addr().map_err(fault)?.port();
            let host = host.clone();
            Ok((Listener::Tcp(listener), Endpoint::Tcp { host, port }))
        }
        #[cfg(unix)]
        Endpoint::Ipc(path) => {
            let listener = bind_path(path).map_err(fault)?;
            listener.set_nonblocking(true).map_err(fault)?;
            Ok((Listener::Ipc(listener), endpoint.clone()))
        }
        #[cfg(not(unix))]
        Endpoint::Ipc(_) => Err(fault(io::ErrorKind::Unsupported.into())),
    }
}

/// A Unix socket; one that a dead process left behind is replaced, as ZeroMQ does.
#[cfg(unix)]
fn bind_path(path: &std::path::Path) -> io::Result<std::os::unix::net::UnixListener> {
    use std::os::unix::net::{UnixListener, UnixStream};

    let is_in_use = |error: &io::Error| error.kind() == io::ErrorKind::AddrInUse;
    let is_refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    match UnixListener::bind(path) {
        Err(error) if is_in_use(&error) && UnixStream::connect(path).is_err_and(is_refused) => {
            std::fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        result => result,
    }
}

fn spawn(runtime: Runtime, sockets: Sockets, shared: Shared) -> io::Result<JoinHandle<()>> {
    thread::Builder::new()
        .name(THREAD.to_owned())
        .spawn(move || runtime.block_on(run(sockets, shared)))
}

async fn run(sockets: Sockets, shared: Shared) {
    let Shared {
        queue,
        buffer,
        topic,
        form,
    } = shared;
    let mut publishing = JoinSet::new();
    let mut replaying = JoinSet::new();
    let subscriber = {
        let buffer = Arc::clone(&buffer);
        move |stream| peers::subscriber(stream, Arc::clone(&buffer), Arc::clone(&topic))
    };
    match sockets.publish {
        Publish::Listen(listener) => {
            publishing.spawn(accept(listener, Arc::clone(&buffer), subscriber));
        }
        Publish::Connect(endpoint) => {
            publishing.spawn(connect(endpoint, Arc::clone(&buffer), subscriber));
        }
    }
    if let Some(listener) = sockets.replay {
        let source = Arc::clone(&buffer);
        let replay = move |stream| peers::replay(stream, Arc::clone(&source));
        replaying.spawn(accept(listener, Arc::clone(&buffer), replay));
    }
    while let Some(batches) = queue.take().await {
        for batch in batches {
            buffer.append(Batch {
                sequence: batch.sequence,
                payload: form.batch(batch.seconds, &batch.events),
            });
            yield_now().await;
        }
    }
    buffer.close();
    // Subscribers end after their last batch; those that do not in time, and replays, end with their sets.
    let _ = timeout(LINGER, publishing.join_next()).await;
}

/// Serves everybody who connects until the buffer is closed, then waits for those who are still reading.
async fn accept<F, S>(listener: Listener, buffer: Arc<Buffer>, serve: F)
where
    F: Fn(Box<dyn Stream>) -> S,
    S: Future<Output = Result<(), ZmtpError>> + Send + 'static,
{
    let listener = match AsyncListener::new(listener) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "kv events cannot be served");
            return;
        }
    };
    let mut peers = JoinSet::new();
    loop {
        tokio::select! {
            stream = listener.accept() => match stream {
                Ok(stream) if peers.len() < MAX_PEERS => {
                    peers.spawn(log_end(serve(stream)));
                }
                Ok(_) => tracing::warn!(max = MAX_PEERS, "too many connections for kv events; one was closed"),
                Err(error) => {
                    tracing::warn!(%error, "a connection for kv events failed");
                    // Out of file descriptors, mostly: give others time to close some.
                    sleep(FIRST_RETRY).await;
                }
            },
            Some(_) = peers.join_next() => {}
            () = buffer.closed() => break,
        }
    }
    while peers.join_next().await.is_some() {}
}

/// Connects to one subscriber that listens, and again whenever the connection ends, until the buffer is closed.
async fn connect<F, S>(endpoint: Endpoint, buffer: Arc<Buffer>, serve: F)
where
    F: Fn(Box<dyn Stream>) -> S,
    S: Future<Output = Result<(), ZmtpError>> + Send + 'static,
{
    let Endpoint::Tcp { host, port } = &endpoint else {
        return; // Paths are listened on.
    };
    let mut wait = FIRST_RETRY;
    loop {
        let attempt = tokio::net::TcpStream::connect((host.as_str(), *port));
        let stream = tokio::select! {
            stream = attempt => stream,
            () = buffer.closed() => return,
        };
        match stream {
            Ok(stream) => {
                wait = FIRST_RETRY;
                // Small messages should not wait for more; without it they are only later.
                let _ = stream.set_nodelay(true);
                log_end(serve(Box::new(stream))).await;
            }
            Err(error) => {
                tracing::debug!(%endpoint, %error, "no connection for kv events yet");
            }
        }
        tokio::select! {
            () = sleep(wait) => wait = LAST_RETRY.min(wait * 2),
            () = buffer.closed() => return,
        }
    }
}

async fn log_end(served: impl Future<Output = Result<(), ZmtpError>>) {
    match served.await {
        Ok(()) | Err(ZmtpError::Closed) => {}
        Err(error) => tracing::debug!(%error, "a connection for kv events ended"),
    }
}

enum AsyncListener {
    Tcp(tokio::net::TcpListener),
    #[cfg(unix)]
    Ipc(tokio::net::UnixListener),
}

impl AsyncListener {
    fn new(listener: Listener) -> io::Result<Self> {
        match listener {
            Listener::Tcp(listener) => tokio::net::TcpListener::from_std(listener).map(Self::Tcp),
            #[cfg(unix)]
            Listener::Ipc(listener) => tokio::net::UnixListener::from_std(listener).map(Self::Ipc),
        }
    }

    async fn accept(&self) -> io::Result<Box<dyn Stream>> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok(Box::new(stream))
            }
            #[cfg(unix)]
            Self::Ipc(listener) => Ok(Box::new(listener.accept().await?.0)),
        }
    }
}
