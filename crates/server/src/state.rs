//! What all handlers share.

use std::sync::{Arc, OnceLock};

use tokio::sync::Semaphore;

use crate::config::ServerConfig;
use crate::engine_thread::EngineHandle;
use crate::error::ApiError;
use crate::generation::unix_now;
use crate::lifecycle::{InFlight, Lifecycle, Phase};
use crate::metrics::Metrics;
use crate::model::Model;

/// What all handlers share; cheap to clone.
#[derive(Clone)]
pub(crate) struct AppState(Arc<Shared>);

struct Shared {
    config: ServerConfig,
    lifecycle: Lifecycle,
    metrics: Arc<Metrics>,
    engine: EngineHandle,
    model: OnceLock<Model>,
    /// Requests that are rendered and tokenised at a time: long prompts are work for a processor.
    preparing: Arc<Semaphore>,
    /// Unix time of the start, in seconds.
    started_unix: u64,
}

impl AppState {
    pub(crate) fn new(
        config: ServerConfig,
        lifecycle: Lifecycle,
        metrics: Arc<Metrics>,
        engine: EngineHandle,
    ) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self(Arc::new(Shared {
            config,
            lifecycle,
            metrics,
            engine,
            model: OnceLock::new(),
            preparing: Arc::new(Semaphore::new(threads)),
            started_unix: unix_now(),
        }))
    }

    pub(crate) fn config(&self) -> &ServerConfig {
        &self.0.config
    }

    /// Unix time of the start, in seconds.
    pub(crate) fn started_unix(&self) -> u64 {
        self.0.started_unix
    }

    pub(crate) fn lifecycle(&self) -> &Lifecycle {
        &self.0.lifecycle
    }

    pub(crate) fn metrics(&self) -> &Arc<Metrics> {
        &self.0.metrics
    }

    pub(crate) fn engine(&self) -> &EngineHandle {
        &self.0.engine
    }

    /// The model has been loaded.
    pub(crate) fn set_model(&self, model: Model) {
        // It is loaded once.
        let _ = self.0.model.set(model);
    }

    /// The model, also while it is not served yet.
    pub(crate) fn loaded_model(&self) -> Option<&Model> {
        self.0.model.get()
    }

    /// The model that is served.
    ///
    /// # Errors
    /// While it is being loaded.
    pub(crate) fn model(&self) -> Result<&Model, ApiError> {
        match self.0.lifecycle.phase() {
            Phase::Loading(_) => Err(ApiError::loading()),
            Phase::Failed => Err(ApiError::engine_down()),
            Phase::Ready | Phase::Draining => self.0.model.get().ok_or_else(ApiError::loading),
        }
    }

    /// Lets a request for an answer in, and counts it until the guard is dropped.
    ///
    /// # Errors
    /// While the server loads, drains or fails.
    pub(crate) fn admit(&self) -> Result<InFlight, ApiError> {
        // Counted first: a drain that begins now waits for it.
        let guard = self.0.lifecycle.request();
        match self.0.lifecycle.phase() {
            Phase::Loading(_) => Err(ApiError::loading()),
            Phase::Draining => Err(ApiError::draining()),
            Phase::Failed => Err(ApiError::engine_down()),
            Phase::Ready => Ok(guard),
        }
    }

    /// Whether this name is one of the served model's.
    ///
    /// # Errors
    /// If it is not.
    pub(crate) fn check_model_name(&self, name: Option<&str>) -> Result<String, ApiError> {
        let names = &self.0.config.model_names;
        let own = names.first().cloned().unwrap_or_default();
        match name {
            None | Some("") => Ok(own),
            Some(name) if names.iter().any(|known| known == name) => Ok(name.to_owned()),
            Some(name) => Err(ApiError {
                param: Some("model".to_owned()),
                ..ApiError::new(
                    crate::error::ErrorKind::NotFound,
                    format!(
                        "the model {:?} is not served here: served is {}",
                        shorten(name),
                        names.join(", ")
                    ),
                )
            }
            .with_code("model_not_found")),
        }
    }

    /// Runs work for a processor beside the threads that answer probes; not more at a time than there are processors.
    ///
    /// # Errors
    /// What the work fails with.
    pub(crate) async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let permit = self.0.preparing.clone().acquire_owned().await;
        let state = self.clone();
        let span = tracing::Span::current();
        let result = tokio::task::spawn_blocking(move || {
            // Kept until the work is done, also if its client has gone meanwhile.
            let _permit = permit;
            span.in_scope(|| work(&state))
        });
        let result = result.await;
        result.unwrap_or_else(|panic| Err(ApiError::internal(&panic)))
    }
}

/// A text of the request in a message: not more than a line of it.
pub(crate) fn shorten(text: &str) -> String {
    const MOST: usize = 80;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
