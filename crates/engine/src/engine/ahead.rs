//! Launch-ahead: the next decode step is handed over before the tokens of the one that runs are known.
//!
//! A step reads the tokens of the last one from the carry, so the device needs no word from the host between two decode steps; the host
//! needs the tokens only to know who is done. While step `n` runs, [`Engine::start_next`] hands over step `n + 1` for everybody who
//! will still be there then, as far as can be known, and the next tick finds its decode step under way. A tick's decode step is never larger than
//! that: who decodes has decoded in the tick before, or was prefilled in it, and after a tick with a prefill nothing is ahead.
//!
//! **What is known too late is dropped.** Whose token `n` was a stop token, who was cancelled, expired or preempted in between: its
//! row `n + 1` has run for nothing, and nobody looks at what it drew. It has written one row of the caches and a carry. Both lie in a
//! block and a slot that the request held when the step was handed over, behind all rows that the prefix cache has names for; who gets
//! them next writes them in a step that is handed over later, and runs later.
//!
//! **Who is not waited for.** A row whose draw needs the host (a constraint's mask, penalties, log-probabilities) cannot be ahead, and
//! since a tick decodes everybody in one step, nobody is ahead beside it. Who draws its last token leaves. If the blocks for one more token of each are not free, nothing is
//! handed over: the next tick decides who gives way.
//!
//! What a request gets is the same in any case: a row does not depend on the others, and draws are numbered by position.

use super::Engine;
use crate::error::EngineError;
use crate::ranks::RankTicket;
use crate::scheduler::RequestId;
use crate::steps::Key;

/// Which of a tick's two steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    Decode,
    Prefill,
}

/// One request's part of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) id: RequestId,
    /// Its tokens.
    pub(super) n: usize,
    /// Whether a token is drawn behind them.
    pub(super) draws: bool,
}

/// A step that was handed over.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) key: Key,
    pub(super) ticket: RankTicket,
    pub(super) rows: Vec<Row>,
}

impl Engine {
    /// Hands over the decode step behind `step`, for those of `decode` that it has a place for and that go on; if that can be.
    pub(super) fn start_next(
        &mut self,
        step: &InFlight,
        decode: &[RequestId],
    ) -> Result<Option<InFlight>, EngineError> {
        let mut rows = Vec::with_capacity(decode.len());
        for row in step.rows.iter().filter(|row| decode.contains(&row.id)) {
            // Who is gone already, since its constraint failed, has no row.
            let Some(active) = self.active.get(&row.id) else {
                continue;
            };
            if active.draws_on_host() {
                return Ok(None);
            }
            if self.scheduler.answer_len(row.id) + 1 < active.limit {
                rows.push(*row);
            }
        }
        let has_place = self.scheduler.reserve_ahead(rows.iter().map(|row| row.id));
        match has_place && !rows.is_empty() {
            true => self.hand_over(Which::Decode, rows, 1).map(Some),
            false => Ok(None),
        }
    }

    /// Waits for a step that is ahead, and forgets it: what comes next is not a tick.
    pub(super) fn settle(&mut self) -> Result<(), EngineError> {
        if let Some(InFlight { key, ticket, .. }) = self.ahead.take() {
            self.steps
                .get(key.0, key.1)?
                .wait(&mut self.ranks, ticket)?;
        }
        Ok(())
    }
}
