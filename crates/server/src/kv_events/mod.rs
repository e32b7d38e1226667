//! Events of the prefix cache.

use std::sync::Arc;

use crate::metrics::Metrics;

/// Where to publish.
#[derive(Debug, Clone)]
pub struct KvEventsConfig {}

/// Why nothing can be published.
#[derive(Debug, thiserror::Error)]
#[error("not there yet")]
pub struct KvEventsError;

pub(crate) struct KvPublisher;

impl KvPublisher {
    pub(crate) async fn start(_: KvEventsConfig, _: Arc<Metrics>) -> Result<Self, KvEventsError> {
        Err(KvEventsError)
    }

    pub(crate) fn publish(&self, _: Vec<glim_engine::KvEvent>) {}
}
