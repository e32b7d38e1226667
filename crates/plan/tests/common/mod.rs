//! Shared by the integration tests: a small valid model, seeded weights, a driver that fills step inputs, and a way to feed
//! any values to one operation.
#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(clippy::unwrap_used, reason = "tests")]

pub(crate) mod close;
pub(crate) mod drive;
pub(crate) mod edit;
pub(crate) mod feed;
pub(crate) mod toy;
pub(crate) mod weights;
