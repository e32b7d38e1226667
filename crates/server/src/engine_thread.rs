//! The engine's own thread: requests go in by a channel, what becomes of them comes out by another. Nothing here is async but the
//! ends that the HTTP side holds; the loop never waits for a client.
//!
//! Between two steps the loop takes all commands that have come. A request whose events nobody listens to any more is cancelled at
//! the next step, so a client that has gone costs at most one.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Instant;

use glim_engine::{
    Engine, EngineError, Event, FinishReason, GenerateRequest, Logprobs, RequestId,
};
use glim_text::TokenId;
use tokio::sync::{mpsc, oneshot};

use crate::error::ApiError;
use crate::kv_events::KvPublisher;
use crate::lifecycle::Lifecycle;
use crate::metrics::Metrics;

/// Name of the thread.
pub(crate) const THREAD: &str = "glim-engine";

/// What happened to one choice of a generation, and when.
#[derive(Debug)]
pub(crate) struct Routed {
    pub(crate) choice: u32,
    pub(crate) at: Instant,
    pub(crate) what: What,
}

/// What happened to a request.
#[derive(Debug)]
pub(crate) enum What {
    /// It runs.
    Started { cached_tokens: usize },
    /// A token was drawn.
    Token {
        token: TokenId,
        logprobs: Option<Logprobs>,
    },
    /// It is over.
    Finished {
        reason: FinishReason,
        stop_token: Option<TokenId>,
    },
    /// It failed.
    Failed(ApiError),
}

enum Command {
    Submit {
        requests: Vec<GenerateRequest>,
        events: mpsc::UnboundedSender<Routed>,
        reply: oneshot::Sender<Result<Vec<RequestId>, EngineError>>,
    },
    Cancel(RequestId),
    /// End all requests with this error, and the loop.
    Stop(ApiError),
}

/// The front door of the engine's thread.
#[derive(Debug, Clone)]
pub(crate) struct EngineHandle {
    commands: Sender<Command>,
}

/// The other end of an [`EngineHandle`], for [`run`].
pub(crate) struct Commands(Receiver<Command>);

/// A handle, and the end that the thread takes.
pub(crate) fn front_door() -> (EngineHandle, Commands) {
    let (commands, receiver) = channel();
    (EngineHandle { commands }, Commands(receiver))
}

/// The requests of one generation, in the engine. Dropping it cancels those that are not over.
#[derive(Debug)]
pub(crate) struct Running {
    events: mpsc::UnboundedReceiver<Routed>,
    /// By choice; `None`: it is over.
    ids: Vec<Option<RequestId>>,
    handle: EngineHandle,
}

impl EngineHandle {
    /// Queues the requests of one generation, all or none; their places are their choices.
    ///
    /// # Errors
    /// As [`Engine::submit_all`], and if the engine is gone.
    pub(crate) async fn submit(&self, requests: Vec<GenerateRequest>) -> Result<Running, ApiError> {
        let (events, receiver) = mpsc::unbounded_channel();
        let (reply, answer) = oneshot::channel();
        let command = Command::Submit {
            requests,
            events,
            reply,
        };
        self.commands
            .send(command)
            .map_err(|_| ApiError::engine_down())?;
        let ids = answer.await.map_err(|_| ApiError::engine_down())??;
        Ok(Running {
            events: receiver,
            ids: ids.into_iter().map(Some).collect(),
            handle: self.clone(),
        })
    }

    /// Ends all requests with this error, and the thread.
    pub(crate) fn stop(&self, error: ApiError) {
        // If it is gone, that is what was wanted.
        let _ = self.commands.send(Command::Stop(error));
    }

    fn cancel(&self, id: RequestId) {
        let _ = self.commands.send(Command::Cancel(id));
    }
}

impl Running {
    /// The next thing that happens; `None` once all is over, or the engine is gone.
    pub(crate) async fn next(&mut self) -> Option<Routed> {
        let routed = self.events.recv().await?;
        self.note(&routed);
        Some(routed)
    }

    /// The same, if it has happened already.
    pub(crate) fn try_next(&mut self) -> Option<Routed> {
        let routed = self.events.try_recv().ok()?;
        self.note(&routed);
        Some(routed)
    }

    fn note(&mut self, routed: &Routed) {
        if matches!(routed.what, What::Finished { .. } | What::Failed(_)) {
            self.forget(routed.choice);
        }
    }

    fn forget(&mut self, choice: u32) -> Option<RequestId> {
        self.ids.get_mut(choice as usize)?.take()
    }

    /// Ends a choice of which no more is wanted.
    pub(crate) fn cancel(&mut self, choice: u32) {
        if let Some(id) = self.forget(choice) {
            self.handle.cancel(id);
        }
    }

    /// Choices that are not over.
    pub(crate) fn live(&self) -> usize {
        self.ids.iter().flatten().count()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for id in self.ids.iter_mut().filter_map(Option::take) {
            self.handle.cancel(id);
        }
    }
}

/// What the loop tells others.
pub(crate) struct Observers {
    pub(crate) lifecycle: Lifecycle,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) kv_events: Option<KvPublisher>,
}

/// Where a request's events go.
struct Route {
    events: mpsc::UnboundedSender<Routed>,
    choice: u32,
}

/// Whether the loop goes on.
enum Next {
    Step,
    End,
}

struct Loop {
    engine: Engine,
    observers: Observers,
    routes: HashMap<RequestId, Route>,
}

/// Runs the engine until it is told to stop.
///
/// # Errors
/// If a step fails: the engine is of no more use then. Every request has been told.
pub(crate) fn run(
    engine: Engine,
    commands: Commands,
    observers: Observers,
) -> Result<(), EngineError> {
    let mut this = Loop {
        engine,
        observers,
        routes: HashMap::new(),
    };
    loop {
        if this.engine.is_idle() {
            this.observers.lifecycle.idle();
            this.observe();
            // All handles are gone: nobody will ever ask again.
            let Ok(command) = commands.0.recv() else {
                return Ok(());
            };
            if let Next::End = this.command(command) {
                return Ok(());
            }
        }
        loop {
            match commands.0.try_recv() {
                Ok(command) => {
                    if let Next::End = this.command(command) {
                        return Ok(());
                    }
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return Ok(()),
            }
        }
        if !this.engine.is_idle() {
            this.step()?;
        }
    }
}

impl Loop {
    fn command(&mut self, command: Command) -> Next {
        match command {
            Command::Submit {
                requests,
                events,
                reply,
            } => {
                let result = self.engine.submit_all(requests);
                if let Ok(ids) = &result {
                    for (choice, id) in (0..).zip(ids) {
                        let events = events.clone();
                        self.routes.insert(*id, Route { events, choice });
                    }
                }
                // Whoever asked may have gone meanwhile.
                if let Err(Ok(ids)) = reply.send(result) {
                    ids.into_iter().for_each(|id| self.cancel(id));
                }
                self.observe();
                Next::Step
            }
            Command::Cancel(id) => {
                self.cancel(id);
                Next::Step
            }
            Command::Stop(error) => {
                self.fail_all(&error);
                self.observe();
                Next::End
            }
        }
    }

    fn cancel(&mut self, id: RequestId) {
        self.routes.remove(&id);
        self.engine.cancel(id);
    }

    fn step(&mut self) -> Result<(), EngineError> {
        self.observers.lifecycle.step_begins();
        let begin = Instant::now();
        let events = match self.engine.step() {
            Ok(events) => events,
            Err(error) => {
                let told = ApiError::internal(&error);
                self.fail_all(&told);
                return Err(error);
            }
        };
        let at = Instant::now();
        for event in events {
            // What starts in this step was waiting until it began.
            let at = match event {
                Event::Started { .. } => begin,
                _ => at,
            };
            self.route(event, at);
        }
        let stats = self.engine.stats();
        let metrics = &self.observers.metrics;
        metrics.step(&stats, at.duration_since(begin));
        if let Some(publisher) = &self.observers.kv_events {
            publisher.publish(self.engine.take_kv_events());
        }
        Ok(())
    }

    fn route(&mut self, event: Event, at: Instant) {
        let (id, what) = match event {
            Event::Started { id, cached_tokens } => (id, What::Started { cached_tokens }),
            Event::Token {
                id,
                token,
                logprobs,
            } => (id, What::Token { token, logprobs }),
            Event::Preempted { .. } => return,
            Event::Finished {
                id,
                reason,
                stop_token,
            } => (id, What::Finished { reason, stop_token }),
            Event::Failed { id, error } => {
                if let EngineError::CorruptLogits { .. } = error {
                    self.observers.metrics.corrupted();
                }
                (id, What::Failed(error.into()))
            }
        };
        let is_over = matches!(what, What::Finished { .. } | What::Failed(_));
        let Some(route) = self.routes.get(&id) else {
            return;
        };
        let choice = route.choice;
        let gone = route.events.send(Routed { choice, at, what }).is_err();
        if gone && !is_over {
            self.cancel(id);
        } else if is_over {
            self.routes.remove(&id);
        }
    }

    fn fail_all(&mut self, error: &ApiError) {
        let at = Instant::now();
        for (id, route) in self.routes.drain() {
            self.engine.cancel(id);
            let what = What::Failed(error.clone());
            let choice = route.choice;
            // Whoever has gone need not be told.
            let _ = route.events.send(Routed { choice, at, what });
        }
    }

    fn observe(&self) {
        self.observers.metrics.engine(&self.engine.stats());
    }
}
