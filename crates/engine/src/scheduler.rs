//! What runs next: pure bookkeeping over request ids and token counts.
//!
//! A tick is at most one decode step, for every sequence whose prompt is done, and then one prefill step of at most
//! `max_chunk` tokens. So decode never waits for more than one chunk, however long the prompts are. Requests are admitted in the
//! order in which they came, once the blocks for all their tokens are free: an admitted request always runs to its end.

use std::collections::VecDeque;
use std::ops::Range;

/// Names a request within one engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// Bounds of a tick.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Sequences that run at a time.
    pub(crate) max_num_seqs: usize,
    /// Tokens of one prefill step.
    pub(crate) max_chunk: usize,
    /// Sequences of one prefill step.
    pub(crate) max_prefill_seqs: usize,
    /// Tokens in a block.
    pub(crate) block_size: usize,
}

/// A request as the scheduler sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    id: RequestId,
    prompt: usize,
    /// Tokens that it may come to have.
    capacity: usize,
    computed: usize,
}

/// What to do now.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tick {
    /// Requests that start; each takes the blocks for its whole capacity.
    pub(crate) admitted: Vec<RequestId>,
    /// Sequences of the decode step.
    pub(crate) decode: Vec<RequestId>,
    /// Sequences of the prefill step, and the parts of their prompts.
    pub(crate) prefill: Vec<(RequestId, Range<usize>)>,
}

/// Queue and running set.
#[derive(Debug)]
pub(crate) struct Scheduler {
    limits: Limits,
    waiting: VecDeque<Entry>,
    running: Vec<Entry>,
}

impl Scheduler {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            waiting: VecDeque::new(),
            running: Vec::new(),
        }
    }

    /// Queues a request of `prompt` tokens that may grow to `capacity`.
    pub(crate) fn submit(&mut self, id: RequestId, prompt: usize, capacity: usize) {
        self.waiting.push_back(Entry {
            id,
            prompt,
            capacity,
            computed: 0,
        });
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Requests that wait, and that run.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.waiting.len(), self.running.len())
    }

    /// Decides a tick, given the free blocks. Everything in it must then be run and reported by [`Self::computed`].
    pub(crate) fn tick(&mut self, mut blocks_free: usize) -> Tick {
        let mut tick = Tick::default();
        while let Some(next) = self.waiting.front() {
            let blocks = next.capacity.div_ceil(self.limits.block_size);
            if self.running.len() >= self.limits.max_num_seqs || blocks > blocks_free {
                break;
            }
            blocks_free -= blocks;
            tick.admitted.push(next.id);
            self.running.extend(self.waiting.pop_front());
        }
        let decodes = self.running.iter().filter(|e| e.computed >= e.prompt);
        tick.decode = decodes.map(|e| e.id).collect();
        let mut budget = self.limits.max_chunk;
        for e in self.running.iter().filter(|e| e.computed < e.prompt) {
            if budget == 0 || tick.prefill.len() == self.limits.max_prefill_seqs {
                break;
            }
            let end = e.prompt.min(e.computed + budget);
            budget -= end - e.computed;
            tick.prefill.push((e.id, e.computed..end));
        }
        tick
    }

    /// Notes that `tokens` more tokens of a request are in the cache.
    pub(crate) fn computed(&mut self, id: RequestId, tokens: usize) {
        if let Some(e) = self.running.iter_mut().find(|e| e.id == id) {
            e.computed += tokens;
        }
    }

    /// Forgets a request, wherever it is. Its blocks are the caller's to give back.
    pub(crate) fn remove(&mut self, id: RequestId) {
        self.waiting.retain(|e| e.id != id);
        self.running.retain(|e| e.id != id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        max_num_seqs: 3,
        max_chunk: 8,
        max_prefill_seqs: 2,
        block_size: 4,
    };

    fn ids(ids: &[u64]) -> Vec<RequestId> {
        ids.iter().map(|id| RequestId(*id)).collect()
    }

    #[test]
    fn prompts_share_a_chunk_and_decode_goes_on_beside_them() {
        let mut s = Scheduler::new(LIMITS);
        s.submit(RequestId(1), 5, 10);
        s.submit(RequestId(2), 20, 24);
        let tick = s.tick(100);
        assert_eq!(tick.admitted, ids(&[1, 2]));
        assert_eq!(tick.prefill, [(RequestId(1), 0..5), (RequestId(2), 0..3)]);
        assert_eq!(tick.decode, []);
        s.computed(RequestId(1), 5);
        s.computed(RequestId(2), 3);
        let tick = s.tick(100);
        assert_eq!(tick.decode, ids(&[1]));
        assert_eq!(tick.prefill, [(RequestId(2), 3..11)]);
    }

    #[test]
    fn a_request_waits_for_blocks_and_nobody_overtakes_it() {
        let mut s = Scheduler::new(LIMITS);
        s.submit(RequestId(1), 4, 16);
        s.submit(RequestId(2), 4, 17);
        s.submit(RequestId(3), 1, 4);
        // 4 blocks for the first; the second needs 5 of the 4 that are left.
        assert_eq!(s.tick(8).admitted, ids(&[1]));
        s.remove(RequestId(1));
        assert_eq!(s.tick(8).admitted, ids(&[2, 3]));
        assert_eq!(s.counts(), (0, 2));
    }

    #[test]
    fn no_more_sequences_run_than_allowed() {
        let mut s = Scheduler::new(LIMITS);
        (0..5).for_each(|id| s.submit(RequestId(id), 1, 2));
        let tick = s.tick(100);
        assert_eq!((tick.admitted.len(), tick.prefill.len()), (3, 2));
        s.remove(RequestId(1));
        assert_eq!(s.tick(100).admitted, ids(&[3]));
        (0..5).for_each(|id| s.remove(RequestId(id)));
        assert!(s.is_idle());
    }

    /// A seeded workload: every request runs to its end, every prompt is tiled in order, blocks are never over-committed.
    #[test]
    fn a_random_workload_loses_doubles_and_starves_nobody() {
        let mut state = 12345u64;
        let mut random = |n: u64| {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 33) % n
        };
        let mut s = Scheduler::new(LIMITS);
        let total_blocks = 16;
        let (mut next, mut done) = (0u64, 0u64);
        // Request: prompt, capacity, computed, blocks held.
        let mut live = std::collections::BTreeMap::<RequestId, (usize, usize, usize, usize)>::new();
        let mut waited = 0;
        for step in 0..20_000 {
            if step < 15_000 && random(8) == 0 {
                let prompt = 1 + random(30) as usize;
                let capacity = prompt + 1 + random(20) as usize;
                live.insert(RequestId(next), (prompt, capacity, 0, 0));
                s.submit(RequestId(next), prompt, capacity);
                next += 1;
            }
            let held: usize = live.values().map(|r| r.3).sum();
            let tick = s.tick(total_blocks - held);
            for id in &tick.admitted {
                let r = live.get_mut(id).expect("admitted once");
                assert_eq!(r.3, 0, "admitted twice");
                r.3 = r.1.div_ceil(4);
            }
            assert!(live.values().map(|r| r.3).sum::<usize>() <= total_blocks);
            assert!(
                tick.prefill
                    .iter()
                    .map(|(_, range)| range.len())
                    .sum::<usize>()
                    <= 8
            );
            for (id, range) in &tick.prefill {
                let r = live.get_mut(id).expect("known");
                assert_eq!(range.start, r.2);
                r.2 = range.end;
                s.computed(*id, range.len());
            }
            for id in &tick.decode {
                let r = live.get_mut(id).expect("known");
                assert!(r.2 >= r.0);
                r.2 += 1;
                s.computed(*id, 1);
                if r.2 + 1 >= r.1 {
                    live.remove(id);
                    s.remove(*id);
                    done += 1;
                }
            }
            waited = if tick.decode.is_empty() && tick.prefill.is_empty() {
                waited + 1
            } else {
                0
            };
            assert!(live.is_empty() || waited < 2, "nothing moves");
        }
        assert!(live.is_empty() && s.is_idle());
        assert_eq!(done, next);
    }
}
