//! What the scheduler does in situations that can be read.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::{Duration, Instant};

use glim_text::TokenId;

use super::{Limits, RequestId, Scheduler, Submission, Tick};
use crate::error::EngineError;
use crate::kv::KvCache;

const BLOCK_SIZE: usize = 4;

const LIMITS: Limits = Limits {
    max_num_seqs: 3,
    max_chunk: 8,
    max_prefill_seqs: 2,
    max_queue: None,
};

struct Play {
    scheduler: Scheduler,
    now: Instant,
}

impl Play {
    fn new(limits: Limits, blocks: usize) -> Self {
        let kv = KvCache::new(blocks, BLOCK_SIZE, true, false);
        Self {
            scheduler: Scheduler::new(limits, kv),
            now: Instant::now(),
        }
    }

    /// Queues a prompt of `n` tokens, `first` and those after it.
    fn submit(&mut self, first: u32, n: u32, priority: i32) -> RequestId {
        self.scheduler.submit(Submission {
            prompt: (first..first + n).map(TokenId).collect(),
            priority,
            deadline: None,
            cache_salt: None,
        })
    }

    /// Decides a tick and reports all of it as done; the drawn tokens are all 9999.
    fn tick(&mut self) -> Tick {
        let tick = self.scheduler.tick(self.now);
        let decode = tick.decode.iter().map(|id| (*id, 1));
        let prefill = tick.prefill.iter().map(|(id, range)| (*id, range.len()));
        for (id, n) in decode.chain(prefill) {
            self.scheduler.computed(id, n);
            let computed = self.scheduler.place(id).unwrap().0.computed();
            if computed == self.scheduler.tokens(id).len() {
                self.scheduler.drawn(id, TokenId(9999));
            }
        }
        tick
    }
}

#[test]
fn prompts_share_a_chunk_and_decode_goes_on_beside_them() {
    let mut play = Play::new(LIMITS, 100);
    let (a, b) = (play.submit(0, 3, 0), play.submit(100, 20, 0));
    let tick = play.tick();
    assert_eq!(tick.started, [(a, 0), (b, 0)]);
    assert_eq!(tick.prefill, [(a, 0..3), (b, 0..5)]);
    assert_eq!(tick.decode, []);
    let tick = play.tick();
    assert_eq!(tick.decode, [a]);
    assert_eq!(tick.prefill, [(b, 5..13)]);
}

#[test]
fn a_short_prompt_does_not_wait_for_a_long_one() {
    let mut play = Play::new(LIMITS, 100);
    let long = play.submit(0, 100, 0);
    assert_eq!(play.tick().prefill, [(long, 0..8)]);
    let short = play.submit(200, 4, 0);
    let tick = play.tick();
    assert_eq!(tick.prefill, [(long, 8..12), (short, 0..4)]);
    assert_eq!(play.tick().decode, [short]);
}

#[test]
fn a_request_is_let_in_by_its_prompt_and_grows_a_block_at_a_time() {
    let mut play = Play::new(LIMITS, 3);
    let a = play.submit(0, 4, 0);
    play.tick();
    assert_eq!(play.scheduler.kv().blocks_free(), 2);
    for free in [1, 1, 1, 1, 0] {
        assert_eq!(play.tick().decode, [a]);
        assert_eq!(play.scheduler.kv().blocks_free(), free);
    }
}

#[test]
fn nobody_of_equal_priority_overtakes_who_waits_for_blocks() {
    let mut play = Play::new(LIMITS, 8);
    let a = play.submit(0, 8, 0);
    let b = play.submit(100, 28, 0);
    let c = play.submit(200, 1, 0);
    // Two blocks for the first; the second needs seven, and one in reserve.
    assert_eq!(play.tick().started, [(a, 0)]);
    assert!(play.scheduler.remove(a));
    let tick = play.tick();
    assert_eq!(tick.started, [(b, 0)]);
    assert!(play.scheduler.remove(b));
    assert_eq!(play.tick().started, [(c, 0)]);
}

#[test]
fn the_latest_gives_its_blocks_and_goes_on_where_it_was() {
    let mut play = Play::new(LIMITS, 5);
    let a = play.submit(0, 8, 0);
    let b = play.submit(100, 4, 0);
    play.tick();
    play.tick();
    // Both hold a block for what they draw: a three, b two. The next that lacks one is b itself, at its ninth token.
    for _ in 0..3 {
        assert_eq!(play.tick().decode, [a, b]);
    }
    let tick = play.tick();
    assert_eq!((tick.decode, tick.preempted), (vec![a], vec![b]));
    assert_eq!(play.scheduler.answer_len(b), 5);
    assert_eq!(play.scheduler.counts(), (1, 1));
    assert!(play.scheduler.remove(a));
    // Its whole blocks were not overwritten: only its last token is computed, and it does not start twice.
    let tick = play.tick();
    assert_eq!(tick.started, []);
    assert_eq!(tick.prefill, [(b, 8..9)]);
    assert_eq!(play.tick().decode, [b]);
}

#[test]
fn the_more_urgent_takes_slots_and_blocks() {
    let mut play = Play::new(LIMITS, 8);
    let ids: Vec<RequestId> = (0..3).map(|i| play.submit(100 * i, 4, 1)).collect();
    for _ in 0..3 {
        play.tick();
    }
    assert_eq!(play.scheduler.counts(), (0, 3));
    let urgent = play.submit(1000, 20, -5);
    let tick = play.tick();
    // A slot and five blocks of eight, of which two each are held: the last two go.
    assert_eq!(tick.preempted, [ids[2], ids[1]]);
    assert_eq!(tick.started, [(urgent, 0)]);
    assert_eq!(tick.prefill, [(urgent, 0..8)]);
    assert_eq!(tick.decode, [ids[0]]);
    // One that asks for more than the less urgent hold waits, and takes nothing.
    play.submit(2000, 16, -4);
    for _ in 0..2 {
        let tick = play.tick();
        assert_eq!((tick.preempted, tick.decode), (vec![], vec![ids[0]]));
    }
}

#[test]
fn choices_of_one_prompt_compute_it_once() {
    let limits = Limits {
        max_prefill_seqs: 3,
        ..LIMITS
    };
    let mut play = Play::new(limits, 100);
    let ids: Vec<RequestId> = (0..3).map(|_| play.submit(0, 18, 0)).collect();
    let tick = play.tick();
    assert_eq!(tick.started, [(ids[0], 0)]);
    play.tick();
    // All whole blocks but the rest of two tokens are there by now.
    let tick = play.tick();
    assert_eq!(tick.started, [(ids[1], 16), (ids[2], 16)]);
    let lookups = play.scheduler.kv().lookups();
    assert_eq!((lookups.queries, lookups.hits), (54, 32));
}

#[test]
fn who_waits_for_a_prefix_does_not_hold_up_others() {
    let mut play = Play::new(LIMITS, 100);
    let a = play.submit(0, 18, 0);
    let twin = play.submit(0, 18, 0);
    let other = play.submit(500, 3, 0);
    let tick = play.tick();
    assert_eq!(tick.started, [(a, 0), (other, 0)]);
    // If what computes the prefix goes away, its twin does not wait for ever.
    assert!(play.scheduler.remove(a));
    assert_eq!(play.tick().started, [(twin, 4)]);
}

#[test]
fn a_deadline_ends_a_request_that_waits_and_one_that_runs() {
    let limits = Limits {
        max_num_seqs: 1,
        ..LIMITS
    };
    let mut play = Play::new(limits, 100);
    let later = |play: &Play, ms| Some(play.now + Duration::from_millis(ms));
    let mut submit = |ms| {
        let deadline = later(&play, ms);
        play.scheduler.submit(Submission {
            prompt: vec![TokenId(ms as u32)],
            priority: 0,
            deadline,
            cache_salt: None,
        })
    };
    let (runs, waits) = (submit(20), submit(10));
    assert_eq!(play.tick().started, [(runs, 0)]);
    play.now += Duration::from_millis(10);
    assert_eq!(play.tick().expired, [waits]);
    play.now += Duration::from_millis(10);
    assert_eq!(play.tick().expired, [runs]);
    assert!(play.scheduler.is_idle());
    assert_eq!(play.scheduler.kv().blocks_free(), 100);
}

#[test]
fn a_queue_has_a_bound_beyond_what_can_run() {
    let limits = Limits {
        max_queue: Some(2),
        ..LIMITS
    };
    let mut play = Play::new(limits, 100);
    assert!(play.scheduler.check_queue(5).is_ok());
    let full = play.scheduler.check_queue(6).unwrap_err();
    assert!(matches!(
        full,
        EngineError::QueueFull { waiting: 0, max: 2 }
    ));
    for i in 0..5 {
        play.submit(100 * i, 2, 0);
    }
    for _ in 0..3 {
        play.tick();
    }
    assert_eq!(play.scheduler.counts(), (2, 3));
    assert_eq!(
        play.scheduler.check_queue(1).unwrap_err().to_string(),
        "the queue is full: 2 requests wait, of at most 2; try again later"
    );
}

#[test]
fn a_cleared_cache_is_not_hit_and_running_requests_keep_their_blocks() {
    let mut play = Play::new(LIMITS, 100);
    let a = play.submit(0, 12, 0);
    play.tick();
    play.scheduler.clear_prefix_cache();
    play.tick();
    let b = play.submit(0, 12, 0);
    assert_eq!(play.tick().started, [(b, 0)]);
    assert_eq!(play.scheduler.place(a).unwrap().0.blocks().len(), 4);
    assert!(play.scheduler.remove(a) && play.scheduler.remove(b));
    assert_eq!(play.scheduler.kv().blocks_free(), 100);
}

#[test]
fn rows_that_cannot_be_trusted_are_not_hit() {
    let mut play = Play::new(LIMITS, 100);
    let a = play.submit(0, 8, 0);
    play.tick();
    assert!(play.scheduler.remove_tainted(a));
    assert_eq!(play.scheduler.kv().blocks_cached(), 0);
    let b = play.submit(0, 8, 0);
    assert_eq!(play.tick().started, [(b, 0)]);
}
