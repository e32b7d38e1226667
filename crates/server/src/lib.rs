//! Stub.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

#[cfg(test)]
mod web;
