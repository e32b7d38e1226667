//! Runs requests beside each other and keeps what came of each.

use std::collections::BTreeMap;

use glim_engine::{Engine, Event, FinishReason, GenerateRequest, RequestId};
use glim_text::TokenId;

/// What came of a request.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) tokens: Vec<TokenId>,
    /// Of the start, which comes once.
    pub(crate) cached: Option<usize>,
    pub(crate) preempted: usize,
    pub(crate) finished: Option<(FinishReason, Option<TokenId>)>,
    pub(crate) error: Option<String>,
}

/// Takes events in, in their order.
pub(crate) fn note(outcomes: &mut BTreeMap<RequestId, Outcome>, events: Vec<Event>) {
    for event in events {
        let id = match &event {
            Event::Started { id, .. }
            | Event::Preempted { id }
            | Event::Token { id, .. }
            | Event::Finished { id, .. }
            | Event::Failed { id, .. } => *id,
        };
        let outcome = outcomes.entry(id).or_default();
        let is_over = outcome.finished.is_some() || outcome.error.is_some();
        assert!(!is_over, "nothing comes after the end: {event:?}");
        match event {
            Event::Started { cached_tokens, .. } => {
                assert_eq!(outcome.cached.replace(cached_tokens), None);
            }
            Event::Preempted { .. } => outcome.preempted += 1,
            Event::Token { token, .. } => outcome.tokens.push(token),
            Event::Finished {
                reason, stop_token, ..
            } => outcome.finished = Some((reason, stop_token)),
            Event::Failed { error, .. } => outcome.error = Some(error.to_string()),
        }
    }
}

/// Runs all of them at once, to their ends.
pub(crate) fn serve(engine: &mut Engine, requests: Vec<GenerateRequest>) -> Vec<Outcome> {
    let ids = engine.submit_all(requests).unwrap();
    let mut outcomes = BTreeMap::new();
    while !engine.is_idle() {
        note(&mut outcomes, engine.step().unwrap());
    }
    assert_eq!(engine.stats().blocks_used, 0, "every block is free again");
    ids.iter().map(|id| outcomes.remove(id).unwrap()).collect()
}

/// The tokens of each.
pub(crate) fn tokens(outcomes: &[Outcome]) -> Vec<Vec<TokenId>> {
    outcomes.iter().map(|o| o.tokens.clone()).collect()
}
