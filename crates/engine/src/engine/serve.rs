//! Requests in, events out: the queue's front door, and what a tick does.

use std::ops::Range;
use std::time::Instant;

use glim_model::names;
use glim_plan::StepResults;
use glim_plan::sample::{TOKEN_CORRUPT, TOKEN_NONE_ALLOWED};
use glim_text::TokenId;

use super::ahead::{InFlight, Row, Which};
use super::{Active, Engine};
use crate::error::EngineError;
use crate::event::{Event, FinishReason};
use crate::request::GenerateRequest;
use crate::sampler::{Drawn, History, draw};
use crate::scheduler::{RequestId, Submission};
use crate::stats::StepSize;
use crate::steps::{BatchRow, CARRIED, Draw, Head};

impl Engine {
    /// Queues a request.
    ///
    /// # Errors
    /// If it could never run: empty, beyond the context or the cache, or with parameters that mean nothing. Or if the queue is full.
    pub fn submit(&mut self, request: GenerateRequest) -> Result<RequestId, EngineError> {
        self.check(&request)?;
        self.scheduler.check_queue(1)?;
        Ok(self.enqueue(request))
    }

    /// Queues all of them in their order, or none: the choices of one question.
    ///
    /// # Errors
    /// As [`Self::submit`], for the first that is refused.
    pub fn submit_all(
        &mut self,
        requests: Vec<GenerateRequest>,
    ) -> Result<Vec<RequestId>, EngineError> {
        requests
            .iter()
            .try_for_each(|request| self.check(request))?;
        self.scheduler.check_queue(requests.len())?;
        Ok(requests.into_iter().map(|r| self.enqueue(r)).collect())
    }

    /// Ends a request in whatever state, without an event; its blocks are free at once. Says whether there was one.
    pub fn cancel(&mut self, id: RequestId) -> bool {
        self.active.remove(&id);
        self.scheduler.remove(id)
    }

    /// Whether there is nothing to do.
    pub fn is_idle(&self) -> bool {
        self.scheduler.is_idle()
    }

    /// Runs one tick: at most one decode step and one prefill step.
    ///
    /// # Errors
    /// If a step fails as a whole, and the engine with it; a request that fails alone is an [`Event::Failed`].
    pub fn step(&mut self) -> Result<Vec<Event>, EngineError> {
        self.step_at(Instant::now())
    }

    /// The same at a time of the caller's: it is what deadlines are held against.
    ///
    /// # Errors
    /// As [`Self::step`].
    pub fn step_at(&mut self, now: Instant) -> Result<Vec<Event>, EngineError> {
        let tick = self.scheduler.tick(now);
        let mut events = Vec::new();
        for id in tick.expired {
            self.active.remove(&id);
            let (reason, stop_token) = (FinishReason::Deadline, None);
            events.push(Event::Finished {
                id,
                reason,
                stop_token,
            });
        }
        events.extend(tick.preempted.iter().map(|id| Event::Preempted { id: *id }));
        let started = tick.started.iter();
        events.extend(started.map(|(id, cached_tokens)| Event::Started {
            id: *id,
            cached_tokens: *cached_tokens,
        }));
        let size = StepSize {
            prefill_tokens: tick.prefill.iter().map(|(_, range)| range.len()).sum(),
            decode_rows: tick.decode.len(),
        };
        if size != StepSize::default() {
            self.steps_run += 1;
            self.last_step = size;
        }
        let decode = match self.ahead.take() {
            Some(step) => Some(step),
            None => {
                let decode = tick.decode.iter().map(|id| (*id, 1));
                self.start(Which::Decode, decode, &mut events)?
            }
        };
        if let Some(step) = decode {
            if self.launches_ahead && tick.prefill.is_empty() {
                self.ahead = self.start_next(&step, &tick.decode)?;
            }
            self.finish(step, |id| tick.decode.contains(&id), &mut events)?;
        }
        let length = |(id, range): (RequestId, Range<usize>)| (id, range.len());
        let prefill = tick.prefill.into_iter().map(length);
        if let Some(step) = self.start(Which::Prefill, prefill, &mut events)? {
            self.finish(step, |_| true, &mut events)?;
        }
        Ok(events)
    }

    /// Refuses what could never run.
    fn check(&self, request: &GenerateRequest) -> Result<(), EngineError> {
        request.sampling.check()?;
        self.check_prompt(&request.prompt)?;
        let prompt = request.prompt.len();
        let needed = prompt.saturating_add(request.max_tokens.unwrap_or(1));
        if needed > self.context {
            return Err(EngineError::ContextExceeded {
                needed,
                available: self.context,
            });
        }
        // The last token is drawn and never computed.
        let capacity = (prompt + self.limit(request)).saturating_sub(1).max(prompt);
        let blocks = capacity.div_ceil(self.geometry.block_size);
        let kv = self.scheduler.kv();
        if blocks > kv.blocks_total() {
            return Err(EngineError::OutOfBlocks {
                needed: blocks,
                free: kv.blocks_free(),
                total: kv.blocks_total(),
            });
        }
        Ok(())
    }

    /// Tokens of the answer at most.
    fn limit(&self, request: &GenerateRequest) -> usize {
        let rest = self.context.saturating_sub(request.prompt.len());
        request.max_tokens.unwrap_or(rest)
    }

    fn enqueue(&mut self, mut request: GenerateRequest) -> RequestId {
        let limit = self.limit(&request);
        let vocab_size = self.inventory.config().vocab_size;
        let active = Active::new(&mut request, limit, vocab_size);
        let id = self.scheduler.submit(Submission {
            prompt: request.prompt,
            priority: request.priority,
            deadline: request.deadline,
            cache_salt: request.cache_salt,
        });
        self.active.insert(id, active);
        id
    }

    /// Hands over one step of these sequences: each one's next tokens.
    fn start(
        &mut self,
        which: Which,
        work: impl Iterator<Item = (RequestId, usize)>,
        events: &mut Vec<Event>,
    ) -> Result<Option<InFlight>, EngineError> {
        let mut rows = Vec::new();
        for (id, n) in work {
            let draws = self.draws(id, n);
            let answer = self.scheduler.answer_len(id);
            let row = Row { id, n, draws };
            let Some(active) = self.active.get_mut(&id).filter(|_| draws) else {
                rows.push(row);
                continue;
            };
            match active.bind(answer) {
                Ok(()) => rows.push(row),
                Err(error) => self.fail(id, error.into(), events),
            }
        }
        match rows.is_empty() {
            true => Ok(None),
            false => self.hand_over(which, rows, 0).map(Some),
        }
    }

    /// Waits for a step, and takes what came of the requests that `is_there` still knows.
    fn finish(
        &mut self,
        step: InFlight,
        is_there: impl Fn(RequestId) -> bool,
        events: &mut Vec<Event>,
    ) -> Result<(), EngineError> {
        let InFlight { key, ticket, rows } = step;
        let results = self
            .steps
            .get(key.0, key.1)?
            .wait(&mut self.ranks, ticket)?;
        let mut output = 0;
        for Row { id, n, draws } in rows {
            if is_there(id) {
                self.scheduler.computed(id, n);
                if draws {
                    self.token(id, &results, output, events);
                }
            }
            output += usize::from(draws);
        }
        Ok(())
    }

    /// Whether a token is drawn after the next `n` tokens of a request: if they are the last that it has.
    fn draws(&self, id: RequestId, n: usize) -> bool {
        let place = self.scheduler.place(id);
        place
            .is_some_and(|(sequence, _)| sequence.computed() + n == self.scheduler.tokens(id).len())
    }

    /// Writes a step's inputs and hands it over. `under_way`: tokens of each sequence that the step before computes.
    pub(super) fn hand_over(
        &mut self,
        which: Which,
        work: Vec<Row>,
        under_way: usize,
    ) -> Result<InFlight, EngineError> {
        let next = |row: &Row| {
            let active = self.active.get(&row.id);
            [active.and_then(|a| a.next).unwrap_or(CARRIED)]
        };
        let next: Vec<[TokenId; 1]> = work.iter().map(next).collect();
        let world_size = self.inventory.world_size();
        let mut head = Head::Tokens;
        let mut batch = Vec::with_capacity(work.len());
        for (Row { id, n, draws }, next) in work.iter().zip(&next) {
            let (Some(active), Some((sequence, slot))) =
                (self.active.get(id), self.scheduler.place(*id))
            else {
                continue;
            };
            let from = sequence.computed() + under_way;
            let tokens = match which {
                Which::Decode => next.as_slice(),
                Which::Prefill => &self.scheduler.tokens(*id)[from..from + n],
            };
            let draw = draws.then(|| Draw {
                params: active.params(from + n),
                mask: active.mask(self.scheduler.answer_len(*id) + under_way),
            });
            head = head.max(match &draw {
                Some(_) if active.sampling.needs_logits() => Head::Logits,
                Some(draw) => Head::for_draw(&draw.params, world_size),
                None => Head::Tokens,
            });
            batch.push(BatchRow {
                tokens,
                sequence,
                under_way,
                slot,
                draw,
            });
        }
        let tokens = batch.iter().map(|r| r.tokens.len()).sum();
        let kind = match which {
            Which::Decode => self.decode_kind(tokens),
            Which::Prefill => self.prefill_kind(tokens),
        };
        let ticket = self
            .steps
            .get(kind, head)?
            .submit(&mut self.ranks, &batch)?;
        Ok(InFlight {
            key: (kind, head),
            ticket,
            rows: work,
        })
    }

    /// Takes the token of an output row: from the step, or drawn here from its logits.
    fn token(
        &mut self,
        id: RequestId,
        results: &StepResults,
        output: usize,
        events: &mut Vec<Event>,
    ) {
        let drawn = match self.drawn(id, results, output) {
            Ok(drawn) => drawn,
            Err(error) => return self.fail(id, error, events),
        };
        let answer = self.scheduler.answer_len(id);
        let Some(active) = self.active.get_mut(&id) else {
            return;
        };
        let token = drawn.token;
        if let Err(error) = active.accept(token) {
            return self.fail(id, error.into(), events);
        }
        let is_stop = active.stop_tokens.contains(&token);
        let is_kept = !is_stop && active.limit > 0;
        let is_last = answer + usize::from(is_kept) >= active.limit;
        active.next = active.sampling.needs_logits().then_some(token);
        if is_kept {
            if active.sampling.penalises() {
                active.counts.push(token);
            }
            self.scheduler.drawn(id, token);
            let logprobs = drawn.logprobs;
            events.push(Event::Token {
                id,
                token,
                logprobs,
            });
        }
        if is_stop || is_last {
            self.cancel(id);
            let reason = match is_stop {
                true => FinishReason::Stop,
                false => FinishReason::Length,
            };
            events.push(Event::Finished {
                id,
                reason,
                stop_token: is_stop.then_some(token),
            });
        }
    }

    /// The token of an output row.
    fn drawn(
        &self,
        id: RequestId,
        results: &StepResults,
        output: usize,
    ) -> Result<Drawn, EngineError> {
        let missing = |name: &str| EngineError::NoResult {
            plan: "of this step".into(),
            name: name.into(),
        };
        let tokens = self.scheduler.tokens(id);
        let position = tokens.len();
        let active = self.active.get(&id).ok_or_else(|| missing("request"))?;
        if !active.sampling.needs_logits() {
            let drawn = results.i32s(names::TOKENS).and_then(|t| t.get(output));
            let token = match *drawn.ok_or_else(|| missing(names::TOKENS))? {
                TOKEN_NONE_ALLOWED => return Err(EngineError::NoTokenAllowed { position }),
                TOKEN_CORRUPT => return Err(EngineError::CorruptLogits { position }),
                token => u32::try_from(token),
            };
            let token = token.map_err(|_| EngineError::CorruptLogits { position })?;
            return Ok(Drawn {
                token: TokenId(token),
                logprobs: None,
            });
        }
        let vocab_size = self.inventory.config().vocab_size;
        let logits = results.f32s(names::LOGITS);
        let row = logits.and_then(|l| l.get(output * vocab_size..)?.get(..vocab_size));
        draw(
            row.ok_or_else(|| missing(names::LOGITS))?,
            active.mask(self.scheduler.answer_len(id)),
            &active.params(position),
            &active.sampling,
            History {
                tokens,
                counts: &active.counts,
            },
        )
    }

    /// Ends a request that cannot go on.
    fn fail(&mut self, id: RequestId, error: EngineError, events: &mut Vec<Event>) {
        self.active.remove(&id);
        match &error {
            // Its cached rows may be what is broken: nobody is to go on from them.
            EngineError::CorruptLogits { .. } => self.scheduler.remove_tainted(id),
            _ => self.scheduler.remove(id),
        };
        events.push(Event::Failed { id, error });
    }
}
