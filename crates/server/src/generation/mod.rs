//! From a request in any protocol to its answers: one form for all.
//!
//! [`spec`] says what is asked of the engine and how its tokens are read, [`Generation`] is the work under way: a stream of
//! [`Update`]s. Dropping a generation cancels it, in whatever state it is; so a client that goes away costs one step at most.

pub(crate) mod choice;
pub(crate) mod constraint;
pub(crate) mod sampling;
pub(crate) mod spec;
pub(crate) mod structure;
pub(crate) mod update;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use glim_engine::{FinishReason as EngineFinish, GenerateRequest};
use glim_text::Piece;

use self::choice::Choice;
use self::spec::Spec;
use self::update::{Delta, Finish, TokenLogprob, Update, Usage};
use crate::engine_thread::{Routed, Running, What};
use crate::error::ApiError;
use crate::lifecycle::InFlight;
use crate::metrics::{CancelState, Metrics, RequestTimes};
use crate::otel::{self, GenerationTrace};
use crate::state::AppState;

/// Answers on their way.
#[derive(Debug)]
pub(crate) struct Generation {
    /// Without the prefix that a protocol puts before it.
    pub(crate) id: String,
    /// Unix time, in seconds.
    pub(crate) created: u64,
    /// The served model's name.
    pub(crate) model: String,
    /// What was asked.
    pub(crate) spec: Arc<Spec>,
    running: Running,
    choices: Vec<Choice>,
    /// By prompt, once the first of its answers has started.
    cached_tokens: Vec<Option<usize>>,
    clock: Clock,
    /// By choice.
    last_tokens: Vec<Option<Instant>>,
    metrics: Arc<Metrics>,
    /// Counts until the answers are sent, or the client has gone.
    _in_flight: InFlight,
    span: tracing::Span,
    outcome: Outcome,
}

/// When things happened.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    pub(crate) arrived: Instant,
    pub(crate) queued: Instant,
    pub(crate) started: Option<Instant>,
    pub(crate) first_token: Option<Instant>,
    pub(crate) last_token: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    UnderWay,
    Finished(&'static str),
    Failed,
}

/// Queues what is asked.
///
/// # Errors
/// If the engine refuses: the queue is full, or the request can never fit.
pub(crate) async fn start(
    state: &AppState,
    spec: Spec,
    arrived: Instant,
) -> Result<Generation, ApiError> {
    let in_flight = state.admit()?;
    let model = state.model()?;
    let spec = Arc::new(spec);
    let metrics = state.metrics().clone();
    let choices = (0..spec.choices())
        .map(|index| Choice::new(index, spec.reading.clone(), &model.tokenizer))
        .collect();
    let deadline = arrived + state.config().request_timeout;
    let answers = |request: &GenerateRequest| {
        let mut request = request.clone();
        request.deadline = Some(deadline);
        (0..spec.n)
            .map(|choice| {
                let mut request = request.clone();
                request.sampling.choice = choice;
                request
            })
            .collect::<Vec<_>>()
    };
    let requests = spec.prompts.iter().flat_map(answers).collect();
    let queued = Instant::now();
    let running = state.engine().submit(requests).await.inspect_err(|error| {
        metrics.rejected(error.kind.status().as_u16());
    })?;
    for request in &spec.prompts {
        metrics.request_received(spec.n as usize, request.prompt.len(), request.max_tokens);
    }
    Ok(Generation {
        id: spec.id.clone(),
        created: unix_now(),
        model: spec.model.clone(),
        running,
        choices,
        cached_tokens: vec![None; spec.prompts.len()],
        last_tokens: vec![None; spec.choices() as usize],
        clock: Clock {
            arrived,
            queued,
            started: None,
            first_token: None,
            last_token: None,
        },
        metrics,
        _in_flight: in_flight,
        span: tracing::Span::current(),
        outcome: Outcome::UnderWay,
        spec,
    })
}

impl Generation {
    /// What has happened since the last call, at least one thing; `None` once all answers are whole, or after a failure.
    ///
    /// Deltas of one choice that have piled up are joined.
    pub(crate) async fn next(&mut self) -> Option<Vec<Update>> {
        if self.outcome != Outcome::UnderWay {
            return None;
        }
        let mut updates = Vec::new();
        while updates.is_empty() {
            match self.running.next().await {
                Some(routed) => self.take(routed, &mut updates),
                // Its thread has panicked, or it would have said why.
                None => self.fail(ApiError::engine_down(), &mut updates),
            }
        }
        while self.outcome == Outcome::UnderWay
            && let Some(routed) = self.running.try_next()
        {
            self.take(routed, &mut updates);
        }
        Some(updates)
    }

    /// Runs to the end: each choice's updates joined into one [`Delta`], and how it finished.
    ///
    /// # Errors
    /// What the generation failed with.
    pub(crate) async fn finish(&mut self) -> Result<Vec<(Delta, Finish)>, ApiError> {
        let mut answers: Vec<(Delta, Option<Finish>)> =
            self.choices.iter().map(|_| Default::default()).collect();
        while let Some(updates) = self.next().await {
            for update in updates {
                match update {
                    Update::Delta(delta) => {
                        let (whole, _) = &mut answers[delta.choice as usize];
                        whole.choice = delta.choice;
                        append(whole, delta);
                    }
                    Update::Finished { choice, finish } => {
                        answers[choice as usize].1 = Some(finish);
                    }
                    Update::Failed(error) => return Err(error),
                }
            }
        }
        let whole = answers.into_iter();
        let whole = whole.map(|(delta, finish)| Some((delta, finish?)));
        whole
            .collect::<Option<_>>()
            .ok_or_else(ApiError::engine_down)
    }

    /// Counts so far.
    pub(crate) fn usage(&self) -> Usage {
        Usage {
            prompt_tokens: self.spec.prompt_tokens(),
            cached_tokens: self.cached_tokens.iter().flatten().sum(),
            completion_tokens: self.choices.iter().map(Choice::tokens).sum(),
            reasoning_tokens: self.choices.iter().map(Choice::reasoning_tokens).sum(),
        }
    }

    /// When things happened.
    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    fn take(&mut self, routed: Routed, updates: &mut Vec<Update>) {
        let Routed { choice, at, what } = routed;
        match what {
            What::Started { cached_tokens } => {
                if self.clock.started.is_none() {
                    self.clock.started = Some(at);
                    let queued = self.clock.queued;
                    self.metrics.scheduled(at.saturating_duration_since(queued));
                }
                // Further answers find the prompt of the first.
                let prompt = (choice / self.spec.n) as usize;
                self.cached_tokens[prompt].get_or_insert(cached_tokens);
            }
            What::Token { token, logprobs } => {
                self.tick(choice, at);
                let logprob = logprobs.map(|logprobs| TokenLogprob {
                    token,
                    logprob: logprobs.token,
                    top: logprobs.top,
                });
                let step = self.choices[choice as usize].push(token, logprob);
                self.step(choice, step, updates);
            }
            What::Finished {
                reason: EngineFinish::Deadline,
                ..
            } => self.fail(ApiError::deadline(), updates),
            What::Finished { reason, stop_token } => {
                let at_limit = reason == EngineFinish::Length;
                let step = self.choices[choice as usize].end(at_limit, stop_token);
                self.step(choice, step, updates);
            }
            What::Failed(error) => self.fail(error, updates),
        }
    }

    /// Keeps the times of a token.
    fn tick(&mut self, choice: u32, at: Instant) {
        match self.last_tokens[choice as usize].replace(at) {
            Some(last) => self.metrics.inter_token(at.saturating_duration_since(last)),
            None => {
                self.clock.first_token.get_or_insert(at);
                let started = self.clock.started.unwrap_or(self.clock.queued);
                let prefill = at.saturating_duration_since(started);
                let ttft = at.saturating_duration_since(self.clock.arrived);
                self.metrics.first_token(ttft, prefill);
            }
        }
        self.clock.last_token = Some(at);
    }

    fn step(&mut self, choice: u32, step: choice::Step, updates: &mut Vec<Update>) {
        let choice::Step { delta, finish } = step;
        match updates.last_mut() {
            Some(Update::Delta(last)) if last.choice == choice => append(last, delta),
            _ => updates.push(Update::Delta(delta)),
        }
        if let Some(finish) = finish {
            self.running.cancel(choice);
            let reason = finish.reason.as_str();
            updates.push(Update::Finished { choice, finish });
            if self.running.live() == 0 {
                self.end(Outcome::Finished(reason));
            }
        }
    }

    fn fail(&mut self, error: ApiError, updates: &mut Vec<Update>) {
        self.end(Outcome::Failed);
        // The other choices are of no use without this one.
        (0..self.spec.choices()).for_each(|choice| self.running.cancel(choice));
        let _in_span = self.span.enter();
        tracing::warn!(
            status = error.kind.status().as_u16(),
            error = %error,
            "generation failed"
        );
        updates.push(Update::Failed(error));
    }

    fn end(&mut self, outcome: Outcome) {
        self.outcome = outcome;
    }

    /// Which state it is in, for the metric of cancellations.
    fn state(&self) -> CancelState {
        match (self.clock.started, self.clock.first_token) {
            (None, _) => CancelState::Queued,
            (Some(_), None) => CancelState::Prefill,
            (Some(_), Some(_)) => CancelState::Decode,
        }
    }

    fn times(&self) -> RequestTimes {
        let Clock {
            arrived,
            queued,
            started,
            first_token,
            last_token,
        } = self.clock;
        let between =
            |from: Option<Instant>, to: Option<Instant>| Some(to?.saturating_duration_since(from?));
        RequestTimes {
            e2e: arrived.elapsed(),
            queue: between(Some(queued), started).unwrap_or_else(|| queued.elapsed()),
            prefill: between(started, first_token).unwrap_or(Duration::ZERO),
            decode: between(first_token, last_token).unwrap_or(Duration::ZERO),
            answers: self.choices.iter().map(Choice::tokens).collect(),
        }
    }
}

/// The one place where a generation is counted and logged, however it ended.
impl Drop for Generation {
    fn drop(&mut self) {
        let times = self.times();
        let reason = match self.outcome {
            Outcome::Finished(reason) => reason,
            Outcome::Failed => "error",
            Outcome::UnderWay => {
                self.metrics.cancelled(self.state());
                "abort"
            }
        };
        self.metrics.finished(&times, reason);
        let usage = self.usage();
        let first = self.clock.first_token;
        let ttft = first.map(|at| at.saturating_duration_since(self.clock.arrived));
        let ms = |time: Duration| time.as_micros() as f64 / 1e3;
        let _in_span = self.span.enter();
        tracing::info!(
            id = self.id,
            model = self.model,
            finish_reason = reason,
            n = self.choices.len(),
            prompt_tokens = usage.prompt_tokens,
            cached_tokens = usage.cached_tokens,
            completion_tokens = usage.completion_tokens,
            queue_ms = ms(times.queue),
            ttft_ms = ttft.map(ms),
            decode_ms = ms(times.decode),
            e2e_ms = ms(times.e2e),
            "generation"
        );
        let trace = GenerationTrace {
            id: &self.id,
            model: &self.model,
            finish_reason: reason,
            prompt_tokens: usage.prompt_tokens,
            cached_tokens: usage.cached_tokens,
            completion_tokens: usage.completion_tokens,
            arrived: self.clock.arrived,
            started: self.clock.started,
            first_token: self.clock.first_token,
            last_token: self.clock.last_token,
        };
        otel::generation(&self.span, &trace);
    }
}

/// Puts `more` after what is there; pieces of one kind that meet become one.
fn append(whole: &mut Delta, more: Delta) {
    whole.logprobs.extend(more.logprobs);
    whole.token_ids.extend(more.token_ids);
    for piece in more.pieces {
        match (whole.pieces.last_mut(), piece) {
            (Some(Piece::Content(last)), Piece::Content(text))
            | (Some(Piece::Reasoning(last)), Piece::Reasoning(text))
            | (Some(Piece::CallArguments(last)), Piece::CallArguments(text)) => *last += &text,
            (_, piece) => whole.pieces.push(piece),
        }
    }
}

/// Unix time, in seconds.
pub(crate) fn unix_now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
