//! What runs next: pure bookkeeping over requests, their tokens and their blocks. No device, no clock: time comes in as a value.
//!
//! **A tick** is at most one decode step, for every running sequence whose tokens are all computed but the last, and then one prefill
//! step of at most `max_chunk` tokens, [shared](share) by several prompts. So decode never waits for more than one chunk.
//!
//! **Urgency** is a total order: smaller priority first, then the earlier arrival. A tick goes through requests in this order. A
//! waiting one is let in if there is a slot, and if the blocks of its tokens so far, but for those found in the prefix cache, are free
//! (and one more for each running sequence ahead of it, which may need it next). A running one takes one block at a time as it grows.
//! Whoever lacks a block or a slot gets it from less urgent running requests, the least urgent first.
//!
//! **Preemption is by recompute**: the blocks are let go, and the request waits in its old place in the order. When it is let in again
//! its tokens so far are its prompt; what of them is still in the prefix cache need not even be computed. The tokens it draws are the
//! same, since draws are numbered by position.
//!
//! **What is guaranteed**: in every tick the most urgent request advances by at least a token, whatever the others do. So every
//! request ends that fits into the pool alone (others are refused), no two can take blocks from each other in turn, and a
//! request waits for more urgent ones only: among equal priorities for earlier arrivals. A steady stream of more urgent
//! requests does starve less urgent ones: that is what priorities mean.
//!
//! **Waiting for a prefix**: a request whose next missing block is just being computed by a more urgent one is passed over until
//! that block can be hit; the `n` choices of one prompt compute it once.

mod share;
#[cfg(test)]
mod sim;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::{Bound, Range};
use std::time::Instant;

use glim_text::TokenId;

use crate::error::EngineError;
use crate::kv::{BlockHash, BlockId, Chain, Computed, KvCache};
use crate::sequence::Sequence;
use share::Share;

/// Requests that a tick passes over at most, since others compute what they need.
const MAX_PASSED: usize = 64;

/// Names a request within one engine; later ones are larger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// Place in the order: smaller is sooner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Urgency {
    pub(crate) priority: i32,
    /// Also the order of arrival.
    pub(crate) id: RequestId,
}

/// Bounds of a tick.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Sequences that run at a time.
    pub(crate) max_num_seqs: usize,
    /// Tokens of one prefill step.
    pub(crate) max_chunk: usize,
    /// Sequences of one prefill step.
    pub(crate) max_prefill_seqs: usize,
    /// Requests that wait beyond those that could run at once; `None`: any number.
    pub(crate) max_queue: Option<usize>,
}

/// A request as the scheduler sees it.
#[derive(Debug)]
pub(crate) struct Submission {
    pub(crate) prompt: Vec<TokenId>,
    pub(crate) priority: i32,
    pub(crate) deadline: Option<Instant>,
    pub(crate) cache_salt: Option<String>,
}

/// What to do now.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tick {
    /// Requests that are over, since their deadline has passed.
    pub(crate) expired: Vec<RequestId>,
    /// Requests that lost their blocks.
    pub(crate) preempted: Vec<RequestId>,
    /// Requests that run for the first time, and how many of their tokens were in the cache.
    pub(crate) started: Vec<(RequestId, usize)>,
    /// Sequences of the decode step.
    pub(crate) decode: Vec<RequestId>,
    /// Sequences of the prefill step, and the parts of their tokens.
    pub(crate) prefill: Vec<(RequestId, Range<usize>)>,
}

#[derive(Debug)]
struct Entry {
    urgency: Urgency,
    deadline: Option<Instant>,
    /// Prompt, then answer.
    tokens: Vec<TokenId>,
    prompt: usize,
    /// Names of its whole blocks; `None`: nothing is shared.
    chain: Option<Chain>,
    /// Set while it runs.
    run: Option<Run>,
    has_started: bool,
}

/// What a running request holds.
#[derive(Debug)]
struct Run {
    sequence: Sequence,
    /// Slot of carries.
    slot: usize,
    /// Tokens that are computed by prefill: those that it had when it was let in.
    target: usize,
    /// Blocks that have been offered to the prefix cache, or came from it.
    stored: usize,
    /// Its blocks stay private: the cache was cleared since.
    is_detached: bool,
}

impl Run {
    fn is_prefilling(&self) -> bool {
        self.sequence.computed() < self.target
    }
}

/// Whose turn it is in a tick.
enum Next {
    Running(Urgency),
    Waiting(Urgency),
}

/// Whether a waiting request is let in.
enum Entrance {
    Open,
    /// Somebody computes what it needs: it is passed over.
    Passed,
    /// It waits for room, and so do all behind it.
    Closed,
}

/// Queue, running set, and the cache's blocks.
#[derive(Debug)]
pub(crate) struct Scheduler {
    limits: Limits,
    kv: KvCache,
    entries: HashMap<RequestId, Entry>,
    waiting: BTreeSet<Urgency>,
    /// In order of urgency.
    running: Vec<Urgency>,
    deadlines: BTreeSet<(Instant, RequestId)>,
    free_slots: Vec<usize>,
    preemptions: u64,
    next_id: u64,
}

impl Scheduler {
    pub(crate) fn new(limits: Limits, kv: KvCache) -> Self {
        Self {
            limits,
            kv,
            entries: HashMap::new(),
            waiting: BTreeSet::new(),
            running: Vec::new(),
            deadlines: BTreeSet::new(),
            free_slots: (0..limits.max_num_seqs).rev().collect(),
            preemptions: 0,
            next_id: 0,
        }
    }

    /// Refuses `n` more requests if the queue does not hold them.
    ///
    /// # Errors
    /// [`EngineError::QueueFull`].
    pub(crate) fn check_queue(&self, n: usize) -> Result<(), EngineError> {
        let Some(max) = self.limits.max_queue else {
            return Ok(());
        };
        let waiting = self.waiting.len();
        if waiting.saturating_add(n) > max.saturating_add(self.free_slots.len()) {
            return Err(EngineError::QueueFull { waiting, max });
        }
        Ok(())
    }

    /// Queues a request. That it fits into the pool alone is the caller's to see to.
    pub(crate) fn submit(&mut self, request: Submission) -> RequestId {
        let id = RequestId(self.next_id);
        self.next_id += 1;
        let urgency = Urgency {
            priority: request.priority,
            id,
        };
        let chain = self.kv.reuses().then(|| {
            let mut chain = Chain::new(request.cache_salt.as_deref());
            chain.extend(&request.prompt, self.kv.block_size());
            chain
        });
        if let Some(deadline) = request.deadline {
            self.deadlines.insert((deadline, id));
        }
        let entry = Entry {
            urgency,
            deadline: request.deadline,
            prompt: request.prompt.len(),
            tokens: request.prompt,
            chain,
            run: None,
            has_started: false,
        };
        self.entries.insert(id, entry);
        self.waiting.insert(urgency);
        id
    }

    /// Bounds the tokens of prefill steps from now on; returns the bound until now.
    pub(crate) fn set_max_chunk(&mut self, tokens: usize) -> usize {
        std::mem::replace(&mut self.limits.max_chunk, tokens)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.entries.is_empty()
    }

    /// Requests that wait, and that run.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.waiting.len(), self.running.len())
    }

    pub(crate) fn preemptions(&self) -> u64 {
        self.preemptions
    }

    pub(crate) fn kv(&self) -> &KvCache {
        &self.kv
    }

    /// For sequences that no request owns, and for events.
    pub(crate) fn kv_mut(&mut self) -> &mut KvCache {
        &mut self.kv
    }

    /// A request's tokens, prompt and answer.
    pub(crate) fn tokens(&self, id: RequestId) -> &[TokenId] {
        self.entries.get(&id).map_or(&[], |entry| &entry.tokens)
    }

    /// The tokens of its answer so far.
    pub(crate) fn answer_len(&self, id: RequestId) -> usize {
        let entry = self.entries.get(&id);
        entry.map_or(0, |entry| entry.tokens.len() - entry.prompt)
    }

    /// A running request's place in the cache, and its slot of carries.
    pub(crate) fn place(&self, id: RequestId) -> Option<(&Sequence, usize)> {
        let run = self.entries.get(&id)?.run.as_ref()?;
        Some((&run.sequence, run.slot))
    }

    /// Decides a tick. All that it says must then be run, and each part reported by [`Self::computed`].
    pub(crate) fn tick(&mut self, now: Instant) -> Tick {
        let mut tick = Tick::default();
        self.expire(now, &mut tick);
        let mut share = Share::new(self.limits.max_chunk, self.limits.max_prefill_seqs);
        let mut at = 0;
        // The next that waits stands behind this; `None`: nobody is let in any more.
        let mut behind = Some(Bound::Unbounded);
        let mut passed = 0;
        loop {
            let running = self.running.get(at).copied();
            let waiting = behind.and_then(|bound| {
                let mut rest = self.waiting.range((bound, Bound::Unbounded));
                rest.next().copied()
            });
            let next = match (running, waiting) {
                (None, None) => break,
                (Some(running), Some(waiting)) if waiting < running => Next::Waiting(waiting),
                (Some(running), _) => Next::Running(running),
                (None, Some(waiting)) => Next::Waiting(waiting),
            };
            let preempted = tick.preempted.len();
            match next {
                Next::Running(running) => {
                    let still_runs = self.plan_running(running, &mut share, &mut tick);
                    at += usize::from(still_runs);
                }
                Next::Waiting(waiting) => match self.let_in(waiting, at, &mut share, &mut tick) {
                    Entrance::Open => {
                        at += 1;
                        behind = Some(Bound::Excluded(waiting));
                    }
                    Entrance::Passed => {
                        passed += 1;
                        behind = (passed < MAX_PASSED).then_some(Bound::Excluded(waiting));
                    }
                    Entrance::Closed => behind = None,
                },
            }
            // Who was just preempted does not come in again at once.
            if tick.preempted.len() > preempted {
                behind = None;
            }
        }
        tick.prefill = share.divide();
        tick
    }

    /// Takes the blocks that each of these lacks for one token more than the step under way computes; none if not all are free. They
    /// are what the next tick would take first.
    pub(crate) fn reserve_ahead(&mut self, ids: impl Iterator<Item = RequestId> + Clone) -> bool {
        let block_size = self.kv.block_size();
        let length = |run: &Run| run.sequence.computed() + 2;
        let runs = ids
            .clone()
            .filter_map(|id| self.entries.get(&id)?.run.as_ref());
        let lacks = runs.map(|run| run.sequence.lacks(length(run), block_size));
        if lacks.sum::<usize>() > self.kv.blocks_free() {
            return false;
        }
        ids.into_iter().all(|id| {
            let run = self.entries.get_mut(&id).and_then(|e| e.run.as_mut());
            run.is_some_and(|run| {
                let length = length(run);
                run.sequence.reserve(length, &mut self.kv).is_ok()
            })
        })
    }

    /// Notes that `n` more tokens of a request are in the cache.
    pub(crate) fn computed(&mut self, id: RequestId, n: usize) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        let (Some(run), chain) = (&mut entry.run, &entry.chain) else {
            return;
        };
        run.sequence.advance(n);
        let block_size = self.kv.block_size();
        let whole = run.sequence.computed() / block_size;
        let Some(chain) = chain.as_ref().filter(|_| !run.is_detached) else {
            return;
        };
        if whole > run.stored {
            let new = run.stored..whole;
            let hashes = chain.hashes();
            self.kv.store(&Computed {
                blocks: &run.sequence.blocks()[new.clone()],
                hashes: &hashes[new.clone()],
                parent: new.start.checked_sub(1).map(|before| hashes[before]),
                tokens: &entry.tokens[new.start * block_size..new.end * block_size],
                opening: chain.opening().filter(|_| new.start == 0),
            });
            run.stored = whole;
        }
    }

    /// Notes the token that a request has drawn.
    pub(crate) fn drawn(&mut self, id: RequestId, token: TokenId) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        entry.tokens.push(token);
        if let Some(chain) = &mut entry.chain {
            chain.extend(&entry.tokens, self.kv.block_size());
        }
    }

    /// Forgets a request, in whatever state, and lets go of its blocks. Says whether there was one.
    pub(crate) fn remove(&mut self, id: RequestId) -> bool {
        let Some(mut entry) = self.entries.remove(&id) else {
            return false;
        };
        if let Some(deadline) = entry.deadline {
            self.deadlines.remove(&(deadline, id));
        }
        self.waiting.remove(&entry.urgency);
        self.running.retain(|urgency| *urgency != entry.urgency);
        if let Some(run) = entry.run.take() {
            self.let_go(run);
        }
        true
    }

    /// The same for a request whose rows cannot be trusted: nobody is to hit them.
    pub(crate) fn remove_tainted(&mut self, id: RequestId) -> bool {
        if let Some(run) = self.entries.get(&id).and_then(|entry| entry.run.as_ref()) {
            self.kv.forget(run.sequence.blocks());
        }
        self.remove(id)
    }

    /// No block is hit any more; those of running requests stay private.
    pub(crate) fn clear_prefix_cache(&mut self) {
        self.kv.clear();
        for urgency in &self.running {
            let entry = self.entries.get_mut(&urgency.id);
            if let Some(run) = entry.and_then(|entry| entry.run.as_mut()) {
                run.is_detached = true;
            }
        }
    }

    fn expire(&mut self, now: Instant, tick: &mut Tick) {
        while let Some((deadline, id)) = self.deadlines.first().copied() {
            if deadline > now {
                break;
            }
            self.remove(id);
            tick.expired.push(id);
        }
    }

    /// Plans a running request, and says whether it still runs.
    fn plan_running(&mut self, urgency: Urgency, share: &mut Share, tick: &mut Tick) -> bool {
        let Some(run) = self.run_of(urgency) else {
            return true;
        };
        let (computed, target) = (run.sequence.computed(), run.target);
        if computed < target {
            if share.has_room(urgency.priority) {
                share.push(urgency, computed..target);
            }
            return true;
        }
        let lacks = run.sequence.lacks(computed + 1, self.kv.block_size());
        while self.kv.blocks_free() < lacks {
            match self.preempt_last(tick) {
                Some(victim) if victim != urgency => {}
                _ => return false,
            }
        }
        let run = self.entries.get_mut(&urgency.id);
        if let Some(run) = run.and_then(|entry| entry.run.as_mut())
            && run.sequence.reserve(computed + 1, &mut self.kv).is_ok()
        {
            tick.decode.push(urgency.id);
        }
        true
    }

    /// Lets a waiting request in if it can be: `ahead` running ones are more urgent.
    fn let_in(
        &mut self,
        urgency: Urgency,
        ahead: usize,
        share: &mut Share,
        tick: &mut Tick,
    ) -> Entrance {
        let Some(entry) = self.entries.get(&urgency.id) else {
            return Entrance::Closed;
        };
        let has_slot = !self.free_slots.is_empty() || self.running.len() > ahead;
        if !has_slot || !share.has_room(urgency.priority) {
            return Entrance::Closed;
        }
        let block_size = self.kv.block_size();
        let target = entry.tokens.len();
        // The last token is always computed: its row gives the next one.
        let whole = target.saturating_sub(1) / block_size;
        let hashes = entry.chain.as_ref().map_or(&[][..], Chain::hashes);
        let hashes = &hashes[..whole.min(hashes.len())];
        let n_hits = self.kv.hits(hashes);
        if n_hits < hashes.len() && self.is_being_computed(&hashes[..=n_hits], ahead) {
            return Entrance::Passed;
        }
        let (hits, new) = (&hashes[..n_hits], target.div_ceil(block_size) - n_hits);
        let must_preempt = !self.has_place(hits, new, ahead);
        if must_preempt && !self.would_have_place(hits, new, ahead) {
            return Entrance::Closed;
        }
        let hits = hits.to_vec();
        while !self.has_place(&hits, new, ahead) {
            if self.running.len() <= ahead || self.preempt_last(tick).is_none() {
                return Entrance::Closed;
            }
        }
        let Ok(blocks) = self.kv.acquire(&hits, new) else {
            return Entrance::Closed;
        };
        let (Some(slot), Some(entry)) = (self.free_slots.pop(), self.entries.get_mut(&urgency.id))
        else {
            self.kv.release(blocks);
            return Entrance::Closed;
        };
        let computed = hits.len() * block_size;
        entry.run = Some(Run {
            sequence: Sequence::new(blocks, computed),
            slot,
            target,
            stored: hits.len(),
            is_detached: false,
        });
        if !entry.has_started {
            entry.has_started = true;
            self.kv.count(target, entry.chain.as_ref(), hits.len());
            tick.started.push((urgency.id, computed));
        }
        self.waiting.remove(&urgency);
        self.running.insert(ahead, urgency);
        share.push(urgency, computed..target);
        Entrance::Open
    }

    /// Whether there are a slot and free blocks: for the hits that nobody refers to, for what is new, and one for each sequence ahead.
    fn has_place(&self, hits: &[BlockHash], new: usize, ahead: usize) -> bool {
        let free_hits = self.kv.blocks_of(hits).filter(|b| self.kv.is_free(*b));
        !self.free_slots.is_empty() && free_hits.count() + new + ahead <= self.kv.blocks_free()
    }

    /// The same if all less urgent requests were preempted.
    fn would_have_place(&self, hits: &[BlockHash], new: usize, ahead: usize) -> bool {
        if self.running.len() <= ahead {
            return false;
        }
        let before = self.running[..ahead].iter();
        let runs = before.filter_map(|urgency| self.run_of(*urgency));
        let held: HashSet<BlockId> = runs
            .flat_map(|run| run.sequence.blocks())
            .copied()
            .collect();
        let free_hits = self.kv.blocks_of(hits).filter(|b| !held.contains(b));
        ahead < self.limits.max_num_seqs
            && free_hits.count() + new + ahead + held.len() <= self.kv.blocks_total()
    }

    /// Whether one of the `ahead` most urgent running requests is about to compute the last of these blocks.
    fn is_being_computed(&self, hashes: &[BlockHash], ahead: usize) -> bool {
        let last = hashes.len() - 1;
        self.running[..ahead].iter().any(|urgency| {
            let entry = self.entries.get(&urgency.id);
            entry.is_some_and(|entry| {
                let theirs = entry.chain.as_ref().and_then(|c| c.hashes().get(last));
                let is_coming = |run: &Run| {
                    let end = hashes.len() * self.kv.block_size();
                    let is_ahead = run.stored <= last && end <= run.target;
                    !run.is_detached && run.is_prefilling() && is_ahead
                };
                theirs == hashes.get(last) && entry.run.as_ref().is_some_and(is_coming)
            })
        })
    }

    /// Takes the blocks of the least urgent running request.
    fn preempt_last(&mut self, tick: &mut Tick) -> Option<Urgency> {
        let victim = self.running.pop()?;
        let entry = self.entries.get_mut(&victim.id);
        if let Some(run) = entry.and_then(|entry| entry.run.take()) {
            self.let_go(run);
        }
        self.waiting.insert(victim);
        self.preemptions += 1;
        tick.preempted.push(victim.id);
        Some(victim)
    }

    fn let_go(&mut self, run: Run) {
        run.sequence.release(&mut self.kv);
        self.free_slots.push(run.slot);
    }

    fn run_of(&self, urgency: Urgency) -> Option<&Run> {
        self.entries.get(&urgency.id)?.run.as_ref()
    }
}
