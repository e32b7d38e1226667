//! The service as its clients see it: a real server on a real socket, with the built-in model.
#![allow(clippy::unwrap_used, reason = "tests")]

mod chat;
mod completions;
mod edges;
mod faults;
mod harness;
mod http;
mod invariance;
mod life;
mod stops;
mod stream;
mod structure;
mod tools;
