//! The endpoints, a folder for each protocol.

pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod content;
pub(crate) mod fields;
pub(crate) mod info;
pub(crate) mod logprobs;
pub(crate) mod messages;
pub(crate) mod models;
pub(crate) mod openapi;
pub(crate) mod probes;
pub(crate) mod responses;
pub(crate) mod tokenize;
pub(crate) mod usage;
