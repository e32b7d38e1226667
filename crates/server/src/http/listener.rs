//! Connections: HTTP/1.1 over TCP, a bounded number of them, each with a bounded time for its headers.
//!
//! TLS is a proxy's: docs/serving.md says how.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

/// Bytes of a request's head.
const MAX_HEAD: usize = 64 << 10;
/// Headers of a request.
const MAX_HEADERS: usize = 100;
/// Time for a request's head, from the connection's start or the response before.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause after a failure to accept: the system is out of something, most likely file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Time that connections get to end once no request is served any more.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Serves until `stop` says true; then no connection is accepted, and those that are there end after the response under way.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    max_connections: usize,
    mut stop: watch::Receiver<bool>,
) {
    let slots = Arc::new(Semaphore::new(max_connections));
    let graceful = GracefulShutdown::new();
    loop {
        let accepted = async {
            // It is never closed.
            let slot = slots.clone().acquire_owned().await.ok()?;
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    return None;
                }
            };
            Some((slot, stream, peer))
        };
        let accepted = tokio::select! {
            accepted = accepted => accepted,
            stopped = stop.wait_for(|stop| *stop) => {
                drop(stopped);
                break;
            }
        };
        let Some((slot, stream, peer)) = accepted else {
            continue;
        };
        let watcher = graceful.watcher();
        let connection = connection(stream, peer, router.clone());
        tokio::spawn(async move {
            if let Some(connection) = connection {
                // A client that breaks the protocol or goes away is its own affair.
                if let Err(error) = watcher.watch(connection).await {
                    tracing::debug!(%error, %peer, "connection ended");
                }
            }
            drop(slot);
        });
    }
    drop(listener);
    if tokio::time::timeout(CLOSE_TIMEOUT, graceful.shutdown())
        .await
        .is_err()
    {
        tracing::debug!("connections were cut");
    }
}

type Connection = http1::Connection<TokioIo<TcpStream>, TowerToHyperService<Router>>;

fn connection(stream: TcpStream, peer: SocketAddr, router: Router) -> Option<Connection> {
    // Small events shall not wait for more.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, %peer, "connection ended");
        return None;
    }
    let service = TowerToHyperService::new(router);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD)
        .max_headers(MAX_HEADERS)
        .serve_connection(TokioIo::new(stream), service);
    Some(connection)
}
