//! The HTTP service: an engine behind the protocols that clients, dashboards and routers already speak.
//!
//! Knows HTTP and wire types; does not know how a model is found or loaded: [`Server::run`] is given that as a function, and
//! answers probes while it runs. The way of a request: [`http::router`] leads it to its protocol in [`api`], which checks it and
//! makes a [`generation::spec::Spec`] of it; [`generation`] queues that in the [`engine_thread`] and turns tokens into pieces; the
//! protocol prints these, whole or as events ([`http::sse`]).
//!
//! Two kinds of threads: tokio's, which do no work that grows with a prompt (that is `AppState::work`'s), and the engine's.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod api;
mod config;
mod engine_thread;
mod error;
mod generation;
mod http;
mod kv_events;
mod lifecycle;
mod metrics;
mod model;
mod otel;
mod server;
mod state;
mod web;

pub use config::{ApiKeys, ApiKeysError, SamplingDefaults, ServerConfig};
pub use kv_events::{BUFFER_BATCHES, KvEncoding, KvEventsConfig, KvEventsError, KvHashes};
pub use lifecycle::{Lifecycle, Look, Phase};
pub use model::{Loaded, ModelInfo, TypeShare};
#[cfg(feature = "otel")]
pub use otel::{Otel, OtelError};
pub use server::{ServeError, Server, Stopper};
