//! What all protocols have in common: connections, routes, keys, bodies, events, the log.

pub(crate) mod auth;
pub(crate) mod body;
pub(crate) mod listener;
pub(crate) mod observe;
pub(crate) mod router;
pub(crate) mod sse;
